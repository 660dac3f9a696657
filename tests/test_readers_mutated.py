# ruff: noqa: E501 (records and error messages stand on one line)
"""Valid files of every format, damaged: each gives every record that is in it, or an error that names file and place."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator.errors import InputError
from denominator.readers import beir, native, runs, squad, trec
from denominator.readers.folder import Folder
from denominator.readers.tables import STARTER, Table
from tests.conftest import examples

Files = dict[str, bytes]


def lines(content: bytes) -> int:
    return sum(bool(line.strip()) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


def columns(content: bytes) -> int:
    return sum(bool(line.strip()) and not line.startswith(b"#") for line in content.split(b"\n"))


def cells(content: bytes) -> int:
    return sum(bool(row) for row in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))) - 1


def rows(content: bytes) -> int:
    return len(json.loads(content.decode("utf-8-sig")))


def asked(content: bytes) -> int:
    whole = json.loads(content.decode("utf-8-sig"))
    return sum(len(p["qas"]) for article in whole["data"] for p in article["paragraphs"])


@dataclass(frozen=True)
class Case:
    """A valid data set: its files, how it is read, how many records a reading by other means finds in each file."""

    files: Mapping[str, bytes]
    read: Callable[[Path], Any]
    count: Mapping[str, Callable[[bytes], int]]
    made: Callable[[Any], dict[str, int]]
    by_line: bool = True


def jsonl(*records: Any) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def parquet_bytes() -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    made = io.BytesIO()
    table = pa.table(
        {"id": ["007", "8"], "question": ["Où?", "b"], "gold": [["d1", "d2"], []], "state": ["answerable", "partial"]}
    )
    parquet.write_table(table, made)
    return made.getvalue()


DOCUMENTS = jsonl({"id": "d1", "text": "Über allen Gipfeln", "title": "Goethe"}, {"id": "d2", "text": "ist Ruh"})
QUESTIONS = jsonl(
    {
        "id": "q1", "question": "Wo?", "state": "answerable", "lang": "de", "slice": {"art": "wo"}, "answer": ["Gipfel"],
        "gold": [{"document_id": "d1", "start": 0, "end": 4, "text": "Über"}, ["d2", {"document_id": "d1", "whole": True}]],
    },
    {"id": "q2", "question": "Wer?", "state": "unanswerable", "gold": [], "history": [{"speaker": "u", "text": "x"}]},
    {"id": "q3", "question": "Was?", "grades": {"d1": 2, "d2": 0}, "needs_review": True},
)  # fmt: skip
COLUMNS = {"id": "id", "question": "question", "gold": "gold", "state": "state"}
RECORDS = [
    {"id": "007", "question": "Où?", "gold": ["d1", "d2"], "state": "answerable"},
    {"id": "8", "question": "b, c", "gold": [], "state": "unanswerable"},
]
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Paris",
            "paragraphs": [
                {
                    "context": "Paris is the capital.",
                    "qas": [
                        {"id": "1", "question": "What?", "is_impossible": False, "answers": [{"text": "Paris", "answer_start": 0}]},
                        {"id": "2", "question": "Who?", "is_impossible": True, "answers": [], "plausible_answers": []},
                    ],
                }
            ],
        }
    ],
}  # fmt: skip
GOLDEN = [
    {"id": "g1", "question": "a?", "expected_answer": "x", "expected_source_ids": ["d1"], "category": "c", "difficulty": "easy", "notes": ""},
    {"id": "g2", "question": "b?", "expected_answer": "", "expected_source_ids": [], "category": "c", "difficulty": "adversarial", "notes": ""},
]  # fmt: skip


def repeated(notes: Iterable[str]) -> int:
    """Judgements that were there twice, which a note counts."""
    return sum(int(note.rpartition(": ")[2]) for note in notes if note.startswith("judgements that were there twice"))


def questions(data: Any) -> int:
    return len(data.questions)


def table(name: str, **options: Any) -> Callable[[Path], Any]:
    return lambda root: Table(str(root / name), **{"columns": COLUMNS, **options}).load()


CASES: dict[str, Case] = {
    "native": Case(
        {"corpus.jsonl": DOCUMENTS, "questions.jsonl": QUESTIONS},
        lambda root: native.load(root / "corpus.jsonl", root / "questions.jsonl"),
        {"corpus.jsonl": lines, "questions.jsonl": lines},
        lambda data: {"corpus.jsonl": len(data.documents), "questions.jsonl": len(data.questions)},
    ),
    "beir": Case(
        {
            "corpus.jsonl": jsonl({"_id": "d1", "title": "", "text": "x"}, {"_id": "d2", "text": "y", "metadata": {}}),
            "queries.jsonl": jsonl({"_id": "q1", "text": "a"}, {"_id": "q2", "text": "b"}),
            "qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\n",
        },
        beir.load,
        {"corpus.jsonl": lines, "qrels/test.tsv": lambda content: columns(content) - 1},
        lambda data: {
            "corpus.jsonl": len(data.documents),
            "qrels/test.tsv": sum(len(q.grades or {}) for q in data.questions) + repeated(data.notes),
        },
    ),
    "squad": Case(
        {"squad.json": json.dumps(SQUAD, indent=1).encode()},
        lambda root: squad.load(root / "squad.json"),
        {"squad.json": asked},
        lambda data: {"squad.json": questions(data)},
        by_line=False,
    ),
    "csv": Case(
        {"t.csv": 'id,question,gold,state\r\n007,"Où, ""là""?",d1;d2,answerable\r\n8,b,,unanswerable\r\n'.encode()},
        table("t.csv"),
        {"t.csv": cells},
        lambda data: {"t.csv": questions(data)},
    ),
    "json": Case(
        {"t.json": json.dumps(RECORDS, indent=1).encode()},
        table("t.json"),
        {"t.json": rows},
        lambda data: {"t.json": questions(data)},
        by_line=False,
    ),
    "jsonl": Case(
        {"t.jsonl": jsonl(*RECORDS)},
        table("t.jsonl"),
        {"t.jsonl": lines},
        lambda data: {"t.jsonl": questions(data)},
    ),
    "parquet": Case(
        {"t.parquet": parquet_bytes()},
        table("t.parquet"),
        {"t.parquet": lambda _: 2},
        lambda data: {"t.parquet": questions(data)},
        by_line=False,
    ),
    "starter": Case(
        {"golden_set.json": json.dumps(GOLDEN).encode()},
        table("golden_set.json", **STARTER),
        {"golden_set.json": rows},
        lambda data: {"golden_set.json": questions(data)},
        by_line=False,
    ),
    "qrels": Case(
        {"qrels": b"q1 0 d1 1\nq1\t0\td2\t0\nq2 0 d1 2\n"},
        lambda root: trec.read_qrels(root / "qrels"),
        {"qrels": columns},
        lambda made: {"qrels": sum(map(len, made[0].values())) + repeated(made[1])},
    ),
    "trec run": Case(
        {"run": b"q1 Q0 d1 1 2.5 tag\nq1 Q0 d2 2 1.5 tag\nq2\tQ0\td1\t1\t-1e3\ttag\n"},
        lambda root: runs.read_run(root / "run"),
        {"run": columns},
        lambda made: {"run": sum(len(result.hits) for result in made[0].values())},
    ),
    "run": Case(
        {
            "run.jsonl": jsonl(
                {"question_id": "q1", "hits": [{"id": "c1", "doc": "d1", "score": 1.5, "start": 0, "end": 3}, "d2"], "depth": 5},
                {"question_id": "q2", "hits": []},
                {"question_id": "q3", "error": "time-out"},
            )
        },
        lambda root: runs.read_run(root / "run.jsonl"),
        {"run.jsonl": lines},
        lambda made: {"run.jsonl": len(made[0])},
    ),
    "answers": Case(
        {"answers.jsonl": jsonl({"question_id": "q1", "answer": "x"}, {"question_id": "q2", "answer": "", "abstained": True})},
        lambda root: runs.read_answers(root / "answers.jsonl"),
        {"answers.jsonl": lines},
        lambda made: {"answers.jsonl": len(made)},
    ),
    "folder": Case(
        {"docs/a.txt": b"Open at nine.", "docs/b.html": b"<p>Closed</p>", "questions.jsonl": QUESTIONS},
        lambda root: Folder(str(root / "docs"), str(root / "questions.jsonl")).load(),
        {"docs/a.txt": lambda _: 2, "questions.jsonl": lines},
        lambda data: {"docs/a.txt": len(data.documents), "questions.jsonl": questions(data)},
        by_line=False,
    ),
}  # fmt: skip


WHOLE_FILE = ("is empty", "is UTF-16", "is UTF-32", "has no rows", "holds no", "queries have no text")
"""Errors that have no line, because they are about the file."""


def check(case: Case, files: Files) -> None:
    root = Path(tempfile.mkdtemp(prefix="mutated-"))
    try:
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        refused = None
        try:
            made = case.read(root)
        except InputError as error:
            refused = error
        if refused is None:
            assert case.made(made) == {name: count(files[name]) for name, count in case.count.items()}
            return
        message = str(refused)
        assert Path(str(refused.path)).is_relative_to(root), message
        assert message.startswith(f"{refused.path}:"), message
        if case.by_line and refused.line is None:
            assert any(text in message for text in WHOLE_FILE), message
    finally:
        shutil.rmtree(root)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, doubled, moved or gone; the pieces are those that formats are made of."""
    pieces = [b"\n", b"\r", b"\t", b" ", b'"', b",", b"{", b"}", b"[", b"]", b":", b"\0", b"\xff", b"\xc3", b"#", b"1", b"-", b"\\ud800", b"\\u0000", b"null", b"NaN", b"1e999", b"\xef\xbb\xbf", b"\xe2\x80\xa8"]  # fmt: skip
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(6):
            case 0:
                made[at : at + 1] = rng.choice(pieces)
            case 1:
                made[at:at] = rng.choice(pieces)
            case 2:
                del made[at : at + rng.randrange(12)]
            case 3:
                other = rng.randrange(len(made) + 1)
                made[at:at] = made[other : other + rng.randrange(40)]
            case 4:
                found = made.split(b"\n")
                found.insert(rng.randrange(len(found) + 1), rng.choice(found))
                made = bytearray(b"\n".join(found))
            case _:
                made[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(made)


ODD = [None, True, False, 0, 7, -1, 1.5, 10**30, "", " ", "d1", "q1", "answerable", "Answerable", "\0", "\u2028", "e\u0301", [], {}, [[]], [None], ["d1"], [7], {"id": "x"}, {"document_id": "d1", "start": 1, "end": 99}]  # fmt: skip


def altered(value: Any, rng: random.Random) -> Any:
    """One value somewhere in a record is another one, absent, or under another name."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        made = dict(value)
        key = rng.choice(list(made))
        match rng.randrange(6):
            case 0:
                del made[key]
            case 1:
                made[key.upper() if key else "x"] = made.pop(key)
            case 2:
                made[rng.choice(["extra", "Id", key + "s"])] = rng.choice(ODD)
            case _:
                made[key] = altered(made[key], rng)
        return made
    if isinstance(value, list) and value and rng.random() < 0.8:
        made_list = list(value)
        at = rng.randrange(len(made_list))
        made_list[at] = altered(made_list[at], rng)
        return made_list
    return rng.choice(ODD)


@pytest.mark.parametrize("name", CASES)
def test_the_files_themselves_are_read(name: str) -> None:
    check(CASES[name], dict(CASES[name].files))
    case = CASES[name]
    assert all(case.count[file](case.files[file]) > 1 for file in case.count)


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(40), deadline=None)
def test_damaged_bytes(name: str, seed: int) -> None:
    rng, case = random.Random(seed), CASES[name]
    files = dict(case.files)
    for _ in range(3):  # a file costs little, an example of hypothesis more
        file = rng.choice(list(files))
        check(case, files | {file: damaged(files[file], rng)})


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if any(".json" in file for file in case.files)])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(40), deadline=None)
def test_altered_fields(name: str, seed: int) -> None:
    rng, case = random.Random(seed), CASES[name]
    files = dict(case.files)
    for _ in range(3):
        file = rng.choice([file for file in files if ".json" in file])
        if file.endswith(".jsonl"):
            records = [json.loads(line) for line in files[file].splitlines()]
            at = rng.randrange(len(records))
            records[at] = altered(records[at], rng)
            content = jsonl(*records)
        else:
            content = json.dumps(altered(json.loads(files[file]), rng)).encode()
        check(case, files | {file: content})
