"""A recorded run in the place of a retriever: its numbers are those of `denominator score` on the same file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from denominator.cache import Cache, describe
from denominator.chunkers import Sentences, WholeDocument
from denominator.errors import ConfigError, InputError, MeasurementError
from denominator.evaluation import evaluate, summarize
from denominator.pipeline import Cell, run_cell
from denominator.readers.native import Native
from denominator.readers.runs import read_run
from denominator.recorded import RecordedRun
from denominator.rerankers import NoRerank
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import Queries, columns_of
from denominator.types import Document, Plan, Run

DOCUMENTS = {f"d{i}": f"Text {i}. More of it." for i in range(6)}
ASKED = ("q1", "q2", "q3")


def bench_of(ids=ASKED, *, depth=4, chunker=None):
    documents = tuple(Document(d, text) for d, text in sorted(DOCUMENTS.items()))
    columns = columns_of(documents, [(chunker or WholeDocument()).chunk(d) for d in documents])
    texts = tuple(f"text of {q}" for q in ids)
    return Bench(Cache(None), columns.table("k", documents), Queries(texts, ids=tuple(ids)), depth)


def ranked_by(path, **options):
    bench = bench_of(**options)
    ranked, _ = bench.ranked(RecordedRun(str(path)))
    units = bench.table.units
    rows = [[units.ids[u] for u in ranked.one(i).unit] for i in range(len(ranked))]
    return rows, ranked


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_of(tmp_path, **more):
    hits = {"q1": [("d2", 0.9), ("d0", 0.5)], "q2": [], "q3": [("d5", 1.0), ("d4", 3.0), ("d1", 2.0)]}
    rows = [{"question_id": q, "hits": [{"id": d, "score": s} for d, s in h], **more} for q, h in hits.items()]
    return lines(tmp_path / "run.jsonl", *rows)


def ids(*documents):
    ends = {d: len(t) for d, t in DOCUMENTS.items()}
    return [f"{d}#000000000-{ends[d]:09d}" for d in documents]


def test_scores_order_the_hits_of_each_question_by_its_id(tmp_path):
    rows, ranked = ranked_by(run_of(tmp_path))
    assert rows == [ids("d2", "d0"), [], ids("d4", "d1", "d5")]
    assert ranked.exhausted.all()
    assert ranked.has_confidence
    assert not ranked.errors
    other, _ = ranked_by(run_of(tmp_path), ids=("q3", "q1", "q2"))
    assert other == [rows[2], rows[0], rows[1]]


def test_a_trec_run_is_read_too(tmp_path):
    path = tmp_path / "run.trec"
    path.write_text("q1 Q0 d2 1 0.9 me\nq1 Q0 d0 2 0.5 me\nq3 Q0 d5 1 7 me\n", encoding="utf-8")
    rows, ranked = ranked_by(path)
    assert rows == [ids("d2", "d0"), [], ids("d5")]
    assert ranked.errors == {1: "the recorded run does not have this question"}


def test_hits_without_scores_keep_their_order_and_say_nothing_of_confidence(tmp_path):
    path = lines(tmp_path / "r.jsonl", *({"question_id": q, "hits": [{"id": "d3"}, {"id": "d1"}]} for q in ASKED))
    rows, ranked = ranked_by(path)
    assert rows == [ids("d3", "d1")] * 3
    assert not ranked.has_confidence


def test_a_declared_confidence_is_taken(tmp_path):
    path = lines(
        tmp_path / "r.jsonl",
        *(
            {"question_id": q, "hits": [{"id": "d3"}], "confidence": c}
            for q, c in zip(ASKED, (0.2, 0.9, 0.5), strict=True)
        ),
    )
    _, ranked = ranked_by(path)
    assert ranked.confidence is not None
    assert ranked.confidence.tolist() == [0.2, 0.9, 0.5]
    assert ranked.has_confidence


def test_no_confidence_is_no_confidence(tmp_path):
    _, ranked = ranked_by(run_of(tmp_path, no_confidence=True))
    assert not ranked.has_confidence


def test_spans_name_chunks(tmp_path):
    hit = {"id": "theirs-17", "doc": "d1", "start": 0, "end": 7}
    path = lines(tmp_path / "r.jsonl", *({"question_id": q, "hits": [hit]} for q in ASKED))
    rows, _ = ranked_by(path, chunker=Sentences(2))
    assert rows == [["d1#000000000-000000007"]] * 3


def test_recorded_errors_and_ids_that_are_not_there_are_failed_questions(tmp_path):
    path = lines(
        tmp_path / "r.jsonl",
        {"question_id": "q1", "error": "timed out"},
        {"question_id": "q2", "hits": [{"id": "nowhere"}]},
    )
    rows, ranked = ranked_by(path)
    assert rows == [[], [], []]
    assert ranked.errors[0] == "timed out"
    assert "'nowhere' is neither" in ranked.errors[1]
    assert ranked.errors[2] == "the recorded run does not have this question"


def test_a_depth_that_was_recorded_holds(tmp_path):
    _, ranked = ranked_by(run_of(tmp_path, depth=3))
    assert ranked.depth == 3
    assert ranked.exhausted.tolist() == [True, True, False]
    _, ranked = ranked_by(run_of(tmp_path, depth=50))
    assert ranked.depth == 4


def test_what_is_cut_by_the_pool_is_not_exhausted(tmp_path):
    rows, ranked = ranked_by(run_of(tmp_path), depth=2)
    assert rows[2] == ids("d4", "d1"), "the best, not the first of the file"
    assert ranked.exhausted.tolist() == [True, True, False]


def test_questions_that_the_data_set_does_not_have(tmp_path):
    with pytest.raises(MeasurementError, match="unknown_question_ids") as refused:
        ranked_by(run_of(tmp_path), ids=("q1", "q2"))
    assert refused.value.ids == ("q3",)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.jsonl cannot be read"):
        describe(RecordedRun(str(tmp_path / "gone.jsonl")))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question_id": "q1", "hits": [{"id": 7}]}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"broken\.jsonl:1"):
        ranked_by(broken)


def test_the_content_counts_and_not_where_it_lies(tmp_path):
    one, two = run_of(tmp_path), tmp_path / "other.jsonl"
    two.write_bytes(one.read_bytes())
    assert describe(RecordedRun(str(one))) == describe(RecordedRun(str(two)))
    two.write_text(one.read_text() + "\n\n", encoding="utf-8")
    assert describe(RecordedRun(str(one))) != describe(RecordedRun(str(two)))


def test_another_question_by_its_text_is_refused(tmp_path):
    bench = bench_of()
    with pytest.raises(ConfigError, match="by their ids"):
        RecordedRun(str(run_of(tmp_path))).open(bench).search(bench.alone("x"), Queries(("x",)))


def test_a_cell_of_a_recorded_run_has_the_numbers_of_scoring_it(tmp_path):
    docs = tmp_path / "corpus.jsonl"
    lines(docs, *({"id": d, "text": t} for d, t in DOCUMENTS.items()))
    draw = np.random.default_rng(5)
    names = sorted(DOCUMENTS)
    questions = [
        {
            "id": f"q{i:02d}",
            "question": f"Question {i}?",
            "state": "answerable" if i % 4 else "unanswerable",
            "gold": [{"document_id": str(d)} for d in draw.choice(names, 2, replace=False)] if i % 4 else [],
        }
        for i in range(24)
    ]
    lines(tmp_path / "questions.jsonl", *questions)
    rows = [
        {
            "question_id": q["id"],
            "hits": [
                {"id": str(d), "score": float(s)} for d, s in zip(draw.permutation(names), draw.random(6), strict=True)
            ],
            "depth": 20,
        }
        for q in questions[:-1]
    ]
    run = lines(tmp_path / "run.jsonl", *rows)
    part = Native(corpus=str(docs), questions=str(tmp_path / "questions.jsonl"))
    plan = Plan(ks=(1, 3), pool=20, headline="recall@3")
    cell = Cell("c", {}, part, WholeDocument(), RecordedRun(str(run)), NoRerank(), None, plan)
    made = run_cell(cell, Cache(tmp_path / "cache"))
    assert "latency_ms_median" not in made.facts
    data = part.load()
    results, _ = read_run(run)
    scored = summarize(evaluate(data.questions, Run.from_results(results), plan, decide=False), plan)
    assert made.summary.ledger.incomplete
    for name in ("recall@1", "recall@3", "ndcg@3", "mrr@3", "precision@3"):
        assert made.summary.metrics[name].value == pytest.approx(scored.metrics[name].value, abs=1e-12), name
        assert made.summary.metrics[name].n == scored.metrics[name].n == 18
