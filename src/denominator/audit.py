"""What other conventions would have reported, how far off that is, and the way back from a published number.

Never a headline: one corrected value, several uncorrected ones, and the reason for each difference. Which tool does
what was found by running it or by reading its source (docs/measurement.md, section 10).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from denominator.errors import ConfigError, InputError
from denominator.types import Floats, Outcome, State, Status

SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Tool:
    """A published tool with a convention; `how` says whether it was run or its source or documentation was read."""

    name: str
    note: str = ""
    how: Literal["run", "read"] = "run"

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "note": self.note, "how": self.how}


TOOLS: Final[dict[str, tuple[Tool, ...]]] = {
    "empty_is_one": (
        Tool("hand-written helpers", "also token F1 and faithfulness that give 1.0 to empty text", "read"),
    ),
    "empty_is_zero": (
        Tool("ir_measures 0.4.3"),
        Tool("ranx 0.3.21", "id mismatch is an error unless make_comparable=True, which then adds 0"),
        Tool("torchmetrics RetrievalRecall", "empty_target_action, default 0; `skip` with nothing left is 0.0", "read"),
        Tool("Haystack DocumentRecallEvaluator", "with a warning", "read"),
        Tool("scikit-learn 1.9.1 ndcg_score"),
        Tool("pytrec_eval-terrier 0.5.11 (trec_eval)", "only topics that have grade-0 judgments and nothing else"),
    ),
    "empty_is_one_if_nothing_retrieved": (
        Tool("mlflow 3.17.2 recall_at_k, ndcg_at_k", "0 otherwise: rewards returning nothing"),
    ),
    "empty_is_skipped": (
        Tool("pytrec_eval-terrier 0.5.11 (trec_eval)", "a topic without judgments is dropped: right by luck"),
        Tool("torchmetrics RetrievalRecall", "with empty_target_action='skip'", "read"),
        Tool("hand-written helpers that return None", "answerability is still inferred from the list", "read"),
    ),
    "missing_label_is_miss": (
        Tool("hand-written helpers", "an unanswerable flag is skipped, all else scored", "read"),
    ),
    "absent_from_run_is_skipped": (
        Tool("pytrec_eval-terrier 0.5.11 (trec_eval)", "a failed question raises the mean"),
    ),
    "raises": (
        Tool("LlamaIndex Recall", "ValueError; also when nothing was retrieved, a legitimate 0", "read"),
        Tool("chunking_evaluation", "ZeroDivisionError"),
    ),
}
"""Who scores a question with an empty gold list how; keys are the names of conventions."""


@dataclass(frozen=True, slots=True)
class Convention:
    """What one convention reports for the same run.

    `value_for_empty` is what a question with an empty gold list scores, None when it is left out (or when that
    depends on what was retrieved). `reported` over `n` questions; `inflation` = reported − corrected. `reason` stands
    beside the first of them that is None.
    """

    name: str
    value_for_empty: float | None
    reported: float | None
    n: int
    inflation: float | None
    reason: str | None = None
    tools: tuple[Tool, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in self.__slots__}
        return shown | {"tools": [tool.as_dict() for tool in self.tools]}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The corrected value `r` over `n` eligible questions beside what others would have said.

    `seen` questions in all, `empty` of them without gold, `u` = empty/seen, `drop` the mean over those with gold.
    inflation = naive_one − r = `from_empty` u·(1−drop) + `from_labels` (drop − r), exactly. `reason` stands for every
    None: `no_eligible`, or why the metric itself is undefined.
    """

    r: float | None
    n: int
    seen: int
    empty: int
    u: float | None
    naive_one: float | None
    naive_zero: float | None
    drop: float | None
    inflation: float | None
    from_empty: float | None
    from_labels: float | None
    conventions: tuple[Convention, ...] = ()
    reason: str | None = None
    metric: str = "recall"

    def as_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in self.__slots__}
        return shown | {
            "conventions": [convention.as_dict() for convention in self.conventions],
            "refused_by": [tool.as_dict() for tool in TOOLS["raises"]],
        }


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What the audit needs of one question: its state, whether its gold list has anything, its value (failed = 0).

    `status` `failed` and `missing` are questions that a run file does not mention. `retrieved`: how many hits came
    back, None when unknown.
    """

    state: State
    has_gold: bool
    value: float = 0.0
    status: Status = "ok"
    retrieved: int | None = None
    undefined: bool = False


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def audit(recalls: Sequence[float] | Floats, empty: int) -> AuditReport:
    """The audit of a clean dataset: recalls of the eligible questions, and how many others have no gold.

    Nothing seen at all: everything None, `no_eligible`. Only empty lists: r and inflation None, while the 1.0
    convention says 1. Raises ConfigError when `empty` is not a count.

    >>> a = audit([1, 1, 0.5, 1, 0, 0.5, 1], empty=1)
    >>> round(a.r, 3), a.n, a.naive_one, a.naive_zero, round(a.inflation, 4)
    (0.714, 7, 0.75, 0.625, 0.0357)
    """
    if isinstance(empty, bool) or not isinstance(empty, int) or empty < 0:
        raise ConfigError(f"empty is a count of questions, found {empty!r}")
    rows = [AuditRow("answerable", True, float(x)) for x in recalls]
    return audit_run([*rows, *[AuditRow("unanswerable", False)] * empty])


def audit_run(
    rows: Iterable[AuditRow | tuple[State, bool, float]], *, metric: str = "recall", reason: str | None = None
) -> AuditReport:
    """The audit of a run: the naive conventions look only at whether the gold list is empty, r at the labels.

    A row is an `AuditRow` or a triple (state, has gold, value). r is the mean over the state `answerable`; `drop` is
    the mean over every question with gold, whatever its label. `reason` says that the metric is undefined for one of
    them: then no convention has a value, and r has one only if no eligible question is undefined.
    `missing_label_is_miss` scores 0 for an empty list without a deliberate `unanswerable` label, and skips those that
    have one. What depends on the number of hits is left out where that number is not known for every question
    without gold.

    >>> a = audit_run([("answerable", True, 1), ("answerable", True, 0), ("unanswerable", False, 0)])
    >>> a.r, a.n, round(a.naive_one, 4), round(a.from_empty, 4), a.from_labels
    (0.5, 2, 0.6667, 0.1667, 0.0)
    """
    every = [row if isinstance(row, AuditRow) else AuditRow(row[0], row[1], float(row[2])) for row in rows]
    eligible = [row.value for row in every if row.state == "answerable"]
    listed = [row.value for row in every if row.has_gold]
    seen, empty = len(every), sum(not row.has_gold for row in every)
    u = empty / seen if seen else None
    if reason is not None:
        # Undefined for a question that only the conventions would count takes nothing from the corrected value.
        whole = not any(row.undefined for row in every if row.state == "answerable")
        r = _mean(eligible) if whole else None
        why = None if r is not None else reason if eligible else "no_eligible"
        return AuditReport(
            r, len(eligible), seen, empty, u, None, None, None, None, None, None, reason=why, metric=metric
        )
    r, drop, total = _mean(eligible), _mean(listed), math.fsum(listed)

    def convention(name: str, value: float | None, reported: float | None, n: int) -> Convention:
        off = None if reported is None or r is None else reported - r
        return Convention(name, value, reported, n, off, "no_eligible" if off is None else None, TOOLS[name])

    naive_one = (total + empty) / seen if seen else None
    naive_zero = total / seen if seen else None
    undeclared = sum(not row.has_gold and row.state != "unanswerable" for row in every)
    scored = len(listed) + undeclared
    present = [row.value for row in every if row.has_gold and row.status not in {"failed", "missing"}]
    conventions = [
        convention("empty_is_one", 1.0, naive_one, seen),
        convention("empty_is_zero", 0.0, naive_zero, seen),
        convention("empty_is_skipped", None, drop, len(listed)),
        convention("missing_label_is_miss", None, total / scored if scored else None, scored),
        convention("absent_from_run_is_skipped", None, _mean(present), len(present)),
    ]
    if all(row.has_gold or row.retrieved is not None for row in every):
        idle = sum(not row.has_gold and row.retrieved == 0 for row in every)
        reported = (total + idle) / seen if seen else None
        conventions.append(convention("empty_is_one_if_nothing_retrieved", None, reported, seen))
    inflation = from_empty = from_labels = None
    if r is not None and drop is not None and u is not None and naive_one is not None:
        inflation, from_empty, from_labels = naive_one - r, u * (1 - drop), drop - r
    return AuditReport(
        r=r,
        n=len(eligible),
        seen=seen,
        empty=empty,
        u=u,
        naive_one=naive_one,
        naive_zero=naive_zero,
        drop=drop,
        inflation=inflation,
        from_empty=from_empty,
        from_labels=from_labels,
        conventions=tuple(conventions),
        reason="no_eligible" if r is None else None,
        metric=metric,
    )


def audit_rows(outcomes: Iterable[Outcome], metric: str) -> tuple[tuple[AuditRow, ...], str | None]:
    """What `audit_run` needs, from recorded outcomes, and the reason when `metric` is undefined for one with gold."""
    rows, reasons = [], []
    for o in outcomes:
        value = o.values.get(metric)
        undefined = not o.empty_gold and value is None and o.status not in {"failed", "missing"}
        if undefined:
            reasons.append(o.reasons.get(metric, "no_eligible"))
        retrieved = None if o.status in {"failed", "missing"} else o.n_hits  # `error` may speak of an answer
        rows.append(AuditRow(o.state, not o.empty_gold, value or 0.0, o.status, retrieved, undefined))
    return tuple(rows), min(reasons, default=None)


def audit_outcomes(outcomes: Iterable[Outcome], metric: str = "recall@5") -> AuditReport:
    """The audit of a recorded run, from its per-question outcomes alone."""
    rows, reason = audit_rows(outcomes, metric)
    return audit_run(rows, metric=metric, reason=reason)


# ------------------------------------------------------------------ the way back


@dataclass(frozen=True, slots=True)
class Recovered:
    """A corrected value read back from a mean, never under the plain metric name; `low`/`high` from its rounding."""

    value: float | None
    low: float | None
    high: float | None
    reason: str | None
    naive: float
    u: float
    convention: str
    half_width: float

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def recover(
    naive: float, u: float, convention: Literal["one", "zero", "drop"] = "one", half_width: float = 0.0
) -> Recovered:
    """The corrected recall behind a mean that was computed with an empty-list convention.

    r = (naive − u)/(1 − u) when empty lists scored 1, naive/(1 − u) when they scored 0, naive when they were left out.
    `u` is the share of questions with an empty list, `half_width` the rounding of `naive` (0.0005 for three
    decimals), which becomes r ± half_width/(1 − u), cut to [0, 1]. No value: `all_unanswerable` (u = 1),
    `inconsistent_u` (no recall in [0, 1] gives this mean). It holds for a clean dataset, in which exactly the
    unanswerable questions have no gold. Raises ConfigError for an unknown convention, InputError for a number that is
    not finite, a u outside [0, 1] or a negative half width.

    >>> round(recover(0.75, 0.125).value, 4), recover(0.1, 0.2).reason
    (0.7143, 'inconsistent_u')
    >>> e = recover(0.75, 0.125, half_width=0.0005)
    >>> round(e.low, 5), round(e.high, 5)
    (0.71371, 0.71486)
    """
    if convention not in {"one", "zero", "drop"}:
        raise ConfigError(f"unknown convention {convention!r}; expected one, zero or drop")
    for name, number in (("naive", naive), ("u", u), ("half_width", half_width)):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise InputError("not a finite number", field=name, found=number)
    if not 0 <= u <= 1:
        raise InputError("not a share", field="u", found=u, expected="a number between 0 and 1")
    if half_width < 0:
        raise InputError("negative", field="half_width", found=half_width, expected="a number of 0 or more")

    def result(value: float | None, slack: float, reason: str | None) -> Recovered:
        if value is None:
            return Recovered(None, None, None, reason, naive, u, convention, half_width)
        low, value, high = (min(1.0, max(0.0, x)) for x in (value - slack, value, value + slack))
        return Recovered(value, low, high, reason, naive, u, convention, half_width)

    if u == 1:
        return result(None, 0.0, "all_unanswerable")
    kept = 1.0 if convention == "drop" else 1 - u
    value = (naive - u) / kept if convention == "one" else naive / kept
    slack = half_width / kept
    if value < -slack - SLACK or value > 1 + slack + SLACK:
        return result(None, 0.0, "inconsistent_u")
    return result(value, slack, None)
