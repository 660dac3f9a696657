"""A folder of documents (plain text, Markdown, HTML, PDF, DOCX) with questions in the native form.

A document's id is its path below the folder, with `/`. Offsets refer to the text as read: plain text and Markdown are
taken as they stand (without a byte-order mark, line ends kept), of the others as `extract` gives it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from denominator.corpus import held, texts_of
from denominator.errors import ConfigError, InputError
from denominator.readers.build import dataset
from denominator.readers.extract import MODULES, Extractor, html_text
from denominator.readers.native import read_questions, unread_note
from denominator.readers.textfiles import as_path, byte_lines, decode, one_record
from denominator.types import Dataset, Document

PLAIN = frozenset({".txt", ".text", ".md", ".markdown", ".rst"})
HTML = frozenset({".html", ".htm", ".xhtml"})
ENDINGS = PLAIN | HTML | MODULES.keys()


@dataclass(slots=True)
class Found:
    """What was seen on the way through a folder besides the documents themselves."""

    unread: Counter[str] = field(default_factory=Counter)
    hidden: list[str] = field(default_factory=list)
    extracted: Counter[tuple[str, str]] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    def notes(self) -> Iterator[str]:
        if self.extracted:
            by = ", ".join(self.extractors())
            yield f"offsets refer to extracted text (documents.jsonl of the sweep or run): {by}"
        if self.unread:
            kinds = ", ".join(f"{kind} ({n})" for kind, n in sorted(self.unread.items()))
            yield f"files of other kinds, not read: {kinds}"
        if self.hidden:
            shown = ", ".join(sorted(self.hidden)[:5]) + (", …" if len(self.hidden) > 5 else "")
            yield f"hidden, not read: {len(self.hidden)} ({shown})"
        yield from self.remarks

    def extractors(self) -> tuple[str, ...]:
        return tuple(f"{n} {ending} by {by}" for (ending, by), n in sorted(self.extracted.items()))


def _hidden(name: str) -> bool:
    return name.startswith((".", "~$"))  # the latter: what a word processor keeps while a document is open


def _check_name(path: Path) -> None:
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise InputError(
            "has a name that is not UTF-8", path=shown, expected="a name that can be an id", fix="rename it"
        ) from None


def _check_link(path: Path, folder: Path) -> None:
    if not path.is_symlink():
        return
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise InputError(
            "is a link to nothing", path=path, expected="a file", fix="mend the link or remove it"
        ) from None
    if path.is_dir():
        raise InputError(
            "is a link to a folder",
            path=path,
            found=str(target),
            expected="files and folders, whose paths are the ids",
            fix="copy the folder there, or read it by itself",
        )
    if not target.is_relative_to(folder.resolve()):
        raise InputError(
            "is a link out of the folder",
            path=path,
            found=str(target),
            expected="files inside of it",
            fix="copy the file there",
        )


def _files(folder: Path, found: Found) -> dict[str, Path]:
    """Files by their path below the folder. Errors: one that cannot be listed, a link that leads out, a bad name."""

    def refuse(error: OSError) -> None:
        raise InputError("cannot be listed", path=error.filename, found=error.strerror or str(error))

    files: dict[str, Path] = {}
    for here, below, names in os.walk(folder, onerror=refuse):
        root = Path(here)
        found.hidden += [f"{(root / name).relative_to(folder).as_posix()}/" for name in below if _hidden(name)]
        below[:] = [name for name in below if not _hidden(name)]
        for name in [*below, *names]:
            path = root / name
            identifier = path.relative_to(folder).as_posix()
            if _hidden(name):
                found.hidden.append(identifier)
                continue
            with one_record:
                _check_name(path)
                _check_link(path, folder)
                if path.is_file():
                    files[identifier] = path
                elif name in names:
                    found.unread["no ordinary file"] += 1
    return files


def _document(name: str, path: Path, extractor: Extractor, found: Found) -> Document:
    ending = path.suffix.lower()
    if ending in MODULES:
        made = extractor.read(path)
        found.extracted[ending, made.by] += 1
        found.remarks += [f"{name}: {note}" for note in made.notes]
        return Document(name, made.text)
    text = decode(b"".join(line for _, line in byte_lines(path, ends=True)), path, None)
    if ending not in HTML:
        return Document(name, text)
    text, title = html_text(text)
    if not text:
        raise InputError("has no visible text", path=path, expected="a page with text")
    found.extracted[ending, f"html.parser of Python {sys.version.split()[0]}"] += 1
    return Document(name, text, title)


def read_documents(
    folder: str | Path, *, found: Found | None = None, seconds_per_file: float = 120.0
) -> Iterator[Document]:
    """Documents in the order of their ids; what else was there, and what extracted their text, is kept in `found`.

    Errors: `InputError` for a missing folder, one without documents, a link out of it, and any file that gives no text
    (empty, undecodable, locked, damaged, scanned); `MissingExtraError` where PDF or DOCX cannot be read.
    """
    folder = as_path(folder)
    found = Found() if found is None else found
    expected = "files that end in " + ", ".join(sorted(ENDINGS))
    if not folder.is_dir():
        raise InputError("no such folder", path=folder, expected=f"a folder of {expected}")
    files = _files(folder, found)
    some = False
    with Extractor(seconds_per_file) as extractor:
        for name, path in sorted(files.items()):
            ending = path.suffix.lower()
            if ending not in ENDINGS:
                found.unread[ending or path.name] += 1
                continue
            some = True
            with one_record:
                yield _document(name, path, extractor, found)
    if not some:
        raise InputError("holds no documents", path=folder, expected=expected)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of documents, and questions about them; relative paths start at the folder of the call.

    `seconds_per_file`: how long a PDF or DOCX may take.
    """

    documents: str
    questions: str
    name: str = ""
    assume_answerable: bool = False
    cluster: str | None = None
    lang: str = "en"
    seconds_per_file: float = 120.0

    def load(self) -> Dataset:
        if not self.documents or not self.questions:
            raise ConfigError("a folder needs documents=FOLDER and questions=FILE")
        if not self.seconds_per_file > 0:
            raise ConfigError(f"seconds_per_file is {self.seconds_per_file!r}; it must be above 0")
        found = Found()
        fields: Counter[str] = Counter()
        documents = held(read_documents(self.documents, found=found, seconds_per_file=self.seconds_per_file))
        questions = tuple(
            read_questions(
                self.questions,
                texts=texts_of(documents),
                text_required=True,
                cluster=self.cluster,
                lang=self.lang,
                unread=fields,
            )
        )
        return dataset(
            documents,
            questions,
            name=self.name or as_path(self.documents).absolute().name,
            assume_answerable=self.assume_answerable,
            source=self.documents,
            notes=[*unread_note(fields), *found.notes()],
            extracted=found.extractors(),
        )
