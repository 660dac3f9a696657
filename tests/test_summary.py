"""The table at the end of a sweep: what was measured alike is ranked together, what has no value has no place."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from denominator import summary
from denominator.app import Outcome
from denominator.cli import main
from denominator.progress import console
from denominator.readers.native import Demo
from denominator.tracking import Store, StoredRun
from tests.test_app import _clean, call, store_of, workplace  # noqa: F401  # fixtures


def run(name: str, value: float | None, fingerprint: str = "f", *, incomplete: bool = False) -> StoredRun:
    metrics = {"eligible_n": 7.0, "recall_at_5__n": 7.0} | ({} if value is None else {"recall_at_5": value})
    tags = {"headline_metric": "recall@5", "fingerprint": fingerprint, "incomplete": str(incomplete).lower()}
    if value is None:
        tags["undefined.recall_at_5"] = "depth_below_k"
    return StoredRun(name, name, "FINISHED", metrics, {}, tags, "", 0.0, 1.0)


def shown(runs: list[StoredRun], capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Cell → its place and its value, as a person reads them."""
    console(width=140).print(summary.table_of(summary.ranked(runs)))
    rows = re.findall(
        r"^ *(\S+) +(cell \w+(?: \(incomplete\))?) +(undefined: \w+|[\d.]+) ", capsys.readouterr().out, re.M
    )
    return {name: (place, value) for place, name, value in rows}


def test_one_ranking_is_numbered_and_what_has_no_value_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run("cell c", None), run("cell b", 0.5), run("cell e", 0.9, incomplete=True), run("cell a", 0.5),
            run("cell d", 0.7)]  # fmt: skip
    assert shown(runs, capsys) == {
        "cell d": ("1", "0.700"),
        "cell a": ("2", "0.500"),
        "cell b": ("3", "0.500"),
        "cell c": ("–", "undefined: depth_below_k"),
        "cell e (incomplete)": ("–", "0.900"),
    }
    assert [r.name for r in summary.ranked(runs)] == ["cell d", "cell a", "cell b", "cell c", "cell e"]


def test_values_that_were_measured_differently_have_rankings_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run("cell a", 0.9, "y"), run("cell b", 0.2, "x"), run("cell c", 0.4, "x"), run("cell d", None, "x"),
            run("cell e", 0.1, "y"), run("cell f", 0.3, "x"), run("cell g", 0.8, "")]  # fmt: skip
    found = shown(runs, capsys)
    assert {name: place for name, (place, _) in found.items()} == {
        "cell c": "A1", "cell f": "A2", "cell b": "A3", "cell a": "B1", "cell e": "B2", "cell d": "–", "cell g": "–",
    }  # fmt: skip
    assert list(found) == ["cell c", "cell f", "cell b", "cell a", "cell e", "cell d", "cell g"]


def test_no_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert summary.rankings([]) == []
    assert summary.rankings([run("cell a", None)]) == []
    assert shown([run("cell a", None)], capsys) == {"cell a": ("–", "undefined: depth_below_k")}


def test_a_sweep_has_an_eligible_n_only_where_its_cells_agree_on_one() -> None:
    seven, other, none = run("a", 0.5), run("b", 0.5), run("c", 0.5)
    other.metrics["eligible_n"] = 6.0
    del none.metrics["eligible_n"]
    assert summary.shared_n([seven, seven]) == {"eligible_n": 7}
    assert [summary.shared_n(runs) for runs in ([none], [seven, other], [seven, none], [])] == [{}] * 4


def test_a_sweep_over_two_headlines_names_what_differs(
    workplace: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = ("sweep", "chunker=whole,sentences_128", "headline=recall@1,recall@3", "tracking.experiment=apart")
    assert call(workplace, monkeypatch, *grid) == 0
    said = capsys.readouterr().out
    assert sorted(re.findall(r"^ *([AB]\d) ", said, re.M)) == ["A1", "A2", "B1", "B2"]
    assert "2 rankings (A, B): their values were measured differently (metric, k) and do not compare." in said
    (sweep,) = store_of(workplace, "apart").sweeps()
    assert "2 rankings (A, B)" in sweep.tags["mlflow.note.content"]
    assert "best_cell" not in sweep.tags
    assert "best_value" not in sweep.metrics
    assert main(["runs", "--experiment", "apart"]) == 0
    assert "2 rankings (A, B)" in capsys.readouterr().out
    assert main(["runs", "all", "--experiment", "apart", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["best"] is None


def test_a_failed_cell_is_shown_though_a_waiting_one_has_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells of two experiments may share a name: what happened to each is told apart by its number."""
    name = "fixed_128 · bm25 · none"
    ends = {
        0: {"what": "waiting", "name": name, "error": "away", "away": "the server does not answer"},
        1: {"what": "failed", "name": name, "error": "no such file"},
        2: {"what": "not_started", "name": name, "error": "the disk is full"},
    }
    store = Store(f"sqlite:///{tmp_path}/mlflow.db", "x", tmp_path)
    outcome = Outcome("s1", [], {}, ends, store, tmp_path, away="the server does not answer")
    summary.show(outcome, console())
    said = capsys.readouterr().out
    assert "2 of 3 cells have no result:" in said
    assert f"  {name}: no such file" in said
    assert f"1 not started (the disk is full): {name}" in said
    assert "1 computed and not recorded yet, 2 without a result" in said


def test_documents_in_a_list_are_no_large_corpus(tmp_path: Path) -> None:
    """A reader of one's own may return a list."""
    data = Demo().load()
    data = replace(data, documents=list(data.documents))
    store = Store(f"sqlite:///{tmp_path}/mlflow.db", "x", tmp_path)
    outcome = Outcome("s1", [], {}, {}, store, tmp_path, data={"demo": data})
    (card,) = summary._card(outcome).values()
    assert '"findings"' in card
    assert "near_not_looked_for" not in card
