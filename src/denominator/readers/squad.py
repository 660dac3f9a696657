"""SQuAD 2.0: every context is a document, every answer span an alternative of one evidence group.

A question with `is_impossible: true` is unanswerable and its `plausible_answers` are decoys, never gold. A question
without `is_impossible` (SQuAD 1.1) is an error unless `missing_impossible="answerable"` says how to take it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from denominator.errors import ConfigError, InputError
from denominator.readers.build import dataset, default_name
from denominator.readers.textfiles import Row, Seen, as_path, json_file, kind, one_record
from denominator.types import Dataset, Document, Evidence, Question

Missing = Literal["error", "answerable"]


def _objects(row: Row, field: str) -> Iterator[tuple[int, Row]]:
    if field not in row.values:
        raise row.error("is missing", field, expected="a list")
    for i, item in enumerate(row.items(field)):
        with one_record:
            if not isinstance(item, dict):
                raise row.error("is not an object", f"{field}[{i}]", found=kind(item), expected="an object")
            yield i, row.at(item, f"{field}[{i}]")


def _spans(qa: Row, question: str, doc: Document) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    spans: list[Evidence] = []
    texts: list[str] = []
    for _, answer in _objects(qa, "answers"):
        text = answer.text("text", required=True, empty=False) or ""
        start = answer.integer("answer_start")
        if start is None:
            raise answer.error(f"is missing (question {question!r})", "answer_start", expected="a whole number")
        end = start + len(text)
        there = doc.text[start:end] if start >= 0 else ""
        if there != text:
            at = doc.text.find(text)
            raise answer.error(
                f"the text is not what stands there (question {question!r})",
                "answer_start",
                found=f"{there[:60]!r} at {start}",
                expected=repr(text[:60]),
                fix=f"it stands at {at}" if at >= 0 else "",
            )
        spans.append(Evidence(doc.id, start, end))
        texts.append(text)
    return tuple(dict.fromkeys(spans)), tuple(dict.fromkeys(texts))


def _question(qa: Row, doc: Document, *, missing_impossible: Missing, lang: str) -> tuple[Question, bool]:
    """The question, and whether it was taken as answerable without saying so."""
    identifier = qa.identifier("id")
    impossible = qa.flag("is_impossible")
    assumed = impossible is None
    if impossible is None and missing_impossible == "error":
        raise qa.error(
            f"is missing (question {identifier!r})",
            "is_impossible",
            expected="true or false",
            fix="for SQuAD 1.1 say missing_impossible=answerable",
        )
    spans, answers = _spans(qa, identifier, doc)
    question = Question(
        identifier,
        qa.text("question", required=True, empty=False),
        "unanswerable" if impossible else "answerable",
        (spans,) if spans else (),
        tags={"title": doc.title} if doc.title else {},
        answers=answers,
        lang=lang,
    )
    return question, assumed


def load(path: str | Path, *, name: str = "", missing_impossible: Missing = "error", lang: str = "en") -> Dataset:
    """Contexts and questions of a SQuAD file. Document ids are `article-paragraph`, counted from 0.

    Errors: `InputError` with the way to the value and the question's id: an answer that is not what stands at its
    offset, a missing `is_impossible`, duplicate question ids.
    """
    if missing_impossible not in ("error", "answerable"):
        raise ConfigError(f"missing_impossible is {missing_impossible!r}; allowed: error, answerable")
    path = as_path(path)
    whole: Any = json_file(path)
    if not isinstance(whole, dict):
        raise InputError("is not an object", path=path, found=kind(whole), expected='{"version", "data": […]}')
    documents: list[Document] = []
    questions: list[Question] = []
    seen = Seen("question")
    assumed = 0
    for a, article in _objects(Row(whole, path, None), "data"):
        with one_record:
            title = article.text("title") or None
            for p, paragraph in _objects(article, "paragraphs"):
                with one_record:
                    doc = Document(f"{a:05d}-{p:05d}", paragraph.text("context", required=True) or "", title)
                    documents.append(doc)
                    for _, qa in _objects(paragraph, "qas"):
                        with one_record:
                            question, taken = _question(qa, doc, missing_impossible=missing_impossible, lang=lang)
                            seen.add(question.id, qa, place=qa.where.rstrip("."))
                            questions.append(question)
                            assumed += taken
    if not questions:
        raise InputError("holds no questions", path=path, expected="data[].paragraphs[].qas[]")
    notes = [f"questions without is_impossible, taken as answerable: {assumed}"] if assumed else []
    return dataset(documents, questions, name=name or default_name(path), source=str(path), notes=notes)


@dataclass(frozen=True, slots=True)
class Squad:
    """A SQuAD 2.0 file; a relative path is read from the folder of the call."""

    path: str
    name: str = ""
    missing_impossible: Missing = "error"
    lang: str = "en"

    def load(self) -> Dataset:
        return load(self.path, name=self.name, missing_impossible=self.missing_impossible, lang=self.lang)
