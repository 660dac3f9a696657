"""Ways to cut a document into chunks with exact offsets.

A chunker is a frozen dataclass with one method, `chunk(document)`. Offsets are code points into `document.text`,
half-open, and every chunk is a slice of the text: nothing is ever looked up by searching for it. A user's own class
works the same way by `_target_`, without inheriting from anything; `checked_chunks` holds it to the same promise.

A *word* is a run of non-blank characters, except that a CJK character is a word of its own (scripts that are
written without blanks would otherwise give one word per paragraph).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from denominator.errors import ConfigError, StageError
from denominator.types import Chunk, Document

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")
# A sentence ends at .!?… (and closing quotes) before a blank that is not followed by a lower-case letter, at a CJK
# full stop, or at an empty line. "e.g. this" therefore stays in one piece, "Dr. Smith" does not.
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s+[^\sa-z])|[。！？]+[」』”’）]*|(?=\n[^\S\n]*\n)")
HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(\S.*?)[ \t#]*$")
FENCE = re.compile(r"^ {0,3}(```|~~~)")

Span = tuple[int, int]


class Chunker(Protocol):
    """What the pipeline needs. Optional class attribute `anchored = False`: chunks may have no offsets."""

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
        return slices(document, self._pack(document.text))

    def _pack(self, text: str) -> Iterable[Span]:
        start, end, words = 0, 0, 0
        for a, b in sentence_spans(text):
            n = count_words(text[a:b])
            if words and words + n > self.size:
                yield start, end
                words = 0
            if n > self.size:
                yield from windows(word_spans(text, a, b), self.size, 0)
                continue
            start, end, words = (start if words else a), b, words + n
        if words:
            yield start, end


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
