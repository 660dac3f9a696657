from __future__ import annotations

import numpy as np
import pytest

from denominator import masking
from denominator.cache import Cache
from denominator.embedders import BM25
from denominator.endpoints.rerank import Rerank
from denominator.errors import ConfigError
from tests.endpoint_parts import QUESTIONS, QUICK, TEXTS, bench_of, rankings
from tests.http_server import Reply, overlap, rerank_cohere, rerank_tei, serving

ANSWERS = {"cohere": rerank_cohere, "tei": rerank_tei}
FIRST = BM25(stopwords=False)


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    masking.forget()


@pytest.fixture(params=ANSWERS)
def dialect(request):
    return request.param


@pytest.fixture
def server(dialect):
    with serving(ANSWERS[dialect]) as running:
        yield running


def part_of(server, dialect, **settings):
    return Rerank(url=server.url, dialect=dialect, **{**QUICK, **settings})


def reranked(part, **options):
    bench = bench_of(**options)
    first = bench.ranked(FIRST)[0]
    return bench, first, part.rerank(bench, first)


def by_hand(bench, first):
    """The first stage's pool of each question by the words shared with the question, ties by id."""
    pools = rankings(bench, first)
    return [
        sorted(pool, key=lambda d: (-overlap(question, TEXTS[d]), d))
        for question, pool in zip(bench.queries.texts, pools, strict=True)
    ]


def test_success(server, dialect):
    bench, first, done = reranked(part_of(server, dialect, api_key="k-s3cret", model="m"))
    assert rankings(bench, done) == by_hand(bench, first)
    assert rankings(bench, first) != rankings(bench, done)
    assert done.errors == {}
    assert done.has_confidence
    assert done.scores[0] == overlap(QUESTIONS[0], TEXTS["filters"])
    assert {request.path for request in server.requests} == {"/rerank"}
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer k-s3cret"}
    body = server.bodies()[0]
    assert body["model"] == "m"
    if dialect == "cohere":
        assert set(body) == {"query", "documents", "top_n", "model"}
        assert body["top_n"] == len(body["documents"])


def test_a_batch_that_is_too_large_is_asked_in_halves():
    with serving(rerank_tei) as server:
        bench, first, done = reranked(part_of(server, "tei"))
        assert rankings(bench, done) == by_hand(bench, first)
        assert max(len(body["texts"]) for body in server.bodies()) > 2
        server.requests.clear()
        bench, first, done = reranked(part_of(server, "tei", batch=2, extra={"truncate": True}))
        assert rankings(bench, done) == by_hand(bench, first)
        assert max(len(body["texts"]) for body in server.bodies()) == 2
        assert all(body["truncate"] is True for body in server.bodies())


@pytest.mark.parametrize(
    "fault",
    [Reply(429, {}, {"Retry-After": "0"}), Reply(500), Reply(body=b"{"), Reply(body=[1, 2], cut=2), Reply(delay=0.3)],
    ids=["429", "500", "malformed", "cut", "time-out"],
)
def test_a_passing_failure(server, dialect, fault):
    server.faults.append(fault)
    bench, first, done = reranked(part_of(server, dialect, timeout=0.15))
    assert rankings(bench, done) == by_hand(bench, first)


@pytest.mark.parametrize(
    ("always", "message"),
    [
        (Reply(500, {"error": "busy"}), "status 500"),
        (Reply(403, {"error": "no"}), "status 403"),
        (Reply(429, {}, {"Retry-After": "900"}), "asks to wait 900 s"),
        (Reply(body=b"{"), "is not JSON"),
        (Reply(body={"detail": "x"}), "another dialect"),
        (Reply(delay=0.08), "no answer within 0.02 s"),
    ],
    ids=["500", "403", "429", "malformed", "shape", "time-out"],
)
def test_a_lasting_failure_of_one_question_is_its_own(server, dialect, always, message):
    usual = server.answer
    server.answer = lambda request: always if request.body["query"] == QUESTIONS[1] else usual(request)
    bench, first, done = reranked(part_of(server, dialect, timeout=0.02 if always.delay else 5.0, retries=1))
    expected = by_hand(bench, first)
    assert rankings(bench, done) == [expected[0], None, expected[2]]
    assert list(done.errors) == [1]
    assert done.errors[1].startswith("reranker endpoint: ")
    assert message in done.errors[1]


def item(dialect, index, score):
    return {"index": index, "relevance_score" if dialect == "cohere" else "score": score}


BROKEN = {
    "partial": (lambda n: [(i, 0.5) for i in range(n - 1)], "of 3 texts were scored"),
    "twice": (lambda n: [(0, 0.5)] * n, "two items have index 0"),
    "outside": (lambda n: [(i + 1, 0.5) for i in range(n)], "has index 3, expected 0 to 2"),
    "NaN": (lambda n: [(i, float("nan")) for i in range(n)], "is nan, expected a finite number"),
    "text": (lambda n: [(i, "0.5") for i in range(n)], "is '0.5', expected a finite number"),
    "no index": (lambda n: [(None, 0.5)] * n, "has index None"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_answer_that_is_no_permutation(server, dialect, name):
    pairs, message = BROKEN[name]

    def answer(request):
        items = [item(dialect, i, s) for i, s in pairs(len(request.body.get("documents", request.body.get("texts"))))]
        return {"results": items} if dialect == "cohere" else items

    server.answer = answer
    bench, _, done = reranked(
        part_of(server, dialect), texts={"a": "the pump", "b": "a pump", "c": "pump"}, questions=("pump",)
    )
    assert rankings(bench, done) == [None]
    assert message in done.errors[0]


def test_failures_of_the_first_stage_stay(server, dialect):
    from dataclasses import replace

    bench = bench_of()
    first = replace(bench.ranked(FIRST)[0], errors={2: "no connection"})
    done = part_of(server, dialect).rerank(bench, first)
    assert done.errors == {2: "no connection"}
    assert QUESTIONS[2] not in [body["query"] for body in server.bodies()]


def test_an_empty_pool_is_not_sent(server, dialect):
    bench, _, done = reranked(part_of(server, dialect), questions=("zebra",))
    assert rankings(bench, done) == [[]]
    assert server.requests == []


def test_titles_and_long_texts(server, dialect):
    reranked(part_of(server, dialect, max_characters=12), titles={"pumps": "Pumps"}, questions=("pump",))
    texts = server.bodies()[0].get("documents", server.bodies()[0].get("texts"))
    assert "Pumps\nThe pu" in texts
    assert max(map(len, texts)) == 12


def test_costs_as_the_servers_bill_them():
    with serving(rerank_cohere) as server:
        part = part_of(server, "cohere", price_per_thousand_searches=2.0)
        _, _, done = reranked(part)
        assert done.facts == {"reranker_searches": 3.0, "reranker_cost": pytest.approx(0.006)}

        server.answer = lambda request: rerank_cohere(request) | {"meta": None, "usage": {"total_tokens": 50}}
        _, _, done = reranked(part_of(server, "cohere", price_per_million_tokens=10.0))
        assert done.facts["reranker_tokens"] == 150
        assert done.facts["reranker_cost"] == pytest.approx(150 * 10 / 1e6)


def test_scores_are_kept_per_question_and_pool(server, dialect, tmp_path):
    part = part_of(server, dialect, model="m")
    _, _, first = reranked(part, cache=Cache(tmp_path))
    asked = len(server.requests)
    _, _, again = reranked(part, cache=Cache(tmp_path))
    assert len(server.requests) == asked
    assert np.array_equal(first.scores, again.scores)
    assert np.array_equal(first.unit, again.unit)
    assert again.facts == first.facts
    reranked(part_of(server, dialect, model="other"), cache=Cache(tmp_path))
    assert len(server.requests) == 2 * asked


def test_a_failure_is_not_kept(server, dialect, tmp_path):
    server.always = Reply(500)
    _, _, done = reranked(part_of(server, dialect, retries=0), cache=Cache(tmp_path))
    assert sorted(done.errors) == [0, 1, 2]
    server.always = None
    bench, first, done = reranked(part_of(server, dialect, retries=0), cache=Cache(tmp_path))
    assert rankings(bench, done) == by_hand(bench, first)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dialect": "jina"}, "dialect must be cohere or tei, found 'jina'"),
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"extra": {"query": "x"}}, "extra cannot set query"),
        ({"price_per_million_tokens": -1.0}, "at least 0"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        Rerank(**{"url": "http://h", **settings})
