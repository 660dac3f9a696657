"""Tables with a column mapping: CSV, TSV, JSON, JSON lines and Parquet, as other evaluation tools export them.

`columns` says which column holds which of our fields (`id`, `question`, `gold`, `answer`, `state` or `answerable`,
`grades`, `needs_review`, `lang`, `cluster`). Cells stay text exactly as written: `0012`, `NA` and `null` are
ordinary texts, nothing is inferred from how a cell looks. Cells of a `.csv` stand between commas; between semicolons or
tabs where its first line holds no comma, or as Excel's line `sep=;` says.

The mapping for `golden_set.json` of the evaluation starter that this project improves on is `STARTER`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from denominator.corpus import held, texts_of
from denominator.errors import ConfigError, InputError
from denominator.readers.build import Evaluate, check_evaluate, dataset, default_name, label
from denominator.readers.native import question_of, read_documents
from denominator.readers.textfiles import (
    Row,
    Seen,
    as_path,
    byte_lines,
    decode,
    json_file,
    json_rows,
    kind,
    near,
    one_record,
    open_bytes,
    parse_json,
)
from denominator.types import LABELS, Dataset, Document, Question

FIELDS = (
    "id",
    "question",
    "gold",
    "answer",
    "state",
    "answerable",
    "grades",
    "needs_review",
    "lang",
    "cluster",
    "history",
)
DOCUMENT_COLUMNS: Mapping[str, str] = MappingProxyType({"id": "id", "text": "text", "title": "title"})
_YES = frozenset({"true", "yes", "1"})
_NO = frozenset({"false", "no", "0"})
_SPELLINGS = "true, yes, 1 or false, no, 0 (in any case)"

Format = Literal["auto", "csv", "tsv", "json", "jsonl", "parquet"]
FORMATS: Mapping[str, Format] = MappingProxyType(
    {".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
)

STARTER: Mapping[str, Any] = MappingProxyType(
    {
        "columns": {
            "id": "id",
            "question": "question",
            "answer": "expected_answer",
            "gold": "expected_source_ids",
            "state": "difficulty",
        },
        "states": {"easy": "answerable", "medium": "answerable", "hard": "answerable", "adversarial": "unanswerable"},
        "slices": ("category", "difficulty"),
    }
)
"""For `golden_set.json`: its README defines adversarial as "the answer is not in the knowledge base"."""


def format_of(path: Path, given: Format = "auto") -> Format:
    """The format by the file's ending (before `.gz`), unless it is given."""
    if given != "auto":
        if given not in FORMATS.values():
            guess = near(str(given), FORMATS.values())
            raise ConfigError(f"format is {given!r}; allowed: auto, csv, tsv, json, jsonl, parquet (near: {guess})")
        return given
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    if ending not in FORMATS:
        raise InputError(
            "has an ending that names no table format",
            path=path,
            found=repr(ending),
            expected=", ".join(FORMATS),
            fix="say format=csv (or the one that it is)",
        )
    return FORMATS[ending]


def _check_names(names: Sequence[str], path: Path, line: int | None) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            "two columns have one name",
            path=path,
            line=line,
            found=", ".join(map(repr, twice)),
            expected="a name for each column",
        )


def _csv_rows(path: Path, delimiter: str) -> Iterator[Row]:
    lines = (decode(raw, path, number) for number, raw in byte_lines(path, ends=True))
    first = next(lines)
    skipped = 0
    if delimiter == ",":
        said = first.rstrip("\r\n")
        if said.casefold().startswith("sep=") and len(said) == 5:  # a line that Excel reads and writes
            delimiter, skipped, first = said[4], 1, next(lines, "")
        elif "," not in first:
            delimiter = next((other for other in ";\t" if other in first), ",")
    before = csv.field_size_limit(sys.maxsize)  # a cell may hold a whole document
    try:
        reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        header: list[str] | None = None
        number, line = 0, 1 + skipped
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                bare = "new-line character" in str(error)
                raise InputError(
                    "holds a bare carriage return" if bare else "is not well-formed",
                    path=path,
                    line=reader.line_num + skipped,
                    found=None if bare else str(error),
                    expected="lines that end in LF or CRLF" if bare else "quoted CSV",
                    fix="save it again as CSV UTF-8, or quote the cell" if bare else None,
                ) from None
            if cells is None:
                break
            start, line = line, reader.line_num + skipped + 1
            if not cells:
                continue
            if header is None:
                header = cells
                _check_names(header, path, start)
                continue
            number += 1
            with one_record:
                if len(cells) != len(header):
                    raise InputError(
                        f"has {len(cells)} cells (row {number})",
                        path=path,
                        line=start,
                        found=repr(delimiter.join(cells)[:80]),
                        expected=f"{len(header)} as in the header",
                        fix="quote a cell that holds the separator",
                    )
                yield Row(dict(zip(header, cells, strict=True)), path, start, nth=number)
    finally:
        csv.field_size_limit(before)


def _json_table(path: Path, rows: str) -> Iterator[Row]:
    value: Any = json_file(path)
    for step in [s for s in rows.split(".") if s]:
        if not isinstance(value, dict) or step not in value:
            there = ", ".join(value) if isinstance(value, dict) else kind(value)
            raise InputError(
                "is missing", path=path, field=rows, found=there[:200], expected=f"an object with {step!r}"
            )
        value = value[step]
    if not isinstance(value, list):
        raise InputError(
            "is no list of rows",
            path=path,
            field=rows or None,
            found=kind(value),
            expected="a list of objects",
            fix="name the field that holds it: rows=…" if isinstance(value, dict) else None,
        )
    for i, item in enumerate(value, 1):
        with one_record:
            row = Row(item if isinstance(item, dict) else {}, path, None, nth=i)
            if not isinstance(item, dict):
                raise row.error("is not an object", found=kind(item), expected="an object")
            yield row


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "Parquet needs the package pyarrow", path=path, fix="pip install pyarrow, or export the table as CSV"
        ) from None
    open_bytes(path).close()  # the same errors for a missing file as everywhere
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            _check_names(file.schema_arrow.names, path, None)
            for batch in file.iter_batches(batch_size=1024):
                for item in batch.to_pylist():
                    number += 1
                    yield Row(item, path, None, nth=number)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            "is no Parquet file" if not number else f"is damaged after row {number}", path=path, found=str(error)[:200]
        ) from None


def read_rows(path: str | Path, *, format: Format = "auto", rows: str = "") -> Iterator[Row]:  # noqa: A002
    """The rows of a table with their places. An empty table is an error."""
    path = as_path(path)
    kind_of = format_of(path, format)
    if kind_of in ("csv", "tsv"):
        found = _csv_rows(path, "," if kind_of == "csv" else "\t")
    elif kind_of == "jsonl":
        found = (Row(values, path, line, nth=i) for i, (line, values) in enumerate(json_rows(path), 1))
    elif kind_of == "json":
        found = _json_table(path, rows)
    else:
        found = _parquet_rows(path)
    empty = True
    for row in found:
        empty = False
        yield row
    if empty:
        raise InputError("has no rows", path=path, expected="at least one row")


def _cell(row: Row, column: str, *, optional: bool = False) -> Any:
    if column not in row.values:
        if optional:
            return None
        guess = near(column, row.values)
        raise row.error(
            "no such column",
            column,
            found=", ".join(repr(name) for name in row.values)[:160],
            expected="the column that the mapping names",
            fix=f"did you mean {guess!r}?" if guess else "",
        )
    return row.values[column]


def _state(row: Row, columns: Mapping[str, str], states: Mapping[str, str]) -> str:
    if "answerable" in columns:
        value = _cell(row, columns["answerable"])
        word = value.strip().casefold() if isinstance(value, str) else value
        if word is True or word in _YES:
            return "answerable"
        if word is False or word in _NO:
            return "unanswerable"
        if value is None or value == "":
            return "unlabelled"
        raise row.error("is not yes or no", columns["answerable"], found=kind(value), expected=_SPELLINGS)
    if "state" not in columns:
        return "unlabelled"
    value = _cell(row, columns["state"])
    if value is None or value == "":
        return "unlabelled"
    if not states:
        return label(row, columns["state"], value)
    if isinstance(value, str) and value in states:
        return states[value]
    guess = near(value, states) if isinstance(value, str) else None
    raise row.error(
        "the mapping does not say what this means",
        columns["state"],
        found=kind(value),
        expected="one of " + ", ".join(states),
        fix=f"did you mean {guess!r}?" if guess else "add it under states",
    )


def _listed(row: Row, column: str, value: Any, separator: str) -> Any:
    """A cell of a CSV table as a list: JSON if it begins with `[`, else ids between separators."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return parse_json(value, row.path, row.line)
    parts = [part.strip() for part in value.split(separator)] if separator else [value]
    if value.strip() and not all(parts):
        raise row.error("holds an empty id", column, found=repr(value), expected=f"ids between {separator!r}")
    return [part for part in parts if part]


def _question_values(row: Row, table: Table, flat: bool) -> dict[str, Any]:
    columns = table.columns if table.cluster is None else {"cluster": table.cluster, **table.columns}
    values: dict[str, Any] = {"state": _state(row, columns, table.states)}
    for name in ("id", "question", "gold", "answer", "grades", "needs_review", "lang", "cluster", "history"):
        if name not in columns:
            continue
        column = columns[name]
        value = _cell(row, column)
        if name == "gold":
            value = (
                _listed(row, column, value, table.separator) if flat else [value] if isinstance(value, str) else value
            )
        elif flat and name in ("answer", "lang", "grades", "needs_review", "history") and value == "":
            value = None
        elif flat and name in ("grades", "history"):
            value = parse_json(value, row.path, row.line)
        elif flat and name == "needs_review":
            word = value.strip().casefold()
            if word not in _YES | _NO:
                raise row.error("is not yes or no", column, found=repr(value), expected=_SPELLINGS)
            value = word in _YES
        values[name] = value
    tags = {name: _cell(row, name) for name in table.slices}
    values["slice"] = {name: value for name, value in tags.items() if not (value is None or (flat and value == ""))}
    return values


def _documents(table: Table) -> Iterator[Document]:
    path = as_path(table.corpus or "")
    columns = dict(table.corpus_columns)
    if format_of(path, table.corpus_format) == "jsonl" and columns == dict(DOCUMENT_COLUMNS):
        yield from read_documents(path)
        return
    seen = Seen("document")
    names = {ours: theirs for ours, theirs in columns.items() if ours != theirs}
    for raw in read_rows(path, format=table.corpus_format):
        with one_record:
            values = {ours: _cell(raw, theirs, optional=ours == "title") for ours, theirs in columns.items()}
            row = Row(values, raw.path, raw.line, nth=raw.nth, names=names)
            identifier = row.identifier("id")
            made = Document(identifier, row.text("text", required=True) or "", row.text("title") or None)
            seen.add(identifier, row)
            yield made


@dataclass(frozen=True, slots=True)
class Table:
    """Questions of a table, and documents of another one; relative paths are read from the folder of the call.

    `columns` maps our fields to columns. `state` takes the four labels exactly, or what `states` translates to them;
    `answerable` takes true/yes/1 and false/no/0. An empty label is unlabelled. `slices` are columns to group by. In CSV
    cells, gold ids stand between `separator`, or the cell is a JSON list. `rows` is the way to the list in a JSON file.
    `cluster` is the column that says which questions belong together; every row must have it.
    """

    questions: str
    columns: Mapping[str, str]
    states: Mapping[str, str] = field(default_factory=dict)
    slices: Sequence[str] = ()
    separator: str = ";"
    format: Format = "auto"
    rows: str = ""
    corpus: str | None = None
    corpus_columns: Mapping[str, str] = field(default_factory=lambda: dict(DOCUMENT_COLUMNS))
    corpus_format: Format = "auto"
    name: str = ""
    assume_answerable: bool = False
    evaluate: Evaluate = "retrieval"
    cluster: str | None = None
    lang: str = "en"

    def __post_init__(self) -> None:
        for name, allowed, given in (
            ("columns", FIELDS, self.columns),
            ("corpus_columns", tuple(DOCUMENT_COLUMNS), self.corpus_columns),
        ):
            for key in given:
                if key not in allowed:
                    guess = near(str(key), allowed)
                    hint = f" (did you mean {guess!r}?)" if guess else ""
                    raise ConfigError(f"{name} names the unknown field {key!r}{hint}; fields: {', '.join(allowed)}")
        if "id" not in self.columns or {"id", "text"} - set(self.corpus_columns):
            raise ConfigError("columns must say where the id is, corpus_columns where id and text are")
        if "state" in self.columns and "answerable" in self.columns:
            raise ConfigError("columns names both state and answerable; one of them decides, not two")
        for value, state in self.states.items():
            if state not in LABELS:
                raise ConfigError(f"states[{value!r}] is {state!r}; allowed: {', '.join(LABELS)}")
        mapped = self.columns.get("cluster")
        if mapped is not None and self.cluster is None:
            raise ConfigError(
                f"columns maps cluster to {mapped!r}, but nothing is clustered unless cluster= asks for it; "
                f"to mend it: cluster={mapped} (for a sweep at the top level), or leave cluster out of columns"
            )
        if mapped is not None and self.cluster not in ("cluster", mapped):
            raise ConfigError(f"cluster is {self.cluster!r}, but columns maps cluster to {mapped!r}; name one column")
        check_evaluate(self.evaluate)

    def load(self) -> Dataset:
        documents = held(_documents(self)) if self.corpus is not None else ()
        texts = texts_of(documents) if self.corpus is not None else None
        flat = format_of(as_path(self.questions), self.format) in ("csv", "tsv")
        names = {ours: theirs for ours, theirs in self.columns.items() if ours != theirs}
        if self.cluster is not None:
            names.setdefault("cluster", self.columns.get("cluster", self.cluster))
        names["state"] = self.columns.get("state") or self.columns.get("answerable") or "state"
        seen = Seen("question")
        made: list[Question] = []
        for raw in read_rows(self.questions, format=self.format, rows=self.rows):
            with one_record:
                values = _question_values(raw, self, flat)
                row = Row(values, raw.path, raw.line, nth=raw.nth, names=names)
                question = question_of(
                    row,
                    texts=texts,
                    text_required="question" in self.columns,
                    cluster=None if self.cluster is None else "cluster",
                    lang=self.lang,
                )
                seen.add(question.id, row)
                made.append(question)
        return dataset(
            documents,
            made,
            name=self.name or default_name(self.questions),
            assume_answerable=self.assume_answerable,
            evaluate=self.evaluate,
            corpus=self.corpus is not None,
            source=self.questions,
        )
