"""A BEIR folder: `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, plain or gzip.

Queries that have no judgement in the split belong to other splits: they are left out and counted in a note, as BEIR
itself does. Qrels say what is relevant, not what can be answered: questions are unlabelled unless
`assume_answerable` is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from denominator.errors import InputError
from denominator.readers.build import dataset
from denominator.readers.textfiles import Row, Seen, as_path, json_rows, near, one_of, one_record
from denominator.readers.trec import read_qrels
from denominator.types import Dataset, Document, Question


def read_corpus(path: str | Path) -> Iterator[Document]:
    """Documents `{"_id", "text", "title"?}` in the order of the file."""
    path = as_path(path)
    seen = Seen("document")
    for line, values in json_rows(path):
        with one_record:
            row = Row(values, path, line)
            row.known(("_id", "text", "title", "metadata"), {"id": "_id"})
            identifier = row.identifier("_id")
            made = Document(identifier, row.text("text", required=True) or "", row.text("title") or None)
            seen.add(identifier, row, "_id")
            yield made


def read_queries(path: str | Path) -> dict[str, str]:
    """Texts by query id, in the order of the file."""
    path = as_path(path)
    seen = Seen("question")
    texts = {}
    for line, values in json_rows(path):
        with one_record:
            row = Row(values, path, line)
            row.known(("_id", "text", "metadata"), {"id": "_id"})
            identifier = row.identifier("_id")
            text = row.text("text", required=True, empty=False) or ""
            seen.add(identifier, row, "_id")
            texts[identifier] = text
    return texts


def load(
    folder: str | Path, *, split: str = "test", name: str = "", assume_answerable: bool = False, min_grade: int = 1
) -> Dataset:
    """The split's judged questions over the whole corpus. A judged query without a text is an error."""
    folder = as_path(folder)
    if not folder.is_dir():
        raise InputError("no such folder", path=folder, expected="a BEIR folder: corpus.jsonl, queries.jsonl, qrels/")
    qrels = folder / "qrels" / f"{split}.tsv"
    if not qrels.is_file():
        there = sorted(p.stem for p in (folder / "qrels").glob("*.tsv"))
        guess = near(split, there)
        raise InputError(
            "no such split",
            path=qrels,
            found=repr(split),
            expected=f"one of: {', '.join(there) or 'none, there is no .tsv file in it'}",
            fix=f"did you mean {guess!r}?" if guess else None,
        )
    grades, notes = read_qrels(qrels, min_grade=min_grade)
    queries = one_of(folder, "queries.jsonl")
    texts = read_queries(queries)
    absent = sorted(set(grades) - set(texts))
    with one_record:
        if absent:
            raise InputError(
                f"{len(absent)} judged queries have no text",
                path=queries,
                field="_id",
                found=", ".join(repr(i) for i in absent[:5]),
                expected=f"every query of {qrels}",
            )
    said = list(notes)
    if len(texts) > len(grades):
        said.append(f"queries without a judgement in the split {split!r}, left out: {len(texts) - len(grades)}")
    return dataset(
        read_corpus(one_of(folder, "corpus.jsonl")),
        [Question(i, texts[i], "unlabelled", grades=mine) for i, mine in grades.items() if i in texts],
        name=name or folder.absolute().name,
        assume_answerable=assume_answerable,
        source=str(folder),
        notes=said,
    )


@dataclass(frozen=True, slots=True)
class Beir:
    """A BEIR folder; a relative path is read from the folder of the call."""

    folder: str
    split: str = "test"
    name: str = ""
    assume_answerable: bool = False
    min_grade: int = 1

    def load(self) -> Dataset:
        return load(
            self.folder,
            split=self.split,
            name=self.name,
            assume_answerable=self.assume_answerable,
            min_grade=self.min_grade,
        )
