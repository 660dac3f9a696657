from __future__ import annotations

import json
import math

import numpy as np
import pytest

from denominator import masking
from denominator.cache import Cache, describe
from denominator.chunkers import FixedChars, Sentences
from denominator.embedders import BM25, Hybrid
from denominator.endpoints.client import EndpointError
from denominator.endpoints.embeddings import OpenAI
from denominator.errors import ConfigError
from tests.endpoint_parts import QUESTIONS, QUICK, TEXTS, bench_of, rankings
from tests.http_server import Reply, counts, embeddings, serving

ORDER = [["filters", "pumps", "paints", "refunds"], ["refunds", "filters", "paints", "pumps"]]


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    masking.forget()


@pytest.fixture
def server():
    with serving(embeddings) as running:
        yield running


def openai(server, **settings):
    return OpenAI(url=server.url + "/v1", model="m", **{**QUICK, **settings})


def cosine(a, b):
    """By hand, from the words that both texts hold."""
    x, y = counts(a), counts(b)
    return sum(p * q for p, q in zip(x, y, strict=True)) / math.sqrt(sum(p * p for p in x) * sum(q * q for q in y))


def passages(server, which):
    """Makes the server answer requests for passages otherwise; questions as before."""
    server.answer = lambda request: (
        which(request) if request.body["input"][0] in TEXTS.values() else embeddings(request)
    )


def questions(server, which):
    server.answer = lambda request: (
        embeddings(request) if request.body["input"][0] in TEXTS.values() else which(request)
    )


def changed(change):
    """The usual answer with its data in order of index, changed by a function."""

    def answer(request):
        reply = embeddings(request)
        data = sorted(reply["data"], key=lambda item: item["index"])
        return reply | {"data": change(data)}

    return answer


def test_success_in_the_wrong_order_and_in_batches(server):
    bench = bench_of()
    part = openai(server, batch=3, api_key="sk-s3cret")
    ranked, facts = bench.ranked(part)
    assert rankings(bench, ranked)[:2] == ORDER
    for i, text in enumerate(QUESTIONS):
        row = ranked.scores[ranked.offsets[i] : ranked.offsets[i + 1]]
        assert row == pytest.approx(sorted((cosine(text, t) for t in TEXTS.values()), reverse=True), abs=1e-6)
    assert ranked.errors == {}
    assert {request.path for request in server.requests} == {"/v1/embeddings"}
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer sk-s3cret"}
    assert sorted(len(body["input"]) for body in server.bodies()) == [1, 3, 3]
    assert all(set(body) == {"model", "input"} for body in server.bodies())
    assert facts["index_bytes"] == 4 * 8 * 4


@pytest.mark.parametrize(
    "fault",
    [
        Reply(429, {}, {"Retry-After": "0"}),
        Reply(500, {"error": "busy"}),
        Reply(body=b"<html>"),
        Reply(body={"data": []}, cut=3),
        Reply(body={}, delay=0.3),
    ],
    ids=["429", "500", "malformed", "cut", "time-out"],
)
def test_a_passing_failure(server, fault):
    server.faults.append(fault)
    bench = bench_of()
    ranked, _ = bench.ranked(openai(server, timeout=0.15))
    assert rankings(bench, ranked)[:2] == ORDER
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("always", "message"),
    [
        (Reply(500, {"error": "busy"}), "status 500"),
        (Reply(401, {"error": "no key"}), "status 401"),
        (Reply(429, {}, {"Retry-After": "900"}), "asks to wait 900 s"),
        (Reply(body=b"<html>"), "is not JSON: <html>"),
        (Reply(body=1, delay=0.08), "no answer within 0.02 s"),
    ],
    ids=["500", "401", "429", "malformed", "time-out"],
)
def test_a_lasting_failure_fails_the_corpus_and_only_its_questions(server, always, message):
    part = openai(server, timeout=0.02 if always.delay else 5.0)
    passages(server, lambda _: always)
    with pytest.raises(EndpointError, match=message) as caught:
        bench_of().ranked(part)
    assert "embedder openai: chunk 'filters#000000000-000000053'" in str(caught.value)

    questions(server, lambda _: always)
    bench = bench_of()
    ranked, _ = bench.ranked(part)
    assert rankings(bench, ranked) == [None, None, None]
    assert all(message in why and "embedder openai: question" in why for why in ranked.errors.values())


BROKEN = {
    "no item": (lambda data: data[:1] + data[2:], "the answer has no item with index 1 (3 items for 4 texts)"),
    "twice": (lambda data: [*data, data[1]], "the answer has 2 items with index 1 (5 items for 4 texts)"),
    "NaN": (
        lambda data: [*data[:1], data[1] | {"embedding": [float("nan")] * 8}, *data[2:]],
        "holds NaN or an infinite",
    ),
    "null": (
        lambda data: [*data[:1], data[1] | {"embedding": [None] * 8}, *data[2:]],
        "something that is not a number",
    ),
    "huge": (lambda data: [*data[:1], data[1] | {"embedding": [1e300] * 8}, *data[2:]], "holds NaN or an infinite"),
    "short": (lambda data: [*data[:1], data[1] | {"embedding": [1.0] * 3}, *data[2:]], "has 3 numbers, expected 8"),
    "base64": (
        lambda data: [*data[:1], data[1] | {"embedding": "AAAA"}, *data[2:]],
        "is str, expected a list of numbers",
    ),
    "empty": (lambda data: [*data[:1], data[1] | {"embedding": []}, *data[2:]], "expected a list of numbers"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.filterwarnings("error")
def test_a_broken_item_is_named(server, name):
    change, message = BROKEN[name]
    passages(server, changed(change))
    with pytest.raises(EndpointError) as caught:
        bench_of().ranked(openai(server))
    assert str(caught.value).startswith("embedder openai: chunk 'paints#000000000-000000058': ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.filterwarnings("error")
def test_a_broken_item_fails_that_question_alone(server, name):
    change, message = BROKEN[name]
    questions(server, changed(change))
    bench = bench_of(questions=(*QUESTIONS, "Is there a brush?"))
    ranked, _ = bench.ranked(openai(server))
    assert rankings(bench, ranked)[0] == ORDER[0]
    assert list(ranked.errors) == [1]
    assert "question 'When is an order refunded?'" in ranked.errors[1]
    assert message in ranked.errors[1]


@pytest.mark.parametrize("index", [None, "0", -1, 4, True])
def test_an_index_that_cannot_be_makes_the_batch_unusable(server, index):
    passages(server, changed(lambda data: [data[0] | {"index": index}, *data[1:]]))
    with pytest.raises(EndpointError, match="expected 0 to 3") as caught:
        bench_of().ranked(openai(server))
    assert "(and 3 more chunks)" in str(caught.value)


@pytest.mark.parametrize("body", [{"error": "x"}, [], None, {"data": {"0": []}}])
def test_an_answer_of_another_shape(server, body):
    passages(server, lambda _: Reply(body=body))
    with pytest.raises(EndpointError, match="the answer has no list `data`"):
        bench_of().ranked(openai(server))


def test_dimensions_are_asked_for_and_checked(server):
    with pytest.raises(EndpointError, match="has 8 numbers, expected 4"):
        bench_of().ranked(openai(server, dimensions=4))
    assert server.requests[0].body["dimensions"] == 4
    bench = bench_of()
    assert rankings(bench, bench.ranked(openai(server, dimensions=8))[0])[:2] == ORDER


def test_questions_of_another_length_than_the_chunks_fail(server):
    questions(server, lambda r: {"data": [{"index": i, "embedding": [1.0]} for i in range(len(r.body["input"]))]})
    bench = bench_of()
    ranked, _ = bench.ranked(openai(server))
    assert rankings(bench, ranked) == [None] * 3
    assert "has 1 numbers, expected 8" in ranked.errors[0]


def test_a_text_that_is_too_long_fails_alone_and_a_batch_that_is_too_large_is_cut(server):
    def answer(request):
        texts = request.body["input"]
        if len(texts) > 2 or any(len(t) > 60 for t in texts):
            return Reply(413, {"error": "too much"})
        return embeddings(request)

    server.answer = answer
    bench = bench_of(questions=(*QUESTIONS, "filter " * 20))
    ranked, _ = bench.ranked(openai(server))
    assert rankings(bench, ranked)[:2] == ORDER
    assert list(ranked.errors) == [3]
    assert "status 413" in ranked.errors[3]
    cut, facts = bench_of(questions=(*QUESTIONS, "filter " * 20)).ranked(openai(server, max_characters=60))
    assert cut.errors == {}
    assert (facts["truncated_chunks"], facts["truncated_questions"]) == (0, 1)
    assert facts["truncated_questions_characters"] == len("filter " * 20) - 60


def test_prefixes_and_fields_by_kind(server):
    part = openai(
        server,
        query_prefix="query: ",
        passage_prefix="passage: ",
        query_extra={"input_type": "query"},
        passage_extra={"input_type": "document"},
    )
    bench_of(titles={"pumps": "Pumps"}).ranked(part)
    documents, asked = server.bodies()
    assert documents["input_type"] == "document"
    assert asked["input_type"] == "query"
    assert asked["input"][0] == "query: Where is the filter of the pump?"
    assert "passage: Pumps\n" + TEXTS["pumps"] in documents["input"]


def test_a_text_without_characters_is_not_sent(server):
    bench = bench_of(questions=("Where is the filter?", "  "))
    ranked, _ = bench.ranked(openai(server))
    assert all(text.strip() for body in server.bodies() for text in body["input"])
    assert rankings(bench, ranked)[1] == []


def test_dot_products_take_vectors_as_they_come(server):
    bench = bench_of()
    ranked, _ = bench.ranked(openai(server, similarity="dot"))
    for i, question in enumerate(QUESTIONS):
        exact = [float(np.dot(counts(question), counts(t))) for _, t in sorted(TEXTS.items())]
        row = slice(ranked.offsets[i], ranked.offsets[i + 1])
        assert ranked.scores[row] == pytest.approx(sorted(exact, reverse=True), abs=1e-4)
        assert rankings(bench, ranked)[i][0] == sorted(TEXTS)[int(np.argmax(exact))]


def test_one_side_of_a_mix(server):
    bench = bench_of()
    ranked, facts = bench.ranked(Hybrid(dense=openai(server), lexical=BM25(stopwords=False), fusion="min_max"))
    assert rankings(bench, ranked)[0][0] == "filters"
    assert "embedder_tokens" in facts


# Cost and cache


def test_tokens_and_money(server):
    _, facts = bench_of().ranked(openai(server, price_per_million_tokens=2.0, batch=2))
    words = sum(len(t.split()) for t in [*TEXTS.values(), *QUESTIONS])
    assert facts["embedder_tokens"] == words
    assert facts["embedder_cost"] == pytest.approx(words * 2e-6)


def test_tokens_of_a_server_that_does_not_count(server):
    server.answer = lambda request: {"data": embeddings(request)["data"]}
    _, facts = bench_of({"a": "one two, three"}, ("four",)).ranked(openai(server))
    assert facts["embedder_tokens"] == 4 + 1  # regex-v1: the comma counts
    assert "embedder_cost" not in facts


def test_vectors_are_kept_per_text(server, tmp_path):
    part = openai(server, price_per_million_tokens=1.0)
    first, facts = bench_of(cache=Cache(tmp_path)).ranked(part)
    assert len(server.requests) == 2
    again, same = bench_of(cache=Cache(tmp_path)).ranked(part)
    assert len(server.requests) == 2
    assert (again.unit == first.unit).all()
    assert (again.scores == first.scores).all()
    assert same == facts

    # Another chunker and one more document: only texts that were never sent are sent.
    texts = {**TEXTS, "brushes": "Clean brushes with water."}
    bench_of(texts, cache=Cache(tmp_path), chunker=Sentences(50)).ranked(part)
    assert [body["input"] for body in server.bodies()[2:]] == [["Clean brushes with water."]]
    bench_of(cache=Cache(tmp_path)).ranked(openai(server, batch=1, concurrency=2, api_key="other", retries=0))
    assert len(server.requests) == 3
    for other in ({"version": "2"}, {"query_extra": {"x": 1}}):
        before = len(server.requests)
        bench_of(cache=Cache(tmp_path)).ranked(openai(server, **other))
        assert len(server.requests) > before


def test_a_price_is_no_reason_to_ask_again(server, tmp_path):
    bench_of(cache=Cache(tmp_path)).ranked(openai(server))
    _, facts = bench_of(cache=Cache(tmp_path)).ranked(openai(server, price_per_million_tokens=5.0))
    assert len(server.requests) == 2
    assert facts["embedder_cost"] == pytest.approx(facts["embedder_tokens"] * 5e-6)


def test_what_was_paid_before_a_failure_is_kept(server, tmp_path):
    texts = {f"d{i}": f"order number {i}" for i in range(6)}
    server.answer = lambda r: Reply(500) if "order number 4" in r.body["input"] else embeddings(r)
    part = openai(server, batch=2, concurrency=1, retries=0)
    with pytest.raises(EndpointError, match="chunk 'd4#"):
        bench_of(texts, cache=Cache(tmp_path)).ranked(part)
    server.answer = embeddings
    server.requests.clear()
    bench_of(texts, cache=Cache(tmp_path)).ranked(part)
    assert server.bodies()[0]["input"] == ["order number 4", "order number 5"]
    assert sum(len(body["input"]) for body in server.bodies()) == 2 + len(QUESTIONS)


def test_a_question_that_failed_is_asked_again_in_the_next_run(server, tmp_path):
    bad = QUESTIONS[1]
    questions(server, changed(lambda data: [data[0], *data[2:]]))
    part = openai(server)
    ranked, _ = bench_of(cache=Cache(tmp_path)).ranked(part)
    assert list(ranked.errors) == [1]
    server.answer = embeddings
    server.requests.clear()
    bench = bench_of(cache=Cache(tmp_path))
    ranked, _ = bench.ranked(part)
    assert rankings(bench, ranked)[1] == ORDER[1]
    assert [body["input"] for body in server.bodies()] == [[bad]]


def test_nothing_secret_in_the_cache(server, tmp_path):
    part = OpenAI(url=f"http://me:u-s3cret@{server.host}/v1?key=q-s3cret", model="m", api_key="k-s3cret", **QUICK)
    bench_of(cache=Cache(tmp_path)).ranked(part)
    assert len(server.requests) == 2
    for path in tmp_path.rglob("*"):
        assert "s3cret" not in path.name
        if path.is_file():
            assert b"s3cret" not in path.read_bytes()
    assert "s3cret" not in repr(part)
    assert "s3cret" not in json.dumps(describe(part))
    rotated = OpenAI(url=f"http://you:new@{server.host}/v1?key=new", model="m", api_key="new", **QUICK)
    bench_of(cache=Cache(tmp_path)).ranked(rotated)
    assert len(server.requests) == 2


def test_a_pruned_cache_is_filled_again(server, tmp_path):
    part = openai(server)
    bench_of(cache=Cache(tmp_path)).ranked(part)
    assert len(list(tmp_path.glob("texts/*/*"))) == 2  # chunks, questions
    Cache(tmp_path).prune(max_bytes=0)
    bench = bench_of(cache=Cache(tmp_path))
    assert rankings(bench, bench.ranked(part)[0])[:2] == ORDER
    assert len(server.requests) == 4


def test_the_same_text_is_sent_once(server):
    bench_of({"a": "a pump", "b": "a pump", "c": "a filter"}, ("a pump", "a pump")).ranked(openai(server))
    assert [body["input"] for body in server.bodies()] == [["a pump", "a filter"]]


def test_batches_do_not_change_the_result(server):
    benches = [bench_of(chunker=FixedChars(20, 0)) for _ in range(2)]
    one, other = (b.ranked(openai(server, batch=n))[0] for b, n in zip(benches, (1, 64), strict=True))
    assert (one.unit == other.unit).all()
    assert (one.scores == other.scores).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": " "}, "model is empty"),
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"dimensions": 0}, "dimensions must be a whole number"),
        ({"similarity": "l2"}, "similarity must be cosine or dot, found 'l2'"),
        ({"price_per_million_tokens": -1}, "price_per_million_tokens must be a number of at least 0|at least 0"),
        ({"query_extra": {"input": []}}, "query_extra cannot set input"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        OpenAI(**{"url": "http://h", "model": "m", **settings})
