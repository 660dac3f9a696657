"""Whatever a file holds: a data set or an error that a person can mend, never a traceback, never a silent skip."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator.errors import DenominatorError
from denominator.readers import beir, folder, native, runs, squad, trec
from denominator.readers.tables import Table
from tests.conftest import examples

COLUMNS = {"id": "id", "question": "question", "gold": "gold", "state": "state", "answer": "answer"}


def _beir(path: Path) -> Any:
    root = Path(tempfile.mkdtemp(dir=path.parent))
    (root / "qrels").mkdir()
    (root / "queries.jsonl").write_text('{"_id": "q", "text": "x"}\n')
    (root / "qrels" / "test.tsv").write_bytes(path.read_bytes())
    (root / "corpus.jsonl").write_bytes(path.read_bytes())
    return beir.load(root)


def _folder(path: Path) -> Any:
    root = Path(tempfile.mkdtemp(dir=path.parent))
    for ending in (".txt", ".html"):
        (root / f"a{ending}").write_bytes(path.read_bytes())
    return tuple(folder.read_documents(root))


READERS: dict[str, Callable[[Path], Any]] = {
    "questions": lambda path: native.load(None, path),
    "documents": lambda path: tuple(native.read_documents(path)),
    "qrels": trec.load_qrels,
    "run": runs.read_run,
    "answers": runs.read_answers,
    "squad": squad.load,
    "csv": lambda path: Table(str(path), COLUMNS, format="csv").load(),
    "json": lambda path: Table(str(path), COLUMNS, format="json").load(),
    "jsonl": lambda path: Table(str(path), COLUMNS, format="jsonl").load(),
    "parquet": lambda path: Table(str(path), COLUMNS, format="parquet").load(),
    "beir": _beir,
    "folder": _folder,
}


def attempt(reader: Callable[[Path], Any], content: bytes) -> Any:
    """What the reader gives, or its error; anything else that is raised fails the test."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "input"
        path.write_bytes(content)
        try:
            return reader(path)
        except DenominatorError as error:
            return error


@pytest.mark.parametrize("name", READERS)
@given(content=st.binary(max_size=200))
@settings(max_examples=examples(25), deadline=None)
def test_any_bytes(name: str, content: bytes) -> None:
    attempt(READERS[name], content)


@pytest.mark.parametrize("name", READERS)
@given(text=st.text(alphabet='{}[]",:\\ \t\n\r#-+.eE01dq\u2028é', max_size=120))
@settings(max_examples=examples(25), deadline=None)
def test_text_that_looks_like_data(name: str, text: str) -> None:
    attempt(READERS[name], text.encode())


@given(content=st.binary(min_size=1, max_size=80), cut=st.integers(0, 30), flip=st.integers(0, 200))
@settings(max_examples=examples(25), deadline=None)
def test_damaged_gzip(content: bytes, cut: int, flip: int) -> None:
    packed = bytearray(gzip.compress(content))
    packed[flip % len(packed)] ^= 0x55
    attempt(READERS["questions"], bytes(packed[: len(packed) - cut]))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=4)
    | st.sampled_from(["q1", "d1", "answerable", "unanswerable", "partial", "unlabelled", "en"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["document_id", "start", "end", "whole", "text", "id", "score", "doc", "speaker", "d1", ""]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
EVIDENCE = st.fixed_dictionaries(
    {"document_id": st.sampled_from(["d1", "d2"])},
    optional={"start": st.integers(0, 5), "end": st.integers(0, 9), "whole": st.booleans()},
)
QUESTION = st.fixed_dictionaries(
    {"id": st.text(min_size=1, max_size=3)},
    optional={
        "question": st.text(min_size=1, max_size=3) | VALUES,
        "state": st.sampled_from(["answerable", "unanswerable", "partial", "unlabelled", None]) | VALUES,
        "gold": st.lists(EVIDENCE | st.lists(EVIDENCE, max_size=2), max_size=3) | VALUES,
        "grades": st.dictionaries(st.text(max_size=2), st.integers(-2, 3), max_size=2) | VALUES,
        "needs_review": VALUES,
        "slice": st.dictionaries(st.text(max_size=2), VALUES, max_size=2),
        "answer": VALUES,
        "history": VALUES,
        "lang": VALUES,
        "other": VALUES,
    },
)


@given(rows=st.lists(QUESTION, min_size=1, max_size=4), assume=st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_no_question_is_skipped(rows: list[dict[str, Any]], assume: bool) -> None:
    content = "\n".join(json.dumps(row) for row in rows).encode()
    made = attempt(lambda path: native.load(None, path, assume_answerable=assume), content)
    if not isinstance(made, DenominatorError):
        assert [q.id for q in made.questions] == [row["id"] for row in rows]
        for question, row in zip(made.questions, rows, strict=True):
            assert len(question.gold) == len(row.get("gold") or [])
            if not assume:
                assert question.answerability == (row.get("state") or "unlabelled")


@given(rows=st.lists(st.dictionaries(st.sampled_from(["question_id", "hits", "error", "depth", "confidence"]), VALUES)))
@settings(max_examples=examples(100), deadline=None)
def test_no_result_is_skipped(rows: list[dict[str, Any]]) -> None:
    made = attempt(runs.read_run, "\n".join(json.dumps(row) for row in rows).encode())
    if not isinstance(made, DenominatorError):
        assert list(made[0]) == [row["question_id"] for row in rows]
        assert [len(r.hits) for r in made[0].values()] == [len(row.get("hits") or []) for row in rows]


TOKEN = st.sampled_from(["q1", "q2", "0", "Q0", "d1", "d2", "1", "-1", "2.5", "nan", "#x", "é"])
LINE = st.lists(TOKEN, max_size=7).map(" ".join)


@given(lines=st.lists(LINE | st.just("q1 Q0 d1 1 2.5 t") | st.just("q2\tQ0\td1\t1\t2.5\tt  "), max_size=5))
@settings(max_examples=examples(150), deadline=None)
def test_no_hit_is_skipped(lines: list[str]) -> None:
    made = attempt(trec.read_run, "\n".join(lines).encode())
    if not isinstance(made, DenominatorError):
        assert sum(len(r.hits) for r in made[0].values()) == sum(
            bool(line.strip()) and not line.startswith("#") for line in lines
        )


@given(lines=st.lists(LINE | st.sampled_from(["q1 0 d1 1", "q1\t0\td2\t0", "q2 0 d1 1"]), max_size=5))
@settings(max_examples=examples(150), deadline=None)
def test_no_judgement_is_skipped(lines: list[str]) -> None:
    made = attempt(trec.read_qrels, "\n".join(lines).encode())
    if not isinstance(made, DenominatorError):
        read = [line.split() for line in lines if line.strip() and not line.startswith("#")]
        assert {(q, d) for q, mine in made[0].items() for d in mine} == {(row[0], row[-2]) for row in read}
