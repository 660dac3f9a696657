"""Where the public data sets are, when they are; how thorough the property tests are; and what several tests share."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from denominator.types import Dataset

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


@dataclass(frozen=True)
class Given:
    """A data set that is there already, where a cell wants one that can be read."""

    data: Dataset

    def load(self) -> Dataset:
        return self.data


def script_of(path: Path) -> ModuleType:
    """A script of `benchmarks/` or `experiments/` as a module."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


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
