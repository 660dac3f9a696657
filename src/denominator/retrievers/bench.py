"""Where a cell's stages are worked on: the chunks, the questions, the cache, and a record of times.

A first stage (`BM25`, `Static`, …) is a frozen dataclass with `open(bench) -> Retriever`. Opening builds or reads the
index; a retriever ranks rows of questions and scores given pairs. Rerankers use the same two doors, so a mix of BM25
and static vectors needs no code of its own for either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from denominator.cache import Array, Cache, Entry, Payload, describe
from denominator.errors import ConfigError
from denominator.fingerprint import sha
from denominator.retrievers.table import NO_TEXT, ChunkTable, Queries, Ranked, ranked_of
from denominator.types import Floats, Ints

UNITS_PER_CHUNK = 4
"""Small units that are asked for at first for each chunk wanted."""


class Retriever(Protocol):
    """An opened index. `facts` are numbers about it (`index_bytes`, `truncated_chunks`, …) for the record.

    Optional `held`: bytes of memory that it keeps beyond what its cache entries hold.
    """

    facts: Mapping[str, float]

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        """The best `bench.depth` chunks of each question."""


class Scorer(Retriever, Protocol):
    """A retriever that can also be one side of a mix."""

    def score(self, bench: Bench, queries: Queries, row: Ints, unit: Ints) -> Floats:
        """Score of each (question row, chunk) pair; a pair that does not match at all has 0."""


class FirstStage(Protocol):
    """The choice of config group `embedder`."""

    def open(self, bench: Bench) -> Retriever: ...


@dataclass(frozen=True, slots=True)
class Bench:
    """One corpus under one chunker, with its questions and the depth that rankings are taken to."""

    cache: Cache
    table: ChunkTable
    queries: Queries
    depth: int
    progress: Callable[[str], None] | None = None

    @property
    def order(self) -> Ints:
        """Rank of each chunk's id: the tie rule as an integer."""
        return self.cache.once(f"order:{self.table.key}", self.table.units.order, lambda made: made.nbytes)

    def stage(self, stage: str, inputs: Mapping[str, Any], compute: Callable[[], Payload], what: str = "") -> Entry:
        """A cached stage; see `Cache.stage`."""
        if self.progress is not None:
            self.progress(what or stage)
        return self.cache.stage(stage, inputs, compute, what)

    def opened(self, part: FirstStage) -> Retriever:
        """The part's index over these chunks, opened once in a process."""
        key = sha(["open", describe(part), self.table.key])
        return self.cache.once(key, lambda: part.open(self), lambda made: getattr(made, "held", 0))

    def first(self, part: FirstStage) -> Retriever:
        """The part as a first stage: over the small units, where the chunker made some, else as `opened`."""
        if self.table.small is None:
            return self.opened(part)
        return Folded(self.inside(self.queries, self.depth).opened(part))

    def inside(self, queries: Queries, depth: int) -> Bench:
        """The bench of the small units."""
        assert self.table.small is not None
        return replace(self, table=self.table.small, queries=queries, depth=depth)

    def scorer(self, part: FirstStage) -> Scorer:
        """The opened part, which must be able to score given pairs. Raises ConfigError where it cannot."""
        found: Any = self.opened(part)
        if not hasattr(found, "score"):
            raise ConfigError(
                f"{type(part).__name__} ranks but does not score given pairs, so it cannot be one side of a mix"
            )
        scorer: Scorer = found
        return scorer

    def ranked(self, part: FirstStage) -> tuple[Ranked, Mapping[str, float]]:
        """The part's ranking of all questions at the pool's depth, and what its index says of itself; cached."""
        if not getattr(part, "cacheable", True):
            found = self.first(part)
            return found.search(self, self.queries), found.facts
        inputs = ranked_inputs(part, self.table.key, self.queries.key, self.depth)

        def compute() -> Payload:
            found = self.first(part)
            packed = pack(found.search(self, self.queries))
            return replace(packed, facts={**packed.facts, "index": dict(found.facts)})

        what = f"{type(part).__name__}, {len(self.queries)} questions, {len(self.table)} chunks"
        entry = self.stage("first_stage", inputs, compute, what)
        return unpack(entry), entry.facts["index"]

    def alone(self, text: str) -> Bench:
        """The same bench with one question that nothing is remembered about: for measuring latency."""
        return replace(self, queries=Queries((text,), kept=False), progress=None)


def ranked_inputs(part: FirstStage, chunks: str, queries: str, depth: int) -> dict[str, Any]:
    """What a first stage's ranking depends on: its cache key is made of this."""
    return {"part": describe(part), "chunks": chunks, "queries": queries, "depth": depth}


class Folded:
    """A retriever of small units as one of the chunks that hold them: a chunk's score is that of its best unit.

    Units are taken deep enough that every question has `depth` chunks, or all that there are.
    """

    def __init__(self, inner: Retriever) -> None:
        self.inner, self.facts = inner, inner.facts

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        table = bench.table
        assert table.small is not None
        assert table.parent is not None
        most, width = len(table.small), len(table)
        depth = min(UNITS_PER_CHUNK * bench.depth, most)
        while True:
            units = self.inner.search(bench.inside(queries, depth), queries)
            row, parent = units.row, table.parent[units.unit].astype(np.int64)
            # Hits stand best first, so the first of a chunk is its best.
            first = np.sort(np.unique(row * width + parent, return_index=True)[1])
            distinct = np.bincount(row[first], minlength=len(queries))
            if depth >= most or np.all(units.exhausted | (distinct >= bench.depth)):
                break
            depth = min(2 * depth, most)
        folded = ranked_of(
            row[first],
            parent[first],
            np.asarray(units.scores)[first],
            order=bench.order,
            rows=len(queries),
            depth=bench.depth,
            exhausted=units.exhausted & (distinct <= bench.depth),
        )
        return replace(
            folded,
            confidence=units.confidence,
            has_confidence=units.has_confidence,
            errors=units.errors,
            facts=units.facts,
        )


def pack(ranked: Ranked) -> Payload:
    """Columns for the cache. A ranking with failures is not written to disk: the next run asks again."""
    arrays: dict[str, Array] = {
        "offsets": ranked.offsets,
        "unit": ranked.unit,
        "scores": ranked.scores,
        "exhausted": ranked.exhausted,
    }
    if ranked.confidence is not None:
        arrays["confidence"] = ranked.confidence
    errors = [[int(i), why] for i, why in sorted(ranked.errors.items())]
    facts = {"depth": ranked.depth, "has_confidence": ranked.has_confidence, "facts": dict(ranked.facts)}
    kept = all(why == NO_TEXT for why in ranked.errors.values())
    return Payload(arrays, {"errors": errors}, facts, kept)


def unpack(entry: Entry) -> Ranked:
    return Ranked(
        offsets=np.asarray(entry["offsets"]),
        unit=np.asarray(entry["unit"]),
        scores=np.asarray(entry["scores"]),
        exhausted=np.asarray(entry["exhausted"]),
        depth=int(entry.facts["depth"]),
        confidence=np.asarray(entry["confidence"]) if "confidence" in entry.arrays else None,
        has_confidence=bool(entry.facts["has_confidence"]),
        errors={int(i): why for i, why in entry.lists["errors"]},
        facts=entry.facts.get("facts", {}),
    )
