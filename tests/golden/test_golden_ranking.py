"""Golden cases of eligibility, ranking and the ranked metrics: one adapter per operation."""

from __future__ import annotations

from typing import Any

import pytest

from denominator.eligibility import build_ledger, classify, state_of, statuses_of
from denominator.ranking import level_guard, order_of, run_from_results, top
from denominator.types import Evidence, Hit, Question, Result

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
