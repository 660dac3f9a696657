"""`audit`: of a run, of a published mean, and of the history of an MLflow experiment, which is never changed."""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from denominator import auditing, cli
from denominator.auditing import audit, history
from denominator.errors import ConfigError
from denominator.evaluation import summarize
from denominator.pipeline import CellResult, DatasetFacts
from denominator.scoring import log, score
from denominator.tracking import Store, default_uri
from denominator.tracking.calls import open_client
from tests.blank_store import blank_store
from tests.test_scoring import SEED, seed

EXPERIMENT = "history"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    parser = argparse.ArgumentParser()
    auditing.add_arguments(parser)
    assert auditing.run_audit(parser.parse_args(words)) == 0
    return capsys.readouterr().out


# ------------------------------------------------------------------ a run, a mean


def test_audit_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    made = json.loads(call(capsys, "--golden", str(gold), "--run", str(run), "-k", "1,5", "--json"))
    assert set(made["audit"]) == {"recall@1", "recall@5"}
    five = made["audit"]["recall@5"]
    assert (five["naive_one"], five["naive_zero"], five["drop"]) == (0.75, 0.625, pytest.approx(5 / 7))
    assert five["inflation"] == pytest.approx(five["from_empty"] + five["from_labels"])
    out = call(capsys, "--golden", str(gold), "--run", str(run), "-k", "5")
    assert "audit of recall@5: corrected 0.7143 over n = 7, 1 of 8 gold lists empty" in out
    assert "empty_is_one is off by +0.0357 = +0.0357 from empty lists, +0.0000 from labels" in out
    assert "ranx 0.3.21" in out
    assert audit(gold, run, ks=(5,)).audits["recall@5"].r == pytest.approx(5 / 7)


def test_audit_of_a_mean(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--mean", "0.750", "--unanswerable-share", "0.125", "--convention", "one", "--rounded", "0.0005")
    out = call(capsys, *words)
    assert "corrected 0.7143, between 0.71371 and 0.71486" in out
    made = json.loads(call(capsys, *words, "--json"))["recovered"]
    assert made["value"] == pytest.approx(5 / 7)
    words = ("--mean", "0.1", "--unanswerable-share", "0.2", "--convention", "one")
    assert "no corrected value, inconsistent_u" in call(capsys, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "audit needs --golden and --run, or --mean"),
        (["--mean", "0.5"], "--mean needs --unanswerable-share and --convention"),
        (["--mean", "0.5", "--golden", "g"], "not both"),
        (["--golden", "g", "--run", "r", "--convention", "one"], "belong to --mean"),
        (["--golden", "g", "--run", "r", "--dry-run"], "--dry-run belongs to --experiment"),
        (["--golden", "g", "--run", "r", "--metric", "m"], "--metric belongs to --experiment"),
        (["--experiment", "e", "--run", "r"], "--run does not go with --experiment"),
        (["--experiment", "e", "--metric", "m"], "give all of --metric, --unanswerable-share and --convention"),
        (["--experiment", "e", "--artifact", "a"], "both: --artifact, their file, and --golden"),
    ],
)
def test_audit_refuses_half_a_question(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=message):
        call(capsys, *words)


# ------------------------------------------------------------------ history


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one of our cells, a scored run, and four runs of somebody else's."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "out"
    blank_store(folder)
    gold, run = seed(tmp_path)
    report = score(gold, run, ks=(1, 5))
    store = Store.open(default_uri(folder), EXPERIMENT, folder)
    cell = CellResult(
        "c" * 64,
        "fixed · bm25 · none",
        {"chunker": "fixed"},
        report.plan,
        DatasetFacts.of(report.dataset),
        report.outcomes,
        summarize(report.outcomes, report.plan),
        (),
        {},
        {},
    )
    store.log_cell(cell, "sweep1")
    log(report, "search v1", uri=default_uri(folder), experiment=EXPERIMENT, out=folder)
    client = open_client(default_uri(folder))
    for name, metrics in (
        ("bare mean", {"recall_at_5": 0.75}),
        ("no recall", {"loss": 0.3}),
        ("impossible mean", {"recall_at_5": 0.05}),
        ("not a number", {"recall_at_5": float("nan")}),
    ):
        made = client.create_run(store.experiment_id, run_name=name)
        for key, value in metrics.items():
            client.log_metric(made.info.run_id, key, value)
        client.set_terminated(made.info.run_id)
    made = client.create_run(store.experiment_id, run_name="with a table")
    table = {
        "columns": ["qid", "retrieved", "recall"],
        "data": [
            # recalls 1, 1, .5, 1, 0, .5, 1 as in the seed; the unanswerable question scored 1 there
            *([f"q{i}", [f"a{i}", f"b{i}"] if r == 1 else [f"a{i}"] if r else ["x"], r] for i, r in enumerate(SEED)),
            ["u", "[]", 1.0],
        ],
    }
    client.log_text(made.info.run_id, json.dumps(table), "eval_results_table.json")
    client.log_metric(made.info.run_id, "recall_at_5/mean", 0.75)
    client.set_terminated(made.info.run_id)
    return folder


def rows(out: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with sqlite3.connect(out / "mlflow.db") as connection:
        return connection.execute(query, values).fetchall()


def everything(out: Path, run_ids: set[str]) -> dict[str, list[tuple[Any, ...]]]:
    """All that the store holds of these runs, and the bytes of their files."""
    marks = ",".join("?" * len(run_ids))
    ids = sorted(run_ids)
    held = {
        table: sorted(map(repr, rows(out, f"select * from {table} where run_uuid in ({marks})", *ids)))
        for table in ("runs", "metrics", "latest_metrics", "params", "tags")
    }
    files = [(str(p), p.read_bytes()) for i in ids for p in sorted((out / "artifacts" / i).rglob("*")) if p.is_file()]
    return held | {"files": files}  # type: ignore[dict-item]


MEAN = ("--metric", "recall@5", "--unanswerable-share", "0.125", "--convention", "one", "--rounded", "0.0005")


def words(out: Path, *more: str) -> list[str]:
    return ["audit", "--experiment", EXPERIMENT, "--out", str(out), *more]


def test_history_is_corrected_beside_the_originals(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {run_id for (run_id,) in rows(out, "select run_uuid from runs")}
    before = everything(out, old)
    assert cli.main(words(out, *MEAN, "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    found = {run["name"]: run for run in said["runs"]}
    assert [run["how"] for run in said["runs"]] == ["rescored"] * 2 + ["recovered"] + ["impossible"] * 3 + ["recovered"]
    for name in ("fixed · bm25 · none", "search v1"):
        made = found[name]
        five = made["corrected"]["recall@5"]
        assert (five["value"], five["n"]) == (pytest.approx(5 / 7), 7)
        assert made["reported"]["recall@5"] == five["value"]
        by_name = {c["name"]: c["reported"] for c in made["audit"]["recall@5"]["conventions"]}
        assert (by_name["empty_is_one"], by_name["empty_is_zero"]) == (0.75, 0.625)
    recovered = found["bare mean"]["recovered"]
    assert recovered["value"] == pytest.approx(5 / 7)
    assert (recovered["low"], recovered["high"]) == (pytest.approx(0.7137143), pytest.approx(0.7148571))
    assert found["no recall"]["reason"] == "it has no metric 'recall@5' (its metrics: loss)"
    assert "inconsistent_u" in found["impossible mean"]["reason"]
    assert found["not a number"]["reason"]
    assert found["no recall"]["logged"] is None

    assert everything(out, old) == before
    new = {run_id for (run_id,) in rows(out, "select run_uuid from runs")} - old
    assert new == {run["logged"] for run in said["runs"] if run["logged"]}
    assert len(new) == 4
    for name, key in (("search v1", "corrected.recall_at_5"), ("bare mean", "recovered.recall_at_5")):
        metrics = dict(rows(out, "select key, value from latest_metrics where run_uuid = ?", found[name]["logged"]))
        assert metrics[key] == pytest.approx(5 / 7)
        assert "recall_at_5" not in metrics
        assert all(re.match(r"(corrected|recovered|convention|reported)\.", name) for name in metrics)
        tags = dict(rows(out, "select key, value from tags where run_uuid = ?", found[name]["logged"]))
        assert (tags["rescored_from"], tags["kind"], tags["recorded"]) == (found[name]["run_id"], "audit", "true")
    assert (metrics["recovered.recall_at_5__low"], metrics["reported.recall_at_5"]) == (pytest.approx(0.7137143), 0.75)
    scored = dict(rows(out, "select key, value from latest_metrics where run_uuid = ?", found["search v1"]["logged"]))
    assert scored["corrected.recall_at_5__n"] == 7
    assert scored["corrected.recall_at_5__ci_low"] == found["search v1"]["corrected"]["recall@5"]["ci_low"]
    assert scored["convention.recall_at_5.empty_is_one"] == 0.75


def test_a_second_audit_adds_nothing(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(out, *MEAN)) == 0
    first = capsys.readouterr().out
    assert "4 of 7 corrected (2 re-scored, 2 recovered); 4 written, 0 written before" in first
    count = rows(out, "select count(*) from runs")
    assert cli.main(words(out, *MEAN)) == 0
    second = capsys.readouterr().out
    assert "4 of 7 corrected (2 re-scored, 2 recovered); 0 written, 4 written before" in second
    assert rows(out, "select count(*) from runs") == count
    # another reading of the bare mean is another finding
    assert cli.main(words(out, *MEAN[:5], "zero")) == 0
    assert "3 written, 2 written before" in capsys.readouterr().out


def test_dry_run_prints_and_writes_nothing(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {run_id for (run_id,) in rows(out, "select run_uuid from runs")}
    before = everything(out, runs)
    assert cli.main(words(out, *MEAN, "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "nothing was written (--dry-run)" in said
    assert "recall_at_5: mean 0.75, 0.125 of the questions without gold, 1 for an empty list: corrected 0.7143" in said
    assert re.search(r"recall@5 +0\.7143 +0\.7143 +7 +\[0\.3338, 0\.9995\] +0\.7500 +0\.6250 +0\.7143", said)
    assert "cannot be corrected: it has no metric 'recall@5' (its metrics: loss)" in said
    assert {run_id for (run_id,) in rows(out, "select run_uuid from runs")} == runs
    assert everything(out, runs) == before


def test_without_a_convention_a_bare_mean_is_left_and_the_way_is_said(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(out)) == 0
    said = capsys.readouterr().out
    assert "to recover a bare mean give --metric, --unanswerable-share and --convention (its metrics: loss)" in said
    assert "2 of 7 corrected (2 re-scored, 0 recovered)" in said


def test_a_table_of_another_system_is_scored_again(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = str(tmp_path / "golden.jsonl")
    more = ["--golden", gold, "--artifact", "eval_results_table.json", "-k", "5"]
    assert cli.main(words(out, *more, "--id-column", "qid", "--hits-column", "retrieved", "--json")) == 0
    found = {run["name"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    made = found["with a table"]
    assert made["how"] == "rescored"
    assert made["corrected"]["recall@5"]["value"] == pytest.approx(5 / 7)
    assert (made["corrected"]["recall@5"]["n"], made["reported"]["recall@5"]) == (7, 0.75)
    assert found["bare mean"]["how"] == "impossible"
    assert cli.main(words(out, *more, "--dry-run")) == 0
    assert "say which hold the question's id and the retrieved ids: --id-column" in capsys.readouterr().out
    assert cli.main(words(out, *more, "--id-column", "id", "--hits-column", "retrieved", "--dry-run")) == 0
    assert "no column 'id' (there are: qid, retrieved, recall)" in capsys.readouterr().out


def test_nothing_that_can_be_corrected_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    blank_store(folder)
    store = Store.open(default_uri(folder), "foreign", folder)
    client = open_client(default_uri(folder))
    for name, status, value in (("failed", "FAILED", 0.75), ("whole", "FINISHED", 0.9)):
        made = client.create_run(store.experiment_id, run_name=name)
        client.log_metric(made.info.run_id, "recall_at_5", value)
        client.set_terminated(made.info.run_id, status)
    at = ["audit", "--experiment", "foreign", "--tracking-uri", default_uri(folder)]
    assert cli.main([*at, "--metric", "recall_at_5", "--unanswerable-share", "1", "--convention", "one"]) == 2
    said = capsys.readouterr().out
    assert "its status is failed, so recall_at_5 may be the mean of a part" in said
    assert "all_unanswerable" in said
    assert cli.main(["audit", "--experiment", "nowhere", "--tracking-uri", default_uri(folder)]) == 2
    assert "there is no experiment 'nowhere' in this store (there are: foreign" in capsys.readouterr().err
    assert cli.main([*at, "--metric", "m", "--unanswerable-share", "1.5", "--convention", "one"]) == 64
    assert "not a share" in capsys.readouterr().err


def test_changed_outcomes_are_not_corrected(out: Path) -> None:
    store = Store(default_uri(out), EXPERIMENT, out)
    (run,) = [r for r in store.search() if r.name == "search v1"]
    file = out / "artifacts" / run.run_id / "artifacts" / "per_question.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace('"recall@5": 0.5', '"recall@5": 1.0'), encoding="utf-8")
    found = {made.name: made for made in history(store, dry_run=True)}
    assert found["search v1"].how == "impossible"
    assert "per_question.jsonl" in found["search v1"].reason
    assert found["fixed · bm25 · none"].how == "rescored"


def test_an_older_metric_version_is_not_mixed_in(out: Path) -> None:
    store = Store(default_uri(out), EXPERIMENT, out)
    (run,) = [r for r in store.search() if r.name == "search v1"]
    store.client.set_tag(run.run_id, "metric_version", "0")
    found = {made.name: made for made in history(store, dry_run=True)}
    assert found["search v1"].reason.startswith("recorded under metric version 0, and this is 1")
