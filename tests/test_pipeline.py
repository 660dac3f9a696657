from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from denominator.answerers import Recorded, Threshold
from denominator.cache import Cache, CacheWarning
from denominator.chunkers import Callable as OwnChunker
from denominator.chunkers import Fixed, FixedChars, Recursive, Sentences, SmallToBig, WholeDocument
from denominator.embedders import BM25, Callable, Hybrid, LateInteraction, Onnx, Static
from denominator.errors import ConfigError, DenominatorError, MeasurementError, StageError
from denominator.fingerprint import corpus_hash, dataset_hash
from denominator.pipeline import Cell, Latency, run_cell, unique_stages
from denominator.records import outcomes_to_lines
from denominator.rerankers import Callable as OwnReranker
from denominator.rerankers import MaxSim, Mix, NoRerank
from denominator.types import Dataset, Document, Evidence, Plan, Question
from tests.conftest import Given

PLAN = Plan(ks=(1, 2, 3), budget=60, pool=20)
TEXTS = {
    "pumps": "The pump lifts water from the well. It runs on a small motor. Check the pressure every month. "
    "If the pressure falls below two bar, clean the filter. The filter sits behind the blue cover.",
    "refunds": "A late order is refunded within thirty days. Write to support and name the order. "
    "Refunds go to the card that paid. Paint that was mixed to order is not refunded.",
    "paint": "Our paint dries in four hours. It needs two coats on bare wood. Keep it away from frost. "
    "Clean brushes with water. The paint comes in twelve colours.",
}


def span(doc, text):
    start = TEXTS[doc].index(text)
    return (Evidence(doc, start, start + len(text)),)


QUESTIONS = (
    Question("q1", "When is a late order refunded?", "answerable", (span("refunds", "within thirty days"),)),
    Question("q2", "Where is the filter of the pump?", "answerable", (span("pumps", "behind the blue cover"),)),
    Question("q3", "How long does paint take to dry?", "answerable", (span("paint", "four hours"),)),
    Question("q4", "Who founded the company?", "unanswerable"),
    Question("q5", "How many colours and coats?", "answerable",
             (span("paint", "twelve colours"), span("paint", "two coats"))),
)  # fmt: skip


def data_of(questions=QUESTIONS, texts=None, **more):
    documents = tuple(Document(i, t) for i, t in (TEXTS if texts is None else texts).items())
    return Dataset("tiny", documents, tuple(questions), dataset_hash(questions), corpus_hash(documents), **more)


def cell(data=None, chunker=None, embedder=None, reranker=None, plan=PLAN, answerer=None, latency=None, **more):
    return Cell(
        "a cell",
        {"chunker": "x"},
        Given(data or data_of()),
        chunker or Sentences(12),
        embedder or BM25(),
        reranker or NoRerank(),
        answerer or Threshold(),
        plan,
        latency or Latency(questions=2, repeats=2, warm_up=1),
        **more,
    )


def lines(result):
    return "\n".join(outcomes_to_lines(result.outcomes))


def computed(result):
    return sorted(t.stage for t in result.timings if not t.cached)


def test_a_cell_by_hand():
    result = run_cell(cell(), Cache(None))
    by_id = {o.id: o for o in result.outcomes}
    assert list(by_id) == ["q1", "q2", "q3", "q4", "q5"]
    assert by_id["q1"].hits[0].doc == "refunds"
    assert result.summary.metrics["recall@1"].n == 4
    assert result.summary.ledger.N == 5
    assert result.summary.ledger.states["unanswerable"] == 1
    # Sentences of at most twelve words packed: counted by hand from TEXTS.
    assert result.facts["n_chunks"] == 4 + 4 + 3
    assert result.facts["n_documents"] == 3
    assert result.facts["first_stage_recall_at_pool"] == 1.0
    assert result.facts["coverage_ceiling"] == 1.0
    assert result.facts["split_evidence"] == 0.0
    assert result.facts["pool"] == 20
    assert result.facts["latency_questions"] == 2
    assert result.facts["latency_ms_median"] > 0
    assert result.dataset.questions == 5
    assert set(result.fingerprints) == set(result.summary.metrics)
    assert result.fingerprints["recall@1"]["level"] == "L1"


@pytest.mark.parametrize("chunker", [Fixed(10, 3), FixedChars(60, 10), Recursive(15), WholeDocument()], ids=str)
@pytest.mark.parametrize("embedder", [BM25(), Static(), Hybrid()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("reranker", [NoRerank(), Mix(), MaxSim()], ids=lambda p: type(p).__name__)
def test_every_combination_runs_and_reads_back_the_same(tmp_path, chunker, embedder, reranker):
    made = cell(chunker=chunker, embedder=embedder, reranker=reranker)
    cold, warm = run_cell(made, Cache(tmp_path)), run_cell(made, Cache(tmp_path))
    assert lines(cold) == lines(warm)
    assert cold.cell_key == warm.cell_key
    assert computed(warm) == []
    assert dict(cold.facts) == dict(warm.facts)
    assert [(t.stage, t.seconds_computed) for t in sorted(cold.timings, key=lambda t: t.key)] == [
        (t.stage, t.seconds_computed) for t in sorted(warm.timings, key=lambda t: t.key)
    ]
    assert cold.summary.as_dict() == warm.summary.as_dict()


def test_stage_work_is_that_of_the_distinct_stages(tmp_path):
    cache = Cache(tmp_path)
    grid = [
        cell(chunker=c, embedder=e, reranker=r)
        for c in (Fixed(10), Sentences(12))
        for e in (BM25(), Static(), Hybrid())
        for r in (NoRerank(), Mix(), MaxSim())
    ]
    work = [stage for made in grid for stage in computed(run_cell(made, cache))]
    counts = {stage: work.count(stage) for stage in sorted(set(work))}
    assert counts == {
        "bm25_index": 2,
        "chunks": 2,
        "corpus_index": 1,
        "first_stage": 6,
        "latency_first_stage": 6,
        "latency_rerank": 18,
        "rerank": 12,
        "split_evidence": 2,
        "static_tokens": 2,
        "static_vectors": 2,
    }
    assert unique_stages(grid, data_of()) == {
        "documents": 3, "cells": 18, "chunkings": 2, "first_stages": 6, "reranks": 18,
    }  # fmt: skip
    keys = {made.key("d", "c") for made in grid}
    assert len(keys) == 18


def test_f30_a_label_reuses_stages_a_document_does_not(tmp_path):
    first = run_cell(cell(embedder=Static(), reranker=Mix()), Cache(tmp_path))
    relabelled = (*QUESTIONS[:2], replace(QUESTIONS[2], answerability="unanswerable", gold=()), *QUESTIONS[3:])
    second = run_cell(cell(data_of(relabelled), embedder=Static(), reranker=Mix()), Cache(tmp_path))
    assert computed(second) == ["split_evidence"]
    assert second.summary.metrics["recall@1"].n == first.summary.metrics["recall@1"].n - 1
    assert second.cell_key != first.cell_key
    assert second.fingerprints["recall@1"]["dataset_hash"] != first.fingerprints["recall@1"]["dataset_hash"]
    texts = {**TEXTS, "paint": TEXTS["paint"].replace("frost", "Frost")}
    third = run_cell(cell(data_of(texts=texts), embedder=Static(), reranker=Mix()), Cache(tmp_path))
    assert {"chunks", "static_tokens", "static_vectors", "first_stage", "rerank"} <= set(computed(third))
    reworded = (replace(QUESTIONS[0], question="When do I get my money back?"), *QUESTIONS[1:])
    fourth = run_cell(cell(data_of(reworded), embedder=Static(), reranker=Mix()), Cache(tmp_path))
    assert {"first_stage", "rerank"} <= set(computed(fourth))
    assert not {"chunks", "static_vectors", "bm25_index"} & set(computed(fourth))


def test_order_of_documents_and_questions_does_not_matter(tmp_path):
    data = data_of()
    turned = replace(data, documents=data.documents[::-1], questions=data.questions[::-1])
    a, b = run_cell(cell(data), Cache(tmp_path)), run_cell(cell(turned), Cache(tmp_path))
    assert lines(a) == lines(b)
    assert computed(b) == []


def test_a_damaged_stage_is_recomputed_with_the_same_outcomes(tmp_path):
    made = cell(embedder=Hybrid(), reranker=MaxSim())
    first = run_cell(made, Cache(tmp_path))
    for entry in Cache(tmp_path).entries():
        path = sorted(entry.path.glob("*.npy"))[:1]
        if path:
            path[0].write_bytes(path[0].read_bytes()[:-5])
    with pytest.warns(CacheWarning, match="recomputed"):
        again = run_cell(made, Cache(tmp_path))
    assert lines(again) == lines(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert computed(run_cell(made, Cache(tmp_path))) == []


# Failing and missing things


def test_f24_a_pool_below_k_is_refused_before_any_work():
    def never(question, k):
        raise AssertionError("no work may be done")

    made = cell(embedder=Callable(never), plan=replace(PLAN, pool=2))
    for call in (made.check, lambda: run_cell(made, Cache(None))):
        with pytest.raises(MeasurementError) as refused:
            call()
        assert refused.value.code == "depth_below_k"


@pytest.mark.parametrize("ks", [(0,), (-1, 5), (True,)], ids=str)
def test_impossible_k(ks):
    with pytest.raises(MeasurementError, match="bad_k"):
        run_cell(cell(plan=replace(PLAN, ks=ks)), Cache(None))


def test_failed_questions_are_counted_never_dropped():
    def retrieve(question, k):
        if "filter" in question:
            raise TimeoutError("engine did not answer")
        return ["refunds"]

    result = run_cell(cell(chunker=WholeDocument(), embedder=Callable(retrieve)), Cache(None))
    by_id = {o.id: o for o in result.outcomes}
    assert by_id["q2"].status == "failed"
    assert by_id["q2"].error == "TimeoutError: engine did not answer"
    assert by_id["q2"].values["recall@1"] == 0.0
    assert result.summary.metrics["recall@1"].n == 4
    assert result.summary.metrics["recall@1"].value == 0.25
    assert result.summary.ledger.incomplete
    assert result.summary.ledger.failed == 1
    assert "1 of 5 questions failed in retrieval" in result.notes


def test_failed_in_the_reranker_too():
    def scores(question, texts):
        if "filter" in question:
            raise ValueError("too long")
        return [0.0] * len(texts)

    result = run_cell(cell(reranker=OwnReranker(scores)), Cache(None))
    failed = {o.id: o.error for o in result.outcomes if o.status == "failed"}
    assert failed == {"q2": "reranker own: ValueError: too long"}


def test_a_question_without_text_fails(tmp_path):
    questions = (replace(QUESTIONS[0], question=None), *QUESTIONS[1:])
    for _ in range(2):
        result = run_cell(cell(data_of(questions), embedder=Static()), Cache(tmp_path))
        assert {o.id: o.error for o in result.outcomes if o.error} == {"q1": "the question has no text"}


@dataclass(frozen=True)
class NoChunks:
    def chunk(self, document):
        return []


@dataclass(frozen=True)
class Loses:
    cacheable: ClassVar[bool] = False

    def rerank(self, bench, ranked):
        return replace(ranked, offsets=np.minimum(ranked.offsets, 1), unit=ranked.unit[:1], scores=ranked.scores[:1])


@dataclass(frozen=True)
class Breaks:
    def chunk(self, document):
        raise KeyError("x")

    def open(self, bench):
        raise KeyError("x")

    def rerank(self, bench, ranked):
        raise KeyError("x")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chunker": NoChunks()}, "NoChunks made no chunk of 3 documents"),
        ({"chunker": Breaks()}, "chunker Breaks, document 'paint': KeyError"),
        ({"embedder": Breaks()}, "Breaks: KeyError"),
        ({"reranker": Breaks()}, "reranker Breaks: KeyError"),
        ({"reranker": Loses()}, "reranker Loses must return a permutation of the pool"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_parts_that_break_are_named(options, says):
    with pytest.raises(StageError, match=says) as error:
        run_cell(cell(**options), Cache(None))
    assert error.value.exit_code == 1


def test_without_documents_nothing_is_scored():
    with pytest.raises(DenominatorError, match="no documents"):
        run_cell(cell(data_of(texts={})), Cache(None))


def test_blank_corpus_is_an_error_not_a_zero():
    with pytest.raises(StageError, match="made no chunk"):
        run_cell(cell(data_of(texts={"pumps": " ", "refunds": "\n", "paint": ""})), Cache(None))


# Facts, confidence, answers


def test_context_tokens_by_hand():
    texts = {"a": "one two three four", "b": "one two", "c": "one"}
    questions = (Question("q", "one", "answerable", ((Evidence("a"),),)),)
    for cut, expected in (("truncate", 5.0), ("whole", 3.0)):
        plan = Plan(ks=(1, 2), budget=5, pool=3, budget_cut=cut)
        made = cell(data_of(questions, texts), chunker=WholeDocument(), plan=plan, answerer=Threshold())
        result = run_cell(made, Cache(None))
        # BM25 prefers the short ones: c (1 token), b (2), a (4).
        assert [h.doc for h in result.outcomes[0].hits] == ["c", "b"]
        assert result.facts["context_tokens_at_2"] == 3.0
        assert result.facts["context_tokens_at_budget"] == expected
        # Documents alone are known, so the headline is recall at the largest K.
        assert result.summary.headline == "recall@2"
        assert result.facts["context_tokens"] == 3.0


def test_context_tokens_are_those_of_the_headlines_cut():
    texts = {"a": "one two three four", "b": "one two", "c": "one"}
    questions = (Question("q", "one", "answerable", ((Evidence("c", 0, 3),),)),)
    for headline, expected in (("auto", 5.0), ("recall@1", 1.0), ("coverage@2", 3.0), ("coverage@b5", 5.0)):
        plan = Plan(ks=(1, 2), budget=5, pool=3, headline=headline)
        result = run_cell(cell(data_of(questions, texts), chunker=WholeDocument(), plan=plan), Cache(None))
        assert result.facts["context_tokens"] == expected, headline
        assert result.facts["context_tokens_at_2"] == 3.0


def test_truncated_chunks_reach_the_record():
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    result = run_cell(cell(chunker=WholeDocument(), embedder=Onnx(max_tokens=32)), Cache(None))
    assert result.facts["truncated_chunks"] == 3
    assert result.facts["truncated_chunks_share"] == 1.0
    assert result.facts["truncated_questions"] == 0
    lost = int(result.facts["truncated_chunks_tokens"])
    assert 3 <= lost < sum(map(len, TEXTS.values())) / 3
    assert f"3 of 3 chunks are longer than the embedder reads, {lost} tokens are not read" in result.notes


def test_questions_that_find_nothing_are_noted():
    result = run_cell(cell(data_of((*QUESTIONS, Question("q9", "zebra quantum", "unanswerable")))), Cache(None))
    assert result.facts["questions_without_hits"] >= 1
    assert {o.id: o.confidence for o in result.outcomes}["q9"] is None


def test_fixed_threshold_is_used_and_marked():
    result = run_cell(cell(embedder=Static(), answerer=Threshold(0.99)), Cache(None))
    assert result.plan.threshold == 0.99
    assert all(o.abstained for o in result.outcomes)


def test_recorded_answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    rows = [{"question_id": f"q{i}", "answer": "It is so.", "abstained": i == 4} for i in range(1, 6)]
    path.write_text("\n".join(json.dumps(r) for r in rows), "utf-8")
    result = run_cell(cell(answerer=Recorded(str(path))), Cache(None))
    assert {o.id for o in result.outcomes if o.abstained} == {"q4"}
    first = cell(answerer=Recorded(str(path))).key("d", "c")
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    assert cell(answerer=Recorded(str(copy))).key("d", "c") == first
    copy.write_text(copy.read_text().replace("so", "not"))
    assert cell(answerer=Recorded(str(copy))).key("d", "c") != first
    with pytest.raises(ConfigError, match="cannot be read"):
        cell(answerer=Recorded(str(tmp_path / "none"))).key("d", "c")


def test_recorded_answers_without_a_corpus(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"question_id": "q4", "abstained": true}\n{"question_id": "q1", "abstained": false}\n')
    data = data_of((QUESTIONS[0], QUESTIONS[3]), {}, evaluate="abstention")
    result = run_cell(cell(data, answerer=Recorded(str(path))), Cache(None))
    assert result.summary.metrics["recall@1"].reason == "abstention_only"
    assert {o.id: o.abstained for o in result.outcomes} == {"q1": False, "q4": True}


# Keys


def test_cell_key_is_over_parts_plan_and_data():
    base = cell()
    key = base.key("d", "c")
    assert replace(base, name="other", params={}).key("d", "c") == key
    others = [
        replace(base, chunker=Sentences(13)),
        replace(base, embedder=BM25(k1=0.9)),
        replace(base, embedder=Static()),
        replace(base, reranker=Mix()),
        replace(base, answerer=None),
        replace(base, plan=replace(PLAN, pool=21)),
        replace(base, chunker_varies=False),
    ]
    keys = [other.key("d", "c") for other in others] + [base.key("e", "c"), base.key("d", "e")]
    assert len({key, *keys}) == len(keys) + 1
    assert replace(base, embedder=Onnx(threads=1)).key("d", "c") == replace(base, embedder=Onnx(threads=2)).key(
        "d", "c"
    )


@pytest.mark.slow
def test_outcomes_are_the_same_in_another_process(tmp_path):
    """Hash seeds, thread counts and the state of a warm process must not show."""
    code = """
import sys, hashlib
from tests.test_pipeline import cell, lines, run_cell, Cache, Hybrid, MaxSim
print(hashlib.sha256(lines(run_cell(cell(embedder=Hybrid(), reranker=MaxSim()), Cache(None))).encode()).hexdigest())
"""
    import os

    found = set()
    for seed, threads in (("1", "1"), ("2", "2")):
        env = os.environ | {"PYTHONHASHSEED": seed, "DENOMINATOR_THREADS": threads}
        root = Path(__file__).resolve().parents[1]
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd=root
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_threads_setting_is_checked(monkeypatch):
    for wrong in ("0", "many", "-1"):
        monkeypatch.setenv("DENOMINATOR_THREADS", wrong)
        with pytest.raises(ConfigError, match="DENOMINATOR_THREADS"):
            run_cell(cell(), Cache(None))


@pytest.mark.slow
def test_f43_memory_does_not_grow_with_cells():
    """Thirty cells, each with vectors of about 2 MB and nothing on disk: what a process holds stays in its bound."""
    cache = Cache(None, memory_bytes=10_000_000)
    big = {f"d{i}": f"word{i} pump filter" for i in range(2000)}
    questions = (Question("q", "word7", "answerable", ((Evidence("d7"),),)),)
    data = data_of(questions, big)
    for dimensions in range(226, 256):
        made = cell(data, chunker=WholeDocument(), embedder=Static(dimensions), latency=Latency(0))
        run_cell(made, cache, dataset=data)
        assert cache.held <= 10_000_000


def test_progress_names_the_stages():
    said = []
    run_cell(cell(), Cache(None), progress=said.append)
    assert said[0] == "chunk: Sentences"
    assert said[-1] == "evaluate"


def test_chunking_eval_cells_differ(shared):
    """Real data: BM25 on fixed 128 + 32 words finds what the notes on these sets say (R@5 at whole spans .822)."""
    from denominator.readers.native import Native

    data = Native(folder=str(shared / "data/chunking-eval")).load()
    made = cell(data, chunker=Fixed(128, 32), plan=Plan(), latency=Latency(0))
    result = run_cell(made, Cache(None))
    metrics = result.summary.metrics
    assert metrics["coverage@b2000"].n == 472
    whole = np.mean([o.values["coverage@5"] >= 0.99 for o in result.outcomes])
    assert 0.75 < whole < 0.9
    assert result.facts["n_chunks"] == 2391


# Small units, larger chunks


@dataclass(frozen=True)
class Units:
    """The small units alone, as an ordinary chunker: what brute force searches."""

    part: SmallToBig

    def chunk(self, document):
        return [unit for unit, _ in self.part.small_chunks(document, self.part.chunk(document))]


@pytest.mark.parametrize(
    ("embedder", "pool"),
    # A min-max mix scales over its pool, so its scores are the same only where the pools are.
    [(part, pool) for part in (BM25(), Static(), LateInteraction()) for pool in (2, 20)]
    + [(Hybrid(fusion="min_max"), 20)],
    ids=lambda p: p if isinstance(p, int) else type(p).__name__,
)
def test_a_chunk_scores_what_its_best_unit_scores(embedder, pool):
    part = SmallToBig(Sentences(8), Sentences(24))
    plan = replace(PLAN, pool=pool, ks=(1, 2), headline="recall@2")
    result = run_cell(cell(chunker=part, embedder=embedder, plan=plan), Cache(None))
    every = replace(plan, pool=500, ks=(1, 2, 500))  # an outcome keeps as many hits as its metrics need
    alone = run_cell(cell(chunker=Units(part), embedder=embedder, plan=every), Cache(None))
    bigs = {d: part.chunk(Document(d, t)) for d, t in TEXTS.items()}
    assert result.facts["n_chunks"] == sum(map(len, bigs.values())) == 6
    assert result.facts["small_chunks"] == alone.facts["n_chunks"] > 6
    for mine, small in zip(result.outcomes, alone.outcomes, strict=True):
        best = {}
        for hit in small.hits:  # best first
            big = next(c for c in bigs[hit.doc] if c.start <= hit.start and hit.end <= c.end)
            best.setdefault(big.id, hit.score)
        expected = sorted(best.items(), key=lambda h: (-h[1], h[0]))[: len(mine.hits)]
        assert [(h.id, h.score) for h in mine.hits] == expected
        assert mine.n_hits <= pool
        assert mine.confidence == small.confidence


def test_small_units_are_cached_and_rerankers_see_the_large_chunks(tmp_path):
    seen = []

    def score(question, texts):
        seen.extend(texts)
        return [len(t) for t in texts]

    part = SmallToBig(Sentences(8), Sentences(24))
    cold = run_cell(cell(chunker=part, reranker=OwnReranker(score)), Cache(tmp_path))
    assert set(seen) <= {c.text for d, t in TEXTS.items() for c in part.chunk(Document(d, t))}
    warm = run_cell(cell(chunker=part, reranker=OwnReranker(score)), Cache(tmp_path))
    assert lines(cold) == lines(warm)
    assert computed(warm) == []
    assert dict(cold.facts) == dict(warm.facts)
    assert {"chunks", "small_chunks"} <= {t.stage for t in cold.timings}


def test_units_are_searched_deeper_until_there_are_enough_chunks():
    """One document's many equal units crowd out everything else at first."""
    texts = {"a": "pump pump. " * 200, **{f"b{i}": "pump well filter sand water. " for i in range(5)}}
    questions = (Question("q", "pump", "answerable", ((Evidence("a"),),)),)
    part = SmallToBig(Fixed(2), WholeDocument())
    plan = Plan(ks=(1, 4), budget=60, pool=4)
    (outcome,) = run_cell(cell(data_of(questions, texts), chunker=part, plan=plan), Cache(None)).outcomes
    assert [h.doc for h in outcome.hits] == ["a", "b0", "b1", "b2"]


def test_chunks_of_a_function_without_version_are_known_by_their_content(tmp_path):
    words = OwnChunker(lambda text: [(0, len(text))])
    first = run_cell(cell(chunker=words), Cache(tmp_path))
    assert "chunks" not in {t.stage for t in first.timings}
    second = run_cell(cell(chunker=words), Cache(tmp_path))
    assert computed(second) == [], "the same content has the same key"
    assert lines(first) == lines(second) == lines(run_cell(cell(chunker=WholeDocument()), Cache(None)))
    named = run_cell(cell(chunker=OwnChunker("tests.test_pipeline.whole", version="1")), Cache(tmp_path))
    assert "chunks" in computed(named)


def whole(text):
    return [(0, len(text))]


def test_a_pool_too_shallow_for_the_budget_is_refused_not_replaced(tmp_path):
    """Selection would otherwise fall back to another metric in this cell than in its neighbours."""
    shallow = replace(PLAN, pool=2, ks=(1, 2))
    with pytest.raises(MeasurementError, match="raise pool, lower budget, or name a headline"):
        run_cell(cell(plan=shallow), Cache(tmp_path))
    named = run_cell(cell(plan=replace(shallow, headline="recall@2")), Cache(tmp_path))
    assert named.summary.metrics[f"coverage@b{PLAN.budget}"].reason == "depth_below_k"
