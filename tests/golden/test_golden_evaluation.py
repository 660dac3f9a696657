"""Golden cases of whole runs: questions and results in, one aggregate, the ledger and the partial line out."""

from __future__ import annotations

from typing import Any

import pytest

from denominator.evaluation import evaluate, summarize
from denominator.tracking import mlflow_payload
from denominator.types import Estimate, Evidence, Hit, Plan, Question, Result, Run
from tests.golden.cases import cases, run_case


def _alternative(item: Any) -> Evidence:
    return Evidence(item) if isinstance(item, str) else Evidence(item["doc"], item["start"], item["end"])


def _question(record: dict[str, Any]) -> Question:
    gold = tuple(
        tuple(_alternative(a) for a in group) if isinstance(group, list) else (_alternative(group),)
        for group in record.get("gold") or []
    )
    return Question(
        id=record["id"],
        answerability=record.get("answerability"),
        gold=gold,
        grades=record.get("grades"),
        needs_review=record.get("needs_review", False),
        tags=record.get("tags") or {},
        cluster=record.get("cluster"),
    )


def _hit(hit: Any) -> Hit:
    if isinstance(hit, str):
        return Hit(hit, hit)
    return Hit(hit["id"], hit.get("doc", hit["id"]), hit.get("score"), hit.get("start"), hit.get("end"))


def score_run(questions: Any, results: Any, k: int, **options: Any) -> dict[str, Any]:
    given = {
        q: Result(error=r["error"]) if "error" in r else Result(tuple(_hit(h) for h in r["hits"]), depth=r.get("depth"))
        for q, r in results.items()
    }
    metric = options.pop("metric", "recall")
    level = options.pop("level", "L1")
    tag = options.pop("slice_by", None)
    prefix = {"L1": "", "L2": "slot_", "L3": "chunk_"}[level]
    name = f"{prefix}{metric}@{k}"
    assert not options, options
    plan = Plan(ks=(k,), headline=name, slices=(tag,) if tag else ())
    outcomes = evaluate([_question(q) for q in questions], Run.from_results(given), plan, decide=False)
    summary = summarize(outcomes, plan)
    aggregate = summary.metrics[name]
    return {
        "aggregate": aggregate.as_dict(),
        "incomplete": summary.ledger.incomplete,
        "per_question": {o.id: o.values[name] for o in outcomes if o.state == "answerable"},
        "ledger": summary.ledger.as_dict(),
        "partial": summary.partial[name].as_dict(),
        "slices": {v: e[name].as_dict() for v, e in summary.slices.get(tag or "", {}).items()},
    }


@pytest.mark.parametrize("case", cases("score_run"))
def test_golden_score_run(case: dict[str, Any]) -> None:
    run_case(case, score_run)


def payload(name: str, agg: dict[str, Any]) -> dict[str, Any]:
    metrics, tags = mlflow_payload(name, Estimate(**agg))
    return {"metrics": metrics, "tags": tags}


@pytest.mark.parametrize("case", cases("mlflow_payload"))
def test_golden_mlflow_payload(case: dict[str, Any]) -> None:
    run_case(case, payload)
