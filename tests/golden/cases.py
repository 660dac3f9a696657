"""The worked cases of MEASUREMENT.md: loading and comparing. Adapters live in the test files beside this one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from denominator.errors import MeasurementError

CASES_FILE = Path(__file__).resolve().parents[1] / "data" / "golden_cases.json"
CASES: list[dict[str, Any]] = json.loads(CASES_FILE.read_text(encoding="utf-8"))
SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def cases(*fns: str) -> list[Any]:
    """Pytest parameters of the cases with these operations."""
    return [pytest.param(case, id=f"{case['id']}-{case['fn']}") for case in CASES if case["fn"] in fns]


def decode(value: Any) -> Any:
    """Inputs with "nan", "inf" and "-inf" as floats (only where a score is meant)."""
    if isinstance(value, dict):
        return {
            k: (SPECIAL[v] if k in {"score", "top"} and isinstance(v, str) and v in SPECIAL else decode(v))
            for k, v in value.items()
        }
    return [decode(v) for v in value] if isinstance(value, list) else value


def check(expect: Any, got: Any, tol: float = 1e-9, where: str = "") -> None:
    """Objects by the keys that are named, lists exactly, numbers to `tol`, the rest equal with the same type."""
    if isinstance(expect, dict):
        assert isinstance(got, dict), f"{where}: expected an object, got {got!r}"
        for key, value in expect.items():
            assert key in got, f"{where}.{key} is missing from {sorted(got)}"
            check(value, got[key], tol, f"{where}.{key}")
    elif isinstance(expect, list):
        assert isinstance(got, (list, tuple)), f"{where}: expected a list, got {got!r}"
        assert len(got) == len(expect), f"{where}: {got!r} is not {expect!r}"
        for i, (e, g) in enumerate(zip(expect, got, strict=True)):
            check(e, g, tol, f"{where}[{i}]")
    elif isinstance(expect, str) and expect in SPECIAL and isinstance(got, float):
        assert got == SPECIAL[expect] or (math.isnan(got) and expect == "nan"), f"{where}: {got!r} is not {expect}"
    elif isinstance(expect, bool) or expect is None or isinstance(expect, str):
        assert type(got) is type(expect), f"{where}: {got!r} is not {expect!r}"
        assert got == expect, f"{where}: {got!r} is not {expect!r}"
    else:
        assert isinstance(got, (int, float)), f"{where}: {got!r} is not a number"
        assert not isinstance(got, bool), f"{where}: {got!r} is not a number"
        assert abs(got - expect) <= tol, f"{where}: {got!r} is not {expect!r} (tolerance {tol})"


def run_case(case: dict[str, Any], adapter: Any) -> None:
    """Calls the adapter with the case's input and compares; an expected error must have exactly those ids."""
    expect = case["expect"]
    tol = case.get("tol", 1e-9)
    if isinstance(expect, dict) and "error" in expect:
        with pytest.raises(MeasurementError) as caught:
            adapter(**decode(case["input"]))
        assert caught.value.code == expect["error"]
        assert list(caught.value.ids) == sorted(expect["ids"])
    else:
        check(expect, adapter(**decode(case["input"])), tol, case["id"])
