"""TREC and BEIR qrels, TREC runs: trec_eval's own awkward files, and every broken line with its error."""

# ruff: noqa: E501 (a broken file and its whole message stand on one line)
from __future__ import annotations

from pathlib import Path

import pytest

from denominator.errors import ConfigError, InputError
from denominator.readers.trec import Qrels, load_qrels, read_qrels, read_run
from tests.conftest import shared_path


def write(folder: Path, content: str | bytes, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# data/trec/SOURCE.md: judgements by topic.
@pytest.mark.parametrize("name", ["qrels.test", "qrels.test.with-comments", "qrels.rel_level"])
def test_trec_eval_qrels(name: str) -> None:
    grades, notes = read_qrels(shared_path(f"data/trec/{name}"))
    assert {q: len(mine) for q, mine in grades.items()} == {"301": 1708, "302": 1061, "303": 912}
    assert notes == (("comment lines passed over: 3 (first: line 1)",) if "comments" in name else ())
    if name == "qrels.rel_level":
        assert {g for mine in grades.values() for g in mine.values()} == {-1, 0, 1, 2, 3, 4}
    if "comments" in name:
        assert grades["301"]["CR#93E-1860"] == 0


def test_trec_eval_runs() -> None:
    results, notes = read_run(shared_path("data/trec/results.test"))
    assert {q: len(r.hits) for q, r in results.items()} == {"301": 500, "302": 500, "303": 500}
    assert notes == ()
    first = results["301"].hits[0]
    assert (first.id, first.doc, first.score) == ("FR940202-2-00150", "FR940202-2-00150", 2.129133)
    results, notes = read_run(shared_path("data/trec/results.trunc"))
    assert {q: len(r.hits) for q, r in results.items()} == {"301": 500, "303": 84}
    assert notes == ("lines with text after the sixth column, which is not read: 5",)


@pytest.mark.parametrize(("name", "queries", "pairs"), [("mtrag-un", 332, 851), ("scifact", 300, 339)])
def test_beir_qrels_of_the_public_sets(name: str, queries: int, pairs: int) -> None:
    made = Qrels(str(shared_path(f"data/{name}/qrels.tsv")), assume_answerable=True).load()
    assert len(made.questions) == queries
    assert sum(len(q.grades or {}) for q in made.questions) == pairs
    assert {q.answerability for q in made.questions} == {"answerable"}
    assert made.label_source == "assumed"


def test_f05_grades_are_kept_as_written(tmp_path: Path) -> None:
    path = write(tmp_path, "q1 0 d1 1\nq1 0 d2 0\nq1 0 d3 -1\nq2 0 d4 0\nq3 0 d1 1\nq3 0 d2 2\nq3 0 d3 3\n")
    made = load_qrels(path, assume_answerable=True)
    assert [q.answerability for q in made.questions] == ["answerable", "unlabelled", "answerable"]
    assert made.questions[0].grades == {"d1": 1, "d2": 0, "d3": -1}
    assert [q.gold for q in made.questions] == [(), (), ()]
    grades, notes = read_qrels(path, min_grade=2)
    assert grades["q3"] == {"d1": 0, "d2": 2, "d3": 3}
    assert notes == ("min_grade 2: 2 judgements below it count as not relevant (0)",)
    with pytest.raises(ConfigError, match="min_grade is 0"):
        read_qrels(path, min_grade=0)


def test_without_the_option_nothing_is_answerable(tmp_path: Path) -> None:
    assert [q.answerability for q in load_qrels(write(tmp_path, "q 0 d 1\n")).questions] == ["unlabelled"]


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
        "q1\td1\t1\nq2\td2\t1\n",
        "q1 0 d1 1\nq2 0 d2 1\n",
        "q1  0\td1   1 \n\n\tq2 0 d2 1\n",
        b"\xef\xbb\xbfq1 0 d1 1\r\nq2 0 d2 1\r\n",
        b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r\nq1\td1\t1\r\nq2\td2\t1\r\n",
    ],
)
def test_f15_f16_both_variants_give_two_judgements(tmp_path: Path, content: str | bytes) -> None:
    assert read_qrels(write(tmp_path, content))[0] == {"q1": {"d1": 1}, "q2": {"d2": 1}}


def test_ids_may_hold_what_is_no_ascii_blank(tmp_path: Path) -> None:
    path = write(tmp_path, "q 1\td\u00a01\t1\n-3 4\td\u20282\t0\n")
    assert read_qrels(path)[0] == {"q 1": {"d\u00a01": 1}, "-3 4": {"d\u20282": 0}}
    run = write(tmp_path, "q\u00a01 Q0 d\u30001 1 2.5 x\n")
    assert [h.id for h in read_run(run)[0]["q\u00a01"].hits] == ["d\u30001"]


@pytest.mark.parametrize(
    "line", ["q1 Q0 d1 1 9.5 tag", "q1  Q0  d1  1  9.5  tag", "q1\tQ0\td1\t1\t9.5\ttag", "q1 Q0 d1 1 9.5 tag "]
)
def test_f16_run_lines_read_alike(tmp_path: Path, line: str) -> None:
    for ends in ("\n", "\r\n"):
        path = write(tmp_path, b"\xef\xbb\xbf" + ends.join([line, "", "q2 Q0 d2 1 1e-3 tag", ""]).encode())
        results, notes = read_run(path)
        assert {q: [(h.id, h.score) for h in r.hits] for q, r in results.items()} == {
            "q1": [("d1", 9.5)],
            "q2": [("d2", 0.001)],
        }
        assert notes == ()


def test_f02c_repeated_documents_are_counted(tmp_path: Path) -> None:
    results, notes = read_run(write(tmp_path, "q1 Q0 A 1 9.0 t\nq1 Q0 A 2 8.0 t\n"))
    assert [h.id for h in results["q1"].hits] == ["A", "A"]
    assert notes == ("documents that were there twice for a question, the better place counts: 1",)


def test_repeated_judgements_are_counted(tmp_path: Path) -> None:
    grades, notes = read_qrels(write(tmp_path, "# ours\nq 0 d 1\nq 0 d 1\n"))
    assert grades == {"q": {"d": 1}}
    assert notes == (
        "comment lines passed over: 1 (first: line 1)",
        "judgements that were there twice, kept once: 1",
    )


TREC = "expected 4 (query 0 document grade) or 3 (query-id corpus-id score)"
QRELS = [
    ("q 0 d 1 9\n", f"FILE:1: has 5 columns; found 'q 0 d 1 9'; {TREC}"),
    ("q d\n", f"FILE:1: has 2 columns; found 'q d'; {TREC}"),
    ("q 0 d 1\nq 0 d\n", "FILE:2: has 3 columns; found 'q 0 d'; expected 4 as in line 1 (query 0 document grade)"),
    ("q 0 d 1.5\n", "FILE:1: field 'grade': is not a whole number; found '1.5'; expected a whole number of at most 1000000 in the last column"),
    ("q 0 d 1_0\n", "FILE:1: field 'grade': is not a whole number; found '1_0'; expected a whole number of at most 1000000 in the last column"),
    ("query d score\n", "FILE:1: field 'grade': is not a whole number; found 'score'; expected a whole number of at most 1000000 in the last column"),
    ("q 0 d 1\n\nq 0 d 2\n", "FILE:3: field 'grade': a second grade for query 'q' and document 'd', first in line 1; found 2 beside 1; expected one grade for each pair"),
    ("query-id\tcorpus-id\tscore\n", "FILE: holds no judgements; expected lines of query 0 document grade"),
    ("# nothing\n", "FILE: holds no judgements; expected lines of query 0 document grade"),
    (b"q 0 d\xff 1\n", "FILE:1: byte 2 of the line is not UTF-8; found 0xff; expected UTF-8 text; to mend it: save the file as UTF-8"),
    ("", "FILE: is empty; expected at least one line"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), QRELS)
def test_broken_qrels(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_qrels(path)
    assert str(caught.value).replace(str(path), "FILE") == message


RUNS = [
    ("q Q0 d 1 2.0 t\nq Q0 e 2 1.0\n", "FILE:2: has 5 columns; found 'q Q0 e 2 1.0'; expected 6: query Q0 document rank score tag"),
    ("q Q0 d 1 nan t\n", "FILE:1: field 'score': is not a finite number (bad_score), question 'q'; found 'nan'; expected a finite number in the fifth column"),
    ("q Q0 d 1 -inf t\n", "FILE:1: field 'score': is not a finite number (bad_score), question 'q'; found '-inf'; expected a finite number in the fifth column"),
    ("q Q0 d 1 high t\n", "FILE:1: field 'score': is not a finite number (bad_score), question 'q'; found 'high'; expected a finite number in the fifth column"),
    ("q Q0 d 1 1_0 t\n", "FILE:1: field 'score': is not a finite number (bad_score), question 'q'; found '1_0'; expected a finite number in the fifth column"),
    ("# only\n", "FILE: holds no hits; expected lines of query Q0 document rank score tag"),
    ("q 0 d 1\n", "FILE:1: has 4 columns; found 'q 0 d 1'; expected 6: query Q0 document rank score tag"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), RUNS)
def test_broken_runs(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_run(path)
    assert str(caught.value).replace(str(path), "FILE") == message
