"""The worked cases of abstention and audit (MEASUREMENT.md, sections 6 and 7) through the public API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from denominator import abstention as ab
from denominator.audit import AuditRow, audit, audit_run, recover
from denominator.eligibility import has_gold, state_of
from denominator.metrics import recall_at_k
from denominator.types import Answer, Estimate, Evidence, Question
from tests.golden.cases import cases, run_case


def cell(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "reason": estimate.reason}


def minus_inf(t: float | None) -> float:
    return float("-inf") if t is None else t


def as_case(report: ab.AbstentionReport) -> dict[str, Any]:
    carried = report.precision_at_prevalence
    return {
        "matrix": report.matrix,
        "n": report.n,
        "undecided": report.undecided,
        "precision": cell(report.precision),
        "recall": cell(report.recall),
        "uar": cell(report.uar),
        "frr": cell(report.false_refusal_rate),
        "f1": cell(report.f1),
        "mcc": cell(report.mcc),
        "uar_bounds": report.recall_bounds,
        "frr_bounds": report.false_refusal_rate_bounds,
        "precision_bounds": report.precision_bounds,
        "precision_at_prevalence": carried.value if carried else None,
    }


def abstention(rows: list[dict[str, Any]], prevalence: float | None = None) -> dict[str, Any]:
    return as_case(ab.confusion([ab.Row(r["unanswerable"], r["abstained"]) for r in rows], prevalence=prevalence))


def decide(response: dict[str, Any], lang: str) -> dict[str, Any]:
    answer = Answer(
        response.get("text"),
        response.get("flag"),
        (response.get("structured") or {}).get("answerable"),
        response.get("error"),
    )
    decision = ab.decide(answer, lang)
    return {"abstained": decision.abstained, "rung": decision.rung}


def pick_threshold(answerable: list[float], unanswerable: list[float]) -> dict[str, Any]:
    picked = ab.pick_threshold(answerable, unanswerable)
    return {"t": minus_inf(picked.t), "youden": picked.youden}


def cross_fit(rows: list[dict[str, Any]]) -> dict[str, Any]:
    fitted = ab.cross_fit(ab.Scored(r["id"], r["unanswerable"], r["top"], hits=r["top"] is not None) for r in rows)
    report = ab.confusion([ab.Row(r["unanswerable"], fitted.decisions[r["id"]]) for r in rows], threshold=fitted)
    return {
        "value": report.uar.value,
        "thresholds": [minus_inf(t) for t in fitted.thresholds],
        "matrix": report.matrix,
        "uar": report.uar.value,
        "frr": report.false_refusal_rate.value,
        "reason": fitted.reason,
    }


def auroc(answerable: list[float], unanswerable: list[float]) -> dict[str, Any]:
    return cell(ab.auroc(answerable, unanswerable))


def risk_coverage(rows: list[list[float]]) -> dict[str, Any]:
    curve = ab.risk_coverage([r[0] for r in rows], [r[1] for r in rows])
    return {"coverage": curve.coverage.tolist(), "risk": curve.risk.tolist(), "aurc": curve.aurc.value}


def joint(rows: list[dict[str, Any]]) -> dict[str, Any]:
    table = ab.joint(
        ab.JointRow(r.get("id", f"q{i}"), r["unanswerable"], r["complete"], r["abstained"]) for i, r in enumerate(rows)
    )
    return {
        "N": table.N,
        "table": dict(table.counts),
        "hallucinated_answer_rate": cell(table.hallucinated_answer_rate),
        "unsupported_answer_rate": cell(table.unsupported_answer_rate),
        "corpus_matrix": table.corpus.matrix,
        "context_matrix": table.context.matrix,
        "context_uar": cell(table.context.uar),
        "context_frr": cell(table.context.false_refusal_rate),
    }


def audit_of_run(questions: list[dict[str, Any]], results: dict[str, Any], k: int) -> dict[str, Any]:
    rows = []
    for q in questions:
        gold = tuple((Evidence(item),) for item in q["gold"])
        question = Question(q["id"], answerability=q["answerability"], gold=gold)
        value = recall_at_k(results[q["id"]]["hits"], q["gold"], k) if q["gold"] else 0.0
        rows.append(AuditRow(state_of(question), has_gold(question), value or 0.0))
    return audit_run(rows).as_dict()


ADAPTERS: dict[str, Callable[..., dict[str, Any]]] = {
    "abstention": abstention,
    "decide": decide,
    "pick_threshold": pick_threshold,
    "cross_fit": cross_fit,
    "auroc": auroc,
    "risk_coverage": risk_coverage,
    "joint": joint,
    "audit": lambda recalls, empty: audit(recalls, empty).as_dict(),
    "audit_run": audit_of_run,
    "recover": lambda **given: recover(**given).as_dict(),
}


@pytest.mark.parametrize("case", cases(*ADAPTERS))
def test_golden(case: dict[str, Any]) -> None:
    run_case(case, ADAPTERS[case["fn"]])
