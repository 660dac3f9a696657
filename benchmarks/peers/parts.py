"""What every tool in `benchmarks/peers.py` is given, so that all of them evaluate the same cells.

Chunks are cut by denominator's chunkers and texts become vectors by denominator's static model, called as any user's
function would be. A peer asks one question at a time, so what can be kept between questions (vectors of chunks and
questions, BM25 weights, token bags) is made once per chunking and kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from denominator.chunkers import Fixed, Recursive, Sentences
from denominator.retrievers.lexical import Terms
from denominator.retrievers.static import static_model
from denominator.types import Document

Floats = npt.NDArray[Any]
CHUNKERS: dict[str, Any] = {
    "fixed_128": Fixed(128, 32),
    "fixed_256": Fixed(256, 64),
    "sentences_128": Sentences(128),
    "recursive_256": Recursive(256),
}
POOL = 50
"""Chunks that a reranker sees: context-grid's default, set in the other tools too."""


def spans(chunker: str, name: str, text: str) -> list[tuple[int, int]]:
    return [(c.start or 0, c.end or 0) for c in CHUNKERS[chunker].chunk(Document(name, text))]


def embed(texts: Sequence[str]) -> Floats:
    """Unit vectors of 256 dimensions."""
    model = static_model()
    return model.vectors(model.bags(texts), 256, "text")


@lru_cache(maxsize=4096)
def embed_one(text: str) -> Floats:
    """A question's vector: made once in a process, for all cells."""
    return embed([text])[0]


@lru_cache(maxsize=4096)
def _tokens(text: str) -> tuple[Floats, Floats]:
    bag = static_model().bags([text])
    return bag.tokens.astype(np.int64), bag.counts.astype(np.float64)


def best(scores: Floats, depth: int) -> Floats:
    """Places of the highest scores, highest first."""
    if len(scores) > depth:
        top = np.argpartition(-scores, depth - 1)[:depth]
        return top[np.argsort(-scores[top], kind="stable")]
    return np.argsort(-scores, kind="stable")


class Corpus:
    """The chunks of one chunker: first stages and rerankers for one question at a time."""

    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s

        self.terms = Terms("english", True)
        numbers: dict[str, int] = {}
        rows = [[numbers.setdefault(t, len(numbers)) for t in self.terms(text)] for text in texts]
        self.numbers = numbers
        self.lexical = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        self.lexical.index((rows, dict(numbers)), create_empty_token=False, show_progress=False)
        self.size = len(texts)
        self.vectors = embed(texts)
        self.bags = static_model().bags(texts)
        frequency = np.bincount(self.bags.tokens, minlength=len(static_model().table))
        self.idf = np.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
        table = np.asarray(static_model().table, np.float32)
        norm = np.sqrt((table * table).sum(axis=1, keepdims=True))
        self.table = np.divide(table, norm, out=np.zeros_like(table), where=norm > 0)

    def bm25(self, question: str) -> Floats:
        known = [self.numbers[t] for t in self.terms(question) if t in self.numbers]
        return self.lexical.get_scores_from_ids(known) if known else np.zeros(self.size, np.float32)

    def dense(self, question: str) -> Floats:
        return self.vectors @ embed_one(question)

    def first(self, stage: str, question: str, depth: int) -> Floats:
        """Places of the first `depth` chunks."""
        if stage in ("bm25", "static"):
            return best(self.bm25(question) if stage == "bm25" else self.dense(question), depth)
        lexical, dense = self.bm25(question), self.dense(question)
        fused: dict[int, float] = {}
        if stage == "hybrid":
            for scores in (lexical, dense):
                for rank, place in enumerate(best(scores, 100).tolist(), 1):
                    fused[place] = fused.get(place, 0.0) + 1 / (60 + rank)
        else:
            for scores in (lexical, dense):
                places = best(scores, 100)
                for place, value in zip(places.tolist(), _min_max(scores[places]).tolist(), strict=True):
                    fused[place] = fused.get(place, 0.0) + value / 2
        return np.array(sorted(fused, key=lambda place: -fused[place])[:depth], np.int64)

    def rerank(self, how: str, question: str, places: Floats) -> Floats:
        """The same places in another order."""
        if how == "none" or not len(places):
            return places
        if how == "mix":
            scores = _min_max(self.bm25(question)[places]) + _min_max(self.vectors[places] @ embed_one(question))
        else:
            scores = self._maxsim(question, places)
        return places[np.argsort(-scores, kind="stable")]

    def _maxsim(self, question: str, places: Floats) -> Floats:
        tokens, counts = _tokens(question)
        if not len(tokens):
            return np.zeros(len(places))
        offsets = self.bags.offsets
        found = [self.bags.tokens[offsets[p] : offsets[p + 1]] for p in places.tolist()]
        used, columns = np.unique(np.concatenate(found), return_inverse=True)
        alike = (self.table[tokens] @ self.table[used].T)[:, columns]
        starts = np.cumsum([0, *map(len, found[:-1])])
        weights = self.idf[tokens] * counts
        return weights @ np.maximum.reduceat(alike, starts, axis=1) / max(weights.sum(), math.ulp(1.0))


def _min_max(values: Floats) -> Floats:
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.ones(len(values))


def numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(names)}
