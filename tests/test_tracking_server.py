"""The record on a server: MLflow with PostgreSQL and shared artifacts, many workers, accounts, refusals."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from denominator.errors import StoreError
from denominator.tracking import Store, default_uri, load_sweep
from tests import postgres
from tests.blank_store import blank_store
from tests.mlflow_server import serving
from tests.test_app import start, write_data
from tests.test_tracking import make

WORKERS, CELLS = 8, 24

WORKER = """
import json, sys
from pathlib import Path
from tests.test_tracking import make
from denominator.tracking import Store
uri, out, worker = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
store = Store(uri, "team", out)
for i in range(worker, int(sys.argv[4]), int(sys.argv[5])):
    result = make(f"{i:064x}", f"cell {i:02d}", params={"chunker": "fixed", "chunker.size": i})
    run = store.start_cell(result.name, result.cell_key, "s")
    store.log_cell(result, "s", run_id=run, config="a: 1\\n")
"""


def log_in_parallel(uri: str, out: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, uri, str(out), str(i), str(CELLS), str(WORKERS)],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for i in range(WORKERS)
    ]
    said = [job.communicate(timeout=540)[0].decode() for job in jobs]
    assert [job.returncode for job in jobs] == [0] * WORKERS, said


def check_rows(store: Store, rows: dict[str, list[tuple[object, ...]]]) -> None:
    """Every run of the database against the outcomes that its worker had, and against the files that it wrote."""
    assert len(rows["runs"]) == CELLS
    assert {status for _, _, status in rows["runs"]} == {"FINISHED"}
    by_name = {str(name): str(run) for run, name, _ in rows["runs"]}
    assert sorted(by_name) == [f"cell {i:02d}" for i in range(CELLS)]
    expected = make("0" * 64)
    first = None
    cells = {run.name: run for run in store.cells("s")}
    read = {cell.name: cell for cell in load_sweep("s", store=store)}
    assert sorted(read) == sorted(by_name)
    for name, run_id in by_name.items():
        metrics = {str(k): v for run, k, v in rows["latest"] if run == run_id}
        history = [k for run, k in rows["metrics"] if run == run_id]
        assert len(history) == len(set(history)) + 1, "each metric once, the recall curve twice"
        assert metrics["recall_at_5__n"] == metrics["eligible_n"] == 7
        values = {k: v for k, v in metrics.items() if not k.startswith("seconds")}
        first = first or values
        assert values == first
        assert values == {k: v for k, v in cells[name].metrics.items() if k in values}
        params = {str(k): v for run, k, v in rows["params"] if run == run_id}
        assert params["chunker.size"] == str(int(name.split()[1]))
        tags = {str(k): v for run, k, v in rows["tags"] if run == run_id}
        assert (tags["recorded"], tags["cell_key"]) == ("true", f"{int(name.split()[1]):064x}")
        assert tuple(read[name].outcomes) == expected.outcomes
        with store.files(cells[name]) as folder:
            assert len((folder / "per_question.jsonl").read_text(encoding="utf-8").splitlines()) == 8
            assert sorted(p.name for p in (folder / "figures").iterdir())[0] == "confidence.png"
            summary = json.loads((folder / "cell.json").read_text(encoding="utf-8"))["summary"]
            assert summary["metrics"]["recall@5"]["value"] == metrics["recall_at_5"]
    assert not (store.out / "pending").exists()


def documented_server() -> list[str]:
    """What follows `mlflow server` in docs/mlflow.md, without the four options whose values belong to a machine."""
    text = (Path(__file__).resolve().parents[1] / "docs" / "mlflow.md").read_text(encoding="utf-8")
    command = text.split("$ mlflow server ", 1)[1].split("```", 1)[0].replace("\\\n", " ")
    words = shlex.split(command)
    own = ("--backend-store-uri", "--artifacts-destination", "--host", "--port")
    found = dict(zip(words[::2], words[1::2], strict=True))
    assert set(own) <= set(found)
    assert found["--backend-store-uri"].startswith("postgresql+psycopg://")
    return [word for option, value in found.items() if option not in own for word in (option, value)]


QUERIES = {
    "runs": "select run_uuid, name, status from runs",
    "latest": "select run_uuid, key, value from latest_metrics",
    "metrics": "select run_uuid, key from metrics",
    "params": "select run_uuid, key, value from params",
    "tags": "select run_uuid, key, value from tags",
}


@pytest.mark.service
def test_a_team_server_with_postgresql_loses_and_doubles_nothing(tmp_path: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    with postgres.running() as server:
        address = server.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
        with serving(tmp_path, address, *documented_server()) as tracking:
            out = tmp_path / "out"
            store = Store.open(tracking.uri, "team", out)
            log_in_parallel(tracking.uri, out)
            with psycopg.connect(server.dsn) as connection:
                rows = {name: connection.execute(query).fetchall() for name, query in QUERIES.items()}
            check_rows(store, rows)
            assert list(tracking.artifacts.rglob("per_question.jsonl")), "artifacts lie at the server"
            for query in (
                "metrics.recall_at_5 > 0.7 and tags.recorded = 'true'",
                "params.\"chunker\" = 'fixed'",
                "datasets.name = 'tiny'",
            ):
                assert len(store.search(query)) == CELLS, query
            check_commands(tracking.uri, tmp_path / "elsewhere")


def check_commands(uri: str, folder: Path) -> None:
    """The commands of a person on another machine: nothing but the address is set."""
    folder.mkdir()
    env = os.environ | {"MLFLOW_TRACKING_URI": uri}
    grid = ["sweep", "-q", "+experiment=demo", "chunker=fixed_256", "embedder=bm25,static", "reranker=none"]
    for command in (grid, ["runs", "all", "--json"], ["ui"]):
        done = subprocess.run(
            [sys.executable, "-m", "denominator", *command],
            check=False,
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if command[0] == "runs":
            (sweep,) = json.loads(done.stdout)
            assert (sweep["cells"], sweep["failed"], sweep["n"]) == (2, 0, 154)
        if command[0] == "ui":
            assert f"the latest sweep: {uri}/#/experiments/" in done.stdout
    assert not (folder / "denominator-out" / "mlflow.db").exists()


@pytest.mark.slow
def test_an_embedded_store_loses_and_doubles_nothing(tmp_path: Path) -> None:
    import sqlite3

    out = tmp_path / "out"
    blank_store(out)
    store = Store.open(default_uri(out), "team", out)
    log_in_parallel(store.uri, out)
    with sqlite3.connect(out / "mlflow.db") as connection:
        rows = {name: connection.execute(query).fetchall() for name, query in QUERIES.items()}
    check_rows(store, rows)


@pytest.mark.service
def test_accounts_wrong_ones_and_a_server_that_went_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flask_wtf", reason="accounts need MLflow's extra `auth`")
    monkeypatch.setattr("denominator.tracking.store.time.sleep", lambda _: None)
    config = tmp_path / "auth.ini"
    config.write_text(
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = sqlite:///{tmp_path / 'accounts.db'}\n"
        "admin_username = admin\nadmin_password = four words make one\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    env = {"MLFLOW_AUTH_CONFIG_PATH": str(config), "MLFLOW_FLASK_SERVER_SECRET_KEY": "for this test"}
    store_uri = f"sqlite:///{tmp_path / 'server.db'}"
    with serving(tmp_path, store_uri, "--app-name", "basic-auth", "--workers", "1", env=env) as tracking:
        for name, word in ((None, None), ("admin", "wrong password")):
            if name and word:
                monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", name)
                monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", word)
            with pytest.raises(StoreError, match="MLFLOW_TRACKING_USERNAME") as caught:
                Store.open(tracking.uri, "accounts", tmp_path / "out")
            assert "wrong password" not in str(caught.value)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "four words make one")
        store = Store.open(tracking.uri, "accounts", tmp_path / "out")
        run = store.log_cell(make("ab" * 32), "s")  # type: ignore[arg-type]
        assert [cell.run_id for cell in load_sweep("s", store=store)] == [run]
    waiting = make("cd" * 32, name="waiting")
    with pytest.raises(StoreError, match=r"safe in .*next start records them"):
        store.log_cell(waiting, "s")  # type: ignore[arg-type]
    assert list((tmp_path / "out" / "pending").iterdir())
    with serving(tmp_path, store_uri, "--app-name", "basic-auth", "--workers", "1", env=env) as tracking:
        again = Store.open(tracking.uri, "accounts", tmp_path / "out")
        assert again.send_pending() == ["waiting"]
        assert again.send_pending() == []
        assert len(again.search(f"tags.cell_key = '{waiting.cell_key}'")) == 1


@pytest.mark.service
@pytest.mark.parametrize("how", ["joblib", "processes"])
def test_eight_workers_of_one_sweep_on_a_server_with_postgresql(tmp_path: Path, how: str) -> None:
    """A real sweep: eight joblib workers over 24 cells, or eight calls of the same command at once over 8 cells."""
    psycopg = pytest.importorskip("psycopg")
    write_data(tmp_path / "data")
    (tmp_path / "own").mkdir()
    grid = ["sweep", "chunker=whole,sentences_128", "reranker=none,mix", "tracking.experiment=eight"]
    if how == "joblib":
        grid += ["embedder.k1=0.8,0.9,1.0,1.1,1.2,1.3", "hydra/launcher=joblib", "hydra.launcher.n_jobs=8"]
    else:
        grid += ["embedder.k1=0.8,0.9"]
    calls, cells = (1, 24) if how == "joblib" else (WORKERS, 8)
    with postgres.running() as server:
        address = server.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
        with serving(tmp_path, address, *documented_server()) as tracking:
            jobs = [start(tmp_path, *grid, f"tracking.uri={tracking.uri}") for _ in range(calls)]
            said = [job.communicate(timeout=500) for job in jobs]
            with psycopg.connect(server.dsn) as connection:
                runs = connection.execute(
                    "select r.run_uuid, r.status, k.value, c.value, d.value from runs r "
                    "join tags k on k.run_uuid = r.run_uuid and k.key = 'kind' "
                    "left join tags c on c.run_uuid = r.run_uuid and c.key = 'cell_key' "
                    "left join tags d on d.run_uuid = r.run_uuid and d.key = 'recorded'"
                ).fetchall()
    assert [job.returncode for job in jobs] == [0] * calls, [out + err for out, err in said]
    for shown, err in said:
        for word in ("Traceback", "ERROR", "FAILED", "NOT RECORDED", "no report"):
            assert word not in shown + err, shown + err
    found = [key for _, _, kind, key, _ in runs if kind == "cell"]
    assert len(found) == len(set(found)) == cells
    assert [kind for _, _, kind, _, _ in runs if kind != "cell"] == ["sweep"]
    assert {(status, recorded) for _, status, _, _, recorded in runs} == {("FINISHED", "true")}
    computed = [int(n) for out, _ in said for n in re.findall(r"(\d+) computed", out)]
    assert sum(computed) == cells, "each cell was computed by exactly one of them"
    left = [
        p for place in ("pending", "hydra/locks", "cache/tmp") for p in (tmp_path / "denominator-out" / place).glob("*")
    ]
    assert left == []
