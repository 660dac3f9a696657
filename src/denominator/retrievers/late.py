"""Late interaction over static token vectors: each token of a question looks for its closest token of a chunk.

The score is Σ idf·max cosine over the question's tokens, divided by Σ idf; idf = ln(1 + (N − df + ½)/(df + ½)) over the
chunks. Token vectors are rounded to 12 bits, so that every sum in the product of tables is a whole number below 2²⁴
and exact in float32: the same bits for any block size and number of threads, whether a chunk is scored alone, in a pool
or with the whole corpus.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench
from denominator.retrievers.static import DIMENSIONS, Bags, chunk_bags, static_model
from denominator.retrievers.table import Queries, Ranked, ranked_of, rounded
from denominator.retrievers.threads import threads_limited
from denominator.types import Floats, Int32s, Ints

POOL_TOKENS = 6_000_000
"""Pools are scored together until their chunks have so many tokens."""
SCORES_PER_BLOCK = 8_000_000
TOKENS_PER_BLOCK = 256


def check_dimensions(who: str, dimensions: object) -> None:
    """Raises ConfigError for what the token vectors do not have."""
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= DIMENSIONS:
        raise ConfigError(f"{who}: dimensions must be 1 to {DIMENSIONS}, found {dimensions!r}")


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """MaxSim over static token vectors against every chunk; the work grows with questions × tokens of the corpus.

    A question without tokens finds nothing, and a chunk without tokens is never found. Confidence is the top score.
    """

    dimensions: int = DIMENSIONS
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_dimensions("embedder late_interaction", self.dimensions)

    def identity(self) -> str:
        return static_model().identity

    def open(self, bench: Bench) -> LateIndex:
        return LateIndex(self.dimensions, bench)


class LateIndex:
    """The tokens of all chunks, opened."""

    def __init__(self, dimensions: int, bench: Bench) -> None:
        self.dimensions, self.order = dimensions, bench.order
        self.corpus = chunk_tokens(bench)
        bags = self.corpus.bags
        size = bags.offsets.nbytes + bags.tokens.nbytes + 2 * dimensions * len(self.corpus.vocabulary)
        self.facts: Mapping[str, float] = {"index_bytes": float(size)}
        space = token_space(bench, dimensions)
        place = np.full(space.size, -1, np.int64)
        place[self.corpus.vocabulary] = np.arange(len(self.corpus.vocabulary))
        self.filled = np.flatnonzero(np.diff(bags.offsets))
        self.columns = place[bags.tokens]
        self.starts = np.asarray(bags.offsets[:-1][self.filled])
        self.vocabulary = space.vectors(self.corpus.vocabulary).T
        self.held = self.columns.nbytes + self.vocabulary.nbytes

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        space, corpus, bags = token_space(bench, self.dimensions), self.corpus, static_model().bags(queries.texts)
        n, filled = len(corpus.bags), self.filled
        weights = corpus.idf(bags.tokens.astype(np.int64)) * bags.counts
        rows: list[Ints] = []
        units: list[Ints] = []
        scores: list[Floats] = []
        exhausted = np.ones(len(queries), np.bool_)
        step = max(1, SCORES_PER_BLOCK // max(1, n))
        for a in range(0, len(queries) if len(filled) else 0, step):
            b = min(a + step, len(queries))
            mine = slice(int(bags.offsets[a]), int(bags.offsets[b]))
            owner = np.repeat(np.arange(b - a), np.diff(bags.offsets[a : b + 1]))
            total = self._totals(space, owner, bags.tokens[mine].astype(np.int64), weights[mine])
            sums = np.bincount(owner, weights=weights[mine], minlength=b - a)
            for i in np.flatnonzero(sums > 0).tolist():
                found = rounded(total[i] / (space.scale**2 * sums[i]))
                keep = np.arange(len(filled))
                if len(filled) > bench.depth:
                    exhausted[a + i] = False
                    # Everything that ties with the last place stays; the tie rule decides below.
                    last = np.partition(found, len(found) - bench.depth)[len(found) - bench.depth]
                    keep = np.flatnonzero(found >= last)
                rows.append(np.full(len(keep), a + i))
                units.append(filled[keep])
                scores.append(found[keep])
        return ranked_of(
            np.concatenate(rows) if rows else np.empty(0, np.int64),
            np.concatenate(units) if units else np.empty(0, np.int64),
            np.concatenate(scores) if scores else np.empty(0),
            order=self.order,
            rows=len(queries),
            depth=bench.depth,
            exhausted=exhausted,
        )

    def _totals(self, space: TokenSpace, owner: Ints, tokens: Ints, weights: Floats) -> Floats:
        """Σ idf·max of every question of a block with every filled chunk; tokens ascending, so sums keep one order."""
        total = np.zeros((int(owner[-1]) + 1 if len(owner) else 0, len(self.starts)))
        by_token = np.argsort(tokens, kind="stable")
        distinct, first = np.unique(tokens[by_token], return_index=True)
        ends = np.append(first[1:], len(tokens))
        for a in range(0, len(distinct), TOKENS_PER_BLOCK):
            table = space.vectors(distinct[a : a + TOKENS_PER_BLOCK]) @ self.vocabulary
            for j, line in enumerate(table, a):
                best = np.maximum.reduceat(line.take(self.columns), self.starts)
                for at in by_token[first[j] : ends[j]].tolist():
                    total[owner[at]] += weights[at] * best
        return total

    def score(self, bench: Bench, queries: Queries, row: Ints, unit: Ints) -> Floats:
        place = np.argsort(row, kind="stable")
        offsets = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=len(queries))))).astype(np.int64)
        scores = np.empty(len(row))
        scores[place] = pool_scores(bench, queries, offsets, unit[place].astype(np.int32), self.dimensions)
        return rounded(scores)


def pool_scores(bench: Bench, queries: Queries, offsets: Ints, unit: Int32s, dimensions: int) -> Floats:
    """Scores of the chunks `unit[offsets[i]:offsets[i+1]]` with question i; 0 where either has no token."""
    space, corpus = token_space(bench, dimensions), chunk_tokens(bench)
    bags = static_model().bags(queries.texts)
    vocabulary = corpus.vocabulary
    if len(queries) == 1:  # a pool's own tokens give the same numbers as those of the whole corpus: sums are exact
        vocabulary = np.flatnonzero(np.bincount(corpus.tokens(unit)[0], minlength=space.size))
    columns = space.vectors(vocabulary).T
    place = np.full(space.size, -1, np.int64)
    place[vocabulary] = np.arange(len(vocabulary))
    scores = np.zeros(len(unit))
    pools: list[Pool] = []
    held = 0
    for i in range(len(queries)):
        a, b = int(offsets[i]), int(offsets[i + 1])
        tokens = bags.tokens[bags.offsets[i] : bags.offsets[i + 1]].astype(np.int64)
        found, starts, filled = corpus.tokens(unit[a:b])
        if len(tokens) and len(found):
            weights = corpus.idf(tokens) * bags.counts[bags.offsets[i] : bags.offsets[i + 1]]
            pools.append(Pool(tokens, weights, place[found], starts, a + filled))
            held += len(found)
        if held > POOL_TOKENS or i == len(queries) - 1:
            # One thread: products are small beside what is gathered from them, and other cells want the cores too.
            with threads_limited(1) if len(queries) > 1 else contextlib.nullcontext():
                _fill(scores, pools, space, columns)
            pools, held = [], 0
    return scores


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """A question's tokens with their weights, and the tokens of its chunks: as columns, where each chunk begins."""

    tokens: Ints
    weights: Floats
    columns: Ints
    starts: Ints
    filled: Ints


def _fill(scores: Floats, pools: Sequence[Pool], space: TokenSpace, columns: npt.NDArray[np.float32]) -> None:
    """Writes the scores of these pools. Each distinct token's row of similarities is made once and used by all."""
    totals = [np.zeros(len(pool.starts)) for pool in pools]
    tokens = np.concatenate([pool.tokens for pool in pools]) if pools else np.empty(0, np.int64)
    owner = np.repeat(np.arange(len(pools)), [len(pool.tokens) for pool in pools])
    weights = np.concatenate([pool.weights for pool in pools]) if pools else np.empty(0)
    by_token = np.argsort(tokens, kind="stable")
    distinct, first = np.unique(tokens[by_token], return_index=True)
    edges = np.append(first, len(tokens)).tolist()
    for a in range(0, len(distinct), TOKENS_PER_BLOCK):
        table = space.vectors(distinct[a : a + TOKENS_PER_BLOCK]) @ columns
        for j, line in enumerate(table, a):
            # A question's tokens come in ascending order, in float64: the order of its sum never changes.
            for at in by_token[edges[j] : edges[j + 1]].tolist():
                pool = pools[owner[at]]
                totals[owner[at]] += weights[at] * np.maximum.reduceat(line.take(pool.columns), pool.starts)
    for pool, total in zip(pools, totals, strict=True):
        scores[pool.filled] = total / (space.scale**2 * pool.weights.sum())


def token_space(bench: Bench, dimensions: int) -> TokenSpace:
    return bench.cache.once(f"tokens:{dimensions}", lambda: TokenSpace(dimensions), lambda made: made.nbytes)


def chunk_tokens(bench: Bench) -> ChunkTokens:
    return bench.cache.once(
        f"maxsim:{bench.table.key}", lambda: ChunkTokens(chunk_bags(bench)), lambda made: made.nbytes
    )


def exact_scale(dimensions: int) -> float:
    """Unit vectors times this, rounded, have exact products in float32.

    A rounded vector is at most ½·√d longer than the scale; squared it must stay below 2²⁴.
    """
    return float(4096.0 - np.ceil(0.5 * np.sqrt(dimensions)) - 1)


class TokenSpace:
    """Token vectors scaled to length 1 and rounded to whole numbers, made as they are asked for."""

    def __init__(self, dimensions: int) -> None:
        self.source = static_model().table[:, :dimensions]
        self.size = len(self.source)
        self.scale = exact_scale(dimensions)
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
