"""Rerankers: they put a pool of candidates in another order, and see no more than the pool.

A user's own class works by `_target_` when it has `rerank(bench, ranked) -> Ranked`; a user's own function is wrapped
by `Callable`.
"""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench, FirstStage
from denominator.retrievers.late import check_dimensions, pool_scores
from denominator.retrievers.lexical import BM25
from denominator.retrievers.own import function_of
from denominator.retrievers.static import DIMENSIONS, Static, static_model
from denominator.retrievers.table import Ranked, min_max, resorted, top_scores


class Reranker(Protocol):
    """What the pipeline needs. `cacheable = False` (class attribute): results are not kept on disk."""

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked: ...


@dataclass(frozen=True, slots=True)
class NoRerank:
    """Leaves the first stage's order."""

    code: ClassVar[int] = 1
    cacheable: ClassVar[bool] = False

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:  # noqa: ARG002
        return ranked


@dataclass(frozen=True, slots=True)
class Mix:
    """Min-max mix over the pool: `weight` on the dense side, 1 − weight on BM25, whatever the first stage is.

    Mixed scores are scaled per question and say nothing across questions, so confidence stays the first stage's.
    """

    weight: float = 0.5
    lexical: FirstStage = field(default_factory=BM25)
    dense: FirstStage = field(default_factory=Static)
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not 0 <= self.weight <= 1:
            raise ConfigError(f"reranker mix: weight must be in [0, 1], found {self.weight!r}")

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        row, unit = ranked.row, ranked.unit.astype(np.int64)
        sides = [bench.scorer(part).score(bench, bench.queries, row, unit) for part in (self.lexical, self.dense)]
        left, right = (min_max(row, side, len(ranked)) for side in sides)
        mixed = resorted(ranked, (1 - self.weight) * left + self.weight * right, bench.order)
        return replace(mixed, confidence=top_scores(ranked) if ranked.confidence is None else ranked.confidence)


@dataclass(frozen=True, slots=True)
class MaxSim:
    """Late interaction over static token vectors: Σ idf·max cosine over the question's tokens, divided by Σ idf.

    idf = ln(1 + (N − df + ½)/(df + ½)) over the chunks. Being divided by Σ idf the score compares across questions, so
    the top score is the confidence. See `denominator.retrievers.late`, which is the same as a first stage.
    """

    dimensions: int = DIMENSIONS
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_dimensions("reranker maxsim", self.dimensions)

    def identity(self) -> str:
        return static_model().identity

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        scores = pool_scores(bench, bench.queries, ranked.offsets, ranked.unit, self.dimensions)
        return replace(resorted(ranked, scores, bench.order), confidence=None, has_confidence=True)


@dataclass(frozen=True, slots=True)
class Callable:
    """A user's own scores: `function(question, texts) -> scores`, one for each text as it would be sent.

    What it raises, a wrong number of scores and a score that is not finite make that question failed. Results are
    kept on disk only under a declared `version`. `confidence`: whether its scores compare across questions.
    """

    function: Function[..., Any] | str
    name: str = "own"
    version: str | None = None
    confidence: bool = True
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", function_of(self.function, f"reranker {self.name}"))

    @property
    def cacheable(self) -> bool:
        return self.version is not None

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        scores = np.zeros(len(ranked.unit))
        errors: dict[int, str] = dict(ranked.errors)
        score = function_of(self.function, self.name)
        for i in range(len(ranked)):
            a, b = ranked.offsets[i], ranked.offsets[i + 1]
            if a == b:
                continue
            texts = [bench.table.sent(unit) for unit in ranked.unit[a:b].tolist()]
            try:
                found = np.asarray(score(bench.queries.texts[i], texts), np.float64)
                if found.shape != (b - a,):
                    raise ValueError(f"{b - a} texts were given, the scores have shape {found.shape}")
                if not np.isfinite(found).all():
                    raise ValueError("a score is not a finite number")
            except Exception as error:  # whatever a user's function raises fails this question alone
                errors[i] = f"reranker {self.name}: {type(error).__name__}: {error}"
                continue
            scores[a:b] = found
        done = resorted(ranked, scores, bench.order)
        return replace(without(done, errors), confidence=None, has_confidence=self.confidence)


def without(ranked: Ranked, errors: Mapping[int, str]) -> Ranked:
    """Failed rows have no hits."""
    if not errors:
        return ranked
    row = ranked.row
    keep = ~np.isin(row, list(errors))
    counts = np.bincount(row[keep], minlength=len(ranked))
    return replace(
        ranked,
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        unit=ranked.unit[keep],
        scores=ranked.scores[keep],
        errors=dict(errors),
    )
