"""The model behind `denominator label`: what has to be asked, what an answer means, and how it is written back.

Nothing here talks to a person. `queue` says which questions are asked, `pooled` mixes candidates so that no retriever
is favoured, `runs_of` and `locate` turn what was typed into spans, `changes_of` turns a decision into fields of the
record, and `Book` is the file: it changes one line, keeps every other byte, and takes changes back.

Groups are held as JSON here (`{"document_id", "start", "end", "text"}`, `{"document_id", "whole"}` or a bare id), so
that gold that is kept is kept as it was written.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from denominator.eligibility import Evaluate, lost_evidence, state_of
from denominator.errors import InputError, MeasurementError
from denominator.fingerprint import sha
from denominator.readers.native import question_of
from denominator.readers.textfiles import Row, as_path, decode, parse_json
from denominator.types import Document, Question

DECIDED = ("answerable", "partial", "unanswerable")
PROVENANCE = "label_provenance"
_BOM = b"\xef\xbb\xbf"

Item = Any
"""One alternative as JSON: a bare document id, or an object as the native format has it."""
JsonGroup = tuple[Item, ...]

# ------------------------------------------------------------------ what is asked


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to be asked: `why` is its blocking state or the error code of its labels, or `asked by id`.

    `lost` are gold documents that the corpus lacks.
    """

    id: str
    why: str
    lost: tuple[str, ...] = ()


def queue(
    questions: Iterable[Question],
    corpus_ids: Collection[str] | None,
    *,
    evaluate: Evaluate = "retrieval",
    states: Collection[str] = (),
    ids: Collection[str] = (),
) -> tuple[Asked, ...]:
    """The questions whose labels stop a strict run, in the order of the file.

    `states` keeps those of some states only. With `ids` exactly these are asked, whatever their state.
    Empty case: everything is labelled, `()`.

    >>> queue([Question("a"), Question("b", answerability="unanswerable")], None)
    (Asked(id='a', why='unlabelled', lost=()),)
    """
    asked = []
    for question in questions:
        lost: tuple[str, ...] = ()
        try:
            why: str = state_of(question, corpus_ids, evaluate=evaluate)
            if corpus_ids is not None:
                lost = lost_evidence([question], corpus_ids).get(question.id, ())
        except MeasurementError as error:
            why = error.code
        if ids:
            if question.id in ids:
                asked.append(Asked(question.id, why if why not in DECIDED else f"asked by id, now {why}", lost))
        elif why not in DECIDED and (not states or why in states):
            asked.append(Asked(question.id, why, lost))
    return tuple(asked)


# ------------------------------------------------------------------ candidates


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that is shown. `found_by` is for the record, never on screen; `query` is what was searched by hand."""

    doc: str
    start: int
    end: int
    found_by: tuple[str, ...]
    query: str | None = None

    def as_dict(self) -> dict[str, Any]:
        made = {"document_id": self.doc, "start": self.start, "end": self.end, "found_by": list(self.found_by)}
        return made if self.query is None else made | {"query": self.query}


def pooled(
    rankings: Mapping[str, Sequence[tuple[str, int, int]]], top: int, seed: str, *, query: str | None = None
) -> tuple[Candidate, ...]:
    """The first `top` passages of every ranking, each once, in an order that only `seed` decides.

    Whole rounds are taken, so the place of a retriever in the mapping decides nothing, and the order on screen says
    neither who found a passage nor how high it stood.

    >>> a, b = ("d1", 0, 5), ("d2", 0, 5)
    >>> one = pooled({"bm25": [a, b], "static": [b, a]}, 2, "q1")
    >>> one == pooled({"static": [b, a], "bm25": [a, b]}, 2, "q1"), sorted(c.doc for c in one), one[0].found_by
    (True, ['d1', 'd2'], ('bm25', 'static'))
    """
    found: dict[tuple[str, int, int], list[str]] = {}
    for name in sorted(rankings):
        for passage in rankings[name][:top]:
            found.setdefault(passage, []).append(name)
    every = sorted(found)
    order = np.random.default_rng(int(sha(["label", seed])[:16], 16)).permutation(len(every))
    return tuple(
        Candidate(doc, start, end, tuple(found[doc, start, end]), query)
        for doc, start, end in (every[i] for i in order)
    )


# ------------------------------------------------------------------ what was typed


_RUN = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?")


def runs_of(typed: str, most: int) -> list[tuple[int, int]] | None:
    """`2`, `2-3` or `1,3-4` as inclusive runs from 1; None where the text is no list of numbers.

    Error: ValueError with the reason for a number outside of 1 to `most` or a run backwards.

    >>> runs_of("1,3-4", 5), runs_of("Keep the receipt.", 5)
    ([(1, 1), (3, 4)], None)
    """
    runs = []
    for part in typed.split(","):
        match = _RUN.fullmatch(part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= most:
            raise ValueError(f"{part.strip()}: the numbers are 1 to {most}{', the smaller first' if most > 1 else ''}")
        runs.append((first, last))
    return runs


def locate(text: str, typed: str, start: int, end: int) -> tuple[int, int]:
    """Where the typed words stand: exactly once in the passage, or not there and exactly once in the document.

    A run of white space matches any other (a document's line ends cannot be typed). Error: ValueError with the reason.

    >>> locate("One two. One three.", "One  three", 0, 8)
    (9, 18)
    >>> locate("One two. One three.", "One", 0, 19)
    Traceback (most recent call last):
    ValueError: these words stand 2 times in the passage; type more of them
    """
    words = typed.split()
    if not words:
        raise ValueError("nothing was typed")
    blank = r"\s+"
    pattern = re.compile(f"(?=({blank.join(map(re.escape, words))}))")  # a look-ahead: occurrences may overlap
    inside = [m.span(1) for m in pattern.finditer(text, start, end)]
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise ValueError(f"these words stand {len(inside)} times in the passage; type more of them")
    anywhere = [m.span(1) for m in pattern.finditer(text)]
    if len(anywhere) == 1:
        return anywhere[0]
    if anywhere:
        raise ValueError(
            f"these words are not in the passage and stand {len(anywhere)} times in the document; type more of them"
        )
    raise ValueError("these words are neither in the passage nor in its document; type them exactly, case included")


def item_of(document: Document, start: int, end: int) -> Item:
    """A span as the native format writes it, its text beside it."""
    return {"document_id": document.id, "start": start, "end": end, "text": document.text[start:end]}


def items_in(group: Any) -> JsonGroup:
    """The alternatives of one item of `gold`."""
    return tuple(group) if isinstance(group, list) else (group,)


def document_of(item: Item) -> str:
    return item if isinstance(item, str) else str(item["document_id"])


def noted_groups(record: Mapping[str, Any]) -> tuple[JsonGroup, ...]:
    """The gold that a record has: its `gold` as written, or, without any, the documents graded above 0.

    >>> noted_groups({"gold": ["a", ["b", "c"]]}), noted_groups({"grades": {"z": 1, "y": 0}})
    ((('a',), ('b', 'c')), (('z',),))
    """
    if record.get("gold"):
        return tuple(items_in(group) for group in record["gold"])
    return tuple((doc,) for doc, grade in sorted((record.get("grades") or {}).items()) if grade > 0)


# ------------------------------------------------------------------ a decision


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person said. `groups` is an AND of ORs; None leaves gold alone (`evaluate: abstention`)."""

    state: str
    groups: tuple[JsonGroup, ...] | None = ()
    note: str = ""


def gold_of(groups: Iterable[JsonGroup]) -> list[Any]:
    """As the file has it: a group of one is that one.

    >>> gold_of([("a",), ("b", "c")])
    ['a', ['b', 'c']]
    """
    return [group[0] if len(group) == 1 else list(group) for group in groups]


def grades_beside(grades: Mapping[str, int] | None, groups: Sequence[JsonGroup]) -> dict[str, int] | None:
    """The grades that still go with the gold: none above 0 outside of it, none at or below 0 within it.

    None if none is left.

    >>> grades_beside({"a": 2, "b": 0, "c": 1}, [("a",), ("b",)])
    {'a': 2}
    """
    if not grades:
        return None
    gold = {document_of(item) for group in groups for item in group}
    return {doc: grade for doc, grade in grades.items() if (grade > 0) == (doc in gold)} or None


def changes_of(
    record: Mapping[str, Any],
    decision: Decision,
    *,
    why: str,
    time: str,
    tool: str,
    by: str | None = None,
    candidates: Sequence[Candidate] = (),
) -> dict[str, Any]:
    """The fields that a decision changes and their new values, provenance last; fields that stay are not named.

    Provenance is a list, newest last: nothing that somebody said before is lost. `previous` holds the old values.

    >>> made = changes_of({"id": "q", "gold": ["d"]}, Decision("unanswerable"), why="unlabelled", time="t", tool="x 1")
    >>> made["state"], made["gold"], made["label_provenance"][0]["previous"]
    ('unanswerable', [], {'counted_as': 'unlabelled', 'state': None, 'gold': ['d']})
    """
    changes: dict[str, Any] = {}
    if record.get("state") != decision.state:
        changes["state"] = decision.state
    if decision.groups is not None:
        gold = gold_of(decision.groups)
        if gold != (record.get("gold") or []):
            changes["gold"] = gold
        grades = grades_beside(record.get("grades"), decision.groups)
        if grades != (record.get("grades") or None):
            changes["grades"] = grades
    if record.get("needs_review"):
        changes["needs_review"] = False
    entry: dict[str, Any] = {"time": time, "tool": tool}
    if by:
        entry["by"] = by
    if decision.note:
        entry["note"] = decision.note
    entry["candidates"] = [c.as_dict() for c in candidates]
    previous = {name: record[name] for name in changes if name in record and name != "state"}
    entry["previous"] = {"counted_as": why, "state": record.get("state"), **previous}
    earlier = record.get(PROVENANCE)
    before = [] if earlier is None else earlier if isinstance(earlier, list) else [earlier]
    return changes | {PROVENANCE: [*before, entry]}


# ------------------------------------------------------------------ one line


_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    start: int
    end: int


def _fields(text: str) -> tuple[list[_Field], int, str, str]:
    """Where the value of each top-level field stands, where the last one ends, how commas and colons are written."""

    def past(at: int) -> int:
        match = _BLANK.match(text, at)
        assert match is not None
        return match.end()

    found: list[_Field] = []
    at = past(past(0) + 1)
    comma, colon = "", ""
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        start = past(past(end) + 1)
        colon = colon or text[end:start]
        _, end = _DECODER.raw_decode(text, start)
        found.append(_Field(name, start, end))
        at = past(end)
        if text[at] == ",":
            comma = comma or text[end : past(at + 1)]
            at = past(at + 1)
    last = found[-1].end if found else at
    return found, last, comma or ("," if colon == ":" else ", "), colon or ": "


def edited(text: str, changes: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """A JSON object's text with some values replaced; everything else stays as it is written, to the character.

    New fields come last, in the style (blanks or none) of the line.

    >>> edited('{"id":"q","x":1.50,"state":null}', {"state": "partial", "gold": ["d"]})
    '{"id":"q","x":1.50,"state":"partial","gold":["d"]}'
    """
    found, last, comma, colon = _fields(text)
    encoder = json.JSONEncoder(
        ensure_ascii=ascii_only, allow_nan=False, separators=(comma if comma.strip() else ", ", colon)
    )
    made, at = [], 0
    for field in found:
        if field.name in changes:
            made += [text[at : field.start], encoder.encode(changes[field.name])]
            at = field.end
    made.append(text[at:last])
    there = {field.name for field in found}
    new = [f"{encoder.encode(n)}{colon}{encoder.encode(value)}" for n, value in changes.items() if n not in there]
    if new:
        made.append((comma if found else "") + comma.join(new))
    return "".join([*made, text[last:]])


# ------------------------------------------------------------------ the file


class Book:
    """A question file (JSON lines, plain or gzip) of which single lines are changed, each change on disk at once.

    A change is written to a temporary file beside it and renamed, and only if the file is still what was read or
    written last. `undo` goes back change by change; with the last one the file has its first bytes again, also packed.
    Errors: `InputError`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self.target = self.path.resolve()  # a link stays a link
        self._first = self._read()
        self._packed = self._first[:2] == b"\x1f\x8b"
        try:
            content = gzip.decompress(self._first) if self._packed else self._first
        except (OSError, EOFError, zlib.error) as error:
            raise InputError("broken gzip data", path=self.path, found=str(error)) from None
        self._lines = content.split(b"\n")
        self._digest = hashlib.sha256(self._first).digest()
        self._ascii = content.isascii() and b"\\u" in content
        self._undo: list[tuple[str, bytes]] = []
        self._at: dict[str, int] = {}
        for at in range(len(self._lines)):
            text = self._split(at)[1]
            if text.strip():
                value = parse_json(text, self.path, at + 1)
                if isinstance(value, dict) and isinstance(value.get("id"), str):
                    self._at.setdefault(value["id"], at)

    def __len__(self) -> int:
        """Changes that can be taken back."""
        return len(self._undo)

    def _read(self) -> bytes:
        try:
            return self.target.read_bytes()
        except OSError as error:
            raise InputError("cannot be read", path=self.path, found=error.strerror or str(error)) from None

    def line(self, identifier: str) -> int:
        """The line of a question, from 1."""
        return self._at[identifier] + 1

    def _split(self, at: int) -> tuple[bytes, str, bytes]:
        """Byte-order mark, text and line end of a line."""
        raw = self._lines[at]
        head = _BOM if raw.startswith(_BOM) else b""
        tail = b"\r" if raw.endswith(b"\r") else b""
        body = raw[len(head) : len(raw) - len(tail)]
        return head, decode(body, self.path, at + 1), tail

    def record(self, identifier: str) -> dict[str, Any]:
        """A question as the file has it now. Error: KeyError for an id that is not there."""
        made: dict[str, Any] = parse_json(self._split(self._at[identifier])[1], self.path, self.line(identifier))
        return made

    def check_writable(self) -> None:
        """Refuses before anything is asked: a read-only file, or a folder in which nothing can be written.

        Renaming needs no right on the file itself, so its mode is looked at: a file that somebody locked stays locked.
        """
        if not self.target.stat().st_mode & 0o222 or not os.access(self.target, os.W_OK):
            raise InputError(
                "is read-only", path=self.path, expected="a file that answers can be written into",
                fix=f"chmod u+w {self.path}, or label a copy",
            )  # fmt: skip
        probe = self._beside()
        try:
            probe.touch()
        except OSError as error:
            raise InputError(
                "lies in a folder that cannot be written", path=self.path, found=error.strerror or str(error),
                expected="a writable folder: each answer is a new file that takes the place of the old one",
            ) from None  # fmt: skip
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)

    def check_unchanged(self) -> None:
        """Refuses when somebody else changed the file since it was read or written here."""
        if hashlib.sha256(self._read()).digest() != self._digest:
            raise InputError(
                "was changed by somebody else since it was read; this answer was not written, those before it were",
                path=self.path,
                fix="start again: what is labelled is not asked again",
            )

    def write(self, identifier: str, changes: Mapping[str, Any]) -> None:
        """Changes fields of one question, on disk when this returns."""
        at = self._at[identifier]
        head, text, tail = self._split(at)
        made = head + edited(text, changes, ascii_only=self._ascii).encode("utf-8") + tail
        before = self._lines[at]
        self._put(at, made, None)
        self._undo.append((identifier, before))

    def undo(self) -> str:
        """Takes the last change back and says whose it was. Error: IndexError when there is none."""
        identifier, before = self._undo[-1]
        self._put(self._at[identifier], before, self._first if len(self._undo) == 1 else None)
        self._undo.pop()
        return identifier

    def _beside(self) -> Path:
        return self.target.with_name(f".{self.target.name}.{os.getpid()}.part")

    def _put(self, at: int, line: bytes, raw: bytes | None) -> None:
        lines = [*self._lines[:at], line, *self._lines[at + 1 :]]
        if raw is None:
            raw = b"\n".join(lines)
            if self._packed:
                raw = gzip.compress(raw, mtime=0)
        beside = self._beside()
        try:
            with beside.open("wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            mine = self.target.stat()
            with suppress(OSError, AttributeError):  # not ours to give away, or a system without owners
                os.chown(beside, mine.st_uid, mine.st_gid)
            shutil.copymode(self.target, beside)
            self.check_unchanged()
            beside.replace(self.target)
        except OSError as error:
            raise InputError(
                "cannot be written; it is as it was before this answer", path=self.path,
                found=error.strerror or str(error), expected="a writable folder with room in it",
            ) from None  # fmt: skip
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
        self._lines, self._digest = lines, hashlib.sha256(raw).digest()


def verified(
    book: Book,
    identifier: str,
    changes: Mapping[str, Any],
    state: str,
    *,
    texts: Mapping[str, str] | None,
    evaluate: Evaluate = "retrieval",
) -> None:
    """Holds a record that is about to be written to the reader and to the ledger: it must count as what was said.

    Errors: those of the reader (`InputError`), of the ledger (`MeasurementError`), `conflict` where they differ.
    """
    row = Row({**book.record(identifier), **changes}, book.path, book.line(identifier))
    question = question_of(row, texts=texts)
    found = state_of(question, None if texts is None else texts.keys(), evaluate=evaluate)
    if found != state:
        raise MeasurementError("conflict", [identifier], f"said {state}, but the ledger would count it as {found}")
