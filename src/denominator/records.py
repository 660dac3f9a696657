"""Outcomes, plans and ledgers as strict JSON and back. Nothing here opens a file.

One outcome is one line of `per_question.jsonl`: keys in a fixed order, shortest round-trip floats, no NaN,
absent fields left out, so that the same outcomes always give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from denominator.types import Evidence, Group, Hit, Ledger, Outcome, Plan

SCHEMA_VERSION = 2
"""The form of a recorded run. 1: every figure was an MLflow metric, a process had three tags; such runs are read."""


def dumps(value: Any) -> str:
    """Strict JSON on one line: UTF-8 kept as it is, NaN and infinities refused (ValueError)."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def evidence_to_json(evidence: Evidence) -> dict[str, Any]:
    out: dict[str, Any] = {"document_id": evidence.doc}
    if evidence.start is not None:
        out |= {"start": evidence.start, "end": evidence.end}
    if evidence.whole:
        out["whole"] = True
    return out


def evidence_from_json(data: Mapping[str, Any]) -> Evidence:
    return Evidence(data["document_id"], data.get("start"), data.get("end"), data.get("whole", False))


def gold_to_json(gold: Iterable[Group]) -> list[Any]:
    """A group of one as its item, a group of alternatives as a list: the form of the question files."""
    return [
        evidence_to_json(group[0]) if len(group) == 1 else [evidence_to_json(item) for item in group] for group in gold
    ]


def gold_from_json(data: Iterable[Any]) -> tuple[Group, ...]:
    return tuple(
        tuple(evidence_from_json(item) for item in group) if isinstance(group, list) else (evidence_from_json(group),)
        for group in data
    )


_HIT_DEFAULTS: dict[str, Any] = {
    "rank": None,
    "score": None,
    "start": None,
    "end": None,
    "header_tokens": 0,
    "tokens": None,
}


def _hit_to_json(hit: Hit) -> dict[str, Any]:
    out: dict[str, Any] = {"id": hit.id}
    if hit.doc != hit.id:
        out["doc"] = hit.doc
    for name, default in _HIT_DEFAULTS.items():
        value = getattr(hit, name)
        if value != default:
            out[name] = value
    return out


def _hit_from_json(data: Mapping[str, Any]) -> Hit:
    return Hit(id=data["id"], doc=data.get("doc", data["id"]), **{k: data.get(k, d) for k, d in _HIT_DEFAULTS.items()})


_PLAIN = (
    *("n_hits", "groups", "empty_gold", "cluster", "confidence", "abstained", "rung", "threshold"),
    *("answer", "error"),
)
_PLAIN_DEFAULTS = {f.name: f.default for f in fields(Outcome) if f.name in _PLAIN}


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": outcome.id,
        "question": outcome.question,
        "label": outcome.label,
        "state": outcome.state,
        "status": outcome.status,
        "gold": gold_to_json(outcome.gold),
        "hits": [_hit_to_json(hit) for hit in outcome.hits],
        "values": dict(outcome.values),
        "reasons": dict(outcome.reasons),
        "tags": dict(outcome.tags),
    }
    for name in _PLAIN:
        value = getattr(outcome, name)
        if value != _PLAIN_DEFAULTS[name]:
            out[name] = value
    if outcome.ties:
        out["ties"] = {name: list(ends) for name, ends in outcome.ties.items()}
    if outcome.quality:
        out["quality"] = dict(outcome.quality)
    return out


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    plain = {name: data[name] for name in _PLAIN if name in data}
    return Outcome(
        id=data["id"],
        label=data["label"],
        state=data["state"],
        status=data["status"],
        question=data["question"],
        gold=gold_from_json(data["gold"]),
        hits=tuple(_hit_from_json(hit) for hit in data["hits"]),
        values=data["values"],
        reasons=data["reasons"],
        tags=data["tags"],
        ties={name: (low, high) for name, (low, high) in data.get("ties", {}).items()},
        quality=data.get("quality", {}),
        **plain,
    )


def outcomes_to_lines(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Lines of `per_question.jsonl`, each with its newline, in the order given (evaluate sorts by id)."""
    for outcome in outcomes:
        yield dumps(outcome_to_json(outcome)) + "\n"


def outcomes_from_lines(lines: Iterable[str]) -> tuple[Outcome, ...]:
    return tuple(outcome_from_json(json.loads(line)) for line in lines if line.strip())


def plan_to_json(plan: Plan) -> dict[str, Any]:
    out = {f.name: getattr(plan, f.name) for f in fields(plan)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in out.items()}


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Fields that this version does not know are left out, absent ones take their default.

    A record that names no version of the refusal lists is older than their second one.
    """
    known = {f.name for f in fields(Plan)}
    data = {"phrases": "phrases-v1"} | dict(data)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
    return Plan(**values)


def ledger_from_json(data: Mapping[str, Any]) -> Ledger:
    return Ledger(**{f.name: data[f.name] for f in fields(Ledger) if f.name in data})
