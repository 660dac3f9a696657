"""Span numbers beside those of the package `chunking_evaluation`, on real chunks of its own data set.

Its arithmetic is one file of plain Python behind imports of a vector store and of pandas; only the functions are
taken from that file, so neither is needed. It is looked for as an installed package, then at the path that the
environment variable CHUNKING_EVALUATION_FILE names (`base_evaluation.py` of its source).

Intended differences (docs/measurement.md, section 10): it counts whitespace, so the index here knows no text; its
Precision_Omega takes chunks that merely touch a span, so spans that share an edge with a chunk are left out there;
K is given instead of its oracle `retrieve=-1`; no two spans of a question overlap in this data.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denominator.spans import CorpusIndex, SpanGold, precision_omega, span_table
from denominator.types import Document, Evidence, Hit, Question, Result, Run

from .conftest import shared_path

DEPTH = 20
KS = (1, 5, 20)


def arithmetic() -> dict[str, Any]:
    """The functions and the class of `base_evaluation.py`, without what it imports."""
    found = importlib.util.find_spec("chunking_evaluation")
    if found and found.submodule_search_locations:
        path = Path(next(iter(found.submodule_search_locations))) / "evaluation_framework" / "base_evaluation.py"
    elif named := os.environ.get("CHUNKING_EVALUATION_FILE"):
        path = Path(named)
    else:
        pytest.skip("needs chunking_evaluation, or CHUNKING_EVALUATION_FILE=…/base_evaluation.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        or (isinstance(node, ast.ImportFrom) and node.module == "typing")
    ]
    space: dict[str, Any] = {}
    exec(compile(tree, str(path), "exec"), space)
    return space


class Rows(list[dict[str, Any]]):
    """As much of a data frame as that file asks for."""

    def iterrows(self) -> Any:
        return enumerate(self)


def load() -> tuple[dict[str, str], list[dict[str, Any]]]:
    folder = shared_path("data/chunking-eval")

    def rows(name: str) -> list[dict[str, Any]]:
        with gzip.open(folder / name, "rt", encoding="utf-8", newline="") as file:
            return [json.loads(line) for line in file]

    return {r["id"]: r["text"] for r in rows("corpus.jsonl.gz")}, rows("questions.jsonl.gz")


def windows(length: int, size: int, step: int) -> list[tuple[int, int]]:
    return [(a, min(a + size, length)) for a in range(0, length, step) if a == 0 or a + size - step < length]


@pytest.mark.peers
@pytest.mark.parametrize(("size", "step"), [(400, 400), (1200, 1200), (800, 400), (317, 251)])
def test_recall_precision_iou_and_omega_equal_chunking_evaluation(size: int, step: int) -> None:
    space = arithmetic()
    texts, records = load()
    chunks = [
        Hit(f"{doc}#{a:09d}-{b:09d}", doc, None, a, b)
        for doc, text in texts.items()
        for a, b in windows(len(text), size, step)
    ]
    # A ranking that finds something: chunks near the gold and chunks from anywhere, in a drawn order.
    rng = np.random.default_rng(size)
    starts = {doc: np.array([i for i, c in enumerate(chunks) if c.doc == doc]) for doc in texts}
    results: dict[str, Result] = {}
    for record in records:
        near = []
        for g in record["gold"]:
            own = starts[g["document_id"]]
            near.append(int(own[min(g["start"] // step, len(own) - 1)]))
        pool = dict.fromkeys([*near, *rng.integers(0, len(chunks), 3 * DEPTH).tolist()])
        order = rng.permutation(np.array(list(pool)[:DEPTH])).tolist()
        results[record["id"]] = Result(tuple(chunks[i] for i in order), depth=DEPTH)
    questions = [
        Question(
            r["id"],
            r["question"],
            r["state"],
            tuple((Evidence(g["document_id"], g["start"], g["end"]),) for g in r["gold"]),
        )
        for r in records
    ]
    index = CorpusIndex.plain({doc: len(text) for doc, text in texts.items()})
    gold = SpanGold.build(index, questions)
    table = span_table(index, gold, Run.from_results(results), ks=KS)
    units = Run.from_results({"all": Result(tuple(chunks))}).units
    omega = precision_omega(index, gold, units)

    theirs = space["BaseEvaluation"].__new__(space["BaseEvaluation"])
    theirs.questions_df = Rows(
        {
            "question": r["question"],
            "corpus_id": r["gold"][0]["document_id"],
            "references": [{"content": g["text"], "start_index": g["start"], "end_index": g["end"]} for g in r["gold"]],
        }
        for r in records
    )

    def metadata(hit: Hit) -> dict[str, Any]:
        return {"start_index": hit.start, "end_index": hit.end, "corpus_id": hit.doc}

    listed = [[metadata(h) for h in results[r["id"]].hits] for r in records]
    for k in KS:
        iou, recall, precision = theirs._scores_from_dataset_and_retrievals(listed, [k] * len(records))
        assert k < DEPTH or np.mean(recall) > 0.3  # the comparison is about numbers other than 0
        for name, want in (("span_recall", recall), ("span_precision", precision), ("span_iou", iou)):
            assert np.abs(table.values[f"{name}@{k}"] - np.array(want)).max() <= 1e-12, (name, k)
    edges = {(c.doc, e) for c in chunks for e in (c.start, c.end)}
    apart = np.array(
        [not any((g["document_id"], e) in edges for g in r["gold"] for e in (g["start"], g["end"])) for r in records]
    )
    assert apart.sum() > 400
    want_omega = np.array(theirs._full_precision_score([metadata(c) for c in chunks])[0])
    assert np.abs(omega.values[apart] - want_omega[apart]).max() <= 1e-12
    assert omega.values[apart].mean() > 0.05
    assert (omega.values[~apart] >= want_omega[~apart] - 1e-12).all()  # touching chunks only make theirs smaller


@pytest.mark.parametrize("size", [300, 1100])
def test_real_chunks_with_text_equal_sets_of_positions(size: int) -> None:
    """The same data with whitespace left out, against sets; every 20th question, so that it stays quick."""
    texts, records = load()
    records = records[::20]
    chunks = [
        Hit(f"{doc}#{a:09d}-{b:09d}", doc, None, a, b)
        for doc, text in texts.items()
        for a, b in windows(len(text), size, size)
    ]
    rng = np.random.default_rng(1)
    index = CorpusIndex.build(Document(i, t) for i, t in texts.items())
    for record in records:
        first = record["gold"][0]
        near = [c for c in chunks if c.doc == first["document_id"] and abs((c.start or 0) - first["start"]) < 3 * size]
        hits = [near[i] for i in rng.permutation(len(near))]
        asked = Question(
            record["id"],
            None,
            "answerable",
            tuple((Evidence(g["document_id"], g["start"], g["end"]),) for g in record["gold"]),
        )
        table = span_table(index, [asked], Run.from_results({record["id"]: Result(tuple(hits))}), ks=(3,))

        def letters(doc: str, start: int, end: int) -> set[tuple[str, int]]:
            return {(doc, i) for i in range(start, end) if not texts[doc][i].isspace()}

        got = set().union(*[letters(h.doc, h.start or 0, h.end or 0) for h in hits[:3]])
        spans = [letters(g["document_id"], g["start"], g["end"]) for g in record["gold"]]
        gold = set().union(*spans)
        sent = sum(len(letters(h.doc, h.start or 0, h.end or 0)) for h in hits[:3])
        assert table.value("coverage@3", 0) == pytest.approx(np.mean([len(s & got) / len(s) for s in spans]), abs=1e-12)
        assert table.value("span_recall@3", 0) == pytest.approx(len(gold & got) / len(gold), abs=1e-12)
        assert table.value("span_iou@3", 0) == pytest.approx(len(gold & got) / (sent + len(gold - got)), abs=1e-12)
