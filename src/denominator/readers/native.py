"""The native format: documents and labelled questions as JSON lines, plain or gzip.

A document is `{"id", "text", "title"?}`. A question is `{"id", "question", "state", "gold", …}`:

- `state`: answerable, partial, unanswerable or unlabelled (null or absent: unlabelled). Never read from `gold`.
- `gold`: a list of evidence groups, all of which are needed. A group is `{"document_id", "start"?, "end"?, "text"?,
  "whole"?}`, a bare document id, or a list of these as alternatives. Offsets are code points, end exclusive; where the
  corpus is given they must lie in the document and `text` must be what stands there; `text` without offsets is
  looked up in it and must stand there once.
- `grades` `{document id: whole number}`, `needs_review`, `slice` (values to group by), `answer` (text or list of
  texts), `history` (`{"speaker", "text"}`), `lang`, and any field that `cluster` names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from denominator.corpus import held, texts_of
from denominator.errors import ConfigError, InputError
from denominator.readers.build import Evaluate, check_evaluate, dataset, default_name, label
from denominator.readers.textfiles import Row, Seen, as_path, json_rows, kind, one_of, one_record
from denominator.types import Dataset, Document, Evidence, Group, Question

DOCUMENT_FIELDS = ("id", "text", "title", "domain")  # the last is known, nothing reads it
QUESTION_FIELDS = (
    "id",
    "question",
    "state",
    "gold",
    "grades",
    "needs_review",
    "slice",
    "cluster",
    "lang",
    "answer",
    "history",
    # named so that they are no surprise; nothing reads them
    "source_state",
    "shown",
    "evidence",
    "label_provenance",
)
EVIDENCE_FIELDS = ("document_id", "start", "end", "text", "whole")
MOST_OFFSET = 2**40
"""No text is that long; a larger offset is a slip, and would not fit where offsets are added up."""
MOST_GRADE = 1_000_000
_LAW_NAMES = {"answerability": "state", "tags": "slice"}
_LAW_EVIDENCE = {"doc": "document_id", "doc_id": "document_id", "docid": "document_id"}


def read_documents(path: str | Path, *, unread: Counter[str] | None = None) -> Iterator[Document]:
    """Documents in the order of the file. Errors: `InputError` with the line; duplicate ids name both lines."""
    path = as_path(path)
    seen = Seen("document")
    for line, values in json_rows(path):
        with one_record:
            row = Row(values, path, line)
            other = row.known(DOCUMENT_FIELDS)
            if unread is not None:
                unread.update(other)
            identifier = row.identifier("id")
            made = Document(identifier, row.text("text", required=True) or "", row.text("title") or None)
            seen.add(identifier, row)
            yield made


def _places(words: str, text: str) -> list[tuple[int, int]]:
    """Where the words stand; a run of white space matches any other, because nobody sees how a line ends."""
    pattern = r"\s+".join(map(re.escape, words.split()))
    return [found.span(1) for found in re.finditer(f"(?=({pattern}))", text)] if pattern else []


def _located(part: Row, words: str, doc: str, text: str) -> tuple[int, int]:
    """The span of a quote without offsets: where it stands, if it stands there once."""
    places = _places(words, text)
    if len(places) == 1:
        return places[0]
    if places:
        shown = ", ".join(f"[{start}, {end})" for start, end in places[:3])
        raise part.error(
            f"stands {len(places)} times in {doc!r}",
            "text",
            found=repr(words[:80]),
            expected="words that stand there once, or start and end",
            fix=f"quote more of it, or take one of {shown}",
        )
    raise part.error(
        f"does not stand in {doc!r}",
        "text",
        found=repr(words[:80]),
        expected="its words as they are written, case included (white space may differ)",
    )


def _evidence(row: Row, item: Any, texts: Mapping[str, str] | None, unread: Counter[str] | None) -> Evidence:
    if isinstance(item, str):
        item = {"document_id": item}
    if not isinstance(item, dict):
        raise row.error(
            "is no evidence", found=kind(item), expected="an object with document_id, or a list of alternatives"
        )
    part = row.inside(item)
    other = part.known(EVIDENCE_FIELDS, _LAW_EVIDENCE)
    if unread is not None:
        unread.update(f"gold.{name}" for name in other)
    doc = part.identifier("document_id")
    start, end, whole = part.integer("start"), part.integer("end"), part.flag("whole") or False
    words = part.text("text")
    if (start is None) != (end is None):
        missing = "end" if end is None else "start"
        raise part.error("is missing", missing, expected="start and end together, or neither of them")
    if start is None or end is None:
        if words is not None and words.strip() and not whole and texts is not None and doc in texts:
            return Evidence(doc, *_located(part, words, doc, texts[doc]))
        return Evidence(doc, whole=whole)
    if whole:
        raise part.error("contradicts start and end", "whole", expected="either a span or the whole document")
    if start < 0 or end < start or end > MOST_OFFSET:
        raise part.error(
            "is out of range (span_out_of_range)", "start", found=f"[{start}, {end})", expected="0 ≤ start < end"
        )
    if start == end:
        raise part.error("is an empty span (empty_span)", "start", found=f"[{start}, {end})", expected="start < end")
    if texts is not None and doc in texts:
        text = texts[doc]
        if end > len(text):
            raise part.error(
                "lies outside the document (span_out_of_range)",
                "end",
                found=f"[{start}, {end}) in {doc!r}",
                expected=f"at most {len(text)}, the document's length in code points",
            )
        if words is not None and text[start:end] != words:
            places = _places(words, text)
            raise part.error(
                "is not what stands at these offsets",
                "text",
                found=repr(words[:80]),
                expected=f"{text[start:end][:80]!r} = {doc!r}[{start}:{end}]",
                fix=f"it stands at [{places[0][0]}, {places[0][1]})" if places else "",
            )
    return Evidence(doc, start, end)


def _gold(row: Row, texts: Mapping[str, str] | None, unread: Counter[str] | None) -> tuple[Group, ...]:
    groups: list[Group] = []
    for i, item in enumerate(row.items("gold")):
        if isinstance(item, list):
            if not item:
                raise row.error(
                    "is an empty group (empty_group)",
                    f"gold[{i}]",
                    expected="at least one alternative",
                    fix="an unanswerable question has gold [] and state unanswerable",
                )
            groups.append(
                tuple(_evidence(row.at({}, f"gold[{i}][{j}]"), one, texts, unread) for j, one in enumerate(item))
            )
        else:
            groups.append((_evidence(row.at({}, f"gold[{i}]"), item, texts, unread),))
    return tuple(groups)


def _grades(row: Row) -> dict[str, int] | None:
    if row.values.get("grades") is None:
        return None
    inside = row.at(row.mapping("grades"), "grades")
    grades: dict[str, int] = {}
    for doc in inside.values:
        if not doc:
            raise inside.error("empty document id", expected="a non-empty text")
        grade = inside.integer(doc)
        if grade is None:
            raise inside.error("is null", doc, expected="a whole number")
        if abs(grade) > MOST_GRADE:
            raise inside.error("is out of range", doc, found=str(grade)[:40], expected=f"at most {MOST_GRADE}")
        grades[doc] = grade
    return grades


def _answers(row: Row) -> tuple[str, ...]:
    value = row.values.get("answer")
    if isinstance(value, list):
        for i, one in enumerate(value):
            if not isinstance(one, str):
                raise row.error("is not a text", f"answer[{i}]", found=kind(one), expected="a text")
        return tuple(value)
    one = row.text("answer")
    return () if one is None else (one,)


def _history(row: Row) -> tuple[tuple[str, str], ...]:
    turns = []
    for i, item in enumerate(row.items("history")):
        if not isinstance(item, dict):
            raise row.error("is no turn", f"history[{i}]", found=kind(item), expected='{"speaker", "text"}')
        turn = row.at(item, f"history[{i}]")
        turns.append((turn.text("speaker", required=True) or "", turn.text("text", required=True) or ""))
    return tuple(turns)


def _slice(row: Row) -> dict[str, Any]:
    tags = row.mapping("slice")
    for name, value in tags.items():
        plain = value if isinstance(value, list) else [value]
        if not all(
            v is None or isinstance(v, (str, int, bool)) or (isinstance(v, float) and isfinite(v)) for v in plain
        ):
            raise row.error(
                "cannot be grouped by", f"slice.{name}", found=kind(value),
                expected="a text, a number, true/false or a list of texts",
            )  # fmt: skip
    return tags


def _named(row: Row, field: str) -> Any:
    """A field by its name, at the top or in `slice` (`slice.domain` and `domain` are the same)."""
    inner = field.removeprefix("slice.")
    if field in row.values:
        return row.values[field]
    return row.mapping("slice").get(inner)


def _cluster(row: Row, field: str) -> str:
    value = _named(row, field)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise row.error(
        "is missing" if value is None else "cannot name a cluster",
        field,
        found=None if value is None else kind(value),
        expected="a text or a whole number on every question, because `cluster` names this field",
    )


def _joined(question: str, history: tuple[tuple[str, str], ...], who: bool | str) -> str:
    if who is False:
        return question
    turns = [text for speaker, text in history if who is True or speaker == who]
    return "\n".join([*turns, question])


def question_of(
    row: Row,
    *,
    texts: Mapping[str, str] | None = None,
    text_required: bool = False,
    cluster: str | None = None,
    lang: str = "en",
    lang_field: str = "lang",
    join_history: bool | str = False,
    unread: Counter[str] | None = None,
) -> Question:
    """One record of the native form as a question; every check of the format is here."""
    identifier = row.identifier("id")
    asked = row.text("question", required=text_required, empty=False)
    history = _history(row)
    language = _named(row, lang_field)
    if language is not None and not (isinstance(language, str) and language):
        raise row.error("is not a language", lang_field, found=kind(language), expected='a code such as "en"')
    return Question(
        id=identifier,
        question=None if asked is None else _joined(asked, history, join_history),
        answerability=label(row, "state", row.values.get("state")),
        gold=_gold(row, texts, unread),
        grades=_grades(row),
        needs_review=row.flag("needs_review") or False,
        tags=_slice(row),
        cluster=_cluster(row, cluster) if cluster else None,
        answers=_answers(row),
        history=history,
        lang=language or lang,
    )


def read_questions(
    path: str | Path,
    *,
    texts: Mapping[str, str] | None = None,
    text_required: bool = False,
    cluster: str | None = None,
    lang: str = "en",
    lang_field: str = "lang",
    join_history: bool | str = False,
    unread: Counter[str] | None = None,
) -> Iterator[Question]:
    """Questions in the order of the file; spans are checked against `texts` (document id → text) where given.

    `unread` counts fields that nobody reads. Errors: `InputError` with line and field.
    """
    path = as_path(path)
    seen = Seen("question", collect=True)
    fields = (*QUESTION_FIELDS, *((cluster.split(".", 1)[0],) if cluster else ()), lang_field.split(".", 1)[0])
    for line, values in json_rows(path):
        with one_record:
            row = Row(values, path, line)
            other = row.known(fields, _LAW_NAMES)
            if unread is not None:
                unread.update(other)
            question = question_of(
                row,
                texts=texts,
                text_required=text_required,
                cluster=cluster,
                lang=lang,
                lang_field=lang_field,
                join_history=join_history,
                unread=unread,
            )
            seen.add(question.id, row)
            yield question
    seen.finish()


def unread_note(unread: Mapping[str, int]) -> Iterable[str]:
    """One note that names the fields that were there and are not read."""
    if unread:
        yield "fields that are not read: " + ", ".join(f"{name} ({n})" for name, n in sorted(unread.items()))


def load(
    corpus: str | Path | None,
    questions: str | Path,
    *,
    name: str = "",
    assume_answerable: bool = False,
    cluster: str | None = None,
    evaluate: Evaluate = "retrieval",
    join_history: bool | str = False,
    lang: str = "en",
    lang_field: str = "lang",
) -> Dataset:
    """A data set from one or two files. Without a corpus, spans are not checked and question texts may be missing.

    `join_history=True` puts all turns before the question, a speaker's name (`"user"`) only that speaker's.
    `assume_answerable` marks unlabelled questions that have gold as answerable and says so in `label_source`.
    """
    check_evaluate(evaluate)
    unread: Counter[str] = Counter()
    documents = held(read_documents(corpus, unread=unread)) if corpus is not None else ()
    made = tuple(
        read_questions(
            questions,
            texts=texts_of(documents) if corpus is not None else None,
            text_required=corpus is not None,
            cluster=cluster,
            lang=lang,
            lang_field=lang_field,
            join_history=join_history,
            unread=unread,
        )
    )
    if isinstance(join_history, str) and not any(s == join_history for q in made for s, _ in q.history):
        speakers = sorted({s for q in made for s, _ in q.history})
        raise ConfigError(f"join_history is {join_history!r}, but the speakers are: {', '.join(speakers) or 'none'}")
    return dataset(
        documents,
        made,
        name=name or default_name(questions),
        assume_answerable=assume_answerable,
        evaluate=evaluate,
        corpus=corpus is not None,
        source=str(questions),
        notes=tuple(unread_note(unread)),
    )


@dataclass(frozen=True, slots=True)
class Native:
    """Documents and questions as JSON lines; relative paths are read from the folder of the call.

    `folder` alone means its `questions.jsonl` and, where it is there, `corpus.jsonl` (either may be packed as `.gz`).
    """

    questions: str = ""
    corpus: str | None = None
    folder: str = ""
    name: str = ""
    assume_answerable: bool = False
    cluster: str | None = None
    evaluate: Evaluate = "retrieval"
    join_history: bool | str = False
    lang: str = "en"
    lang_field: str = "lang"

    def __post_init__(self) -> None:
        if not (self.questions or self.folder):
            raise ConfigError("a data set needs questions=FILE (and corpus=FILE), or folder=FOLDER that holds both")
        check_evaluate(self.evaluate)

    def load(self) -> Dataset:
        corpus: str | Path | None = self.corpus
        questions: str | Path = self.questions
        if not questions:
            questions = one_of(as_path(self.folder), "questions.jsonl")
            beside = one_of(as_path(self.folder), "corpus.jsonl")
            if corpus is None and beside.is_file():
                corpus = beside
        return load(
            corpus,
            questions,
            name=self.name,
            assume_answerable=self.assume_answerable,
            cluster=self.cluster,
            evaluate=self.evaluate,
            join_history=self.join_history,
            lang=self.lang,
            lang_field=self.lang_field,
        )


@dataclass(frozen=True, slots=True)
class Demo:
    """The data set that the package carries: an invented company's handbook and questions about it."""

    name: str = "demo"
    cluster: str | None = None

    def load(self) -> Dataset:
        from dataclasses import replace
        from importlib.resources import as_file, files

        folder = files("denominator") / "demo"
        corpus, questions = folder / "corpus.jsonl", folder / "questions.jsonl"
        if not (corpus.is_file() and questions.is_file()):
            raise InputError(
                "the demo data is not part of this installation", expected="demo/corpus.jsonl and demo/questions.jsonl"
            )
        with as_file(corpus) as one, as_file(questions) as two:
            made = load(one, two, name=self.name, cluster=self.cluster)
        return replace(made, source="denominator/demo/questions.jsonl")
