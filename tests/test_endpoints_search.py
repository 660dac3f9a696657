"""A search service as the retriever. The response shapes are those that the three servers' documentation prints."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from denominator import masking
from denominator.cache import Cache
from denominator.chunkers import Sentences
from denominator.config import build
from denominator.endpoints.embeddings import OpenAI
from denominator.endpoints.search import HttpSearch
from denominator.errors import ConfigError
from tests.endpoint_parts import QUESTIONS, QUICK, TEXTS, bench_of, rankings
from tests.http_server import Reply, counts, embeddings, overlap, serving

BEST = ["filters", "refunds", "paints"]

# The mapping of each service as a person writes it, and the service's answer to it.

OPENSEARCH = """
_target_: denominator.endpoints.search.HttpSearch
url: URL/docs/_search
body:
  size: "{depth}"
  _source: false
  query: {match: {text: "{question}"}}
response:
  hits: hits.hits
  id: _id
  score: _score
  failed: timed_out || _shards.failed > `0`
"""

ELASTICSEARCH = """
_target_: denominator.endpoints.search.HttpSearch
url: URL/passages/_search
headers: {Authorization: "ApiKey a-s3cret"}
body:
  size: "{depth}"
  _source: [doc_id, text]
  query: {multi_match: {query: "{question}", fields: [title, text]}}
response:
  hits: hits.hits
  id: _id
  document: _source.doc_id
  score: _score
"""

QDRANT = """
_target_: denominator.endpoints.search.HttpSearch
url: URL/collections/docs/points/query
headers: {api-key: q-s3cret}
vector:
  _target_: denominator.endpoints.embeddings.OpenAI
  url: URL/v1
  model: m
body:
  query: "{vector}"
  limit: "{depth}"
  with_payload: true
response:
  hits: result.points
  id: to_string(id)
  document: payload.document_id
  score: score
"""


def found(question):
    scored = sorted(((overlap(question, t), d) for d, t in TEXTS.items()), key=lambda x: (-x[0], x[1]))
    return [(d, s) for s, d in scored if s > 0]


def opensearch(request):
    hits = found(request.body["query"]["match"]["text"])[: request.body["size"]]
    return {
        "took": 5,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {
            "total": {"value": len(hits), "relation": "eq"},
            "max_score": hits[0][1] if hits else None,
            "hits": [{"_index": "docs", "_id": d, "_score": s} for d, s in hits],
        },
    }


def elasticsearch(request):
    """Its own passages: ids that the corpus does not know, two of each document."""
    hits = found(request.body["query"]["multi_match"]["query"])
    rows = [
        {
            "_index": "passages",
            "_id": f"Xk{n}{part}",
            "_score": score / (part + 1),
            "_source": {"doc_id": d, "text": TEXTS[d][part * 20 : part * 20 + 20]},
        }
        for n, (d, score) in enumerate(hits)
        for part in (1, 0)  # the worse passage first: the service need not sort
    ]
    return {
        "took": 1,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {
            "total": {"value": len(rows), "relation": "eq"},
            "max_score": 1.0,
            "hits": rows[: request.body["size"]],
        },
    }


def qdrant(request):
    if request.path == "/v1/embeddings":
        return embeddings(request)
    vector = request.body["query"]
    scored = sorted(
        ((sum(a * b for a, b in zip(vector, counts(t), strict=True)), d) for d, t in TEXTS.items()), reverse=True
    )
    points = [
        {"id": n, "version": 3, "score": s, "payload": {"document_id": d}} for n, (s, d) in enumerate(scored) if s > 0
    ]
    return {"result": {"points": points[: request.body["limit"]]}, "status": "ok", "time": 0.0002}


SERVICES: dict[str, tuple[str, Any]] = {
    "opensearch": (OPENSEARCH, opensearch),
    "elasticsearch": (ELASTICSEARCH, elasticsearch),
    "qdrant": (QDRANT, qdrant),
}


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    masking.forget()


def part_of(server, text=OPENSEARCH, **settings) -> HttpSearch:
    node = yaml.safe_load(text.replace("URL", server.url))
    return build({**QUICK, **node, **settings}, "embedder")


def ask(part, **options):
    bench = bench_of(**options)
    ranked, facts = bench.ranked(part)
    return bench, ranked, facts


@pytest.fixture
def server():
    with serving(opensearch) as running:
        yield running


@pytest.mark.parametrize("name", SERVICES)
def test_success(name):
    text, answer = SERVICES[name]
    with serving(answer) as server:
        part = part_of(server, text)
        bench, ranked, facts = ask(part)
        asked = [request for request in server.requests if request.path != "/v1/embeddings"]
    assert ranked.errors == {}
    assert [row[0] for row in rankings(bench, ranked)] == BEST
    for question, row in zip(QUESTIONS, rankings(bench, ranked), strict=True):
        assert sorted(row) == sorted(d for d, _ in found(question))
    assert ranked.exhausted.all()
    assert len(asked) == 3
    if name == "elasticsearch":
        assert asked[0].headers["Authorization"] == "ApiKey a-s3cret"
    if name == "qdrant":
        assert asked[0].headers["api-key"] == "q-s3cret"
        assert facts["embedder_tokens"] == sum(len(q.split()) for q in QUESTIONS)
    else:
        sent = [next(iter(r.body["query"].values())) for r in asked]
        assert sorted(s.get("text", s.get("query")) for s in sent) == sorted(QUESTIONS)
    assert "s3cret" not in repr(part)


def test_several_passages_of_a_document_count_once_and_do_not_mean_that_there_is_no_more():
    with serving(elasticsearch) as server:
        bench, ranked, _ = ask(part_of(server, ELASTICSEARCH), questions=(QUESTIONS[0],), depth=3)
    # Three passages came back, of two documents: there may be more in the index.
    assert rankings(bench, ranked) == [["filters", "pumps"]]
    assert ranked.exhausted.tolist() == [False]
    assert ranked.scores.tolist() == [
        overlap(QUESTIONS[0], TEXTS["filters"]),
        overlap(QUESTIONS[0], TEXTS["pumps"]) / 2,
    ]


@pytest.mark.parametrize(
    "fault",
    [Reply(429, {}, {"Retry-After": "0"}), Reply(500), Reply(body=b"{"), Reply(body=[1, 2], cut=2), Reply(delay=0.3)],
    ids=["429", "500", "malformed", "cut", "time-out"],
)
def test_a_passing_failure(server, fault):
    server.faults.append(fault)
    bench, ranked, _ = ask(part_of(server, timeout=0.15))
    assert [row[0] for row in rankings(bench, ranked)] == BEST


def with_hits(hits):
    reply = {"timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": hits}}
    return Reply(body=reply)


LASTING = {
    "500": (Reply(500, {"error": "x"}), "status 500"),
    "404": (Reply(404, {"error": "index_not_found_exception"}), "index_not_found_exception"),
    "429": (Reply(429, {}, {"Retry-After": "900"}), "asks to wait 900 s"),
    "malformed": (Reply(body=b"{"), "is not JSON"),
    "time-out": (Reply(delay=0.08), "no answer within 0.02 s"),
    "shape": (Reply(body={"result": []}), "no list of hits at 'hits.hits'; the answer has the keys result"),
    "no object": (Reply(body=[]), "no list of hits"),
    "partial": (Reply(body={"timed_out": True, "hits": {"hits": []}}), "its answer is not complete"),
    "shards": (Reply(body={"timed_out": False, "_shards": {"failed": 1}, "hits": {"hits": []}}), "not complete"),
    "number": (with_hits([{"_id": 7, "_score": 1}]), "hit 0: id at '_id' is 7, expected a text; write to_string(_id)"),
    "no id": (with_hits([{"_score": 1}]), "hit 0: id at '_id' is None, expected a text"),
    "unknown": (with_hits([{"_id": "zzz", "_score": 1}]), "id 'zzz' is neither a chunk nor a document"),
    "NaN": (with_hits([{"_id": "pumps", "_score": float("nan")}]), "a score is not a finite number"),
    "text": (with_hits([{"_id": "pumps", "_score": "high"}]), "hit 0: score is 'high', expected a number"),
    "mixed": (with_hits([{"_id": "pumps", "_score": 1}, {"_id": "paints"}]), "some have none"),
}


@pytest.mark.parametrize("name", LASTING)
def test_a_lasting_failure_of_one_question_is_its_own(server, name):
    reply, message = LASTING[name]
    server.answer = lambda r: reply if r.body["query"]["match"]["text"] == QUESTIONS[1] else opensearch(r)
    bench, ranked, _ = ask(part_of(server, timeout=0.02 if reply.delay else 5.0, retries=1))
    assert list(ranked.errors) == [1]
    assert ranked.errors[1].startswith("embedder http: ")
    assert message in ranked.errors[1]
    rows = rankings(bench, ranked)
    assert (rows[0][0], rows[1], rows[2][0]) == (BEST[0], None, BEST[2])


def test_the_wrong_order_is_put_right_and_ties_go_by_id(server):
    server.answer = lambda r: with_hits(
        [{"_id": d, "_score": s} for d, s in (("pumps", 1), ("refunds", 3), ("filters", 1))]
    )
    bench, ranked, _ = ask(part_of(server), questions=("x",))
    assert rankings(bench, ranked) == [["refunds", "filters", "pumps"]]


def test_without_scores_the_order_counts(server):
    server.answer = lambda r: with_hits([{"_id": d, "_score": None} for d in ("pumps", "filters", "paints")])
    bench, ranked, _ = ask(part_of(server), questions=("x",), depth=2)
    assert rankings(bench, ranked) == [["pumps", "filters"]]


def test_distances(server):
    server.answer = lambda r: with_hits([{"_id": "pumps", "_score": 0.9}, {"_id": "filters", "_score": 0.1}])
    bench, ranked, _ = ask(part_of(server, lower_is_better=True), questions=("x",))
    assert rankings(bench, ranked) == [["filters", "pumps"]]
    assert ranked.scores.tolist() == [-0.1, -0.9]


def test_nothing_found_is_no_failure(server):
    bench, ranked, _ = ask(part_of(server), questions=("zebra", " "))
    assert rankings(bench, ranked) == [[], []]
    assert ranked.errors == {}
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "hit",
    [
        {"_id": "pumps#000000000-000000021"},
        {"_id": "k1", "doc": "pumps", "start": 0, "end": 21},
        {"_id": "k1", "doc": "pumps", "text": " The pump lifts water.\n"},
    ],
    ids=["chunk id", "span", "text"],
)
def test_chunks_of_the_same_text(server, hit):
    server.answer = lambda r: with_hits([hit])
    response = {"hits": "hits.hits", "id": "_id", "document": "doc", "start": "start", "end": "end", "text": "text"}
    if "doc" not in hit:
        response = {"hits": "hits.hits", "id": "_id"}
    part = part_of(server, response=response)
    bench = bench_of(questions=("x",), chunker=Sentences(5))
    ranked, _ = bench.ranked(part)
    assert ranked.errors == {}
    assert [bench.table.units.ids[u] for u in ranked.unit] == ["pumps#000000000-000000021"]


def test_get_with_parameters():
    def answer(request):
        return [{"id": d, "score": s} for d, s in found(request.query["q"][0])[: int(request.query["k"][0])]]

    with serving(answer) as server:
        part = HttpSearch(
            url=server.url + "/find?lang=en",
            method="GET",
            params={"q": "{question}", "k": "{depth}"},
            response={"hits": "@", "id": "id", "score": "score"},
            **QUICK,
        )
        bench, ranked, _ = ask(part, questions=("a&b=c {depth} paint?", *QUESTIONS))
        assert [row[0] for row in rankings(bench, ranked)] == ["paints", *BEST]
        assert server.requests[0].query["lang"] == ["en"]
        assert "a&b=c {depth} paint?" in [r.query["q"][0] for r in server.requests]
        in_url = HttpSearch(
            url=server.url + "/find?k={depth}&q={question}",
            method="GET",
            response={"hits": "@", "id": "id"},
            **QUICK,
        )
        bench, ranked, _ = ask(in_url)
        assert [row[0] for row in rankings(bench, ranked)] == BEST


def test_results_are_kept_under_a_version_only(server, tmp_path):
    for _ in range(2):
        ask(part_of(server), cache=Cache(tmp_path))
    assert len(server.requests) == 6
    for _ in range(2):
        ask(part_of(server, version="2024-05"), cache=Cache(tmp_path))
    assert len(server.requests) == 9


def test_a_failure_is_not_kept(server, tmp_path):
    server.always = Reply(500)
    _, ranked, _ = ask(part_of(server, version="1", retries=0), cache=Cache(tmp_path))
    assert sorted(ranked.errors) == [0, 1, 2]
    server.always = None
    bench, ranked, _ = ask(part_of(server, version="1", retries=0), cache=Cache(tmp_path))
    assert [row[0] for row in rankings(bench, ranked)] == BEST


def test_a_question_whose_vector_failed_is_failed_and_not_sent():
    def answer(request):
        return Reply(500, {"error": "model"}) if request.path == "/v1/embeddings" else qdrant(request)

    with serving(answer) as server:
        vector = OpenAI(url=server.url + "/v1", model="m", **{**QUICK, "retries": 0})
        _, ranked, _ = ask(part_of(server, QDRANT, vector=vector))
        assert sorted(ranked.errors) == [0, 1, 2]
        assert "embedder openai" in ranked.errors[0]
        assert [r.path for r in server.requests] == ["/v1/embeddings"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"response": {"hits": "a"}}, "response needs hits and id"),
        ({"response": {"hits": "a", "id": "b", "rank": "c"}}, "found hits, id, rank"),
        ({"response": {"hits": "a[", "id": "b"}}, "response.hits: 'a\\[' is not a JMESPath expression"),
        ({"response": {"hits": "__import__('os')", "id": "b"}}, "not a JMESPath expression"),
        ({"response": {"hits": "a", "id": "b", "start": "c"}}, "start and end, or neither"),
        ({"body": {"q": "x"}}, "neither url, params nor body holds {question}"),
        ({"body": {"q": "{vector}"}}, "{vector} needs the setting `vector`"),
        ({"method": "PUT"}, "method must be POST or GET, found 'PUT'"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        HttpSearch(**{"url": "http://h", "body": {"q": "{question}"}, **settings})
