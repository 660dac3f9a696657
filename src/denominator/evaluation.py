"""From a run to outcomes, and from outcomes to every number that a person sees.

`evaluate` gives one `Outcome` per question; `summarize` is a pure function of those outcomes and the plan. A sweep
cell, `denominator score`, the report and the audit all call these two, so a number has one origin.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from denominator.eligibility import build_ledger, classify, document_groups, groups_of, lost_evidence, statuses_of
from denominator.errors import ConfigError, MeasurementError, listing
from denominator.metrics import metric_names
from denominator.ranking import canonical, check_depth, check_k, to_documents
from denominator.types import (
    Answer,
    Bools,
    Estimate,
    Floats,
    Hit,
    Ledger,
    Outcome,
    Plan,
    Question,
    Run,
    State,
    Status,
)
from denominator.uncertainty import estimate_mean, estimate_micro, is_rate

if TYPE_CHECKING:
    from denominator.abstention import AbstentionReport, JointTable, Judge
    from denominator.audit import AuditReport
    from denominator.quality import AnswerQuality
    from denominator.spans import CorpusIndex

TIED_FAMILIES = ("recall", "hit", "mrr")
SPAN_FAMILIES = ("coverage", "recall_tau100", "recall_tau50", "span_recall", "span_precision", "span_iou")
_NAME = re.compile(r"(?P<family>[a-z0-9_]+?)(?:@(?P<budget>b)?(?P<k>\d+))?")
MOST_SLICE_VALUES = 20


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric's name taken apart. `k` holds the token budget at L5."""

    name: str
    family: str
    k: int | None
    level: str


def parse_metric(name: str) -> MetricName:
    """Takes `recall@5`, `slot_recall@5`, `coverage@5` or `coverage@b2000` apart.

    >>> [parse_metric(n).level for n in ("recall@5", "slot_recall@5", "chunk_recall@5", "coverage@5", "coverage@b2000")]
    ['L1', 'L2', 'L3', 'L4', 'L5']
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"{name!r} is not a metric name; names look like recall@5, coverage@5 or coverage@b2000")
    family = match["family"]
    if match["budget"]:
        level = "L5"
    elif family in SPAN_FAMILIES:
        level = "L4"
    elif family.startswith("slot_"):
        level = "L2"
    elif family.startswith("chunk_"):
        level = "L3"
    else:
        level = "L1"
    return MetricName(name, family, int(match["k"]) if match["k"] else None, level)


def ranked_names(plan: Plan) -> tuple[str, ...]:
    """Document-level metrics of every run: six families at every K, MAP at the pool, R-precision.

    A headline at the slot or the chunk level (L2, L3) is measured too.
    """
    names = metric_names(plan.ks, plan.pool)
    other = plan.headline != "auto" and parse_metric(plan.headline).level in {"L1", "L2", "L3"}
    return tuple(dict.fromkeys((*names, plan.headline))) if other else names


def span_names(plan: Plan) -> tuple[str, ...]:
    """Character-level metrics: all families at the token budget, coverage at every K."""
    return (*(f"{family}@b{plan.budget}" for family in SPAN_FAMILIES), *(f"coverage@{k}" for k in plan.ks))


def audit_metric(plan: Plan, outcomes: Sequence[Outcome] = ()) -> str:
    """The document recall that stands beside the headline and that the audit speaks of.

    `recall@5` where 5 is measured, else the largest K. Where the pool holds too few documents for that (few long
    documents in many chunks), the largest smaller K that is defined for every eligible question.
    """
    most = 5 if 5 in plan.ks else max(plan.ks)
    for k in sorted((k for k in plan.ks if k <= most), reverse=True):
        name = f"recall@{k}"
        if all(o.values.get(name) is not None for o in outcomes if o.state == "answerable"):
            return name
    return f"recall@{most}"


def headline_of(plan: Plan, *, spans: bool, chunker_varies: bool = True) -> str:
    """The metric that selection uses.

    `auto` is coverage at the token budget when the chunker varies and every eligible question has spans, else the
    document recall of the audit (`recall@5`).
    """
    if plan.headline != "auto":
        parse_metric(plan.headline)
        return plan.headline
    return f"coverage@b{plan.budget}" if spans and chunker_varies else audit_metric(plan)


# ------------------------------------------------------------------ outcomes


def align(run: Run, ids: Sequence[str]) -> Run:
    """The run with exactly these questions, in this order; one that nothing came back for has no hits."""
    if tuple(ids) == run.question_ids:
        return run
    place = {q: i for i, q in enumerate(run.question_ids)}
    source = np.array([place.get(q, -1) for q in ids], dtype=np.int64)
    found = source >= 0
    at = source[found]
    starts = np.zeros(len(ids), np.int64)
    counts = np.zeros(len(ids), np.int64)
    starts[found] = run.offsets[:-1][at]
    counts[found] = np.diff(run.offsets)[at]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    rows = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
    exhausted = np.ones(len(ids), np.bool_)
    exhausted[found] = run.exhausted[at]
    confidence = None
    if run.confidence is not None:
        confidence = np.full(len(ids), np.nan)
        confidence[found] = run.confidence[at]
    return replace(
        run,
        question_ids=tuple(ids),
        offsets=offsets,
        unit=run.unit[rows],
        scores=None if run.scores is None else run.scores[rows],
        exhausted=exhausted,
        confidence=confidence,
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """Per-question values of many metrics: NaN inside, and the reasons by row where it is NaN."""

    values: Mapping[str, Floats]
    reasons: Mapping[str, Mapping[int, str]]


def _ranked_columns(questions: Sequence[Question], run: Run, plan: Plan) -> _Columns:
    from denominator.metrics import ranked

    table = ranked(run, questions, ranked_names(plan), ties=plan.ties)
    return _Columns(table.values, table.reasons)


def _span_columns(questions: Sequence[Question], run: Run, plan: Plan, index: CorpusIndex, eligible: Bools) -> _Columns:
    """All span families; where the pool was too shallow for the budget, the budget level is refused.

    That is the error `budget_underfilled` when selection asked for this level, and else the reason `depth_below_k`
    beside every value of it.
    """
    from denominator.spans import span_table

    table = span_table(index, questions, run, ks=plan.ks, budget=plan.budget, cut=plan.budget_cut, ties=plan.ties)
    names = (*span_names(plan), f"budget_fill@b{plan.budget}")
    values = {name: table.values[name] for name in names}
    reasons: dict[str, Mapping[int, str]] = {name: table.reasons[name] for name in names}
    try:
        table.check_fill(plan.budget, eligible)
    except MeasurementError:
        if plan.headline.endswith(f"@b{plan.budget}"):
            raise
        for name in names:
            if name.endswith(f"@b{plan.budget}"):
                values[name] = np.full(len(questions), np.nan)
                reasons[name] = {i: reasons[name].get(i, "depth_below_k") for i in range(len(questions))}
    return _Columns(values, reasons)


def _judged_columns(questions: Sequence[Question], documents: Run, plan: Plan) -> _Columns:
    """`judged@K`: the share of the first K documents that somebody judged. NaN without grades or without a hit."""
    values = {f"judged@{k}": np.full(len(questions), np.nan) for k in plan.ks}
    for row, question in enumerate(questions):
        if not question.grades:
            continue
        start, stop = documents.offsets[row : row + 2].tolist()
        known = [documents.units.ids[u] in question.grades for u in documents.unit[start:stop].tolist()]
        for k in plan.ks:
            if known:
                values[f"judged@{k}"][row] = sum(known[:k]) / len(known[:k])
    nothing = {name: dict.fromkeys(np.flatnonzero(np.isnan(v)).tolist(), "n_zero") for name, v in values.items()}
    return _Columns(values, nothing)


def _tie_ends(questions: Sequence[Question], run: Run, plan: Plan) -> list[dict[str, tuple[float, float]]]:
    """Per question, the metrics whose value depends on the order of tied hits, with their worst and best value."""
    from denominator.ties import tie_range

    names = [f"{family}@{k}" for family in TIED_FAMILIES for k in plan.ks]
    out: list[dict[str, tuple[float, float]]] = [{} for _ in questions]
    if run.scores is None:
        return out
    ends = tie_range(run, questions, names, ties=plan.ties)
    for name in names:
        for row in np.flatnonzero(ends.high[name] > ends.low[name]).tolist():
            out[row][name] = (float(ends.low[name][row]), float(ends.high[name][row]))
    return out


def _kept_rows(run: Run, most: int) -> Bools:
    """Rows that a record keeps: the first `most` hits, and the first hit of each of the first `most` documents."""
    n = len(run.unit)
    owner = np.repeat(np.arange(len(run)), np.diff(run.offsets))
    rank = np.arange(n) - run.offsets[owner]
    keep = rank < most
    document = run.units.doc[run.unit].astype(np.int64)
    key = owner * (len(run.units.docs) + 1) + document
    _, first = np.unique(key, return_index=True)
    is_first = np.zeros(n, np.bool_)
    is_first[first] = True
    order = np.cumsum(is_first)
    before = np.concatenate(([0], order))[run.offsets[owner]]
    return np.asarray(keep | (is_first & (order - before <= most)))


def _hits(run: Run, most: int) -> list[tuple[Hit, ...]]:
    units = run.units
    kept = np.flatnonzero(_kept_rows(run, most))
    owner = np.repeat(np.arange(len(run)), np.diff(run.offsets))[kept]
    rank = (kept - run.offsets[owner] + 1).tolist()
    unit = run.unit[kept]
    start, end = units.start[unit].tolist(), units.end[unit].tolist()
    header, tokens = units.header_tokens[unit].tolist(), units.tokens[unit].tolist()
    scores = [None] * len(kept) if run.scores is None else run.scores[kept].tolist()
    doc, which = units.doc[unit].tolist(), unit.tolist()
    out: list[list[Hit]] = [[] for _ in range(len(run))]
    for i, q in enumerate(owner.tolist()):
        anchored = start[i] >= 0
        out[q].append(
            Hit(
                id=units.ids[which[i]],
                doc=units.docs[doc[i]],
                score=scores[i],
                start=start[i] if anchored else None,
                end=end[i] if anchored else None,
                header_tokens=header[i],
                tokens=tokens[i] if tokens[i] >= 0 else None,
                rank=rank[i],
            )
        )
    return [tuple(hits) for hits in out]


def _confidences(run: Run) -> list[float | None]:
    """The declared confidence, else the top canonical score, else None. No hits: None too."""
    if not run.has_confidence:
        return [None] * len(run)
    if run.confidence is not None:
        return [None if math.isnan(c) else c for c in run.confidence.tolist()]
    if run.scores is None:
        return [None] * len(run)
    lengths = np.diff(run.offsets)
    return [
        float(run.scores[start]) if n else None
        for start, n in zip(run.offsets[:-1].tolist(), lengths.tolist(), strict=True)
    ]


def evaluate(
    questions: Sequence[Question],
    run: Run,
    plan: Plan,
    *,
    index: CorpusIndex | None = None,
    corpus_ids: Collection[str] | None = None,
    answers: Mapping[str, Answer] | None = None,
    judge: Judge | None = None,
    decide: bool = True,
    label_source: str = "labels",
) -> tuple[Outcome, ...]:
    """One outcome per question, sorted by question id.

    `index` (the corpus as one address space) enables the character levels; `corpus_ids` lets gold that is not in the
    corpus be noticed. With `answers` abstention is read from them by the decider ladder (`judge` is its last rung);
    without, and with `decide`, from confidences by `plan.threshold` or by a cross-fitted threshold.

    Raises MeasurementError: `duplicate_question_ids`, `unknown_question_ids`, `unscorable_questions` (strict),
    `depth_below_k`, `bad_label`, `bad_k`, `budget_underfilled` and the others of docs/measurement.md.
    """
    for k in plan.ks:
        check_k(k)
    abstention_only = plan.evaluate == "abstention"
    states = classify(questions, corpus_ids, evaluate=plan.evaluate)
    statuses = statuses_of(states, run)
    if abstention_only and answers is not None:
        statuses = _answer_statuses(states, answers)
    _check_ledger(questions, states, statuses, plan=plan, corpus_ids=corpus_ids, label_source=label_source)
    ordered = sorted(questions, key=lambda q: q.id)
    if not abstention_only:
        check_depth(max(plan.ks), run.depth)
    aligned = align(run, [q.id for q in ordered])
    full = canonical(aligned, plan.ties)
    # Whether the depth cut a list shows in its length as it came, copies included.
    listed = full if len(full.unit) == len(aligned.unit) else aligned
    columns = [] if abstention_only else [_ranked_columns(ordered, listed, plan)]
    if index is not None and not abstention_only:
        eligible = np.array([states[q.id] == "answerable" for q in ordered], np.bool_)
        columns.append(_span_columns(ordered, full, plan, index, eligible))
    if not abstention_only and any(q.grades for q in ordered):
        columns.append(_judged_columns(ordered, to_documents(full, plan.ties), plan))
    tied = [{}] * len(ordered) if abstention_only else _tie_ends(ordered, listed, plan)
    confidences = _confidences(full)
    kept = _hits(full, max(plan.ks))
    n_hits = np.diff(full.offsets).tolist()
    names = [(name, c.values[name].tolist(), c.reasons.get(name, {})) for c in columns for name in c.values]
    outcomes = []
    for i, question in enumerate(ordered):
        state, status = states[question.id], statuses[question.id]
        gold = groups_of(question)
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        if gold:
            for name, column, why in names:
                value = column[i]
                if math.isnan(value):
                    values[name] = None
                    reasons[name] = why[i]
                else:
                    values[name] = value
        outcomes.append(
            Outcome(
                id=question.id,
                label=question.answerability,
                state=state,
                status=status,
                question=question.question,
                gold=gold,
                hits=kept[i],
                n_hits=n_hits[i],
                values=values,
                reasons=reasons,
                groups=len(document_groups(question)),  # recall, the one micro average, merges spans of a document
                empty_gold=not gold,
                tags=question.tags,
                cluster=question.cluster,
                confidence=confidences[i],
                error=run.errors.get(question.id),
                ties=tied[i],
            )
        )
    if answers is not None:
        return _with_answers(outcomes, ordered, answers, judge, plan)
    return _with_threshold(outcomes, plan) if decide else tuple(outcomes)


def _check_ledger(
    questions: Sequence[Question],
    states: Mapping[str, State],
    statuses: Mapping[str, Status],
    *,
    plan: Plan,
    corpus_ids: Collection[str] | None,
    label_source: str,
) -> None:
    """Refuses before any work what a strict ledger refuses, and names gold that the corpus does not have."""
    try:
        build_ledger(states, statuses, eligibility=plan.eligibility, label_source=label_source)
    except MeasurementError as error:
        lost = lost_evidence(questions, corpus_ids) if corpus_ids is not None else {}
        if error.code != "unscorable_questions" or not lost:
            raise
        first = "; ".join(f"{q} needs {listing(ids, 3)}" for q, ids in list(lost.items())[:10])
        message = f"{error.message}; gold that is not in the corpus ({len(lost)} questions): {first}"
        raise MeasurementError(error.code, error.ids, message) from error


def _answer_statuses(states: Mapping[str, State], answers: Mapping[str, Answer]) -> dict[str, Status]:
    """Without a corpus what comes back is an answer: none is missing, an error is failed."""
    unknown = [q for q in answers if q not in states]
    if unknown:
        raise MeasurementError("unknown_question_ids", unknown, "answers to questions that the dataset does not have")
    return {q: "missing" if q not in answers else "failed" if answers[q].error is not None else "ok" for q in states}


def _with_answers(
    outcomes: Sequence[Outcome],
    questions: Sequence[Question],
    answers: Mapping[str, Answer],
    judge: Judge | None,
    plan: Plan,
) -> tuple[Outcome, ...]:
    from denominator.abstention import decide

    known = {q.id for q in questions}
    unknown = [q for q in answers if q not in known]
    if unknown:
        raise MeasurementError("unknown_question_ids", unknown, "answers to questions that the dataset does not have")
    out = []
    for outcome, question in zip(outcomes, questions, strict=True):
        answer = answers.get(outcome.id)
        lang = question.lang if answer is None or answer.lang is None else answer.lang
        decision = decide(answer, lang, judge, question=question.question, version=plan.phrases)
        text = None if answer is None else answer.text
        error = outcome.error or decision.note or None
        out.append(replace(outcome, abstained=decision.abstained, rung=decision.rung, answer=text, error=error))
    return tuple(out)


def _with_threshold(outcomes: Sequence[Outcome], plan: Plan) -> tuple[Outcome, ...]:
    from denominator.abstention import retrieval_decisions, scored

    threshold = retrieval_decisions(outcomes, plan.threshold)
    beside = {row.id: threshold.outside(row) for row in scored(outcomes, ("partial",))}
    return tuple(
        replace(o, abstained=threshold.decisions[o.id], threshold=threshold.used[o.id])
        if o.id in threshold.decisions
        else replace(o, abstained=beside[o.id], threshold=threshold.overall)
        if o.id in beside
        else o
        for o in outcomes
    )


# ------------------------------------------------------------------ from outcomes to numbers


@dataclass(frozen=True, slots=True)
class Summary:
    """Every aggregate of a run. `metrics` starts with the headline; `slices` is tag → value → metric.

    `partial` holds recall over partial questions (their own line, never in the headline) and the share of them refused.
    `joint` is None with `joint_reason` where no context or no decision is there; `answer_quality` where no answer has a
    text.
    """

    ledger: Ledger
    headline: str
    metrics: Mapping[str, Estimate]
    partial: Mapping[str, Estimate]
    slices: Mapping[str, Mapping[str, Mapping[str, Estimate]]]
    abstention: AbstentionReport
    audit: AuditReport | None
    joint: JointTable | None = None
    joint_reason: str | None = None
    answer_quality: AnswerQuality | None = None

    def as_dict(self) -> dict[str, Any]:
        def estimates(items: Mapping[str, Estimate]) -> dict[str, Any]:
            return {name: estimate.as_dict() for name, estimate in items.items()}

        return {
            "headline": self.headline,
            "ledger": self.ledger.as_dict(),
            "metrics": estimates(self.metrics),
            "partial": estimates(self.partial),
            "slices": {t: {v: estimates(m) for v, m in values.items()} for t, values in self.slices.items()},
            "abstention": self.abstention.as_dict(),
            "audit": None if self.audit is None else self.audit.as_dict(),
            "joint": {"reason": self.joint_reason} if self.joint is None else self.joint.as_dict(),
            **({} if self.answer_quality is None else {"answer_quality": self.answer_quality.as_dict()}),
        }


def ledger_of(outcomes: Sequence[Outcome], plan: Plan, label_source: str = "labels") -> Ledger:
    """The ledger from outcomes alone."""
    return build_ledger(
        {o.id: o.state for o in outcomes},
        {o.id: o.status for o in outcomes},
        eligibility=plan.eligibility,
        label_source=label_source,
    )


def _estimate(name: str, outcomes: Sequence[Outcome], plan: Plan, empty: str) -> Estimate:
    """The mean of one metric over these outcomes, all of them eligible: undefined for one is undefined for all."""
    parsed = parse_metric(name)
    k, level = parsed.k, parsed.level
    micro = plan.aggregation == "micro" and parsed.family.removeprefix("slot_").removeprefix("chunk_") == "recall"
    values = []
    for outcome in outcomes:
        value = outcome.values.get(name)
        if value is None:
            reason = outcome.reasons.get(name, "no_spans" if parsed.level in {"L4", "L5"} else empty)
            return Estimate(None, 0, reason, k=k, level=level, aggregation="micro" if micro else "macro")
        values.append(value)
    clusters = None
    if plan.cluster is not None:
        clusters = [o.cluster for o in outcomes]
    if micro:
        groups = [o.groups for o in outcomes]
        return estimate_micro(values, groups, clusters=clusters, alpha=plan.alpha, k=k, level=level, reason=empty)
    return estimate_mean(
        values, clusters=clusters, alpha=plan.alpha, k=k, level=level, reason=empty, rate=is_rate(name)
    )


def _judged(outcomes: Sequence[Outcome], eligible: Sequence[Outcome], plan: Plan) -> dict[str, Estimate]:
    """`judged@K` where grades exist. It describes the labels, so its n is the eligible questions that have a value."""
    found = {}
    for name in (f"judged@{k}" for k in plan.ks):
        if not any(name in o.values for o in outcomes):
            continue
        seen = [o for o in eligible if o.values.get(name) is not None]
        empty = "n_zero" if eligible else "no_eligible"
        found[name] = _estimate(name, seen, replace(plan, aggregation="macro"), empty)
    return found


def slice_values(outcome: Outcome, tag: str) -> tuple[str, ...]:
    """The slices of one tag that a question is in, as text; a list puts it in several."""
    return tag_values(outcome.tags, tag)


def tag_values(tags: Mapping[str, Any], tag: str) -> tuple[str, ...]:
    """The values of one tag as text: each member of a list, true and false as in JSON, nothing where it is absent."""
    value = tags.get(tag)
    if value is None:
        return ()
    items = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(dict.fromkeys(str(item).lower() if isinstance(item, bool) else str(item) for item in items))


def slice_tags(outcomes: Sequence[Outcome], plan: Plan) -> tuple[str, ...]:
    """The tags to slice by: those that the plan names, else every tag with 2 to 20 values, in order of name."""
    if plan.slices:
        return plan.slices
    tags = sorted({tag for outcome in outcomes for tag in outcome.tags})
    counts = {tag: len({v for o in outcomes for v in slice_values(o, tag)}) for tag in tags}
    return tuple(tag for tag in tags if 2 <= counts[tag] <= MOST_SLICE_VALUES)


def summarize(
    outcomes: Sequence[Outcome], plan: Plan, *, label_source: str = "labels", chunker_varies: bool = True
) -> Summary:
    """Every number of a run from its outcomes: ledger, metrics with n and intervals, slices, abstention, audit.

    Pure: the same outcomes and plan always give the same summary, in the run and in any later report.
    """
    from denominator.abstention import report
    from denominator.audit import audit_outcomes
    from denominator.quality import answer_quality

    ledger = ledger_of(outcomes, plan, label_source)
    eligible = [o for o in outcomes if o.state == "answerable"]
    partial = [o for o in outcomes if o.state == "partial"]
    spans = bool(eligible) and all(o.values.get(f"coverage@b{plan.budget}") is not None for o in eligible)
    headline = headline_of(plan, spans=spans, chunker_varies=chunker_varies)
    recall = audit_metric(plan, outcomes)
    empty = "abstention_only" if plan.evaluate == "abstention" else "no_eligible"
    names = dict.fromkeys((headline, *ranked_names(plan), *span_names(plan)))
    if plan.evaluate == "abstention":
        metrics = {n: Estimate(None, 0, empty, k=parse_metric(n).k, level=parse_metric(n).level) for n in names}
    else:
        metrics = {n: _estimate(n, eligible, plan, empty) for n in names} | _judged(outcomes, eligible, plan)
    tags = slice_tags(outcomes, plan) if plan.evaluate == "retrieval" else ()
    slices: dict[str, dict[str, dict[str, Estimate]]] = {}
    for tag in tags:
        found = sorted({v for o in outcomes for v in slice_values(o, tag)})
        slices[tag] = {
            v: {
                name: _estimate(name, [o for o in eligible if v in slice_values(o, tag)], plan, "empty_slice")
                for name in dict.fromkeys((headline, recall))
            }
            for v in found
        }
    abstention = report(outcomes, plan, recall=None if plan.evaluate == "abstention" else recall)
    table, why = _joint(outcomes, plan, headline)
    partial_lines = {name: _estimate(name, partial, plan, "no_partial") for name in dict.fromkeys((headline, recall))}
    if abstention.partial is not None:
        partial_lines["refused"] = abstention.partial
    return Summary(
        ledger=ledger,
        headline=headline,
        metrics=metrics,
        partial=partial_lines,
        slices=slices,
        abstention=abstention,
        audit=None if plan.evaluate == "abstention" else audit_outcomes(outcomes, recall),
        joint=table,
        joint_reason=why,
        answer_quality=answer_quality(outcomes, plan),
    )


def _joint(outcomes: Sequence[Outcome], plan: Plan, headline: str) -> tuple[JointTable | None, str | None]:
    """Answerability × evidence in context × abstained.

    The context is what the headline metric cuts; where that is no measured K (`map`, `r_precision`), the K of recall.
    """
    from denominator.abstention import JointRow, joint

    if plan.evaluate == "abstention":
        return None, "abstention_only"
    parsed = parse_metric(headline)
    k = parsed.k if parsed.k in plan.ks else 5 if 5 in plan.ks else max(plan.ks)
    complete = f"recall_tau100@b{parsed.k}" if parsed.level == "L5" else f"complete@{k}"
    rows = []
    for outcome in outcomes:
        if outcome.state not in {"answerable", "unanswerable"}:
            continue
        unanswerable = outcome.state == "unanswerable"
        value = 0.0 if unanswerable else outcome.values.get(complete)
        if value is None:
            return None, outcome.reasons.get(complete, "no_eligible")
        cluster = None if plan.cluster is None else outcome.cluster
        rows.append(JointRow(outcome.id, unanswerable, value >= 1.0, outcome.abstained, cluster))
    if rows and all(row.abstained is None for row in rows):
        return None, "all_undecided"
    return joint(rows, alpha=plan.alpha), None
