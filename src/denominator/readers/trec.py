"""TREC qrels and runs, and the three-column qrels of BEIR.

Columns are separated by blanks or tabs (ASCII only, so an id may hold any other character). A line that begins with
`#` is a comment; comments and blank lines are counted in a note. The rank column of a run is not read: the score
decides, as in trec_eval. Text after the sixth column is passed over, as there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from denominator.errors import ConfigError, InputError, listing
from denominator.readers.build import dataset, default_name
from denominator.readers.native import MOST_GRADE
from denominator.readers.textfiles import as_path, byte_lines, decode, one_record
from denominator.types import Dataset, Hit, Question, Result

_HEADER = (
    {"query-id", "query_id", "queryid", "qid", "question_id"},
    {"corpus-id", "corpus_id", "corpusid", "doc-id", "doc_id", "docid", "docno", "document_id"},
    {"score", "grade", "rel", "relevance", "label"},
)
_TREC = "query 0 document grade"
_BEIR = "query-id corpus-id score"


def _lines(path: Path, comments: list[int]) -> Iterator[tuple[int, bytes]]:
    for number, line in byte_lines(path):
        if line.startswith(b"#"):
            comments.append(number)
        elif line.strip():
            yield number, line


def _shown(line: bytes) -> str:
    return repr(line[:80].decode("utf-8", "backslashreplace"))


def _whole(token: bytes) -> int | None:
    digits = token.removeprefix(b"-").removeprefix(b"+")
    return int(token) if digits.isdigit() and len(digits) <= 18 else None


def _float(token: bytes) -> float | None:
    try:
        value = float(token)
    except ValueError:
        return None
    return value if math.isfinite(value) and b"_" not in token else None


def _split(line: bytes) -> list[bytes]:
    """Tab-separated three columns (BEIR: ids may hold blanks), else columns between blanks."""
    tabbed = line.split(b"\t")
    if len(tabbed) == 3:
        stripped = [part.strip() for part in tabbed]
        if all(stripped):
            return stripped
    return line.split()


def _other_width(path: Path, number: int, line: bytes, columns: int, expected: str) -> InputError:
    return InputError(f"has {columns} columns", path=path, line=number, found=_shown(line), expected=expected)


def read_qrels(path: str | Path, *, min_grade: int = 1) -> tuple[dict[str, dict[str, int]], tuple[str, ...]]:
    """Grades by query and document in the order of the file, and notes.

    Four columns (`query iteration document grade`) or three (`query-id corpus-id score`, with or without that
    header line). With `min_grade` above 1, lower grades become 0, which is said in a note. The same judgement twice
    is kept once and counted; two grades for one pair are an error that names both lines.
    """
    path = as_path(path)
    if isinstance(min_grade, bool) or not isinstance(min_grade, int) or min_grade < 1:
        raise ConfigError(f"min_grade is {min_grade!r}; it must be a whole number of at least 1")
    grades: dict[str, dict[str, int]] = {}
    places: dict[tuple[str, str], int] = {}
    comments: list[int] = []
    width = first = repeated = lowered = 0
    for number, line in _lines(path, comments):
        with one_record:
            fields = _split(line)
            if not width:
                if len(fields) not in (3, 4):
                    raise _other_width(path, number, line, len(fields), f"4 ({_TREC}) or 3 ({_BEIR})")
                width, first = len(fields), number
                names = [field.decode("utf-8", "replace").lower() for field in fields]
                if width == 3 and all(name in known for name, known in zip(names, _HEADER, strict=True)):
                    continue
            if len(fields) != width:
                raise _other_width(
                    path, number, line, len(fields), f"{width} as in line {first} ({_TREC if width == 4 else _BEIR})"
                )
            grade = _whole(fields[-1])
            if grade is None or abs(grade) > MOST_GRADE:
                raise InputError(
                    "is not a whole number" if grade is None else "is out of range",
                    path=path,
                    line=number,
                    field="grade",
                    found=_shown(fields[-1]),
                    expected=f"a whole number of at most {MOST_GRADE} in the last column",
                )
            query, doc = decode(fields[0], path, number), decode(fields[-2], path, number)
            mine = grades.setdefault(query, {})
            if 0 < grade < min_grade:
                grade, lowered = 0, lowered + 1
            before = places.setdefault((query, doc), number)
            if before != number:
                if mine[doc] != grade:
                    raise InputError(
                        f"a second grade for query {query!r} and document {doc!r}, first in line {before}",
                        path=path,
                        line=number,
                        field="grade",
                        found=f"{grade} beside {mine[doc]}",
                        expected="one grade for each pair",
                    )
                repeated += 1
                continue
            mine[doc] = grade
    if not grades:
        raise InputError("holds no judgements", path=path, expected=f"lines of {_TREC}")
    notes = []
    if comments:
        notes.append(f"comment lines passed over: {len(comments)} (first: line {comments[0]})")
    if repeated:
        notes.append(f"judgements that were there twice, kept once: {repeated}")
    if min_grade > 1:
        notes.append(f"min_grade {min_grade}: {lowered} judgements below it count as not relevant (0)")
    return grades, tuple(notes)


def questions_of(grades: dict[str, dict[str, int]]) -> Iterator[Question]:
    """One unlabelled question for each query of the qrels; a grade > 0 is gold, grade 0 is judged not relevant."""
    for query, mine in grades.items():
        yield Question(query, answerability="unlabelled", grades=mine)


def load_qrels(path: str | Path, *, name: str = "", assume_answerable: bool = False, min_grade: int = 1) -> Dataset:
    """A data set without documents and question texts: what `score` needs for a TREC run."""
    grades, notes = read_qrels(path, min_grade=min_grade)
    return dataset(
        (),
        questions_of(grades),
        name=name or default_name(path),
        assume_answerable=assume_answerable,
        corpus=False,
        source=str(path),
        notes=notes,
    )


def read_run(path: str | Path) -> tuple[dict[str, Result], tuple[str, ...]]:
    """Results by query from `query Q0 document rank score tag`, in the order of the file, and notes.

    A document twice for one query is kept as it stands (ranking keeps the better place) and counted in a note.
    """
    path = as_path(path)
    rows: dict[str, list[Hit]] = {}
    seen: dict[str, set[str]] = {}
    names: dict[bytes, str] = {}
    comments: list[int] = []
    hits: list[Hit] = []
    mine: set[str] = set()
    last = b""
    repeated = extra = 0
    bad: dict[str, None] = {}
    first_bad: tuple[int, str] | None = None
    for number, line in _lines(path, comments):
        fields = line.split()
        if len(fields) < 6:
            raise _other_width(path, number, line, len(fields), "6: query Q0 document rank score tag")
        extra += len(fields) > 6
        score = _float(fields[4])
        if score is None:
            first_bad = first_bad or (number, _shown(fields[4]))
            bad[decode(fields[0], path, number)] = None
            continue
        doc = names.get(fields[2])
        if doc is None:  # ids come again and again: one text for each
            doc = names.setdefault(fields[2], decode(fields[2], path, number))
        if fields[0] != last:
            last = fields[0]
            query = decode(last, path, number)
            mine = seen.setdefault(query, set())
            hits = rows.setdefault(query, [])
        repeated += doc in mine
        mine.add(doc)
        hits.append(Hit(doc, doc, score))
    if first_bad is not None:
        few = len(bad) == 1
        many = f"question {next(iter(bad))!r}" if few else f"in lines of {len(bad)} questions: {listing(bad)}"
        raise InputError(
            f"is not a finite number (bad_score), {many}",
            path=path,
            line=first_bad[0],
            field="score",
            found=first_bad[1],
            expected="a finite number in the fifth column",
        )
    if not rows:
        raise InputError("holds no hits", path=path, expected="lines of query Q0 document rank score tag")
    notes = []
    if comments:
        notes.append(f"comment lines passed over: {len(comments)} (first: line {comments[0]})")
    if repeated:
        notes.append(f"documents that were there twice for a question, the better place counts: {repeated}")
    if extra:
        notes.append(f"lines with text after the sixth column, which is not read: {extra}")
    return {query: Result(tuple(mine)) for query, mine in rows.items()}, tuple(notes)


@dataclass(frozen=True, slots=True)
class Qrels:
    """TREC or BEIR qrels as questions without texts; relative paths are read from the folder of the call."""

    qrels: str
    name: str = ""
    assume_answerable: bool = False
    min_grade: int = 1

    def load(self) -> Dataset:
        return load_qrels(
            self.qrels, name=self.name, assume_answerable=self.assume_answerable, min_grade=self.min_grade
        )
