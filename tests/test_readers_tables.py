# ruff: noqa: E501 (a broken file and its whole message stand on one line)
"""Tables with a column mapping: cells stay text as written (F12–F16), and every broken table with its error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from denominator.app import check_data
from denominator.errors import ConfigError, InputError
from denominator.readers.native import load
from denominator.readers.tables import STARTER, Table, read_rows
from denominator.types import Plan
from tests.conftest import shared_path

COLUMNS = {"id": "qid", "question": "text", "gold": "docs"}


def write(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_starter_mapping_equals_the_converted_set() -> None:
    """`golden_set.json` through the shipped mapping is the data set that the shared folder holds converted by hand."""
    folder = shared_path("data/starter")
    table = Table(str(folder / "golden_set.json"), corpus=str(folder / "corpus.jsonl"), **STARTER).load()
    native = load(folder / "corpus.jsonl", folder / "questions.jsonl")
    assert table.questions == native.questions
    assert (table.dataset_hash, table.corpus_hash) == (native.dataset_hash, native.corpus_hash)


def test_f12_leading_zeros_survive(tmp_path: Path) -> None:
    corpus = write(tmp_path, "id,text\n001,a\n1,b\n", "corpus.csv")
    path = write(tmp_path, "qid,text,docs\n007,first,001\n7,second,1; 001\n")
    made = Table(str(path), COLUMNS, corpus=str(corpus), corpus_columns={"id": "id", "text": "text"}).load()
    assert [d.id for d in made.documents] == ["001", "1"]
    assert [(q.id, [g[0].doc for g in q.gold]) for q in made.questions] == [("007", ["001"]), ("7", ["1", "001"])]


def test_f12_an_empty_id_is_an_error_with_its_row(tmp_path: Path) -> None:
    path = write(tmp_path, "qid,text,docs\n7,first,d\n,second,d\n")
    assert refusal(Table(str(path), COLUMNS)) == "FILE:3: field 'qid': is empty (row 2); expected a non-empty text"


def test_f12_parquet_and_json_integers_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"qid": [7, 8], "text": ["a", "b"], "docs": [["d"], ["e"]]}), path)
    message = "FILE: field 'qid': is not a text (row 1); found a number 7; expected a non-empty text; to mend it: write it in quotes: \"7\""
    assert refusal(Table(str(path), COLUMNS)) == message
    path = write(tmp_path, '[{"qid": 7, "text": "a", "docs": ["d"]}]', "t.json")
    assert refusal(Table(str(path), COLUMNS)) == message
    path = tmp_path / "u.parquet"
    parquet.write_table(pa.table({"qid": ["07", "7"], "text": ["a", "b"], "docs": [["d"], []]}), path)
    assert [(q.id, len(q.gold)) for q in Table(str(path), COLUMNS).load().questions] == [("07", 1), ("7", 0)]


def test_f13_words_for_missing_values_are_words(tmp_path: Path) -> None:
    rows = [("NA", "null"), ("q2", "What does N/A mean?")]
    path = write(tmp_path, "qid,text,docs\n" + "".join(f"{i},{q},NaN\n" for i, q in rows))
    made = Table(str(path), COLUMNS).load()
    assert [(q.id, q.question, q.gold[0][0].doc) for q in made.questions] == [(i, q, "NaN") for i, q in rows]
    lines = "".join(json.dumps({"id": i, "question": q, "gold": ["NaN"]}) + "\n" for i, q in rows)
    assert made.dataset_hash == load(None, write(tmp_path, lines, "q.jsonl")).dataset_hash
    path = write(tmp_path, "qid,text,docs\nNA,null,\nq2,What does N/A mean?,\nq3,,\n")
    assert refusal(Table(str(path), COLUMNS)) == "FILE:4: field 'text': is empty (row 3); expected a non-empty text"


def test_f14_the_word_false_is_false(tmp_path: Path) -> None:
    words = ["True", "false", "FALSE", "0", "yes"]
    columns = {"id": "qid", "answerable": "can"}
    path = write(tmp_path, "qid,can\n" + "".join(f"q{i},{w}\n" for i, w in enumerate(words)))
    states = [q.answerability for q in Table(str(path), columns).load().questions]
    assert (states.count("answerable"), states.count("unanswerable")) == (2, 3)
    path = write(tmp_path, "qid,can\nq,maybe\n")
    assert refusal(Table(str(path), columns)) == (
        "FILE:2: field 'can': is not yes or no (row 1); found a text \"maybe\"; "
        "expected true, yes, 1 or false, no, 0 (in any case)"
    )
    path = write(
        tmp_path, '{"qid": "a", "can": true}\n{"qid": "b", "can": false}\n{"qid": "c", "can": null}\n', "t.jsonl"
    )
    states = [q.answerability for q in Table(str(path), columns).load().questions]
    assert states == ["answerable", "unanswerable", "unlabelled"]


def test_f15_f16_byte_order_mark_crlf_and_quotes(tmp_path: Path) -> None:
    asked = 'One, "two",\tthree\nand four'
    quoted = '"' + asked.replace('"', '""') + '"'
    path = write(tmp_path, b"\xef\xbb\xbf" + f"qid,text,docs\r\na,{quoted},d\r\nb,x,d\r\n\r\nc,y,d\r\n".encode())
    made = Table(str(path), COLUMNS).load()
    assert [q.id for q in made.questions] == ["a", "b", "c"]
    assert made.questions[0].question == asked


def test_all_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "qid\ttext\tdocs\tlabel\treview\tgrade\tlang\ttalk\tkind\n"
        'q1\tWho?\t["a", ["b", "c"]]\thard\tno\t{"a": 2, "b": 1}\tde\tt1\tx\n'
        "q2\tWhat?\t\tadversarial\tyes\t\t\tt1\t\n",
        "t.tsv",
    )
    made = Table(
        str(path),
        COLUMNS | {"state": "label", "needs_review": "review", "grades": "grade", "lang": "lang"},
        states={"hard": "answerable", "adversarial": "unanswerable"},
        slices=["kind"],
        cluster="talk",
    ).load()
    one, two = made.questions
    assert [[a.doc for a in g] for g in one.gold] == [["a"], ["b", "c"]]
    assert (one.answerability, one.needs_review, one.grades, one.lang, one.cluster) == (
        "answerable",
        False,
        {"a": 2, "b": 1},
        "de",
        "t1",
    )
    assert one.tags == {"kind": "x"}
    assert (two.answerability, two.needs_review, two.gold, two.lang, two.tags) == ("unanswerable", True, (), "en", {})


def refusal(table: Table) -> str:
    with pytest.raises(InputError) as caught:
        table.load()
    return str(caught.value).replace(str(table.questions), "FILE")


BROKEN: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "t.csv",
        "qid,text\nq,x\n",
        {},
        "FILE:2: field 'docs': no such column (row 1); found 'qid', 'text'; expected the column that the mapping names",
    ),
    (
        "t.csv",
        "qid,text,doc\nq,x,d\n",
        {},
        "FILE:2: field 'docs': no such column (row 1); found 'qid', 'text', 'doc'; expected the column that the mapping names; to mend it: did you mean 'doc'?",
    ),
    (
        "t.csv",
        "qid,text,docs\nq,x,d,e\n",
        {},
        "FILE:2: has 4 cells (row 1); found 'q,x,d,e'; expected 3 as in the header; to mend it: quote a cell that holds the separator",
    ),
    (
        "t.csv",
        "qid,qid,docs\nq,x,d\n",
        {},
        "FILE:1: two columns have one name; found 'qid'; expected a name for each column",
    ),
    (
        "t.csv",
        'qid,text,docs\nq,"x,d\n',
        {},
        "FILE:2: is not well-formed; found unexpected end of data; expected quoted CSV",
    ),
    (
        "t.csv",
        "qid,text,docs\nq,x,d\nr,y,d\nq,z,d\n",
        {},
        "FILE:4: field 'qid': duplicate question id, first in line 2 (row 3); found 'q'; expected each id once",
    ),
    (
        "t.csv",
        "qid,text,docs\nq,x,d;;e\n",
        {},
        "FILE:2: field 'docs': holds an empty id (row 1); found 'd;;e'; expected ids between ';'",
    ),
    (
        "t.csv",
        "qid,text,docs\nq,x,[1]\n",
        {},
        "FILE:2: field 'docs[0]': is no evidence (row 1); found a number 1; expected an object with document_id, or a list of alternatives",
    ),
    ("t.csv", "qid,text,docs\n", {}, "FILE: has no rows; expected at least one row"),
    ("t.csv", "", {}, "FILE: is empty; expected at least one line"),
    (
        "t.json",
        '{"rows": []}',
        {},
        'FILE: is no list of rows; found an object {"rows": []}; expected a list of objects; to mend it: name the field that holds it: rows=…',
    ),
    (
        "t.json",
        '{"rows": []}',
        {"rows": "row"},
        "FILE: field 'row': is missing; found rows; expected an object with 'row'",
    ),
    ("t.json", "[1]", {}, "FILE: is not an object (row 1); found a number 1; expected an object"),
    (
        "t.jsonl",
        '{"qid": "q", "text": 1, "docs": []}',
        {},
        "FILE:1: field 'text': is not a text (row 1); found a number 1; expected a text",
    ),
    (
        "t.jsonl",
        '{"qid": "q", "text": "x", "docs": {}}',
        {},
        "FILE:1: field 'docs': is not a list (row 1); found an object {}; expected a list",
    ),
    (
        "t.xlsx",
        "x",
        {},
        "FILE: has an ending that names no table format; found '.xlsx'; expected .csv, .tsv, .json, .jsonl, .ndjson, .parquet; to mend it: say format=csv (or the one that it is)",
    ),
]


@pytest.mark.parametrize(("name", "content", "options", "message"), BROKEN)
def test_broken_tables(tmp_path: Path, name: str, content: str, options: dict[str, Any], message: str) -> None:
    assert refusal(Table(str(write(tmp_path, content, name)), COLUMNS, **options)) == message


def test_labels_are_never_guessed(tmp_path: Path) -> None:
    columns = {"id": "qid", "state": "label"}
    path = write(tmp_path, "qid,label\na,answerable\nb,\nc,Answerable\n")
    assert "did you mean 'answerable'?" in refusal(Table(str(path), columns))
    assert refusal(Table(str(path), columns, states={"answerable": "answerable"})) == (
        "FILE:4: field 'label': the mapping does not say what this means (row 3); found a text \"Answerable\"; "
        "expected one of answerable; to mend it: did you mean 'answerable'?"
    )
    path = write(tmp_path, "qid,label\na,answerable\nb,\n")
    assert [q.answerability for q in Table(str(path), columns).load().questions] == ["answerable", "unlabelled"]


def test_a_broken_parquet_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write(tmp_path, b"PAR1 nothing of the kind PAR1", "t.parquet")
    assert "is no Parquet file" in refusal(Table(str(path), COLUMNS))
    assert "no such file" in refusal(Table(str(tmp_path / "u.parquet"), COLUMNS))


def test_the_mapping_is_checked_before_any_file_is_read() -> None:
    with pytest.raises(ConfigError, match=r"unknown field 'golds' .did you mean 'gold'"):
        Table("x.csv", {"id": "i", "golds": "g"})
    with pytest.raises(ConfigError, match="must say where the id is"):
        Table("x.csv", {"question": "q"})
    with pytest.raises(ConfigError, match="one of them decides"):
        Table("x.csv", {"id": "i", "state": "s", "answerable": "a"})
    with pytest.raises(ConfigError, match="allowed: answerable, unanswerable, partial, unlabelled"):
        Table("x.csv", {"id": "i", "state": "s"}, states={"x": "yes"})


def test_cells_larger_than_the_usual_limit(tmp_path: Path) -> None:
    corpus = write(tmp_path, "id,text\nd," + "x" * 500_000 + "\n", "corpus.csv")
    path = write(tmp_path, "qid,text,docs\nq,x,d\n")
    made = Table(str(path), COLUMNS, corpus=str(corpus)).load()
    assert len(made.documents[0].text) == 500_000


def test_a_cluster_column_does_something_or_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "id,question,talk\na,Who?,t1\nb,What?,\n")
    columns = {"id": "id", "question": "question"}
    with pytest.raises(InputError, match="field 'talk': cannot name a cluster"):
        Table(str(path), columns, cluster="talk").load()
    path = write(tmp_path, "id,question,talk\na,Who?,t1\nb,What?,t2\n")
    for made in (
        Table(str(path), columns, cluster="talk"),
        Table(str(path), columns | {"cluster": "talk"}, cluster="talk"),
    ):
        assert [q.cluster for q in made.load().questions] == ["t1", "t2"]
    assert [q.cluster for q in Table(str(path), columns).load().questions] == [None, None]
    with pytest.raises(
        ConfigError, match=r"columns maps cluster to 'talk', but nothing is clustered unless .*cluster=talk"
    ):
        Table(str(path), columns | {"cluster": "talk"})
    with pytest.raises(ConfigError, match="cluster is 'team', but columns maps cluster to 'talk'"):
        Table(str(path), columns | {"cluster": "talk"}, cluster="team")
    with pytest.raises(InputError, match="no such column"):
        Table(str(path), columns, cluster="tlak").load()


def test_a_cluster_that_no_question_has_is_refused_before_any_work(tmp_path: Path) -> None:
    made = Table(str(write(tmp_path, "id,question,talk\na,Who?,t1\n")), {"id": "id"}, evaluate="abstention").load()
    check_data(made, Plan(eligibility="lenient", evaluate="abstention"))
    with pytest.raises(ConfigError, match=r"cluster=talk would do nothing; .*cluster: \$\{cluster\}"):
        check_data(made, Plan(eligibility="lenient", evaluate="abstention", cluster="talk"))


def test_parquet_is_read_in_batches_and_says_where_it_breaks(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    table = pa.table({"id": [str(i) for i in range(5000)], "text": [f"text {i} " * 9 for i in range(5000)]})
    parquet.write_table(table, path, row_group_size=1000)
    rows = list(read_rows(path))
    assert [row.values["id"] for row in rows] == [str(i) for i in range(5000)]
    assert [row.nth for row in rows] == list(range(1, 5001))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 300] = b"\xff" * 300
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"is damaged after row [1-4]\d{3}; found "):
        list(read_rows(path))
