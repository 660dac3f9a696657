# ruff: noqa: E501 (a broken file and its whole message stand on one line)
"""BEIR folders: one made of the public SciFact set, and every broken file with its error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from denominator.errors import InputError
from denominator.readers.beir import Beir, load
from tests.conftest import shared_path


def folder(path: Path, *, corpus: str = "", queries: str = "", qrels: str = "", split: str = "test") -> Path:
    (path / "qrels").mkdir(parents=True, exist_ok=True)
    (path / "corpus.jsonl").write_text(corpus or '{"_id": "d1", "title": "", "text": "one", "metadata": {}}\n')
    (path / "queries.jsonl").write_text(queries or '{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "second"}\n')
    (path / "qrels" / f"{split}.tsv").write_text(qrels or "query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    return path


def test_folder(tmp_path: Path) -> None:
    made = load(folder(tmp_path / "set"))
    assert [(d.id, d.text, d.title) for d in made.documents] == [("d1", "one", None)]
    assert [(q.id, q.question, q.answerability, q.grades) for q in made.questions] == [
        ("q1", "first", "unlabelled", {"d1": 1})
    ]
    assert made.name == "set"
    assert made.notes == ("queries without a judgement in the split 'test', left out: 1",)


def test_scifact_in_the_form_of_beir(tmp_path: Path) -> None:
    """The public set written as BEIR ships it, read back: the same ids, texts and pairs as its own files say."""
    source = shared_path("data/scifact")
    with gzip.open(source / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    with gzip.open(source / "questions.jsonl.gz", "rt", encoding="utf-8") as file:
        questions = [json.loads(line) for line in file]
    (tmp_path / "qrels").mkdir()
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"_id": d["id"], "title": d["title"], "text": d["text"]}) + "\n" for d in documents)
    with (tmp_path / "queries.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"_id": q["id"], "text": q["question"]}) + "\n" for q in questions)
    (tmp_path / "qrels" / "test.tsv").write_bytes((source / "qrels.tsv").read_bytes())
    made = Beir(str(tmp_path), assume_answerable=True).load()
    assert [d.id for d in made.documents] == [d["id"] for d in documents]
    assert {q.id: set(q.grades or {}) for q in made.questions} == {
        q["id"]: {g["document_id"] for g in q["gold"]} for q in questions
    }
    assert {q.id: q.question for q in made.questions} == {q["id"]: q["question"] for q in questions}
    assert made.notes == ("assume_answerable: 300 unlabelled questions with gold are taken as answerable",)


def refusal(path: Path, **options: str) -> str:
    with pytest.raises(InputError) as caught:
        load(path, **options)
    return str(caught.value).replace(str(path), "DIR")


BROKEN = [
    (
        {"corpus": '{"_id": 3, "text": "x"}'},
        "DIR/corpus.jsonl:1: field '_id': is not a text; found a number 3; expected a non-empty text; to mend it: write it in quotes: \"3\"",
    ),
    (
        {"corpus": '{"id": "d", "text": "x"}'},
        "DIR/corpus.jsonl:1: field 'id': unknown field; expected '_id'; to mend it: rename 'id' to '_id'",
    ),
    ({"corpus": '{"_id": "d"}'}, "DIR/corpus.jsonl:1: field 'text': is missing; expected a text"),
    (
        {"queries": '{"_id": "q1", "text": "a"}\n{"_id": "q2", "text": "b"}\n{"_id": "q1", "text": "c"}'},
        "DIR/queries.jsonl:3: field '_id': duplicate question id, first in line 1; found 'q1'; expected each id once",
    ),
    (
        {"queries": '{"_id": "q1", "text": " "}'},
        "DIR/queries.jsonl:1: field 'text': is empty; expected a non-empty text",
    ),
    (
        {"queries": '{"_id": "q9", "text": "x"}'},
        "DIR/queries.jsonl: field '_id': 1 judged queries have no text; found 'q1'; expected every query of DIR/qrels/test.tsv",
    ),
    (
        {"qrels": "q1\td1\n"},
        "DIR/qrels/test.tsv:1: has 2 columns; found 'q1\\td1'; expected 4 (query 0 document grade) or 3 (query-id corpus-id score)",
    ),
]


@pytest.mark.parametrize(("files", "message"), BROKEN)
def test_broken_folders(tmp_path: Path, files: dict[str, str], message: str) -> None:
    assert refusal(folder(tmp_path / "set", **files)) == message


def test_missing_parts_name_what_is_there(tmp_path: Path) -> None:
    path = folder(tmp_path / "set", split="dev")
    assert refusal(path, split="devel") == (
        "DIR/qrels/devel.tsv: no such split; found 'devel'; expected one of: dev; to mend it: did you mean 'dev'?"
    )
    assert "no such folder" in refusal(tmp_path / "elsewhere")
    (path / "corpus.jsonl").unlink()
    assert refusal(path, split="dev") == "DIR/corpus.jsonl: no such file; expected an existing file"
