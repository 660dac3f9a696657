"""Exact cosine search with the same bits for any block size, number of questions and number of threads.

A float32 matrix product differs in its last bits when its shape or the threads change, so it only proposes: whatever
it scores within an error bound of the last place is scored again, one pair at a time, by a float64 dot product of
fixed shape, rounded to six decimals, and ordered by score and id. The bound is a proof, not a margin of luck: with
unit vectors of d dimensions the product is off by at most (d + 2)·2⁻²³, so nothing that belongs to the first K is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from denominator.errors import MeasurementError, StageError
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import DECIMALS, Queries, Ranked, best_first, ranked_of, rounded
from denominator.types import Floats, Ints

Vectors = npt.NDArray[np.float32]
CHUNKS_PER_BLOCK = 16_384
QUESTIONS_PER_BLOCK = 512
NUMBERS_PER_BLOCK = 4_194_304


def unit_vectors(vectors: npt.NDArray[Any], what: str) -> Vectors:
    """Rows scaled to length 1 in float32; an all-zero row stays zero. Raises StageError for NaN or infinity."""
    wide = np.asarray(vectors, np.float64)
    bad = np.flatnonzero(~np.isfinite(wide).all(axis=1))
    if len(bad):
        raise StageError(f"the embedder gave NaN or infinite numbers for {what} {int(bad[0])} ({len(bad)} in all)")
    length = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
    return np.divide(wide, length, out=np.zeros_like(wide), where=length > 0).astype(np.float32)


def pair_scores(questions: Vectors, chunks: Vectors, row: Ints, unit: Ints) -> Floats:
    """Cosine of each (row, unit) pair in float64, every sum of the same shape, rounded to six decimals."""
    scores = np.empty(len(row))
    step = max(1, NUMBERS_PER_BLOCK // max(1, questions.shape[1]))
    for a in range(0, len(row), step):
        q = questions[row[a : a + step]].astype(np.float64)
        q *= chunks[unit[a : a + step]]
        scores[a : a + step] = np.add.reduce(q, axis=1)
    return rounded(scores)


def search(
    questions: Vectors,
    chunks: Vectors,
    order: Ints,
    depth: int,
    *,
    chunks_per_block: int = CHUNKS_PER_BLOCK,
    questions_per_block: int = QUESTIONS_PER_BLOCK,
) -> Ranked:
    """The first `depth` chunks of every question by cosine, ties by id. A zero question vector finds nothing.

    Memory is bounded by the two block sizes and rows × depth, never by rows × chunks.
    Raises `bad_k` for a depth below 1.
    """
    if depth < 1:
        raise MeasurementError("bad_k", [str(depth)], "the depth must be at least 1")
    n, d = len(chunks), questions.shape[1]
    slack = 2 * (d + 2) * 2.0**-23 + 10.0**-DECIMALS
    alive = np.flatnonzero(np.any(questions != 0, axis=1))
    rows, units, scores = [], [], []
    for a in range(0, len(alive), questions_per_block):
        block = alive[a : a + questions_per_block]
        row, unit, score = _search_block(questions[block], chunks, order, depth, slack=slack, size=chunks_per_block)
        rows.append(block[row])
        units.append(unit)
        scores.append(score)
    return ranked_of(
        np.concatenate(rows) if rows else np.empty(0, np.int64),
        np.concatenate(units) if units else np.empty(0, np.int64),
        np.concatenate(scores) if scores else np.empty(0),
        order=order,
        rows=len(questions),
        depth=depth,
        exhausted=np.full(len(questions), n <= depth),
    )


def _search_block(
    questions: Vectors, chunks: Vectors, order: Ints, depth: int, *, slack: float, size: int
) -> tuple[Ints, Ints, Floats]:
    m = len(questions)
    row, unit, score = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    floor = np.full(m, -np.inf)
    for a in range(0, len(chunks), size):
        part = np.asarray(chunks[a : a + size])
        product = questions @ part.T
        level = floor
        # Where too many pass (in the first block everything does), only the first `depth` of this block can count.
        if len(part) > depth and (a == 0 or np.count_nonzero(product >= _cast(level)) > 4 * depth * m):
            last = np.partition(product, len(part) - depth, axis=1)[:, len(part) - depth]
            level = np.maximum(floor, last - slack)
        new_row, new_unit = np.nonzero(product >= _cast(level))
        if not len(new_row):
            continue
        new_score = pair_scores(questions, part, new_row, new_unit)
        row = np.concatenate((row, new_row))
        unit = np.concatenate((unit, new_unit + a))
        score = np.concatenate((score, new_score))
        place = best_first(row, unit, score, order)
        counts = np.bincount(row, minlength=m)
        first = np.cumsum(counts) - counts
        place = place[np.arange(len(place)) - first[row[place]] < depth]
        row, unit, score = row[place], unit[place], score[place]
        counts = np.minimum(counts, depth)
        full = counts == depth
        floor[full] = score[np.cumsum(counts)[full] - 1] - slack
    return row, unit, score


def _cast(level: Floats) -> Vectors:
    """As a float32 column; what rounding may add is well within the slack."""
    return level[:, None].astype(np.float32)


@dataclass(slots=True, eq=False)
class DenseIndex:
    """An opened set of unit vectors; `embed` turns questions into unit vectors. Confidence is the top cosine."""

    vectors: Vectors
    order: Ints
    embed: Callable[[Bench, Queries], Vectors]
    facts: Mapping[str, float] = field(default_factory=dict)

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        return search(self.embed(bench, queries), self.vectors, self.order, bench.depth)

    def score(self, bench: Bench, queries: Queries, row: Ints, unit: Ints) -> Floats:
        return pair_scores(self.embed(bench, queries), self.vectors, row, unit)
