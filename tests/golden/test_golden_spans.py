"""Golden cases of the span metrics, the token budget and the tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from denominator import tokens
from denominator.spans import budget_guard, span_scores
from denominator.types import Evidence, Group, Hit

from .cases import cases, run_case


def groups(gold: list[Any]) -> list[Group]:
    return [
        tuple(Evidence(a["doc"], a["start"], a["end"]) for a in (item if isinstance(item, list) else [item]))
        for item in gold
    ]


def hit(record: dict[str, Any]) -> Hit:
    return Hit(
        record["id"], record["doc"], record.get("score"), record["start"], record["end"], record.get("header_tokens", 0)
    )


def span_run(
    gold: list[Any],
    hits: list[dict[str, Any]],
    k: int | None = None,
    budget: int | None = None,
    policy: str = "truncate",
    texts: dict[str, str] | None = None,
    omega_chunks: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    ends = {h["id"]: h["token_ends"] for h in hits if "token_ends" in h}
    return span_scores(
        groups(gold),
        [hit(h) for h in hits],
        k=k,
        budget=budget,
        cut=policy,  # type: ignore[arg-type]  # the case's own word
        texts=texts,
        token_ends=ends or None,
        chunks=None if omega_chunks is None else [hit(c) for c in omega_chunks],
    )


def guard(fills: list[float], exhausted: list[bool]) -> dict[str, bool]:
    budget_guard(fills, exhausted)
    return {"ok": True}


ADAPTERS = {"span_run": span_run, "token_ends": tokens.token_ends, "budget_guard": guard}


@pytest.mark.parametrize("case", cases(*ADAPTERS))
def test_golden(case: dict[str, Any]) -> None:
    run_case(case, ADAPTERS[case["fn"]])
