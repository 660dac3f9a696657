"""Where the public data sets are, when they are: a folder `shared` beside the project."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared_path(name: str = "") -> Path:
    """A path below the shared folder; skips the test with the reason where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs the public data sets in ../shared/{name}, which are not here")
    return path


@pytest.fixture
def shared() -> Path:
    return shared_path()
