"""When does approximate dense search pay? Exact search against an HNSW graph on vectors that cluster like text does.

    python benchmarks/ann.py [--chunks 100000] [--dimensions 256] [--precision f16] [--json]

Vectors: chunks around 2,000 subjects with most of their spread in an eighth of the dimensions, questions near chunks;
seeded. Times are CPU seconds of one thread, which other loads disturb least.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from denominator.cache import Cache
from denominator.embedders import Approximate
from denominator.retrievers import dense
from denominator.retrievers.bench import Bench
from denominator.retrievers.dense import DenseIndex, unit_vectors
from denominator.retrievers.table import ChunkTable, Queries
from denominator.retrievers.threads import threads_limited
from denominator.types import Units

DEPTH = 100


def vectors_of(chunks: int, questions: int, dimensions: int) -> tuple[dense.Vectors, dense.Vectors]:
    draw = np.random.default_rng(0)
    spread = np.where(np.arange(dimensions) < max(1, dimensions // 8), 1.0, 0.25).astype(np.float32)
    subjects = draw.standard_normal((2000, dimensions)).astype(np.float32)
    made = subjects[draw.integers(0, len(subjects), chunks)]
    made += 1.2 * spread * draw.standard_normal((chunks, dimensions)).astype(np.float32)
    asked = made[draw.integers(0, chunks, questions)]
    asked = asked + 0.5 * spread * draw.standard_normal(asked.shape).astype(np.float32)
    return unit_vectors(made, "chunk"), unit_vectors(asked, "question")


class Given:
    """A dense first stage over vectors that are there."""

    def __init__(self, chunks: dense.Vectors, questions: dense.Vectors) -> None:
        self.chunks, self.questions = chunks, questions

    def open(self, bench: Bench) -> DenseIndex:
        facts = {"index_bytes": float(self.chunks.nbytes)}
        return DenseIndex(self.chunks, bench.order, lambda _, queries: self.questions[: len(queries)], facts)


def bench_of(chunks: int, questions: int) -> Bench:
    n = np.arange(chunks)
    ids = tuple(f"{i:09d}" for i in range(chunks))
    zeros = np.zeros(chunks, np.int32)
    units = Units(ids, ids, n.astype(np.int32), n, n + 1, zeros, zeros - 1)
    return Bench(Cache(None), ChunkTable("given", (), units, zeros), Queries(("?",) * questions), DEPTH)


def measured(chunks: int, dimensions: int, precision: str) -> dict[str, object]:
    questions = 200
    given = Given(*vectors_of(chunks, questions, dimensions))
    bench = bench_of(chunks, questions)
    exact = given.open(bench)
    out: dict[str, object] = {"chunks": chunks, "dimensions": dimensions, "exact_bytes": exact.facts["index_bytes"]}
    with threads_limited(1):
        clock = time.process_time()
        true = exact.search(bench, bench.queries)
        out["exact_ms"] = (time.process_time() - clock) * 1000 / questions
        clock = time.process_time()
        for i in range(10):
            dense.search(given.questions[i : i + 1], given.chunks, bench.order, DEPTH)
        out["exact_alone_ms"] = (time.process_time() - clock) * 100
        clock = time.process_time()
        opened = Approximate(given, precision=precision, sample=0).open(bench)
        out["build_s"] = time.process_time() - clock
        out["graph_bytes"] = opened.facts["index_bytes"] - exact.facts["index_bytes"]
        rows = []
        for expansion in (100, 256, 512):
            part = Approximate(given, precision=precision, expansion_search=expansion, sample=0)
            opened.part = part
            clock = time.process_time()
            near = opened.search(bench, bench.queries)
            ms = (time.process_time() - clock) * 1000 / questions
            width = chunks
            found = np.isin(true.row * width + true.unit, near.row * width + near.unit).mean()
            rows.append({"expansion_search": expansion, "ms": ms, "recall": float(found)})
        out["approximate"] = rows
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--precision", default="f16", choices=["i8", "f16", "f32"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measured(args.chunks, args.dimensions, args.precision)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{args.chunks} chunks × {args.dimensions}, top {DEPTH}, CPU of one thread")
    print(f"exact: {found['exact_ms']:.2f} ms a question in blocks, {found['exact_alone_ms']:.2f} ms alone")
    print(f"graph ({args.precision}): built in {found['build_s']:.0f} s, {found['graph_bytes'] / 1e6:.0f} MB")
    for row in found["approximate"]:
        print(f"  expansion_search {row['expansion_search']}: {row['ms']:.2f} ms, recall@{DEPTH} {row['recall']:.4f}")


if __name__ == "__main__":
    main()
