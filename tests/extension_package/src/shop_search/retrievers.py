from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from denominator.retrievers.bench import Bench
from denominator.retrievers.table import Queries, Ranked, ranked_of


def pieces(text: str, letters: int) -> frozenset[str]:
    """All runs of so many characters: "Pump", 3 → pum, ump."""
    small = text.lower()
    return frozenset(small[i : i + letters] for i in range(len(small) - letters + 1))


@dataclass(frozen=True, slots=True)
class LetterRuns:
    """Ranks chunks by the share of the question's letter runs that they hold: it forgives typing errors."""

    letters: int = 3

    def open(self, bench: Bench) -> LetterIndex:
        return LetterIndex(self.letters, bench)


class LetterIndex:
    """What `open` made: it answers all questions, or one of them, with the best `bench.depth` chunks."""

    def __init__(self, letters: int, bench: Bench) -> None:
        self.letters = letters
        self.chunks = [pieces(bench.table.indexed(i), letters) for i in range(len(bench.table))]
        self.facts = {"index_bytes": float(sum(len(chunk) * letters for chunk in self.chunks))}

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        rows, chunks, scores = [], [], []
        for row, question in enumerate(queries.texts):
            asked = pieces(question, self.letters)
            for i, held in enumerate(self.chunks):
                if common := len(asked & held):
                    rows.append(row)
                    chunks.append(i)
                    scores.append(common / len(asked))
        return ranked_of(
            np.array(rows, np.int64),
            np.array(chunks, np.int64),
            np.array(scores, np.float64),
            order=bench.order,
            rows=len(queries),
            depth=bench.depth,
        )
