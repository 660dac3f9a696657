"""A corpus in a file gives what the same corpus as objects gives, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator import corpus, duplicates, tokens
from denominator.cache import Cache
from denominator.chunkers import Sentences, WholeDocument
from denominator.corpus import Documents
from denominator.embedders import BM25
from denominator.errors import ConfigError, MeasurementError
from denominator.fingerprint import corpus_hash, ordered_corpus_hash
from denominator.health import examine
from denominator.pipeline import Cell, Latency, run_cell
from denominator.readers import native
from denominator.rerankers import NoRerank
from denominator.retrievers import table
from denominator.retrievers.table import columns_of
from denominator.spans import CorpusIndex
from denominator.types import Chunk, Document
from tests.conftest import examples

DOCUMENTS = (
    Document("b", "zwei Wörter", "Titel"),
    Document("a", ""),
    Document("é", "召回 \U0001f600", ""),
    Document("c", "half a pair \ud800", "\udc00"),
)
texts = st.text(st.characters(), max_size=12)
corpora = st.dictionaries(st.text(max_size=4), st.tuples(texts, st.none() | texts), max_size=9).map(
    lambda made: tuple(Document(i, *rest) for i, rest in made.items())
)


@settings(max_examples=examples(150), deadline=None)
@given(corpora, st.integers(1, 40))
def test_it_is_the_same_sequence(documents: tuple[Document, ...], read: int) -> None:
    before, corpus._READ = corpus._READ, read  # several reads, whatever the size
    try:
        found = Documents.of(iter(documents))
        assert tuple(found) == documents
        assert len(found) == len(documents)
        assert [found[i] for i in range(-len(found), len(found))] == [*documents, *documents]
        assert found[1:] == documents[1:]
        assert found[::-2] == documents[::-2]
        ordered = corpus.in_order(found)
        assert tuple(ordered) == corpus.in_order(documents) == tuple(sorted(documents, key=lambda d: d.id))
        assert [ordered[i] for i in range(len(ordered))] == list(ordered)
        assert corpus.in_order(ordered) is ordered
    finally:
        corpus._READ = before
    assert ordered_corpus_hash(ordered) == corpus_hash(documents)
    for ask in (corpus.names_of, corpus.characters):
        assert ask(found) == ask(documents)
    names = [*corpus.names_of(documents), "", "nobody", "\uffff"]
    for view in (corpus.ids_of, corpus.by_id, corpus.texts_of):
        a, b = view(found), view(documents)
        assert [n in a for n in names] == [n in b for n in names]
        assert (len(a), sorted(a)) == (len(b), sorted(b))
        assert 7 not in a
    assert dict(corpus.by_id(found)) == dict(corpus.by_id(documents))
    assert dict(corpus.texts_of(found)) == dict(corpus.texts_of(documents))
    a, b = CorpusIndex.build(found), CorpusIndex.build(d for d in documents)
    assert (a.ids, a.base.tolist(), a.counted.tolist(), a.token_end.tolist()) == (
        b.ids, b.base.tolist(), b.counted.tolist(), b.token_end.tolist(),
    )  # fmt: skip


def test_the_bound_counts_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bytes a character: 300 characters are 900 bytes."""
    documents = [Document("a", "日" * 200, "日" * 100)]
    monkeypatch.setattr(corpus, "BOUND", 900 + corpus.OBJECT - 1)
    assert isinstance(corpus.held(iter(documents)), Documents)
    monkeypatch.setattr(corpus, "BOUND", 900 + corpus.OBJECT)
    assert corpus.held(iter(documents)) == tuple(documents)


def test_a_stream_becomes_objects_or_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert corpus.held(iter(DOCUMENTS)) == DOCUMENTS
    monkeypatch.setattr(corpus, "BOUND", 3 * corpus.OBJECT)
    assert corpus.held(DOCUMENTS) is DOCUMENTS  # objects that are there already
    found = corpus.held(iter(DOCUMENTS))
    assert isinstance(found, Documents)
    assert tuple(found) == DOCUMENTS
    assert corpus.held(found) is found
    assert corpus.in_memory(found) < 1000
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            found[wrong]
    with pytest.raises(KeyError, match="nobody"):
        corpus.by_id(found)["nobody"]
    assert tuple(pickle.loads(pickle.dumps(found))) == DOCUMENTS  # our own bytes


def test_threads_read_side_by_side() -> None:
    documents = tuple(Document(f"{i:03d}", f"{i} " * 50) for i in range(300))
    found = Documents.of(documents)
    with ThreadPoolExecutor(4) as pool:
        for made in pool.map(lambda _: [found[i] for i in range(300)], range(8)):
            assert tuple(made) == documents


def test_an_order_or_an_id_that_is_wrong_has_no_hash() -> None:
    twice = [Document("a", "x"), Document("a", "y")]
    for hashing in (corpus_hash, ordered_corpus_hash):
        with pytest.raises(MeasurementError) as caught:
            hashing(twice)
        assert (caught.value.code, caught.value.ids) == ("bad_id", ("a",))
    with pytest.raises(ValueError, match="after"):
        ordered_corpus_hash(DOCUMENTS)


def test_the_file_goes_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert corpus.scratch_folder() == tmp_path
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"temporary file in .*absent.*TMPDIR="):
        Documents.of(DOCUMENTS)
    monkeypatch.delenv("TMPDIR")
    assert corpus.scratch_folder().is_dir()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus.tempfile, "TemporaryFile", lambda **_: open("/dev/full", "wb"))  # noqa: SIM115, PTH123
    with pytest.raises(ConfigError, match=r"No space left.*make room"):
        Documents.of(DOCUMENTS)


def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    script = """
        import sys
        from denominator.corpus import Documents
        from denominator.types import Document
        found = Documents.of(Document(str(i), "text " * 100) for i in range(5000))
        print(found[4999].id, flush=True)
        sys.stdin.read()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "4999\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.communicate()
    assert list(tmp_path.iterdir()) == []


def _folder(where: Path) -> Path:
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    with (where / "corpus.jsonl").open("w", encoding="utf-8") as out:
        for i in range(60):
            name = f"d{i * 7 % 60:02d}"
            text = " ".join(words[(i * k + k) % 10] for k in range(1, 30)) + f". {name} ends here. 召回{i}"
            out.write(json.dumps({"id": name, "text": text, "title": f"T {i}" if i % 3 else None}) + "\n")
    with (where / "questions.jsonl").open("w", encoding="utf-8") as out:
        for i in range(12):
            gold = [{"document_id": f"d{i:02d}", "start": 0, "end": 5}]
            record = {"id": f"q{i}", "question": f"{words[i % 10]} d{i:02d}", "state": "answerable", "gold": gold}
            out.write(json.dumps(record) + "\n")
    return where


@pytest.mark.parametrize("chunker", [WholeDocument(), Sentences(8)], ids=lambda c: type(c).__name__)
def test_a_cell_over_either_kind_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunker: WholeDocument | Sentences
) -> None:
    part = native.Native(folder=str(_folder(tmp_path)))
    small = part.load()
    monkeypatch.setattr(corpus, "BOUND", 1000)
    large = part.load()
    assert isinstance(small.documents, tuple)
    assert isinstance(large.documents, Documents)
    assert (large.corpus_hash, large.dataset_hash, large.notes) == (small.corpus_hash, small.dataset_hash, small.notes)
    assert large.questions == small.questions
    cell = Cell("x", {}, part, chunker, BM25(), NoRerank(), latency=Latency(0), chunker_varies=False)
    one, two = (run_cell(cell, Cache(None), dataset=data) for data in (small, large))
    assert one.outcomes == two.outcomes
    assert one.facts == two.facts
    assert one.cell_key == two.cell_key


def test_a_span_that_leaves_a_large_corpus_is_still_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path)
    with (folder / "questions.jsonl").open("a", encoding="utf-8") as out:
        record = {"id": "q", "question": "?", "gold": [{"document_id": "d07", "start": 0, "end": 5, "text": "omega"}]}
        out.write(json.dumps(record) + "\n")
    messages = []
    for bound in (corpus.BOUND, 1000):
        monkeypatch.setattr(corpus, "BOUND", bound)
        with pytest.raises(Exception, match="is not what stands at these offsets") as caught:
            native.Native(folder=str(folder)).load()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab 召,_é\n"), min_size=1, max_size=9), max_size=6), st.integers(0, 30), st.data()
)
def test_tokens_of_chunks_do_not_depend_on_how_many_documents_are_counted_at_once(
    texts: list[str], at_once: int, data: st.DataObject
) -> None:
    documents = [Document(f"d{i}", text) for i, text in enumerate(texts)]
    chunked = []
    for d in documents:
        spans = data.draw(st.lists(st.tuples(st.integers(0, len(d.text) - 1), st.integers(1, 9)), max_size=3))
        chunked.append([Chunk.of(d, a, min(a + n, len(d.text))) for a, n in spans])
    before, table.CHARACTERS = table.CHARACTERS, at_once
    try:
        found = columns_of(documents, chunked)
    finally:
        table.CHARACTERS = before
    assert found.tokens.tolist() == [tokens.count(c.text) for chunks in chunked for c in chunks]


def test_the_doctor_says_the_same_of_either_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path)
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as out:
        hours = "The shop opens at nine and closes at six on every day but Sunday, when nobody is there. " * 3
        near = [hours, hours + "Indeed."]
        for i, text in enumerate(("twice twice", "twice twice", " ", "cafe\u0301 \ufffd", "w " * 9000, *near)):
            out.write(json.dumps({"id": f"x{i}", "text": text}) + "\n")
    small = examine(native.Native(folder=str(folder)).load())
    monkeypatch.setattr(corpus, "BOUND", 1000)
    monkeypatch.setattr(duplicates, "MOST_WINDOWS", 12_000)  # nor are the texts held while they are compared
    data = native.Native(folder=str(folder)).load()
    assert isinstance(data.documents, Documents)
    large = examine(data)
    assert {"equal_documents", "near_documents", "empty_documents", "oversized_documents", "mixed_normalisation"} <= {
        f.code for f in small.findings
    }
    assert large == small
    (left,) = set(examine(data, near=False).findings) - set(large.findings)
    assert left.code == "near_not_looked_for"
    assert {f.code for f in large.findings} - {f.code for f in examine(data, near=False).findings} == {"near_documents"}


def test_texts_by_position() -> None:
    found = Documents.of(DOCUMENTS)
    for documents in (DOCUMENTS, found):
        column = corpus.Column(documents, [3, 0])
        assert list(column) == [DOCUMENTS[3].text, DOCUMENTS[0].text]
        assert list(corpus.Column(documents)[1:3]) == [d.text for d in DOCUMENTS[1:3]]
