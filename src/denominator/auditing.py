"""The command `audit`: what other conventions would have reported, for a run, a published mean, or old MLflow runs.

History is never overwritten: corrected figures go into runs of their own that link to the original.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from denominator.audit import AuditReport, Recovered, audit_outcomes, recover
from denominator.errors import ConfigError, DenominatorError, InputError, JudgementError, listing
from denominator.evaluation import summarize
from denominator.records import dumps
from denominator.scoring import (
    ScoreReport,
    add_inputs,
    audit_lines,
    columns,
    interval,
    ledger_lines,
    number,
    options_of,
    score,
)
from denominator.types import METRIC_VERSION, Dataset, Estimate, Hit, Outcome, Plan, RecordedRun, Result

if TYPE_CHECKING:
    from denominator.tracking import Store, StoredRun

Convention = Literal["one", "zero", "drop"]
HOW: dict[str, str] = {"one": "1 for an empty list", "zero": "0 for an empty list", "drop": "empty lists left out"}
SHOWN = {
    "empty_is_one": "empty = 1",
    "empty_is_zero": "empty = 0",
    "empty_is_skipped": "skipped",
    "missing_label_is_miss": "no label = miss",
}
OUTCOMES = "per_question.jsonl"
CAVEAT = "recovered by formula; it holds if exactly the unanswerable questions have an empty gold list"


# ------------------------------------------------------------------ a golden set and a run


@dataclass(frozen=True, slots=True)
class AuditResult:
    """One audit for each K over the same outcomes."""

    report: ScoreReport
    audits: Mapping[str, AuditReport]

    def as_dict(self) -> dict[str, Any]:
        return {
            "ledger": self.report.summary.ledger.as_dict(),
            "audit": {name: audit.as_dict() for name, audit in self.audits.items()},
            "metric_version": METRIC_VERSION,
            "notes": list(self.report.notes),
        }


def audit(golden: str | Path | Dataset, run: str | Path | Mapping[str, Result], **options: Any) -> AuditResult:
    """What each convention would have reported for this run; the options are those of `score`."""
    report = score(golden, run, **options)
    return AuditResult(report, _audits(report.outcomes, report.plan))


def _audits(outcomes: Sequence[Outcome], plan: Plan) -> dict[str, AuditReport]:
    return {name: audit_outcomes(outcomes, name) for name in (f"recall@{k}" for k in plan.ks)}


# ------------------------------------------------------------------ history


@dataclass(frozen=True, slots=True)
class Mean:
    """How bare means of old runs are to be read: the metric's key, the share of empty lists, what those scored."""

    metric: str
    u: float
    convention: Convention
    half_width: float = 0.0


@dataclass(frozen=True, slots=True)
class Rows:
    """A per-question artifact of another system: its path in the run, the golden set, and how it is read."""

    artifact: str
    golden: Dataset
    ks: tuple[int, ...] = (1, 3, 5, 10)
    depth: int | None = None
    lenient: bool = False
    ties: Literal["asc", "trec"] = "asc"
    id_column: str | None = None
    hits_column: str | None = None


@dataclass(frozen=True, slots=True)
class Audited:
    """What was found for one old run. `logged` is the run that holds it, `new` whether this call wrote it."""

    run_id: str
    name: str
    how: Literal["rescored", "recovered", "impossible"]
    reason: str = ""
    reported: Mapping[str, float | None] = field(default_factory=dict)
    corrected: Mapping[str, Estimate] = field(default_factory=dict)
    audits: Mapping[str, AuditReport] = field(default_factory=dict)
    recovered: Recovered | None = None
    notes: tuple[str, ...] = ()
    logged: str | None = None
    new: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "name": self.name,
            "how": self.how,
            "reason": self.reason or None,
            "reported": dict(self.reported),
            "corrected": {name: e.as_dict() for name, e in self.corrected.items()},
            "audit": {name: a.as_dict() for name, a in self.audits.items()},
            "recovered": None if self.recovered is None else self.recovered.as_dict(),
            "notes": list(self.notes),
            "logged": self.logged,
            "new": self.new,
        }


def history(
    store: Store, *, mean: Mean | None = None, rows: Rows | None = None, dry_run: bool = False
) -> tuple[Audited, ...]:
    """Every run of the experiment with its corrected figures, oldest first; what cannot be corrected says why.

    Runs with our `per_question.jsonl` are re-scored from it. Of others: with `rows`, those that hold that artifact are
    scored against the golden set; with `mean`, a bare mean is recovered by formula. Unless `dry_run`, each finding is
    written once as a run of its own (`kind=audit`, `rescored_from`); a second call adds nothing.
    """
    from denominator.tracking.history import audited, originals

    known = {} if dry_run else audited(store)
    found = []
    for run in originals(store):
        try:
            made = _of_run(store, run, mean, rows)
        except DenominatorError as error:
            made = _impossible(run, str(error))
        if made.how != "impossible" and not dry_run:
            made = _written(store, run, made, known)
        found.append(made)
    return tuple(found)


def _impossible(run: StoredRun, reason: str) -> Audited:
    return Audited(run.run_id, run.name, "impossible", reason)


def _of_run(store: Store, run: StoredRun, mean: Mean | None, rows: Rows | None) -> Audited:
    from denominator.tracking.history import has_file

    if "cell_key" in run.tags:
        return _own(store, run)
    if rows is not None and has_file(store, run, rows.artifact):
        return _foreign(store, run, rows)
    if mean is None:
        there = ", ".join(sorted(run.metrics)[:8]) or "none"
        what = f"no artifact {rows.artifact}" if rows is not None else "no per-question artifact of this package"
        return _impossible(
            run,
            f"{what}; to recover a bare mean give --metric, --unanswerable-share and --convention "
            f"(its metrics: {there}), or name its per-question artifact with --artifact and --golden",
        )
    return _bare(run, mean)


def _own(store: Store, run: StoredRun) -> Audited:
    from denominator.tracking import read_cell

    if not run.recorded:
        return _impossible(run, f"it was not recorded whole (status {run.status.lower()})")
    version = run.tags.get("metric_version")
    if version != METRIC_VERSION:
        return _impossible(run, f"recorded under metric version {version}, and this is {METRIC_VERSION}: run it again")
    cell: RecordedRun = read_cell(store, run)
    if cell.plan.evaluate == "abstention":
        return _impossible(run, "it measured abstention only: there is no recall in it")
    plan = replace(cell.plan, aggregation="macro")
    summary = summarize(cell.outcomes, plan, label_source=cell.ledger.label_source)
    audits = _audits(cell.outcomes, plan)
    reported = {name: run.estimate(name).value for name in audits}
    notes = ["INCOMPLETE: failed and missing questions count as 0"] if summary.ledger.incomplete else []
    if cell.plan.aggregation == "micro":
        notes.append("reported is a micro average over evidence groups, corrected a mean over questions")
    corrected = {name: summary.metrics[name] for name in audits}
    return Audited(
        run.run_id, run.name, "rescored", reported=reported, corrected=corrected, audits=audits, notes=tuple(notes)
    )


def _foreign(store: Store, run: StoredRun, rows: Rows) -> Audited:
    from denominator.tracking.history import file_of

    with file_of(store, run, rows.artifact) as path:
        table = _table(path)
        source: Path | dict[str, Result] = path if table is None else _results_of(table, rows)
        report = score(
            rows.golden,
            source,
            ks=rows.ks,
            depth=rows.depth,
            lenient=rows.lenient,
            plan=Plan(ties=rows.ties),
        )
    audits = _audits(report.outcomes, report.plan)
    reported = {name: run.metrics.get(_key_of(run, name) or "") for name in audits}
    corrected = {name: report.summary.metrics[name] for name in audits}
    notes = [f"scored again from its {rows.artifact} against {rows.golden.name}"]
    if report.summary.ledger.incomplete:
        lost = report.summary.ledger.failed + report.summary.ledger.missing
        notes.append(f"INCOMPLETE: {lost} of {report.summary.ledger.eligible} eligible questions count as 0")
    return Audited(
        run.run_id, run.name, "rescored", reported=reported, corrected=corrected, audits=audits, notes=tuple(notes)
    )


def _key_of(run: StoredRun, name: str) -> str | None:
    """The key under which a run holds a metric: as named, as MLflow allows it, or as `mlflow.evaluate` writes it."""
    from denominator.tracking import spell

    return next((key for key in (name, spell(name), f"{spell(name)}/mean") if key in run.metrics), None)


def _table(path: Path) -> Mapping[str, Any] | None:
    """The table that MLflow writes with `log_table` and `evaluate`: an object with `columns` and `data`."""
    if path.suffix != ".json":
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and {"columns", "data"} <= data.keys() else None


def _results_of(table: Mapping[str, Any], rows: Rows) -> dict[str, Result]:
    names = [str(name) for name in table["columns"]]
    if rows.id_column is None or rows.hits_column is None:
        raise ConfigError(
            f"{rows.artifact} is a table (columns: {', '.join(names)}); say which hold the question's id and the "
            "retrieved ids: --id-column and --hits-column"
        )
    for name in (rows.id_column, rows.hits_column):
        if name not in names:
            raise ConfigError(f"{rows.artifact} has no column {name!r} (there are: {', '.join(names)})")
    at = [names.index(name) for name in (rows.id_column, rows.hits_column)]
    results: dict[str, Result] = {}
    twice: list[str] = []
    for row in table["data"]:
        identifier, cell = row[at[0]], row[at[1]]
        if identifier in results:
            twice.append(str(identifier))
        results[identifier] = Result(tuple(Hit(i, i) for i in _ids(cell, rows, identifier)))
    if twice:
        raise InputError(f"questions that are there twice in {rows.artifact}: {listing(twice)} ({len(twice)} in all)")
    return results


def _ids(cell: Any, rows: Rows, question: Any) -> list[str]:
    """A list of ids, or such a list as text (MLflow writes lists of a table so)."""
    value = cell
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            value = cell
    if not isinstance(value, list) or not all(isinstance(i, str) and i for i in value):
        raise InputError(
            f"{rows.artifact}: retrieved ids of {question!r}", found=repr(cell), expected='a list of ids, ["d1", "d2"]'
        )
    return value


def _bare(run: StoredRun, mean: Mean) -> Audited:
    key = _key_of(run, mean.metric)
    if key is None:
        there = ", ".join(sorted(run.metrics)[:8]) or "none"
        return _impossible(run, f"it has no metric {mean.metric!r} (its metrics: {there})")
    if run.status != "FINISHED":
        return _impossible(run, f"its status is {run.status.lower()}, so {key} may be the mean of a part")
    value = run.metrics[key]
    if not math.isfinite(value):
        return _impossible(run, f"{key} is {value!r}, which is no mean")
    found = recover(value, mean.u, mean.convention, mean.half_width)
    if found.value is None:
        why = {
            "all_unanswerable": "every question is unanswerable, so the mean says nothing about retrieval",
            "inconsistent_u": f"no recall between 0 and 1 gives {value:g} with this share and convention",
        }
        return _impossible(run, f"{key}: {found.reason}: {why.get(found.reason or '', 'no value')}")
    return Audited(run.run_id, run.name, "recovered", reported={key: value}, recovered=found, notes=(CAVEAT,))


# ------------------------------------------------------------------ writing


def _payload(made: Audited) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags under names of their own: never a plain metric's name."""
    from denominator.tracking import spell
    from denominator.tracking.spelling import payload_of

    metrics: dict[str, float] = {}
    tags: dict[str, str] = {"method": made.how}
    for name, estimate in made.corrected.items():
        more = payload_of(f"corrected.{spell(name)}", estimate)
        metrics |= more[0]
        tags |= more[1]
        for c in made.audits[name].conventions:
            if c.reported is not None:
                metrics[f"convention.{spell(name)}.{c.name}"] = c.reported
    for name, value in made.reported.items():
        if value is not None and math.isfinite(value):
            metrics[f"reported.{spell(name)}"] = value
    if made.recovered is not None:
        (key,) = made.reported
        for end, number_ in (
            ("", made.recovered.value),
            ("__low", made.recovered.low),
            ("__high", made.recovered.high),
        ):
            if number_ is not None:
                metrics[f"recovered.{spell(key)}{end}"] = number_
        tags |= {"convention": made.recovered.convention, "unanswerable_share": repr(made.recovered.u)}
        tags["rounding_half_width"] = repr(made.recovered.half_width)
    return metrics, tags


def _written(store: Store, run: StoredRun, made: Audited, known: Mapping[str, str]) -> Audited:
    from denominator.fingerprint import sha
    from denominator.tracking.history import log_audit

    metrics, tags = _payload(made)
    key = sha({"run": run.run_id, "metrics": metrics, "tags": tags, "metric_version": METRIC_VERSION})
    if key in known:
        return replace(made, logged=known[key])
    note = f"Corrected figures of the run {run.name} (`{run.run_id}`), which is as it was.\n\n```\n"
    run_id = log_audit(
        store,
        run,
        key,
        metrics=metrics,
        tags=tags,
        note=note + "\n".join(run_lines(made)) + "\n```",
        files={"audit.json": dumps({"original": run.run_id} | made.as_dict()) + "\n"},
    )
    return replace(made, logged=run_id, new=True)


# ------------------------------------------------------------------ text


def recovered_lines(found: Recovered) -> list[str]:
    """The corrected value behind a mean, or why there is none."""
    said = f"mean {found.naive:g}, {found.u:.4g} of the questions without gold, {HOW[found.convention]}"
    if found.value is None:
        return [f"{said}: no corrected value, {found.reason}"]
    width = f", between {found.low:.5f} and {found.high:.5f}" if found.half_width else ""
    return [f"{said}: corrected {found.value:.4f}{width}", CAVEAT]


def run_lines(made: Audited) -> list[str]:
    """One old run: what it reported, what is right, what each convention gives."""
    lines = [f"{made.name} ({made.run_id})"]
    if made.how == "impossible":
        return [*lines, f"  cannot be corrected: {made.reason}"]
    if made.recovered is not None:
        (key,) = made.reported
        return [*lines, *(f"  {text}" for text in [f"{key}: {recovered_lines(made.recovered)[0]}", *made.notes])]
    head = ["re-scored", "reported", "corrected", "n", "interval", *SHOWN.values()]
    rows = [head]
    for name, audit in made.audits.items():
        e = made.corrected[name]
        by_name = {c.name: c.reported for c in audit.conventions}
        conventions = [number(by_name.get(c)) for c in SHOWN]
        rows.append(
            [name, number(made.reported.get(name)), number(e.value), str(e.n), e.reason or interval(e), *conventions]
        )
    return [*lines, *columns(rows, right=(1, 2, 3, 5, 6, 7, 8)), *(f"  {note}" for note in made.notes)]


def history_text(store: Store, found: Sequence[Audited], *, dry_run: bool) -> str:
    """All runs, and how many could be corrected."""
    lines = [f"experiment {store.experiment}: {_counted(len(found), 'run')}"]
    for made in found:
        lines += ["", *run_lines(made)]
        if made.logged is not None:
            lines.append(f"  {'written as' if made.new else 'was written before as'} run {made.logged}")
    done = [m for m in found if m.how != "impossible"]
    new = sum(m.new for m in done)
    said = (
        f"{len(done)} of {len(found)} corrected "
        f"({sum(m.how == 'rescored' for m in done)} re-scored, {sum(m.how == 'recovered' for m in done)} recovered); "
    )
    said += "nothing was written (--dry-run)" if dry_run else f"{new} written, {len(done) - new} written before"
    return "\n".join([*lines, "", f"{said}; the originals are as they were"]) + "\n"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


# ------------------------------------------------------------------ the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator audit`."""
    add_inputs(parser, required=False)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    published = parser.add_argument_group("a published mean")
    published.add_argument("--mean", type=float, metavar="X", help="the mean, instead of golden set and run")
    published.add_argument("--unanswerable-share", type=float, metavar="U", help="share of questions without gold")
    published.add_argument(
        "--convention", choices=tuple(HOW), help="what a question without gold scored: 1, 0, or it was left out"
    )
    published.add_argument(
        "--rounded", type=float, default=0.0, metavar="H", help="half width of its rounding (0.0005 for three decimals)"
    )
    old = parser.add_argument_group("old MLflow runs")
    old.add_argument("--experiment", metavar="NAME", help="every run of this experiment")
    old.add_argument("--metric", metavar="KEY", help="their metric to recover, with --unanswerable-share, --convention")
    old.add_argument("--artifact", metavar="PATH", help="their per-question file to score again, with --golden")
    old.add_argument("--id-column", metavar="C", help="an --artifact that is a table: column of the question's id")
    old.add_argument("--hits-column", metavar="C", help="… and of the retrieved ids, in order")
    old.add_argument("--dry-run", action="store_true", help="only print")
    old.add_argument("--out", metavar="DIR", help="output folder (default: denominator-out)")
    old.add_argument(
        "--tracking-uri",
        "--uri",
        dest="uri",
        metavar="URI",
        help="the store (default: MLFLOW_TRACKING_URI, or the one in --out)",
    )


_OF_HISTORY = ("metric", "artifact", "id_column", "hits_column", "out", "uri")


def run_audit(args: argparse.Namespace) -> int:
    """`denominator audit`: of a golden set and a run, of a published mean, or of an experiment's runs."""
    if args.experiment is not None:
        return _run_history(args)
    stray = [name for name in _OF_HISTORY if getattr(args, name) is not None] + ["dry_run"] * args.dry_run
    if stray:
        raise ConfigError(f"--{stray[0].replace('_', '-')} belongs to --experiment")
    if args.mean is not None:
        if args.golden is not None or args.run is not None:
            raise ConfigError("give either --mean or --golden and --run, not both")
        if args.unanswerable_share is None or args.convention is None:
            raise ConfigError("--mean needs --unanswerable-share and --convention (one, zero or drop)")
        found = recover(args.mean, args.unanswerable_share, args.convention, args.rounded)
        text = dumps({"recovered": found.as_dict()}) if args.json else "\n".join(recovered_lines(found))
        sys.stdout.write(text + "\n")
        return 0
    if args.golden is None or args.run is None:
        raise ConfigError(
            "audit needs --golden and --run, or --mean with --unanswerable-share and --convention, or --experiment"
        )
    if args.unanswerable_share is not None or args.convention is not None:
        raise ConfigError("--unanswerable-share and --convention belong to --mean")
    result = audit(args.golden, args.run, ks=args.k, **options_of(args))
    if args.json:
        sys.stdout.write(dumps(result.as_dict()) + "\n")
        return 0
    lines = ledger_lines(result.report)
    last = len(result.audits) - 1
    for i, one in enumerate(result.audits.values()):
        lines += ["", *audit_lines(one, tools=i == last)]  # who does it is the same for every K
    lines += ["", *(f"note: {note}" for note in result.report.notes)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _mean_of(args: argparse.Namespace) -> Mean | None:
    given = [args.metric, args.unanswerable_share, args.convention]
    if all(value is None for value in given):
        return None
    if any(value is None for value in given):
        raise ConfigError("to recover a bare mean give all of --metric, --unanswerable-share and --convention")
    recover(
        0.0, args.unanswerable_share, args.convention, args.rounded
    )  # refuses a share that is none, before any work
    return Mean(args.metric, args.unanswerable_share, args.convention, args.rounded)


def _rows_of(args: argparse.Namespace) -> Rows | None:
    from denominator.scoring import load_golden

    if args.artifact is None and args.golden is None:
        return None
    if args.artifact is None or args.golden is None:
        raise ConfigError("old runs are scored again with both: --artifact, their file, and --golden, the labels")
    golden = load_golden(args.golden, assume_answerable=args.assume_answerable, min_grade=args.min_grade)
    return Rows(args.artifact, golden, args.k, args.depth, args.lenient, args.ties, args.id_column, args.hits_column)


def _run_history(args: argparse.Namespace) -> int:
    from denominator.tracking import find_store

    for name in ("run", "mean"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name} does not go with --experiment")
    mean, rows = _mean_of(args), _rows_of(args)
    store = find_store(args.out or "denominator-out", args.uri, args.experiment)
    found = history(store, mean=mean, rows=rows, dry_run=args.dry_run)
    if args.json:
        said = {"experiment": store.experiment, "dry_run": args.dry_run, "runs": [m.as_dict() for m in found]}
        sys.stdout.write(dumps(said | {"metric_version": METRIC_VERSION}) + "\n")
    else:
        sys.stdout.write(history_text(store, found, dry_run=args.dry_run))
    if not any(m.how != "impossible" for m in found):
        return JudgementError.exit_code
    return 0
