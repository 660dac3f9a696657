"""The tables of experiments/clapnq: two rows of the page are made again, and the arithmetic is checked by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import pytest

from denominator.answerers import Threshold
from denominator.cache import Cache
from denominator.chunkers import WholeDocument
from denominator.embedders import BM25, Static
from denominator.pipeline import Cell, Latency, run_cell
from denominator.readers import native
from denominator.rerankers import NoRerank
from denominator.types import Plan, RecordedRun
from tests.conftest import Given, script_of, shared_path

FOLDER = Path(__file__).resolve().parents[1] / "experiments"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_of(FOLDER / "tables.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedRun]:
    folder = shared_path("data/clapnq")
    data = native.load(folder / "corpus.jsonl.gz", folder / "questions.jsonl.gz")
    cache, plan = Cache(tmp_path_factory.mktemp("cache")), Plan(budget=500, headline="coverage@b500")
    found = []
    for part in (BM25(), Static()):
        name = f"whole · {type(part).__name__.lower()} · none"
        cell = Cell(
            name, {}, Given(data), WholeDocument(), part, NoRerank(), Threshold(), plan, latency=Latency(questions=0)
        )
        made = run_cell(cell, cache, dataset=data)
        found.append(RecordedRun(name, name, name, "", {}, {}, {}, plan, made.outcomes, {}, {}, made.summary.ledger))
    return found


def page(study: str, mark: str) -> list[list[str]]:
    text = (FOLDER / study / "README.md").read_text(encoding="utf-8")
    lines = text.split(f"<!-- {mark} -->\n")[1].split(f"<!-- /{mark} -->")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_ledger_of_the_page(script: ModuleType, runs: list[RecordedRun]) -> None:
    text = (FOLDER / "clapnq" / "README.md").read_text(encoding="utf-8")
    assert script.ledger(runs[0]) in text


def test_two_deciders_of_the_page_are_made_again(script: ModuleType, runs: list[RecordedRun]) -> None:
    summaries = {r.name: script.summarize(r.outcomes, r.plan) for r in runs}
    made = script.deciders(runs, summaries)
    assert [d.names for d in made] == [("whole · static · none",), ("whole · bm25 · none",)]
    lines = script.abstention(made, "whole · bm25 · none").splitlines()[2:]
    for d, line in zip(made, lines, strict=True):
        mine = [cell.strip() for cell in line.strip("|").split("|")]
        (theirs,) = [row for row in page("clapnq", "abstention") if d.names[0] in row[0].split("<br>")]
        assert mine[1:] == theirs[1:]


def test_the_figures_of_a_decider_by_a_few_lines_of_their_own(script: ModuleType, runs: list[RecordedRun]) -> None:
    run = runs[0]
    made = script.Decider((run.name,), run, script.summarize(run.outcomes, run.plan))
    classes = {s: [o for o in run.outcomes if o.state == s] for s in ("answerable", "unanswerable")}
    frr, uar = (sum(bool(o.abstained) for o in classes[s]) / 300 for s in ("answerable", "unanswerable"))
    assert made.youden[0] == pytest.approx(uar - frr, abs=1e-12)
    low, high = made.summary.abstention.recall.ci_low, made.summary.abstention.false_refusal_rate.ci_high
    assert made.youden[1] == pytest.approx(uar - frr - math.hypot(uar - low, high - frr), abs=1e-12)
    confidences = {s: [o.confidence for o in classes[s]] for s in classes}
    cuts = sorted({c for values in confidences.values() for c in values})
    best = max(
        sum(c < t for c in confidences["unanswerable"]) / 300 - sum(c < t for c in confidences["answerable"]) / 300
        for t in cuts
    )
    assert made.seen == pytest.approx(best, abs=1e-12)
    assert made.seen > made.youden[0]  # judged on what it was fitted on it always looks at least as good


def test_a_decider_is_no_better_than_itself(script: ModuleType, runs: list[RecordedRun]) -> None:
    made = script.deciders(runs, {r.name: script.summarize(r.outcomes, r.plan) for r in runs})
    value, low, high = made[0].beyond(made[0])
    assert low <= value == 0 <= high
    there, back = made[0].beyond(made[1]), made[1].beyond(made[0])
    assert there[0] == pytest.approx(-back[0], abs=1e-12)
    assert there[1] == pytest.approx(-back[2], abs=1e-12)


@pytest.mark.parametrize("study", ["clapnq", "mtrag_un"])
def test_every_mark_of_a_page_is_filled(script: ModuleType, study: str) -> None:
    text = (FOLDER / study / "README.md").read_text(encoding="utf-8")
    marks = [name for _, name, _ in script.TABLES.findall(text)]
    assert len(marks) == text.count("<!-- /")
    assert all(text.split(f"<!-- {m} -->\n")[1].split("<!-- /")[0].count("\n") for m in marks)
