# ruff: noqa: E501 (a broken file and its whole message stand on one line)
"""Files as other programs write and break them: Excel, notebooks, editors; each with its exact error, or read as it is.

The other broken files stand beside their readers (`test_readers_native.py`, `…_trec.py` and so on).
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from denominator.errors import InputError
from denominator.readers import native, runs, trec
from denominator.readers.tables import STARTER, Table

COLUMNS = {"id": "id", "question": "question", "gold": "gold", "state": "state"}
HEADER = "id,question,gold,state\r\n"
ROW = {"id": "7", "question": "a", "gold": ["d"], "state": "answerable"}
GOLDEN: dict[str, Any] = {
    "id": "g1",
    "question": "a?",
    "expected_answer": "x",
    "expected_source_ids": ["d1"],
    "category": "c",
    "difficulty": "easy",
}


def parquet(**columns: Any) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet as files

    made = io.BytesIO()
    given = {name: [value] for name, value in ROW.items()} | columns
    files.write_table(pa.table(list(given.values()), names=[name.rstrip("2") for name in given]), made)
    return made.getvalue()


def golden(**fields: Any) -> str:
    return json.dumps([GOLDEN | fields])


TABLES: list[tuple[str, str, str | bytes, str]] = [
    ("csv: no UTF-8", "t.csv", (HEADER + "1,Größe,d,answerable").encode("latin-1"), "FILE:2: byte 5 of the line is not UTF-8; found 0xf6; expected UTF-8 text; to mend it: save the file as UTF-8"),
    ("csv: UTF-16", "t.csv", HEADER.encode("utf-16"), "FILE: is UTF-16; expected UTF-8 text; to mend it: save the file as UTF-8"),
    ("csv: old line ends", "t.csv", "id,question,gold,state\r7,x,d,answerable\r", "FILE:1: holds a bare carriage return; expected lines that end in LF or CRLF; to mend it: save it again as CSV UTF-8, or quote the cell"),
    ("csv: empty columns", "t.csv", "id,question,gold,state,,\r\n1,x,d,answerable,,\r\n", "FILE:1: two columns have one name; found ''; expected a name for each column"),
    ("csv: empty row", "t.csv", HEADER + "1,x,d,answerable\r\n,,,\r\n", "FILE:3: field 'id': is empty (row 2); expected a non-empty text"),
    ("csv: blanks in the header", "t.csv", "id, question,gold,state\r\n1,x,d,answerable\r\n", "FILE:2: field 'question': no such column (row 1); found 'id', ' question', 'gold', 'state'; expected the column that the mapping names; to mend it: did you mean ' question'?"),
    ("csv: comma in an Excel file with semicolons", "t.csv", "id;question;gold;state\r\n007;Wo, was;d;e;answerable\r\n", "FILE:2: has 5 cells (row 1); found '007;Wo, was;d;e;answerable'; expected 4 as in the header; to mend it: quote a cell that holds the separator"),
    ("csv: after Excel's line", "t.csv", "sep=;\r\nid;question;gold;state\r\n1;x;d;maybe\r\n", "FILE:3: field 'state': unknown state (bad_label) (row 1); found 'maybe'; expected one of answerable, unanswerable, partial, unlabelled"),
    ("parquet: whole numbers as ids", "t.parquet", parquet(id=[7]), "FILE: field 'id': is not a text (row 1); found a number 7; expected a non-empty text; to mend it: write it in quotes: \"7\""),
    ("parquet: NaN as an id", "t.parquet", parquet(id=[float("nan")]), "FILE: field 'id': is not a text (row 1); found a number NaN; expected a non-empty text"),
    ("parquet: no id", "t.parquet", parquet(id=["1", None], question=["a", "b"], gold=[["d"], ["d"]], state=["partial"] * 2), "FILE: field 'id': is not a text (row 2); found null; expected a non-empty text"),
    ("parquet: bytes as ids", "t.parquet", parquet(id=[b"7"]), "FILE: field 'id': is not a text (row 1); found bytes \"b'7'\"; expected a non-empty text"),
    ("parquet: numbers as gold", "t.parquet", parquet(gold=[[1]]), "FILE: field 'gold[0]': is no evidence (row 1); found a number 1; expected an object with document_id, or a list of alternatives"),
    ("parquet: a list of nothing", "t.parquet", parquet(gold=[[None]]), "FILE: field 'gold[0]': is no evidence (row 1); found null; expected an object with document_id, or a list of alternatives"),
    ("parquet: one name twice", "t.parquet", parquet(id2=["8"]), "FILE: two columns have one name; found 'id'; expected a name for each column"),
    ("parquet: no row", "t.parquet", parquet(id=[], question=[], gold=[], state=[]), "FILE: has no rows; expected at least one row"),
    ("starter: no list", "golden_set.json", "{}", "FILE: is no list of rows; found an object {}; expected a list of objects; to mend it: name the field that holds it: rows=…"),
    ("starter: nothing", "golden_set.json", "[]", "FILE: has no rows; expected at least one row"),
    ("starter: no id", "golden_set.json", golden(id=None), "FILE: field 'id': is not a text (row 1); found null; expected a non-empty text"),
    ("starter: number as id", "golden_set.json", golden(id=1), "FILE: field 'id': is not a text (row 1); found a number 1; expected a non-empty text; to mend it: write it in quotes: \"1\""),
    ("starter: unknown difficulty", "golden_set.json", golden(difficulty="Easy"), "FILE: field 'difficulty': the mapping does not say what this means (row 1); found a text \"Easy\"; expected one of easy, medium, hard, adversarial; to mend it: did you mean 'easy'?"),
    ("starter: no question", "golden_set.json", golden(question=" "), "FILE: field 'question': is empty (row 1); expected a non-empty text"),
    ("starter: one source as an object", "golden_set.json", golden(expected_source_ids={"d1": 1}), "FILE: field 'expected_source_ids': is not a list (row 1); found an object {\"d1\": 1}; expected a list"),
    ("starter: twice", "golden_set.json", json.dumps([GOLDEN, GOLDEN]), "FILE: field 'id': duplicate question id, first in row 1 (row 2); found 'g1'; expected each id once"),
    ("starter: cut off", "golden_set.json", json.dumps([GOLDEN])[:-3], "FILE:1: malformed JSON: Unterminated string starting at column 119; found ' \"c\", \"difficulty\": \"easy'; expected one JSON value"),
]  # fmt: skip


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def table(path: Path) -> Table:
    options: Any = STARTER if path.name == "golden_set.json" else {"columns": COLUMNS}
    return Table(str(path), **options)


@pytest.mark.parametrize(("name", "content", "message"), [row[1:] for row in TABLES], ids=[row[0] for row in TABLES])
def test_tables(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = written(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        table(path).load()
    assert str(caught.value).replace(str(path), "FILE") == message


@pytest.mark.parametrize(
    "content",
    [
        "id;question;gold;state\r\n007;Wo, was?;\"d1;d2\";answerable\r\nNaN;x;;unanswerable\r\n",
        "\ufeffid;question;gold;state\r\n007;Wo, was?;\"d1;d2\";answerable\r\nNaN;x;;unanswerable\r\n",
        "sep=;\r\nid;question;gold;state\r\n007;Wo, was?;\"d1;d2\";answerable\r\nNaN;x;;unanswerable\r\n",
        "sep=\t\r\nid\tquestion\tgold\tstate\r\n007\tWo, was?\td1;d2\tanswerable\r\nNaN\tx\t\tunanswerable\r\n",
        "id\tquestion\tgold\tstate\n007\tWo, was?\td1;d2\tanswerable\nNaN\tx\t\tunanswerable\n",
        'id,question,gold,state\n007,"Wo, was?",d1;d2,answerable\nNaN,x,,unanswerable',
    ],
    ids=["semicolons", "byte-order mark", "sep=", "sep= and a tab", "tabs", "commas"],
)  # fmt: skip
def test_csv_as_excel_writes_it_in_any_country(tmp_path: Path, content: str) -> None:
    made = table(written(tmp_path / "t.csv", content)).load()
    assert [(q.id, q.question, q.answerability, [a.doc for g in q.gold for a in g]) for q in made.questions] == [
        ("007", "Wo, was?", "answerable", ["d1", "d2"]),
        ("NaN", "x", "unanswerable", []),
    ]


@pytest.mark.parametrize(
    ("gold", "read"),
    [
        ([["d1", "d2"]], [["d1"], ["d2"]]),
        ([[["d1", "d2"], ["d3"]]], [["d1", "d2"], ["d3"]]),
        ([[{"document_id": "d1", "start": 0, "end": 3}]], [["d1"]]),
        ([[]], []),
        ([None], []),
    ],
)
def test_parquet_with_nested_lists(tmp_path: Path, gold: Any, read: Any) -> None:
    (question,) = table(written(tmp_path / "t.parquet", parquet(gold=gold))).load().questions
    assert [[alternative.doc for alternative in group] for group in question.gold] == read


Q = '{"id": "q", "question": "x"}'
TEXTS: list[tuple[str, str | bytes, str]] = [
    ("half a pair", '{"id": "\\ud800", "question": "x"}', "FILE:1: half a surrogate pair; expected whole characters; to mend it: write the character itself"),
    ("half a pair in a name", '{"id": "q", "question": "x", "\\udc00": 1}', "FILE:1: half a surrogate pair; expected whole characters; to mend it: write the character itself"),
    ("a second byte-order mark", f"\ufeff{Q}\n\ufeff{Q}", "FILE:2: malformed JSON: Expecting value at column 1; found '\\ufeff{\"id\": \"q\", \"question\": \"x\"}'; expected one JSON object a line"),
    ("NUL", '{"id": "q", "question": "\0"}', "FILE:1: holds NUL bytes; expected UTF-8 text; to mend it: save the file as UTF-8"),
    ("NUL later", Q + '\n{"id": "r", "question": "\0"}', "FILE:2: malformed JSON: Invalid control character at column 26; found ': \"r\", \"question\": \"\\x00\"}'; expected one JSON object a line"),
    ("a field twice", '{"id": "q", "question": "x", "id": "r"}', "FILE:1: malformed JSON: the field 'id' is there twice; expected strict JSON"),
    ("NaN", '{"id": NaN, "question": "x"}', "FILE:1: malformed JSON: NaN is not a JSON value; expected strict JSON"),
    ("a number as an id", '{"id": 7, "question": "x"}', "FILE:1: field 'id': is not a text; found a number 7; expected a non-empty text; to mend it: write it in quotes: \"7\""),
    ("nested", '{"id": "q", "question": "x", "gold": ' + "[" * 100_000, "FILE:1: JSON nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_texts(tmp_path: Path, content: str, message: str) -> None:
    path = written(tmp_path / "q.jsonl", content)
    with pytest.raises(InputError) as caught:
        native.load(None, path)
    assert str(caught.value).replace(str(path), "FILE") == message


@pytest.mark.parametrize(
    "name", ["007", "7 ", "q\u2028r", "cafe\u0301", "caf\u00e9", "a\tb", "\U0001f600", "NaN", "null", "1e3"]
)
def test_ids_stay_as_they_are_written(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "q.jsonl", json.dumps({"id": name, "question": "x", "gold": [name]}) + "\r\n")
    (question,) = native.load(None, path).questions
    assert (question.id, question.gold[0][0].doc) == (name, name)
    row = json.dumps(ROW | {"id": name, "gold": [name]})
    (question,) = table(written(tmp_path / "t.jsonl", row)).load().questions
    assert (question.id, question.gold[0][0].doc) == (name, name)
    (question,) = table(written(tmp_path / "t.parquet", parquet(id=[name], gold=[[name]]))).load().questions
    assert (question.id, question.gold[0][0].doc) == (name, name)
    if not set(" \t") & set(name):
        (grades,) = trec.read_qrels(written(tmp_path / "qrels", f"\ufeff{name} 0 {name} 1\r\n"))[0].items()
        assert grades == (name, {name: 1})
        results, _ = runs.read_run(written(tmp_path / "run", f"{name} Q0 {name} 1 2.5 t\r\n"))
        assert [hit.doc for hit in results[name].hits] == [name]


def test_a_line_of_ten_million_characters(tmp_path: Path) -> None:
    text = "ä" * 10_000_000
    path = written(tmp_path / "c.jsonl", json.dumps({"id": "d", "text": text}, ensure_ascii=False))
    (document,) = native.read_documents(path)
    assert document.text == text


def test_an_id_in_another_unicode_form_is_not_found_and_the_note_says_why(tmp_path: Path) -> None:
    corpus = written(tmp_path / "c.jsonl", json.dumps({"id": "cafe\u0301", "text": "x"}))
    asked = written(tmp_path / "q.jsonl", json.dumps({"id": "q", "question": "x", "gold": ["caf\u00e9"]}))
    assert native.load(corpus, asked).notes == (
        "gold documents that are not in the corpus: 1 ('caf\u00e9')",
        "of these, in the corpus in another Unicode form: 1 ('caf\u00e9'); write both alike, NFC is usual",
    )
