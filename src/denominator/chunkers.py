"""Ways to cut a document into chunks with exact offsets.

A chunker is a frozen dataclass with one method, `chunk(document)`. Offsets are code points into `document.text`,
half-open, and every chunk is a slice of the text: nothing is ever looked up by searching for it. A user's own class
works the same way by `_target_`, without inheriting from anything; `checked_chunks` holds it to the same promise.

A *word* is a run of non-blank characters, except that a CJK character is a word of its own (scripts that are
written without blanks would otherwise give one word per paragraph).
"""

from __future__ import annotations

import re
from collections.abc import Callable as Function
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from denominator.errors import ConfigError, StageError
from denominator.types import Chunk, Document, Floats, chunk_id

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")
# A sentence ends at .!?… (and closing quotes) before a blank that is not followed by a lower-case letter, at a CJK
# full stop, or at an empty line. "e.g. this" therefore stays in one piece, "Dr. Smith" does not.
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s+[^\sa-z])|[。！？]+[」』”’）]*|(?=\n[^\S\n]*\n)")
HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(\S.*?)[ \t#]*$")
FENCE = re.compile(r"^ {0,3}(```|~~~)")

Span = tuple[int, int]


class Chunker(Protocol):
    """What the pipeline needs.

    Optional: `anchored = False`, chunks may have no offsets; `small_chunks(document, chunks)`, the first stage searches
    other units than those that it gives back (see `SmallToBig`); `cacheable = False`, chunks are not kept on disk.
    """

    def chunk(self, document: Document) -> Sequence[Chunk]: ...


def check_size(name: str, size: object, overlap: object = 0) -> None:
    """Refuses a window that could not advance. Raises ConfigError that names both values.

    >>> check_size("fixed", 50, 10)
    >>> check_size("fixed", 50, 60)
    Traceback (most recent call last):
    denominator.errors.ConfigError: chunker fixed: overlap 60 must be below size 50
    """
    for what, value in (("size", size), ("overlap", overlap)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"chunker {name}: {what} must be a whole number, found {value!r}")
    assert isinstance(size, int)
    assert isinstance(overlap, int)
    if size < 1:
        raise ConfigError(f"chunker {name}: size must be at least 1, found size {size} (overlap {overlap})")
    if overlap < 0:
        raise ConfigError(f"chunker {name}: overlap must be at least 0, found overlap {overlap} (size {size})")
    if overlap >= size:
        raise ConfigError(f"chunker {name}: overlap {overlap} must be below size {size}")


def word_spans(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """Code-point spans of the words between `start` and `end`.

    >>> word_spans("two 数据")
    [(0, 3), (4, 5), (5, 6)]
    """
    return [match.span() for match in WORD.finditer(text, start, len(text) if end is None else end)]


def count_words(text: str) -> int:
    return len(text.split()) if text.isascii() else len(WORD.findall(text))


def windows(units: Sequence[Span], size: int, overlap: int) -> list[Span]:
    """Windows of `size` units that advance by size − overlap; the last one ends with the last unit.

    >>> windows([(0, 1), (2, 3), (4, 5), (6, 7)], size=2, overlap=1)
    [(0, 3), (2, 5), (4, 7)]
    >>> windows([], 2, 1)
    []
    """
    spans: list[Span] = []
    n = len(units)
    for first in range(0, n, size - overlap):
        last = min(first + size, n)
        spans.append((units[first][0], units[last - 1][1]))
        if last == n:
            break
    return spans


def sentence_spans(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """Sentences without the blanks around them; everything that is not blank lies in exactly one.

    >>> text = "It holds 3.5 l, e.g. water. Fill it! 数据。終"
    >>> [text[a:b] for a, b in sentence_spans(text)]
    ['It holds 3.5 l, e.g. water.', 'Fill it!', '数据。', '終']
    """
    stop = len(text) if end is None else end
    cuts = [match.end() for match in SENTENCE_END.finditer(text, start, stop)]
    spans = (stripped(text, a, b) for a, b in zip([start, *cuts], [*cuts, stop], strict=True))
    return [span for span in spans if span is not None]


def stripped(text: str, start: int, end: int) -> Span | None:
    """The span without blanks at its ends; None when nothing is left."""
    piece = text[start:end]
    left = len(piece) - len(piece.lstrip())
    right = len(piece.rstrip())
    return (start + left, start + right) if right > left else None


def packed(text: str, sentences: Iterable[Span], size: int) -> Iterable[Span]:
    """As many whole sentences as fit into `size` words; a longer one is cut into windows of `size` words.

    >>> list(packed("A b c. D e. F", [(0, 6), (7, 11), (12, 13)], 4))
    [(0, 6), (7, 13)]
    """
    start, end, words = 0, 0, 0
    for a, b in sentences:
        n = count_words(text[a:b])
        if words and words + n > size:
            yield start, end
            words = 0
        if n > size:
            yield from windows(word_spans(text, a, b), size, 0)
            continue
        start, end, words = (start if words else a), b, words + n
    if words:
        yield start, end


@dataclass(frozen=True, slots=True)
class Fixed:
    """Windows of `size` words that share `overlap` words with their neighbour."""

    size: int = 256
    overlap: int = 0
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("fixed", self.size, self.overlap)

    def chunk(self, document: Document) -> list[Chunk]:
        return slices(document, windows(word_spans(document.text), self.size, self.overlap))


@dataclass(frozen=True, slots=True)
class FixedChars:
    """Windows of `size` characters that share `overlap` characters; blank windows are left out."""

    size: int = 1000
    overlap: int = 0
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("fixed_chars", self.size, self.overlap)

    def chunk(self, document: Document) -> list[Chunk]:
        text, spans = document.text, []
        for start in range(0, len(text), self.size - self.overlap):
            end = min(start + self.size, len(text))
            spans.append((start, end))
            if end == len(text):
                break
        return slices(document, [(a, b) for a, b in spans if not text[a:b].isspace()])


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """Windows of `size` regex-v1 tokens (the tokens that the budget level counts) that share `overlap` tokens."""

    size: int = 256
    overlap: int = 0
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("fixed_tokens", self.size, self.overlap)

    def chunk(self, document: Document) -> list[Chunk]:
        from denominator.tokens import token_ends

        text, ends = document.text, token_ends(document.text)
        spans = windows(list(zip([0, *ends], ends, strict=False)), self.size, self.overlap)
        return slices(document, [(b - len(text[a:b].lstrip()), b) for a, b in spans])


@dataclass(frozen=True, slots=True)
class Sentences:
    """Whole sentences packed up to `size` words; a longer sentence is cut into windows of `size` words."""

    size: int = 128
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("sentences", self.size)

    def chunk(self, document: Document) -> list[Chunk]:
        return slices(document, packed(document.text, sentence_spans(document.text), self.size))


@dataclass(frozen=True, slots=True)
class Recursive:
    """Cuts at the strongest border that there is (empty lines, lines, sentences, clauses), up to `size` words."""

    size: int = 256
    overlap: int = 0
    code: ClassVar[int] = 1
    library: ClassVar[str] = "semchunk"

    def __post_init__(self) -> None:
        check_size("recursive", self.size, self.overlap)

    def chunk(self, document: Document) -> list[Chunk]:
        from semchunk.semchunk import chunk as cut

        if not document.text.strip():
            return []
        # Its own memory of counts is unbounded and shared by the process, so it stays off.
        found: Any = cut(
            document.text, self.size, count_words, memoize=False, offsets=True, overlap=self.overlap or None
        )
        return slices(document, found[1])


@dataclass(frozen=True, slots=True)
class Semantic:
    """Cuts between sentences where the subject changes: where the vectors of neighbouring sentences are least alike.

    Each border is judged by the cosine of the static vectors of the `window` sentences on either side. A border is a
    cut when its cosine is below the `percentile` of the document's borders (20: the fifth of the borders that are least
    alike), unless the piece so far has fewer than `least` words. Pieces over `size` words are packed from whole
    sentences as `Sentences` does it. Cosines are rounded, so the same sentence over and over is never cut by subject.
    """

    percentile: float = 20.0
    size: int = 256
    least: int = 32
    window: int = 2
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("semantic", self.size)
        check_size("semantic (window)", self.window)
        for what, value, low, high in (("percentile", self.percentile, 0, 100), ("least", self.least, 0, self.size)):
            if isinstance(value, bool) or not low <= value <= high:
                raise ConfigError(f"chunker semantic: {what} must be {low} to {high}, found {value!r}")

    def identity(self) -> str:
        from denominator.retrievers.static import static_model

        return static_model().identity

    def chunk(self, document: Document) -> list[Chunk]:
        text = document.text
        spans = sentence_spans(text)
        if not spans:
            return []
        alike = self.cosines(text, spans)
        level = np.percentile(alike, self.percentile) if len(alike) else 0.0
        pieces: list[list[Span]] = [[spans[0]]]
        words = count_words(text[slice(*spans[0])])
        for span, cosine in zip(spans[1:], alike.tolist(), strict=True):
            if cosine < level and words >= self.least:
                pieces.append([])
                words = 0
            pieces[-1].append(span)
            words += count_words(text[slice(*span)])
        return slices(document, (s for piece in pieces for s in packed(text, piece, self.size)))

    def cosines(self, text: str, spans: Sequence[Span]) -> Floats:
        """Of the sentences before and after each border, rounded to six decimals; 0 beside a side without tokens."""
        from denominator.retrievers.static import DIMENSIONS, static_model
        from denominator.retrievers.table import rounded

        model, n = static_model(), len(spans)
        sides = [(max(0, i - self.window), i) for i in range(1, n)]
        sides += [(i, min(n, i + self.window)) for i in range(1, n)]
        texts = [" ".join(text[slice(*span)] for span in spans[a:b]) for a, b in sides]
        if not texts:
            return np.empty(0)
        wide = model.vectors(model.bags(texts), DIMENSIONS, "sentence").astype(np.float64)
        return rounded(np.add.reduce(wide[: n - 1] * wide[n - 1 :], axis=1))


@dataclass(frozen=True, slots=True)
class SmallToBig:
    """Searches small units and gives back the larger chunks that hold them.

    `big` cuts the document into the chunks that are ranked, sent and measured; `small` cuts each of these again into
    the units that the first stage searches. A chunk scores what its best unit scores. Rerankers see the big chunks.
    A unit that lies in two overlapping chunks counts for the first.
    """

    small: Chunker = field(default_factory=lambda: Sentences(32))
    big: Chunker = field(default_factory=lambda: Sentences(256))
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("small", "big"):
            part = getattr(self, name)
            if not hasattr(part, "chunk"):
                raise ConfigError(f"chunker small_to_big: {name} must be a chunker, found {part!r}")
            if hasattr(part, "small_chunks"):
                raise ConfigError(f"chunker small_to_big: {name} cannot be a {type(part).__name__} itself")
        if not getattr(self.small, "anchored", True):
            raise ConfigError("chunker small_to_big: small must give offsets, since it cuts inside the big chunks")

    @property
    def anchored(self) -> bool:
        return bool(getattr(self.big, "anchored", True))

    @property
    def cacheable(self) -> bool:
        return bool(getattr(self.small, "cacheable", True) and getattr(self.big, "cacheable", True))

    @property
    def library(self) -> str | None:
        found = [getattr(part, "library", None) for part in (self.small, self.big)]
        return next((name for name in found if name), None)

    def chunk(self, document: Document) -> list[Chunk]:
        return list(self.big.chunk(document))

    def small_chunks(self, document: Document, chunks: Sequence[Chunk]) -> list[tuple[Chunk, int]]:
        """Units with the position of the chunk that each belongs to; the chunk's header goes before the unit's own.

        A chunk in which `small` finds nothing, or that has no offsets, is its own unit.
        """
        found: list[tuple[Chunk, int]] = []
        seen: set[str] = set()
        for i, chunk in enumerate(chunks):
            if chunk.start is None or chunk.end is None:
                units = [chunk]
            else:
                inner = Document(document.id, chunk.text, document.title)
                units = [
                    Chunk.of(document, chunk.start + unit.start, chunk.start + unit.end, chunk.header + unit.header)
                    for unit in checked_chunks(self.small, inner)
                    if unit.start is not None and unit.end is not None
                ] or [chunk]
            new = [unit for unit in units if unit.id not in seen]
            seen.update(unit.id for unit in new)
            found += [(unit, i) for unit in new]
        return found


@dataclass(frozen=True, slots=True)
class Callable:
    """A user's own function, or a splitter of another library: `function(text)` gives the chunks of a text.

    Each is `(start, end)`; or a text with its place, `(text, start)` or `(text, start, end)`, a mapping or an object
    with `text` (or `page_content`), `start` (or `start_index`, `start_char_idx`) and perhaps `end`. A text must be what
    stands there, or the run stops and names the first chunk for which it is not. Nothing is looked up: a bare text has
    no place and passes only with `anchored: false`, as a chunk that covers nothing at span level.

    Chunks are kept on disk only under a declared `version`, since nobody can see inside the function.
    """

    function: Function[..., Any] | str
    name: str = "own"
    version: str | None = None
    anchored: bool = True
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        from denominator.retrievers.own import function_of

        object.__setattr__(self, "function", function_of(self.function, f"chunker {self.name}"))

    @property
    def cacheable(self) -> bool:
        return self.version is not None

    def chunk(self, document: Document) -> list[Chunk]:
        assert not isinstance(self.function, str)
        return [self._one(document, i, item) for i, item in enumerate(self.function(document.text))]

    def _one(self, document: Document, i: int, item: Any) -> Chunk:
        text, start, end = _placed(item)
        if start is None:
            if text is None:
                raise StageError(f"chunker {self.name}, document {document.id!r}, chunk {i}: found {item!r}")
            return Chunk(f"{document.id}#{i:09d}", document.id, text)
        if end is None:
            end = start + len(text or "")
        if text is None:
            text = document.text[start:end]
        return Chunk(chunk_id(document.id, start, end), document.id, text, start, end)


def _placed(item: Any) -> tuple[str | None, int | None, int | None]:
    """Text, start and end of what a splitter gives; None for what it does not say."""
    if isinstance(item, str):
        return item, None, None
    if isinstance(item, Sequence):
        values: list[Any] = list(item)
        text = values.pop(0) if values and isinstance(values[0], str) else None
        whole = [int(v) for v in values if isinstance(v, (int, np.integer)) and not isinstance(v, bool)]
        if len(whole) != len(values) or len(values) > 2 or (text is None and len(values) != 2):
            return None, None, None
        return text, *(whole[0] if whole else None, whole[1] if len(whole) > 1 else None)

    def get(*names: str) -> Any:
        for source in (item, getattr(item, "metadata", None)):
            for name in names:
                found = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
                if found is not None:
                    return found
        return None

    return (
        get("text", "page_content"),
        get("start", "start_index", "start_char_idx"),
        get("end", "end_index", "end_char_idx"),
    )


@dataclass(frozen=True, slots=True)
class WholeDocument:
    """One chunk for each document that is not blank: `chunker: none`."""

    code: ClassVar[int] = 1

    def chunk(self, document: Document) -> list[Chunk]:
        return slices(document, [(0, len(document.text))] if document.text.strip() else [])


@dataclass(frozen=True, slots=True)
class Headings:
    """Markdown sections; one longer than `size` words is cut into windows. `path`: headings above as header."""

    size: int = 256
    overlap: int = 0
    path: bool = False
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("headings", self.size, self.overlap)

    def chunk(self, document: Document) -> list[Chunk]:
        chunks: list[Chunk] = []
        for start, end, above, own in sections(document.text):
            spans = windows(word_spans(document.text, start, end), self.size, self.overlap)
            for i, (a, b) in enumerate(spans):
                # The first piece holds its own heading line; the others would lose it.
                titles = above if i == 0 else (*above, *own)
                header = " > ".join(titles) + "\n" if self.path and titles else ""
                chunks.append(Chunk.of(document, a, b, header))
        return chunks


def sections(text: str) -> list[tuple[int, int, tuple[str, ...], tuple[str, ...]]]:
    r"""`(start, end, headings above, own heading)` of each Markdown section; fenced code holds no headings.

    >>> [(a, b) for a, b, _, _ in sections("intro\n# A\nx\n## B\ny")]
    [(0, 6), (6, 12), (12, 18)]
    """
    cuts: list[tuple[int, int, str]] = [(0, 0, "")]
    position, fence = 0, ""
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        mark = FENCE.match(bare)
        if mark:
            fence = "" if fence == mark[1] else fence or mark[1]
        elif not fence and (heading := HEADING.match(bare)):
            cuts.append((position, len(heading[1]), heading[2]))
        position += len(line)
    found: list[tuple[int, int, tuple[str, ...], tuple[str, ...]]] = []
    above: list[tuple[int, str]] = []
    for (start, depth, title), (end, _, _) in zip(cuts, [*cuts[1:], (len(text), 0, "")], strict=True):
        above = [(d, t) for d, t in above if d < depth]
        own: tuple[str, ...] = (title,) if title else ()
        if text[start:end].strip():
            found.append((start, end, tuple(t for _, t in above), own))
        if title:
            above.append((depth, title))
    return found


def slices(document: Document, spans: Iterable[Span]) -> list[Chunk]:
    """Chunks of those spans. A slice of the text is exact by construction."""
    return [Chunk.of(document, start, end) for start, end in spans]


def checked_chunks(chunker: Chunker, document: Document) -> list[Chunk]:
    """The chunks of a document, held to the promise that offsets reproduce the text.

    Raises StageError naming the first offending chunk. Chunks without offsets pass only where the chunker says
    `anchored = False`. Ids must be distinct and belong to the document.
    """
    name = type(chunker).__qualname__
    anchored = bool(getattr(chunker, "anchored", True))
    text, chunks, seen, last = document.text, list(chunker.chunk(document)), set[str](), -1

    def refuse(position: int, chunk: Chunk, why: str) -> StageError:
        return StageError(f"chunker {name}, document {document.id!r}, chunk {position} ({chunk.id!r}): {why}")

    for i, chunk in enumerate(chunks):
        if chunk.doc != document.id:
            raise refuse(i, chunk, f"belongs to document {chunk.doc!r}")
        if not chunk.id or chunk.id in seen:
            raise refuse(i, chunk, "its id is empty or was given before")
        seen.add(chunk.id)
        if chunk.start is None or chunk.end is None:
            if anchored:
                raise refuse(i, chunk, "has no offsets; a chunker that rewrites text declares `anchored = False`")
            if not chunk.text.strip():
                raise refuse(i, chunk, "is blank")
            continue
        start, end = chunk.start, chunk.end
        if not 0 <= start < end <= len(text):
            raise refuse(i, chunk, f"offsets [{start}, {end}) are outside the text of {len(text)} characters")
        if text[start:end] != chunk.text:
            raise refuse(
                i, chunk, f"text[{start}:{end}] is {text[start:end][:60]!r} but the chunk is {chunk.text[:60]!r}"
            )
        if start <= last and anchored:
            raise refuse(i, chunk, f"starts at {start}, not after the chunk before it, which starts at {last}")
        last = start
    return chunks
