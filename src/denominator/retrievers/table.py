"""Chunks, questions and rankings in columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from denominator.corpus import names_of
from denominator.errors import StageError
from denominator.fingerprint import sha
from denominator.types import Bools, Chunk, Document, Floats, Int32s, Ints, Run, Units, chunk_id

NO_TEXT = "the question has no text"
BLOCK = 65_536
CHARACTERS = 1 << 20
"""Characters of documents whose tokens are counted at once."""
DECIMALS = 6
"""Scores are rounded so far before they are compared: two machines, blocks or thread counts then agree."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """All chunks of a corpus, ordered by document id and position. `key` stands for the content in cache keys.

    `own[i]` is the id and text of a chunk that is not the plain slice of its document (unanchored, or a user's id);
    `headers[i]` is sent before the text. `tokens[i]` counts the chunk as sent, header included (regex-v1).
    `small`: the units that a first stage searches in place of the chunks; unit j belongs to chunk `parent[j]`.
    """

    key: str
    documents: Sequence[Document]
    units: Units
    tokens: Int32s
    headers: Mapping[int, str] = field(default_factory=dict)
    own: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    small: ChunkTable | None = None
    parent: Int32s | None = None

    def __len__(self) -> int:
        return len(self.units)

    def chunk(self, i: int) -> Chunk:
        """The chunk as its chunker gave it."""
        start, end = int(self.units.start[i]), int(self.units.end[i])
        header = self.headers.get(i, "")
        text = self.sent(i)[len(header) :]
        anchored = start >= 0
        doc = self.units.docs[self.units.doc[i]]
        return Chunk(self.units.ids[i], doc, text, start if anchored else None, end if anchored else None, header)

    def sent(self, i: int) -> str:
        """Header and text, as a generator would get them."""
        if i in self.own:
            return self.headers.get(i, "") + self.own[i][1]
        document = self.documents[int(self.units.doc[i])]
        text: str = document.text[int(self.units.start[i]) : int(self.units.end[i])]
        return self.headers.get(i, "") + text

    def indexed(self, i: int) -> str:
        """What is searched: the document's title goes first where there is one (offsets never refer to it)."""
        title = self.documents[self.units.doc[i]].title
        return f"{title}\n{self.sent(i)}" if title else self.sent(i)

    def batches(self, size: int = 4096) -> Iterable[list[str]]:
        """The indexed texts in order, `size` at a time: a large corpus is never held twice."""
        for first in range(0, len(self), size):
            yield [self.indexed(i) for i in range(first, min(first + size, len(self)))]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What the chunk stage stores. See `ChunkTable`."""

    doc: Int32s
    start: Ints
    end: Ints
    header_tokens: Int32s
    tokens: Int32s
    headers: Mapping[int, str]
    own: Mapping[int, tuple[str, str]]

    def table(self, key: str, documents: Sequence[Document]) -> ChunkTable:
        names = names_of(documents)
        ids: list[str] = []
        for a in range(0, len(self.doc), BLOCK):  # a column as Python numbers would be larger than the ids
            doc, start, end = (c[a : a + BLOCK].tolist() for c in (self.doc, self.start, self.end))
            places = enumerate(zip(doc, start, end, strict=True), a)
            ids += [self.own[i][0] if i in self.own else chunk_id(names[d], b, z) for i, (d, b, z) in places]
        if len(set(ids)) != len(ids):
            seen: set[str] = set()
            twice = next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise StageError(f"two chunks have the id {twice!r}; ids of chunks must be distinct in the whole corpus")
        unanchored = self.start < 0
        units = Units(
            ids=tuple(ids),
            docs=names,
            doc=self.doc,
            start=self.start,
            end=self.end,
            header_tokens=np.where(unanchored, 0, self.header_tokens).astype(np.int32),
            tokens=np.where(unanchored, self.tokens, -1).astype(np.int32),
        )
        return ChunkTable(key, documents, units, self.tokens, self.headers, self.own)


def columns_of(documents: Sequence[Document], chunked: Iterable[Sequence[Chunk]]) -> Columns:
    """Columns of the chunks of each document, in the order of the documents."""
    from denominator import tokens

    doc, start, end, header_tokens = array("i"), array("q"), array("q"), array("i")
    counts: list[Int32s] = []
    headers: dict[int, str] = {}
    own: dict[int, tuple[str, str]] = {}
    texts: list[str] = []  # documents whose tokens are not counted yet, laid end to end
    base = array("q")  # for each of their chunks, where its document begins
    size = 0

    def count() -> None:
        if len(base):
            at = np.array(base, np.int64)
            spans = np.array([start[-len(base) :], end[-len(base) :]], np.int64) + at
            counts.append(_span_tokens("\n".join(texts), spans[0], spans[1]))

    for d, (document, chunks) in enumerate(zip(documents, chunked, strict=True)):
        if size > CHARACTERS:
            count()
            texts, base, size = [], array("q"), 0
        for chunk in chunks:
            i = len(doc)
            anchored = chunk.start is not None and chunk.end is not None
            doc.append(d)
            start.append(chunk.start if chunk.start is not None and anchored else -1)
            end.append(chunk.end if chunk.end is not None and anchored else -1)
            header_tokens.append(tokens.count(chunk.header) if chunk.header else 0)
            if chunk.header:
                headers[i] = chunk.header
            if not anchored or chunk.id != chunk_id(document.id, start[i], end[i]):
                own[i] = (chunk.id, chunk.text)
            base.append(size)
        texts.append(document.text)
        size += len(document.text) + 1
    count()
    total = np.concatenate(counts) if counts else np.empty(0, np.int32)
    for i, (_, text) in own.items():
        if start[i] < 0:
            total[i] = tokens.count(text)
    headers_of = np.array(header_tokens, np.int32)
    return Columns(
        np.array(doc, np.int32),
        np.array(start, np.int64),
        np.array(end, np.int64),
        headers_of,
        (total + headers_of).astype(np.int32),
        headers,
        own,
    )


def _span_tokens(text: str, start: Ints, end: Ints) -> Int32s:
    """Tokens of each slice: those that begin before its end and end after its start (a cut token counts)."""
    from denominator.tokens import SINGLE, SPACE, WORD, code_points, ends_mask, kinds

    kind = kinds(code_points(text))
    before = np.append(np.uint8(SPACE), kind[:-1])
    begins = np.flatnonzero((kind == SINGLE) | ((kind == WORD) & (before != WORD)))
    ends = np.flatnonzero(ends_mask(kind)) + 1
    return (np.searchsorted(begins, end, "left") - np.searchsorted(ends, start, "right")).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Texts sent to a retriever, row by row. `kept = False`: computed afresh, for measuring latency.

    `ids` of the questions are there for results that were recorded by id; what is searched depends on the texts alone.
    """

    texts: tuple[str, ...]
    kept: bool = True
    key: str = field(init=False, default="")
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kept:
            object.__setattr__(self, "key", sha(list(self.texts)))

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """A ranking for each row of `Queries`: rows `offsets[i]:offsets[i+1]`, in canonical order, scores rounded.

    `confidence` holds NaN where a question has none; None as a whole: the top score says it. `errors` maps a row to
    what went wrong there (that row is empty). `facts` are figures about the ranking for the record (tokens, money).
    """

    offsets: Ints
    unit: Int32s
    scores: Floats
    exhausted: Bools
    depth: int
    confidence: Floats | None = None
    has_confidence: bool = True
    errors: Mapping[int, str] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def row(self) -> Ints:
        """The question's row of every hit."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def one(self, i: int) -> Ranked:
        """The ranking of a single row."""
        a, b = self.offsets[i], self.offsets[i + 1]
        return replace(
            self,
            offsets=np.array([0, b - a]),
            unit=self.unit[a:b],
            scores=self.scores[a:b],
            exhausted=self.exhausted[i : i + 1],
            confidence=None if self.confidence is None else self.confidence[i : i + 1],
            errors={0: self.errors[i]} if i in self.errors else {},
        )

    def run(self, question_ids: Sequence[str], units: Units) -> Run:
        """As a run over those questions; failed rows become its errors."""
        good = [i for i in range(len(self)) if i not in self.errors]
        lengths = np.diff(self.offsets)[good]
        return Run(
            question_ids=tuple(question_ids[i] for i in good),
            offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            unit=np.asarray(self.unit, np.int32),
            scores=np.asarray(self.scores, np.float64),
            units=units,
            exhausted=np.asarray(self.exhausted)[good],
            depth=self.depth,
            confidence=None if self.confidence is None else np.asarray(self.confidence, np.float64)[good],
            has_confidence=self.has_confidence,
            errors={question_ids[i]: why for i, why in sorted(self.errors.items())},
        )


def rounded(scores: Floats) -> Floats:
    """To six decimals, and no negative zero (it would print differently)."""
    return np.round(scores, DECIMALS) + 0.0


def best_first(row: Ints, unit: Ints, scores: Floats, order: Ints) -> Ints:
    """Positions sorted by row, then score descending, then id ascending (`order[unit]` is the rank of the id)."""
    return np.lexsort((order[unit], -scores, row))


def ranked_of(
    row: Ints, unit: Ints, scores: Floats, *, order: Ints, rows: int, depth: int, exhausted: Bools | None = None
) -> Ranked:
    """A ranking from (row, unit, score) triples in any order: rounded, sorted, cut to `depth`.

    A row is exhausted when it held no more than `depth`, unless `exhausted` says it.
    """
    scores = rounded(scores)
    place = best_first(row, unit, scores, order)
    row = row[place]
    counts = np.bincount(row, minlength=rows)
    first = np.cumsum(counts) - counts
    keep = np.arange(len(row)) - first[row] < depth
    place = place[keep]
    return Ranked(
        offsets=np.concatenate(([0], np.cumsum(np.minimum(counts, depth)))).astype(np.int64),
        unit=unit[place].astype(np.int32),
        scores=scores[place],
        exhausted=counts <= depth if exhausted is None else exhausted,
        depth=depth,
    )


def resorted(ranked: Ranked, scores: Floats, order: Ints) -> Ranked:
    """The same pool in the order of other scores."""
    scores = rounded(scores)
    place = best_first(ranked.row, ranked.unit.astype(np.int64), scores, order)
    return replace(ranked, unit=ranked.unit[place], scores=scores[place])


def top_scores(ranked: Ranked) -> Floats:
    """The best score of each row, NaN without a hit."""
    top = np.full(len(ranked), np.nan)
    some = np.diff(ranked.offsets) > 0
    if len(ranked.unit):
        top[some] = np.maximum.reduceat(ranked.scores, ranked.offsets[:-1][some])
    return top


def min_max(row: Ints, scores: Floats, rows: int) -> Floats:
    """Scores of each row scaled to [0, 1]; a row whose scores are all equal gives 0."""
    low = np.full(rows, np.inf)
    high = np.full(rows, -np.inf)
    np.minimum.at(low, row, scores)
    np.maximum.at(high, row, scores)
    width = (high - low)[row]
    scaled: Floats = np.divide(scores - low[row], width, out=np.zeros_like(scores), where=width > 0)
    return scaled
