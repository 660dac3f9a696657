"""Approximate dense search through usearch's HNSW graph (extra `ann`), and what it loses against the exact search.

The graph only proposes: candidates are scored again exactly, so scores and ties are those of the exact search, and
what it misses is the one difference. It is built on one thread in the order of the chunks, so on one kind of processor
the same vectors give the same graph. Its recall is measured on the run's own questions and stands in the record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from denominator.cache import Entry, Payload, describe
from denominator.errors import ConfigError, MissingExtraError
from denominator.retrievers.bench import Bench, FirstStage
from denominator.retrievers.dense import DenseIndex, Vectors, pair_scores, search
from denominator.retrievers.static import Static
from denominator.retrievers.table import Queries, Ranked, ranked_of
from denominator.types import Floats, Ints


@dataclass(frozen=True, slots=True)
class Approximate:
    """Any dense first stage with cosine similarity, searched through an HNSW graph instead of completely.

    `connectivity` (neighbours of a node) and `expansion_add` (candidates while it is built) make the graph better and
    slower to build, `expansion_search` the search better and slower; it is never below the pool. `precision`: what the
    graph holds, `i8` (a byte a dimension), `f16` or `f32`; scores are always those of the whole vectors.
    `sample`: questions on which the recall against exact search is measured (`ann_recall_at_<pool>`), 0: none.
    """

    dense: FirstStage = field(default_factory=Static)
    connectivity: int = 16
    expansion_add: int = 128
    expansion_search: int = 256
    precision: Literal["i8", "f16", "f32"] = "f16"
    sample: int = 100
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name, least in (("connectivity", 2), ("expansion_add", 1), ("expansion_search", 1), ("sample", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"embedder approximate: {name} must be a whole number of at least {least}, found {value!r}"
                )
        if self.precision not in ("i8", "f16", "f32"):
            raise ConfigError(f"embedder approximate: precision must be i8, f16 or f32, found {self.precision!r}")

    @property
    def cacheable(self) -> bool:
        return bool(getattr(self.dense, "cacheable", True))

    def identity(self) -> str:
        from importlib.metadata import PackageNotFoundError, version

        try:
            return f"usearch {version('usearch')}"
        except PackageNotFoundError:
            raise MissingExtraError("embedder approximate", "ann") from None

    def open(self, bench: Bench) -> GraphIndex:
        inner: Any = bench.opened(self.dense)
        if not isinstance(inner, DenseIndex):
            raise ConfigError(
                f"embedder approximate: {type(self.dense).__name__} has no unit vectors to search; "
                "dense must be an embedder that compares by cosine"
            )

        def compute() -> Payload:
            return Payload({"graph": np.frombuffer(bytes(self._built(inner.vectors).save()), np.uint8)})

        inputs = {"part": describe(self), "chunks": bench.table.key}
        what = f"graph of {len(bench.table)} chunks, {type(self.dense).__name__}"
        return GraphIndex(self, inner, bench.stage("ann_graph", inputs, compute, what), bench)

    def _built(self, vectors: Vectors) -> Any:
        graph = _library()(
            ndim=vectors.shape[1],
            metric="ip",
            dtype=self.precision,
            connectivity=self.connectivity,
            expansion_add=self.expansion_add,
            expansion_search=self.expansion_search,
        )
        step = 16_384
        for a in range(0, len(vectors), step):  # one thread: the order of insertion decides what the graph is
            part = np.ascontiguousarray(vectors[a : a + step])
            graph.add(np.arange(a, a + len(part)), part, threads=1)
        return graph


def _library() -> Any:
    # One release of usearch, imported first, makes a later import of onnxruntime end the process.
    with contextlib.suppress(ImportError):
        import onnxruntime  # noqa: F401
    try:
        from usearch.index import Index
    except ImportError as error:
        raise MissingExtraError("embedder approximate", "ann") from error
    return Index


class GraphIndex:
    """An opened graph beside the vectors that it was built from."""

    def __init__(self, part: Approximate, inner: DenseIndex, entry: Entry, bench: Bench) -> None:
        self.part, self.inner = part, inner
        self.vectors, self.order, self.embed = inner.vectors, inner.order, inner.embed
        self.held = int(entry.array_bytes)
        self.graph: Any = _library().restore(np.asarray(entry["graph"]).tobytes())
        both = float(inner.facts.get("index_bytes", 0.0)) + float(entry.array_bytes)
        facts = {**inner.facts, "index_bytes": both}
        if bench.queries.kept:
            facts.update(self._recall(bench))
        self.facts: Mapping[str, float] = facts

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        return self._search(self.embed(bench, queries), bench.depth)

    def _search(self, questions: Vectors, depth: int) -> Ranked:
        n = len(self.vectors)
        alive = np.flatnonzero(np.any(questions != 0, axis=1))
        wanted = min(n, max(depth, self.part.expansion_search))
        self.graph.expansion_search = wanted
        row, unit = np.empty(0, np.int64), np.empty(0, np.int64)
        if len(alive):
            # Of many texts alike the graph may miss some beyond the depth; more are asked for and scored again.
            found = self.graph.search(np.ascontiguousarray(questions[alive]), wanted, threads=1)
            keys = np.asarray(found.keys).reshape(len(alive), -1)
            counts = np.atleast_1d(np.asarray(found.counts)) if hasattr(found, "counts") else np.array([keys.shape[1]])
            valid = np.arange(keys.shape[1]) < counts[:, None]
            row = np.repeat(alive, counts)
            unit = keys[valid].astype(np.int64)
        scores = pair_scores(questions, self.vectors, row, unit)
        exhausted = np.full(len(questions), n <= depth)
        return ranked_of(row, unit, scores, order=self.order, rows=len(questions), depth=depth, exhausted=exhausted)

    def score(self, bench: Bench, queries: Queries, row: Ints, unit: Ints) -> Floats:
        return pair_scores(self.embed(bench, queries), self.vectors, row, unit)

    def _recall(self, bench: Bench) -> dict[str, float]:
        """Share of the exact search's chunks that are found, over evenly spaced questions that have a vector."""
        questions = self.embed(bench, bench.queries)
        alive = np.flatnonzero(np.any(questions != 0, axis=1))
        if not self.part.sample or not len(alive):
            return {}
        picked = alive[np.linspace(0, len(alive) - 1, min(self.part.sample, len(alive))).astype(int)]
        near = self._search(questions[picked], bench.depth)
        exact = search(questions[picked], self.vectors, self.order, bench.depth)
        width = len(self.vectors)
        found = np.isin(exact.row * width + exact.unit, near.row * width + near.unit)
        return {f"ann_recall_at_{bench.depth}": float(found.mean()), "ann_questions": float(len(picked))}
