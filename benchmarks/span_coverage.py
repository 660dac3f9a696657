"""Coverage at a token budget on chunking-eval: what a cell of a sweep pays for the span metrics.

    python benchmarks/span_coverage.py [--data FOLDER] [--repeats 20] [--scale 50]

Takes windows of words as chunks, BM25 as the ranking (472 questions × 100 hits) and prints the median time of every
step. The aim is at most 30 ms a cell for all six span metrics at K = 1, 3, 5, 10 and at 2,000 tokens.
`--scale N` repeats the questions N times, to see that memory does not follow their number. (Not named coverage.py: a
script's folder comes first on the import path, and the package `coverage` would be hidden.)
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from denominator import ranking
from denominator.chunkers import Fixed
from denominator.spans import CorpusIndex, SpanGold, precision_omega, span_table, split_evidence
from denominator.types import Chunk, Document, Evidence, Question, Run, Units

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "chunking-eval"
DEPTH = 100
BUDGET = 2000


def load(folder: Path) -> tuple[list[Document], list[Question]]:
    def rows(name: str) -> list[dict[str, Any]]:
        with gzip.open(folder / name, "rt", encoding="utf-8", newline="") as file:
            return [json.loads(line) for line in file]

    documents = [Document(r["id"], r["text"]) for r in rows("corpus.jsonl.gz")]
    questions = [
        Question(
            r["id"],
            r["question"],
            r["state"],
            tuple((Evidence(g["document_id"], g["start"], g["end"]),) for g in r["gold"]),
        )
        for r in rows("questions.jsonl.gz")
    ]
    return documents, questions


def units_of(chunks: list[Chunk]) -> Units:
    docs = tuple(dict.fromkeys(c.doc for c in chunks))
    row = {d: i for i, d in enumerate(docs)}
    n = len(chunks)
    return Units(
        tuple(c.id for c in chunks),
        docs,
        np.array([row[c.doc] for c in chunks], np.int32),
        np.array([c.start for c in chunks], np.int64),
        np.array([c.end for c in chunks], np.int64),
        np.zeros(n, np.int32),
        np.full(n, -1, np.int32),
    )


def bm25(chunks: list[Chunk], questions: list[Question], units: Units) -> Run:
    import bm25s

    index = bm25s.BM25(method="lucene")
    index.index(bm25s.tokenize([c.text for c in chunks], show_progress=False), show_progress=False)
    asked = bm25s.tokenize([q.question or "" for q in questions], show_progress=False)
    found, scores = index.retrieve(asked, k=DEPTH, show_progress=False, n_threads=1)
    run = Run(
        tuple(q.id for q in questions),
        np.arange(0, len(questions) * DEPTH + 1, DEPTH),
        found.ravel().astype(np.int32),
        scores.ravel().astype(np.float64),
        units,
        np.zeros(len(questions), bool),
        depth=DEPTH,
    )
    return ranking.canonical(run)


def median_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times)


def repeated(questions: list[Question], run: Run, scale: int) -> tuple[list[Question], Run]:
    ids = tuple(f"{q.id}~{i}" for i in range(scale) for q in questions)
    many = [Question(new, q.question, q.answerability, q.gold) for new, q in zip(ids, questions * scale, strict=True)]
    scores = None if run.scores is None else np.tile(run.scores, scale)
    offsets = np.arange(0, len(many) * DEPTH + 1, DEPTH)
    exhausted = np.tile(run.exhausted, scale)
    return many, Run(ids, offsets, np.tile(run.unit, scale), scores, run.units, exhausted, depth=DEPTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--scale", type=int, default=0)
    given = parser.parse_args()
    documents, questions = load(given.data)
    size = sum(len(d.text) for d in documents)
    build = median_ms(lambda: CorpusIndex.build(documents), 3)
    index = CorpusIndex.build(documents)
    held = sum(a.nbytes for a in index.arrays().values())
    print(f"corpus index, once per corpus: {size:,} code points, {build:.0f} ms, {held / 1e6:.1f} MB")
    gold = SpanGold.build(index, questions)
    print(f"gold columns, once per corpus: {median_ms(lambda: SpanGold.build(index, questions), 5):.1f} ms")
    print("chunks        n   L5 only  all cuts  with gold  omega  split  split+oracle   coverage@b2000  omega  split")
    for chunker in (Fixed(64, 0), Fixed(128, 32), Fixed(256, 64), Fixed(512, 0)):
        chunks = [c for d in documents for c in chunker.chunk(d)]
        units = units_of(chunks)
        run = bm25(chunks, questions, units)
        n = given.repeats
        budget_only = median_ms(lambda r=run: span_table(index, gold, r, budget=BUDGET), n)
        every = median_ms(lambda r=run: span_table(index, gold, r, ks=(1, 3, 5, 10), budget=BUDGET), n)
        whole = median_ms(lambda r=run: span_table(index, questions, r, ks=(1, 3, 5, 10), budget=BUDGET), n)
        omega = median_ms(lambda u=units: precision_omega(index, gold, u), n)
        split = median_ms(lambda u=units: split_evidence(index, gold, u), n)
        oracle = median_ms(lambda u=units: split_evidence(index, gold, u, budget=BUDGET), 3)
        coverage = span_table(index, gold, run, budget=BUDGET).values[f"coverage@b{BUDGET}"].mean()
        tight, cut = precision_omega(index, gold, units).values.mean(), split_evidence(index, gold, units).share()
        print(
            f"{chunker.size:>3} + {chunker.overlap:<3} {len(chunks):>6}  {budget_only:>6.1f}  {every:>7.1f}"
            f"  {whole:>8.1f}  {omega:>6.1f}  {split:>5.1f}  {oracle:>10.1f}   {coverage:>14.4f}"
            f"  {tight:.3f}  {cut:.3f}"
        )
    if given.scale:
        many, large = repeated(questions, run, given.scale)
        columns = SpanGold.build(index, many)
        tracemalloc.start()
        begin = time.perf_counter()
        table = span_table(index, columns, large, ks=(1, 3, 5, 10), budget=BUDGET)
        taken = time.perf_counter() - begin
        peak = tracemalloc.get_traced_memory()[1]
        kept = sum(column.nbytes for column in table.values.values())
        print(
            f"{len(many):,} questions × {DEPTH} hits: {taken:.2f} s, peak {peak / 1e6:.0f} MB more than the run, "
            f"of which {kept / 1e6:.0f} MB are the table"
        )


if __name__ == "__main__":
    main()
