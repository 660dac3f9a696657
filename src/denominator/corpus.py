"""Documents of a corpus that is too large to be held as objects, and one way to look into either kind.

A small corpus is a tuple of `Document`. One that a reader streams and that has more than `BOUND` bytes is `Documents`:
ids in a list, texts and titles as UTF-8 in a temporary file that has no name, so that nothing is left behind whatever
ends the process. Both are sequences; the functions here (`in_order`, `ids_of`, `texts_of`, …) give the same for both
and never copy a large one.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, overload

import numpy as np

from denominator.errors import ConfigError
from denominator.types import Document, Ints

BOUND = 32 * 2**20
"""Bytes of documents (UTF-8, and `OBJECT` for each) above which a corpus that is read goes into a file."""
OBJECT = 256
"""What one document costs as objects beside its text and title."""
_ROWS = 4096
_READ = 1 << 20


def scratch_folder() -> Path:
    """Where temporary files of large corpora go: TMPDIR, else /var/tmp, else the system's.

    /tmp comes last because on many systems it is memory.
    """
    named = os.environ.get("TMPDIR")
    if not named and os.access("/var/tmp", os.W_OK | os.X_OK):  # noqa: S108  # opened without a name
        return Path("/var/tmp")  # noqa: S108
    return Path(named or tempfile.gettempdir())


def held(documents: Iterable[Document]) -> Sequence[Document]:
    """The documents in their order: a tuple, or `Documents` as soon as they outgrow `BOUND`. Read once, as a stream.

    A tuple stays as it is, however large: its objects are in memory already, and whoever made it may keep them.
    Raises ConfigError when the temporary file cannot be written (no room, no such folder).
    """
    if isinstance(documents, (tuple, Documents)):
        return documents
    first: list[Document] = []
    size = 0
    stream = iter(documents)
    for document in stream:
        first.append(document)
        size += _bytes(document.text) + _bytes(document.title or "") + OBJECT
        if size > BOUND:
            return Documents.of(chain(_emptied(first), stream))
    return tuple(first)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _emptied(documents: list[Document]) -> Iterator[Document]:
    documents.reverse()
    while documents:
        yield documents.pop()


class Documents(Sequence[Document]):
    """A corpus in a file without a name. An element is read and made when it is asked for; a slice is a tuple.

    Safe for several threads and after a fork: reading moves no file position. Pickled as plain documents.
    """

    __slots__ = ("_bytes", "_file", "_last", "_ordered", "_start", "_title", "ids", "lengths")

    ids: tuple[str, ...]
    lengths: Ints
    """Code points of each text."""

    def __init__(self, file: IO[bytes], ids: tuple[str, ...], columns: tuple[Ints, Ints, Ints, Ints]) -> None:
        self._file, self.ids = file, ids
        # Where a text begins, its bytes, those of the title after it (-1: none), the text's code points.
        self._start, self._bytes, self._title, self.lengths = columns
        self._last: tuple[int, Document] | None = None
        self._ordered: Documents | None = None

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Documents:
        """Writes every document as it comes."""
        folder = scratch_folder()
        ids: list[str] = []
        size, title, lengths = array("q"), array("q"), array("q")
        try:
            # One file for the life of the object: closed with it.
            file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=1 << 20)  # noqa: SIM115
        except OSError as error:
            raise _unwritten(folder, error) from error
        for document in documents:
            text = document.text.encode("utf-8", "surrogatepass")
            words = None if document.title is None else document.title.encode("utf-8", "surrogatepass")
            try:
                file.write(text)
                file.write(words or b"")
            except OSError as error:
                raise _unwritten(folder, error) from error
            ids.append(document.id)
            size.append(len(text))
            title.append(-1 if words is None else len(words))
            lengths.append(len(document.text))
        try:
            file.flush()
        except OSError as error:
            raise _unwritten(folder, error) from error
        sizes, titles = np.array(size, np.int64), np.array(title, np.int64)
        whole = sizes + np.maximum(titles, 0)
        return cls(file, tuple(ids), (np.cumsum(whole) - whole, sizes, titles, np.array(lengths, np.int64)))

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, i: int) -> Document: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[Document, ...]: ...
    def __getitem__(self, i: int | slice) -> Document | tuple[Document, ...]:
        if isinstance(i, slice):
            return tuple(self[j] for j in range(*i.indices(len(self))))
        row = int(i) + len(self) if i < 0 else int(i)
        if not 0 <= row < len(self):
            raise IndexError(f"document {i} of {len(self)}")
        last = self._last  # chunks of one document follow each other
        if last is not None and last[0] == row:
            return last[1]
        start, size, title = int(self._start[row]), int(self._bytes[row]), int(self._title[row])
        found = _document(self.ids[row], self._read(start, size + max(title, 0)), 0, size, title)
        self._last = (row, found)
        return found

    def __iter__(self) -> Iterator[Document]:
        for first in range(0, len(self), _ROWS):
            rows = slice(first, first + _ROWS)
            start, size, title = (a[rows].tolist() for a in (self._start, self._bytes, self._title))
            i = 0
            while i < len(start):  # documents that stand one after the other are read at once
                j, end = i, start[i]
                while j < len(start) and start[j] == end and (j == i or end - start[i] < _READ):
                    end += size[j] + max(title[j], 0)
                    j += 1
                raw = self._read(start[i], end - start[i])
                for k in range(i, j):
                    yield _document(self.ids[first + k], raw, start[k] - start[i], size[k], title[k])
                i = j

    def __reduce__(self) -> Any:
        return held, (tuple(self),)

    def __repr__(self) -> str:
        return f"<{len(self)} documents in a temporary file>"

    def _read(self, start: int, size: int) -> bytes:
        raw = os.pread(self._file.fileno(), size, start)
        while len(raw) < size:  # the system reads at most 2 GB at once
            more = os.pread(self._file.fileno(), size - len(raw), start + len(raw))
            if not more:
                raise OSError("the temporary file of the corpus is shorter than what was written")
            raw += more
        return raw

    def by_id(self) -> Documents:
        """The same documents in the order of their ids; itself where they already are. No text is copied."""
        if self._ordered is None:
            if all(a < b for a, b in pairwise(self.ids)):
                return self
            order = np.fromiter(sorted(range(len(self)), key=self.ids.__getitem__), np.int64, len(self))
            columns = (self._start[order], self._bytes[order], self._title[order], self.lengths[order])
            self._ordered = Documents(self._file, tuple(map(self.ids.__getitem__, order.tolist())), columns)
        return self._ordered


def _document(name: str, raw: bytes, at: int, size: int, title: int) -> Document:
    text = raw[at : at + size].decode("utf-8", "surrogatepass")
    if title < 0:
        return Document(name, text)
    return Document(name, text, raw[at + size : at + size + title].decode("utf-8", "surrogatepass"))


def _unwritten(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the texts of a large corpus go into a temporary file in {folder}, which cannot be written "
        f"({error.strerror or error}); make room there, or name another folder: TMPDIR=…"
    )


class ById(Mapping[str, Document]):
    """Documents by id without a table of them: a search in the sorted ids."""

    __slots__ = ("_documents",)

    def __init__(self, documents: Documents) -> None:
        self._documents = documents.by_id()

    def _row(self, name: object) -> int | None:
        ids = self._documents.ids
        if not isinstance(name, str):
            return None
        row = bisect_left(ids, name)
        return row if row < len(ids) and ids[row] == name else None

    def __getitem__(self, name: str) -> Document:
        row = self._row(name)
        if row is None:
            raise KeyError(name)
        return self._documents[row]

    def __contains__(self, name: object) -> bool:
        return self._row(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents.ids)

    def __len__(self) -> int:
        return len(self._documents)


class Texts(Mapping[str, str]):
    """Texts by document id, each read when it is asked for."""

    __slots__ = ("_documents",)

    def __init__(self, documents: Documents) -> None:
        self._documents = ById(documents)

    def __getitem__(self, name: str) -> str:
        return self._documents[name].text

    def __contains__(self, name: object) -> bool:
        return name in self._documents

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)


class Column(Sequence[str]):
    """The texts by position, of all documents or of some rows; each is read when it is asked for."""

    __slots__ = ("_documents", "_rows")

    def __init__(self, documents: Sequence[Document], rows: Sequence[int] | None = None) -> None:
        self._documents, self._rows = documents, range(len(documents)) if rows is None else rows

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> Column: ...
    def __getitem__(self, i: int | slice) -> str | Column:
        if isinstance(i, slice):
            return Column(self._documents, self._rows[i])
        return self._documents[self._rows[i]].text

    def __len__(self) -> int:
        return len(self._rows)


def in_order(documents: Sequence[Document]) -> Sequence[Document]:
    """Sorted by id."""
    return documents.by_id() if isinstance(documents, Documents) else tuple(sorted(documents, key=lambda d: d.id))


def names_of(documents: Sequence[Document]) -> tuple[str, ...]:
    """The ids in the order of the documents."""
    return documents.ids if isinstance(documents, Documents) else tuple(d.id for d in documents)


def ids_of(documents: Sequence[Document]) -> AbstractSet[str]:
    """The ids as a set, for asking whether one is there."""
    return ById(documents).keys() if isinstance(documents, Documents) else {d.id for d in documents}


def by_id(documents: Sequence[Document]) -> Mapping[str, Document]:
    """Documents by id."""
    return ById(documents) if isinstance(documents, Documents) else {d.id: d for d in documents}


def texts_of(documents: Sequence[Document]) -> Mapping[str, str]:
    """Texts by id."""
    return Texts(documents) if isinstance(documents, Documents) else {d.id: d.text for d in documents}


def characters(documents: Sequence[Document]) -> int:
    """Code points of all texts."""
    return int(documents.lengths.sum()) if isinstance(documents, Documents) else sum(len(d.text) for d in documents)


def in_memory(documents: Sequence[Document]) -> int:
    """About how many bytes the documents hold in memory."""
    return 128 * len(documents) if isinstance(documents, Documents) else 4 * characters(documents)
