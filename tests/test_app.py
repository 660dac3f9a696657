"""A sweep from the command to the record: complete, resumed, failing, interrupted, with secrets. Small own data."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from denominator import masking
from denominator.cli import main
from denominator.errors import StoreError
from denominator.tracking import Store, default_uri, load_sweep
from tests.blank_store import blank_store

ROOT = Path(__file__).resolve().parents[1]
WORDS = (
    *("anchor", "buoy", "cable", "depth", "engine", "float", "gauge", "harbor"),
    *("island", "jetty", "keel", "lantern", "mast", "net", "oar", "pier"),
)


def write_data(folder: Path, *, unlabelled: bool = False) -> None:
    """16 documents of their own words; question i asks for word i. 12 answerable, 2 unanswerable, 1 partial."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [
        {"id": f"d{i:02d}", "text": f"The {word} is number {i}. " + f"Nothing else is said of the {word} here. " * 3}
        for i, word in enumerate(WORDS)
    ]
    questions: list[dict[str, Any]] = [
        {
            "id": f"q{i:02d}",
            "question": f"Which number has the {WORDS[i]}?",
            "state": "answerable",
            "gold": [{"document_id": f"d{i:02d}", "start": 0, "end": len(f"The {WORDS[i]} is number {i}.")}],
            "slice": {"half": "first" if i < 6 else "second"},
        }
        for i in range(12)
    ]
    questions += [
        {"id": f"u{i}", "question": f"Who painted the zeppelin {i}?", "state": "unanswerable", "gold": []}
        for i in (1, 2)
    ]
    questions.append(
        {
            "id": "p1",
            "question": "Which numbers have oar and sail?",
            "state": "partial",
            "gold": [{"document_id": "d14", "start": 0, "end": 20}],
        }
    )
    if unlabelled:
        questions.append({"id": "x1", "question": "What is it?", "gold": []})
    for name, rows in (("corpus", documents), ("questions", questions)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder (with a blank in its name) and one store for the tests that can share them."""
    folder = tmp_path_factory.mktemp("work place")
    write_data(folder / "data")
    blank_store(folder / "denominator-out")
    (folder / "own" / "reranker").mkdir(parents=True)
    text = "_target_: tests.stub_parts.Stub\napi_key: ''\n"
    (folder / "own" / "reranker" / "stub.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield
    masking.forget()
    for key in [k for k in os.environ if k.startswith("DENOMINATOR_")]:
        del os.environ[key]


def call(folder: Path, monkeypatch: pytest.MonkeyPatch, *argv: str, data: str = "data") -> int:
    monkeypatch.chdir(folder)
    own = [f"--config-dir={folder / 'own'}"] if (folder / "own").is_dir() else []
    return main([argv[0], "-q", *own, "dataset=native", f"dataset.folder={data}", *argv[1:]])


def store_of(folder: Path, experiment: str) -> Store:
    return Store(default_uri(folder / "denominator-out"), experiment, folder / "denominator-out")


def hashes(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


GRID = ("chunker=whole,sentences_128", "embedder.k1=0.9,1.5")


def test_a_sweep_end_to_end_then_resumed_then_widened(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("sweep", *GRID, "tracking.experiment=whole")
    assert call(workplace, monkeypatch, *grid) == 0
    said = capsys.readouterr().out
    assert "12 of 15 questions are in the denominator; not in it: 2 unanswerable, 1 partial (strict)" in said
    assert "whole · bm25 k1=0.9 · none" in said
    assert "4 computed" in said
    assert "denominator ui" in said
    assert all(len(line) <= 100 for line in said.splitlines() if "sqlite" not in line and "report" not in line)
    assert sorted(p.name for p in workplace.iterdir()) == ["data", "denominator-out", "own"]
    store = store_of(workplace, "whole")
    cells = store.search("tags.kind = 'cell'")
    assert len(cells) == 4
    assert {c.status for c in cells} == {"FINISHED"}
    assert {c.metrics["eligible_n"] for c in cells} == {12}
    assert all(c.metrics[f"recall_at_{k}__n"] == 12 for c in cells for k in (1, 3, 5, 10))
    assert {c.metrics["recall_at_1"] for c in cells} == {1.0}
    (sweep,) = store.sweeps()
    assert sweep.recorded
    assert sweep.metrics["cells_recorded"] == 4
    assert sweep.tags["command"].startswith("denominator sweep")
    report = workplace / "denominator-out" / "reports" / sweep.tags["sweep_id"] / "report.html"
    assert report.is_file()
    runs = load_sweep(store=store)
    assert len(runs) == 4
    assert all(len(run.outcomes) == 15 for run in runs)

    before = hashes(workplace / "denominator-out" / "artifacts")
    assert call(workplace, monkeypatch, *grid) == 0
    assert "4 recorded before" in capsys.readouterr().out
    assert hashes(workplace / "denominator-out" / "artifacts") == before
    assert len(store.search("tags.kind = 'cell'")) == 4
    assert len(store.sweeps()) == 1

    assert (
        call(workplace, monkeypatch, "sweep", "chunker=whole,sentences_128", "embedder.k1=0.9,1.2,1.5", grid[-1]) == 0
    )
    assert "2 computed, 4 recorded before" in capsys.readouterr().out
    assert len(store.search("tags.kind = 'cell'")) == 6
    wide, first = store.sweeps()
    assert len(load_sweep(wide.tags["sweep_id"], store=store)) == 6
    assert len(load_sweep(first.tags["sweep_id"], store=store)) == 4

    assert main(["runs", "--experiment", "whole", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed["cells"]) == 6
    assert listed["cells"][0]["metrics"]["recall@5"]["n"] == 12
    assert main(["runs", "all", "--experiment", "whole"]) == 0
    assert wide.tags["sweep_id"] in capsys.readouterr().out

    assert call(workplace, monkeypatch, "run", "chunker=whole", "embedder.k1=0.9", "force=true", grid[-1]) == 0
    assert "1 computed" in capsys.readouterr().out
    assert len(store.search("tags.kind = 'cell'")) == 7


def test_labels_that_change_make_a_new_run_and_keep_the_old(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(workplace / "changing")
    command = ("run", "chunker=whole", "tracking.experiment=changing")
    assert call(workplace, monkeypatch, *command, data="changing") == 0
    file = workplace / "changing" / "questions.jsonl"
    stamp = file.stat()
    lines = file.read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[0]) | {"state": "unanswerable", "gold": []}
    file.write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n", encoding="utf-8")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert call(workplace, monkeypatch, *command, data="changing") == 0
    capsys.readouterr()
    cells = store_of(workplace, "changing").search("tags.kind = 'cell'")
    assert sorted(c.metrics["eligible_n"] for c in cells) == [11, 12]
    assert len({c.tags["fingerprint"] for c in cells}) == 2


def test_a_failing_cell_is_named_and_the_others_go_on(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB", "raise")
    grid = ("sweep", "chunker=whole,sentences_128", "reranker=stub,none", "tracking.experiment=failing")
    assert call(workplace, monkeypatch, *grid) == 1
    said = capsys.readouterr().out
    assert "2 of 4 cells have no result" in said
    for name in ("whole", "sentences_128"):
        assert f"{name} · bm25 · stub: reranker Stub: RuntimeError: the service refused" in said
        assert f"chunker={name} reranker=stub" in said
    assert "https://***@host.invalid" in said
    store = store_of(workplace, "failing")
    failed = [c for c in store.search("tags.kind = 'cell'") if c.status == "FAILED"]
    assert len(failed) == 2
    for cell in failed:
        trace = (store.out / "artifacts" / cell.run_id / "artifacts" / "traceback.txt").read_text(encoding="utf-8")
        assert "stub_parts.py" in trace
        assert "pw-pw-pw" not in trace
        assert not cell.recorded
        assert "recall_at_5" not in cell.metrics
    (sweep,) = store.sweeps()
    assert sweep.status == "FAILED"
    assert "cells without a result" in sweep.tags["mlflow.note.content"]

    monkeypatch.setenv("STUB", "")
    assert call(workplace, monkeypatch, *grid) == 0
    assert "2 computed, 2 recorded before" in capsys.readouterr().out
    (sweep,) = store.sweeps()
    assert sweep.status == "FINISHED"
    assert len(load_sweep(store=store)) == 4


def test_fail_fast_stops_at_the_first_failure(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB", "raise")
    grid = ("sweep", "chunker=whole", "reranker=stub,none", "embedder.k1=0.9,1.5", "tracking.experiment=fast")
    assert call(workplace, monkeypatch, *grid, "fail_fast=true") == 1
    said = capsys.readouterr().out
    assert "3 not started (fail_fast=true): whole · bm25 k1=1.5 · stub" in said
    assert len(store_of(workplace, "fast").search("tags.kind = 'cell'")) == 1


@pytest.mark.slow
def test_an_interruption_marks_the_cell_and_the_next_start_goes_on(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB", "interrupt")
    grid = ("sweep", "chunker=whole", "reranker=none,stub", "embedder.k1=0.9,1.5", "tracking.experiment=interrupted")
    assert call(workplace, monkeypatch, *grid) == 130
    said = capsys.readouterr().out
    assert "The same command again computes only what is missing." in said
    store = store_of(workplace, "interrupted")
    assert sorted(c.status for c in store.search("tags.kind = 'cell'")) == ["FINISHED", "FINISHED", "KILLED"]
    monkeypatch.setenv("STUB", "")
    assert call(workplace, monkeypatch, *grid) == 0
    cells = store.search("tags.kind = 'cell'")
    assert sorted(c.status for c in cells) == ["FINISHED"] * 4  # the killed run was taken up, not doubled
    assert len({c.tags["cell_key"] for c in cells}) == 4


def test_secrets_reach_neither_files_nor_record_nor_screen(
    tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB", "raise")
    monkeypatch.setenv("MY_KEY", "S3CRET-3")
    write_data(tmp_path / "data")
    blank_store(tmp_path / "denominator-out")
    for name, key in (("typed", "''"), ("env", "${oc.env:MY_KEY}"), ("file", "S3CRET-4")):
        target = tmp_path / "own" / "reranker" / f"{name}.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"_target_: tests.stub_parts.Stub\napi_key: {key}\n", encoding="utf-8")
    assert call(tmp_path, monkeypatch, "sweep", "chunker=whole", "reranker=env,file") == 1
    assert call(tmp_path, monkeypatch, "run", "chunker=whole", "reranker=typed", "reranker.api_key=S3CRET-2") == 1
    assert (
        call(tmp_path, monkeypatch, "run", "reranker=typed", "reranker.api_key=S3CRET-2", "--cfg", "job", "--resolve")
        == 0
    )
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("denominator.tracking.store.time.sleep", lambda _: None)
    uri = "tracking.uri=http://user:S3CRET-1@127.0.0.1:9/"
    assert call(tmp_path, monkeypatch, "sweep", "chunker=whole", "reranker=env,file", uri) == 2
    said = capsys.readouterr()
    assert "the service refused the key ***" in said.out
    assert "http://***@127.0.0.1:9" in said.err
    assert "S3CRET-" not in said.out + said.err
    found = [
        p for p in tmp_path.rglob("*") if p.is_file() and p.parent.name != "reranker" and b"S3CRET-" in p.read_bytes()
    ]
    assert found == []
    config = next((tmp_path / "denominator-out" / "artifacts").glob("*/artifacts/config.yaml"))
    assert "api_key" in config.read_text(encoding="utf-8")


def test_relative_paths_mean_the_folder_of_the_call_even_when_hydra_changes_it(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = "tracking.uri=sqlite:///denominator-out/mlflow.db"
    grid = ("sweep", "chunker=whole", "embedder.k1=0.9,1.2,1.5", "tracking.experiment=moved", uri)
    assert call(workplace, monkeypatch, *grid, "hydra.job.chdir=true") == 0
    capsys.readouterr()
    assert len(load_sweep(store=store_of(workplace, "moved"))) == 3
    assert [p.name for p in workplace.rglob("mlflow.db")] == ["mlflow.db"]
    assert Path.cwd() == workplace


def test_the_store_of_an_earlier_failure_to_record_is_caught_up(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("sweep", "chunker=whole", "embedder.k1=0.9,1.5", "tracking.experiment=away")

    def unsent(self: Store, folder: Path, facts: Any, run_id: str | None) -> str:
        raise StoreError(f"writing a run failed; the outcomes of {facts.name!r} are safe in {folder}")

    with monkeypatch.context() as broken:
        broken.setattr(Store, "_send", unsent)
        assert call(workplace, monkeypatch, *grid) == 2
    assert "are safe in" in capsys.readouterr().out
    assert len(list((workplace / "denominator-out" / "pending").iterdir())) == 2
    assert call(workplace, monkeypatch, *grid) == 0
    said = capsys.readouterr().out
    assert said.count("recorded now, left over from an earlier start") == 2
    assert "2 recorded before" in said
    assert not (workplace / "denominator-out" / "pending").exists()
    assert len(load_sweep(store=store_of(workplace, "away"))) == 2


def test_a_configuration_that_occurs_twice_is_one_cell(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("sweep", "chunker=whole,whole", "reranker=none", "tracking.experiment=twice")
    assert call(workplace, monkeypatch, *grid) == 0
    assert "1 computed" in capsys.readouterr().out
    assert len(store_of(workplace, "twice").search("tags.kind = 'cell'")) == 1


def test_strict_labels_stop_a_sweep_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "data", unlabelled=True)
    assert call(tmp_path, monkeypatch, "sweep", *GRID) == 64
    said = capsys.readouterr().err
    assert "unscorable_questions" in said
    assert "eligibility=lenient" in said
    assert "'x1'" in said
    assert not (tmp_path / "denominator-out" / "mlflow.db").exists()
    assert call(tmp_path, monkeypatch, "run", "chunker=whole", "eligibility=lenient", "slices=[halff]") == 64
    assert "slices: no question has the tag 'halff'; did you mean 'half'?" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "own" / "file").write_text("x", encoding="utf-8")
    assert call(workplace, monkeypatch, "sweep", *GRID, "out=own/file/out") == 64
    assert "choose another folder with out=" in capsys.readouterr().err


def test_a_missing_dataset_is_refused(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(workplace, monkeypatch, "sweep", *GRID, data="nowhere") == 64
    assert "nowhere" in capsys.readouterr().err


# ------------------------------------------------------------------ other processes


def start(folder: Path, *argv: str, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "denominator", argv[0], f"--config-dir={folder / 'own'}"]
    command += ["dataset=native", "dataset.folder=data", *argv[1:]]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DENOMINATOR_", "MLFLOW_"))}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=clean | {"PYTHONPATH": str(ROOT)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.slow
def test_after_kill_9_the_next_start_finishes_without_doubles(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = ("chunker=whole", "reranker=none,stub", "tracking.experiment=killed")
    job = start(workplace, "sweep", *grid, STUB="kill")
    job.communicate(timeout=120)
    assert job.returncode == -9
    store = store_of(workplace, "killed")
    assert sorted(c.status for c in store.search("tags.kind = 'cell'")) == ["FINISHED", "RUNNING"]
    with sqlite3.connect(workplace / "denominator-out" / "mlflow.db") as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    assert call(workplace, monkeypatch, "sweep", *grid) == 0
    cells = store.search("tags.kind = 'cell'")
    assert sorted(c.status for c in cells) == ["FINISHED", "FINISHED"]
    assert len(load_sweep(store=store)) == 2


@pytest.mark.slow
def test_two_launches_at_once_share_the_cells(workplace: Path) -> None:
    grid = (*GRID, "tracking.experiment=together")
    jobs = [start(workplace, "sweep", *grid) for _ in range(2)]
    said = [job.communicate(timeout=180) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    cells = store_of(workplace, "together").search("tags.kind = 'cell'")
    assert len(cells) == 4
    assert len({c.tags["cell_key"] for c in cells}) == 4


@pytest.mark.slow
def test_joblib_workers_give_the_same_bytes(workplace: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    for experiment, launcher in (("serial", ()), ("parallel", ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"))):
        job = start(workplace, "sweep", *GRID, f"tracking.experiment={experiment}", f"out={experiment}", *launcher)
        said = job.communicate(timeout=180)
        assert job.returncode == 0, said
        assert said[1].count("/4]") == 4
    lines = {}
    for experiment in ("serial", "parallel"):
        store = Store(default_uri(workplace / experiment), experiment, workplace / experiment)
        files = store.out / "artifacts"
        lines[experiment] = {
            c.name: (files / c.run_id / "artifacts" / "per_question.jsonl").read_bytes()
            for c in store.search("tags.kind = 'cell'")
        }
    assert len(lines["serial"]) == 4
    assert lines["serial"] == lines["parallel"]


@pytest.mark.slow
def test_an_ascii_locale_changes_nothing(workplace: Path) -> None:
    job = start(
        workplace, "sweep", *GRID, "out=ascii", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING=""
    )
    out, err = job.communicate(timeout=180)
    assert job.returncode == 0, err
    assert "4 computed" in out
    assert out.isascii()
