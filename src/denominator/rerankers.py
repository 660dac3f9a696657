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
import numpy.typing as npt

from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench, FirstStage
from denominator.retrievers.lexical import BM25
from denominator.retrievers.static import DIMENSIONS, Bags, Static, chunk_bags, static_model
from denominator.retrievers.table import Ranked, min_max, resorted, top_scores
from denominator.types import Floats, Ints

TABLE_NUMBERS = 40_000_000
"""Similarity tables up to this many numbers are kept for all questions at once, larger ones are made in blocks."""


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
    the top score is the confidence. Token vectors are rounded to 12 bits, so that every sum in the product of tables is
    a whole number below 2²⁴ and exact in float32: the same bits for any block size and number of threads.
    """

    dimensions: int = DIMENSIONS
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if isinstance(self.dimensions, bool) or not 1 <= self.dimensions <= DIMENSIONS:
            raise ConfigError(f"reranker maxsim: dimensions must be 1 to {DIMENSIONS}, found {self.dimensions!r}")

    def identity(self) -> str:
        return static_model().identity

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        corpus = bench.cache.once(
            f"maxsim:{self.dimensions}:{bench.table.key}",
            lambda: TokenTable(chunk_bags(bench), self.dimensions),
            lambda made: made.nbytes,
        )
        bags = static_model().bags(bench.queries.texts)
        scores = np.zeros(len(ranked.unit))
        wanted = np.unique(bags.tokens).astype(np.int64)
        small = bench.queries.kept and len(wanted) * len(corpus.vocabulary) <= TABLE_NUMBERS
        whole = None
        if small:
            whole = bench.cache.once(
                f"maxsim:{self.dimensions}:{bench.table.key}:{bench.queries.key}",
                lambda: corpus.similarity(wanted, corpus.vectors),
                lambda made: made.nbytes,
            )
        for i in range(len(ranked)):
            a, b = ranked.offsets[i], ranked.offsets[i + 1]
            tokens = bags.tokens[bags.offsets[i] : bags.offsets[i + 1]].astype(np.int64)
            if a == b or not len(tokens):
                continue
            weights = corpus.idf(tokens) * bags.counts[bags.offsets[i] : bags.offsets[i + 1]]
            columns, starts, filled = corpus.columns(ranked.unit[a:b])
            if whole is None:
                # Only the pool's own tokens: the sums are exact, so it makes no difference which table they come from.
                used = np.zeros(len(corpus.vocabulary), np.bool_)
                used[columns] = True
                place = (np.cumsum(used, dtype=np.int32) - 1)[columns]
                table = corpus.similarity(tokens, corpus.vectors[used])
            else:
                table, place = whole[np.searchsorted(wanted, tokens)], columns
            found = np.zeros(b - a)
            if len(columns):
                best = np.maximum.reduceat(table.take(place, axis=1), starts, axis=1)
                # Row after row in float64: the order of the sum never changes.
                total = np.zeros(best.shape[1])
                for weight, line in zip(weights, best, strict=True):
                    total += weight * line
                found[filled] = total / (corpus.scale**2 * weights.sum())
            scores[a:b] = found
        return replace(resorted(ranked, scores, bench.order), confidence=None, has_confidence=True)


class TokenTable:
    """Rounded token vectors of a corpus and the tokens of each chunk."""

    def __init__(self, bags: Bags, dimensions: int) -> None:
        self.bags, self.dimensions = bags, dimensions
        # A rounded vector is at most ½·√d longer than `scale`; squared it must stay below 2²⁴.
        self.scale = 4096.0 - np.ceil(0.5 * np.sqrt(dimensions)) - 1
        self.vocabulary, self.column = (found.astype(np.int32) for found in np.unique(bags.tokens, return_inverse=True))
        self.vectors = self._rounded(self.vocabulary)
        self.frequency = np.bincount(self.column, minlength=len(self.vocabulary))
        self.nbytes = self.vectors.nbytes + self.column.nbytes + 12 * len(self.vocabulary)

    def _rounded(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        wide = static_model().table[tokens, : self.dimensions].astype(np.float64)
        length = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
        unit = np.divide(wide, length, out=np.zeros_like(wide), where=length > 0)
        return np.rint(unit * self.scale).astype(np.float32)

    def similarity(self, tokens: Ints, vectors: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Whole numbers: cosine × scale²."""
        product: npt.NDArray[Any] = self._rounded(tokens) @ vectors.T
        return product

    def idf(self, tokens: Ints) -> Floats:
        place = np.minimum(np.searchsorted(self.vocabulary, tokens), max(len(self.vocabulary) - 1, 0))
        frequency = np.zeros(len(tokens))
        if len(self.vocabulary):
            frequency = np.where(self.vocabulary[place] == tokens, self.frequency[place], 0).astype(np.float64)
        return np.log1p((len(self.bags) - frequency + 0.5) / (frequency + 0.5))

    def columns(self, units: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], Ints, Ints]:
        """Vocabulary columns of these chunks one after the other, where each begins, and which chunks have any."""
        start, size = self.bags.offsets[units], self.bags.offsets[units + 1] - self.bags.offsets[units]
        filled = np.flatnonzero(size)
        start, size = start[filled], size[filled]
        first = np.cumsum(size) - size
        place = np.repeat(start - first, size) + np.arange(int(size.sum()))
        return self.column[place], np.asarray(first, np.int64), filled


@dataclass(frozen=True, slots=True)
class Callable:
    """A user's own scores: `function(question, texts) -> scores`, one for each text as it would be sent.

    What it raises, a wrong number of scores and a score that is not finite make that question failed. Results are
    kept on disk only under a declared `version`. `confidence`: whether its scores compare across questions.
    """

    function: Function[..., Any]
    name: str = "own"
    version: str | None = None
    confidence: bool = True
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"reranker {self.name}: function must be callable, found {self.function!r}")

    @property
    def cacheable(self) -> bool:
        return self.version is not None

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        scores = np.zeros(len(ranked.unit))
        errors: dict[int, str] = dict(ranked.errors)
        for i in range(len(ranked)):
            a, b = ranked.offsets[i], ranked.offsets[i + 1]
            if a == b:
                continue
            texts = [bench.table.sent(unit) for unit in ranked.unit[a:b].tolist()]
            try:
                found = np.asarray(self.function(bench.queries.texts[i], texts), np.float64)
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
