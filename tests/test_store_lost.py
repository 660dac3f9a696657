"""A tracking server that is lost in the middle of a sweep, for real: killed, hanging, answering with errors or resets.

What holds each time: the sweep ends by itself with exit code 2 and says what is safe and how to go on, the outcomes
lie in `pending/`, and the next start records them once, computes nothing and leaves no second run of any cell.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from denominator.tracking import Store, load_sweep
from tests.mlflow_server import TrackingServer, serving
from tests.test_app import write_data

CELLS = 12
GRID = ("dataset=native", "dataset.folder=data", "chunker=whole,sentences_128", "embedder=bm25,static",
        "reranker=none,mix,maxsim")  # fmt: skip
LONGEST = 240
"""Seconds for a whole sweep of 12 cells and all waiting for the server, on a very busy machine; it takes about 30."""


class Gate:
    """A door before the server that can be shut in several ways; the address stays while the server comes and goes.

    `open` passes everything; `errors` answers 500; `reset` breaks connections before anything is sent on; `swallow`
    sends the request on and breaks the connection in place of the answer, so that the server has done what its client
    believes failed.
    """

    def __init__(self, target: int) -> None:
        self.target, self.how = target, "open"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            data = client.recv(65536)
            how = self.how
            if how == "reset" or not data:
                return _break(client)
            if how == "errors":
                client.sendall(
                    b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
                )
                return None
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=60)
            except OSError:
                return _break(client)
            with server:
                server.sendall(data)
                back = threading.Thread(target=self._back, args=(server, client, how), name="back", daemon=True)
                back.start()
                while more := client.recv(65536):
                    if self.how in ("reset", "errors"):
                        return _break(client)
                    server.sendall(more)
                back.join(1)
        return None

    def _back(self, server: socket.socket, client: socket.socket, how: str) -> None:
        with contextlib.suppress(OSError):
            while answer := server.recv(65536):
                if how == "swallow" or self.how == "swallow":
                    return _break(client)
                client.sendall(answer)
            client.shutdown(socket.SHUT_WR)
        return None

    def close(self) -> None:
        self.listener.close()


def _break(client: socket.socket) -> None:
    """Closes with a reset where no thread reads from it, else at once and without an answer."""
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if threading.current_thread().name == "back":
            client.shutdown(socket.SHUT_RDWR)  # the other thread waits in recv: close alone would do nothing
        client.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    """One server for the tests that leave it running; each has an experiment of its own, by its folder's name."""
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, f"sqlite:///{folder / 'server.db'}", "--workers", "1") as found:
        yield found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / tmp_path.name
    write_data(folder / "data")
    return folder


@pytest.fixture
def gate(server: TrackingServer) -> Iterator[Gate]:
    made = Gate(int(server.uri.rpartition(":")[2]))
    yield made
    made.close()


def sweep(folder: Path, uri: str, *more: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DENOMINATOR_", "MLFLOW_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "denominator", "sweep", *GRID, f"tracking.uri={uri}",
         f"tracking.experiment={folder.name}", *more],
        cwd=folder, env=env | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def after_cells(job: subprocess.Popen[str], cells: int) -> list[str]:
    """Waits until so many cells are recorded; the lines that were said so far."""
    assert job.stderr is not None
    said: list[str] = []
    for line in job.stderr:
        said.append(line)
        if sum(" s\n" in one and "NOT RECORDED" not in one for one in said) >= cells:
            return said
    raise AssertionError(f"the sweep ended before {cells} cells: {''.join(said)}{job.communicate()[0]}")


def ended(job: subprocess.Popen[str]) -> tuple[int, str, str, float]:
    begun = time.perf_counter()
    out, err = job.communicate(timeout=LONGEST)
    return job.returncode, out, err, time.perf_counter() - begun


def check_waiting(folder: Path, out: str, err: str) -> int:
    """What a person reads, and what lies on disk; how many cells wait."""
    waiting = list((folder / "denominator-out" / "pending").iterdir())
    assert 0 < len(waiting) < CELLS
    assert all((w / "payload.json").is_file() and (w / "artifacts" / "per_question.jsonl").is_file() for w in waiting)
    assert f"{len(waiting)} of {CELLS} cells wait in {folder / 'denominator-out' / 'pending'}" in out
    assert "Once the server is back, the same command records them once and computes nothing again." in out
    assert "Traceback" not in out + err
    assert err.count("NOT RECORDED YET") == len(waiting)
    return len(waiting)


def check_caught_up(folder: Path, uri: str, waiting: int) -> None:
    """The same command again records what waits, computes nothing, and no cell has two runs."""
    again = sweep(folder, uri)
    code, out, err, _ = ended(again)
    assert code == 0, out + err
    assert out.count("recorded now, left over from an earlier start") == waiting
    assert f"{CELLS} recorded before" in out
    assert " computed" not in out
    store = Store(uri, folder.name, folder / "denominator-out")
    runs = store.search("tags.kind = 'cell'")
    assert len(runs) == len({r.tags["cell_key"] for r in runs}) == CELLS
    assert {r.status for r in runs} == {"FINISHED"}
    assert all(r.recorded for r in runs)
    (one,) = store.sweeps()
    assert (one.status, one.metrics["cells_recorded"]) == ("FINISHED", CELLS)
    assert len(load_sweep(store=store)) == CELLS
    assert not (folder / "denominator-out" / "pending").exists()


@pytest.mark.service
def test_a_server_that_is_killed(tmp_path: Path, place: Path) -> None:
    backend = f"sqlite:///{tmp_path / 'server.db'}"
    with serving(tmp_path, backend, "--workers", "1") as server:
        job = sweep(place, server.uri)
        said = after_cells(job, 3)
        os.killpg(server.pid, signal.SIGKILL)
        code, out, err, _ = ended(job)
    assert code == 2, out + err
    waiting = check_waiting(place, out, "".join(said) + err)
    assert "does not answer (connection refused)" in out

    begun = time.perf_counter()
    code, out, err, _ = ended(sweep(place, server.uri))  # still away: refused at once, and nothing is forgotten
    assert code == 2
    assert "does not answer (connection refused)" in err
    assert "tracking.uri or MLFLOW_TRACKING_URI" in err
    assert f"{waiting} finished cells are safe in" in err
    assert time.perf_counter() - begun < 30  # 2 s of it are pauses, the rest is the start under load

    with serving(tmp_path, backend, "--workers", "1", port=int(server.uri.rpartition(":")[2])) as server:
        check_caught_up(place, server.uri, waiting)


@pytest.mark.service
def test_a_server_that_hangs(place: Path, server: TrackingServer) -> None:
    job = sweep(place, server.uri)
    said = after_cells(job, 3)
    os.killpg(server.pid, signal.SIGSTOP)
    try:
        code, out, err, _ = ended(job)
        begun = time.perf_counter()
        assert ended(sweep(place, server.uri))[0] == 2
        assert time.perf_counter() - begun < 30
    finally:
        os.killpg(server.pid, signal.SIGCONT)
    assert code == 2, out + err
    waiting = check_waiting(place, out, "".join(said) + err)
    assert "does not answer" in out
    check_caught_up(place, server.uri, waiting)


@pytest.mark.service
@pytest.mark.parametrize("how", ["errors", "reset", "swallow"])
def test_a_server_that_answers_with_errors(place: Path, gate: Gate, how: str) -> None:
    job = sweep(place, gate.uri)
    said = after_cells(job, 3)
    gate.how = how
    code, out, err, _ = ended(job)
    assert code == 2, out + err
    waiting = check_waiting(place, out, "".join(said) + err)
    assert {"errors": "answers with the error 500", "reset": "(connection ", "swallow": "(connection "}[how] in out
    gate.how = "open"
    check_caught_up(place, gate.uri, waiting)


@pytest.mark.service
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_comes_back_while_the_sweep_runs(place: Path, gate: Gate, workers: int) -> None:
    """Cells that could not be recorded when they ended are recorded before the sweep ends."""
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2") if workers > 1 else ()
    job = sweep(place, gate.uri, *launcher)
    said = after_cells(job, 2)
    gate.how = "reset"
    assert job.stderr is not None
    for line in job.stderr:
        said.append(line)
        if "NOT RECORDED YET" in line:
            break
    gate.how = "open"
    code, out, err, _ = ended(job)
    assert code == 0, out + err
    assert f"{CELLS} computed" in out
    check_caught_up(place, gate.uri, 0)
