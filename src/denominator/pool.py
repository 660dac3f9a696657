"""The passages that `denominator label` offers, and the retrievers that find them.

Passages are whole sentences, few enough to be read on a screen. A retriever's own chunks may be larger or cut
otherwise: what it found is shown as the passage inside it that fits the question best, so that nothing on screen says
which chunker made it, and what several find is one passage.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from denominator import labelling
from denominator.corpus import by_id, in_order
from denominator.errors import ConfigError
from denominator.labelling import Candidate
from denominator.phrases import primary
from denominator.types import Dataset, Document, Hit

if TYPE_CHECKING:
    from denominator.cache import Cache
    from denominator.pipeline import Cell
    from denominator.retrievers.bench import Bench, FirstStage, Retriever, Scorer

TOP = 4
DEPTH = 50
PASSAGE = 96
"""Words of a passage at most."""
STEMMERS = {
    "ar": "arabic", "da": "danish", "de": "german", "el": "greek", "en": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "hu": "hungarian", "it": "italian", "nl": "dutch", "no": "norwegian", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sv": "swedish", "tr": "turkish",
}  # fmt: skip
_CHUNK_ID = re.compile(r"(.+)#(\d{9,})-(\d{9,})", re.S)

Place = tuple[str, int, int]
Found = Mapping[str, Mapping[str, Sequence[Place]]]
"""Retriever → question → what it found, best first: document and span, the span (0, −1) for the whole document."""
WHOLE = (0, -1)


@dataclass(slots=True)
class Pool:
    """The corpus in passages, and who proposes some of them. Built once a sitting.

    `found`: what the configured retrievers and recorded runs found for the questions; empty: `opened` propose.
    """

    bench: Bench
    opened: Mapping[str, Retriever]
    top: int
    found: Found
    of_document: Mapping[str, Sequence[int]] = field(init=False)

    def __post_init__(self) -> None:
        units = self.bench.table.units
        inside: dict[str, list[int]] = {}
        for i, d in enumerate(units.doc.tolist()):
            inside.setdefault(units.docs[d], []).append(i)
        self.of_document = inside

    @classmethod
    def build(cls, data: Dataset, cache: Cache, *, top: int = TOP, found: Found | None = None) -> Pool | None:
        """BM25 (stemmed in the language of the questions), static vectors and their hybrid; None for a blank corpus."""
        from denominator.chunkers import Sentences
        from denominator.embedders import BM25, Hybrid, Static
        from denominator.retrievers.bench import Bench
        from denominator.retrievers.table import Queries, columns_of

        documents = in_order(data.documents)
        chunker = Sentences(PASSAGE)
        columns = columns_of(documents, (chunker.chunk(d) for d in documents))
        table = columns.table(f"label:{PASSAGE}:{data.corpus_hash}", documents)
        if not len(table):
            return None
        languages = {primary(q.lang) for q in data.questions}
        stemmer = STEMMERS.get(languages.pop(), "none") if len(languages) == 1 else "none"
        lexical, dense = BM25(language=stemmer, stopwords=stemmer == "english"), Static()
        parts: dict[str, FirstStage] = {"bm25": lexical, "static": dense, "hybrid": Hybrid(lexical, dense)}
        bench = Bench(cache, table, Queries((), kept=False), DEPTH)
        return cls(bench, {name: bench.opened(part) for name, part in parts.items()}, top, found or {})

    def __len__(self) -> int:
        return len(self.bench.table)

    def candidates(self, text: str, question: str) -> tuple[Candidate, ...]:
        """The best few passages of each retriever for a question of the data set, each once, shuffled by its id."""
        if not self.found:
            return labelling.pooled(self._proposed(text), self.top, question)
        rankings = {name: self._passages(text, of.get(question, ())) for name, of in self.found.items()}
        return labelling.pooled(rankings, self.top, question)

    def searched(self, words: str, question: str) -> tuple[Candidate, ...]:
        """The same for words of a person's own. The built-in retrievers are asked: a recorded run cannot be."""
        return labelling.pooled(self._proposed(words), self.top, f"{question}/{words}", query=words)

    def _proposed(self, text: str) -> dict[str, list[Place]]:
        bench = self.bench.alone(text)
        return {
            name: [self._place(i) for i in retriever.search(bench, bench.queries).unit[: self.top].tolist()]
            for name, retriever in self.opened.items()
        }

    def _place(self, i: int) -> Place:
        units = self.bench.table.units
        return units.docs[units.doc[i]], int(units.start[i]), int(units.end[i])

    def _passages(self, text: str, places: Iterable[Place]) -> list[Place]:
        """Of each place the passage that fits the question best, as BM25 sees it (the first of equals), each once."""
        made: dict[Place, None] = {}
        for doc, start, end in places:
            if len(made) == self.top:
                break
            inside = [
                i for i in self.of_document.get(doc, ())
                if (start, end) == WHOLE or (self._place(i)[1] < end and start < self._place(i)[2])
            ]  # fmt: skip
            if inside:
                made.setdefault(self._place(inside[self._best(text, inside)]))
        return list(made)

    def _best(self, text: str, units: Sequence[int]) -> int:
        if len(units) == 1:
            return 0
        scorer: Scorer = self.opened["bm25"]  # type: ignore[assignment]
        bench = self.bench.alone(text)
        rows = np.zeros(len(units), np.int64)
        return int(np.argmax(scorer.score(bench, bench.queries, rows, np.array(units, np.int64))))


def found_by_cells(cells: Iterable[Cell], data: Dataset, cache: Cache) -> Found:
    """What each cell of a grid ranks first for each question, by the cell's name. Questions that failed have nothing.

    Cells of one name (of two experiments, which no name says) are numbered in their order: `name`, `name (2)` …
    Errors: whatever the parts raise for the whole cell (a setting, an index that cannot be built).
    """
    from denominator.pipeline import ranking_of

    made: dict[str, dict[str, list[Place]]] = {}
    seen: Counter[str] = Counter()
    for cell in cells:
        ids, ranked, table = ranking_of(cell, data, cache)
        units = table.units
        of: dict[str, list[Place]] = {}
        for i, question in enumerate(ids):
            best = ranked.unit[ranked.offsets[i] : ranked.offsets[i + 1]][:DEPTH].tolist()
            places = [(units.docs[units.doc[u]], int(units.start[u]), int(units.end[u])) for u in best]
            of[question] = [p if p[1] >= 0 else (p[0], *WHOLE) for p in places]
        seen[cell.name] += 1
        made[cell.name if seen[cell.name] == 1 else f"{cell.name} ({seen[cell.name]})"] = of
    return made


def found_by_run(path: str, data: Dataset) -> Found:
    """What a recorded run found, by the file's name. Ids are documents, our chunk ids, or come with `start` and `end`.

    Errors: `InputError` of its reader; `ConfigError` when it has none of the questions, or none of the documents.
    """
    from denominator.ranking import order_of
    from denominator.readers.runs import read_run

    results, _ = read_run(path)
    documents = by_id(data.documents)
    questions = [q.id for q in data.questions if q.id in results]
    if not questions:
        raise ConfigError(f"--run {path}: none of its {len(results)} questions is one of this data set, by id")
    of = {q: [p for h in order_of(results[q].hits) if (p := _place_of(h, documents)) is not None] for q in questions}
    if not any(of.values()):
        some = next((h.id for r in results.values() for h in r.hits), None)
        raise ConfigError(
            f"--run {path}: none of its hits (such as {some!r}) is a document of this corpus; ids are those of "
            "documents, of chunks ({document}#{start}-{end}), or a document with start and end"
        )
    return {Path(path).name: of}


def _place_of(hit: Hit, documents: Mapping[str, Document]) -> Place | None:
    if hit.doc in documents:
        return (hit.doc, hit.start, hit.end) if hit.start is not None and hit.end is not None else (hit.doc, *WHOLE)
    match = _CHUNK_ID.fullmatch(hit.id)
    return (match[1], int(match[2]), int(match[3])) if match and match[1] in documents else None
