"""The command `score`: a golden set and a recorded run in, numbers with n and reason out.

It reads files, calls the same `evaluate` and `summarize` as a sweep, and prints; no number is made here.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denominator.answerers import Recorded, asked_judge, check_languages, instruments, worth_of
from denominator.cache import Cache
from denominator.corpus import by_id, ids_of, texts_of
from denominator.errors import ConfigError, InputError
from denominator.evaluation import Summary, evaluate, summarize
from denominator.masking import mask
from denominator.readers import native, runs, trec
from denominator.readers.build import Evaluate
from denominator.readers.textfiles import as_path
from denominator.records import dumps, outcomes_to_lines, plan_to_json
from denominator.types import METRIC_VERSION, Answer, Dataset, Estimate, Outcome, Plan, Result, Run

if TYPE_CHECKING:
    from denominator.abstention import Agreement
    from denominator.audit import AuditReport
    from denominator.pipeline import CellResult

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


def tie_ends(outcomes: Sequence[Outcome], summary: Summary) -> dict[str, TieEnds]:
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
    agreement: Mapping[str, Agreement] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """One JSON object: `ledger`, `metrics`, `abstention`, `audit` and the rest of the summary."""
        return self.summary.as_dict() | {
            "dataset": {
                "name": self.dataset.name,
                "dataset_hash": self.dataset.dataset_hash,
                "corpus_hash": self.dataset.corpus_hash,
            },
            "ties": self.plan.ties,
            "tie_range": {n: e.as_dict() for n, e in tie_ends(self.outcomes, self.summary).items()},
            "depth": self.depth,
            "metric_version": METRIC_VERSION,
            **({"agreement": {name: a.as_dict() for name, a in self.agreement.items()}} if self.agreement else {}),
            **({"facts": dict(self.facts)} if self.facts else {}),
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


def _contexts(data: Dataset, outcomes: Sequence[Outcome], k: int) -> dict[str, str]:
    """The texts of each question's first `k` hits, as the corpus has them."""
    documents = by_id(data.documents)
    found = {}
    for outcome in outcomes:
        hits = [h for h in outcome.hits if h.doc in documents and (h.rank or 0) <= k]
        found[outcome.id] = "\n\n".join(
            f"{documents[h.doc].title or ''}\n{documents[h.doc].text[h.start : h.end]}" for h in hits
        )
    return found


def score(
    golden: str | Path | Dataset,
    run: str | Path | Mapping[str, Result] | None,
    answers: str | Path | Mapping[str, Answer] | Recorded | None = None,
    *,
    cache: Cache | None = None,
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
    `Recorded` answers can have a judge, a grader and labels by hand; `cache` keeps what these two were told.

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
    table = Run.from_results(results)
    if run is not None and table.depth is None and results:
        longest = max((len(r.hits) for r in results.values()), default=0)
        notes.append(
            f"the run does not say how many hits were asked for (longest list: {longest}); "
            "--depth N refuses every K above it"
        )
    part = Recorded(str(answers)) if isinstance(answers, (str, Path)) else answers
    recorded = part.answers() if isinstance(part, Recorded) else part
    base = plan or Plan()
    plan = replace(
        base,
        ks=tuple(sorted(set(ks))),
        eligibility="lenient" if lenient else "strict",
        pool=table.depth or POOL,
        cluster=cluster,
        slices=tuple(slices),
        threshold=threshold,
        evaluate=mode,
    )
    index, corpus_ids = None, None
    if data.corpus_hash is not None:
        from denominator.spans import CorpusIndex

        index = CorpusIndex.build(data.documents)
        corpus_ids = ids_of(data.documents)
    cache = cache or Cache(None)
    judge = None
    facts: dict[str, float] = {}
    agreed: Mapping[str, Agreement] = {}
    if recorded is not None:
        check_languages(data.questions, recorded, plan.phrases)
        judge, facts, said = asked_judge(getattr(part, "judge", None), cache, data.questions, recorded, plan.phrases)
        notes += said
    outcomes = evaluate(
        data.questions,
        table,
        plan,
        index=index,
        corpus_ids=corpus_ids,
        answers=recorded,
        judge=judge,
        label_source=data.label_source,
    )
    if recorded is not None:
        contexts = _contexts(data, outcomes, 5 if 5 in ks else max(ks)) if data.documents and run is not None else None
        worth = worth_of(part, cache, outcomes, data.questions, answers=recorded, contexts=contexts, plan=plan)
        outcomes, agreed = worth.outcomes, worth.agreement
        facts |= worth.facts
        notes += worth.notes
    summary = summarize(outcomes, plan, label_source=data.label_source, chunker_varies=False)
    params = instruments(part)
    return ScoreReport(data, plan, outcomes, summary, table.depth, tuple(notes), agreed, facts, params)


# ------------------------------------------------------------------ text and CSV


def number(value: float | None, digits: int = 4) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def interval(e: Estimate) -> str:
    return DASH if e.ci_low is None or e.ci_high is None else f"[{e.ci_low:.4f}, {e.ci_high:.4f}]"


def columns(rows: Sequence[Sequence[str]], indent: str = "  ", *, right: Sequence[int] = (1, 2)) -> list[str]:
    """Columns as wide as their widest cell, so that nothing is cut; those in `right` are numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def _estimate_row(name: str, e: Estimate) -> list[str]:
    return [name, number(e.value), str(e.n), interval(e), e.reason or e.ci_method or ""]


def ledger_lines(report: ScoreReport) -> list[str]:
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
    lines = [*ledger_lines(report), ""]
    head = ["metric", "value", "n", "95 % interval" if report.plan.alpha == 0.05 else "interval", ""]
    shown = {name: e for name, e in summary.metrics.items() if e.value is not None}
    if shown:
        lines += columns([head, *(_estimate_row(name, e) for name, e in shown.items())])
    for reason in dict.fromkeys(e.reason for e in summary.metrics.values() if e.value is None):
        names = [name for name, e in summary.metrics.items() if e.value is None and e.reason == reason]
        n = summary.metrics[names[0]].n
        lines.append(f"  undefined ({reason}, n = {n}): {', '.join(names)}")
    lines += tie_lines(report)
    beside = [(f"partial {name}", e) for name, e in summary.partial.items() if e.n]
    if beside:
        lines += ["", *columns([head, *(_estimate_row(name, e) for name, e in beside)])]
    sliced = [
        (f"{name} · {tag}={value}", e)
        for tag, values in summary.slices.items()
        for value, metrics in values.items()
        for name, e in metrics.items()
    ]
    if sliced:
        lines += ["", *columns([["slice", *head[1:]], *(_estimate_row(name, e) for name, e in sliced)])]
    lines += ["", *_abstention_lines(report), *_quality_lines(report), *_agreement_lines(report)]
    if summary.audit is not None:
        lines += ["", *audit_lines(summary.audit)]
    if report.notes:
        lines += ["", *(f"note: {note}" for note in report.notes)]
    return "\n".join(lines) + "\n"


def tie_lines(report: ScoreReport) -> list[str]:
    """How much of the numbers the tie rule decided, where it decided anything."""
    ends = tie_ends(report.outcomes, report.summary)
    if not ends:
        return []
    rows = [[name, number(e.low), number(e.high), f"{e.questions} of {e.n} questions"] for name, e in ends.items()]
    head = ["tied hits, in other orders", "worst", "best", "differ on"]
    return ["", *columns([head, *rows])]


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
    lines += columns([_estimate_row(name, e) for name, e in rows])
    if block.undecided:  # values use decided questions; where the others could take them is always said
        bounds = {
            "recall": block.recall_bounds,
            "false refusal rate": block.false_refusal_rate_bounds,
            "precision": block.precision_bounds,
        }
        said = [f"{name} {number(b[0])} to {number(b[1])}" for name, b in bounds.items() if b is not None]
        lines.append(f"  with the undecided either way: {', '.join(said)}")
    return lines


def _quality_lines(report: ScoreReport) -> list[str]:
    block = report.summary.answer_quality
    if block is None:
        return []
    c = block.counts
    rows = [_estimate_row(name.replace("_", " "), e) for name, e in block.metrics.items()]
    return [
        "",
        f"answers to answerable questions: {c['answered']} answered, {c['refused']} refused, "
        f"{c['undecided']} undecided, {c['no_text']} without a text; "
        + ("over the answered ones:" if rows else "nothing to hold the texts against (no reference, no context)"),
        *(columns(rows) if rows else []),
    ]


def _agreement_lines(report: ScoreReport) -> list[str]:
    """How well whoever read the answers agrees with labels by hand."""
    if not report.agreement:
        return []
    rows = [["agreement with labels by hand", "κ", "interval", "raw", "interval", "n", "undecided"]]
    for name, a in report.agreement.items():
        k, raw = a.kappa, a.accuracy
        cells = [number(k.value, 2) if k.value is not None else f"{DASH} ({k.reason})", interval(k), number(raw.value)]
        rows.append([name, *cells, interval(raw), str(k.n), str(a.undecided)])
    return ["", *columns(rows, right=(5, 6))]


def audit_lines(audit: AuditReport, *, tools: bool = False) -> list[str]:
    """What each convention would have reported and how far off that is; with `tools` also who does it."""
    share = "" if audit.u is None else f", {audit.empty} of {audit.seen} gold lists empty"
    lines = [f"audit of {audit.metric}: corrected {number(audit.r)} over n = {audit.n}{share}"]
    if audit.reason is not None:
        lines[0] += f" ({audit.reason})"
    if not audit.conventions:
        return lines
    rows = [[c.name, number(c.reported), str(c.n), _signed(c.inflation)] for c in audit.conventions]
    lines += columns([["convention", "reports", "n", "inflation"], *rows])
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
    if summary.answer_quality is not None:
        rows("answers", list(summary.answer_quality.metrics.items()))
    for name, a in report.agreement.items():
        rows("agreement", [("kappa", a.kappa), ("raw", a.accuracy)], "by", name)
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


# ------------------------------------------------------------------ into the record


@dataclass(frozen=True, slots=True)
class Logged:
    """Where a scored run is in the record; `new` is false when exactly this was recorded before."""

    run_id: str
    name: str
    experiment: str
    uri: str
    new: bool

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def as_cell(report: ScoreReport, name: str, params: Mapping[str, str]) -> CellResult:
    """A scored run in the form of a finished cell, so that the same code writes it and reads it back.

    Its key is made of content (outcomes, plan, data, versions), not of names: the same run is recorded once.
    """
    from denominator import __version__
    from denominator.fingerprint import sha
    from denominator.pipeline import CellResult, DatasetFacts, fingerprints_of

    key = sha(
        {
            "score": "".join(outcomes_to_lines(report.outcomes)),
            "plan": plan_to_json(report.plan),
            "ledger": report.summary.ledger.as_dict(),
            "dataset_hash": report.dataset.dataset_hash,
            "corpus_hash": report.dataset.corpus_hash,
            "metric_version": METRIC_VERSION,
            "version": __version__,
            **({"facts": dict(report.facts), "params": dict(report.params)} if report.facts or report.params else {}),
        }
    )
    return CellResult(
        cell_key=key,
        name=name,
        params={**params, **report.params},
        plan=report.plan,
        dataset=DatasetFacts.of(report.dataset),
        outcomes=report.outcomes,
        summary=report.summary,
        timings=(),
        facts=dict(report.facts),
        fingerprints=fingerprints_of(report.summary, report.plan, report.dataset),
        notes=report.notes,
    )


def log(
    report: ScoreReport,
    name: str,
    *,
    params: Mapping[str, str] | None = None,
    uri: str | None = None,
    experiment: str = "denominator",
    out: str | Path = "denominator-out",
) -> Logged:
    """Records a scored run in MLflow under the names, tags, tables and files of a sweep's cell, with `kind=score`.

    `uri`: the store, else MLFLOW_TRACKING_URI, else `mlflow.db` in `out`. Raises StoreError when it cannot be written.
    """
    from denominator.tracking import Store, resolve_uri

    if not name.strip():
        raise ConfigError("--run-name is empty; give the run a name")
    folder = Path(out).absolute()
    store = Store.open(resolve_uri(uri, folder, Path.cwd()), experiment, folder)
    store.send_pending()  # what an earlier call could not send
    result = as_cell(report, name, params or {})
    before = store.search(f"tags.cell_key = '{result.cell_key}' and tags.recorded = 'true'", limit=1)
    if before:
        return Logged(before[0].run_id, before[0].name, store.experiment, mask(store.uri), new=False)
    texts = texts_of(report.dataset.documents)
    run_id = store.log_cell(result, result.cell_key[:12], texts=texts, kind="score")
    return Logged(run_id, name, store.experiment, mask(store.uri), new=True)


# ------------------------------------------------------------------ the command `score`


def _ks(text: str) -> tuple[int, ...]:
    try:
        ks = tuple(int(part) for part in text.split(","))
    except ValueError:
        ks = ()
    if not ks or min(ks) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers of at least 1, such as 1,5,10")
    return ks


def add_inputs(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--golden", required=required, metavar="FILE", help="golden set: JSON lines or TREC qrels")
    parser.add_argument("--run", metavar="FILE", help="recorded run: JSON lines or a TREC run")
    parser.add_argument("-k", type=_ks, default=(1, 3, 5, 10), metavar="1,5", help="cut-offs (default: 1,3,5,10)")
    add_reading(parser)


def add_reading(to: argparse._ActionsContainer) -> None:
    """How golden sets and runs in files are read, whatever is then done with them."""
    to.add_argument("--lenient", action="store_true", help="exclude and count questions that cannot be scored")
    to.add_argument(
        "--assume-answerable", action="store_true", help="unlabelled questions that have gold are answerable"
    )
    to.add_argument("--depth", type=int, metavar="N", help="how many hits the run asked for, if it does not say")
    to.add_argument("--min-grade", type=int, default=1, metavar="G", help="TREC qrels: least grade that is gold")
    to.add_argument("--ties", choices=("asc", "trec"), default="asc", help="tie rule (trec: as trec_eval)")


def add_scoring(to: argparse._ActionsContainer) -> None:
    """What is measured on them: for `score` and for the commands that score files before they judge."""
    to.add_argument("--corpus", metavar="FILE", help="documents: checks the gold and enables coverage by spans")
    to.add_argument("--cluster", metavar="FIELD", help="field that says which questions belong together")
    to.add_argument("--lang", default="en", help="language of questions that do not say it (default: en)")
    to.add_argument("--threshold", type=float, metavar="T", help="abstain below this score, instead of fitting one")
    to.add_argument("--micro", action="store_true", help="recall over evidence groups instead of questions")
    to.add_argument("--answer-lang", metavar="CODE", help="language of the answers (default: that of their questions)")
    to.add_argument("--judge", metavar="FILE", help="YAML of a judge for answers that nothing else decides")
    to.add_argument("--grader", metavar="FILE", help="YAML of a judge of the answers' correctness")
    to.add_argument("--hand", metavar="FILE", help="labels by hand that decider, judge and grader are held against")


def answers_of(args: argparse.Namespace, path: str | None) -> Recorded | None:
    """Recorded answers with what the command line says about reading them; labels by hand are those of `--answers`."""
    if args.answers is None:
        for name in ("answer_lang", "judge", "grader", "hand"):
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} belongs to --answers")
    if path is None:
        return None
    judge, grader = (
        None if file is None else part_from(file, name)
        for name, file in (("judge", args.judge), ("grader", args.grader))
    )
    return Recorded(path, args.answer_lang, judge, grader, args.hand if path == args.answers else None)


def part_from(file: str, where: str) -> Any:
    """A part from a YAML file of its own, as it would stand in the configuration. Raises ConfigError."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from denominator import config, masking

    try:
        raw = OmegaConf.load(as_path(file))
        node = OmegaConf.to_container(raw, resolve=True, throw_on_missing=True)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"--{where} {file}: {' '.join(masking.mask(str(error)).split())}") from None
    if not isinstance(node, dict):
        raise ConfigError(f"--{where} {file}: expected a mapping with _target_, found {type(node).__name__}")
    given = {str(k): v for k, v in node.items()}
    masking.remember_settings({where: given})
    return config.build(given, where)


def kept_in(args: argparse.Namespace) -> Cache:
    """Where replies of a judge are kept: in the output folder, as those of a sweep."""
    asks = args.judge is not None or args.grader is not None
    return Cache(Path(args.out or "denominator-out").absolute() / "cache" if asks else None)


_OPTIONS = ("lenient", "assume_answerable", "depth", "min_grade", "corpus", "cluster", "lang", "threshold")


def options_of(args: argparse.Namespace, **plan: Any) -> dict[str, Any]:
    """Keyword arguments of `score` from a command line that has some or all of these options; `plan`: its fields."""
    aggregation = "micro" if getattr(args, "micro", False) else "macro"
    given = {name: getattr(args, name) for name in _OPTIONS if hasattr(args, name)}
    return given | {"plan": Plan(**{"ties": args.ties, "aggregation": aggregation} | plan)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator score`."""
    add_inputs(parser, required=True)
    add_scoring(parser)
    parser.add_argument("--answers", metavar="FILE", help="recorded answers: JSON lines")
    parser.add_argument("--slice", action="append", default=[], metavar="TAG", help="group by this tag (repeatable)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument("--csv", action="store_true", help="one row for each value")
    parser.add_argument("--per-question", metavar="FILE", help="write one JSON line for each question")
    record = parser.add_argument_group("into the record")
    record.add_argument(
        "--mlflow",
        nargs="?",
        const="",
        metavar="URI",
        help="log it as a run (default: MLFLOW_TRACKING_URI, or mlflow.db in --out)",
    )
    record.add_argument("--experiment", metavar="NAME", help="with --mlflow (default: denominator)")
    record.add_argument("--run-name", metavar="NAME", help="with --mlflow (default: the name of the run file)")
    record.add_argument("--out", metavar="DIR", help="with --mlflow, --judge: output folder (default: denominator-out)")


def run(args: argparse.Namespace) -> int:
    """`denominator score`: prints the report, 0. Errors are raised for the command line to show."""
    asks = args.judge is not None or args.grader is not None
    for option in ("experiment", "run_name", *([] if asks else ["out"])):
        if args.mlflow is None and getattr(args, option) is not None:
            raise ConfigError(f"--{option.replace('_', '-')} belongs to --mlflow")
    answers = answers_of(args, args.answers)
    options = options_of(args) | {"slices": args.slice, "cache": kept_in(args)}
    report = score(args.golden, args.run, answers, ks=args.k, **options)
    if args.per_question is not None:
        write_atomically(args.per_question, "".join(outcomes_to_lines(report.outcomes)))
    logged = _logged(report, args) if args.mlflow is not None else None
    if args.json:
        said = report.as_dict() | ({} if logged is None else {"mlflow": logged.as_dict()})
        sys.stdout.write(dumps(said) + "\n")
        return 0
    sys.stdout.write(render_csv(report) if args.csv else render_text(report))
    if logged is not None:
        how = "recorded" if logged.new else "recorded before, nothing added:"
        text = f"{how} {logged.name!r}, run {logged.run_id}, experiment {logged.experiment}\n{logged.uri}\n"
        (sys.stderr if args.csv else sys.stdout).write(text)
    return 0


def _logged(report: ScoreReport, args: argparse.Namespace) -> Logged:
    names = {key: getattr(args, key) for key in ("golden", "run", "answers", "corpus")}
    params = {"dataset": report.dataset.name} | {k: Path(v).name for k, v in names.items() if v is not None}
    if report.depth is not None:
        params["depth"] = str(report.depth)
    first = args.run if args.run is not None else args.answers
    name = args.run_name if args.run_name is not None else Path(first).name
    return log(
        report,
        name,
        params=params,
        uri=args.mlflow or None,
        experiment=args.experiment or "denominator",
        out=args.out or "denominator-out",
    )
