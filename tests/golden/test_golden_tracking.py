"""The golden cases of how MLflow must spell an aggregate."""

from __future__ import annotations

from typing import Any

import pytest

from denominator.tracking import mlflow_payload
from denominator.types import Estimate
from tests.golden.cases import cases, run_case


def adapter(name: str, agg: dict[str, Any]) -> dict[str, Any]:
    metrics, tags = mlflow_payload(name, Estimate(**agg))
    return {"metrics": metrics, "tags": tags}


@pytest.mark.parametrize("case", cases("mlflow_payload"))
def test_golden_mlflow_payload(case: dict[str, Any]) -> None:
    run_case(case, adapter)
