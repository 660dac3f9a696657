# ruff: noqa: E501 (a broken file and its whole message stand on one line)
"""SQuAD 2.0: impossible questions are unanswerable, decoys are never gold (F10)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from denominator.errors import ConfigError, InputError
from denominator.readers.squad import Squad, load
from denominator.types import Evidence
from tests.conftest import shared_path

CONTEXT = "In Paris they say that Lyon is nice."
A = {"id": "A", "question": "Where?", "is_impossible": False, "answers": [{"text": "Paris", "answer_start": 3}] * 2}
B = {
    "id": "B",
    "question": "Which?",
    "is_impossible": True,
    "answers": [],
    "plausible_answers": [{"text": "Lyon", "answer_start": 23}],
}
C = {"id": "C", "question": "Who?", "answers": [{"text": "they", "answer_start": 9}]}


def write(folder: Path, *qas: Any, context: Any = CONTEXT, whole: Any = None) -> Path:
    path = folder / "squad.json"
    data = {"version": "v2.0", "data": [{"title": "France", "paragraphs": [{"context": context, "qas": list(qas)}]}]}
    path.write_text(json.dumps(data if whole is None else whole), encoding="utf-8")
    return path


def test_f10(tmp_path: Path) -> None:
    made = load(write(tmp_path, A, B))
    assert [(d.id, d.text, d.title) for d in made.documents] == [("00000-00000", CONTEXT, "France")]
    a, b = made.questions
    assert (a.answerability, a.gold, a.answers) == ("answerable", ((Evidence("00000-00000", 3, 8),),), ("Paris",))
    assert (b.answerability, b.gold, b.answers) == ("unanswerable", (), ())


def test_f10_without_is_impossible_nothing_is_assumed_silently(tmp_path: Path) -> None:
    path = write(tmp_path, A, C)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).replace(str(path), "FILE") == (
        "FILE: field 'data[0].paragraphs[0].qas[1].is_impossible': is missing (question 'C'); expected true or false; "
        "to mend it: for SQuAD 1.1 say missing_impossible=answerable"
    )
    made = Squad(str(path), missing_impossible="answerable").load()
    assert [q.answerability for q in made.questions] == ["answerable", "answerable"]
    assert made.notes == ("questions without is_impossible, taken as answerable: 1",)
    with pytest.raises(ConfigError, match="allowed: error, answerable"):
        load(path, missing_impossible="maybe")  # type: ignore[arg-type]


def test_answers_of_several_people_are_alternatives(tmp_path: Path) -> None:
    qa = A | {"answers": [{"text": "Paris", "answer_start": 3}, {"text": "In Paris", "answer_start": 0}]}
    (question,) = load(write(tmp_path, qa)).questions
    assert question.gold == ((Evidence("00000-00000", 3, 8), Evidence("00000-00000", 0, 8)),)
    assert question.answers == ("Paris", "In Paris")


BROKEN = [
    (
        (A | {"answers": [{"text": "Paris", "answer_start": 4}]},),
        "FILE: field 'data[0].paragraphs[0].qas[0].answers[0].answer_start': the text is not what stands there (question 'A'); found 'aris ' at 4; expected 'Paris'; to mend it: it stands at 3",
    ),
    (
        (A | {"answers": [{"text": "Paris"}]},),
        "FILE: field 'data[0].paragraphs[0].qas[0].answers[0].answer_start': is missing (question 'A'); expected a whole number",
    ),
    (
        (A | {"answers": [{"text": "", "answer_start": 0}]},),
        "FILE: field 'data[0].paragraphs[0].qas[0].answers[0].text': is empty; expected a non-empty text",
    ),
    (
        (A, A),
        "FILE: field 'data[0].paragraphs[0].qas[1].id': duplicate question id, first in data[0].paragraphs[0].qas[0]; found 'A'; expected each id once",
    ),
    (
        (A | {"is_impossible": "false"},),
        "FILE: field 'data[0].paragraphs[0].qas[0].is_impossible': is not true or false; found a text \"false\"; expected true or false, without quotes",
    ),
    (
        (A | {"id": 5},),
        "FILE: field 'data[0].paragraphs[0].qas[0].id': is not a text; found a number 5; expected a non-empty text; to mend it: write it in quotes: \"5\"",
    ),
    (
        ({"id": "A", "question": "x", "is_impossible": False},),
        "FILE: field 'data[0].paragraphs[0].qas[0].answers': is missing; expected a list",
    ),
    (("A",), "FILE: field 'data[0].paragraphs[0].qas[0]': is not an object; found a text \"A\"; expected an object"),
    ((), "FILE: holds no questions; expected data[].paragraphs[].qas[]"),
]


@pytest.mark.parametrize(("qas", "message"), BROKEN)
def test_broken_files(tmp_path: Path, qas: tuple[Any, ...], message: str) -> None:
    path = write(tmp_path, *qas)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).replace(str(path), "FILE") == message


@pytest.mark.parametrize(
    "whole", [[], {"version": "v2.0"}, {"data": {}}, {"data": [{"paragraphs": [{"qas": []}]}]}, "x"]
)
def test_other_shapes_are_refused(tmp_path: Path, whole: Any) -> None:
    with pytest.raises(InputError):
        load(write(tmp_path, whole=whole))


def test_jaquad_written_as_squad(tmp_path: Path) -> None:
    """3,939 spans of multi-byte text, written as SQuAD and read back, against the set's own offsets."""
    source = shared_path("data/jaquad")
    with gzip.open(source / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = {row["id"]: row["text"] for row in map(json.loads, file)}
    with gzip.open(source / "questions.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    by_document: dict[str, list[Any]] = {}
    for row in rows:
        gold = row["gold"][0]
        qa = {"id": row["id"], "question": row["question"], "is_impossible": False}
        qa["answers"] = [{"text": gold["text"], "answer_start": gold["start"]}]
        by_document.setdefault(gold["document_id"], []).append(qa)
    paragraphs = [{"context": texts[doc], "qas": qas} for doc, qas in by_document.items()]
    path = write(tmp_path, whole={"version": "v2.0", "data": [{"title": "all", "paragraphs": paragraphs}]})
    made = load(path, lang="ja")
    assert len(made.questions) == 3939
    spans = {q.id: (q.gold[0][0].start, q.gold[0][0].end) for q in made.questions}
    assert spans == {r["id"]: (r["gold"][0]["start"], r["gold"][0]["end"]) for r in rows}
