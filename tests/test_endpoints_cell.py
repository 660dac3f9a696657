"""A whole cell over HTTP: embeddings, rerank and chat behind one server, through the pipeline and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from denominator import masking
from denominator.abstention import report
from denominator.cache import Cache
from denominator.chunkers import Sentences, WholeDocument
from denominator.config import build
from denominator.endpoints.chat import Chat, Judge
from denominator.endpoints.client import EndpointError
from denominator.endpoints.embeddings import OpenAI
from denominator.endpoints.rerank import Rerank
from denominator.endpoints.search import HttpSearch
from denominator.errors import ConfigError
from denominator.fingerprint import corpus_hash, dataset_hash
from denominator.pipeline import Cell, Latency, run_cell
from denominator.records import outcomes_to_lines
from denominator.rerankers import NoRerank
from denominator.types import Dataset, Document, Evidence, Plan, Question
from tests.conftest import Given
from tests.endpoint_parts import QUICK, TEXTS
from tests.http_server import Reply, chat_reply, every, overlap, serving

QUESTIONS = (
    Question("q1", "Where is the filter of the pump?", "answerable", ((Evidence("filters"),),)),
    Question("q2", "When is an order refunded?", "answerable", ((Evidence("refunds"),),)),
    Question("q3", "Does paint stand frost?", "answerable", ((Evidence("paints"),),)),
    Question("q4", "Who founded the zebra?", "unanswerable"),
)
DOCUMENTS = tuple(Document(i, t) for i, t in TEXTS.items())
DATA = Dataset("tiny", DOCUMENTS, QUESTIONS, dataset_hash(QUESTIONS), corpus_hash(DOCUMENTS))
CONF = Path(__file__).resolve().parents[1] / "conf"


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    masking.forget()


@pytest.fixture
def server():
    with serving(every) as running:
        yield running


def cell(server, **parts):
    url = server.url + "/v1"
    given = {
        "embedder": OpenAI(url=url, model="e", price_per_million_tokens=1.0, api_key="k-s3cret", **QUICK),
        "reranker": Rerank(url=url, model="r", price_per_thousand_searches=1.0, api_key="k-s3cret", **QUICK),
        "answerer": Chat(url=url, model="c", price_per_million_input=1.0, api_key="k-s3cret", **QUICK),
    }
    return Cell(
        "a cell",
        {},
        Given(DATA),
        Sentences(50),
        plan=Plan(ks=(1, 2), budget=40, pool=10),
        latency=Latency(0),
        **(given | parts),
    )


def test_end_to_end(server, tmp_path):
    result = run_cell(cell(server), Cache(tmp_path))
    by_id = {o.id: o for o in result.outcomes}
    assert [by_id[q].values["recall@1"] for q in ("q1", "q2", "q3")] == [1.0, 1.0, 1.0]
    assert result.summary.metrics["recall@1"].n == 3
    assert {q: (o.abstained, o.rung) for q, o in by_id.items()} == {
        "q1": (False, "structured"),
        "q2": (False, "structured"),
        "q3": (False, "structured"),
        "q4": (True, "structured"),
    }
    assert by_id["q1"].answer == "It is in [1]."
    matrix = report(result.outcomes, result.plan)
    assert (matrix.tp, matrix.fp, matrix.fn, matrix.tn) == (1, 0, 0, 3)
    words = sum(len(t.split()) for t in [*TEXTS.values(), *(q.question for q in QUESTIONS)])
    assert result.facts["embedder_tokens"] == words
    assert result.facts["embedder_cost"] == pytest.approx(words / 1e6)
    assert (result.facts["reranker_searches"], result.facts["reranker_cost"]) == (
        3.0,
        0.003,
    )  # nothing was found for q4
    assert result.facts["answerer_tokens_in"] == 160
    assert result.facts["answerer_cost"] == pytest.approx(160 / 1e6)

    asked = len(server.requests)
    again = run_cell(cell(server), Cache(tmp_path))
    assert len(server.requests) == asked
    assert list(outcomes_to_lines(again.outcomes)) == list(outcomes_to_lines(result.outcomes))
    assert again.facts == result.facts
    assert again.cell_key == result.cell_key
    for text in (json.dumps(list(outcomes_to_lines(result.outcomes))), repr(result), repr(cell(server))):
        assert "s3cret" not in text


def test_each_failure_stays_with_its_question_and_is_asked_again(server, tmp_path):
    bad = {"/v1/embeddings": "order refunded", "/v1/rerank": "frost", "/v1/chat/completions": "Question: Where is"}

    def answer(request):
        text = bad[request.path]
        texts = request.body.get("input") or [request.body.get("query") or request.body["messages"][-1]["content"]]
        return Reply(400, {"error": "this one"}) if any(text in t for t in texts) else every(request)

    server.answer = answer
    result = run_cell(cell(server), Cache(tmp_path))
    by_id = {o.id: o for o in result.outcomes}
    assert {q: o.status for q, o in by_id.items()} == {"q1": "ok", "q2": "failed", "q3": "failed", "q4": "ok"}
    assert "embedder openai: question 'When is an order refunded?'" in by_id["q2"].error
    assert "reranker endpoint: POST" in by_id["q3"].error
    assert "answerer chat: POST" in by_id["q1"].error
    assert by_id["q1"].abstained is None
    recall = result.summary.metrics["recall@1"]
    assert (recall.value, recall.n) == (pytest.approx(1 / 3), 3)  # failed questions count as 0
    assert result.summary.ledger.incomplete
    assert (result.summary.ledger.ok, result.summary.ledger.failed) == (1, 2)

    server.answer = every
    server.requests.clear()
    result = run_cell(cell(server), Cache(tmp_path))
    assert not result.summary.ledger.incomplete
    assert result.summary.metrics["recall@1"].value == 1.0
    # Only what had failed: one embedding, two rerankings, three answers.
    assert sorted(r.path for r in server.requests) == (
        ["/v1/chat/completions"] * 3 + ["/v1/embeddings"] + ["/v1/rerank"] * 2
    )


def test_a_corpus_that_cannot_be_embedded_fails_the_cell(server):
    server.always = Reply(500, {"error": "out of memory"})
    with pytest.raises(EndpointError, match="embedder openai: chunk 'filters#") as caught:
        run_cell(cell(server), Cache(None))
    assert caught.value.exit_code == 1


def test_latency_is_that_of_the_server(server):
    usual = server.answer
    server.answer = lambda request: (__import__("time").sleep(0.01), usual(request))[1]
    with_latency = replace(cell(server, answerer=None), latency=Latency(questions=2, repeats=1, warm_up=0))
    result = run_cell(with_latency, Cache(None))
    assert result.facts["latency_ms_median"] > 15  # q1 takes two requests of 10 ms each, q4 one: nothing to rerank


def test_a_judge_decides_free_text(server):
    def answer(request):
        content = request.body.get("messages", [{"content": ""}])[-1]["content"]
        if "Reply: " in content:
            return chat_reply(json.dumps({"declines": "zebra" in content}))
        return chat_reply("Well.") if content else every(request)

    server.answer = answer
    judge = Judge(url=server.url, model="j", **QUICK)
    result = run_cell(cell(server, answerer=Chat(url=server.url, model="c", judge=judge, **QUICK)), Cache(None))
    assert [(o.abstained, o.rung) for o in result.outcomes] == [(False, "judge")] * 3 + [(True, "judge")]
    assert result.facts["judge_asked"] == 4


def test_a_search_service_in_front_of_the_reranker(server):
    def answer(request):
        if request.path == "/search":
            scored = [{"id": d, "score": overlap(request.body["q"], t)} for d, t in TEXTS.items()]
            return {"hits": scored[: request.body["k"]]}
        return every(request)

    server.answer = answer
    search = HttpSearch(url=server.url + "/search", body={"q": "{question}", "k": "{depth}"}, **QUICK)
    result = run_cell(replace(cell(server, embedder=search), chunker=WholeDocument()), Cache(None))
    assert result.summary.metrics["recall@1"].value == 1.0
    result = run_cell(replace(cell(server, embedder=search, reranker=NoRerank()), chunker=WholeDocument()), Cache(None))
    assert result.summary.metrics["recall@1"].value == 1.0


def test_answers_need_documents(server):
    data = replace(DATA, documents=(), corpus_hash=None, evaluate="abstention")
    with pytest.raises(ConfigError, match="evaluated for abstention alone; choose answerer=recorded"):
        run_cell(replace(cell(server), dataset=Given(data)), Cache(None))


CHOICES = ("embedder/openai", "embedder/http", "reranker/endpoint_cohere", "reranker/endpoint_tei", "answerer/chat")


@pytest.mark.parametrize("choice", CHOICES)
def test_the_yaml_is_the_constructor_call(choice):
    group, name = choice.split("/")
    node = yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))
    assert node.pop("api_key").startswith("${oc.env:")
    part = build(node, group)
    assert part.api_key is None
    if name == "chat":  # the text in the YAML is the one that the class has
        assert (part.system, part.prompt) == (
            Chat(url="http://h", model="m").system,
            Chat(url="http://h", model="m").prompt,
        )
