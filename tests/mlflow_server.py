"""An MLflow server for a test: its own port, an artifact folder, any backend; gone when the test ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.postgres import free_port

SECONDS = 180


@dataclass(frozen=True)
class TrackingServer:
    uri: str
    artifacts: Path
    pid: int
    """Also the number of its process group."""


@contextlib.contextmanager
def serving(
    folder: Path, store: str, *arguments: str, env: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[TrackingServer]:
    """`mlflow server` on loopback, ready to answer. `store` is its backend's address."""
    port = port or free_port()
    artifacts = folder / "artifacts"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    command += ["--artifacts-destination", str(artifacts), "--host", "127.0.0.1", "--port", str(port), *arguments]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | quiet | (env or {}), start_new_session=True
        )
    uri = f"http://127.0.0.1:{port}"
    try:
        _wait(process, f"{uri}/health", log)
        yield TrackingServer(uri, artifacts, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.3)
    raise RuntimeError(f"the MLflow server did not start: {log.read_text(errors='replace')[-2000:]}")
