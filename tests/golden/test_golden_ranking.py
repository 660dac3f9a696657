"""Golden cases of eligibility, ranking and the ranked metrics: one adapter per operation."""

from __future__ import annotations

from typing import Any

import pytest

from denominator import metrics
from denominator.eligibility import build_ledger, classify, state_of, statuses_of
from denominator.metrics import ranked
from denominator.ranking import level_guard, order_of, run_from_results, top
from denominator.types import Evidence, Hit, Question, Result
from denominator.uncertainty import estimate_mean

from .cases import cases, run_case


def question(record: dict[str, Any]) -> Question:
    def alternative(item: Any) -> Evidence:
        return Evidence(**item) if isinstance(item, dict) else Evidence(item)

    def group(item: Any) -> tuple[Evidence, ...]:
        return tuple(alternative(a) for a in item) if isinstance(item, list) else (alternative(item),)

    return Question(
        id=record["id"],
        answerability=record.get("answerability"),
        gold=tuple(group(g) for g in record.get("gold", [])),
        grades=record.get("grades"),
        needs_review=record.get("needs_review", False),
        tags=record.get("tags", {}),
        cluster=record.get("cluster"),
    )


def hit(record: Any) -> Hit:
    if not isinstance(record, dict):
        return Hit(record, record)
    return Hit(record["id"], record.get("doc", record["id"]), record.get("score"))


def result(record: dict[str, Any]) -> Result:
    return Result(
        hits=tuple(hit(h) for h in record.get("hits", [])),
        error=record.get("error"),
        depth=record.get("depth"),
        exhausted=record.get("exhausted", False),
    )


def ledger(questions: list[Any], results: dict[str, Any] | None = None, strict: bool = True) -> dict[str, Any]:
    states = classify([question(q) for q in questions])
    run = run_from_results({i: result(r) for i, r in (results or {}).items()})
    return build_ledger(states, statuses_of(states, run), eligibility="strict" if strict else "lenient").as_dict()


def guard(varies: list[str], level: Any) -> dict[str, bool]:
    level_guard(varies, level)
    return {"ok": True}


@pytest.mark.parametrize("case", cases("state"))
def test_golden_state(case: dict[str, Any]) -> None:
    run_case(case, lambda q, corpus=None: state_of(question(q), corpus))


@pytest.mark.parametrize("case", cases("ledger"))
def test_golden_ledger(case: dict[str, Any]) -> None:
    run_case(case, ledger)


@pytest.mark.parametrize("case", cases("order_of"))
def test_golden_order_of(case: dict[str, Any]) -> None:
    run_case(case, lambda hits, ties="asc": [h.id for h in order_of([hit(h) for h in hits], ties)])


@pytest.mark.parametrize("case", cases("top"))
def test_golden_top(case: dict[str, Any]) -> None:
    run_case(case, lambda hits, k, **options: top([hit(h) for h in hits], k, **options))


@pytest.mark.parametrize("case", cases("level_guard"))
def test_golden_level_guard(case: dict[str, Any]) -> None:
    run_case(case, guard)


# The golden cases name metrics without their K and level; chunk level takes ids as they are.
NAMES = {
    "recall": "chunk_recall@{k}",
    "complete": "chunk_complete@{k}",
    "precision": "chunk_precision@{k}",
    "hit": "chunk_hit@{k}",
    "mrr": "chunk_mrr@{k}",
    "ndcg": "chunk_ndcg@{k}",
    "ndcg_exp": "chunk_ndcg_exp@{k}",
    "ap": "chunk_map",
    "rprec": "chunk_r_precision",
}


def bulk(q: dict[str, Any], hits: list[Any], k: int) -> dict[str, Any]:
    names = {key: name.format(k=k) for key, name in NAMES.items()}
    run = run_from_results({q["id"]: Result(tuple(hit(h) for h in hits))})
    values, reasons = ranked(run, [question(q)], list(names.values())).row(0)
    reason = next(iter(reasons.values()), None)
    return {key: values[name] for key, name in names.items()} | {"reason": reason}


def plain(q: dict[str, Any], hits: list[str], k: int) -> dict[str, Any]:
    """The same through the plain door, which takes gold or grades but not both."""
    evidence = q.get("gold") or q["grades"]
    return {
        "recall": metrics.recall_at_k(hits, evidence, k),
        "complete": metrics.complete_at_k(hits, evidence, k),
        "precision": metrics.precision_at_k(hits, evidence, k),
        "hit": metrics.hit_at_k(hits, evidence, k),
        "mrr": metrics.mrr_at_k(hits, evidence, k),
        "ndcg": metrics.ndcg_at_k(hits, evidence, k),
        "ndcg_exp": metrics.ndcg_at_k(hits, evidence, k, exponential=True),
        "ap": metrics.average_precision(hits, evidence),
        "rprec": metrics.r_precision(hits, evidence),
    }


def micro_recall(questions: list[Any], results: dict[str, Any], k: int) -> dict[str, Any]:
    run = run_from_results({i: result(r) for i, r in results.items()})
    found, groups = ranked(run, [question(q) for q in questions], [f"recall@{k}"]).micro(f"recall@{k}")
    return {"value": found / groups, "n": groups}


@pytest.mark.parametrize("case", cases("ranked"))
def test_golden_ranked(case: dict[str, Any]) -> None:
    run_case(case, bulk)


@pytest.mark.parametrize("case", cases("ranked"))
def test_golden_ranked_plain_door(case: dict[str, Any]) -> None:
    q = case["input"]["q"]
    if q.get("gold") and q.get("grades"):
        pytest.skip("gold with grades has no plain form")
    expect = {key: value for key, value in case["expect"].items() if key != "reason"}
    run_case({**case, "expect": expect}, plain)


@pytest.mark.parametrize("case", cases("micro_recall"))
def test_golden_micro_recall(case: dict[str, Any]) -> None:
    run_case(case, micro_recall)


@pytest.mark.parametrize("case", cases("aggregate"))
def test_golden_aggregate(case: dict[str, Any]) -> None:
    run_case(case, lambda values: estimate_mean(values).as_dict())
