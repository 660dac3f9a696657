"""What stands in the report, as plain data. Pure: no file, no clock, no store.

Everything is recomputed from the per-question outcomes by the functions that the runs called. The template prints what
is here and computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from denominator.evaluation import Summary, parse_metric, summarize
from denominator.quality import METRICS as ANSWER_METRICS
from denominator.selection import Decision, Ranking, decide, find_runs
from denominator.types import METRIC_VERSION, Estimate, Evidence, Hit, Outcome, RecordedRun

SHOWN_QUESTIONS = 6
SHOWN_HITS = 3
SHOWN_CURVES = 6
SNIPPET = 220
EVIDENCE_TEXT = 400
ANSWER_TEXT = 600
FEW_ELIGIBLE = 100


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell without a recorded result: it is named in the report, never silently absent."""

    name: str
    reason: str
    overrides: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text as the page shows it. `gold` says whether it holds evidence; `note` why there is no text."""

    place: str
    text: str = ""
    score: float | None = None
    gold: bool = False
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What one configuration made of a question: its value, its first hits, and its answer where that is compared."""

    name: str
    value: float | None
    hits: tuple[Passage, ...]
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class ShownQuestion:
    """A question with its gold evidence (groups of alternatives) and what configurations found for it."""

    id: str
    text: str
    evidence: tuple[tuple[Passage, ...], ...]
    answers: tuple[Answered, ...]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page. `summaries` by run id; `ranking` is the first of the decision's, if there is one.

    `curves` by configuration name, K → recall. `shown_runs` are the configurations that the detailed blocks speak of:
    the recommended one, the best and the baseline, without repetition.
    """

    title: str
    decision: Decision
    ranking: Ranking | None
    runs: Mapping[str, RecordedRun]
    summaries: Mapping[str, Summary]
    failures: tuple[Failure, ...]
    shown_runs: tuple[str, ...]
    curves: Mapping[str, Mapping[int, Estimate]]
    decided_by: tuple[ShownQuestion, ...]
    failed_by_all: tuple[ShownQuestion, ...]
    health: tuple[str, ...]
    meta: Mapping[str, str]
    split: tuple[tuple[str, float, float | None], ...] = ()

    @property
    def metric(self) -> str:
        return self.decision.settings.metric

    @property
    def recall(self) -> str:
        """The document recall beside the headline: the least K that the audits of all ranked runs speak of."""
        assert self.ranking is not None
        audits = [self.summaries[row.run_id].audit for row in self.ranking.rows]
        names = [audit.metric for audit in audits if audit is not None]
        return min(names, key=lambda name: (parse_metric(name).k or 0, name), default="recall@5")

    @property
    def answer_metrics(self) -> tuple[str, ...]:
        """The metrics of answers that a shown configuration has; none where nothing was answered in words."""
        blocks = [self.summary_of(name).answer_quality for name in self.shown_runs]
        return tuple(m for m in ANSWER_METRICS if any(block is not None and m in block.metrics for block in blocks))

    def run_of(self, name: str) -> RecordedRun:
        """The run behind a configuration's name in the ranking."""
        assert self.ranking is not None
        return self.runs[self.ranking.row(name).run_id]

    def summary_of(self, name: str) -> Summary:
        return self.summaries[self.run_of(name).run_id]


def build(
    runs: Sequence[RecordedRun],
    *,
    metric: str | None = None,
    baseline: str | None = None,
    allow: Sequence[str] = (),
    failures: Sequence[Failure] = (),
    summaries: Mapping[str, Summary] | None = None,
    texts: Mapping[str, str] | None = None,
    meta: Mapping[str, str] | None = None,
    title: str = "Which configuration?",
) -> Report:
    """The report's content. `texts` (document id → text) lets evidence and hits be quoted; without it places are named.

    Raises what `decide` raises: ConfigError for an unknown metric or baseline, MeasurementError `not_comparable` or
    `level_not_comparable`.
    """
    decision = decide(runs, metric, baseline=baseline, allow=tuple(allow))
    found = dict(summaries or {})
    for run in runs:
        if run.run_id not in found:
            found[run.run_id] = summarize(run.outcomes, run.plan, label_source=run.ledger.label_source)
    ranking = decision.rankings[0] if decision.rankings else None
    by_id = {run.run_id: run for run in runs}
    shown = _shown_runs(ranking)
    named = {name: by_id[ranking.row(name).run_id] for name in shown} if ranking else {}
    curve_names = _curve_names(ranking, shown) if ranking else ()
    curves = {}
    for name in curve_names:
        assert ranking is not None
        run = by_id[ranking.row(name).run_id]
        curves[name] = {k: found[run.run_id].metrics[f"recall@{k}"] for k in run.plan.ks}
    pair = _pair(ranking, by_id)
    return Report(
        title=title,
        decision=decision,
        ranking=ranking,
        runs=by_id,
        summaries=found,
        failures=tuple(failures),
        shown_runs=shown,
        curves=curves,
        decided_by=shown_questions(
            [c.id for c in ranking.disagreement.questions] if ranking and ranking.disagreement else [],
            pair,
            decision.settings.metric,
            texts,
        ),
        failed_by_all=shown_questions(ranking.failed_by_all if ranking else (), named, decision.settings.metric, texts),
        health=_health(runs, found, ranking, decision),
        meta=dict(meta or {}),
        split=_split(ranking, by_id),
    )


def _shown_runs(ranking: Ranking | None) -> tuple[str, ...]:
    if ranking is None:
        return ()
    names = (ranking.recommendation.name, ranking.best, ranking.baseline)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _curve_names(ranking: Ranking, shown: Sequence[str]) -> tuple[str, ...]:
    names = (*shown, *(row.name for row in ranking.rows))
    return tuple(dict.fromkeys(names))[:SHOWN_CURVES]


def _pair(ranking: Ranking | None, runs: Mapping[str, RecordedRun]) -> dict[str, RecordedRun]:
    if ranking is None or ranking.disagreement is None:
        return {}
    return {n: runs[ranking.row(n).run_id] for n in (ranking.disagreement.a, ranking.disagreement.b)}


def shown_questions(
    ids: Sequence[str],
    runs: Mapping[str, RecordedRun],
    metric: str,
    texts: Mapping[str, str] | None,
    most: int = SHOWN_QUESTIONS,
) -> tuple[ShownQuestion, ...]:
    by_run = {name: {o.id: o for o in run.outcomes} for name, run in runs.items()}
    shown = []
    for question in list(ids)[:most]:
        outcomes = {name: by_id[question] for name, by_id in by_run.items() if question in by_id}
        if not outcomes:
            continue
        first = next(iter(outcomes.values()))
        shown.append(
            ShownQuestion(
                id=question,
                text=first.question or "(the question's text was not recorded)",
                evidence=tuple(tuple(_evidence(e, texts) for e in group) for group in first.gold),
                answers=tuple(_answered(name, o, metric, texts) for name, o in outcomes.items()),
                tags=tuple(f"{tag}: {_tag(value)}" for tag, value in sorted(first.tags.items())),
            )
        )
    return tuple(shown)


def _answered(name: str, outcome: Outcome, metric: str, texts: Mapping[str, str] | None) -> Answered:
    hits = tuple(_found(h, outcome, texts) for h in _first_hits(outcome))
    if metric in ANSWER_METRICS:
        said = None if outcome.answer is None else _clip(outcome.answer, ANSWER_TEXT)
        return Answered(name, outcome.quality.get(metric), hits, said)
    return Answered(name, outcome.values.get(metric), hits)


def _first_hits(outcome: Outcome) -> tuple[Hit, ...]:
    """The first hits and, when none of them holds evidence, the first one below that does."""
    shown, rest = outcome.hits[:SHOWN_HITS], outcome.hits[SHOWN_HITS:]
    gold = [e for group in outcome.gold for e in group]
    if any(_touches(h, e) for h in shown for e in gold):
        return shown
    return (*shown, *[h for h in rest if any(_touches(h, e) for e in gold)][:1])


def _tag(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _clip(text: str, most: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 1].rstrip() + "…"


def _place(doc: str, start: int | None, end: int | None) -> str:
    return doc if start is None else f"{doc} [{start}:{end}]"


def _evidence(evidence: Evidence, texts: Mapping[str, str] | None) -> Passage:
    text = (texts or {}).get(evidence.doc, "")
    piece = text[evidence.start : evidence.end] if evidence.start is not None else text
    return Passage(_place(evidence.doc, evidence.start, evidence.end), _clip(piece, EVIDENCE_TEXT), gold=True)


def _found(hit: Hit, outcome: Outcome, texts: Mapping[str, str] | None) -> Passage:
    text = (texts or {}).get(hit.doc, "")
    piece = text[hit.start : hit.end] if hit.start is not None else text
    gold = any(_touches(hit, e) for group in outcome.gold for e in group)
    return Passage(_place(hit.doc, hit.start, hit.end), _clip(piece, SNIPPET), hit.score, gold, hit.rank)


def _touches(hit: Hit, evidence: Evidence) -> bool:
    """Whether a hit holds some of the evidence: the same document, and overlapping characters where both have them."""
    if evidence.doc not in {hit.doc, hit.id}:
        return False
    if hit.start is None or hit.end is None or evidence.start is None or evidence.end is None:
        return True
    return hit.start < evidence.end and evidence.start < hit.end


def _health(
    runs: Sequence[RecordedRun], summaries: Mapping[str, Summary], ranking: Ranking | None, decision: Decision
) -> tuple[str, ...]:
    """Plain sentences about the data that a reader should know before trusting the table."""
    lines: list[str] = []
    if ranking is None:
        return ()
    run = next(r for r in runs if r.run_id == ranking.rows[0].run_id)
    summary = summaries[run.run_id]
    ledger = summary.ledger
    if ledger.label_source == "assumed":
        lines.append("Answerability was assumed from the presence of gold (assume_answerable), not labelled.")
    excluded = ledger.N - ledger.states["answerable"] - ledger.states["unanswerable"] - ledger.states["partial"]
    if excluded:
        lines.append(
            f"{excluded} of {ledger.N} questions are scored in nothing because of their labels (see the ledger)."
        )
    if ledger.eligible < FEW_ELIGIBLE:
        lines.append(f"{ledger.eligible} eligible questions are few: only large differences can be shown.")
    if ledger.states["unanswerable"] == 0:
        lines.append("No question is labelled unanswerable, so nothing can be said about abstention.")
    audit = summary.audit
    if audit is not None and audit.from_labels is not None and abs(audit.from_labels) > 1e-9:
        lines.append(f"Wrong or missing labels move a naive mean of {audit.metric} by {audit.from_labels:+.4f}.")
    empty = sum(1 for o in run.outcomes if o.state == "answerable" and o.n_hits == 0)
    if empty:
        lines.append(f"{empty} eligible questions got no hit at all from {ranking.best}; each counts 0.")
    lines.extend(decision.notes)
    lines.extend(ranking.notes)
    return tuple(dict.fromkeys(lines))


def why_recommended(ranking: Ranking, cost_names: Mapping[str, str]) -> str:
    """What decided the recommendation, in words. Only said where there is one."""
    by = ranking.recommendation.by
    if by is not None:
        return f"the cheapest by {cost_names.get(by, by)} of those that cannot be told apart from the best"
    if len(ranking.best_set) == 1:
        return "the best, which can be told apart from every other configuration"
    return "the best mean of those that cannot be told apart from the best; no cost was recorded"


def _split(ranking: Ranking | None, runs: Mapping[str, RecordedRun]) -> tuple[tuple[str, float, float | None], ...]:
    """Per chunker: the share of gold spans that no single chunk holds whole, and the coverage within its reach."""
    if ranking is None:
        return ()
    found: dict[str, tuple[float, float | None]] = {}
    for row in sorted(ranking.rows, key=lambda r: r.name):
        facts = runs[row.run_id].facts
        share = facts.get("split_evidence")
        if share is not None:
            # The first part of a cell's name is the choice of chunker; its class alone would merge two sizes.
            chunker, several, _ = row.name.partition(" · ")
            label = chunker if several else row.params.get("chunker", row.name)
            found.setdefault(label, (share, facts.get("coverage_ceiling")))
    return tuple((name, share, ceiling) for name, (share, ceiling) in sorted(found.items()))


# ------------------------------------------------------------------ as data


def as_json(report: Report) -> dict[str, Any]:
    """`results.json`: the decision, every run's recomputed summary and what reproduces them. Full precision."""
    return {
        "title": report.title,
        "metric": report.metric,
        "metric_version": METRIC_VERSION,
        "decision": report.decision.as_dict(),
        "runs": [
            {
                "run_id": run.run_id,
                "name": run.name,
                "cell_key": run.cell_key,
                "params": dict(run.params),
                "facts": dict(run.facts),
                "summary": report.summaries[run.run_id].as_dict(),
            }
            for run in sorted(report.runs.values(), key=lambda r: (r.name, r.run_id))
        ],
        "failures": [{"name": f.name, "reason": f.reason, "overrides": f.overrides} for f in report.failures],
        "health": list(report.health),
        "meta": dict(report.meta),
    }


def as_rows(report: Report) -> tuple[list[str], list[list[Any]]]:
    """`results.csv`: one line per ranked configuration, full precision, empty cells where there is no value."""
    if report.ranking is None:
        return ["name", "reason"], [[e.name, e.reason] for e in report.decision.excluded]
    metric, other = report.metric, report.recall
    extra = [] if other == metric else [other]
    params = sorted({p for row in report.ranking.rows for p in row.params})
    varying = [p for p in params if len({row.params.get(p) for row in report.ranking.rows}) > 1]
    header = ["rank", "name", "run_id", *varying]
    for name in (metric, *extra):
        header += [name, f"{name} n", f"{name} low", f"{name} high"]
    for name in report.answer_metrics:
        header += [name, f"{name} n", f"{name} low", f"{name} high"]
    header += ["in best set", "difference to baseline", "p adjusted", "verdict", *report.ranking.costs]
    rows: list[list[Any]] = []
    for row in report.ranking.rows:
        summary = report.summaries[row.run_id]
        line: list[Any] = [row.rank, row.name, row.run_id, *(row.params.get(p) for p in varying)]
        answers = {} if summary.answer_quality is None else summary.answer_quality.metrics
        found = [row.estimate, *(summary.metrics[n] for n in extra), *(answers.get(n) for n in report.answer_metrics)]
        for e in found:
            line += [None, None, None, None] if e is None else [e.value, e.n, e.ci_low, e.ci_high]
        versus = row.versus
        line += [row.in_best_set]
        line += [None, None, None] if versus is None else [versus.difference.value, versus.p_adjusted, versus.verdict]
        rows.append(line + [row.costs.get(cost) for cost in report.ranking.costs])
    return header, rows


def unit_of(metric: str) -> str:
    """What the metric's K or budget counts, for axes and captions."""
    if metric in ANSWER_METRICS:
        return "answers to answerable questions"
    parsed = parse_metric(metric)
    return {
        "L1": f"K = {parsed.k} documents",
        "L2": f"K = {parsed.k} chunk slots",
        "L3": f"K = {parsed.k} chunks",
        "L4": f"the text of K = {parsed.k} chunks",
        "L5": f"a budget of {parsed.k:,} tokens" if parsed.k else "a token budget",
    }[parsed.level]


def matching(runs: Sequence[RecordedRun], names: Sequence[str]) -> list[RecordedRun]:
    """Runs that a person named, in order, without repetition."""
    found: dict[str, RecordedRun] = {}
    for name in names:
        for run in find_runs(runs, name):
            found.setdefault(run.run_id, run)
    return list(found.values())
