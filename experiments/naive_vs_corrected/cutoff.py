"""A first stage with a similarity cut-off: hits below it are not returned, so an unsure search returns nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from denominator.embedders import Onnx, Static
from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench, FirstStage, Retriever
from denominator.retrievers.table import Queries, Ranked, top_scores


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Exact cosine search with `first` vectors; hits with a similarity below `at` are left out. None: no cut-off."""

    first: Literal["static", "onnx"] = "static"
    at: float | None = None
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.first not in ("static", "onnx"):
            raise ConfigError(f"embedder cut: first must be static or onnx, found {self.first!r}")

    def open(self, bench: Bench) -> CutoffIndex:
        inner: FirstStage = Static() if self.first == "static" else Onnx()
        return CutoffIndex(self.at, inner, bench.opened(inner))


class CutoffIndex:
    """The opened index behind the cut-off."""

    def __init__(self, at: float | None, part: FirstStage, inner: Retriever) -> None:
        self.at, self.part, self.inner = at, part, inner
        self.facts = inner.facts

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        ranked = bench.ranked(self.part)[0] if queries.kept else self.inner.search(bench, queries)
        if self.at is None:
            return ranked
        keep = ranked.scores >= self.at
        before = np.concatenate(([0], np.cumsum(keep)))[ranked.offsets]
        cut = replace(
            ranked,
            offsets=before.astype(np.int64),
            unit=ranked.unit[keep],
            scores=ranked.scores[keep],
            # A ranking that the cut-off ended has nothing more to give.
            exhausted=ranked.exhausted | (np.diff(before) < np.diff(ranked.offsets)),
        )
        return replace(cut, confidence=top_scores(cut))
