"""The files of a cell: outcomes, ledger, audit, fingerprints, times, two tables for MLflow's UI, five figures."""

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
from denominator.types import METRIC_VERSION, Estimate, Group, Hit, Outcome, Plan

if TYPE_CHECKING:
    from denominator.evaluation import Summary
    from denominator.pipeline import CellResult

OUTCOMES_HASH = "outcomes_sha256"  # tag: what per_question.jsonl was when it was recorded
TABLE_ROWS = 1_000
TABLE_TEXT = 100  # three hits then fit into a cell of the side-by-side view
DIGITS = 4
TABLES = ("per_question_table.json", "metrics_table.json")  # what MLflow's side-by-side view offers


def verdict_of(outcome: Outcome, metric: str) -> str:
    """One word for a question's fate, for the second column of the table that compares runs.

    Whether an answerable question was refused stands in its own column: a threshold would drown what was found.
    """
    if outcome.status in ("failed", "missing"):
        return outcome.status
    if outcome.state == "unanswerable":
        return {True: "refused", False: "not refused", None: "undecided"}[outcome.abstained]
    if outcome.state not in ("answerable", "partial"):
        return "not scored"
    value = outcome.values.get(metric)
    if value is None:
        return f"undefined ({outcome.reasons.get(metric, 'no value')})"
    return "found" if value >= 1 else "missed" if value == 0 else "found in part"


def question_table(
    outcomes: Sequence[Outcome], plan: Plan, headline: str, texts: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The table that MLflow compares across runs: its first column aligns rows, its second is compared.

    `texts` (document id → text) lets hits be quoted. Bounded to 1,000 rows; `per_question.jsonl` has them all.
    Marks of what was retrieved: ✓ evidence, ~ elsewhere in a document that holds evidence, · no evidence.
    """
    texts = texts or {}
    recall, most = f"recall@{5 if 5 in plan.ks else max(plan.ks)}", max(plan.ks)
    names = list(dict.fromkeys((headline, recall, f"mrr@{most}", f"ndcg@{most}")))
    columns = ["question id", "outcome", "state", "question", "gold", "retrieved", *names, "confidence", "decision"]
    rows = []
    for outcome in outcomes[:TABLE_ROWS]:
        found: list[str] = []
        for hit in outcome.hits[:3]:
            text = texts.get(hit.doc, "")[hit.start or 0 : hit.end]
            score = "" if hit.score is None else f" {hit.score:.3f}"
            found.append(
                f"{mark_of(hit, outcome.gold)} {hit.rank or len(found) + 1}. {hit.id}{score} {_snippet(text)}".rstrip()
            )
        gold = " AND ".join(" OR ".join(_place(a) for a in group) for group in outcome.gold)
        rows.append(
            [
                outcome.id,
                verdict_of(outcome, headline if headline in outcome.values else recall),
                outcome.state,
                outcome.question or "",
                gold[:400],
                "\n".join(found),
                *(_shown(outcome.values.get(n), outcome.reasons.get(n, "not scored")) for n in names),
                None if outcome.confidence is None else round(outcome.confidence, DIGITS),
                {True: "refused", False: "answered", None: "undecided"}[outcome.abstained],
            ]
        )
    return {"columns": columns, "data": rows}


def mark_of(hit: Hit, gold: Sequence[Group]) -> str:
    """Whether a hit holds evidence (✓), only comes from a document that does (~), or neither (·).

    >>> from denominator.types import Evidence
    >>> gold = ((Evidence("d", 10, 20),),)
    >>> [mark_of(Hit(d, d, 1.0, start, start + 5), gold) for d, start in (("d", 18), ("d", 20), ("e", 10))]
    ['✓', '~', '·']
    """
    mark = "·"
    for alternative in (a for group in gold for a in group if a.doc in (hit.doc, hit.id)):
        whole = alternative.start is None or alternative.end is None or hit.start is None or hit.end is None
        if whole or (hit.start < alternative.end and alternative.start < hit.end):  # type: ignore[operator]  # no None
            return "✓"
        mark = "~"
    return mark


def _shown(value: float | None, reason: str) -> float | str:
    return reason if value is None else round(value, DIGITS)


def metrics_table(summary: Summary) -> dict[str, Any]:
    """Every figure of the cell for MLflow's table and side-by-side views: all K, all slices, what is undefined and why.

    Rounded for reading; `cell.json` has the full precision.
    """
    rows: list[list[Any]] = []

    def add(name: str, estimate: Estimate | None) -> None:
        if estimate is not None:
            ends = [None if e is None else round(e, DIGITS) for e in (estimate.ci_low, estimate.ci_high)]
            rows.append([name, _shown(estimate.value, estimate.reason or "not_recorded"), estimate.n, *ends])

    report = summary.abstention
    for name, estimate in summary.metrics.items():
        add(name, estimate)
    for name in ("recall", "precision", "f1", "mcc", "auroc"):
        add(f"abstention {name}", getattr(report, name))
    add("false refusal rate", report.false_refusal_rate)
    for name, estimate in summary.partial.items():
        add(f"{name}, partial questions", estimate)
    for tag, by_value in summary.slices.items():
        for value, estimates in by_value.items():
            for name, estimate in estimates.items():
                add(f"{name}, {tag} = {value}", estimate)
    return {"columns": ["metric", "value", "n", "interval low", "interval high"], "data": rows}


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
            "extracted": list(result.dataset.extracted),
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
    figures: bool = True,
) -> None:
    """All artifacts of a cell into a folder: strict JSON in UTF-8 with plain line ends, and PNG figures."""
    summary = result.summary
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "per_question.jsonl": "".join(outcomes_to_lines(result.outcomes)),
        "per_question_table.json": json.dumps(
            question_table(result.outcomes, result.plan, summary.headline, texts),
            ensure_ascii=False,
            allow_nan=False,
        ),
        "metrics_table.json": json.dumps(metrics_table(summary), ensure_ascii=False, allow_nan=False),
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
    if figures:
        write_figures(folder / "figures", result)


def write_figures(folder: Path, result: CellResult) -> None:
    """The figures of a cell as PNG files."""
    from denominator import figures

    folder.mkdir(parents=True, exist_ok=True)
    summary, name = result.summary, result.name
    recalls = {k: summary.metrics[f"recall@{k}"] for k in result.plan.ks if f"recall@{k}" in summary.metrics}
    loss = "recall" if summary.audit is None else summary.audit.metric
    drawn = {
        "recall_at_k": figures.recall_curve(recalls, f"{name}: recall@K"),
        "confidence": figures.confidence_by_class(result.outcomes, f"{name}: confidence by class"),
        "confusion": figures.confusion(summary.abstention, f"{name}: refusals"),
        "risk_coverage": figures.risk_coverage(summary.abstention.risk_coverage, loss, f"{name}: risk and coverage"),
        "slices": figures.slice_bars(summary, f"{name}: slices"),
    }
    for key, figure in drawn.items():
        figure.save(folder / f"{key}.png")


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
