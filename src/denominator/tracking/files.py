"""The files of a cell: outcomes, ledger, audit, fingerprints, times, a table for MLflow's UI, two figures."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denominator.masking import mask
from denominator.records import SCHEMA_VERSION, dumps, outcomes_to_lines, plan_to_json
from denominator.tracking.spelling import param_text, slice_key
from denominator.types import METRIC_VERSION, Outcome, Plan

if TYPE_CHECKING:
    from denominator.pipeline import CellResult

OUTCOMES_HASH = "outcomes_sha256"  # tag: what per_question.jsonl was when it was recorded
TABLE_ROWS = 1_000
TABLE_TEXT = 160


def verdict_of(outcome: Outcome, metric: str) -> str:
    """One word for a question's fate, for the second column of the table that compares runs."""
    if outcome.status in ("failed", "missing"):
        return outcome.status
    if outcome.state == "unanswerable":
        return {True: "refused", False: "not refused", None: "undecided"}[outcome.abstained]
    if outcome.state not in ("answerable", "partial"):
        return "not scored"
    value = outcome.values.get(metric)
    if value is None:
        return f"undefined ({outcome.reasons.get(metric, 'no value')})"
    found = "found" if value >= 1 else "missed" if value == 0 else "found in part"
    return f"{found}, refused" if outcome.abstained else found


def question_table(
    outcomes: Sequence[Outcome], plan: Plan, headline: str, texts: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The table that MLflow compares across runs: its first column aligns rows, its second is compared.

    `texts` (document id → text) lets hits be quoted. Bounded to 1,000 rows; `per_question.jsonl` has them all.
    """
    texts = texts or {}
    recall = f"recall@{5 if 5 in plan.ks else max(plan.ks)}"
    names = list(dict.fromkeys((headline, recall)))
    columns = ["question id", "outcome", "state", "question", "gold", "retrieved", *names, "confidence", "decision"]
    rows = []
    for outcome in outcomes[:TABLE_ROWS]:
        wanted = {alternative.doc for group in outcome.gold for alternative in group}
        found: list[str] = []
        for hit in outcome.hits[:3]:
            text = texts.get(hit.doc, "")[hit.start or 0 : hit.end]
            mark = "✓" if hit.doc in wanted else "·"
            score = "" if hit.score is None else f" {hit.score:.3f}"
            found.append(f"{mark} {hit.rank or len(found) + 1}. {hit.id}{score} {_snippet(text)}".rstrip())
        gold = " AND ".join(" OR ".join(_place(a) for a in group) for group in outcome.gold)
        values = [
            outcome.values.get(n) if outcome.values.get(n) is not None else outcome.reasons.get(n, "not scored")
            for n in names
        ]
        decision = {True: "refused", False: "answered", None: "undecided"}[outcome.abstained]
        rows.append(
            [
                outcome.id,
                verdict_of(outcome, headline if headline in outcome.values else recall),
                outcome.state,
                outcome.question or "",
                gold[:400],
                "\n".join(found),
                *values,
                outcome.confidence,
                decision,
            ]
        )
    return {"columns": columns, "data": rows}


def _place(alternative: Any) -> str:
    return alternative.doc if alternative.start is None else f"{alternative.doc}[{alternative.start}:{alternative.end}]"


def _snippet(text: str) -> str:
    plain = " ".join(text[: 2 * TABLE_TEXT].split())
    return plain if len(plain) <= TABLE_TEXT else plain[: TABLE_TEXT - 1] + "…"


def cell_json(result: CellResult, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What a reader needs to take the cell up again: plan, facts, summary, and the names behind slice keys."""
    names = {
        slice_key(name, tag, value): [name, tag, value]
        for tag, by_value in result.summary.slices.items()
        for value, estimates in by_value.items()
        for name in estimates
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "metric_version": METRIC_VERSION,
        "cell_key": result.cell_key,
        "name": result.name,
        "params": {k: v if isinstance(v, (str, int, float, bool)) else param_text(v) for k, v in result.params.items()},
        "overrides": [mask(o) for o in overrides],
        "plan": plan_to_json(result.plan),
        "facts": {k: v for k, v in result.facts.items() if math.isfinite(v)},
        "notes": [mask(n) for n in result.notes],
        "dataset": {
            "name": result.dataset.name,
            "dataset_hash": result.dataset.dataset_hash,
            "corpus_hash": result.dataset.corpus_hash,
        },
        "slices": names,
        "summary": result.summary.as_dict(),
    }


def write_cell_files(
    folder: Path,
    result: CellResult,
    *,
    config: str = "",
    overrides: Sequence[str] = (),
    texts: Mapping[str, str] | None = None,
) -> None:
    """All artifacts of a cell into a folder: strict JSON in UTF-8 with plain line ends, and two PNG figures."""
    from denominator.figures import confidence_by_class, recall_curve

    summary = result.summary
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "per_question.jsonl": "".join(outcomes_to_lines(result.outcomes)),
        "per_question_table.json": json.dumps(
            question_table(result.outcomes, result.plan, summary.headline, texts),
            ensure_ascii=False,
            allow_nan=False,
        ),
        "ledger.json": pretty(summary.ledger.as_dict()),
        "audit.json": pretty(None if summary.audit is None else summary.audit.as_dict()),
        "fingerprint.json": pretty({name: dict(fp) for name, fp in result.fingerprints.items()}),
        "cell.json": pretty(cell_json(result, overrides)),
        "timings.jsonl": "".join(
            dumps(
                {
                    "stage": t.stage,
                    "seconds_computed": t.seconds_computed,
                    "seconds_now": t.seconds_now,
                    "cached": t.cached,
                    "key": t.key,
                }
            )
            + "\n"
            for t in result.timings
        ),
    }
    if config:
        contents["config.yaml"] = config
    for name, text in contents.items():
        (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    recalls = {k: summary.metrics[f"recall@{k}"] for k in result.plan.ks if f"recall@{k}" in summary.metrics}
    recall_curve(recalls, f"{result.name}: recall@K").savefig(figures / "recall_at_k.png")
    confidence_by_class(result.outcomes, f"{result.name}: confidence by class").savefig(figures / "confidence.png")


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pretty(value: Any) -> str:
    return json.dumps(plain_json(value), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def plain_json(value: Any) -> Any:
    """Numbers of numpy as Python's, tuples as lists, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(k): plain_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(v) for v in value]
    if hasattr(value, "tolist"):
        return plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
