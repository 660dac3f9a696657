"""All that a run logs, gathered by pure functions before anything is sent: params, metrics, tags, notes."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import math
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denominator import __version__
from denominator.abstention import recorded_agreement
from denominator.fingerprint import fingerprint
from denominator.masking import mask
from denominator.records import SCHEMA_VERSION, dumps, plan_to_json
from denominator.tracking.spelling import (
    METRIC_LIMIT,
    key_of,
    mlflow_payload,
    param_text,
    payload_of,
    shortened,
    slice_key,
)
from denominator.types import METRIC_VERSION, Estimate, Plan

if TYPE_CHECKING:
    from denominator.evaluation import Summary
    from denominator.pipeline import CellResult, DatasetFacts

NOTE_LIMIT = 7_500


@dataclass(slots=True)
class Facts:
    """All that one run logs, gathered before anything is sent. `curve` is (key, value, step)."""

    name: str
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[str, float, int]] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    dataset: dict[str, str] = field(default_factory=dict)

    def add(self, found: tuple[Mapping[str, float], Mapping[str, str]]) -> None:
        self.metrics |= found[0]
        self.tags |= found[1]

    def number(self, key: str, value: float | None) -> None:
        """A plain number; what is not finite is a tag (`undefined.<key> = not_finite`)."""
        if value is None:
            return
        if math.isfinite(value):
            self.metrics[key] = float(value)
        else:
            self.tags[f"undefined.{key}"] = "not_finite"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "params": self.params,
            "metrics": self.metrics,
            "curve": [list(c) for c in self.curve],
            "tags": self.tags,
            "dataset": self.dataset,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        return cls(
            data["name"],
            dict(data["params"]),
            dict(data["metrics"]),
            [(k, v, s) for k, v, s in data["curve"]],
            dict(data["tags"]),
            dict(data["dataset"]),
        )


def safe_key(name: str) -> str:
    """A fact's name as a metric key."""
    return re.sub(r"[^A-Za-z0-9_\-.: /]", "_", name.replace("@", "_at_"))[:METRIC_LIMIT]


def versions() -> str:
    """What made the numbers: one readable line."""
    parts = [f"denominator {__version__}", f"python {platform.python_version()}"]
    for package in ("numpy", "scipy", "scikit-learn", "bm25s", "wordllama", "semchunk", "mlflow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{package} {metadata.version(package)}")
    return " · ".join(parts)


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of the folder of the call, None outside a repository or without git."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def process_tags() -> dict[str, str]:
    """Who runs this, as `host pid start`: enough to tell later whether that process is still alive."""
    return {"process": f"{socket.gethostname()} {os.getpid()} {process_started(os.getpid())}".rstrip()}


def owner(tags: Mapping[str, str]) -> tuple[str, str, str]:
    """Host, process id and start of the process that these tags name; schema 1 had a tag for each."""
    if "process" in tags:
        host, _, rest = tags["process"].partition(" ")
        pid, _, started = rest.partition(" ")
        return host, pid, started
    return tags.get("host", ""), tags.get("pid", ""), tags.get("process_started", "")


def process_started(pid: int) -> str:
    """When a process began, in the kernel's own units; empty where that cannot be known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def alive(tags: Mapping[str, str]) -> bool:
    """Whether the process that these tags name still runs. On another host: assumed so."""
    host, number, started = owner(tags)
    if host != socket.gethostname():
        return True
    try:
        pid = int(number)
        os.kill(pid, 0)
    except (ValueError, ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return not started or process_started(pid) in ("", started)


def base_tags(kind: str, sweep_id: str, commit: str | None) -> dict[str, str]:
    tags = {
        "kind": kind,
        "sweep_id": sweep_id,
        "recorded": "false",
        "schema_version": str(SCHEMA_VERSION),
        "metric_version": METRIC_VERSION,
        "versions": versions(),
        "mlflow.source.name": "denominator",
        "mlflow.source.type": "LOCAL",
    } | process_tags()
    with contextlib.suppress(Exception):  # a container may have no name for its user
        tags["mlflow.user"] = getpass.getuser()
    if commit:
        tags["mlflow.source.git.commit"] = commit
    return tags


def cell_facts(
    result: CellResult,
    sweep_id: str,
    *,
    settings: Mapping[str, Any] | None = None,
    commit: str | None = None,
    overrides: Sequence[str] = (),
) -> Facts:
    """Everything that a cell's run holds besides its files."""
    summary = result.summary
    facts = Facts(result.name)
    facts.params = {shortened(k, 250): param_text(v) for k, v in (settings or {}).items()}
    facts.params |= {shortened(k, 250): param_text(v) for k, v in result.params.items()}
    facts.params |= plan_params(result.plan)
    add_summary(facts, summary, result.plan)
    for name, number in result.facts.items():
        facts.number(safe_key(name), number)
    facts.tags |= {f"undefined.{k}": e.reason for k, e in recorded_agreement(result.facts).items() if e.reason}
    for stage in result.timings:
        facts.number(safe_key(f"seconds.{stage.stage}"), stage.seconds_computed)
    facts.number("seconds_now", sum(t.seconds_now for t in result.timings))
    facts.number("cached_stages", sum(t.cached for t in result.timings))
    headline = result.fingerprints.get(summary.headline, {})
    facts.tags |= base_tags("cell", sweep_id, commit) | {
        "cell_key": result.cell_key,
        f"sweep.{sweep_id}": "true",
        "incomplete": str(summary.ledger.incomplete).lower(),
        "eligibility": summary.ledger.eligibility,
        "label_source": summary.ledger.label_source,
        "headline_metric": summary.headline,
    }
    if headline:
        facts.tags["fingerprint"] = fingerprint(headline)
    if overrides:
        facts.tags["overrides"] = mask(" ".join(overrides))
    facts.tags["mlflow.note.content"] = cell_note(result)
    facts.dataset = dataset_input(result.dataset, summary.ledger.states)
    return facts


PLAN_PARAMS = ("ks", "budget", "pool", "eligibility")


def plan_params(plan: Plan) -> dict[str, str]:
    """The settings of the measurement that a person filters by: four always, others where they are not the default.

    All of them are in `cell.json` and `config.yaml`. The baseline belongs to the sweep and says nothing of a cell.
    """
    standard, given = plan_to_json(Plan()), plan_to_json(plan)
    names = [k for k in given if k in PLAN_PARAMS or (given[k] != standard[k] and k != "baseline")]
    return {k: param_text(given[k]) for k in names}


def logged_metrics(summary: Summary, plan: Plan) -> tuple[str, ...]:
    """Names of the summary's metrics that become MLflow metrics, the headline first: one K of each family.

    Recall has every K. The others have the K of the audit (5 where it is among the K) or, where rank counts, the
    largest. `metrics_table.json` holds all of them.
    """
    most, usual = max(plan.ks), 5 if 5 in plan.ks else max(plan.ks)
    wanted = [
        summary.headline,
        *(f"recall@{k}" for k in sorted(plan.ks)),
        *(f"{family}@{usual}" for family in ("complete", "hit", "precision")),
        *(f"{family}@{most}" for family in ("mrr", "ndcg")),
        f"map@{plan.pool}",
        "r_precision",
        f"judged@{usual}",
        *(f"{family}@b{plan.budget}" for family in ("coverage", "recall_tau100", "span_precision", "span_iou")),
    ]
    return tuple(name for name in dict.fromkeys(wanted) if name in summary.metrics)


def add_summary(facts: Facts, summary: Summary, plan: Plan, *, schema: int = SCHEMA_VERSION) -> None:
    """The figures of a summary as they are logged. The report holds its own recomputed summary against these.

    `schema` is the form of the run: 1 logged every figure, with the intervals and empty rows of each slice.
    The order is the one in which MLflow's pages list them, and the first is what its comparison plots begin with.
    """
    everything = schema < 2
    recalls = [f"recall@{k}" for k in sorted(plan.ks)]
    names = tuple(summary.metrics) if everything else logged_metrics(summary, plan)
    first = [name for name in names if name == summary.headline or name in recalls]
    for name in first:
        facts.add(mlflow_payload(name, summary.metrics[name]))
    facts.number("eligible_n", summary.ledger.eligible)
    for name, k in zip(recalls, sorted(plan.ks), strict=True):
        recall = summary.metrics.get(name)
        if recall is not None and recall.value is not None:
            facts.curve.append(("recall_at_k", recall.value, k))
    _abstention(facts, summary.abstention)
    threshold = summary.abstention.threshold
    if threshold is not None and threshold.overall is not None and not everything:
        facts.number("abstention_threshold", threshold.overall)
    for name in names:
        if name not in first:
            facts.add(mlflow_payload(name, summary.metrics[name]))
    for name, estimate in summary.partial.items():
        if estimate.n or everything:
            facts.add(payload_of(f"partial.{key_of(name, estimate)}", estimate))
    if summary.answer_quality is not None:
        for name, estimate in summary.answer_quality.metrics.items():
            facts.add(payload_of(f"answer.{name}", estimate))
    if summary.audit is not None:  # never under a plain metric's name
        for name in ("naive_one", "naive_zero", "drop", "inflation"):
            facts.number(f"audit.{name}", getattr(summary.audit, name))
        facts.tags["audit_metric"] = summary.audit.metric
    for tag, by_value in summary.slices.items():
        for value, estimates in by_value.items():
            for name, estimate in estimates.items():
                key = slice_key(f"{name}_micro" if estimate.aggregation == "micro" else name, tag, value)
                if everything:
                    facts.add(payload_of(key, estimate))
                elif estimate.value is not None:
                    facts.metrics |= {key: estimate.value, f"{key}__n": estimate.n}


def _abstention(facts: Facts, report: Any) -> None:
    named = {
        "abstention_recall": report.recall,
        "false_refusal_rate": report.false_refusal_rate,
        "abstention_precision": report.precision,
        "abstention_f1": report.f1,
        "abstention_mcc": report.mcc,
        "abstention_auroc": getattr(report, "auroc", None),
    }
    for key, maybe in named.items():
        if maybe is not None:
            facts.add(payload_of(key, maybe))
    for count in ("tp", "fp", "fn", "tn"):
        facts.number(f"abstention_{count}", getattr(report, count))


def dataset_input(dataset: DatasetFacts, states: Mapping[str, int]) -> dict[str, str]:
    """Name, digest, source, schema and profile of a data set for MLflow's Dataset column (digest ≤ 36 characters)."""
    profile: dict[str, Any] = {"questions": dataset.questions, "documents": dataset.documents}
    profile |= {k: v for k, v in states.items() if v}
    if dataset.extracted:
        profile["extracted"] = list(dataset.extracted)
    both = f"{dataset.dataset_hash}{dataset.corpus_hash or ''}"
    columns = [{"type": "string", "name": n, "required": True} for n in ("id", "question", "state", "gold")]
    return {
        "name": shortened(dataset.name, 250),
        "digest": hashlib.sha256(both.encode()).hexdigest()[:16],
        "source": dumps({"uri": mask(dataset.source or dataset.name)}),
        "schema": dumps({"mlflow_colspec": columns}),
        "profile": dumps(profile | {"dataset_hash": dataset.dataset_hash, "corpus_hash": dataset.corpus_hash}),
    }


def number(estimate: Estimate | None, digits: int = 3) -> str:
    """`0.714 [0.359, 0.918], n = 7`, or the reason why there is none.

    >>> number(Estimate(5 / 7, 7, ci_low=0.35893, ci_high=0.91778))
    '0.714 [0.359, 0.918], n = 7'
    """
    if estimate is None:
        return "not measured"
    if estimate.value is None:
        return f"undefined ({estimate.reason}), n = {estimate.n}"
    interval = ""
    if estimate.ci_low is not None and estimate.ci_high is not None:
        interval = f" [{estimate.ci_low:.{digits}f}, {estimate.ci_high:.{digits}f}]"
    return f"{estimate.value:.{digits}f}{interval}, n = {estimate.n}"


def ledger_line(ledger: Any) -> str:
    """One line that says who counts and who does not, summing to N."""
    others = [f"{n} {state.replace('_', ' ')}" for state, n in ledger.states.items() if n and state != "answerable"]
    rest = f"; not in it: {', '.join(others)}" if others else ""
    lost = [f"{n} {what}" for what, n in (("failed", ledger.failed), ("missing", ledger.missing)) if n]
    bad = f" ({', '.join(lost)}: counted as 0, run incomplete)" if lost else ""
    return f"{ledger.eligible} of {ledger.N} questions are in the denominator{bad}{rest} ({ledger.eligibility})"


def cell_note(result: CellResult) -> str:
    """The description that MLflow shows above a cell's run; its first lines are all that is seen before a click."""
    summary = result.summary
    recalls = [f"recall@{k}" for k in result.plan.ks]
    rows = dict.fromkeys([summary.headline, *recalls, f"ndcg@{max(result.plan.ks)}"])
    lines = [
        f"**{summary.headline} {number(summary.metrics[summary.headline])}** on *{result.dataset.name}*",
        "",
        ledger_line(summary.ledger),
        "",
        "| metric | value |",
        "| --- | --- |",
        *(f"| {name} | {number(summary.metrics[name])} |" for name in rows if name in summary.metrics),
        f"| unanswerable refused | {number(summary.abstention.recall)} |",
        f"| answerable refused | {number(summary.abstention.false_refusal_rate)} |",
    ]
    if result.notes:
        lines += ["", *(f"- {note}" for note in result.notes)]
    lines += [
        "",
        "Every number, all K and all slices: `metrics_table.json`. Question by question: `per_question_table.json`"
        + (f" (the first 1,000 of {len(result.outcomes)})" if len(result.outcomes) > 1000 else "")
        + ", and in full, to recompute everything from, `per_question.jsonl`.",
    ]
    return shortened(mask("\n".join(lines)), NOTE_LIMIT)
