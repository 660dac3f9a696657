"""The published schemas: every data set validates, whatever a reader takes is taken, and broken files are refused.

`jsonschema` is the independent judge. A schema may let through what only the reader can see; those cases are listed.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from denominator import schema
from denominator.cli import main
from denominator.errors import DenominatorError
from denominator.readers import native, runs
from tests.conftest import examples, shared_path
from tests.test_readers_fuzz import QUESTION, VALUES
from tests.test_readers_native import BROKEN, GOOD
from tests.test_readers_runs import ANSWERS, RUNS

jsonschema = pytest.importorskip("jsonschema", reason="the schemas are checked with the package jsonschema")


def validator(name: str) -> Any:
    made = schema.schema(name)
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


def refused(name: str, content: str | bytes) -> bool:
    """Whether the schema refuses a line of the content; a line that is no JSON is nothing a schema could judge."""
    check = validator(name)
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not check.is_valid(value):
            return True
    return False


def rows(path: Path) -> Iterator[Any]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    for line in text.split("\n")[:-1]:
        yield json.loads(line)


# ------------------------------------------------------------------ what is there


@pytest.mark.parametrize("name", ["mtrag-un", "chunking-eval", "scifact", "clapnq", "nomiracl", "jaquad", "starter"])
def test_public_sets_are_valid(name: str) -> None:
    folder = shared_path(f"data/{name}")
    for stem in ("questions", "corpus"):
        path = next((p for p in (folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz") if p.is_file()), None)
        if path is None:
            assert (name, stem) == ("nomiracl", "corpus")
            continue
        check = validator("questions" if stem == "questions" else "documents")
        n = 0
        for row in rows(path):
            check.validate(row)
            n += 1
        assert n


def test_demo_data_is_valid() -> None:
    folder = resources.files("denominator") / "demo"
    for stem, name in (("questions", "questions"), ("corpus", "documents")):
        check = validator(name)
        for line in (folder / f"{stem}.jsonl").read_text(encoding="utf-8").splitlines():
            check.validate(json.loads(line))


def test_recorded_runs_and_answers_are_valid() -> None:
    for line in (
        '{"question_id": "b", "hits": [{"id": "d#0", "doc": "d", "score": 2, "start": 0, "end": 4}, "e"], "depth": 5}',
        '{"question_id": "a", "hits": []}',
        '{"question_id": "g", "hits": [{"id": "d#0", "document_id": "d"}]}',
        '{"question_id": "c", "error": "time-out"}',
        '{"question_id": "f", "hits": ["x", "x"], "error": null, "confidence": 0.5}',
    ):
        validator("run").validate(json.loads(line))
    for row in rows(shared_path("data/nomiracl") / "outputs.jsonl.gz"):
        validator("answers").validate({"question_id": row["question_id"], "answer": row["output"]})
        break


# ------------------------------------------------------------------ what is refused

# What a schema of one line cannot say; the reader's tests hold these refusals.
ONLY_THE_READER = {
    "duplicate question id": "ids of other lines",
    "malformed JSON": "no JSON value at all, or a field that is there twice",
    "half a surrogate pair": "characters, not structure",
    "is not UTF-8": "bytes",
    "is UTF-16": "bytes",
    "holds NUL bytes": "bytes",
    "is empty; expected at least one line": "the file",
    "'golds': unknown field": "names that look like one of ours",
    "is an empty span (empty_span)": "one number against another",
    "is not the same as doc": "one name against another",
    "'hits[0].start': is no span; found [3, 2)": "one number against another",
    "found a number Infinity": "1e999 is a number to JSON",
}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("questions", *case) for case in BROKEN] + [("run", *c) for c in RUNS] + [("answers", *c) for c in ANSWERS],
)
def test_broken_files_are_refused_by_the_schema_or_listed(name: str, content: str | bytes, message: str) -> None:
    listed = [text for text in ONLY_THE_READER if text in message]
    assert refused(name, content) != bool(listed), f"{message}\nlisted: {listed}"


def test_every_listed_exception_occurs() -> None:
    messages = [m for _, m in (*BROKEN, *RUNS, *ANSWERS)]
    assert [text for text in ONLY_THE_READER if not any(text in m for m in messages)] == []


BROKEN_DOCUMENTS = (
    '{"text": "x"}',
    '{"id": 7, "text": "x"}',
    '{"id": "", "text": "x"}',
    '{"id": "d"}',
    '{"id": "d", "text": null}',
    '{"id": "d", "text": 3}',
    '{"id": "d", "text": "x", "title": 3}',
    "[]",
)


@pytest.mark.parametrize("line", BROKEN_DOCUMENTS)
def test_broken_documents(line: str, tmp_path: Path) -> None:
    assert refused("documents", line)
    path = tmp_path / "corpus.jsonl"
    path.write_text(line)
    with pytest.raises(DenominatorError):
        tuple(native.read_documents(path))


# ------------------------------------------------------------------ never stricter than the reader


def taken(read: Any, line: str, folder: Path) -> bool:
    path = folder / "file.jsonl"
    path.write_text(line, encoding="utf-8")
    try:
        read(path)
    except DenominatorError:
        return False
    return True


@given(row=QUESTION)
@settings(max_examples=examples(300), deadline=None)
def test_a_question_that_the_reader_takes_is_valid(
    row: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    line = json.dumps(row)
    if taken(lambda p: tuple(native.read_questions(p)), line, tmp_path_factory.getbasetemp()):
        assert not refused("questions", line), line


def _objects(fields: list[str]) -> Any:
    from hypothesis import strategies as st

    known = {
        "hits": st.lists(
            st.fixed_dictionaries(
                {"id": st.text(min_size=1, max_size=2)},
                optional={
                    k: st.integers(-1, 5) | VALUES for k in ("score", "start", "end", "tokens", "doc", "document_id")
                },
            )
            | st.text(max_size=2),
            max_size=2,
        )
        | VALUES,
        "error": st.sampled_from(["", " ", "x", None]) | VALUES,
    }
    optional = {f: known.get(f, VALUES | st.booleans() | st.text(max_size=2)) for f in fields}
    return st.fixed_dictionaries({"question_id": st.text(max_size=2)}, optional=optional)


@given(row=_objects([*runs.RUN_FIELDS[1:], "results"]))
@settings(max_examples=examples(300), deadline=None)
def test_a_result_that_the_reader_takes_is_valid(row: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    line = json.dumps(row)
    if taken(runs.read_run_jsonl, line, tmp_path_factory.getbasetemp()):
        assert not refused("run", line), line


@given(row=_objects([*runs.ANSWER_FIELDS[1:], "text"]))
@settings(max_examples=examples(200), deadline=None)
def test_an_answer_that_the_reader_takes_is_valid(
    row: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    line = json.dumps(row)
    if taken(runs.read_answers, line, tmp_path_factory.getbasetemp()):
        assert not refused("answers", line), line


def test_the_schema_knows_every_field_of_the_reader() -> None:
    assert set(schema.schema("questions")["properties"]) == set(native.QUESTION_FIELDS)
    assert set(schema.schema("documents")["properties"]) == set(native.DOCUMENT_FIELDS)
    assert set(schema.schema("questions")["$defs"]["evidence"]["properties"]) == set(native.EVIDENCE_FIELDS)
    assert set(schema.schema("run")["properties"]) == set(runs.RUN_FIELDS)
    assert set(schema.schema("run")["$defs"]["hit"]["properties"]) == set(runs.HIT_FIELDS)
    assert set(schema.schema("answers")["properties"]) == set(runs.ANSWER_FIELDS)


# ------------------------------------------------------------------ the command


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in schema.NAMES:
        assert main(["schema", name]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(schema.text_of(name))
    assert main(["schema"]) == 0
    every = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(every)
    check = jsonschema.Draft202012Validator(every | {"$ref": "urn:denominator:schema:questions:1"})
    assert check.is_valid(json.loads(GOOD))
    assert not check.is_valid({"id": "q", "gold": [[]]})  # a reference inside an embedded schema
    assert main(["schema", "nothing"]) == 64
    assert "choose from" in capsys.readouterr().err


def test_a_name_that_is_none() -> None:
    with pytest.raises(KeyError):
        schema.text_of("../secrets")
    parser = argparse.ArgumentParser()
    schema.add_arguments(parser)
    assert parser.parse_args([]).name is None
