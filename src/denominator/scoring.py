"""The commands `score` and `audit`: a golden set and a recorded run in, numbers with n and reason out.

Both read files, call the same `evaluate` and `summarize` as a sweep, and print; no number is made here.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denominator.errors import ConfigError, InputError
from denominator.evaluation import Summary, evaluate, summarize
from denominator.readers import native, runs, trec
from denominator.readers.build import Evaluate
from denominator.readers.textfiles import as_path
from denominator.records import dumps, outcomes_to_lines
from denominator.types import METRIC_VERSION, Answer, Dataset, Estimate, Outcome, Plan, Result, Run

if TYPE_CHECKING:
    from denominator.audit import AuditReport, Recovered

POOL = 100
DASH = "–"


@dataclass(frozen=True, slots=True)
class TieEnds:
    """The worst and the best mean of a metric over all orders of tied hits; they differ on `questions` of n."""

    low: float
    high: float
    questions: int
    n: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def tie_ends(outcomes: Sequence[Outcome], summary: Summary, plan: Plan) -> dict[str, TieEnds]:
    """For every metric that depends on the order of tied hits: between which means it lies. Undefined ones: none.

    Where this is empty, no number owes anything to the tie rule.
    """
    eligible = [o for o in outcomes if o.state == "answerable"]
    names = dict.fromkeys(name for o in eligible for name in o.ties)
    found = {}
    for name in (n for n in summary.metrics if n in names and summary.metrics[n].value is not None):
        micro = summary.metrics[name].unit == "groups"
        weights = [o.groups if micro else 1 for o in eligible]
        ends = []
        for end in (0, 1):
            values = [o.ties[name][end] if name in o.ties else o.values[name] or 0.0 for o in eligible]
            ends.append(math.fsum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights))
        found[name] = TieEnds(ends[0], ends[1], sum(name in o.ties for o in eligible), len(eligible))
    return found


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """What `score` says: the summary of the outcomes, and what has to be known beside it."""

    dataset: Dataset
    plan: Plan
    outcomes: tuple[Outcome, ...]
    summary: Summary
    depth: int | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """One JSON object: `ledger`, `metrics`, `abstention`, `audit` and the rest of the summary."""
        return self.summary.as_dict() | {
            "dataset": {
                "name": self.dataset.name,
                "dataset_hash": self.dataset.dataset_hash,
                "corpus_hash": self.dataset.corpus_hash,
            },
            "ties": self.plan.ties,
            "tie_range": {n: e.as_dict() for n, e in tie_ends(self.outcomes, self.summary, self.plan).items()},
            "depth": self.depth,
            "metric_version": METRIC_VERSION,
            "notes": list(self.notes),
        }


def load_golden(
    golden: str | Path,
    *,
    corpus: str | Path | None = None,
    assume_answerable: bool = False,
    min_grade: int = 1,
    cluster: str | None = None,
    lang: str = "en",
    evaluate: Evaluate = "retrieval",
) -> Dataset:
    """A golden set in the JSON lines form or as TREC qrels, whichever the content is; a note says which."""
    found = runs.sniff(golden)
    if found == "trec":
        for name, given in (("--corpus", corpus is not None), ("--cluster", cluster is not None)):
            if given:
                raise ConfigError(f"{name} needs a golden set as JSON lines; {golden} is read as TREC qrels")
        made = trec.load_qrels(golden, assume_answerable=assume_answerable, min_grade=min_grade)
        return replace(made, evaluate=evaluate, notes=("golden set read as TREC qrels", *made.notes))
    if min_grade != 1:
        raise ConfigError(f"--min-grade is for TREC qrels; {golden} is read as JSON lines")
    made = native.load(
        corpus, golden, assume_answerable=assume_answerable, cluster=cluster, lang=lang, evaluate=evaluate
    )
    return replace(made, notes=("golden set read as JSON lines", *made.notes))


def _results(
    run: str | Path | Mapping[str, Result] | None, depth: int | None
) -> tuple[dict[str, Result], tuple[str, ...]]:
    if run is None:
        return {}, ()
    results, notes = (dict(run), ()) if isinstance(run, Mapping) else runs.read_run(run)
    if depth is None:
        return results, notes
    if isinstance(depth, bool) or depth < 1:
        raise ConfigError(f"--depth is {depth!r}; it says how many hits were asked for and is at least 1")
    return {q: r if r.depth is not None else replace(r, depth=depth) for q, r in results.items()}, notes


def score(
    golden: str | Path | Dataset,
    run: str | Path | Mapping[str, Result] | None,
    answers: str | Path | Mapping[str, Answer] | None = None,
    *,
    ks: Sequence[int] = (1, 3, 5, 10),
    lenient: bool = False,
    assume_answerable: bool = False,
    depth: int | None = None,
    corpus: str | Path | None = None,
    min_grade: int = 1,
    cluster: str | None = None,
    lang: str = "en",
    slices: Sequence[str] = (),
    threshold: float | None = None,
    plan: Plan | None = None,
) -> ScoreReport:
    """Scores a recorded run, recorded answers, or both, against a golden set.

    Without a run only abstention is measured (`abstention_only` stands beside every retrieval metric). Without answers
    abstention is read from the scores of the run: by `threshold`, or cross-fitted. `depth` is how many hits were asked
    for, where the run does not say it; unknown depth passes with a note. `plan` gives what no argument here does.

    Errors: those of the readers (`InputError`) and of `evaluate` (`MeasurementError`).
    """
    if run is None and answers is None:
        raise ConfigError("nothing to score: give a run, answers, or both")
    mode: Evaluate = "abstention" if run is None else "retrieval"
    if isinstance(golden, Dataset):
        data = golden
        mode = "abstention" if data.evaluate == "abstention" else mode
    else:
        data = load_golden(
            golden,
            corpus=corpus,
            assume_answerable=assume_answerable,
            min_grade=min_grade,
            cluster=cluster,
            lang=lang,
            evaluate=mode,
        )
    results, said = _results(run, depth)
    notes = [*data.notes, *said]
    columns = Run.from_results(results)
    if run is not None and columns.depth is None and results:
        longest = max((len(r.hits) for r in results.values()), default=0)
        notes.append(
            f"the run does not say how many hits were asked for (longest list: {longest}); "
            "--depth N refuses every K above it"
        )
    recorded = None if answers is None else answers if isinstance(answers, Mapping) else runs.read_answers(answers)
    base = plan or Plan()
    plan = replace(
        base,
        ks=tuple(sorted(set(ks))),
        eligibility="lenient" if lenient else "strict",
        pool=columns.depth or POOL,
        cluster=cluster,
        slices=tuple(slices),
        threshold=threshold,
        evaluate=mode,
    )
    index, corpus_ids = None, None
    if data.corpus_hash is not None:
        from denominator.spans import CorpusIndex

        index = CorpusIndex.build(data.documents)
        corpus_ids = {d.id for d in data.documents}
    outcomes = evaluate(
        data.questions,
        columns,
        plan,
        index=index,
        corpus_ids=corpus_ids,
        answers=recorded,
        label_source=data.label_source,
    )
    summary = summarize(outcomes, plan, label_source=data.label_source, chunker_varies=False)
    return ScoreReport(data, plan, outcomes, summary, columns.depth, tuple(notes))


# ------------------------------------------------------------------ text and CSV


def _number(value: float | None, digits: int = 4) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def _interval(e: Estimate) -> str:
    return DASH if e.ci_low is None or e.ci_high is None else f"[{e.ci_low:.4f}, {e.ci_high:.4f}]"


def _columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Left-aligned first column, right-aligned numbers; as wide as its widest cell, so nothing is cut."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in (1, 2) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def _estimate_row(name: str, e: Estimate) -> list[str]:
    return [name, _number(e.value), str(e.n), _interval(e), e.reason or e.ci_method or ""]


def _ledger_lines(report: ScoreReport) -> list[str]:
    ledger = report.summary.ledger
    states = ", ".join(f"{count} {state}" for state, count in ledger.states.items() if count)
    lines = [
        f"{report.dataset.name}: {ledger.N} questions = {states}",
        f"eligible {ledger.eligible} = {ledger.ok} ok + {ledger.failed} failed + {ledger.missing} missing"
        f" ({ledger.eligibility}, labels: {ledger.label_source})",
    ]
    if ledger.incomplete:
        lines.append("INCOMPLETE: failed and missing questions count as 0; do not compare this run")
    return lines


def render_text(report: ScoreReport) -> str:
    """The tables for a terminal: every value with its n and interval, or the reason why there is none."""
    summary = report.summary
    lines = [*_ledger_lines(report), ""]
    head = ["metric", "value", "n", "95 % interval" if report.plan.alpha == 0.05 else "interval", ""]
    shown = {name: e for name, e in summary.metrics.items() if e.value is not None}
    if shown:
        lines += _columns([head, *(_estimate_row(name, e) for name, e in shown.items())])
    for reason in dict.fromkeys(e.reason for e in summary.metrics.values() if e.value is None):
        names = [name for name, e in summary.metrics.items() if e.value is None and e.reason == reason]
        n = summary.metrics[names[0]].n
        lines.append(f"  undefined ({reason}, n = {n}): {', '.join(names)}")
    lines += tie_lines(report)
    beside = [(f"partial {name}", e) for name, e in summary.partial.items() if e.n]
    if beside:
        lines += ["", *_columns([head, *(_estimate_row(name, e) for name, e in beside)])]
    sliced = [
        (f"{name} · {tag}={value}", e)
        for tag, values in summary.slices.items()
        for value, metrics in values.items()
        for name, e in metrics.items()
    ]
    if sliced:
        lines += ["", *_columns([["slice", *head[1:]], *(_estimate_row(name, e) for name, e in sliced)])]
    lines += ["", *_abstention_lines(report)]
    if summary.audit is not None:
        lines += ["", *audit_lines(summary.audit)]
    if report.notes:
        lines += ["", *(f"note: {note}" for note in report.notes)]
    return "\n".join(lines) + "\n"


def tie_lines(report: ScoreReport) -> list[str]:
    """How much of the numbers the tie rule decided, where it decided anything."""
    ends = tie_ends(report.outcomes, report.summary, report.plan)
    if not ends:
        return []
    rows = [[name, _number(e.low), _number(e.high), f"{e.questions} of {e.n} questions"] for name, e in ends.items()]
    head = ["tied hits, in other orders", "worst", "best", "differ on"]
    return ["", *_columns([head, *rows])]


def _abstention_lines(report: ScoreReport) -> list[str]:
    block = report.summary.abstention
    if block.reason is not None:
        return [f"abstention: undefined, {block.reason}"]
    how = ", ".join(f"{rung} {count}" for rung, count in block.deciders.items()) or "by the top score"
    lines = [
        f"abstention ({how}): unanswerable refused {block.tp}, answered {block.fn}; "
        f"answerable refused {block.fp}, answered {block.tn}; undecided {block.undecided}"
    ]
    rows = [
        ("recall (UAR)", block.recall),
        ("false refusal rate", block.false_refusal_rate),
        ("precision", block.precision),
        ("f1", block.f1),
        ("mcc", block.mcc),
    ]
    return [*lines, *_columns([_estimate_row(name, e) for name, e in rows])]


def audit_lines(audit: AuditReport, *, tools: bool = False) -> list[str]:
    """What each convention would have reported and how far off that is; with `tools` also who does it."""
    share = "" if audit.u is None else f", {audit.empty} of {audit.seen} gold lists empty"
    lines = [f"audit of {audit.metric}: corrected {_number(audit.r)} over n = {audit.n}{share}"]
    if audit.reason is not None:
        lines[0] += f" ({audit.reason})"
    if not audit.conventions:
        return lines
    rows = [[c.name, _number(c.reported), str(c.n), _signed(c.inflation)] for c in audit.conventions]
    lines += _columns([["convention", "reports", "n", "inflation"], *rows])
    if audit.inflation is not None:
        lines.append(
            f"  empty_is_one is off by {_signed(audit.inflation)} = {_signed(audit.from_empty)} from empty lists, "
            f"{_signed(audit.from_labels)} from labels"
        )
    if tools:
        for c in audit.conventions:
            lines += [f"  {c.name}:", *(f"    {t.name}{f' ({t.note})' if t.note else ''} [{t.how}]" for t in c.tools)]
    return lines


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{value:+.4f}"


_ESTIMATE_COLUMNS = tuple(Estimate(None, 0).as_dict())


def render_csv(report: ScoreReport) -> str:
    """One row for each value: section, name, slice, then the fields of the estimate; an undefined one is empty."""
    summary = report.summary
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["section", "metric", "tag", "slice", *_ESTIMATE_COLUMNS])

    def rows(section: str, items: Iterable[tuple[str, Estimate]], tag: str = "", value: str = "") -> None:
        for name, e in items:
            cells = e.as_dict().values()
            table.writerow([section, name, tag, value, *("" if cell is None else cell for cell in cells)])

    rows("metrics", summary.metrics.items())
    rows("partial", summary.partial.items())
    for tag, values in summary.slices.items():
        for value, metrics in values.items():
            rows("slices", metrics.items(), tag, value)
    names = ("precision", "recall", "f1", "mcc", "false_refusal_rate")
    rows("abstention", [(name, getattr(summary.abstention, name)) for name in names])
    return out.getvalue()


def write_atomically(path: str | Path, text: str) -> None:
    """UTF-8 text under a temporary name beside the target, then renamed: the target is whole or as it was."""
    path = as_path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        beside.replace(path)
    except (OSError, ValueError) as error:
        beside.unlink(missing_ok=True)
        raise InputError(
            "cannot be written", path=path, found=str(error), expected="a file in a folder that exists and is writable"
        ) from None


# ------------------------------------------------------------------ the command `score`


def _ks(text: str) -> tuple[int, ...]:
    try:
        ks = tuple(int(part) for part in text.split(","))
    except ValueError:
        ks = ()
    if not ks or min(ks) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers of at least 1, such as 1,5,10")
    return ks


def _inputs(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--golden", required=required, metavar="FILE", help="golden set: JSON lines or TREC qrels")
    parser.add_argument("--run", metavar="FILE", help="recorded run: JSON lines or a TREC run")
    parser.add_argument("-k", type=_ks, default=(1, 3, 5, 10), metavar="1,5", help="cut-offs (default: 1,3,5,10)")
    parser.add_argument("--lenient", action="store_true", help="exclude and count questions that cannot be scored")
    parser.add_argument(
        "--assume-answerable", action="store_true", help="unlabelled questions that have gold are answerable"
    )
    parser.add_argument("--depth", type=int, metavar="N", help="how many hits the run asked for, if it does not say")
    parser.add_argument("--min-grade", type=int, default=1, metavar="G", help="TREC qrels: least grade that is gold")
    parser.add_argument("--ties", choices=("asc", "trec"), default="asc", help="tie rule (trec: as trec_eval)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator score`."""
    _inputs(parser, required=True)
    parser.add_argument("--answers", metavar="FILE", help="recorded answers: JSON lines")
    parser.add_argument("--corpus", metavar="FILE", help="documents: checks the gold and enables coverage by spans")
    parser.add_argument("--cluster", metavar="FIELD", help="field that says which questions belong together")
    parser.add_argument("--lang", default="en", help="language of questions that do not say it (default: en)")
    parser.add_argument("--slice", action="append", default=[], metavar="TAG", help="group by this tag (repeatable)")
    parser.add_argument("--threshold", type=float, metavar="T", help="abstain below this score, instead of fitting one")
    parser.add_argument("--micro", action="store_true", help="recall over evidence groups instead of questions")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument("--csv", action="store_true", help="one row for each value")
    parser.add_argument("--per-question", metavar="FILE", help="write one JSON line for each question")


def run(args: argparse.Namespace) -> int:
    """`denominator score`: prints the report, 0. Errors are raised for the command line to show."""
    report = score(
        args.golden,
        args.run,
        args.answers,
        ks=args.k,
        lenient=args.lenient,
        assume_answerable=args.assume_answerable,
        depth=args.depth,
        corpus=args.corpus,
        min_grade=args.min_grade,
        cluster=args.cluster,
        lang=args.lang,
        slices=args.slice,
        threshold=args.threshold,
        plan=Plan(ties=args.ties, aggregation="micro" if args.micro else "macro"),
    )
    if args.per_question is not None:
        write_atomically(args.per_question, "".join(outcomes_to_lines(report.outcomes)))
    if args.json:
        sys.stdout.write(dumps(report.as_dict()) + "\n")
    else:
        sys.stdout.write(render_csv(report) if args.csv else render_text(report))
    return 0


# ------------------------------------------------------------------ the command `audit`


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
    from denominator.audit import audit_outcomes

    report = score(golden, run, **options)
    names = [f"recall@{k}" for k in report.plan.ks]
    return AuditResult(report, {name: audit_outcomes(report.outcomes, name) for name in names})


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator audit`."""
    _inputs(parser, required=False)
    parser.add_argument("--mean", type=float, metavar="X", help="a published mean, instead of golden set and run")
    parser.add_argument("--unanswerable-share", type=float, metavar="U", help="share of questions without gold in it")
    parser.add_argument(
        "--convention",
        choices=("one", "zero", "drop"),
        help="what a question without gold scored in it: 1, 0, or left out",
    )
    parser.add_argument("--rounded", type=float, default=0.0, metavar="H", help="half width of its rounding (0.0005)")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def recovered_lines(found: Recovered) -> list[str]:
    """The corrected value behind a mean, or why there is none."""
    how = {"one": "1 for an empty list", "zero": "0 for an empty list", "drop": "empty lists left out"}
    said = f"mean {found.naive:g}, {found.u:.4g} of the questions without gold, {how[found.convention]}"
    if found.value is None:
        return [f"{said}: no corrected value, {found.reason}"]
    width = f", between {found.low:.5f} and {found.high:.5f}" if found.half_width else ""
    return [
        f"{said}: corrected {found.value:.4f}{width}",
        "recovered by formula; it holds if exactly the unanswerable questions have an empty gold list",
    ]


def run_audit(args: argparse.Namespace) -> int:
    """`denominator audit`: of a golden set and a run, or of a published mean."""
    if args.mean is not None:
        from denominator.audit import recover

        if args.golden is not None or args.run is not None:
            raise ConfigError("give either --mean or --golden and --run, not both")
        if args.unanswerable_share is None or args.convention is None:
            raise ConfigError("--mean needs --unanswerable-share and --convention (one, zero or drop)")
        found = recover(args.mean, args.unanswerable_share, args.convention, args.rounded)
        text = dumps({"recovered": found.as_dict()}) if args.json else "\n".join(recovered_lines(found))
        sys.stdout.write(text + "\n")
        return 0
    if args.golden is None or args.run is None:
        raise ConfigError("audit needs --golden and --run, or --mean with --unanswerable-share and --convention")
    if args.unanswerable_share is not None or args.convention is not None:
        raise ConfigError("--unanswerable-share and --convention belong to --mean")
    result = audit(
        args.golden,
        args.run,
        ks=args.k,
        lenient=args.lenient,
        assume_answerable=args.assume_answerable,
        depth=args.depth,
        min_grade=args.min_grade,
        plan=Plan(ties=args.ties),
    )
    if args.json:
        sys.stdout.write(dumps(result.as_dict()) + "\n")
        return 0
    lines = _ledger_lines(result.report)
    last = len(result.audits) - 1
    for i, one in enumerate(result.audits.values()):
        lines += ["", *audit_lines(one, tools=i == last)]  # who does it is the same for every K
    lines += ["", *(f"note: {note}" for note in result.report.notes)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
