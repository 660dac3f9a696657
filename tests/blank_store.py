"""An empty embedded store as a copy: making its schema takes seconds, and most tests are not about that."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from functools import cache
from pathlib import Path

from denominator.tracking.store import prepare_sqlite


@cache
def _template() -> Path:
    path = Path(tempfile.mkdtemp(prefix="denominator-tests-")) / "mlflow.db"
    prepare_sqlite(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return path


def blank_store(out: Path) -> None:
    """Puts an empty, prepared `mlflow.db` into an output folder."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(_template(), out / "mlflow.db")
