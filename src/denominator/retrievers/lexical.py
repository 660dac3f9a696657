"""BM25 by bm25s, in Lucene's variant, with Snowball stemming.

bm25s weighs the index; the product of sparse matrices that follows gives only the chunks that share a term with the
question, so nothing is padded with chunks of score 0. Sums run in the order of the terms in float64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from denominator.cache import Array, Entry, Payload, describe
from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import Queries, Ranked, ranked_of, rounded, top_scores
from denominator.types import Floats, Ints

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
# A term is a run of word characters, or a pair of neighbouring CJK characters. Single letters and digits count
# ("vitamin D"), as in Lucene's analysis that published figures rest on.
TERM = re.compile(rf"(?=([{CJK}]{{2}}))|((?:(?![{CJK}])\w)+)")
PLAIN = re.compile(r"\w+", re.ASCII)
POSTINGS_PER_BLOCK = 4_000_000


@dataclass(frozen=True, slots=True)
class BM25:
    """Lexical ranking. `language`: a Snowball name for the stemmer (`porter` too) or `none`; stop words are English.

    Confidence is the top score divided by the number of the question's terms (scores grow with them).
    """

    k1: float = 1.5
    b: float = 0.75
    language: str = "english"
    stopwords: bool = True
    code: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not self.k1 >= 0 or not 0 <= self.b <= 1:
            raise ConfigError(f"embedder bm25: k1 must be at least 0 and b in [0, 1], found k1 {self.k1}, b {self.b}")
        if self.language != "none":
            import Stemmer

            if self.language not in Stemmer.algorithms():
                known = ", ".join(["none", *sorted(Stemmer.algorithms())])
                raise ConfigError(f"embedder bm25: language {self.language!r} is not one of {known}")

    def open(self, bench: Bench) -> LexicalIndex:
        table = bench.table

        def compute() -> Payload:
            return _index(chain.from_iterable(table.batches()), self)

        inputs = {"part": describe(self), "chunks": table.key}
        entry = bench.stage("bm25_index", inputs, compute, f"BM25 k1={self.k1} b={self.b}, {len(table)} chunks")
        facts = {"index_bytes": float(entry.array_bytes)}
        return LexicalIndex(self, bench.order, len(table), entry, facts)

    def identity(self) -> list[str]:
        return _versions()


@lru_cache(maxsize=1)
def _versions() -> list[str]:
    from importlib.metadata import version

    return [f"{name} {version(name)}" for name in ("bm25s", "PyStemmer")]


@lru_cache(maxsize=4)
def _stops(on: bool) -> frozenset[str]:
    if not on:
        return frozenset()
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)


class Terms(dict[str, str]):
    """Texts to stems; it remembers the stem of every word, "" for a stop word."""

    def __init__(self, language: str, stopwords: bool) -> None:
        super().__init__()
        self.stop = _stops(stopwords)
        self.stem: Any = None
        if language != "none":
            import Stemmer

            self.stem = Stemmer.Stemmer(language).stemWord

    def __missing__(self, word: str) -> str:
        stem: str = "" if word in self.stop else (self.stem(word) if self.stem else word)
        if len(self) < 1_000_000:
            self[word] = stem
        return stem

    def __call__(self, text: str) -> list[str]:
        lower = text.lower()
        words = PLAIN.findall(lower) if lower.isascii() else [a or b for a, b in TERM.findall(lower)]
        return list(filter(None, map(self.__getitem__, words)))


def _index(texts: Iterable[str], part: BM25) -> Payload:
    import bm25s

    terms, numbers = Terms(part.language, part.stopwords), dict[str, int]()
    rows = [[numbers.setdefault(term, len(numbers)) for term in terms(text)] for text in texts]
    if not numbers:
        empty: dict[str, Array] = {
            "data": np.empty(0, np.float32),
            "indices": np.empty(0, np.int32),
            "indptr": np.zeros(1, np.int64),
        }
        return Payload(empty, {"terms": []})
    library = bm25s.BM25(k1=part.k1, b=part.b, method="lucene")
    library.index((rows, dict(numbers)), create_empty_token=False, show_progress=False)
    arrays = {name: library.scores[name] for name in ("data", "indices", "indptr")}
    return Payload(arrays, {"terms": list(numbers)})


class LexicalIndex:
    """An opened BM25 index."""

    def __init__(self, part: BM25, order: Ints, chunks: int, entry: Entry, facts: Mapping[str, float]) -> None:
        from scipy.sparse import csr_matrix

        self.order, self.chunks, self.facts = order, chunks, facts
        self.asked: tuple[str, Any, Ints] | None = None
        self.numbers = {term: i for i, term in enumerate(entry.lists["terms"])}
        self.terms = Terms(part.language, part.stopwords)
        # Terms × chunks by rows is what bm25s stores as chunks × terms by columns.
        weights = (entry["data"].astype(np.float64), np.asarray(entry["indices"]), np.asarray(entry["indptr"]))
        self.weights = csr_matrix(weights, shape=(len(self.numbers), chunks))
        self.held = 16 * len(weights[0]) + 200 * len(self.numbers)

    def _questions(self, queries: Queries) -> tuple[Any, Ints]:
        """Questions × terms (how often), and how many terms each question has, unknown ones included."""
        from scipy.sparse import csr_matrix

        if self.asked is not None and queries.kept and self.asked[0] == queries.key:
            return self.asked[1], self.asked[2]
        found = [self.terms(text) for text in queries.texts]
        known = [[self.numbers[t] for t in terms if t in self.numbers] for terms in found]
        offsets = np.concatenate(([0], np.cumsum([len(k) for k in known]))).astype(np.int64)
        columns = np.fromiter(chain.from_iterable(known), np.int64, offsets[-1])
        matrix = csr_matrix((np.ones(len(columns)), columns, offsets), shape=(len(queries), len(self.numbers)))
        matrix.sum_duplicates()
        lengths = np.array([len(f) for f in found], np.int64)
        if queries.kept:
            self.asked = (queries.key, matrix, lengths)
        return matrix, lengths

    def terms_of(self, queries: Queries) -> Floats:
        """How many terms each question has, at least 1: what a top score is divided by to compare across questions."""
        return np.maximum(self._questions(queries)[1], 1).astype(np.float64)

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        depth = bench.depth
        matrix, lengths = self._questions(queries)
        rows, units, scores = [], [], []
        exhausted = np.ones(len(queries), np.bool_)
        for a, b in self._blocks(matrix):
            product = matrix[a:b] @ self.weights
            offsets, data = product.indptr, rounded(product.data)
            for i in range(b - a):
                at = slice(offsets[i], offsets[i + 1])
                mine, found = data[at], product.indices[at]
                if len(mine) > depth:
                    exhausted[a + i] = False
                    # Everything that ties with the last place stays; the tie rule decides below.
                    last = np.partition(mine, len(mine) - depth)[len(mine) - depth]
                    mine, found = mine[mine >= last], found[mine >= last]
                rows.append(np.full(len(mine), a + i))
                units.append(found)
                scores.append(mine)
        ranked = ranked_of(
            np.concatenate(rows) if rows else np.empty(0, np.int64),
            np.concatenate(units).astype(np.int64) if units else np.empty(0, np.int64),
            np.concatenate(scores) if scores else np.empty(0),
            order=self.order,
            rows=len(queries),
            depth=depth,
            exhausted=exhausted,
        )
        return replace(ranked, confidence=top_scores(ranked) / np.maximum(lengths, 1))

    def _blocks(self, matrix: Any) -> list[tuple[int, int]]:
        """Rows whose products fit in memory: few at a time where terms are common."""
        if not len(self.numbers):
            return [(0, matrix.shape[0])]
        work = np.diff(self.weights.indptr)[matrix.indices]
        cost = np.add.reduceat(np.append(work, 0), matrix.indptr[:-1]) * (np.diff(matrix.indptr) > 0)
        edges, held = [0], 0
        for i, c in enumerate(cost.tolist()):
            if held and held + c > POSTINGS_PER_BLOCK:
                edges.append(i)
                held = 0
            held += c
        return list(zip(edges, [*edges[1:], matrix.shape[0]], strict=True))

    def score(self, bench: Bench, queries: Queries, row: Ints, unit: Ints) -> Floats:  # noqa: ARG002
        matrix, _ = self._questions(queries)
        scores = np.zeros(len(row))
        place = np.argsort(row, kind="stable")
        edges = np.searchsorted(row[place], np.arange(len(queries) + 1)).tolist()
        every = np.zeros(self.chunks)  # one question's scores of all chunks, filled and cleared in turn
        for a, b in self._blocks(matrix):
            product = matrix[a:b] @ self.weights
            for i in range(a, b):
                mine = place[edges[i] : edges[i + 1]]
                found = product.indices[product.indptr[i - a] : product.indptr[i - a + 1]]
                every[found] = product.data[product.indptr[i - a] : product.indptr[i - a + 1]]
                scores[mine] = every[unit[mine]]
                every[found] = 0.0
        return rounded(scores)
