"""SciFact: BM25 as published within .005 of the published figures over 300, and beside it the 188 with evidence."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from types import ModuleType

import pytest

from denominator.cache import Cache
from denominator.chunkers import WholeDocument
from denominator.embedders import BM25
from denominator.pipeline import Cell, CellResult, Latency, run_cell
from denominator.readers import native
from denominator.rerankers import NoRerank
from denominator.scoring import as_cell, score
from denominator.types import Plan
from tests.conftest import Given, script_of, shared_path

FOLDER = Path(__file__).resolve().parents[1] / "experiments" / "scifact"
PUBLISHED = {"ndcg@10": 0.679, "recall@100": 0.925}


@pytest.fixture(scope="module")
def folder() -> Path:
    return shared_path("data/scifact")


@pytest.fixture(scope="module")
def result(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> CellResult:
    data = native.load(folder / "corpus.jsonl.gz", folder / "questions.jsonl.gz", assume_answerable=True)
    cell = Cell(
        "whole · bm25 · none",
        {},
        Given(data),
        WholeDocument(),
        BM25(k1=0.9, b=0.4, language="porter"),
        NoRerank(),
        plan=Plan(ks=(5, 10, 100), headline="ndcg@10", slices=("no_evidence_in_gold",)),
        latency=Latency(questions=0),
    )
    return run_cell(cell, Cache(tmp_path_factory.mktemp("cache")), dataset=data)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_of(FOLDER / "table.py")


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_300_as_published(result: CellResult, name: str) -> None:
    found = result.summary.metrics[name]
    assert found.n == 300
    assert found.value == pytest.approx(PUBLISHED[name], abs=0.005)
    assert result.summary.ledger.label_source == "assumed"
    assert any("300 unlabelled questions with gold are taken as answerable" in note for note in result.notes)


def test_the_188_whose_gold_holds_evidence(result: CellResult) -> None:
    slices = result.summary.slices["no_evidence_in_gold"]
    with_, without = slices["false"]["ndcg@10"], slices["true"]["ndcg@10"]
    assert (with_.n, without.n) == (188, 112)
    whole = result.summary.metrics["ndcg@10"]
    assert with_.value is not None
    assert without.value is not None
    assert (188 * with_.value + 112 * without.value) / 300 == pytest.approx(whole.value, abs=1e-12)
    assert with_.ci_low is not None
    assert without.ci_high is not None
    assert with_.ci_low > without.ci_high  # two kinds of question, far apart


def test_figures_by_a_few_lines_of_their_own(folder: Path, result: CellResult) -> None:
    """nDCG@10 and recall@100 from the hits and the file of judgements, without our metrics or readers."""
    qrels: dict[str, set[str]] = {}
    for line in (folder / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            qrels.setdefault(query, set()).add(document)
    with gzip.open(folder / "questions.jsonl.gz", "rt", encoding="utf-8") as rows:
        evidence = {str(q["id"]) for q in map(json.loads, rows) if q["source_state"] != "NOT_ENOUGH_INFO"}
    gains, recalls = {}, {}
    for outcome in result.outcomes:
        ranking, gold = [hit.doc for hit in outcome.hits], qrels[outcome.id]
        dcg = sum(1 / math.log2(rank + 1) for rank, doc in enumerate(ranking[:10], 1) if doc in gold)
        gains[outcome.id] = dcg / sum(1 / math.log2(rank + 1) for rank in range(1, min(10, len(gold)) + 1))
        recalls[outcome.id] = len(gold & set(ranking[:100])) / len(gold)
    assert len(evidence) == 188
    for name, values in (("ndcg@10", gains), ("recall@100", recalls)):
        assert sum(values.values()) / 300 == pytest.approx(result.summary.metrics[name].value, abs=1e-12)
    mine = sum(gains[q] for q in evidence) / 188
    assert mine == pytest.approx(result.summary.slices["no_evidence_in_gold"]["false"]["ndcg@10"].value, abs=1e-12)


def test_the_table_of_the_experiment_is_what_the_run_gives(result: CellResult, script: ModuleType) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert text.split("<!-- table -->\n")[1].split("<!-- /table -->")[0] == script.table(result.outcomes) + "\n"


def test_the_interval_of_the_move_by_hand(result: CellResult, script: ModuleType) -> None:
    slices = result.summary.slices["no_evidence_in_gold"]
    a, b = slices["false"]["ndcg@10"], slices["true"]["ndcg@10"]
    by, low, high = script.moved(result.outcomes, "ndcg@10")
    assert None not in (a.value, a.ci_low, a.ci_high, b.value, b.ci_low, b.ci_high)
    assert by == pytest.approx(a.value - result.summary.metrics["ndcg@10"].value, abs=1e-12)  # type: ignore[operator]
    assert low == pytest.approx(by - 112 / 300 * math.sqrt((a.value - a.ci_low) ** 2 + (b.ci_high - b.value) ** 2))  # type: ignore[operator]
    assert low < by < high


def test_the_experiment_has_these_settings(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration composes to the parts that are measured here."""
    from denominator import cli

    monkeypatch.setenv("DENOMINATOR_DATA", str(folder.parent))
    words = ["run", "--config-dir", str(FOLDER / "conf"), "+experiment=scifact", f"out={tmp_path}", "--cfg", "job"]
    assert cli.main(words) == 0
    said = capfd.readouterr().out
    for setting in ("k1: 0.9", "b: 0.4", "language: porter", "assume_answerable: true", "headline: ndcg@10"):
        assert setting in said


def test_a_trec_run_of_it_scores_the_same(folder: Path, result: CellResult, tmp_path: Path) -> None:
    """The ranking written as a TREC run and scored against the qrels file: `score` says what the cell said."""
    run = tmp_path / "bm25.trec"
    with run.open("w", encoding="utf-8") as file:
        for o in result.outcomes:
            file.writelines(f"{o.id} Q0 {hit.doc} {hit.rank} {hit.score!r} bm25\n" for hit in o.hits)
    made = score(folder / "qrels.tsv", run, ks=(5, 10, 100), assume_answerable=True, depth=100)
    for name in ("ndcg@10", "recall@5", "recall@100"):
        assert made.summary.metrics[name].value == pytest.approx(result.summary.metrics[name].value, abs=1e-12)
    assert made.summary.metrics["judged@10"].n == 300
    assert len(as_cell(made, "bm25", {}).cell_key) == 64
