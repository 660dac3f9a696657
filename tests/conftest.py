"""Where the public data sets are, when they are; and how thorough the property tests are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# A shell that starts the suite in the background makes it ignore Ctrl-C, and every program that a test starts with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[2] / "shared"
THOROUGH = os.environ.get("TESTS_THOROUGH") == "1"


def examples(most: int) -> int:
    """How many examples a property test draws: all of them in `make ci`, a fifth in the quick suite."""
    return most if THOROUGH else max(10, most // 5)


# No deadline: a busy machine fails no test. The same examples in every run of the quick suite.
settings.register_profile("quick", max_examples=examples(100), deadline=None, derandomize=not THOROUGH)
settings.load_profile("quick")


def shared_path(name: str = "") -> Path:
    """A path below the folder `shared` beside the project; skips the test with the reason where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs the public data sets in ../shared/{name}, which are not here")
    return path


@pytest.fixture
def shared() -> Path:
    return shared_path()


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Values whose text holds a memory address are named by position, so that every worker collects the same names."""
    return argname if " at 0x" in repr(val) and not hasattr(val, "__name__") else None


@pytest.fixture(autouse=True)
def _no_store_from_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mlflow.set_tracking_uri` writes the environment, which would send later tests of the same process elsewhere."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
