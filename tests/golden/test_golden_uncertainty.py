"""The worked cases of intervals, tests, selection and fingerprints through the public functions."""

from __future__ import annotations

from typing import Any

import pytest

from denominator import fingerprint as f
from denominator import uncertainty as u

from .cases import cases, run_case


def wilson(successes: int, n: int) -> dict[str, Any]:
    return u.wilson(successes, n).as_dict()


def bca(values: list[float], **kw: Any) -> dict[str, Any]:
    return u.bca(values, **kw).as_dict()


def interval(kind: Any, values: list[float], **kw: Any) -> dict[str, Any]:
    return u.interval(kind, values, **kw).as_dict()


def sign_flip(diffs: list[float], **kw: Any) -> dict[str, Any]:
    return u.sign_flip(diffs, **kw).as_dict()


def mcnemar(b: int, c: int) -> dict[str, Any]:
    return u.mcnemar(b, c).as_dict()


def tukey(scores: dict[str, list[float]], **kw: Any) -> dict[str, Any]:
    t = u.tukey(scores, **kw)
    return {"means": dict(t.means), "p": {"|".join(pair): p for pair, p in t.p.items()}, "method": t.method}


def best_set(scores: dict[str, list[float]], **kw: Any) -> dict[str, Any]:
    b = u.best_set(scores, **kw)
    return {"best": b.best, "best_set": list(b.members)}


def verdict(p: float, diff: float, low: float | None, high: float | None) -> str:
    return u.verdict(p, diff, low, high)


def mdd(sd: float, n: int) -> dict[str, Any]:
    d = u.mdd(sd, n)
    return {"value": d.value, "reason": d.reason}


def optimism(scores: dict[str, list[float]], **kw: Any) -> dict[str, Any]:
    o = u.optimism(scores, **kw)
    return {"best": o.best, "apparent": o.apparent, "optimism": o.optimism, "corrected": o.corrected}


def nested_cv(scores: dict[str, list[float]], ids: list[str], **kw: Any) -> dict[str, Any]:
    return u.nested_cv(scores, ids, **kw).as_dict()


def pareto(configs: list[dict[str, Any]]) -> dict[str, Any]:
    front = u.pareto([u.Candidate(c["id"], c["quality"], tuple(c["costs"])) for c in configs])
    return {"front": list(front.front), "not_comparable": list(front.not_comparable)}


def comparable(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {"fingerprint": f.comparable(a, b)}


ADAPTERS = {
    "wilson": wilson,
    "bca": bca,
    "interval": interval,
    "sign_flip": sign_flip,
    "mcnemar": mcnemar,
    "holm": u.holm,
    "tukey": tukey,
    "best_set": best_set,
    "verdict": verdict,
    "mdd": mdd,
    "optimism": optimism,
    "nested_cv": nested_cv,
    "pareto": pareto,
    "comparable": comparable,
    "sha": f.sha,
    "dataset_hash": f.dataset_hash,
}


@pytest.mark.parametrize("case", cases(*ADAPTERS))
def test_golden(case: dict[str, Any]) -> None:
    run_case(case, ADAPTERS[case["fn"]])
