"""Workers on engines that exist: every launcher gives the same bytes, and no worker takes more cores than its share."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from denominator import app
from denominator.progress import Events, following
from denominator.tracking import Store, default_uri
from tests.test_app import GRID, start, write_data

LAUNCHERS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")),
    "ray": ("hydra_plugins.hydra_ray_launcher", ("hydra/launcher=ray",)),
    "submitit": ("hydra_plugins.hydra_submitit_launcher", ("hydra/launcher=submitit_local",)),
}


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def lines_of(folder: Path, out: str) -> dict[str, bytes]:
    store = Store(default_uri(folder / out), "denominator", folder / out)
    cells = store.search("tags.kind = 'cell'")
    files = {c.name: store.out / "artifacts" / c.run_id / "artifacts" / "per_question.jsonl" for c in cells}
    assert len(files) == len(cells)
    return {name: file.read_bytes() for name, file in files.items()}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("launchers")
    write_data(folder / "data")
    (folder / "own" / "reranker").mkdir(parents=True)
    part = "_target_: tests.stub_parts.Threads\n"
    (folder / "own" / "reranker" / "threads.yaml").write_text(part, encoding="utf-8")
    job = start(folder, "sweep", *GRID, "out=serial")
    said = job.communicate(timeout=240)
    assert job.returncode == 0, said
    return folder, lines_of(folder, "serial")


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_gives_the_same_bytes(name: str, serial: tuple[Path, dict[str, bytes]]) -> None:
    folder, expected = serial
    module, launcher = LAUNCHERS[name]
    if not installed(module):
        pytest.skip(f"{module} is not installed")
    job = start(folder, "sweep", *GRID, f"out={name}", *launcher, HOME=str(folder))
    out, err = job.communicate(timeout=400)
    assert job.returncode == 0, err
    assert "4 computed" in out
    assert err.count("/4]") == 4
    assert lines_of(folder, name) == expected
    assert len(expected) == 4
    left = [
        p for p in (folder / name).rglob("*") if p.suffix in (".pkl", ".lock", ".new") and p.name != "mlflow.db.lock"
    ]
    assert left == []


@pytest.mark.slow
def test_a_launcher_begins_with_every_first_stage(serial: tuple[Path, dict[str, bytes]], tmp_path: Path) -> None:
    """With one worker the order is certain: cells 0 and 1 share a first stage, so 1 waits for its turn."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    folder, _ = serial
    grid = ("chunker=whole", "embedder=bm25,static", "reranker=none,mix")
    job = start(folder, "sweep", *grid, f"out={tmp_path}", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1")
    out, err = job.communicate(timeout=240)
    assert job.returncode == 0, (out, err)
    (log,) = tmp_path.glob("hydra/*/events.jsonl")
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [(e["job"], e["name"]) for e in events if e["what"] == "started"] == [
        (0, "whole · bm25 · none"),
        (2, "whole · static · none"),
        (1, "whole · bm25 · mix"),
        (3, "whole · static · mix"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHERS)
def test_workers_share_the_cores(name: str, serial: tuple[Path, dict[str, bytes]], tmp_path: Path) -> None:
    """A part looks at the thread pools of its worker: with as many workers as cores each has one thread."""
    folder, _ = serial
    module, launcher = LAUNCHERS[name]
    if not installed(module):
        pytest.skip(f"{module} is not installed")
    jobs = f"hydra.launcher.n_jobs={os.cpu_count()}"
    lines = [jobs if line.startswith("hydra.launcher.n_jobs") else line for line in launcher]
    job = start(folder, "sweep", "reranker=threads", "chunker=whole,sentences_128", f"out={tmp_path / 'out'}", *lines,
                HOME=str(folder), THREADS_SEEN=str(tmp_path / "seen"))  # fmt: skip
    out, err = job.communicate(timeout=400)
    assert job.returncode == 0, (out, err)
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text(encoding="utf-8").splitlines()]
    assert seen
    for line in seen:
        assert line["threads"] == 1
        assert line["blas"] == [1] * len(line["blas"])
        assert line["rayon"] == "1"


def test_threads_of_each_launcher() -> None:
    joblib, ray, slurm = (f"hydra_plugins.hydra_{n}_launcher.X" for n in ("joblib", "ray", "submitit"))
    assert app.threads_of({"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}, 8) is None
    for jobs, threads in ((1, 8), (2, 4), (3, 2), (8, 1), (16, 1), (-1, 1), (-2, 1), (-5, 2), (None, 8)):
        assert app.threads_of({"_target_": joblib, "n_jobs": jobs}, 8) == threads, jobs
    assert app.threads_of({"_target_": ray, "ray": {"remote": {"num_cpus": 3}}}, 8) == 3
    assert app.threads_of({"_target_": ray}, 8) == 1
    assert app.threads_of({"_target_": slurm, "cpus_per_task": 4}, 64) == 4
    assert app.threads_of({"_target_": slurm, "cpus_per_task": None}, 64) == 1


def test_workers_begin_with_cells_that_share_no_first_stage() -> None:
    """Neighbours in a grid share a first stage: of two workers one would wait for the other."""
    grid = [
        [f"chunker={c}", f"embedder={e}", f"reranker={r}", "ks=[1]"]
        for c in ("whole", "sentences_128")
        for e in ("bm25", "onnx")
        for r in ("none", "mix", "maxsim")
    ]
    begun = app.apart(grid)
    assert sorted(begun) == sorted(grid)
    assert [(o[0], o[1]) for o in begun] == [(o[0], o[1]) for o in grid[::3]] * 3
    assert [o[2] for o in begun] == ["reranker=none"] * 4 + ["reranker=mix"] * 4 + ["reranker=maxsim"] * 4
    assert app.apart([]) == []


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENOMINATOR_THREADS", "3")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    limits = app._limits(2)
    assert "DENOMINATOR_THREADS" not in limits
    assert limits["OMP_NUM_THREADS"] == "2"


# ------------------------------------------------------------------ what a sweep says while it runs


def said_by(tmp_path: Path, capsys: pytest.CaptureFixture[str], **how: bool) -> str:
    events = Events(tmp_path / "events.jsonl")
    with following(events, ["one", "two"], **how):
        events.say(0, "started")
        events.say(0, "stage", stage="chunk: Fixed")
        events.say(0, "recorded", metric="recall@5", value=0.5, n=12, seconds=1.0)
        events.say(1, "failed", error="out of order")
    return capsys.readouterr().err


def test_plain_lines_json_lines_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = said_by(tmp_path / "a", capsys)
    assert said.splitlines() == ["[1/2] one: recall@5 0.500, n = 12, 1.0 s", "[2/2] two: FAILED: out of order"]
    assert said_by(tmp_path / "b", capsys, quiet=True) == ""
    rows = [json.loads(line) for line in said_by(tmp_path / "c", capsys, quiet=True, json_lines=True).splitlines()]
    assert [(r["name"], r["what"]) for r in rows] == [
        ("one", "started"), ("one", "stage"), ("one", "recorded"), ("two", "failed"),
    ]  # fmt: skip
    assert rows[2]["value"] == 0.5


def test_a_live_display_on_a_terminal_alone(tmp_path: Path) -> None:
    pty: Any = pytest.importorskip("pty")
    code = """if True:
        import sys, time
        from pathlib import Path
        from denominator.progress import Events, following
        events = Events(Path(sys.argv[1]))
        with following(events, ['one', 'two']):
            events.say(0, 'stage', stage='chunk: Fixed')
            time.sleep(0.5)
            events.say(0, 'recorded', metric='m', value=0.5, n=1, seconds=1.0)
            events.say(1, 'failed', error='broken')
            time.sleep(0.5)
    """
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    job = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "events.jsonl")], stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert job.wait(timeout=30) == 0
    said = shown.decode()
    assert "\x1b[" in said  # it moves the cursor
    for text in ("0/2", "chunk: Fixed", "1 recorded, 1 failed", "two: FAILED: broken"):
        assert text in said
