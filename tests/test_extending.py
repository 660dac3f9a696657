"""docs/extending.md, done: its package is installed with pip and swept beside our own parts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "extension_package"
PAGE = HERE.parent / "docs" / "extending.md"
BLOCK = re.compile(r"^```\w+ shop-search/(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".yaml", ".toml")
    }


def test_the_page_shows_the_files_that_are_tested():
    shown = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    tested = files_of(PACKAGE)
    tested.pop("src/shop_search/__init__.py")
    assert shown == tested


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The page's files in a folder with a blank, installed by pip as a user would, into a folder of its own."""
    pytest.importorskip("hatchling", reason="needs the extra dev")
    base = tmp_path_factory.mktemp("a user")
    source, site = base / "shop-search", base / "site"
    for name, text in dict(BLOCK.findall(PAGE.read_text(encoding="utf-8"))).items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    shutil.copy(PACKAGE / "src/shop_search/__init__.py", source / "src/shop_search/__init__.py")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", str(site), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (site / "shop_search" / "chunkers.py").is_file()
    assert list(site.glob("shop_search-*.dist-info"))
    return base


def call(base, *arguments, ok=True):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "DENOMINATOR"))}
    done = subprocess.run(
        [sys.executable, "-m", "denominator", *arguments],
        cwd=base,
        env=environment | {"PYTHONPATH": str(base / "site"), "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def few(installed):
    """The bundled documents with the first answerable and the first unanswerable questions."""
    from denominator.readers.native import Demo

    data = Demo().load()
    assert len(data.documents) > 20
    folder = installed / "few"
    folder.mkdir()
    bundled = HERE.parent / "src" / "denominator" / "demo"
    shutil.copy(bundled / "corpus.jsonl", folder)
    rows = [json.loads(line) for line in (bundled / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [r for r in rows if r["state"] == "answerable"][:10] + [r for r in rows if r["state"] == "unanswerable"][:4]
    (folder / "questions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
    return data


GRID = ("--config-dir", "shop-search/conf", "dataset=native", "dataset.folder=few", "reranker=none", "answerer=none")


@pytest.mark.slow
def test_a_sweep_of_a_users_parts_beside_ours(installed):
    """The page's own command, on the bundled data."""
    (line,) = re.findall(r"^\$ denominator (sweep .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    call(installed, *line.split(), "-q")
    cells = {cell["name"]: cell for cell in json.loads(call(installed, "runs", "--json"))["cells"]}
    assert set(cells) == {f"{c} · {e} · none" for c in ("paragraphs", "fixed_128") for e in ("letters", "bm25")}
    recall = {name: cell["metrics"]["recall@5"] for name, cell in cells.items()}
    assert len({value["n"] for value in recall.values()}) == 1
    assert all(0.1 < value["value"] <= 1 for value in recall.values())


def test_the_numbers_are_those_of_the_users_code(installed, few, monkeypatch):
    """The ranking that was recorded is the one that the user's functions give when they are called by hand."""
    monkeypatch.syspath_prepend(str(installed / "site"))
    from shop_search.chunkers import Paragraphs
    from shop_search.retrievers import LetterRuns, pieces

    from denominator.cache import Cache
    from denominator.pipeline import Cell, Latency, run_cell
    from denominator.readers.native import Native
    from denominator.rerankers import NoRerank
    from denominator.types import Plan

    part = Native(folder=str(installed / "few"))
    cell = Cell("c", {}, part, Paragraphs(), LetterRuns(), NoRerank(), None, Plan(), Latency(0))
    outcomes = run_cell(cell, Cache(None)).outcomes
    chunks = {
        (d.id, d.text[a:b]): f"{d.title}\n{d.text[a:b]}" if d.title else d.text[a:b]
        for d in few.documents
        for a, b in [(c.start, c.end) for c in Paragraphs().chunk(d)]
    }
    for document in few.documents:
        for chunk in Paragraphs().chunk(document):
            assert len(chunk.text) >= 40 or chunk.end == len(document.text.rstrip())
    texts = {d.id: d.text for d in few.documents}
    for outcome in outcomes:
        asked = pieces(outcome.question, 3)
        best = max(len(asked & pieces(text, 3)) / len(asked) for text in chunks.values())
        first = outcome.hits[0]
        assert first.score == pytest.approx(best, abs=1e-6)
        assert (first.doc, texts[first.doc][first.start : first.end]) in chunks


@pytest.mark.slow
def test_settings_are_checked_before_any_work(installed, few):
    assert "least must be at least 0, found -1" in call(
        installed, "run", *GRID, "chunker=paragraphs", "chunker.least=-1", ok=False
    )
    said = call(installed, "run", *GRID, "chunker=paragraphs", "chunker.leest=80", ok=False)
    assert "least" in said.replace("leest", "")
    assert "paragraph" in call(installed, "run", *GRID, "chunker=paragraphz", ok=False)


@pytest.mark.slow
def test_a_function_is_enough(installed, few):
    folder = installed / "pages"
    folder.mkdir()
    pages = [{"id": "warranty", "text": "Two years."}, {"id": "returns", "text": "Thirty days."}]
    asked = [("q1", "my kettle is broken", "warranty"), ("q2", "can I send it back", "returns")]
    questions = [{"id": i, "question": q, "state": "answerable", "gold": [{"document_id": d}]} for i, q, d in asked]
    for name, rows in (("corpus", pages), ("questions", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    (line,) = re.findall(r"^\$ denominator (run .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    call(installed, *line.split(), "out=pages-out", "ks=[1]", "-q")
    found = json.loads(call(installed, "runs", "--out", "pages-out", "--json"))
    assert found["cells"][0]["metrics"]["recall@1"]["value"] == 1.0


def test_a_change_of_the_class_is_seen(installed, few, monkeypatch):
    monkeypatch.syspath_prepend(str(installed / "site"))
    from shop_search.retrievers import LetterRuns

    from denominator.cache import describe

    known = describe(LetterRuns())
    assert known["part"] == "shop_search.retrievers.LetterRuns"
    assert known["source"]
    assert describe(LetterRuns(letters=4)) != known
