"""Rules over a run's figures: passed, failed, or could not be judged. Pure: no file, no clock, no store.

    recall@5 >= 0.7                      a figure; recall@5.ci_low, .ci_high and .n are its interval and its n
    recall@5[lang=de] >= 0.6             the same over the questions with this tag
    token_f1 >= 0.6                      quality of answers, over the questions that were answered
    token_f1 >= baseline                 over the questions that both runs answered
    false_refusal_rate.worst <= 0.1      with every undecided answer taken where it hurts
    eligible_n >= 0.95 * baseline        against the same figure of a baseline run
    recall@5 >= baseline - 0.01
    recall@5 no-regression               paired test against the baseline: fails when it is shown to be worse
    recall@5 non-inferior within 0.02    paired interval: passes only if a loss beyond the margin is ruled out

Figures are compared unrounded; two that differ by less than 1e-12 are equal. What is undefined is never passed.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET  # only writes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from denominator.abstention import recorded_agreement
from denominator.errors import ConfigError, MeasurementError
from denominator.evaluation import Summary, audit_metric, parse_metric, slice_values, summarize
from denominator.quality import METRICS as ANSWER_METRICS
from denominator.quality import answer_estimate, answered_by_both
from denominator.selection import Comparison, compare, instruments_apart, shared_fields
from denominator.types import Estimate, Ledger, RecordedRun

SLACK = 1e-12
FIELDS = ("n", "ci_low", "ci_high", "worst")
OPERATORS = (">=", "<=", "==", ">", "<")
Verdict = Literal["pass", "fail", "undecided"]
Kind = Literal["bound", "no-regression", "non-inferior"]
EXIT = {"pass": 0, "fail": 1, "undecided": 2}

_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?%?"
_RULE = re.compile(
    r"(?P<name>[A-Za-z0-9_@]+(?:\.(?!n\b|ci_low\b|ci_high\b|worst\b)[A-Za-z0-9_@]+)?)"
    r"(?:\[(?P<tag>[^=\]]+)=(?P<value>[^\]]*)\])?"
    r"(?:\.(?P<field>n|ci_low|ci_high|worst))?\s*"
    r"(?:(?P<op>>=|<=|==|>|<)\s*(?P<bound>.+)|(?P<kind>no-regression|non-inferior)(?:\s+within\s+(?P<margin>.+))?)"
)
_BOUND = re.compile(
    rf"(?:(?P<number>[+-]?{_NUMBER})"
    rf"|(?:(?P<factor>{_NUMBER})\s*\*\s*)?baseline(?:\s*(?P<sign>[+-])\s*(?P<offset>{_NUMBER}))?)"
)
SYNONYMS = {
    "uar": "abstention_recall",
    "frr": "false_refusal_rate",
    "n": "eligible_n",
    "eligible": "eligible_n",
    **{f"answer.{name}": name for name in ANSWER_METRICS},
}


# ------------------------------------------------------------------ rules


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a gate. A bound is `factor · baseline + offset`; without a baseline the factor is 0."""

    text: str
    kind: Kind
    name: str
    tag: str | None = None
    value: str | None = None
    field: str | None = None
    op: str = ">="
    factor: float = 0.0
    offset: float = 0.0
    margin: float | None = None

    @property
    def needs_baseline(self) -> bool:
        return self.kind != "bound" or self.factor != 0

    @property
    def figure(self) -> str:
        """The name of the figure as the rule has it."""
        inside = "" if self.tag is None else f"[{self.tag}={self.value}]"
        return f"{self.name}{inside}" + (f".{self.field}" if self.field else "")


def _number(text: str, rule: str) -> float:
    share = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if share else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"rule {rule!r}: {text!r} is not a number")
    return value


def parse_rule(text: str) -> Rule:
    """A rule from its text. Raises ConfigError that shows the rule and how rules look.

    >>> rule = parse_rule("recall@5.ci_low >= 0.6")
    >>> rule.name, rule.field, rule.op, rule.offset
    ('recall@5', 'ci_low', '>=', 0.6)
    >>> parse_rule("eligible_n >= 0.95 * baseline").factor
    0.95
    """
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"rule {text!r} cannot be read; rules look like 'recall@5 >= 0.7', 'recall@5.ci_low >= 0.6', "
            "'recall@5.n >= 0.95 * baseline', 'recall@5 no-regression' or 'recall@5 non-inferior within 0.02'"
        )
    name = SYNONYMS.get(match["name"].lower(), match["name"])
    tag = None if match["tag"] is None else match["tag"].strip()
    value = None if match["value"] is None else match["value"].strip()
    if match["kind"]:
        if match["field"] or tag:
            raise ConfigError(
                f"rule {text!r}: {match['kind']} is about a metric as a whole, without a field or a slice"
            )
        margin = None if match["margin"] is None else _number(match["margin"].strip(), text)
        if margin is not None and not 0 < margin < 1:
            raise ConfigError(f"rule {text!r}: the margin is {margin:g}; it lies between 0 and 1")
        kind: Kind = "no-regression" if match["kind"] == "no-regression" else "non-inferior"
        return Rule(text.strip(), kind, name, margin=margin)
    bound = _BOUND.fullmatch(match["bound"].strip())
    if bound is None:
        raise ConfigError(
            f"rule {text!r}: {match['bound'].strip()!r} is not a bound; expected a number, 'baseline', "
            "'baseline - 0.02' or '0.95 * baseline'"
        )
    factor, offset = 0.0, 0.0
    if bound["number"] is not None:
        offset = _number(bound["number"], text)
    else:
        factor = 1.0 if bound["factor"] is None else _number(bound["factor"], text)
        offset = 0.0 if bound["offset"] is None else _number(bound["sign"] + bound["offset"], text)
    return Rule(text.strip(), "bound", name, tag, value, match["field"], match["op"], factor, offset)


# ------------------------------------------------------------------ what can be named


@dataclass(frozen=True)
class Measured:
    """A run with its summary: every figure that a rule can name."""

    run: RecordedRun
    summary: Summary
    alpha_of_facts: float | None = None
    """The α of the intervals among the run's facts, where it is not the plan's: they cannot be made anew."""

    @cached_property
    def figures(self) -> Mapping[str, Estimate]:
        """Name → estimate. Counts have no interval, facts (unit `facts`) neither that nor an n."""
        facts = {name: Estimate(float(value), 0, unit="facts") for name, value in self.run.facts.items()}
        return {**_figures(self.summary), **facts, **self.agreement}

    @cached_property
    def agreement(self) -> Mapping[str, Estimate]:
        """κ and raw agreement with labels by hand, from the facts; n is the number of decided labels."""
        found = recorded_agreement(self.run.facts, clustered=self.run.plan.cluster is not None)
        if self.alpha_of_facts is None:
            return found
        return {name: replace(e, ci_low=None, ci_high=None, ci_method=None) for name, e in found.items()}

    @cached_property
    def worst(self) -> Mapping[str, float | None]:
        """The bounds that take every undecided answer where it hurts."""
        block = self.summary.abstention
        precision = block.precision_bounds
        return {
            "abstention_recall": block.worst_recall,
            "false_refusal_rate": block.worst_false_refusal_rate,
            "abstention_precision": precision[0] if precision else None,
        }

    def at(self, alpha: float) -> Measured:
        """The same run with its intervals at another α; no value changes."""
        if alpha == self.run.plan.alpha:
            return self
        plan = replace(self.run.plan, alpha=alpha)
        varies = self.summary.headline != audit_metric(plan)
        found = summarize(self.run.outcomes, plan, label_source=self.summary.ledger.label_source, chunker_varies=varies)
        of_facts = self.run.plan.alpha if self.alpha_of_facts is None else self.alpha_of_facts
        return Measured(replace(self.run, plan=plan), found, None if of_facts == alpha else of_facts)

    def of_slice(self, tag: str, value: str) -> Measured:
        """The same run over the questions with this tag; nothing in it is `empty_slice`."""
        plan = replace(self.run.plan, slices=())
        rows = [o for o in self.run.outcomes if value in slice_values(o, tag)]
        found = summarize(rows, plan, label_source=self.run.ledger.label_source)
        return Measured(replace(self.run, outcomes=rows, plan=plan, facts={}, ledger=found.ledger), found)

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(sorted({tag for o in self.run.outcomes for tag in o.tags}))


def _figures(summary: Summary) -> dict[str, Estimate]:
    block, ledger = summary.abstention, summary.ledger
    found: dict[str, Estimate] = dict(summary.metrics)
    found |= {f"partial.{name}": estimate for name, estimate in summary.partial.items()}
    found |= {
        "abstention_recall": block.recall,
        "abstention_precision": block.precision,
        "abstention_f1": block.f1,
        "abstention_mcc": block.mcc,
        "false_refusal_rate": block.false_refusal_rate,
    }
    if block.auroc is not None:
        found["abstention_auroc"] = block.auroc
    for name in ("hallucinated_answer_rate", "unsupported_answer_rate"):
        found[name] = (
            Estimate(None, 0, summary.joint_reason or "no_answers")
            if summary.joint is None
            else getattr(summary.joint, name)
        )
    answers = summary.answer_quality
    given = 0 if answers is None else answers.counts["answered"]
    found |= {name: Estimate(None, 0, "no_eligible" if given else "no_answers") for name in ANSWER_METRICS}
    found |= {} if answers is None else answers.metrics
    counts = {
        "answered": given,
        "eligible_n": ledger.eligible,
        "questions": ledger.N,
        "failed": ledger.failed,
        "missing": ledger.missing,
        "undecided": block.undecided,
    }
    return found | {name: Estimate(float(count), ledger.N) for name, count in counts.items()}


# ------------------------------------------------------------------ judging


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one rule: the figure and the bound it was held against, unrounded, and a sentence."""

    rule: Rule
    verdict: Verdict
    found: float | None
    bound: float | None
    n: int | None
    message: str
    comparison: Comparison | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule.text,
            "figure": self.rule.figure,
            "verdict": self.verdict,
            "found": self.found,
            "op": self.rule.op if self.rule.kind == "bound" else self.rule.kind,
            "bound": self.bound,
            "n": self.n,
            "message": self.message,
            "comparison": None if self.comparison is None else self.comparison.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Gate:
    """All results. A failed rule decides (exit 1); else one that could not be judged does (exit 2).

    `alpha` is two-sided: intervals hold 1 − α. `failed` and `missing` are questions of the run, and `allow_incomplete`
    says whether it was judged in spite of them.
    """

    run: str
    baseline: str | None
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()
    alpha: float = 0.05
    failed: int = 0
    missing: int = 0
    allow_incomplete: bool = False

    @property
    def verdict(self) -> Verdict:
        said = {r.verdict for r in self.results}
        return "fail" if "fail" in said else "undecided" if "undecided" in said or not said else "pass"

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    def count(self, verdict: Verdict) -> int:
        return sum(r.verdict == verdict for r in self.results)

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "run": self.run,
            "baseline": self.baseline,
            "alpha": self.alpha,
            "failed": self.failed,
            "missing": self.missing,
            "allow_incomplete": self.allow_incomplete,
            "results": [r.as_dict() for r in self.results],
            "notes": list(self.notes),
        }


def _holds(found: float, op: str, bound: float) -> bool:
    equal = abs(found - bound) <= SLACK
    return {
        ">=": equal or found > bound,
        "<=": equal or found < bound,
        "==": equal,
        ">": not equal and found > bound,
        "<": not equal and found < bound,
    }[op]


def digits_apart(a: float, b: float, least: int = 4, most: int = 15) -> tuple[str, str]:
    """Two numbers with as many decimals as it takes to see that they differ; counts without needless zeros.

    >>> digits_apart(0.79666, 0.7967)
    ('0.79666', '0.79670')
    >>> digits_apart(154.0, 146.3)
    ('154', '146.3')
    """
    digits = least
    if abs(a - b) > SLACK:
        while digits < most and f"{a:.{digits}f}" == f"{b:.{digits}f}":
            digits += 1
    one, two = f"{a:.{digits}f}", f"{b:.{digits}f}"
    if one == two and abs(a - b) > SLACK:
        return repr(a), repr(b)
    if max(abs(a), abs(b)) >= 2 or (a == int(a) and b == int(b)):
        return _trimmed(one), _trimmed(two)
    return one, two


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def judge(
    rules: Sequence[Rule],
    run: Measured,
    baseline: Measured | None = None,
    *,
    alpha: float | None = None,
    margin: float | None = None,
    allow: Sequence[str] = (),
    allow_incomplete: bool = False,
    notes: Sequence[str] = (),
) -> Gate:
    """Holds every rule against the run. An incomplete run passes nothing unless `allow_incomplete` says so.

    `alpha` is that of the intervals and of the paired rules; without it the run's own, and the baseline's for paired
    rules. An incomplete baseline is never allowed: questions that count 0 there would lower the bar.

    Raises ConfigError: no rules, a name that the run does not have, a rule that needs a baseline without one.
    """
    if not rules:
        raise ConfigError(
            "there is no rule; a gate without rules would pass everything (for example 'recall@5 >= 0.7')"
        )
    for rule in rules:
        _check_names(rule, run)
        if rule.needs_baseline and baseline is None:
            raise ConfigError(f"rule {rule.text!r} needs a baseline run (--baseline-run)")
    said = list(notes)
    if alpha is not None:
        run, baseline = run.at(alpha), None if baseline is None else baseline.at(alpha)
    elif baseline is not None and baseline.run.plan.alpha != run.run.plan.alpha:
        said.append(f"paired rules use the α that the baseline declared, {baseline.run.plan.alpha:g}")
    results = tuple(
        _judged(rule, run, baseline, margin=margin, allow=allow, allow_incomplete=allow_incomplete) for rule in rules
    )
    ledger = run.summary.ledger
    if ledger.incomplete:
        allowed = "; judged all the same (--allow-incomplete), each counts 0" if allow_incomplete else ""
        said.append(f"the run is incomplete: {_lacking(ledger)}{allowed}")
    return Gate(
        run.run.name,
        None if baseline is None else baseline.run.name,
        results,
        tuple(said),
        run.run.plan.alpha,
        ledger.failed,
        ledger.missing,
        allow_incomplete,
    )


def _lacking(ledger: Ledger) -> str:
    """`2 questions failed and 1 is missing`."""
    return (
        f"{ledger.failed} question{'' if ledger.failed == 1 else 's'} failed and {ledger.missing} "
        f"{'is' if ledger.missing == 1 else 'are'} missing"
    )


def _check_names(rule: Rule, run: Measured) -> None:
    from denominator.config import listed, nearest

    known = list(run.figures)
    if rule.name not in run.figures:
        raise ConfigError(
            f"rule {rule.text!r}: this run has no figure {rule.name!r}{nearest(rule.name, [*known, *SYNONYMS])} "
            f"(it has: {listed(known)})"
        )
    if rule.field == "worst" and rule.name not in run.worst:
        raise ConfigError(f"rule {rule.text!r}: only {listed(run.worst)} have a bound for undecided answers (.worst)")
    if rule.field is not None and run.figures[rule.name].unit == "facts":
        raise ConfigError(f"rule {rule.text!r}: {rule.name} is a fact of the run, without n and without an interval")
    if rule.tag is not None and rule.tag not in run.tags:
        raise ConfigError(
            f"rule {rule.text!r}: no question has the tag {rule.tag!r}{nearest(rule.tag, run.tags)} "
            f"(there are: {listed(run.tags)})"
        )
    pairs = [*run.summary.metrics, *ANSWER_METRICS]
    if rule.kind != "bound" and rule.name not in pairs:
        raise ConfigError(
            f"rule {rule.text!r}: {rule.kind} pairs questions, so it needs a retrieval metric or one of answers"
            f"{nearest(rule.name, pairs)} (there are: {listed(pairs)})"
        )


def _judged(
    rule: Rule,
    run: Measured,
    baseline: Measured | None,
    *,
    margin: float | None,
    allow: Sequence[str],
    allow_incomplete: bool,
) -> Result:
    ledger = run.summary.ledger
    partly = ledger.incomplete and rule.name not in _COUNTS
    if partly and not allow_incomplete and rule.kind != "bound":
        # Whether the loss is a worse ranking or a time-out cannot be told, so a paired rule does not even fail.
        text = f"the run is incomplete: {_lacking(ledger)} (--allow-incomplete counts each as 0)"
        return Result(rule, "undecided", None, None, None, text)
    result = _bound(rule, run, baseline, allow) if rule.kind == "bound" else _paired(rule, run, baseline, margin, allow)
    if not partly or result.verdict == "undecided":
        return result
    if allow_incomplete:
        return replace(result, message=f"{result.message} (incomplete: {_lacking(ledger)})")
    if result.verdict == "pass":
        why = f"the run is incomplete: {_lacking(ledger)}"
        return replace(result, verdict="undecided", message=f"{why} (as it stands: {result.message})")
    return result


_COUNTS = ("answered", "eligible_n", "questions", "failed", "missing", "undecided")
_READ = {"abstention_recall", "abstention_precision", "abstention_f1", "abstention_mcc", "false_refusal_rate"} | {
    "hallucinated_answer_rate",
    "unsupported_answer_rate",
    "partial.refused",
}
"""Figures that depend on what told refusals from answers."""


def _figure(rule: Rule, of: Measured) -> tuple[float | None, int, str | None]:
    """The figure that the rule names, its n, and why there is none."""
    if rule.tag is not None:
        of = of.of_slice(rule.tag, rule.value or "")
    e = of.figures.get(rule.name)
    if e is None:
        return None, 0, "not_measured"
    empty = rule.tag is not None and not of.run.outcomes
    reason = "empty_slice" if empty else e.reason
    if rule.field == "n":
        return float(e.n), e.n, None
    if e.value is None:
        return None, e.n, reason or "not_recorded"
    if rule.field is None:
        return e.value, e.n, None
    value = of.worst[rule.name] if rule.field == "worst" else getattr(e, rule.field)
    if value is None and of.alpha_of_facts is not None and rule.name in of.agreement:
        return None, e.n, f"no {rule.field} at α = {of.run.plan.alpha:g}, it was recorded at {of.alpha_of_facts:g}"
    return value, e.n, None if value is not None else f"no {rule.field} at n = {e.n}"


def _bound(rule: Rule, run: Measured, baseline: Measured | None, allow: Sequence[str]) -> Result:
    found, n, reason = _figure(rule, run)
    fact = run.figures[rule.name].unit == "facts"
    if found is None:
        text = f"{rule.figure} is undefined: {reason} (n = {n})"
        if reason == "empty_slice":
            there = sorted({value for o in run.run.outcomes for value in slice_values(o, rule.tag or "")})
            text += f"; values of {rule.tag} are: {', '.join(there)}"
        return Result(rule, "undecided", None, None, n, text)
    bound, beside = rule.offset, ""
    if rule.factor:
        assert baseline is not None
        old, old_n, why = _figure(rule, baseline)
        if old is None:
            text = f"{rule.figure} of the baseline is undefined: {why} (n = {old_n})"
            return Result(rule, "undecided", found, None, n, text)
        apart = _apart(rule, run, baseline, allow)
        if apart is None:
            return Result(rule, "undecided", found, None, n, _incomplete_baseline(baseline))
        if apart:
            text = f"{rule.figure} is not comparable with the baseline's: {', '.join(apart)} differ"
            return Result(rule, "undecided", found, None, n, text)
        over = ""
        if rule.name in ANSWER_METRICS and rule.field != "n":
            pair = _over_both(rule, run, baseline)
            found, old = (e.value if rule.field is None else getattr(e, rule.field) for e in pair)
            n = pair[0].n
            over = ", both over what both answered"
            if found is None or old is None:
                why = f"no {rule.field} over what both answered" if n else "no question was answered by both"
                return Result(rule, "undecided", None, None, n, f"{rule.figure}: {why} (n = {n})")
        bound = rule.factor * old + rule.offset
        beside = f" (baseline {old:.6g}{over})"
    good = _holds(found, rule.op, bound)
    one, two = digits_apart(found, bound)
    of = "" if rule.field == "n" or rule.name in _COUNTS or fact else f", n = {n}"
    if good:
        text = f"{one} {rule.op} {two}{beside}{of}"
    else:
        off = digits_apart(abs(found - bound), 0.0)[0]
        by = f", off by {off}" if abs(found - bound) > SLACK else ""
        text = f"{one} is not {rule.op} {two}{beside}{by}{of}"
    return Result(rule, "pass" if good else "fail", found, bound, None if fact else n, text)


def _over_both(rule: Rule, run: Measured, baseline: Measured) -> tuple[Estimate, Estimate]:
    """A metric of answers over the questions that both runs answered, so that refusing what is hard wins nothing."""
    rows = (
        [o for o in m.run.outcomes if rule.tag is None or rule.value in slice_values(o, rule.tag)]
        for m in (run, baseline)
    )
    mine, theirs = answered_by_both(rule.name, *rows)
    return (
        answer_estimate(rule.name, mine, run.run.plan, "no_answers"),
        answer_estimate(rule.name, theirs, baseline.run.plan, "no_answers"),
    )


def _incomplete_baseline(baseline: Measured) -> str:
    return (
        f"the baseline is incomplete: {_lacking(baseline.summary.ledger)}; what counts 0 there would lower the bar, "
        "so it has to be run again"
    )


def _apart(rule: Rule, run: Measured, baseline: Measured, allow: Sequence[str]) -> list[str] | None:
    """Fingerprint fields that keep a figure from being compared; None: the baseline is incomplete.

    Counts may always be compared: they are what has changed.
    """
    if rule.field == "n" or rule.name in _COUNTS or rule.name in run.run.facts or rule.name in run.agreement:
        return []
    mine, theirs = (shared_fields(m.run) for m in (run, baseline))
    fields = [*mine]
    if rule.name in run.run.fingerprints:
        fields.append("tokenizer")
        mine, theirs = (dict(m.run.fingerprints.get(rule.name, {})) for m in (run, baseline))
    readers = ("phrases", "judge") if rule.name in _READ else ("grader",) if rule.name == "correctness" else ()
    apart = [f for f in fields if mine.get(f) != theirs.get(f)]
    apart += [name for name in instruments_apart(run.run, baseline.run) if name in readers]
    apart = [name for name in apart if name not in allow]
    return None if baseline.summary.ledger.incomplete and not apart else apart


def _paired(rule: Rule, run: Measured, baseline: Measured | None, margin: float | None, allow: Sequence[str]) -> Result:
    assert baseline is not None
    within = rule.margin if rule.margin is not None else margin
    if baseline.summary.ledger.incomplete:
        return Result(rule, "undecided", None, None, None, _incomplete_baseline(baseline))
    try:
        # An incomplete run comes here only where it is allowed.
        c = compare(run.run, baseline.run, rule.name, margin=within, allow=allow, allow_incomplete=True)
    except MeasurementError as error:
        return Result(rule, "undecided", None, None, None, str(error))
    d = c.difference
    if rule.kind == "no-regression":
        said: Verdict = "fail" if c.verdict == "worse" else "pass"
        return Result(rule, "undecided" if d.value is None else said, d.value, None, d.n, c.sentence, c)
    if d.low is None or d.value is None:
        text = f"no interval of the difference: {d.reason} (n = {d.n})"
        return Result(rule, "undecided", d.value, -c.margin, d.n, text, c)
    good = d.low > -c.margin and abs(d.low + c.margin) > SLACK
    low, least = digits_apart(d.low, -c.margin)
    between = f"difference {d.value:+.4f}, the interval begins at {low}"
    text = (
        f"{between}, above {least} (n = {d.n})"
        if good
        else f"{between}, not above {least}: a loss beyond the margin is not ruled out (n = {d.n})"
    )
    return Result(rule, "pass" if good else "fail", d.low, -c.margin, d.n, text, c)


# ------------------------------------------------------------------ as text, JUnit, Markdown

WORDS = {"pass": "pass", "fail": "FAIL", "undecided": "CANNOT JUDGE"}


def sentence(gate: Gate) -> str:
    """One line that says it all."""
    total = len(gate.results)
    parts = [f"{gate.count('pass')} of {total} rules passed"]
    if gate.count("fail"):
        parts.append(f"{gate.count('fail')} failed")
    if gate.count("undecided"):
        parts.append(f"{gate.count('undecided')} could not be judged")
    return f"{WORDS[gate.verdict]}: {', '.join(parts)}"


def as_text(gate: Gate) -> str:
    """The table for a terminal; nothing is cut."""
    rows = [(WORDS[r.verdict], r.rule.text, r.message) for r in gate.results]
    wide = [max(len(row[i]) for row in rows) for i in (0, 1)]
    against = "" if gate.baseline is None else f", baseline {gate.baseline}"
    lines = [f"gate of {gate.run}{against}, α = {gate.alpha:g}", ""]
    lines += [f"  {a.ljust(wide[0])}  {b.ljust(wide[1])}  {c}".rstrip() for a, b, c in rows]
    lines += ["", *(f"note: {note}" for note in gate.notes), sentence(gate)]
    return "\n".join(lines) + "\n"


_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    """Characters that XML 1.0 cannot carry in any form become a replacement mark."""
    return _NOT_XML.sub("\ufffd", text)


def as_junit(gate: Gate) -> str:
    """JUnit XML: one case a rule; a rule that could not be judged is an `error`, a failed one a `failure`."""
    suites = ET.Element("testsuites")
    counts = {
        "tests": str(len(gate.results)),
        "failures": str(gate.count("fail")),
        "errors": str(gate.count("undecided")),
        "skipped": "0",
    }
    suite = ET.SubElement(suites, "testsuite", {"name": "denominator gate", **counts})
    facts = {"alpha": f"{gate.alpha:g}", "failed": str(gate.failed), "missing": str(gate.missing)}
    facts["allow_incomplete"] = str(gate.allow_incomplete).lower()
    properties = ET.SubElement(suite, "properties")
    for name, value in facts.items():
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for result in gate.results:
        case = ET.SubElement(
            suite, "testcase", {"classname": _xml(gate.run), "name": _xml(result.rule.text), "time": "0"}
        )
        if result.verdict == "pass":
            ET.SubElement(case, "system-out").text = _xml(result.message)
        else:
            kind = "failure" if result.verdict == "fail" else "error"
            inside = {"message": _xml(result.message), "type": "gate" if kind == "failure" else "could_not_judge"}
            ET.SubElement(case, kind, inside).text = _xml(result.message)
    ET.indent(suites, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


_MARKUP = {ord(char): f"&#{ord(char)};" for char in "&\\`*_[]<>|#@~"}


def _md(text: str) -> str:
    return " ".join(text.split()).translate(_MARKUP)


def as_markdown(gate: Gate) -> str:
    """A section for a job summary or a comment on a pull request; no text of the data becomes markup."""
    marks = {"pass": "✅", "fail": "❌", "undecided": "⚠️"}
    against = "" if gate.baseline is None else f" against {_md(gate.baseline)}"
    lines = [f"### {marks[gate.verdict]} denominator gate: {_md(gate.run)}{against}", ""]
    lines += [f"{_md(sentence(gate))} (α = {gate.alpha:g})", "", "| | rule | what was found |", "| --- | --- | --- |"]
    lines += [f"| {marks[r.verdict]} | {_md(r.rule.text)} | {_md(r.message)} |" for r in gate.results]
    lines += ["", *(f"- {_md(note)}" for note in gate.notes)]
    return "\n".join(lines).rstrip() + "\n"


# ------------------------------------------------------------------ rules from a file


def rules_from_data(data: Any, where: str) -> tuple[list[Rule], dict[str, Any]]:
    """Rules and settings from parsed YAML: a list of rules, or a mapping with `rules` and other settings.

    Settings are `run`, `baseline_run`, `alpha`, `margin`, `allow`, `allow_incomplete`. Raises ConfigError with the
    entry.
    """
    from denominator.config import listed, nearest

    kinds: dict[str, tuple[type, ...]] = {
        "rules": (list,),
        "run": (str,),
        "baseline_run": (str,),
        "alpha": (int, float),
        "margin": (int, float),
        "allow": (list,),
        "allow_incomplete": (bool,),
    }
    if isinstance(data, list):
        data = {"rules": data}
    if not isinstance(data, Mapping) or "rules" not in data:
        raise ConfigError(f"{where}: expected a list of rules, or a mapping with the key 'rules'")
    for key, value in data.items():
        if key not in kinds:
            raise ConfigError(
                f"{where}: there is no setting {key!r}{nearest(str(key), kinds)} (there are: {listed(kinds)})"
            )
        wrong_bool = isinstance(value, bool) and bool not in kinds[key]
        if not isinstance(value, kinds[key]) or wrong_bool:
            raise ConfigError(f"{where}: {key} is {value!r}, expected {' or '.join(t.__name__ for t in kinds[key])}")
    for i, item in enumerate(data["rules"], 1):
        if not isinstance(item, str):
            raise ConfigError(f"{where}: rule {i} is {item!r}, expected a text such as 'recall@5 >= 0.7' (quote it)")
    allow = data.get("allow", [])
    if not all(isinstance(name, str) for name in allow):
        raise ConfigError(f"{where}: allow is {allow!r}, expected names of fields")
    return [parse_rule(item) for item in data["rules"]], {k: v for k, v in data.items() if k != "rules"}


def cuts(rules: Iterable[Rule]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The K and the token budgets that rules speak of, ascending: what has to be measured for them."""
    ks: set[int] = set()
    budgets: set[int] = set()
    for rule in rules:
        if "@" not in rule.name:
            continue
        try:
            metric = parse_metric(rule.name.removeprefix("partial."))
        except ConfigError:
            continue
        if metric.k is not None and metric.family != "map":
            (budgets if metric.level == "L5" else ks).add(metric.k)
    return tuple(sorted(ks)), tuple(sorted(budgets))
