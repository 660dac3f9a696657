"""From the outcomes of many recorded runs to a decision. Pure functions: no file, no clock, no store.

`decide` ranks what may be compared and says what may not; `compare` puts two runs side by side. Questions are taken
sorted by id and configurations sorted by name, so that neither the order of the runs nor that of the questions changes
anything. MEASUREMENT.md sections 8 and 9.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from denominator import phrases
from denominator.audit import audit_outcomes
from denominator.errors import ConfigError, MeasurementError, listing
from denominator.evaluation import parse_metric, slice_tags, slice_values
from denominator.fingerprint import FIELDS, comparable, differing, sha
from denominator.quality import METRICS as ANSWER_METRICS
from denominator.quality import answered, answered_by_both
from denominator.ranking import level_guard
from denominator.types import Estimate, Floats, Level, Outcome, Plan, RecordedRun
from denominator.uncertainty import (
    DECIMALS,
    Candidate,
    Difference,
    NestedCV,
    Optimism,
    Verdict,
    best_of,
    best_set,
    estimate_mean,
    estimate_micro,
    gains_losses,
    holm,
    is_rate,
    nested_cv,
    optimism,
    paired_difference,
    paired_differences,
    pareto,
    verdict,
)

COSTS = ("latency_ms_median", "index_bytes", "context_tokens")
COST_TEXT = {
    "latency_ms_median": ("median query latency", "{:.3g} ms"),
    "index_bytes": ("index size", "{:,.0f} bytes"),
    "context_tokens": ("context sent", "{:,.0f} tokens"),
}
FEW = 20  # a slice with fewer questions than this carries a warning
SHOWN_DISAGREEMENTS = 10
OPTIMISM_RESAMPLES = 2000
SHARED = ("dataset_hash", "corpus_hash", "metric_version", "aggregation", "eligibility", "ties")
"""Fingerprint fields that are the same for all metrics of a run: what a figure without a fingerprint is held to."""
INSTRUMENTS = ("phrases", "judge", "grader")
"""What reads answers: the version of the refusal lists, the judge of refusals, the judge of correctness."""


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


# ------------------------------------------------------------------ what a decision is made of


@dataclass(frozen=True, slots=True)
class Settings:
    """What was declared before the sweep and decides with: α, practical margin δ, resamples, seed, baseline, costs."""

    metric: str
    alpha: float = 0.05
    margin: float = 0.02
    resamples: int = 9999
    seed: int = 0
    baseline: str | None = None
    aggregation: str = "macro"
    costs: tuple[str, ...] = COSTS
    slices: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Excluded:
    """A run that is shown but not ranked. `reason`: a code of docs/measurement.md, section 9."""

    run_id: str
    name: str
    reason: str
    detail: str
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Versus:
    """A candidate minus the declared baseline; `p_adjusted` is Holm's over all candidates, the verdict follows it."""

    difference: Difference
    p_adjusted: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration of a ranking. Equal means share a rank; `same_as`: the same value for every question."""

    rank: int
    name: str
    run_id: str
    cell_key: str
    params: Mapping[str, str]
    estimate: Estimate
    costs: Mapping[str, float | None]
    in_best_set: bool
    p_best: float
    on_front: bool
    recommended: bool
    is_baseline: bool
    versus: Versus | None = None
    same_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LevelEffect:
    """One level of a factor against the mean of the factor's other levels, over cells that are equal in all else.

    The interval is over questions (`gains_losses`). `lowest` and `highest` are the least and the largest difference in
    a single set of matched cells: far apart means that the effect depends on the other factors.
    """

    level: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    matched: int
    lowest: float | None
    lowest_at: str
    highest: float | None
    highest_at: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Factor:
    """A part of the configuration that varies, with the effect of each of its levels, best first.

    `interaction` is the largest range of a level's difference over matched cells.
    """

    name: str
    levels: tuple[LevelEffect, ...]
    interaction: float | None


@dataclass(frozen=True, slots=True)
class Slice:
    """One value of a tag: how many eligible questions have it, and each configuration's mean there. No verdicts."""

    tag: str
    value: str
    n: int
    warning: str | None
    estimates: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class Convention:
    """What a naive convention would have reported, and whether it would have chosen another winner (macro means).

    `n_least` and `n_most` differ where a convention gives its configurations different denominators.
    """

    convention: str
    n_least: int
    n_most: int
    values: Mapping[str, float]
    winner: str
    winner_changes: bool
    order_changes: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A question on which two runs differ."""

    id: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The questions on which the best and the next different configuration are furthest apart."""

    a: str
    b: str
    differing: int
    questions: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The cheapest of the best set's Pareto front, and the cost that decided it; or the reason why there is none.

    `by` is None where no cost decided: the best set has one member, or no cost was recorded.
    """

    name: str | None
    run_id: str | None
    by: str | None
    reason: str | None = None
    front: tuple[str, ...] = ()
    not_comparable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Configurations with one fingerprint: what may be compared with one another."""

    fingerprint: str
    fields: Mapping[str, Any]
    n: int
    clusters: int | None
    rows: tuple[Row, ...]
    best: str
    best_set: tuple[str, ...]
    tukey_method: str
    optimism: Optimism
    nested_cv: NestedCV
    detectable: float | None
    detectable_reason: str | None
    front: tuple[str, ...]
    not_on_front_for_lack_of: tuple[str, ...]
    recommendation: Recommendation
    baseline: str | None
    coincide: tuple[tuple[str, ...], ...]
    factors: tuple[Factor, ...]
    slices: tuple[Slice, ...]
    naive: tuple[Convention, ...]
    disagreement: Disagreement | None
    failed_by_all: tuple[str, ...]
    costs: tuple[str, ...]
    notes: tuple[str, ...]
    sentence: str

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that the report says about a set of runs, ready for JSON. The largest ranking comes first.

    `differs` names the fingerprint fields that keep the rankings apart; `allowed` the fields that were declared not to
    matter, with the values that were put together.
    """

    settings: Settings
    sentence: str
    rankings: tuple[Ranking, ...]
    differs: tuple[str, ...]
    allowed: Mapping[str, tuple[Any, ...]]
    excluded: tuple[Excluded, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(self)
        return plain


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, question by question: candidate − baseline. `gained` and `lost` are sorted by size, then by id.

    `same` questions have the same value in both. `beside` says which questions a metric of answers is about.
    """

    metric: str
    candidate: str
    baseline: str
    candidate_estimate: Estimate
    baseline_estimate: Estimate
    difference: Difference
    verdict: Verdict
    gained: tuple[Change, ...]
    lost: tuple[Change, ...]
    alpha: float
    margin: float
    seed: int
    resamples: int
    sentence: str
    same: int = 0
    beside: str = ""

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(self)
        return plain


# ------------------------------------------------------------------ per-question vectors


@dataclass(frozen=True)
class _Scored:
    """A run's values of one metric over its eligible questions, sorted by id."""

    label: str
    run: RecordedRun
    metric: str
    outcomes: tuple[Outcome, ...]
    vector: Floats
    micro: bool

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(o.id for o in self.outcomes)

    @cached_property
    def clusters(self) -> tuple[str | None, ...] | None:
        # Nothing is clustered unasked: a field that could cluster does so only if the plan names it.
        return tuple(o.cluster for o in self.outcomes) if self.run.plan.cluster is not None else None

    @cached_property
    def repeats(self) -> list[int]:
        return [o.groups for o in self.outcomes]

    # A micro average weighs a question by its groups: each question is repeated once a group and is a cluster of them.
    @cached_property
    def values(self) -> Floats:
        return np.repeat(self.vector, self.repeats) if self.micro else self.vector

    @cached_property
    def units(self) -> tuple[str | None, ...] | None:
        if not self.micro:
            return self.clusters
        # Names of clusters and ids of questions may coincide; the prefix keeps them apart.
        names = self.clusters or (None,) * len(self.outcomes)
        owners = [f"q:{o.id}" if c is None else f"c:{c}" for o, c in zip(self.outcomes, names, strict=True)]
        return tuple(owner for owner, times in zip(owners, self.repeats, strict=True) for _ in range(times))

    @cached_property
    def question_of_value(self) -> tuple[str, ...]:
        return self.ids if not self.micro else tuple(np.repeat(np.array(self.ids, dtype=object), self.repeats))

    def estimate(self, alpha: float, rows: Sequence[int] | None = None, reason: str = "no_eligible") -> Estimate:
        name = parse_metric(self.metric)
        level = None if self.metric in ANSWER_METRICS else name.level
        vector = self.vector if rows is None else self.vector[list(rows)]
        clusters = self.clusters
        if clusters is not None and rows is not None:
            clusters = tuple(clusters[i] for i in rows)
        if self.micro:
            groups = self.repeats if rows is None else [self.repeats[i] for i in rows]
            return estimate_micro(vector, groups, clusters=clusters, alpha=alpha, k=name.k, level=level, reason=reason)
        return estimate_mean(
            vector,
            clusters=clusters,
            alpha=alpha,
            k=name.k,
            level=level,
            reason=reason,
            rate=is_rate(self.metric),
        )


def _score(run: RecordedRun, label: str, metric: str) -> _Scored | Excluded:
    """The run's vector, or why it has none."""
    family = parse_metric(metric).family.removeprefix("slot_").removeprefix("chunk_")
    micro = run.plan.aggregation == "micro" and family == "recall"  # only recall counts groups found of groups
    if metric in ANSWER_METRICS:
        said = "it is over the questions that a run answered, which differ from run to run: compare two of them"
        return Excluded(run.run_id, label, "not_comparable", f"{metric}: {said}")
    if run.plan.evaluate == "abstention":
        return Excluded(
            run.run_id, label, "abstention_only", "recorded answers without a corpus have no retrieval metric"
        )
    eligible = sorted((o for o in run.outcomes if o.state == "answerable"), key=lambda o: o.id)
    if not eligible:
        return Excluded(run.run_id, label, "no_eligible", "no question of this run is labelled answerable and has gold")
    unmeasured = [o.id for o in eligible if metric not in o.values]
    if unmeasured:
        return Excluded(run.run_id, label, "not_measured", f"{metric} was not measured for {listing(unmeasured, 3)}")
    undefined = {o.id: o.reasons.get(metric, "not_recorded") for o in eligible if o.values[metric] is None}
    if undefined:
        reason = min(undefined.values())
        return Excluded(run.run_id, label, reason, f"{metric} is undefined for {listing(undefined, 3)}")
    vector = np.array([o.values[metric] for o in eligible], dtype=np.float64)
    return _Scored(label, run, metric, tuple(eligible), vector, micro)


def _both_answered(runs: Sequence[RecordedRun], labels: Mapping[str, str], metric: str) -> tuple[list[_Scored], str]:
    """Two runs' values of an answer metric over the questions that both have it for, and a sentence that counts them.

    What only one of them answered has no partner, so refusing the hard questions wins nothing here; it shows in
    abstention. Raises MeasurementError `not_comparable` (`no_answers`) when there is no such question.
    """
    have = answered_by_both(metric, runs[0].outcomes, runs[1].outcomes)
    total = sum(o.state == "answerable" for o in runs[0].outcomes)
    counts = [f"{labels[run.run_id]} {sum(map(answered, run.outcomes))}" for run in runs]
    beside = (
        f"over the {len(have[0])} questions that both answered and that have it, of {total} answerable ones; answered "
        f"by {counts[0]}, by {counts[1]}"
    )
    if not have[0]:
        raise MeasurementError("not_comparable", ["no_answers"], f"{metric}: {beside}")
    made = [
        _Scored(
            labels[run.run_id],
            run,
            metric,
            tuple(found),
            np.array([o.quality[metric] for o in found], np.float64),
            False,
        )
        for run, found in zip(runs, have, strict=True)
    ]
    return made, beside


def shared_fields(run: RecordedRun) -> dict[str, Any]:
    """The fingerprint fields that all metrics of a run have in common."""
    first = next(iter(run.fingerprints.values()), {})
    return {name: first.get(name) for name in SHARED}


def instruments(run: RecordedRun) -> dict[str, str | None]:
    """Which lists and which models read this run's answers; None for what no figure of it depends on.

    `phrases`: the version of the lists where texts were read. Versions only add languages, so that of an older one
    matters only where a text found no list or went to a judge. `judge`: the one that decided something; `none` where
    texts were read that a judge would have been asked about and there was none. `grader`: the one that gave a verdict.
    """
    rungs = {o.rung for o in run.outcomes}
    passed_on = bool(rungs & {"no_patterns", "judge"})
    latest = run.plan.phrases == next(reversed(phrases.PATTERNS))
    judge = None
    if any(o.rung == "judge" and o.abstained is not None for o in run.outcomes):
        judge = run.params.get("answerer.judge.hash", "unknown")
    elif "answerer.judge.hash" not in run.params and any(
        o.rung in ("phrase", "no_patterns") and not o.abstained for o in run.outcomes
    ):
        judge = "none"
    graded = any("correctness" in o.quality for o in run.outcomes)
    return {
        "phrases": run.plan.phrases if passed_on or ("phrase" in rungs and latest) else None,
        "judge": judge,
        "grader": run.params.get("answerer.grader.hash", "unknown") if graded else None,
    }


def instruments_apart(one: RecordedRun, other: RecordedRun) -> tuple[str, ...]:
    """The instruments that both runs depend on and that are not the same."""
    a, b = instruments(one), instruments(other)
    return tuple(name for name in INSTRUMENTS if None not in (a[name], b[name]) and a[name] != b[name])


def _labels(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Label of each run id: its name, with the run id (its start, if that says enough) where a name is used twice."""
    names = [run.name for run in runs]
    twice = {name for name in names if names.count(name) > 1}
    short = len({run.run_id[:8] for run in runs}) == len(runs)
    return {
        run.run_id: f"{run.name} ({run.run_id[:8] if short else run.run_id})" if run.name in twice else run.name
        for run in runs
    }


def _parts(text: str) -> tuple[str, ...]:
    return tuple(sorted(part.strip() for part in re.split(r"[·,|]", text) if part.strip()))


def find_runs(runs: Sequence[RecordedRun], text: str) -> list[RecordedRun]:
    """Runs that a person means by a name: the exact name, run id or cell key, else the same parts in any order.

    Parts are what stands between `·`, `,` or `|`: `bm25, fixed, none` finds `fixed · bm25 · none`.
    """
    exact = [run for run in runs if text in (run.name, run.run_id, run.cell_key)]
    return exact or [run for run in runs if _parts(run.name) == _parts(text)]


def find_run(runs: Sequence[RecordedRun], text: str) -> RecordedRun:
    """The one run that `find_runs` finds. Raises ConfigError that names the runs there are or that it could mean."""
    found = find_runs(runs, text)
    if len(found) != 1:
        names = listing({run.name for run in runs}, 30)
        why = f"names {len(found)} runs ({listing((r.run_id for r in found), 5)})" if found else "names no run"
        raise ConfigError(f"{text!r} {why}; runs there are: {names}")
    return found[0]


def headline(runs: Sequence[RecordedRun]) -> str:
    """The metric that these runs were declared to be selected on. Raises ConfigError when they do not agree."""
    declared = {run.tags["headline_metric"] for run in runs if run.tags.get("headline_metric")}
    if not declared:
        declared = {run.plan.headline for run in runs if run.plan.headline != "auto"}
    if len(declared) != 1:
        said = f"they name {listing(declared)}" if declared else "they name none"
        raise ConfigError(f"the runs do not agree on one metric to select on ({said}); name one, such as recall@5")
    return declared.pop()


def _known_metrics(runs: Sequence[RecordedRun]) -> list[str]:
    answerable = [o for run in runs for o in run.outcomes if o.state == "answerable"]
    return [
        *sorted({name for o in answerable for name in o.values}),
        *(name for name in ANSWER_METRICS if any(name in o.quality for o in answerable)),
    ]


def _check_metric(runs: Sequence[RecordedRun], metric: str) -> None:
    parse_metric(metric)
    known = _known_metrics(runs)
    if metric in ANSWER_METRICS:
        if any(metric in o.quality for run in runs for o in run.outcomes):
            return
    elif not known or metric in known:
        return
    raise ConfigError(f"no run has the metric {metric!r}; these are recorded: {', '.join(known)}")


# ------------------------------------------------------------------ deciding


def decide(
    runs: Sequence[RecordedRun],
    metric: str | None = None,
    *,
    baseline: str | None = None,
    alpha: float | None = None,
    margin: float | None = None,
    resamples: int | None = None,
    seed: int | None = None,
    costs: Sequence[str] = COSTS,
    slices: Sequence[str] | None = None,
    allow: Sequence[str] = (),
) -> Decision:
    """Ranks the runs on one metric and says which are best, which cannot be told apart from the best, and what to take.

    Runs are grouped by the metric's fingerprint: values that were measured differently never share a ranking, unless
    `allow` names the fields that may differ. Incomplete runs, and runs in which the metric is undefined for an eligible
    question, are listed in `excluded`. What is not given comes from the runs' own plan. Without a declared baseline
    there are no p-values against one. `costs` are names in `facts`, the first one decides the recommendation.

    Raises ConfigError: no runs, unknown metric, field or baseline. Raises MeasurementError `not_comparable` with
    question ids when runs of one fingerprint have different eligible questions (a mean must not change its denominator
    from row to row), `level_not_comparable` when the chunker varies and the metric counts chunks (L2, L3, L4).
    """
    if not runs:
        raise ConfigError("there are no recorded runs to choose from")
    unknown = sorted(set(allow) - set(FIELDS))
    if unknown:
        raise ConfigError(f"cannot allow {listing(unknown)}: the fields of a fingerprint are {', '.join(FIELDS)}")
    runs = sorted({run.run_id: run for run in runs}.values(), key=lambda run: (run.name, run.run_id))
    metric = headline(runs) if metric is None else metric
    _check_metric(runs, metric)
    plans = [run.plan for run in runs]
    notes = [
        f"the runs declare different values of {name} ({listing({str(getattr(p, name)) for p in plans}, 5)}); "
        f"{getattr(plans[0], name)!r} is used"
        for name, given in (("alpha", alpha), ("margin", margin), ("resamples", resamples), ("seed", seed))
        if given is None and len({getattr(p, name) for p in plans}) > 1
    ]
    settings = Settings(
        metric=metric,
        alpha=plans[0].alpha if alpha is None else alpha,
        margin=plans[0].margin if margin is None else margin,
        resamples=plans[0].resamples if resamples is None else resamples,
        seed=plans[0].seed if seed is None else seed,
        baseline=_declared(plans, lambda p: p.baseline) if baseline is None else baseline,
        aggregation=plans[0].aggregation,
        costs=tuple(costs),
        slices=plans[0].slices if slices is None else tuple(slices),
        allow=tuple(sorted(allow)),
    )
    labels = _labels(runs)
    excluded: list[Excluded] = []
    groups: dict[str, list[_Scored]] = {}
    described: dict[str, dict[str, Any]] = {}
    allowed: dict[str, list[Any]] = {name: [] for name in settings.allow}
    for run in runs:
        label = labels[run.run_id]
        scored = _score(run, label, metric)
        if isinstance(scored, Excluded):
            excluded.append(scored)
            continue
        if run.ledger.incomplete:
            said = f"{run.ledger.failed} questions failed and {run.ledger.missing} are missing; run it again"
            estimate = scored.estimate(settings.alpha)
            excluded.append(Excluded(run.run_id, label, "incomplete", said, estimate))
            continue
        found = run.fingerprints.get(metric)
        if found is None:
            said = "the record holds no fingerprint of this metric, so what it may be compared with is unknown"
            excluded.append(Excluded(run.run_id, label, "no_fingerprint", said, scored.estimate(settings.alpha)))
            continue
        kept = {name: found.get(name) for name in FIELDS}
        for name in settings.allow:
            if kept[name] not in allowed[name]:
                allowed[name].append(kept[name])
            kept[name] = None
        key = sha(kept)
        groups.setdefault(key, []).append(scored)
        described[key] = kept
    baselines = _baselines(runs, groups, settings, notes)
    order = sorted(groups, key=lambda key: (-len(groups[key]), key))
    rankings = tuple(_rank(groups[key], key, described[key], settings, baselines.get(key)) for key in order)
    differs = tuple(name for name in FIELDS if len({sha(described[key][name]) for key in order}) > 1)
    return Decision(
        settings=settings,
        sentence=_overall(rankings, differs, excluded, settings),
        rankings=rankings,
        differs=differs,
        allowed={name: tuple(values) for name, values in allowed.items() if len(values) > 1},
        excluded=tuple(excluded),
        notes=tuple(notes),
    )


def _declared(plans: Sequence[Plan], get: Callable[[Plan], str | None]) -> str | None:
    declared = sorted({value for plan in plans if (value := get(plan)) is not None})
    if len(declared) > 1:
        raise ConfigError(f"the runs declare different baselines: {listing(declared)}; name one")
    return declared[0] if declared else None


def _baselines(
    runs: Sequence[RecordedRun], groups: Mapping[str, list[_Scored]], settings: Settings, notes: list[str]
) -> dict[str, str]:
    """Label of the baseline in each group that has it."""
    if settings.baseline is None:
        return {}
    if not find_runs(runs, settings.baseline):
        names = listing({run.name for run in runs}, 30)
        raise ConfigError(f"baseline {settings.baseline!r} names no run; runs there are: {names}")
    found: dict[str, str] = {}
    for key, members in groups.items():
        here = find_runs([s.run for s in members], settings.baseline)
        if len(here) > 1:
            ids = listing((run.run_id for run in here), 5)
            raise ConfigError(f"baseline {settings.baseline!r} names {len(here)} comparable runs; give a run id: {ids}")
        if here:
            found[key] = next(s.label for s in members if s.run is here[0])
    if not found:
        notes.append(
            f"the baseline {settings.baseline!r} is not ranked (see excluded), so there are no p-values against it"
        )
    return found


def _same_denominator(members: Sequence[_Scored]) -> None:
    first = members[0]
    for other in members[1:]:
        if other.ids != first.ids:
            apart = set(first.ids) ^ set(other.ids)
            raise MeasurementError(
                "not_comparable",
                apart,
                f"{first.label!r} has {len(first.ids)} eligible questions and {other.label!r} {len(other.ids)}; a "
                "ranking has one denominator, and these questions are eligible in one of the two only",
            )
        # One question set with two groupings would give two kinds of units in one test.
        if other.clusters != first.clusters or (first.micro and other.repeats != first.repeats):
            raise MeasurementError(
                "not_comparable",
                ["clusters" if other.clusters != first.clusters else "groups"],
                f"{first.label!r} and {other.label!r} cluster or count the same questions differently",
            )


def _varying(members: Sequence[_Scored]) -> list[str]:
    names = sorted({name for s in members for name in s.run.params})
    return [name for name in names if len({str(s.run.params.get(name)) for s in members}) > 1]


def _rank(
    members: list[_Scored], key: str, described: Mapping[str, Any], settings: Settings, baseline: str | None
) -> Ranking:
    _same_denominator(members)
    level_guard(_varying(members), cast("Level", parse_metric(settings.metric).level))
    first = members[0]
    vectors = {s.label: s.values for s in members}
    by_label = {s.label: s for s in members}
    units = first.units
    best = best_set(vectors, alpha=settings.alpha, clusters=units, seed=settings.seed, resamples=settings.resamples)
    means = best.tukey.means
    order = sorted(members, key=lambda s: (-round(means[s.label], DECIMALS), s.label))
    versus = _against(members, baseline, settings)
    costs, notes = _known_costs(members, settings)
    table = {s.label: {cost: _fact(s.run, cost) for cost in costs} for s in members}
    front = pareto([Candidate(c, round(means[c], DECIMALS), tuple(table[c].values())) for c in means])
    recommendation = _recommend(best.members, means, table, by_label)
    coincide = _coincide(members)
    same = {label: tuple(x for x in group if x != label) for group in coincide for label in group}
    estimates = {s.label: s.estimate(settings.alpha) for s in members}
    rank_of: dict[float, int] = {}
    for place, s in enumerate(order, 1):
        rank_of.setdefault(round(means[s.label], DECIMALS), place)
    rows = tuple(
        Row(
            rank=rank_of[round(means[s.label], DECIMALS)],
            name=s.label,
            run_id=s.run.run_id,
            cell_key=s.run.cell_key,
            params=dict(s.run.params),
            estimate=estimates[s.label],
            costs=table[s.label],
            in_best_set=s.label in best.members,
            p_best=best.tukey.of(best.best, s.label),
            on_front=s.label in front.front,
            recommended=s.label == recommendation.name,
            is_baseline=s.label == baseline,
            versus=versus.get(s.label),
            same_as=same.get(s.label, ()),
        )
        for s in order
    )
    detectable, why_not = _detectable(members, baseline or best.best, settings)
    cross = nested_cv(vectors, first.question_of_value, clusters=units)
    if len(members) > 1 and np.ptp(np.stack(list(vectors.values())), axis=0).max() == 0:
        notes.append("all configurations give the same value for every question: this question set cannot choose")
    ranking = Ranking(
        fingerprint=key,
        fields={k: v for k, v in described.items() if k not in settings.allow},
        n=estimates[first.label].n,
        clusters=None if first.clusters is None else _count_units(first.clusters),
        rows=rows,
        best=best.best,
        best_set=tuple(row.name for row in rows if row.in_best_set),
        tukey_method=best.tukey.method,
        optimism=optimism(vectors, clusters=units, seed=settings.seed, resamples=OPTIMISM_RESAMPLES),
        nested_cv=cross,
        detectable=detectable,
        detectable_reason=why_not,
        front=front.front,
        not_on_front_for_lack_of=front.not_comparable,
        recommendation=recommendation,
        baseline=baseline,
        coincide=coincide,
        factors=_factors(members, settings.alpha),
        slices=_slices(by_label, settings),
        naive=_conventions(members),
        disagreement=_disagreement(order),
        failed_by_all=_failed_by_all(members),
        costs=costs,
        notes=tuple(notes),
        sentence="",
    )
    return replace(ranking, sentence=_sentence(ranking, settings))


def _count_units(clusters: Sequence[str | None]) -> int:
    return len({c for c in clusters if c is not None}) + sum(c is None for c in clusters)


def _against(members: Sequence[_Scored], baseline: str | None, settings: Settings) -> dict[str, Versus]:
    if baseline is None:
        return {}
    base = next(s for s in members if s.label == baseline)
    others = [s for s in members if s.label != baseline]
    found = paired_differences(
        [(s.values, base.values) for s in others],
        clusters=base.units,
        alpha=settings.alpha,
        seed=settings.seed,
        resamples=settings.resamples,
        binary=is_rate(settings.metric),
    )
    adjusted = holm({s.label: d.p for s, d in zip(others, found, strict=True)})
    return {
        s.label: Versus(d, adjusted[s.label], _verdict(d, adjusted[s.label], settings.alpha, settings.margin))
        for s, d in zip(others, found, strict=True)
    }


def _verdict(d: Difference, p: float, alpha: float, margin: float) -> Verdict:
    return verdict(p, d.value or 0.0, d.low, d.high, delta=margin, alpha=alpha)


def _fact(run: RecordedRun, name: str) -> float | None:
    value = run.facts.get(name)
    return None if value is None or math.isnan(value) else float(value)


def _known_costs(members: Sequence[_Scored], settings: Settings) -> tuple[tuple[str, ...], list[str]]:
    """Costs that at least one run has. One that nobody measured would make every configuration incomparable."""
    known = tuple(cost for cost in settings.costs if any(_fact(s.run, cost) is not None for s in members))
    lost = [cost for cost in settings.costs if cost not in known]
    return known, [f"no run recorded {cost}; it plays no part" for cost in lost]


def _recommend(
    best: Sequence[str],
    means: Mapping[str, float],
    table: Mapping[str, Mapping[str, float | None]],
    members: Mapping[str, _Scored],
) -> Recommendation:
    if len(members) < 2:
        return Recommendation(None, None, None, "fewer than two comparable configurations")
    quality = {c: round(means[c], DECIMALS) for c in best}
    front = pareto([Candidate(c, quality[c], tuple(table[c].values())) for c in best])
    if len(best) == 1:  # nothing is left for a cost to decide
        return Recommendation(best[0], members[best[0]].run.run_id, None, None, tuple(best), ())
    if not front.front:
        return Recommendation(
            None, None, None, "no configuration of the best set has all costs", (), front.not_comparable
        )

    def price(c: str) -> tuple[Any, ...]:
        return (*(x for x in table[c].values() if x is not None), -quality[c], c)

    chosen = min(front.front, key=price)
    by = next(iter(table[chosen]), None)
    return Recommendation(chosen, members[chosen].run.run_id, by, None, front.front, front.not_comparable)


def _coincide(members: Sequence[_Scored]) -> tuple[tuple[str, ...], ...]:
    """Groups of configurations with the same value for every question."""
    groups: dict[bytes, list[str]] = {}
    for s in members:
        groups.setdefault((np.round(s.vector, DECIMALS) + 0.0).tobytes(), []).append(s.label)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1))


def _detectable(members: Sequence[_Scored], against: str, settings: Settings) -> tuple[float | None, str | None]:
    """What a paired test could have found with power .8: the median over the configurations that differ at all."""
    base = next(s for s in members if s.label == against)
    others = [s for s in members if s.label != against]
    if not others:
        return None, "one_configuration"
    # Only the spread of the differences is needed here, so the tests inside draw next to nothing.
    found = [
        paired_difference(s.values, base.values, clusters=base.units, alpha=settings.alpha, resamples=1).mdd
        for s in others
    ]
    sizes = sorted(x for x in found if x is not None and x > 0)
    if not sizes:
        return None, "n_below_2" if None in found else "no_differences"
    middle = len(sizes) // 2
    return (sizes[middle] if len(sizes) % 2 else (sizes[middle - 1] + sizes[middle]) / 2), None


# ------------------------------------------------------------------ factors, slices, conventions, questions


def _factors(members: Sequence[_Scored], alpha: float) -> tuple[Factor, ...]:
    varying = _varying(members)
    names = sorted({name.partition(".")[0] for name in varying})
    found = []
    for factor in names:
        inside = [n for n in varying if n.partition(".")[0] == factor]
        outside = [n for n in varying if n.partition(".")[0] != factor]
        level_of = _level_labels(members, factor, inside)
        blocks: dict[tuple[str, ...], dict[str, list[_Scored]]] = {}
        for s in members:
            block = tuple(str(s.run.params.get(n)) for n in outside)
            blocks.setdefault(block, {}).setdefault(level_of[s.label], []).append(s)
        levels = [_level_effect(level, blocks, alpha, members[0].units) for level in sorted(set(level_of.values()))]
        levels.sort(key=lambda e: (-(e.value if e.value is not None else -2.0), e.level))
        ranges = [e.highest - e.lowest for e in levels if e.highest is not None and e.lowest is not None]
        several = any(e.matched > 1 for e in levels)
        found.append(Factor(factor, tuple(levels), max(ranges) if ranges and several else None))
    return tuple(found)


def _level_labels(members: Sequence[_Scored], factor: str, inside: Sequence[str]) -> dict[str, str]:
    """A factor's level for each run: the part's name, and those of its settings that vary under that name."""
    labels = {}
    for s in members:
        main = s.run.params.get(factor)
        same = [other for other in members if other.run.params.get(factor) == main]
        varied = [n for n in inside if n != factor and len({str(other.run.params.get(n)) for other in same}) > 1]
        said = ", ".join(f"{n.partition('.')[2]}={s.run.params.get(n)}" for n in varied)
        labels[s.label] = (f"{main} ({said})" if said else str(main)) if main is not None else said or "none"
    return labels


def _level_effect(
    level: str,
    blocks: Mapping[tuple[str, ...], Mapping[str, list[_Scored]]],
    alpha: float,
    units: Sequence[str | None] | None,
) -> LevelEffect:
    def mean(rows: Iterable[Floats]) -> Floats:
        average: Floats = np.mean(np.stack(list(rows)), axis=0)
        return average

    matched: list[tuple[str, Floats]] = []
    for block in sorted(blocks):
        cells = blocks[block]
        if level in cells and len(cells) > 1:
            here = mean(s.values for s in cells[level])
            rest = mean(mean(s.values for s in cells[other]) for other in sorted(cells) if other != level)
            matched.append((" · ".join(block), here - rest))
    if not matched:
        return LevelEffect(level, None, None, None, 0, 0, None, "", None, "", "no_matched_cells")
    by_block = sorted((round(float(diff.mean()), DECIMALS), where) for where, diff in matched)
    diffs = np.round(mean(diff for _, diff in matched), DECIMALS)
    i = gains_losses(diffs, alpha=alpha, clusters=units)
    (lowest, low_at), (highest, high_at) = by_block[0], by_block[-1]
    return LevelEffect(
        level, float(diffs.mean()), i.low, i.high, len(diffs), len(matched), lowest, low_at, highest, high_at, i.reason
    )


def _slices(members: Mapping[str, _Scored], settings: Settings) -> tuple[Slice, ...]:
    first = next(iter(members.values()))
    found = []
    for tag in slice_tags(first.run.outcomes, replace(first.run.plan, slices=settings.slices)):
        where: dict[str, list[int]] = {
            v: [] for v in sorted({v for o in first.run.outcomes for v in slice_values(o, tag)})
        }
        for i, o in enumerate(first.outcomes):
            for value in slice_values(o, tag):
                where[value].append(i)
        for value, rows in where.items():
            warning = f"only {len(rows)} questions: too few to say anything" if len(rows) < FEW else None
            estimates = {label: s.estimate(settings.alpha, rows, "empty_slice") for label, s in members.items()}
            found.append(Slice(tag, value, len(rows), warning, estimates))
    return tuple(found)


def _conventions(members: Sequence[_Scored]) -> tuple[Convention, ...]:
    """The winner of each naive convention beside the corrected one; one that some run cannot give is left out."""
    reports = {s.label: audit_outcomes(s.run.outcomes, s.metric) for s in members}
    corrected = {label: report.r for label, report in reports.items() if report.r is not None}
    if len(corrected) < len(reports):
        return ()
    best, order = best_of(corrected), _order(corrected)
    found = []
    for first in next(iter(reports.values())).conventions:
        values: dict[str, float] = {}
        sizes = set()
        for label in sorted(reports):
            for c in reports[label].conventions:
                if c.name == first.name and c.reported is not None:
                    values[label] = c.reported
                    sizes.add(c.n)
        if len(values) == len(reports):
            winner = best_of(values)
            n = min(sizes)
            found.append(Convention(first.name, n, max(sizes), values, winner, winner != best, _order(values) != order))
    return tuple(found)


def _order(means: Mapping[str, float]) -> list[str]:
    return sorted(means, key=lambda c: (-round(means[c], DECIMALS), c))


def _changes(a: _Scored, b: _Scored) -> list[Change]:
    """Questions on which two runs differ, largest difference first, then by id."""
    apart = np.round(a.vector - b.vector, DECIMALS)
    rows = sorted(np.flatnonzero(apart).tolist(), key=lambda i: (-abs(apart[i]), a.ids[i]))
    return [Change(a.ids[i], float(a.vector[i]), float(b.vector[i])) for i in rows]


def _disagreement(order: Sequence[_Scored]) -> Disagreement | None:
    for other in order[1:]:
        changes = _changes(order[0], other)
        if changes:
            return Disagreement(order[0].label, other.label, len(changes), tuple(changes[:SHOWN_DISAGREEMENTS]))
    return None


def _failed_by_all(members: Sequence[_Scored]) -> tuple[str, ...]:
    highest = np.max(np.stack([s.vector for s in members]), axis=0)
    return tuple(members[0].ids[i] for i in np.flatnonzero(np.round(highest, DECIMALS) <= 0))


# ------------------------------------------------------------------ sentences


def _figure(estimate: Estimate) -> str:
    if estimate.value is None:
        return f"undefined ({estimate.reason})"
    between = "" if estimate.ci_low is None else f", interval {estimate.ci_low:.3f} to {estimate.ci_high:.3f}"
    return f"{estimate.value:.3f}{between}, n = {estimate.n}"


def _sentence(ranking: Ranking, settings: Settings) -> str:
    best, c = ranking.row(ranking.best), len(ranking.rows)
    figure = f"{ranking.best} has the best {settings.metric} ({_figure(best.estimate)})"
    if c == 1:
        return f"Only one configuration can be compared, so there is nothing to choose: {figure}."
    tied, alpha = len(ranking.best_set), f"α = {settings.alpha:g}"
    if tied == 1:
        text = f"{figure} and can be told apart from each of the other {c - 1} at {alpha}."
    elif tied == c:
        text = f"None of the {c} configurations can be told apart from the best at {alpha}"
    else:
        text = f"{tied} of {c} configurations cannot be told apart from the best at {alpha}"
    if tied > 1:
        by = ranking.recommendation.by
        if ranking.recommendation.name is None:
            text += f" ({ranking.recommendation.reason}). "
        elif by is None:
            text += f"; no cost was recorded, so the best mean is named: {ranking.recommendation.name}. "
        else:
            cost = ranking.row(ranking.recommendation.name).costs[by]
            what, shape = COST_TEXT.get(by, (by.replace("_", " "), "{:.6g}"))
            text += f"; of these {ranking.recommendation.name} is the cheapest ({what} {shape.format(cost)}). "
        text += f"{figure}."
    if ranking.baseline is not None:
        said = [row.versus.verdict for row in ranking.rows if row.versus is not None]
        counts = [
            f"{said.count(v)} {v}" for v in ("better", "worse", "equivalent", "small", "inconclusive") if v in said
        ]
        text += f" Against the baseline {ranking.baseline}: {', '.join(counts)}."
        above = [row.name for row in ranking.rows if row.in_best_set and row.versus and row.versus.verdict == "better"]
        if above and ranking.recommendation.name == ranking.baseline:
            who = above[0] if len(above) == 1 else f"{above[0]} and {len(above) - 1} more"
            text += (
                f" It is the cheapest, yet worse than {who}: against one baseline {c - 1} pairs are tested, for the"
                f" best set all {c * (c - 1) // 2}. Where quality counts more than that cost, take {above[0]}."
            )
    return text


def _overall(
    rankings: Sequence[Ranking], differs: Sequence[str], excluded: Sequence[Excluded], settings: Settings
) -> str:
    if not rankings:
        reasons = ", ".join(sorted({e.reason for e in excluded}))
        return f"No configuration can be ranked on {settings.metric} ({reasons})."
    text = rankings[0].sentence
    if len(rankings) > 1:
        apart = ", ".join(differs)
        text = f"The runs form {len(rankings)} groups that cannot be compared, they differ in {apart}. Largest: {text}"
    if excluded:
        verb = "run is" if len(excluded) == 1 else "runs are"
        text += f" {len(excluded)} {verb} shown but not ranked."
    return text


# ------------------------------------------------------------------ two runs


def compare(
    candidate: RecordedRun,
    baseline: RecordedRun,
    metric: str | None = None,
    *,
    alpha: float | None = None,
    margin: float | None = None,
    resamples: int | None = None,
    seed: int | None = None,
    allow: Sequence[str] = (),
    allow_incomplete: bool = False,
) -> Comparison:
    """Candidate − baseline, question by question, paired by id.

    One comparison, so no adjustment; declare it before you look. With `allow_incomplete` the candidate may have failed
    and missing questions, which count 0; the baseline never, since what counts 0 there flatters the candidate.

    Raises MeasurementError `not_comparable` naming the fields that differ (or `incomplete`, or the questions that are
    eligible in one run only), ConfigError for an unknown metric.
    """
    runs = [candidate, baseline]
    metric = headline(runs) if metric is None else metric
    _check_metric(runs, metric)
    plan = baseline.plan
    alpha = plan.alpha if alpha is None else alpha
    margin = plan.margin if margin is None else margin
    resamples = plan.resamples if resamples is None else resamples
    seed = plan.seed if seed is None else seed
    of_answers = metric in ANSWER_METRICS
    sides = []
    for run in runs:
        if run.ledger.incomplete and not (allow_incomplete and run is candidate):
            lacking = f"{run.ledger.failed} failed and {run.ledger.missing} missing questions"
            raise MeasurementError(
                "not_comparable", ["incomplete"], f"run {run.name!r} ({run.run_id}) has {lacking} and is not compared"
            )
        found = shared_fields(run) if of_answers else run.fingerprints.get(metric)
        if found is None:
            raise MeasurementError("not_comparable", [metric], f"run {run.name!r} has no fingerprint of this metric")
        sides.append({name: None if name in allow else found.get(name) for name in FIELDS})
    if differing(*sides):
        comparable(*sides)
    labels = _labels(runs)
    scored: list[_Scored] = []
    beside = ""
    if of_answers:
        if metric == "correctness" and "grader" in instruments_apart(*runs) and "grader" not in allow:
            raise MeasurementError("not_comparable", ["grader"], "two models, or two prompts, graded the answers")
        scored, beside = _both_answered(runs, labels, metric)
    else:
        for run in runs:
            s = _score(run, labels[run.run_id], metric)
            if isinstance(s, Excluded):
                raise MeasurementError("not_comparable", [s.reason], f"run {run.name!r}: {s.detail}")
            scored.append(s)
        level_guard(_varying(scored), cast("Level", parse_metric(metric).level))
    new, old = scored
    _same_denominator(scored)
    d = paired_difference(
        new.values,
        old.values,
        clusters=new.units,
        alpha=alpha,
        seed=seed,
        resamples=resamples,
        binary=is_rate(metric),
    )
    changes = _changes(new, old)
    said = _verdict(d, d.p, alpha, margin)
    gained = tuple(c for c in changes if c.a > c.b)
    lost = tuple(c for c in changes if c.a < c.b)
    between = "" if d.low is None else f", interval {d.low:+.3f} to {d.high:+.3f}"
    sentence = (
        f"{new.label} against {old.label}: {said} on {metric} ({d.value or 0.0:+.3f}{between}, p = {d.p:.3g}, "
        f"n = {d.n}; {len(gained)} questions gained, {len(lost)} lost, {len(new.ids) - len(changes)} the same)."
    )
    if beside:
        sentence += f" {beside[0].upper()}{beside[1:]}."
    if candidate.ledger.incomplete:
        lacking = f"{candidate.ledger.failed} failed and {candidate.ledger.missing} missing questions"
        sentence += f" {new.label} is incomplete: its {lacking} count 0."
    if said == "inconclusive" and d.mdd is not None and d.mdd > 0:
        sentence += f" The least difference that these questions find with power 0.8 is {d.mdd:.3f}."
    return Comparison(
        metric=metric,
        candidate=new.label,
        baseline=old.label,
        candidate_estimate=new.estimate(alpha),
        baseline_estimate=old.estimate(alpha),
        difference=d,
        verdict=said,
        gained=gained,
        lost=lost,
        alpha=alpha,
        margin=margin,
        seed=seed,
        resamples=resamples,
        sentence=sentence,
        same=len(new.ids) - len(changes),
        beside=beside,
    )
