"""Recorded runs and answers as JSON lines; which format a file is."""

# ruff: noqa: E501 (a broken file and its whole message stand on one line)
from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from denominator.errors import InputError
from denominator.readers.runs import read_answers, read_run, sniff
from denominator.types import Answer, Hit, Result
from tests.conftest import shared_path


def write(folder: Path, content: str, name: str = "file.jsonl") -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def test_run(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"question_id": "b", "hits": [{"id": "d#0", "doc": "d", "score": 2, "start": 0, "end": 4}, {"id": "e"}], '
        '"depth": 5, "exhausted": true}\n'
        '{"question_id": "a", "hits": []}\n'
        '{"question_id": "c", "error": "time-out"}\n'
        '{"question_id": "f", "hits": ["x", "x"], "error": null, "confidence": 0.5}\n',
    )
    results, notes = read_run(path)
    assert list(results) == ["b", "a", "c", "f"]
    assert results["b"] == Result((Hit("d#0", "d", 2.0, 0, 4), Hit("e", "e")), depth=5, exhausted=True)
    assert results["a"] == Result()
    assert results["c"] == Result(error="time-out")
    assert results["f"] == Result((Hit("x", "x"), Hit("x", "x")), confidence=0.5)
    assert notes == (
        "run read as JSON lines",
        "hits that were there twice for a question, the better place counts: 1",
    )


def test_document_id_is_another_name_of_doc(tmp_path: Path) -> None:
    hits = [
        {"id": "d#0", "document_id": "d", "score": 3.0},
        {"id": "e#0", "doc": "e", "document_id": "e", "score": 2.0},
        {"id": "f#0", "doc": "f", "document_id": None, "score": 1.0},
        {"id": "g", "doc": None, "document_id": None, "score": 0.5},
    ]
    path = write(tmp_path, json.dumps({"question_id": "q", "hits": hits}))
    assert [hit.doc for hit in read_run(path)[0]["q"].hits] == ["d", "e", "f", "g"]


def test_content_decides_the_format(tmp_path: Path) -> None:
    assert sniff(write(tmp_path, '\n  {"question_id": "q", "hits": []}\n', "run.trec")) == "jsonl"
    assert sniff(write(tmp_path, "q Q0 d 1 2.0 t\n", "run.jsonl")) == "trec"
    assert read_run(tmp_path / "run.jsonl")[1] == ("run read as a TREC run",)
    with pytest.raises(InputError, match=r"is a JSON list; .*write one object a line"):
        sniff(write(tmp_path, "[\n]"))


RUNS = [
    ('{"hits": []}', "FILE:1: field 'question_id': is missing; expected a non-empty text"),
    ('{"id": "q", "hits": []}', "FILE:1: field 'id': unknown field; expected 'question_id'; to mend it: rename 'id' to 'question_id'"),
    ('{"question_id": 1, "hits": []}', "FILE:1: field 'question_id': is not a text; found a number 1; expected a non-empty text; to mend it: write it in quotes: \"1\""),
    ('{"question_id": "q"}', "FILE:1: field 'hits': is missing; expected a list of hits (empty if nothing was found), or an error"),
    ('{"question_id": "q", "hits": {}}', "FILE:1: field 'hits': is not a list; found an object {}; expected a list"),
    ('{"question_id": "q", "hits": [3]}', "FILE:1: field 'hits[0]': is no hit; found a number 3; expected an object {\"id\", \"score\"?, …}"),
    ('{"question_id": "q", "hits": [{"id": 3}]}', "FILE:1: field 'hits[0].id': is not a text; found a number 3; expected a non-empty text; to mend it: write it in quotes: \"3\""),
    ('{"question_id": "q", "hits": [{"id": "d", "score": "3"}]}', "FILE:1: field 'hits[0].score': is not a finite number; found a text \"3\"; expected a finite number"),
    ('{"question_id": "q", "hits": [{"id": "d", "score": 1e999}]}', "FILE:1: field 'hits[0].score': is not a finite number; found a number Infinity; expected a finite number"),
    ('{"question_id": "q", "hits": [{"id": "d", "start": 3}]}', "FILE:1: field 'hits[0].end': is missing; expected start and end together, or neither"),
    ('{"question_id": "q", "hits": [{"id": "d", "start": 3, "end": 2}]}', "FILE:1: field 'hits[0].start': is no span; found [3, 2); expected 0 ≤ start < end"),
    ('{"question_id": "q", "hits": [{"id": "d", "doc": "a", "document_id": "b"}]}', "FILE:1: field 'hits[0].document_id': is not the same as doc; found 'b'; expected 'a'"),
    ('{"question_id": "q", "hits": [{"id": "d", "document_id": 7}]}', "FILE:1: field 'hits[0].document_id': is not a text; found a number 7; expected a non-empty text; to mend it: write it in quotes: \"7\""),
    ('{"question_id": "q", "hits": [{"id": "d", "doc_id": "d"}]}', "FILE:1: field 'hits[0].doc_id': unknown field; expected 'doc'; to mend it: rename 'doc_id' to 'doc'"),
    ('{"question_id": "q", "hits": [{"id": "d"}], "error": "x"}', "FILE:1: field 'error': stands beside hits; found a text \"x\"; expected either hits or an error"),
    ('{"question_id": "q", "hits": [], "error": ""}', "FILE:1: field 'error': is empty; expected a non-empty text"),
    ('{"question_id": "q", "hits": [], "depth": 0}', "FILE:1: field 'depth': is not at least 1; found 0; expected how many hits were asked for"),
    ('{"question_id": "q", "hits": []}\n{"question_id": "q", "hits": []}', "FILE:2: field 'question_id': duplicate question id, first in line 1; found 'q'; expected each id once"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), RUNS)
def test_broken_runs(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_run(path)
    assert str(caught.value).replace(str(path), "FILE") == message


def test_answers(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"question_id": "a", "answer": "42"}\n{"question_id": "b", "abstained": true}\n'
        '{"question_id": "c", "answer": "", "answerable": false}\n{"question_id": "d", "error": "429"}\n',
    )
    assert read_answers(path) == {
        "a": Answer("42"),
        "b": Answer(flag=True),
        "c": Answer("", structured=False),
        "d": Answer(error="429"),
    }


ANSWERS = [
    ('{"question_id": "q"}', "FILE:1: says nothing; expected at least one of answer, abstained, answerable, error"),
    ('{"question_id": "q", "answer": 42}', "FILE:1: field 'answer': is not a text; found a number 42; expected a text"),
    ('{"question_id": "q", "abstained": "false"}', "FILE:1: field 'abstained': is not true or false; found a text \"false\"; expected true or false, without quotes"),
    ('{"question_id": "q", "answerable": 1}', "FILE:1: field 'answerable': is not true or false; found a number 1; expected true or false, without quotes"),
    ('{"question_id": "q", "text": "x"}', "FILE:1: field 'text': unknown field; expected 'answer'; to mend it: rename 'text' to 'answer'"),
    ('{"question_id": "q", "answer": "x"}\n{"question_id": "q", "answer": "x"}', "FILE:2: field 'question_id': duplicate question id, first in line 1; found 'q'; expected each id once"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), ANSWERS)
def test_broken_answers(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_answers(path)
    assert str(caught.value).replace(str(path), "FILE") == message


def test_nomiracl_outputs_of_one_model(tmp_path: Path) -> None:
    with gzip.open(shared_path("data/nomiracl") / "outputs.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    lines = [
        json.dumps({"question_id": r["question_id"], "answer": r["output"]})
        for r in rows
        if r["model"] == "gpt-4-azure"
    ]
    answers = read_answers(write(tmp_path, "\n".join(lines)))
    assert len(answers) == 967
    assert len(rows) == 10_637
