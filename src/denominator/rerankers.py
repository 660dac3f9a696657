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
from denominator.retrievers.own import function_of
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
        cache, kept = bench.cache, bench.queries.kept
        space = cache.once(f"tokens:{self.dimensions}", lambda: TokenSpace(self.dimensions), lambda made: made.nbytes)
        corpus = cache.once(
            f"maxsim:{bench.table.key}", lambda: ChunkTokens(chunk_bags(bench)), lambda made: made.nbytes
        )
        bags = static_model().bags(bench.queries.texts)
        wanted = np.unique(bags.tokens).astype(np.int64)
        known = None
        if kept and len(wanted) * len(corpus.vocabulary) <= TABLE_NUMBERS:
            key = f"maxsim:{self.dimensions}:{bench.queries.key}"
            known = cache.once(key, lambda: Similarities(space, wanted), lambda _: 4 * TABLE_NUMBERS)
            known.cover(corpus.vocabulary)
        scores = np.zeros(len(ranked.unit))
        for i in range(len(ranked)):
            a, b = ranked.offsets[i], ranked.offsets[i + 1]
            tokens = bags.tokens[bags.offsets[i] : bags.offsets[i + 1]].astype(np.int64)
            if a == b or not len(tokens):
                continue
            found, starts, filled = corpus.tokens(ranked.unit[a:b])
            if not len(found):
                continue
            # A pool's own tokens give the same numbers as the table for everything: the sums are exact.
            table = known or Similarities(space, tokens)
            if known is None:
                table.cover(np.flatnonzero(np.bincount(found, minlength=space.size)))
            best = np.maximum.reduceat(table.rows(tokens).take(table.place[found], axis=1), starts, axis=1)
            weights = corpus.idf(tokens) * bags.counts[bags.offsets[i] : bags.offsets[i + 1]]
            # Row after row in float64: the order of the sum never changes.
            total = np.zeros(best.shape[1])
            for weight, line in zip(weights, best, strict=True):
                total += weight * line
            scores[a + filled] = total / (space.scale**2 * weights.sum())
        return replace(resorted(ranked, scores, bench.order), confidence=None, has_confidence=True)


class TokenSpace:
    """Token vectors scaled to length 1 and rounded to whole numbers, made as they are asked for."""

    def __init__(self, dimensions: int) -> None:
        self.source = static_model().table[:, :dimensions]
        self.size = len(self.source)
        # A rounded vector is at most ½·√d longer than `scale`; squared it must stay below 2²⁴.
        self.scale = 4096.0 - np.ceil(0.5 * np.sqrt(dimensions)) - 1
        self.made = np.zeros(self.size, np.bool_)
        self.all = np.zeros((self.size, dimensions), np.float32)
        self.nbytes = self.all.nbytes

    def vectors(self, tokens: Ints) -> npt.NDArray[np.float32]:
        new = tokens[~self.made[tokens]]
        if len(new):
            wide = self.source[new].astype(np.float64)
            length = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
            unit = np.divide(wide, length, out=np.zeros_like(wide), where=length > 0)
            self.all[new] = np.rint(unit * self.scale)
            self.made[new] = True
        return self.all[tokens]


class Similarities:
    """Cosine × scale² of some tokens (rows, ascending) with others (columns, in the order in which they came)."""

    def __init__(self, space: TokenSpace, wanted: Ints) -> None:
        self.space, self.wanted = space, wanted
        self.table = np.empty((len(wanted), 0), np.float32)
        self.place = np.full(space.size, -1, np.int32)

    def cover(self, vocabulary: Ints) -> None:
        """Adds the columns that are missing. Chunkers share most of a corpus's tokens."""
        new = vocabulary[self.place[vocabulary] < 0]
        if len(new):
            self.place[new] = self.table.shape[1] + np.arange(len(new))
            more = self.space.vectors(self.wanted) @ self.space.vectors(new).T
            self.table = np.concatenate((self.table, more), axis=1) if self.table.size else more

    def rows(self, tokens: Ints) -> npt.NDArray[np.float32]:
        return self.table[np.searchsorted(self.wanted, tokens)]


class ChunkTokens:
    """The tokens of each chunk of a corpus, and in how many chunks each occurs."""

    def __init__(self, bags: Bags) -> None:
        self.bags = bags
        self.frequency = np.bincount(bags.tokens, minlength=len(static_model().table))
        self.vocabulary = np.flatnonzero(self.frequency)
        self.nbytes = bags.tokens.nbytes + self.frequency.nbytes + self.vocabulary.nbytes

    def idf(self, tokens: Ints) -> Floats:
        frequency = self.frequency[tokens].astype(np.float64)
        return np.log1p((len(self.bags) - frequency + 0.5) / (frequency + 0.5))

    def tokens(self, units: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.uint16], Ints, Ints]:
        """The tokens of these chunks one after the other, where each chunk begins, and which chunks have any."""
        start, size = self.bags.offsets[units], self.bags.offsets[units + 1] - self.bags.offsets[units]
        filled = np.flatnonzero(size)
        start, size = start[filled], size[filled]
        first = np.asarray(np.cumsum(size) - size, np.int64)
        place = np.repeat(start - first, size) + np.arange(int(size.sum()))
        return self.bags.tokens[place], first, filled


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
