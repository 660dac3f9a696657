"""Every code that can stand for a missing value is on the page; the closed lists are those of the specification."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from denominator.evaluation import evaluate, summarize
from denominator.types import Evidence, Hit, Plan, Question, Result, Run, Rung
from tests.conftest import shared_path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "measurement.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## 9. Codes", 1)[1].split("\n## ", 1)[0]
PLACES = {"Estimate": 2, "_undefined": 0, "Excluded": 2, "MeasurementError": 0, "Picked": 2, "LevelEffect": 10}
"""Which argument of these calls is a code."""


def codes(text: str) -> set[str]:
    return set(re.findall(r"`([a-z0-9_]+)`", text))


def constants(node: ast.expr) -> Iterator[str]:
    """The texts that an expression can be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*constants(node.body), *constants(node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from (text for value in node.values for text in constants(value))
    elif isinstance(node, ast.Call) and len(node.args) == 2:  # x.get(key, "code"), next(found, "code")
        yield from constants(node.args[1])


def used() -> dict[str, list[str]]:
    """Codes in the source, with the places."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [k.value for k in node.keywords if k.arg == "reason"]
            if name in PLACES and len(node.args) > PLACES[name]:
                given.append(node.args[PLACES[name]])
            for code in (text for value in given for text in constants(value) if text):
                found.setdefault(code, []).append(f"{path.name}:{node.lineno}")
    return found


def test_every_code_of_the_source_is_on_the_page() -> None:
    found = used()
    assert len(found) > 30
    assert {code: places for code, places in found.items() if code not in codes(SECTION)} == {}


def test_the_closed_lists_are_those_of_the_specification() -> None:
    text = shared_path("MEASUREMENT.md").read_text(encoding="utf-8").split("## 11. Codes", 1)[1].split("\n## ", 1)[0]
    beside = {"metric_version", "not_recorded"}
    closed = SECTION.split("| code |", 1)[0]
    assert codes(closed) - beside == codes(text) - beside
    assert set(get_args(Rung)) <= codes(closed)


def test_auroc_where_everything_failed() -> None:
    """Both classes are there; saying `no_answerable` would blame the labels for a server that was away."""
    asked = [Question(f"q{i}", None, "answerable", ((Evidence("d"),),)) for i in range(3)]
    asked += [Question(f"u{i}", None, "unanswerable") for i in range(2)]
    results = {q.id: Result(error="away") for q in asked}
    plan = Plan(ks=(1,), pool=10)
    block = summarize(evaluate(asked, Run.from_results(results), plan), plan).abstention
    assert block.auroc is not None
    assert block.risk_coverage is not None
    assert (block.auroc.value, block.auroc.n, block.auroc.reason) == (None, 0, "all_undecided")
    assert (block.risk_coverage.aurc.value, block.risk_coverage.aurc.reason) == (None, "all_undecided")

    results |= {f"u{i}": Result((Hit("d", "d", 0.5),), depth=10) for i in range(2)}  # one class alone failed
    half = summarize(evaluate(asked, Run.from_results(results), plan), plan).abstention.auroc
    assert half is not None
    assert (half.value, half.n, half.reason) == (None, 2, "all_undecided")
    alone = [q for q in asked if q.answerability == "unanswerable"]
    only = summarize(evaluate(alone, Run.from_results({q.id: results[q.id] for q in alone}), plan), plan)
    assert only.abstention.auroc is not None
    assert only.abstention.auroc.reason == "no_answerable"
