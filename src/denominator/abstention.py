"""Did the system decline, and should it have? Deciders, the 2×2 matrix, thresholds, risk–coverage, the joint table.

The positive class is *the system abstained*; the truth is *the question is unanswerable*, read from labels. Only
questions in the states `answerable` and `unanswerable` enter the matrix. Undecided answers are never guessed: values
use the decided ones, `n` says how many those are, and bounds say what the others could do. Where a value is undefined
there is None and a reason, where scikit-learn would say 0.0; where it is defined, it is scikit-learn's value.

Layers, from a text to a report: `decide` (one answer), `confusion` (many), `report` (the outcomes of a run);
`cross_fit` and `fixed_threshold` decide from retrieval confidence where no answers are generated.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np

from denominator import phrases
from denominator.errors import ConfigError, InputError, MeasurementError
from denominator.tokens import count as count_tokens
from denominator.types import Answer, Estimate, Floats, Outcome, Plan, Rung
from denominator.uncertainty import estimate_mean, estimate_rate

FOLDS: Final = 5
LEAST_PER_CLASS: Final = 20
LEAST_HAND_LABELS: Final = 50
RUNGS: Final[tuple[Rung, ...]] = get_args(Rung)

# ------------------------------------------------------------------ one answer


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an answer is a refusal (None: undecided), the rung that said so, and a judge's failure in words."""

    abstained: bool | None
    rung: Rung
    note: str = ""


class Judge(Protocol):
    """An NLI model or an LLM asked whether a text declines to answer. It may return None or raise: undecided.

    A judge is an instrument: log its model and prompt hash, and `agreement` with at least 50 hand labels.
    """

    def __call__(self, text: str, *, question: str | None, lang: str) -> bool | None: ...


def _bare(text: str) -> str:
    """The text without white space, punctuation and symbols at its ends (`**NO_ANSWER**.` → `NO_ANSWER`)."""

    def outside(char: str) -> bool:
        return char.isspace() or unicodedata.category(char)[0] in "PS"

    start, end = 0, len(text)
    while start < end and outside(text[start]):
        start += 1
    while end > start and outside(text[end - 1]):
        end -= 1
    return text[start:end]


def _boolean(value: object, name: str) -> bool | None:
    """An explicit boolean or None. Truthiness is refused: the string "False" would be true."""
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise InputError("not a boolean", field=name, found=value, expected="true, false or nothing")


def decide(
    answer: Answer | None,
    lang: str = "en",
    judge: Judge | None = None,
    *,
    question: str | None = None,
    version: str = phrases.VERSION,
) -> Decision:
    """Reads one answer by the ladder; the first rung with an opinion wins (MEASUREMENT.md, section 7).

    error → flag → structured → empty output → sentinel → phrases of `lang` → judge. Errors, empty output and
    nothing at all (None) are undecided, not refusals. `lang` is the language in which the answer is written, by
    default that of the question; only its primary part counts. A refusal phrase with more than 8 tokens of other
    text, and a language without patterns, are undecided unless a judge is there. A hedged answer is an answer.
    `version` is that of the phrases.

    Raises InputError when `flag` or `structured` is something other than a boolean or None.

    >>> decide(Answer(text="I can’t answer this from the documents."))
    Decision(abstained=True, rung='phrase', note='')
    >>> decide(Answer(text="Probably 42, though I am not certain.")).abstained
    False
    >>> decide(Answer(flag=False, text="NO_ANSWER"))
    Decision(abstained=False, rung='flag', note='')
    >>> print(
    ...     decide(Answer(text="The context does not mention it. It was signed in 1815 by all four powers.")).abstained
    ... )
    None
    """
    if answer is None:
        return Decision(None, "error", "no answer came back")
    if answer.error is not None:
        return Decision(None, "error", answer.error)
    flag = _boolean(answer.flag, "flag")
    if flag is not None:
        return Decision(flag, "flag")
    structured = _boolean(answer.structured, "structured")
    if structured is not None:
        return Decision(not structured, "structured")
    text = unicodedata.normalize("NFKC", answer.text or "").replace("\u2019", "'").casefold()
    if not text.strip():
        return Decision(None, "empty_output")
    if _bare(text) == phrases.SENTINEL.casefold():
        return Decision(True, "sentinel")
    patterns = phrases.patterns(lang, version)
    if patterns:
        sentences = phrases.parts(text, lang)
        others = [counted for seen, counted in sentences if not any(p.search(seen) for p in patterns)]
        matched = len(others) < len(sentences)
        if matched and sum(count_tokens(s) for s in others) <= phrases.MAX_REMAINDER_TOKENS:
            return Decision(True, "phrase")
        if not matched and judge is None:
            return Decision(False, "phrase")
    if judge is None:
        return Decision(None, "phrase" if patterns else "no_patterns")
    return _ask(judge, answer.text or "", question, lang)


def _ask(judge: Judge, text: str, question: str | None, lang: str) -> Decision:
    try:
        verdict: object = judge(text, question=question, lang=lang)
    except Exception as problem:  # a judge is foreign code: any failure of it leaves the answer undecided
        return Decision(None, "judge", f"{type(problem).__name__}: {problem}")
    if verdict is None or isinstance(verdict, (bool, np.bool_)):
        return Decision(None if verdict is None else bool(verdict), "judge")
    return Decision(None, "judge", f"the judge returned {verdict!r}, not a boolean")


# ------------------------------------------------------------------ many answers


@dataclass(frozen=True, slots=True)
class Row:
    """One question of the two classes: its label, whether the system abstained (None: undecided), and by which rung."""

    unanswerable: bool
    abstained: bool | None
    rung: Rung | None = None
    id: str = ""
    cluster: str | None = None


Bounds = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class AbstentionReport:
    """The matrix and everything read off it. `recall` is UAR, the share of unanswerable questions refused.

    `false_refusal_rate` is the share of answerable questions refused; neither alone is a score. `n` of a rate is the
    size of its denominator, of F1 and MCC all decided questions. Bounds put every undecided answer where it hurts
    most and least; they are None for a class that is absent. `reason` is set when nothing could be decided at all
    (`too_few_per_class`, `no_confidence`), and then stands beside every value.
    """

    tn: int
    fp: int
    fn: int
    tp: int
    undecided_unanswerable: int
    undecided_answerable: int
    precision: Estimate
    recall: Estimate
    f1: Estimate
    mcc: Estimate
    false_refusal_rate: Estimate
    recall_bounds: Bounds | None
    false_refusal_rate_bounds: Bounds | None
    precision_bounds: Bounds | None
    deciders: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    threshold: Threshold | None = None
    prevalence: float | None = None
    precision_at_prevalence: Estimate | None = None
    partial: Estimate | None = None
    auroc: Estimate | None = None
    risk_coverage: RiskCoverage | None = None
    phrases: str | None = None

    @property
    def matrix(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """((tn, fp), (fn, tp)), scikit-learn's order for labels [False, True]."""
        return (self.tn, self.fp), (self.fn, self.tp)

    @property
    def n(self) -> int:
        """Decided questions: the sum of the matrix."""
        return self.tn + self.fp + self.fn + self.tp

    @property
    def uar(self) -> Estimate:
        """Another name of recall: unanswerable questions refused / unanswerable questions."""
        return self.recall

    @property
    def undecided(self) -> int:
        return self.undecided_unanswerable + self.undecided_answerable

    @property
    def worst_recall(self) -> float | None:
        """The bound on which systems are compared: every undecided unanswerable question taken as answered."""
        return self.recall_bounds[0] if self.recall_bounds else None

    @property
    def worst_false_refusal_rate(self) -> float | None:
        """The bound on which systems are compared: every undecided answerable question taken as refused."""
        return self.false_refusal_rate_bounds[1] if self.false_refusal_rate_bounds else None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; None where there is no value, with its reason inside the estimate."""

        def pair(bounds: Bounds | None) -> list[float | None] | None:
            return None if bounds is None else list(bounds)

        return {
            "matrix": [list(row) for row in self.matrix],
            "tn": self.tn,
            "fp": self.fp,
            "fn": self.fn,
            "tp": self.tp,
            "n": self.n,
            "reason": self.reason,
            "precision": self.precision.as_dict(),
            "recall": self.recall.as_dict(),
            "f1": self.f1.as_dict(),
            "mcc": self.mcc.as_dict(),
            "false_refusal_rate": self.false_refusal_rate.as_dict(),
            "undecided": self.undecided,
            "undecided_unanswerable": self.undecided_unanswerable,
            "undecided_answerable": self.undecided_answerable,
            "bounds": {
                "recall": pair(self.recall_bounds),
                "false_refusal_rate": pair(self.false_refusal_rate_bounds),
                "precision": pair(self.precision_bounds),
            },
            "deciders": dict(self.deciders),
            "phrases": self.phrases,
            "threshold": self.threshold.as_dict() if self.threshold else None,
            "prevalence": self.prevalence,
            "precision_at_prevalence": self.precision_at_prevalence.as_dict() if self.precision_at_prevalence else None,
            "partial_abstained": self.partial.as_dict() if self.partial else None,
            "auroc": self.auroc.as_dict() if self.auroc else None,
            "risk_coverage": self.risk_coverage.as_dict() if self.risk_coverage else None,
        }


def _undefined(reason: str | None, n: int, unit: str = "questions") -> Estimate:
    return Estimate(None, n, reason, unit=unit)


def _clusters(names: Sequence[str | None]) -> Sequence[str | None] | None:
    """The cluster of each question (None: one of its own, whatever others are called), None where there are none."""
    return names if any(name is not None for name in names) else None


def _rate(hits: Sequence[bool], clusters: Sequence[str | None] | None, alpha: float) -> Estimate:
    """A rate with Wilson's interval; with clusters the interval of a mean over them (MEASUREMENT.md, section 8)."""
    if clusters is None:
        return estimate_rate(sum(hits), len(hits), alpha=alpha)
    return estimate_mean(np.asarray(hits, np.float64), clusters=clusters, alpha=alpha, rate=True)


def confusion(
    rows: Iterable[Row],
    *,
    alpha: float = 0.05,
    prevalence: float | None = None,
    threshold: Threshold | None = None,
    partial: Sequence[bool | None] | None = None,
    partial_clusters: Sequence[str | None] | None = None,
    version: str = phrases.VERSION,
) -> AbstentionReport:
    """The 2×2 matrix of *abstained* against *unanswerable*, and what follows from it.

    Definitions: recall = UAR = tp/(tp+fn), false refusal rate = fp/(fp+tn), precision = tp/(tp+fp),
    F1 = 2tp/(2tp+fp+fn), MCC; the last three need both classes. Empty cases: `no_unanswerable`, `no_answerable`,
    `all_undecided` (a class is there, but none of it decided), `no_abstentions`, `all_abstained` (MCC).
    Intervals: Wilson for the three rates, or over clusters when rows have them. `prevalence` π adds
    π·UAR/(π·UAR + (1−π)·FRR), the precision at another share of unanswerable questions. `threshold` is stored beside
    the matrix, and its reason replaces the others when it left everything undecided. `partial` are the decisions on
    partially answerable questions (`partial_clusters` their clusters); they stay outside the matrix and give the share
    of them that was refused.
    `version` of the phrases is reported where a phrase decided something.

    >>> rows = [Row(True, True)] * 3 + [Row(True, False)] + [Row(False, True)] + [Row(False, False)] * 5
    >>> r = confusion(rows)
    >>> r.matrix, r.recall.value, r.precision.value, round(r.false_refusal_rate.value, 4), r.precision.n
    (((5, 1), (1, 3)), 0.75, 0.75, 0.1667, 4)
    >>> confusion([Row(True, True)]).precision.reason
    'no_answerable'
    """
    if prevalence is not None and not 0 <= prevalence <= 1:
        raise ConfigError(f"prevalence is a share between 0 and 1, found {prevalence!r}")
    rows = list(rows)
    truth = np.array([r.unanswerable for r in rows], bool)
    decided = np.array([r.abstained is not None for r in rows], bool)
    abstained = np.array([bool(r.abstained) for r in rows], bool)
    tn, fp, fn, tp = _matrix(truth[decided], abstained[decided])
    u1, u0 = int((truth & ~decided).sum()), int((~truth & ~decided).sum())
    pos, neg, n = tp + fn, fp + tn, tp + fn + fp + tn

    stopped = threshold.reason if threshold and not n and threshold.reason in STOPS else None
    no_pos = None if pos else (stopped or "all_undecided") if u1 else "no_unanswerable"
    no_neg = None if neg else (stopped or "all_undecided") if u0 else "no_answerable"

    clusters = _clusters([r.cluster for r in rows])

    def rate(among: Any, hit: Any) -> Estimate:
        where = np.flatnonzero(among & decided)
        return _rate(hit[where].tolist(), None if clusters is None else [clusters[i] for i in where.tolist()], alpha)

    recall = _undefined(no_pos, 0) if no_pos else rate(truth, abstained)
    refusals = _undefined(no_neg, 0) if no_neg else rate(~truth, abstained)
    one_class = no_pos or no_neg
    precision = f1 = mcc = None
    if not one_class:
        f1_value, mcc_value = _sklearn_scores(truth[decided], abstained[decided])
        f1 = Estimate(f1_value, n)
        precision = rate(abstained, truth) if tp + fp else _undefined("no_abstentions", 0)
        if not tp + fp:
            mcc = _undefined("no_abstentions", n)
        elif not tn + fn:
            mcc = _undefined("all_abstained", n)
        else:
            mcc = Estimate(mcc_value, n)

    deciders: dict[str, int] = {rung: c for rung in RUNGS if (c := sum(r.rung == rung for r in rows))}
    return AbstentionReport(
        tn=tn,
        fp=fp,
        fn=fn,
        tp=tp,
        undecided_unanswerable=u1,
        undecided_answerable=u0,
        precision=precision or _undefined(one_class, tp + fp),
        recall=recall,
        f1=f1 or _undefined(one_class, n),
        mcc=mcc or _undefined(one_class, n),
        false_refusal_rate=refusals,
        recall_bounds=(tp / (pos + u1), (tp + u1) / (pos + u1)) if pos + u1 else None,
        false_refusal_rate_bounds=(fp / (neg + u0), (fp + u0) / (neg + u0)) if neg + u0 else None,
        precision_bounds=(_share(tp, fp + u0), _share(tp + u1, fp)) if pos + u1 and neg + u0 else None,
        deciders=deciders,
        phrases=version if deciders.get("phrase") else None,
        reason=stopped,
        threshold=threshold,
        prevalence=prevalence,
        precision_at_prevalence=None if prevalence is None else _carried(recall, refusals, prevalence, n),
        partial=None if partial is None else _partial(partial, partial_clusters, alpha),
    )


def _matrix(truth: Any, abstained: Any) -> tuple[int, int, int, int]:
    if not truth.size:
        return 0, 0, 0, 0
    from sklearn.metrics import confusion_matrix

    (tn, fp), (fn, tp) = confusion_matrix(truth, abstained, labels=[False, True]).tolist()
    return tn, fp, fn, tp


def _sklearn_scores(truth: Any, abstained: Any) -> tuple[float, float]:
    """F1 and MCC of two classes that are both present; the caller replaces the cells where they are a silent 0."""
    from sklearn.metrics import f1_score, matthews_corrcoef

    f1 = float(f1_score(truth, abstained, labels=[True], pos_label=True, average="binary", zero_division=0.0))
    return f1, float(matthews_corrcoef(truth, abstained))


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None


def _carried(recall: Estimate, refusals: Estimate, prevalence: float, n: int) -> Estimate:
    if recall.value is None or refusals.value is None:
        return _undefined(recall.reason or refusals.reason, n)
    right, wrong = prevalence * recall.value, (1 - prevalence) * refusals.value
    return Estimate(right / (right + wrong), n) if right + wrong else _undefined("no_abstentions", n)


def _partial(decisions: Sequence[bool | None], names: Sequence[str | None] | None, alpha: float) -> Estimate:
    clusters = _clusters(names or ())
    known = [(i, d) for i, d in enumerate(decisions) if d is not None]
    if not known:
        return _undefined("all_undecided" if decisions else "no_partial", 0)
    return _rate([d for _, d in known], clusters and [clusters[i] for i, _ in known], alpha)


# ------------------------------------------------------------------ retrieval confidence

STOPS: Final = frozenset({"too_few_per_class", "no_confidence"})


@dataclass(frozen=True, slots=True)
class Scored:
    """What retrieval said about one question of the two classes.

    `confidence` is the top canonical score or what the ranking part gives instead; None: it gives none.
    `hits=False`: nothing was retrieved, so the system abstains whatever the threshold. `failed`: undecided.
    """

    id: str
    unanswerable: bool
    confidence: float | None = None
    hits: bool = True
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Picked:
    """A fitted threshold. `t` None with reason `never_abstains` stands for −∞: no candidate beats never refusing."""

    t: float | None
    youden: float
    reason: str | None = None


def pick_threshold(
    answerable: Sequence[float] | Floats,
    unanswerable: Sequence[float] | Floats,
    *,
    sizes: tuple[int, int] | None = None,
) -> Picked:
    """The t of *abstain iff confidence < t* with the largest UAR − FRR (Youden's J).

    Candidates are −∞ and the midpoints of consecutive distinct confidences; differences are compared after rounding
    to 12 decimals, and ties take the smallest t. A class without confidences contributes 0. O(n log n).
    `sizes` are those of the classes where some of their questions have no confidence because nothing was retrieved.
    A t that is fitted and reported on the same questions is not a result: see `cross_fit`.

    >>> pick_threshold([0.6, 0.8], [0.2, 0.4])
    Picked(t=0.5, youden=1.0, reason=None)
    >>> pick_threshold([0.5, 0.5], [0.5, 0.5])
    Picked(t=None, youden=0.0, reason='never_abstains')
    """
    a, u = np.sort(np.asarray(answerable, np.float64)), np.sort(np.asarray(unanswerable, np.float64))
    distinct = np.unique(np.concatenate([a, u]))
    if not np.isfinite(distinct).all():
        raise MeasurementError("bad_score", [str(x) for x in distinct[~np.isfinite(distinct)]])
    candidates = np.concatenate([[-np.inf], distinct[:-1] / 2 + distinct[1:] / 2])
    n_answerable, n_unanswerable = sizes or (a.size, u.size)
    gain = np.searchsorted(u, candidates, "left") / max(n_unanswerable, 1)
    gain -= np.searchsorted(a, candidates, "left") / max(n_answerable, 1)
    best = int(np.argmax(np.round(gain, 12)))  # the first maximum is the smallest t
    if best == 0:
        return Picked(None, 0.0, "never_abstains")
    return Picked(float(candidates[best]), float(gain[best]))


@dataclass(frozen=True, slots=True)
class Threshold:
    """How confidence was turned into decisions, and the decisions by question id (None: undecided).

    `kind` says whether t was cross-fitted or fixed in the configuration. `thresholds` has one t a fold (one in all
    when fixed), None meaning that this fold never abstains. `overall` is fitted on all questions of both classes and
    serves only questions outside them (partial ones), for which it is out of sample. `reason`: `too_few_per_class`,
    `no_confidence` (then `without_confidence` names the questions), or `never_abstains` when every fold says so.
    """

    kind: Literal["cross_fitted", "fixed"]
    decisions: Mapping[str, bool | None]
    used: Mapping[str, float | None]
    thresholds: tuple[float | None, ...] = ()
    overall: float | None = None
    reason: str | None = None
    without_confidence: tuple[str, ...] = ()
    n_answerable: int = 0
    n_unanswerable: int = 0

    def outside(self, scored: Scored) -> bool | None:
        """The decision on a question outside both classes."""
        if self.reason in STOPS or scored.failed:
            return None
        if not scored.hits:
            return True
        if scored.confidence is None:
            return None
        return self.overall is not None and scored.confidence < self.overall

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "thresholds": list(self.thresholds),
            "overall": self.overall,
            "reason": self.reason,
            "without_confidence": list(self.without_confidence),
            "n_answerable": self.n_answerable,
            "n_unanswerable": self.n_unanswerable,
        }


def _checked(rows: Iterable[Scored]) -> list[Scored]:
    """Rows by id; duplicate ids and non-finite confidences are errors."""
    ordered = sorted(rows, key=lambda r: r.id)
    twice = sorted({a.id for a, b in pairwise(ordered) if a.id == b.id})
    if twice:
        raise MeasurementError("duplicate_question_ids", twice)
    bad = [r.id for r in ordered if r.confidence is not None and not math.isfinite(r.confidence)]
    if bad:
        raise MeasurementError("bad_score", bad, "a confidence is not a finite number")
    return ordered


def _stopped(kind: Literal["cross_fitted", "fixed"], rows: list[Scored], reason: str, ids: list[str]) -> Threshold:
    positive = sum(r.unanswerable for r in rows)
    return Threshold(
        kind,
        {r.id: None for r in rows},
        {r.id: None for r in rows},
        reason=reason,
        without_confidence=tuple(ids),
        n_answerable=len(rows) - positive,
        n_unanswerable=positive,
    )


def _silent(rows: list[Scored]) -> list[str]:
    return [r.id for r in rows if r.hits and not r.failed and r.confidence is None]


def _apply(row: Scored, t: float | None) -> bool | None:
    if row.failed:
        return None
    if not row.hits:
        return True
    assert row.confidence is not None
    return t is not None and row.confidence < t


def cross_fit(rows: Iterable[Scored], *, folds: int = FOLDS, least: int = LEAST_PER_CLASS) -> Threshold:
    """Decides every question with a threshold fitted on the other folds.

    Within each class questions are sorted by id; fold = position mod `folds`. Each fold's t is `pick_threshold` on the
    others; questions without hits abstain at every t and count in the size of their class, failed ones stay undecided.
    Refused with a reason instead of a value: some question has hits but no confidence (`no_confidence`), a class with
    fewer than `least` questions (`too_few_per_class`).
    Errors: `duplicate_question_ids`, `bad_score`.
    """
    ordered = _checked(rows)
    silent = _silent(ordered)
    if silent:
        return _stopped("cross_fitted", ordered, "no_confidence", silent)
    classes = [[r for r in ordered if r.unanswerable is c] for c in (False, True)]
    if min(map(len, classes)) < least:
        return _stopped("cross_fitted", ordered, "too_few_per_class", [])

    def fit(without: int | None) -> float | None:
        kept = [[r for i, r in enumerate(c) if i % folds != without and not r.failed] for c in classes]
        answerable, unanswerable = ([r.confidence for r in c if r.hits and r.confidence is not None] for c in kept)
        # Questions without hits abstain at every t: they move no candidate, but they are part of their class.
        return pick_threshold(answerable, unanswerable, sizes=(len(kept[0]), len(kept[1]))).t

    thresholds = tuple(fit(fold) for fold in range(folds))
    used = {r.id: thresholds[i % folds] for c in classes for i, r in enumerate(c)}
    return Threshold(
        "cross_fitted",
        {r.id: _apply(r, used[r.id]) for r in ordered},
        {r.id: used[r.id] for r in ordered},
        thresholds,
        fit(None),
        "never_abstains" if all(t is None for t in thresholds) else None,
        (),
        len(classes[0]),
        len(classes[1]),
    )


def fixed_threshold(rows: Iterable[Scored], t: float) -> Threshold:
    """Decides with a t that the configuration declares; marked `fixed`, and never fitted on anything.

    Needs no least number of questions. `no_confidence` as in `cross_fit`.

    >>> scores = {"q1": 0.9, "q2": 0.2, "q3": 0.6, "q4": 0.4}
    >>> rows = [Scored(q, q in {"q2", "q4"}, s) for q, s in scores.items()]
    >>> fixed_threshold(rows, 0.5).decisions
    {'q1': False, 'q2': True, 'q3': False, 'q4': True}
    """
    if isinstance(t, bool) or not isinstance(t, (int, float)) or not math.isfinite(t):
        raise ConfigError(f"a fixed abstention threshold is a finite number, found {t!r}")
    ordered = _checked(rows)
    silent = _silent(ordered)
    if silent:
        return _stopped("fixed", ordered, "no_confidence", silent)
    positive = sum(r.unanswerable for r in ordered)
    return Threshold(
        "fixed",
        {r.id: _apply(r, float(t)) for r in ordered},
        {r.id: float(t) for r in ordered},
        (float(t),),
        float(t),
        n_answerable=len(ordered) - positive,
        n_unanswerable=positive,
    )


def auroc(answerable: Sequence[float] | Floats, unanswerable: Sequence[float] | Floats) -> Estimate:
    """P(confidence of an answerable > of an unanswerable question) + ½ P(tie); n = questions of both classes.

    One class missing: `no_answerable`, `no_unanswerable`. Near .5 the confidence says nothing across questions.

    >>> auroc([0.9, 0.5], [0.5, 0.1]).value
    0.875
    """
    a, u = np.asarray(answerable, np.float64), np.asarray(unanswerable, np.float64)
    n = a.size + u.size
    if not a.size or not u.size:
        return _undefined("no_unanswerable" if a.size else "no_answerable", n)
    from sklearn.metrics import roc_auc_score

    truth = np.concatenate([np.ones(a.size), np.zeros(u.size)])
    return Estimate(float(roc_auc_score(truth, np.concatenate([a, u]))), n)


@dataclass(frozen=True, slots=True, eq=False)
class RiskCoverage:
    """The risk when only the most confident share of the questions is served. `aurc` is the mean of `risk`."""

    coverage: Floats
    risk: Floats
    aurc: Estimate

    def as_dict(self) -> dict[str, Any]:
        return {"aurc": self.aurc.as_dict()}


def risk_coverage(confidence: Sequence[float] | Floats, loss: Sequence[float] | Floats) -> RiskCoverage:
    """Risk–coverage curve: questions by confidence, highest first; risk at i = mean loss of the first i.

    Tied confidences share their mean loss, so the order of the input never matters. AURC = mean of the risks.
    Empty: `no_eligible`. Loss is 1 − recall@K for answerable and 1 for unanswerable questions.
    Source: Geifman and El-Yaniv, 2017.

    >>> risk_coverage([0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1]).risk.tolist()[:2]
    [0.0, 0.5]
    """
    c, x = np.asarray(confidence, np.float64), np.asarray(loss, np.float64)
    if c.shape != x.shape:
        raise ConfigError(f"{c.size} confidences and {x.size} losses")
    if not c.size:
        return RiskCoverage(c, x, _undefined("no_eligible", 0))
    order = np.lexsort((x, -c))
    c, x = c[order], x[order]
    starts = np.flatnonzero(np.r_[True, c[1:] != c[:-1]])
    sizes = np.diff(np.r_[starts, c.size])
    shared = np.repeat(np.add.reduceat(x, starts) / sizes, sizes)
    served = np.arange(1, c.size + 1)
    risk = np.cumsum(shared) / served
    return RiskCoverage(served / c.size, risk, Estimate(float(risk.mean()), c.size))


# ------------------------------------------------------------------ evidence and abstention together


@dataclass(frozen=True, slots=True)
class JointRow:
    """One question of the two classes; `complete`: every evidence group was in the context sent to the generator."""

    id: str
    unanswerable: bool
    complete: bool
    abstained: bool | None
    cluster: str | None = None


JOINT_CELLS: Final[dict[tuple[bool, bool, bool], str]] = {
    (False, True, False): "answered_with_evidence",
    (False, False, False): "answered_without_evidence",
    (False, True, True): "false_refusal",
    (False, False, True): "refused_evidence_missed",
    (True, False, False): "hallucinated_answer",
    (True, False, True): "correct_refusal",
}


@dataclass(frozen=True, slots=True)
class JointTable:
    """Six outcomes and the undecided; they sum to N.

    `corpus` (truth = label) judges the whole system; `context` (truth = evidence not complete in the context) judges
    the generator given what it was handed.
    """

    N: int
    counts: Mapping[str, int]
    hallucinated_answer_rate: Estimate
    unsupported_answer_rate: Estimate
    corpus: AbstentionReport
    context: AbstentionReport

    def as_dict(self) -> dict[str, Any]:
        return {
            "N": self.N,
            "table": dict(self.counts),
            "hallucinated_answer_rate": self.hallucinated_answer_rate.as_dict(),
            "unsupported_answer_rate": self.unsupported_answer_rate.as_dict(),
            "corpus": self.corpus.as_dict(),
            "context": self.context.as_dict(),
        }


def joint(rows: Iterable[JointRow], *, alpha: float = 0.05) -> JointTable:
    """Answerability × evidence in context × abstained.

    `hallucinated_answer_rate` = hallucinated / decided unanswerable (`no_unanswerable`, `all_undecided`);
    `unsupported_answer_rate` = (without evidence + hallucinated) / answered (`no_answers`). Error `conflict`: an
    unanswerable question whose evidence is complete contradicts its label.
    """
    rows = list(rows)
    contradictory = [r.id for r in rows if r.unanswerable and r.complete]
    if contradictory:
        raise MeasurementError("conflict", contradictory, "unanswerable by label, yet its evidence is complete")
    counts = dict.fromkeys([*JOINT_CELLS.values(), "undecided"], 0)
    for r in rows:
        counts["undecided" if r.abstained is None else JOINT_CELLS[r.unanswerable, r.complete, r.abstained]] += 1

    clustered = _clusters([r.cluster for r in rows]) is not None

    def rate(among: list[JointRow], hits: list[bool], reason: str) -> Estimate:
        if not among:
            return _undefined(reason, 0)
        return _rate(hits, [r.cluster for r in among] if clustered else None, alpha)

    decided = [r for r in rows if r.abstained is not None]
    unanswerable = [r for r in decided if r.unanswerable]
    answered = [r for r in decided if not r.abstained]
    return JointTable(
        N=len(rows),
        counts=counts,
        hallucinated_answer_rate=rate(
            unanswerable,
            [not r.abstained for r in unanswerable],
            "all_undecided" if any(r.unanswerable for r in rows) else "no_unanswerable",
        ),
        unsupported_answer_rate=rate(answered, [not r.complete for r in answered], "no_answers"),
        corpus=confusion((Row(r.unanswerable, r.abstained, None, r.id, r.cluster) for r in rows), alpha=alpha),
        context=confusion((Row(not r.complete, r.abstained, None, r.id, r.cluster) for r in rows), alpha=alpha),
    )


# ------------------------------------------------------------------ the instrument itself


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well a decider agrees with hand labels. `matrix` is scikit-learn's: rows hand, columns decider.

    `enough` says whether there are the 50 decided hand labels that numbers by a judge need before they are compared.
    """

    kappa: Estimate
    accuracy: Estimate
    precision: Estimate
    recall: Estimate
    matrix: tuple[tuple[int, int], tuple[int, int]]
    undecided: int

    @property
    def enough(self) -> bool:
        return self.kappa.n >= LEAST_HAND_LABELS

    def as_dict(self) -> dict[str, Any]:
        return {
            "kappa": self.kappa.as_dict(),
            "accuracy": self.accuracy.as_dict(),
            "precision": self.precision.as_dict(),
            "recall": self.recall.as_dict(),
            "matrix": [list(row) for row in self.matrix],
            "undecided": self.undecided,
            "enough": self.enough,
        }


def agreement(
    decided: Sequence[bool | None],
    hand: Sequence[bool],
    *,
    alpha: float = 0.05,
    clusters: Sequence[str | None] | None = None,
) -> Agreement:
    """Cohen's κ of a decider (or of a second reader) against hand labels, with its interval.

    κ = (p_o − p_e)/(1 − p_e) over the decided answers, from scikit-learn. Its interval is Wilson's for p_o, carried
    over with p_e held fixed (Cohen 1960 holds p_e fixed too), so that it stays finite at perfect agreement, where the
    large-sample variance of Fleiss, Cohen and Everitt (1969) is 0. With `clusters` (one name an answer; None: one of
    its own) the intervals are those of means over them, and one cluster alone has none. Undefined: nothing decided
    (`n_zero`), or both sides constant and equal (`constant_values`). `precision` and `recall` are those of the decider
    for refusals.

    >>> a = agreement([True, True, False, False], [True, False, False, False])
    >>> a.kappa.value, a.accuracy.value, a.matrix
    (0.5, 0.75, ((2, 1), (0, 1)))
    """
    if len(decided) != len(hand):
        raise ConfigError(f"{len(decided)} decisions and {len(hand)} hand labels")
    names = _clusters([None] * len(decided) if clusters is None else clusters)
    known = [i for i, d in enumerate(decided) if d is not None]
    truth = np.array([bool(hand[i]) for i in known], bool)
    said = np.array([bool(decided[i]) for i in known], bool)
    tn, fp, fn, tp = _matrix(truth, said)
    n = len(known)

    def rate(among: Any, reason: str) -> Estimate:
        where = np.flatnonzero(among)
        if not where.size:
            return _undefined(reason, 0)
        of = None if names is None else [names[known[i]] for i in where.tolist()]
        return _rate((truth == said)[where].tolist(), of, alpha)

    accuracy = rate(np.ones(n, bool), "n_zero")
    return Agreement(
        kappa=_kappa(truth, said, accuracy),
        accuracy=accuracy,
        precision=rate(said, "no_abstentions"),
        recall=rate(truth, "no_unanswerable"),
        matrix=((tn, fp), (fn, tp)),
        undecided=len(decided) - n,
    )


def _kappa(truth: Any, said: Any, accuracy: Estimate) -> Estimate:
    n = accuracy.n
    if accuracy.value is None:
        return _undefined("n_zero", 0)
    chance = float(truth.mean() * said.mean() + (1 - truth.mean()) * (1 - said.mean()))
    if chance >= 1:
        return _undefined("constant_values", n)
    from sklearn.metrics import cohen_kappa_score

    value = float(cohen_kappa_score(truth, said, labels=[False, True]))
    if accuracy.ci_low is None or accuracy.ci_high is None:  # one cluster
        return Estimate(value, n)
    low, high = ((p - chance) / (1 - chance) for p in (accuracy.ci_low, accuracy.ci_high))
    return Estimate(value, n, ci_low=max(-1.0, low), ci_high=min(1.0, high), ci_method=accuracy.ci_method)


def agreement_facts(found: Mapping[str, Agreement]) -> dict[str, float]:
    """What a run records of them: `<name>_kappa` and `<name>_agreement` (raw), each with `_n`, `_ci_low`, `_ci_high`.

    `_n` is always there; what has no value is absent.
    """
    facts: dict[str, float] = {}
    for name, one in found.items():
        for key, figure in ((f"{name}_kappa", one.kappa), (f"{name}_agreement", one.accuracy)):
            facts[f"{key}_n"] = float(figure.n)
            for end, value in (("", figure.value), ("_ci_low", figure.ci_low), ("_ci_high", figure.ci_high)):
                if value is not None:
                    facts[f"{key}{end}"] = value
    return facts


def recorded_agreement(facts: Mapping[str, float], *, clustered: bool = False) -> dict[str, Estimate]:
    """The estimates of `agreement_facts` by name, whether they have a value or a reason. n: the decided labels.

    >>> recorded_agreement({"judge_kappa_n": 3.0})["judge_kappa"].reason
    'constant_values'
    """
    found = {}
    for name in ("decider", *RUNGS, "grader"):
        for key in (f"{name}_kappa", f"{name}_agreement"):
            if f"{key}_n" not in facts:
                continue
            n, value = int(facts[f"{key}_n"]), facts.get(key)
            low, high = facts.get(f"{key}_ci_low"), facts.get(f"{key}_ci_high")
            # With labels only one thing leaves κ undefined: both sides constant and equal.
            reason = None if value is not None else "constant_values" if n else "n_zero"
            method = None if low is None else "t_plus_two" if clustered else "wilson"
            found[key] = Estimate(value, n, reason, low, high, method)
    return found


# ------------------------------------------------------------------ a run's outcomes


def scored(outcomes: Iterable[Outcome], states: Collection[str] = ("answerable", "unanswerable")) -> tuple[Scored, ...]:
    """What `cross_fit` needs, from outcomes whose state is one of `states`."""
    return tuple(
        Scored(
            o.id,
            o.state == "unanswerable",
            o.confidence,
            hits=o.n_hits > 0,
            failed=o.status in {"failed", "missing"},  # `error` may speak of an answer or a judge
        )
        for o in outcomes
        if o.state in states
    )


def retrieval_decisions(outcomes: Sequence[Outcome], t: float | None = None) -> Threshold:
    """The decisions of a run without answers: by the fixed `t` when one is given, else cross-fitted."""
    rows = scored(outcomes)
    return cross_fit(rows) if t is None else fixed_threshold(rows, t)


def report(
    outcomes: Sequence[Outcome], plan: Plan, *, recall: str | None = None, prevalence: float | None = None
) -> AbstentionReport:
    """The abstention block of a run: a pure function of its outcomes.

    Decisions are those that the outcomes carry (`abstained`, `rung`). Where no outcome has a rung, the run is
    retrieval-only and its threshold block is refitted from the recorded confidences by the plan. With `recall` (a
    metric's name) AUROC and the risk–coverage curve are added, if every question that has hits has a confidence; a
    question without hits ranks below every score.
    """
    rows = [
        Row(o.state == "unanswerable", o.abstained, o.rung, o.id, None if plan.cluster is None else o.cluster)
        for o in outcomes
        if o.state in {"answerable", "unanswerable"}
    ]
    partial = [o for o in outcomes if o.state == "partial"]
    threshold = None
    if rows and all(r.rung is None for r in rows):
        threshold = retrieval_decisions(outcomes, plan.threshold)
        if threshold.reason not in STOPS and all(r.abstained is None for r in rows):
            threshold = None  # nobody asked for decisions, so none are reported
    found = confusion(
        rows,
        alpha=plan.alpha,
        prevalence=prevalence,
        threshold=threshold,
        partial=[o.abstained for o in partial],
        partial_clusters=None if plan.cluster is None else [o.cluster for o in partial],
        version=plan.phrases,
    )
    if recall is None:
        return found
    area, curve = _confidence_quality(outcomes, recall)
    return replace(found, auroc=area, risk_coverage=curve)


def _confidence_quality(outcomes: Sequence[Outcome], recall: str) -> tuple[Estimate, RiskCoverage]:
    """AUROC and risk–coverage of the confidences; failed questions are left out of both.

    A class that is there, but every question of which failed, is `all_undecided`, as in the matrix.
    """
    by_id = {o.id: o for o in outcomes}
    every = _checked(scored(outcomes))
    rows = [r for r in every if not r.failed]
    if every and not rows:  # both classes may be there, but nothing came back for any question of them
        none = _undefined("all_undecided", 0)
        return none, RiskCoverage(np.empty(0), np.empty(0), none)
    if _silent(rows):
        none = _undefined("no_confidence", len(rows))
        return none, RiskCoverage(np.empty(0), np.empty(0), none)
    values = [r.confidence for r in rows if r.hits and r.confidence is not None]
    floor = np.nextafter(min(values, default=0.0), -np.inf)
    confidence = np.array([r.confidence if r.hits and r.confidence is not None else floor for r in rows], np.float64)
    truth = np.array([r.unanswerable for r in rows], bool)
    area = auroc(confidence[~truth], confidence[truth])
    if area.value is None and {r.unanswerable for r in every} == {False, True}:
        area = _undefined("all_undecided", area.n)  # a class is there, but all of it failed
    losses = []
    for r in rows:
        value = 0.0 if r.unanswerable else by_id[r.id].values.get(recall)
        if value is None:
            reason = by_id[r.id].reasons.get(recall, "no_eligible")
            return area, RiskCoverage(np.empty(0), np.empty(0), _undefined(reason, len(rows)))
        losses.append(1.0 - value)
    return area, risk_coverage(confidence, np.array(losses, np.float64))
