"""Recorded runs and answers: JSON lines of our own, or a TREC run; which one is decided by the content.

A run line: `{"question_id", "hits": [{"id", "score"?, "doc"?, "start"?, "end"?}], "depth"?, "exhausted"?}` or
`{"question_id", "error"}`; `document_id` is another name of `doc`. An answer line: `{"question_id", "answer"?,
"abstained"?, "answerable"?, "lang"?}` or with `error`. A label by hand: `{"question_id", "abstained"?, "correct"?,
"answer"?}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from denominator import phrases
from denominator.errors import InputError
from denominator.readers import trec
from denominator.readers.native import MOST_OFFSET
from denominator.readers.textfiles import Row, Seen, as_path, byte_lines, json_rows, kind
from denominator.types import Answer, Hit, Result

RUN_FIELDS = ("question_id", "hits", "error", "depth", "exhausted", "confidence", "no_confidence")
HIT_FIELDS = ("id", "doc", "document_id", "score", "start", "end", "header_tokens", "tokens", "rank", "text")
ANSWER_FIELDS = ("question_id", "answer", "abstained", "answerable", "error", "lang")
HAND_FIELDS = ("question_id", "abstained", "correct", "answer")
MOST_TOKENS = 2**31 - 1
_RUN_NAMES = {"id": "question_id", "query_id": "question_id", "qid": "question_id", "results": "hits"}
_ANSWER_NAMES = {"id": "question_id", "query_id": "question_id", "qid": "question_id", "text": "answer"}
_HIT_NAMES = {"doc_id": "doc"}

Format = Literal["jsonl", "trec"]


def sniff(path: str | Path) -> Format:
    """`jsonl` if the first character that is no blank is `{`; a list over the whole file is refused."""
    path = as_path(path)
    for number, line in byte_lines(path):
        text = line.strip()
        if not text:
            continue
        if text.startswith(b"{"):
            return "jsonl"
        if text.startswith(b"["):
            raise InputError(
                "is a JSON list",
                path=path,
                line=number,
                expected="JSON lines or TREC columns",
                fix="write one object a line",
            )
        return "trec"
    raise InputError("is empty", path=path, expected="JSON lines or TREC columns")


_USUAL = frozenset({"id", "score"})


def _hit(row: Row, item: Any, place: int) -> Hit:
    if type(item) is dict and item.keys() <= _USUAL:  # nearly all hits of large runs: no need for the slow checks
        identifier, score = item.get("id"), item.get("score")
        if type(identifier) is str and identifier and type(score) is float and score - score == 0.0:
            return Hit(identifier, identifier, score)
    row = row.at({}, f"hits[{place}]")
    if isinstance(item, str):
        item = {"id": item}
    if not isinstance(item, dict):
        raise row.error("is no hit", found=kind(item), expected='an object {"id", "score"?, …}')
    part = row.inside(item)
    part.known(HIT_FIELDS, _HIT_NAMES)
    identifier = part.identifier("id")
    doc = _document(part, identifier)
    start, end = part.integer("start"), part.integer("end")
    if (start is None) != (end is None):
        raise part.error("is missing", "end" if end is None else "start", expected="start and end together, or neither")
    if start is not None and end is not None and not 0 <= start < end <= MOST_OFFSET:
        raise part.error("is no span", "start", found=f"[{start}, {end})", expected="0 ≤ start < end")
    header, tokens = part.integer("header_tokens"), part.integer("tokens")
    for name, value in (("header_tokens", header), ("tokens", tokens)):
        if value is not None and not 0 <= value <= MOST_TOKENS:
            raise part.error("is out of range", name, found=str(value)[:40], expected=f"0 to {MOST_TOKENS}")
    return Hit(identifier, doc, part.number("score"), start, end, header or 0, tokens)


def _document(hit: Row, identifier: str) -> str:
    """The document of a hit: `doc`, or `document_id` as in the gold; without either the hit is the document."""
    given = [hit.identifier(name) for name in ("doc", "document_id") if hit.values.get(name) is not None]
    if len(set(given)) > 1:
        raise hit.error("is not the same as doc", "document_id", found=repr(given[1]), expected=repr(given[0]))
    return given[0] if given else identifier


def _by_question(path: Path, fields: Sequence[str], names: Mapping[str, str]) -> Iterator[tuple[str, Row]]:
    """Lines of known fields by their question; after the last one, questions that are there twice are an error."""
    seen = Seen("question", collect=True)
    for line, values in json_rows(path):
        row = Row(values, path, line)
        row.known(fields, names)
        question = row.identifier("question_id")
        seen.add(question, row, "question_id")
        yield question, row
    seen.finish()


def read_run_jsonl(path: str | Path) -> tuple[dict[str, Result], tuple[str, ...]]:
    """Results by question in the order of the file, and notes. Errors: `InputError` with line and field."""
    path = as_path(path)
    results: dict[str, Result] = {}
    repeated = 0
    for question, row in _by_question(path, RUN_FIELDS, _RUN_NAMES):
        error = row.text("error", empty=False)
        if error is None and row.values.get("hits") is None:
            raise row.error("is missing", "hits", expected="a list of hits (empty if nothing was found), or an error")
        hits = tuple(_hit(row, item, i) for i, item in enumerate(row.items("hits")))
        if error is not None and hits:
            raise row.error("stands beside hits", "error", found=kind(error), expected="either hits or an error")
        repeated += len(hits) - len({hit.id for hit in hits})
        depth = row.integer("depth")
        if depth is not None and depth < 1:
            raise row.error("is not at least 1", "depth", found=str(depth), expected="how many hits were asked for")
        results[question] = Result(
            hits,
            error,
            depth,
            row.flag("exhausted") or False,
            row.number("confidence"),
            row.flag("no_confidence") or False,
        )
    notes = [f"hits that were there twice for a question, the better place counts: {repeated}"] if repeated else []
    return results, tuple(notes)


def read_run(path: str | Path) -> tuple[dict[str, Result], tuple[str, ...]]:
    """A recorded run in either format; the first note says which was found."""
    found = sniff(path)
    results, notes = read_run_jsonl(path) if found == "jsonl" else trec.read_run(path)
    return results, (f"run read as {'JSON lines' if found == 'jsonl' else 'a TREC run'}", *notes)


def read_answers(path: str | Path) -> dict[str, Answer]:
    """Recorded answers by question. A line says at least one of answer, abstained, answerable, error."""
    path = as_path(path)
    answers: dict[str, Answer] = {}
    for question, row in _by_question(path, ANSWER_FIELDS, _ANSWER_NAMES):
        if not any(name in row.values for name in ANSWER_FIELDS[1:5]):
            raise row.error("says nothing", expected="at least one of answer, abstained, answerable, error")
        lang = row.text("lang", empty=False)
        code = None if lang is None else phrases.not_a_tag(lang)
        if code is not None:
            raise row.error("is not a language", "lang", found=lang, expected=f"a code such as {code!r}")
        answers[question] = Answer(
            text=row.text("answer"),
            flag=row.flag("abstained"),
            structured=row.flag("answerable"),
            error=row.text("error", empty=False),
            lang=lang,
        )
    return answers


@dataclass(frozen=True, slots=True)
class HandLabel:
    """What a person said of an answer: whether it refuses, whether it is correct, and the text that was read."""

    abstained: bool | None = None
    correct: bool | None = None
    answer: str | None = None


def read_hand_labels(path: str | Path) -> dict[str, HandLabel]:
    """Labels by hand by question. A line says at least one of abstained and correct."""
    path = as_path(path)
    labels: dict[str, HandLabel] = {}
    for question, row in _by_question(path, HAND_FIELDS, _ANSWER_NAMES):
        label = HandLabel(row.flag("abstained"), row.flag("correct"), row.text("answer"))
        if label.abstained is None and label.correct is None:
            raise row.error("says nothing", expected="at least one of abstained and correct, true or false")
        labels[question] = label
    return labels
