"""Two first stages joined: by ranks (RRF) or by scaled scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench, FirstStage, Scorer
from denominator.retrievers.lexical import BM25
from denominator.retrievers.static import Static
from denominator.retrievers.table import Queries, Ranked, min_max, ranked_of, top_scores
from denominator.types import Floats, Ints


@dataclass(frozen=True, slots=True)
class Hybrid:
    """BM25 and a dense stage over the union of both pools.

    `fusion`: `rrf` adds 1/(`k` + rank), nothing for a chunk that a side does not list; `min_max` scales both sides'
    scores to [0, 1] over the union and adds them with `weight` on the dense side. Neither compares across questions, so
    confidence is that of one side alone (`lexical` or `dense`), or `none`.
    """

    lexical: FirstStage = field(default_factory=BM25)
    dense: FirstStage = field(default_factory=Static)
    fusion: Literal["rrf", "min_max"] = "rrf"
    k: int = 60
    weight: float = 0.5
    confidence: Literal["lexical", "dense", "none"] = "lexical"
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.fusion not in ("rrf", "min_max"):
            raise ConfigError(f"embedder hybrid: fusion must be rrf or min_max, found {self.fusion!r}")
        if self.confidence not in ("lexical", "dense", "none"):
            raise ConfigError(f"embedder hybrid: confidence must be lexical, dense or none, found {self.confidence!r}")
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ConfigError(f"embedder hybrid: k must be a whole number of at least 1, found {self.k!r}")
        if not 0 <= self.weight <= 1:
            raise ConfigError(f"embedder hybrid: weight must be in [0, 1], found {self.weight!r}")

    def open(self, bench: Bench) -> HybridIndex:
        return HybridIndex(self, bench.order, bench.scorer(self.lexical), bench.scorer(self.dense))


class HybridIndex:
    """Both indexes opened."""

    def __init__(self, part: Hybrid, order: Ints, lexical: Scorer, dense: Scorer) -> None:
        self.part, self.order = part, order
        self.lexical, self.dense = lexical, dense
        both = lexical.facts.get("index_bytes", 0.0) + dense.facts.get("index_bytes", 0.0)
        self.facts: Mapping[str, float] = {**lexical.facts, **dense.facts, "index_bytes": both}

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        if queries.kept:
            # Cells with either side alone have the same rankings: they are taken from the cache.
            a, b = bench.ranked(self.part.lexical)[0], bench.ranked(self.part.dense)[0]
        else:
            a, b = self.lexical.search(bench, queries), self.dense.search(bench, queries)
        width = len(self.order) + 1
        codes = np.unique(np.concatenate((a.row * width + a.unit, b.row * width + b.unit)))
        row, unit = codes // width, codes % width
        scores = self._scaled(bench, queries, row, unit) if self.part.fusion == "min_max" else self._ranks(codes, a, b)
        fused = ranked_of(row, unit, scores, order=self.order, rows=len(queries), depth=bench.depth)
        declared = {"lexical": a, "dense": b}.get(self.part.confidence)
        confidence = None
        if declared is not None:
            confidence = top_scores(declared) if declared.confidence is None else declared.confidence
        return replace(
            fused,
            exhausted=fused.exhausted & a.exhausted & b.exhausted,
            confidence=confidence,
            has_confidence=declared is not None and declared.has_confidence,
            errors={**a.errors, **b.errors},
        )

    def _scaled(self, bench: Bench, queries: Queries, row: Ints, unit: Ints) -> Floats:
        left = min_max(row, self.lexical.score(bench, queries, row, unit), len(queries))
        right = min_max(row, self.dense.score(bench, queries, row, unit), len(queries))
        return (1 - self.part.weight) * left + self.part.weight * right

    def _ranks(self, codes: Ints, a: Ranked, b: Ranked) -> Floats:
        """Sums of k / (k + rank): RRF times k, so that neighbouring ranks stay apart after rounding."""
        total = np.zeros(len(codes))
        for side in (a, b):
            row = side.row
            rank = np.arange(len(row)) - side.offsets[row] + 1
            total[np.searchsorted(codes, row * (len(self.order) + 1) + side.unit)] += self.part.k / (self.part.k + rank)
        return total
