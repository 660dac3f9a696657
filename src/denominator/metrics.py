"""Ranked retrieval metrics per question: a value, or None with a reason. Documents (L1), chunk slots (L2), chunks (L3).

Gold is an AND of ORs: a list of evidence groups, each satisfied by any one of its alternatives. With `T` the units in
the first K places, `G` the groups and `A` all alternatives:

| name | per question |
| --- | --- |
| `recall@K` | groups with an alternative in T / groups |
| `complete@K` | 1 if `recall@K` is 1, else 0 |
| `precision@K` | units of T that are in A / K, also when fewer than K came back |
| `hit@K` | 1 if any unit of T is in A, else 0 |
| `mrr@K` | 1 / rank of the first unit in A, 0 if there is none in T |
| `ndcg@K` | DCG / IDCG, gain = grade, discount log2(rank + 1), IDCG of all gold cut to K (Järvelin, Kekäläinen 2002) |
| `ndcg_exp@K` | the same with gain 2^grade - 1 (Burges et al. 2005) |
| `map@K`, `map` | sum of the precisions at each relevant rank / relevant ids; K is the retrieval depth |
| `r_precision` | relevant among the first R units / R, with R relevant ids |
| `judged@K` | units of T that somebody judged / units in T (an audit of the labels, not a score) |

`slot_` (L2) and `chunk_` (L3) go before a name; without a prefix it is documents. `mrr`, `ndcg`, `ndcg_exp` and `map`
without K read the whole ranking.

A question without gold has no value here: whether that is right (unanswerable) or a hole in the labels is what
`eligibility` decides. A question that came back with nothing, or not at all, scores 0.

There is one implementation. Every door (plain Python, dicts, integer columns, `Run`) only finds the *place* of each
gold id in the canonical ranking (`places`); all metrics are computed from these places.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, compress, repeat
from threading import Lock
from typing import Any

import numpy as np

from denominator.eligibility import check_id, document_groups
from denominator.errors import ConfigError, MeasurementError
from denominator.places import ABSENT, Columns, check_ids, columns_of, dict_places, each, offsets_of, places, uniform
from denominator.ranking import (
    blocks,
    canonical,
    check_depth,
    check_k,
    check_ties,
    cut_short,
    distinct_rows,
    is_documents,
    order_of,
    run_from_results,
    slots_of_documents,
    to_documents,
)
from denominator.types import Bools, Evidence, Floats, Hit, Int32s, Ints, Level, Question, Result, Run, Ties, Units

KINDS = ("recall", "complete", "precision", "hit", "mrr", "ndcg", "ndcg_exp", "map", "r_precision", "judged")
PLAIN_GOLD_ONLY = frozenset({"ndcg", "ndcg_exp", "map", "r_precision"})
RATES = frozenset({"hit", "complete"})
"""Metrics that are 0 or 1 per question, so that their mean is a rate."""
_WHOLE_RANKING = frozenset({"mrr", "ndcg", "ndcg_exp", "map"})
_PREFIXES: dict[Level, str] = {"L1": "", "L2": "slot_", "L3": "chunk_"}
_EVERYTHING = np.int32(2**31 - 1)
_SLOTS = 8  # gold ids per question up to which they make a table
_ROWS_PER_PART = 1 << 20
_QUESTIONS_PER_PART = 1 << 14


# ------------------------------------------------------------------ names


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as a value: `Metric("recall", 5)` is written `recall@5`."""

    kind: str
    k: int | None = None
    level: Level = "L1"

    @property
    def name(self) -> str:
        stem = f"{_PREFIXES[self.level]}{self.kind}"
        return stem if self.k is None else f"{stem}@{self.k}"

    @property
    def is_rate(self) -> bool:
        return self.kind in RATES

    @property
    def cut(self) -> int:
        """K as a number, the whole ranking where the name has none."""
        return int(_EVERYTHING) if self.k is None else self.k


def parse_name(name: str) -> Metric:
    """`slot_recall@5` as a `Metric`. Errors: `bad_k` for its K, `ConfigError` with the nearest name for the rest.

    >>> parse_name("slot_recall@5")
    Metric(kind='recall', k=5, level='L2')
    >>> parse_name("map").name
    'map'
    """
    stem, at, number = name.partition("@")
    level: Level = "L2" if stem.startswith("slot_") else "L3" if stem.startswith("chunk_") else "L1"
    kind = stem.removeprefix(_PREFIXES[level])
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise ConfigError(f"no ranked metric is called {name!r}{hint}; there are {', '.join(KINDS)}")
    if not at:
        if kind in _WHOLE_RANKING or kind == "r_precision":
            return Metric(kind, None, level)
        raise MeasurementError("bad_k", [name], f"{kind} needs a K, as in {stem}@5")
    if kind == "r_precision":
        raise MeasurementError("bad_k", [name], "r_precision takes no K: it reads as many hits as there is gold")
    if not (number.isascii() and number.isdigit()):
        raise MeasurementError("bad_k", [number], "K is a whole number of at least 1")
    return Metric(kind, check_k(int(number)), level)


FAMILIES_AT_K = ("recall", "complete", "precision", "hit", "mrr", "ndcg")
"""What a run reports at every K."""


def metric_names(ks: Sequence[int], depth: int | None = None, levels: Sequence[Level] = ("L1",)) -> tuple[str, ...]:
    """The names that a run reports: every metric at every K, average precision at `depth`, R-precision.

    >>> metric_names([5], 100)[:3], metric_names([5], 100)[-2:]
    (('recall@5', 'complete@5', 'precision@5'), ('map@100', 'r_precision'))
    """
    names = [Metric(kind, check_k(k), level).name for level in levels for kind in FAMILIES_AT_K for k in ks]
    for level in levels:
        names += [Metric("map", depth, level).name, Metric("r_precision", None, level).name]
    return tuple(names)


# ------------------------------------------------------------------ gold in columns


@dataclass(frozen=True, slots=True, eq=False)
class Gold:
    """Gold of many questions in columns: entries (distinct alternatives) of question i are `offsets[i]:offsets[i+1]`.

    `grade` weighs entries. `pair_group`/`pair_entry` list which entry satisfies which group and are None when every
    entry is a group of its own. `has_or[i]`: some group of question i has more than one alternative.
    """

    offsets: Ints
    grade: Floats
    groups: Ints
    pair_group: Ints | None = None
    pair_entry: Ints | None = None
    has_or: Bools | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, start: int, stop: int) -> Gold:
        """Questions `start` to `stop` of gold without alternatives."""
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        return Gold(self.offsets[start : stop + 1] - low, self.grade[low:high], self.groups[start:stop])


def _gold_of(
    groups: Sequence[Sequence[Sequence[str]]], grades: Sequence[Mapping[str, int] | None]
) -> tuple[Gold, list[str]]:
    """Columns from distinct groups per question, and the id of every entry."""
    ids: list[str] = []
    grade: list[float] = []
    lengths = np.zeros(len(groups), np.int64)
    pairs: list[tuple[int, int]] = []
    group_number = 0
    has_or = np.zeros(len(groups), np.bool_)
    for i, (of_question, graded) in enumerate(zip(groups, grades, strict=True)):
        start = len(ids)
        place: dict[str, int] = {}
        for group in of_question:
            if len(group) > 1:
                has_or[i] = True
            for alternative in group:
                entry = place.get(alternative)
                if entry is None:
                    entry = place[alternative] = len(ids)
                    ids.append(alternative)
                    grade.append(1.0 if graded is None else max(graded.get(alternative, 1), 0))
                pairs.append((group_number, entry))
            group_number += 1
        lengths[i] = len(ids) - start
    counts = np.fromiter(map(len, groups), np.int64, len(groups))
    plain = not has_or.any()
    table = None if plain else np.array(pairs, np.int64).reshape(-1, 2)
    return (
        Gold(
            offsets=offsets_of(lengths),
            grade=np.array(grade, np.float64),
            groups=counts,
            pair_group=None if table is None else table[:, 0],
            pair_entry=None if table is None else table[:, 1],
            has_or=None if plain else has_or,
        ),
        ids,
    )


def _floats(x: Any) -> Floats:
    out: Floats = x.astype(np.float64, copy=False)
    return out


class _Layout:
    """How the entries of a question are laid out, so that everything per question is one array operation.

    Few gold ids per question (the usual case) make a table of slots × questions; otherwise entries stay flat and are
    reduced segment by segment. All arithmetic is the same for both.
    """

    def __init__(self, gold: Gold) -> None:
        self.n = len(gold)
        self.offsets = gold.offsets
        self.lengths = np.diff(gold.offsets)
        entries = int(gold.offsets[-1])
        slots = int(self.lengths.max(initial=0))
        self.is_table = gold.pair_group is None and slots <= _SLOTS and slots * self.n <= 4 * entries
        self.question = np.repeat(np.arange(self.n), self.lengths)
        self.number = np.arange(entries) - np.repeat(gold.offsets[:-1], self.lengths)  # within the question, from 0
        self._target = self.number * self.n + self.question if self.is_table else self.number
        self.shape = (slots, self.n)
        self.within: Any = np.arange(slots)[:, None] if self.is_table else self.number

    def put(self, entries: Any) -> Any:
        """Entries in this layout; slots that no entry fills are 0."""
        if not self.is_table:
            return entries
        table = np.zeros(self.shape, entries.dtype)
        table.reshape(-1)[self._target] = entries
        return table

    def each(self, per_question: Any) -> Any:
        """One value per question beside each of its entries."""
        return per_question if self.is_table else np.repeat(per_question, self.lengths)

    def sum(self, x: Any) -> Any:
        """One entry after the other in both layouts, so that not even the last bit depends on the other questions."""
        if x.dtype == np.bool_:
            x = x.view(np.uint8)
        if not self.is_table:
            return _sum_segments(x, self.offsets)
        out = np.zeros(self.n, x.dtype)  # at most _SLOTS ones: a byte holds them
        for slot in x:
            out += slot
        return out

    def min(self, x: Any, default: Any) -> Any:
        if self.is_table:
            return np.minimum.reduce(x, axis=0, initial=default)
        out = np.full(self.n, default, x.dtype)
        filled = np.flatnonzero(self.lengths)
        if len(filled):
            out[filled] = np.minimum.reduceat(x, self.offsets[filled])
        return out

    def ascending(self, x: Any) -> Any:
        """Every question's entries in ascending order."""
        if not self.is_table:
            return x[np.lexsort((x, self.question))]
        rows = list(x)  # a bubble sort of whole rows: a handful of slots, all questions at once
        for last in range(len(rows) - 1, 0, -1):
            for j in range(last):
                rows[j], rows[j + 1] = np.minimum(rows[j], rows[j + 1]), np.maximum(rows[j], rows[j + 1])
        return np.array(rows, x.dtype).reshape(x.shape)


def _sum_segments(x: Any, offsets: Ints) -> Floats:
    n = len(offsets) - 1
    return _floats(np.bincount(np.repeat(np.arange(n), np.diff(offsets)), x, n))


# ------------------------------------------------------------------ from places to values: the one implementation


class _Scorer:
    """Values from the places of gold entries.

    `place` is the 1-based place an entry takes in the ranking that is cut (0: absent), `rank` what discounts and
    reciprocal ranks count (another number only at L2, where places are chunk slots and ranks distinct documents).
    """

    def __init__(self, gold: Gold, place: Any, rank: Any | None = None) -> None:
        self.gold = gold
        self.layout = _Layout(gold)
        given = self.layout.put(place)
        self.rank = given if rank is None else self.layout.put(rank)  # 0 where absent: its discount is 0
        self.distinct_ranks = rank is not None
        self.place = np.where(given > 0, given, _EVERYTHING)
        self.size = self.layout.lengths.astype(np.float64)
        self.per_question = gold.groups.astype(np.float64)
        self._first: tuple[Any, Any] | None = None
        self._gains: dict[bool, tuple[Any, Any]] = {}
        top_rank = int(max(self.rank.max(initial=0), self.layout.lengths.max(initial=0)))
        self.discount = np.zeros(top_rank + 1)
        self.discount[1:] = 1.0 / np.log2(np.arange(1, top_rank + 1) + 1.0)

    def values(self, metric: Metric) -> Floats:
        """One value per question, NaN where it has no gold, or a group of alternatives that the metric cannot take."""
        cut = min(metric.cut, int(_EVERYTHING) - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            out: Floats = getattr(self, f"_{metric.kind}")(cut)
        undefined = self.gold.groups == 0
        if metric.kind in PLAIN_GOLD_ONLY and self.gold.has_or is not None:
            undefined = undefined | self.gold.has_or
        if undefined.any():
            out[undefined] = np.nan
        return out

    def _recall(self, cut: int) -> Floats:
        inside = self.place <= cut
        if self.gold.pair_group is None or self.gold.pair_entry is None:
            return _floats(self.layout.sum(inside) / self.per_question)
        satisfied = np.zeros(int(self.gold.groups.sum()), np.uint8)
        satisfied[self.gold.pair_group[inside[self.gold.pair_entry]]] = 1
        return _sum_segments(satisfied, offsets_of(self.gold.groups)) / self.per_question

    def _complete(self, cut: int) -> Floats:
        return _floats(self._recall(cut) == 1.0)

    def _precision(self, cut: int) -> Floats:
        return _floats(self.layout.sum(self.place <= cut) / np.float64(cut))

    def _best(self) -> tuple[Any, Any]:
        """Place and rank of the first relevant unit; `_EVERYTHING` where there is none."""
        if self._first is None:
            place = rank = self.layout.min(self.place, _EVERYTHING)
            if self.distinct_ranks:
                rank = self.layout.min(np.where(self.rank > 0, self.rank, _EVERYTHING), _EVERYTHING)
            self._first = place, rank
        return self._first

    def _hit(self, cut: int) -> Floats:
        return _floats(self._best()[0] <= cut)

    def _mrr(self, cut: int) -> Floats:
        place, rank = self._best()
        return np.where(place <= cut, 1.0 / rank, 0.0)

    def _ndcg(self, cut: int) -> Floats:
        return self._gain(cut, exponential=False)

    def _ndcg_exp(self, cut: int) -> Floats:
        return self._gain(cut, exponential=True)

    def _gain(self, cut: int, *, exponential: bool) -> Floats:
        if exponential not in self._gains:
            gain = self.layout.put(np.exp2(self.gold.grade) - 1.0 if exponential else self.gold.grade)
            ideal = -self.layout.ascending(-gain) * self.discount[self.layout.within + 1]
            self._gains[exponential] = gain * self.discount[self.rank], ideal
        gained, ideal = self._gains[exponential]
        # Summed from the smallest on: the order in which the gold is listed must not show.
        dcg = self.layout.sum(self.layout.ascending(np.where(self.place <= cut, gained, 0.0)))
        return _floats(dcg / self.layout.sum(np.where(self.layout.within < cut, ideal, 0.0)))

    def _map(self, cut: int) -> Floats:
        rank = self.layout.ascending(np.where(self.place <= cut, self.rank, _EVERYTHING))
        precision = np.where(rank < _EVERYTHING, (self.layout.within + 1) / rank, 0.0)
        return _floats(self.layout.sum(precision) / self.size)

    def _r_precision(self, _: int) -> Floats:
        first = (self.rank > 0) & (self.rank <= self.layout.each(self.layout.lengths))
        return _floats(self.layout.sum(first) / self.size)


def _values(gold: Gold, place: Int32s, metrics: Mapping[str, Metric], rank: Int32s | None = None) -> dict[str, Floats]:
    """Values of all metrics; many questions are taken in parts, so that what is made on the way stays small."""
    if gold.pair_group is not None or len(gold) <= _QUESTIONS_PER_PART:
        scorer = _Scorer(gold, place, rank)
        return {name: scorer.values(metric) for name, metric in metrics.items()}
    values = {name: np.empty(len(gold)) for name in metrics}
    for start in range(0, len(gold), _QUESTIONS_PER_PART):
        stop = min(start + _QUESTIONS_PER_PART, len(gold))
        entries = slice(int(gold.offsets[start]), int(gold.offsets[stop]))
        scorer = _Scorer(gold.part(start, stop), place[entries], None if rank is None else rank[entries])
        for name, metric in metrics.items():
            values[name][start:stop] = scorer.values(metric)
    return values


# ------------------------------------------------------------------ the bulk door


@dataclass(frozen=True, slots=True, eq=False)
class RankedTable:
    """Values of many questions, in the order in which the questions were given.

    `values[name]` is NaN where the question has no value (never let it out: use `row` or `defined`); `reasons[name]`
    says why, by position, for questions that have gold. A question without gold has neither.
    `missing` and `failed` are questions with gold for which nothing or an error came back: their values are 0.
    """

    question_ids: tuple[str, ...]
    values: Mapping[str, Floats]
    reasons: Mapping[str, Mapping[int, str]]
    groups: Ints
    metrics: Mapping[str, Metric]
    missing: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def has_gold(self) -> Bools:
        return self.groups > 0

    def row(self, i: int) -> tuple[dict[str, float | None], dict[str, str]]:
        """Values and reasons of question i; both are empty when it has no gold."""
        if not self.groups[i]:
            return {}, {}
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for name, column in self.values.items():
            reason = self.reasons[name].get(i)
            values[name] = None if reason is not None else float(column[i])
            if reason is not None:
                reasons[name] = reason
        return values, reasons

    def reason(self, name: str, chosen: Bools | None = None) -> str | None:
        """Why the mean over the chosen questions is None, or None when it is a number.

        One undefined question makes the mean undefined: the rest would have another n than their neighbours. Not so
        for `judged@K`, which describes the labels: it is a mean over the questions that showed anything.
        """
        picked = self.has_gold if chosen is None else chosen & self.has_gold
        if not picked.any():
            return "no_eligible"
        found = {reason for i, reason in self.reasons[name].items() if picked[i]}
        if self.metrics[name].kind == "judged":
            return None if (picked & ~np.isnan(self.values[name])).any() else "n_zero"
        return next((code for code in ("or_groups_unsupported", "depth_below_k") if code in found), None)

    def defined(self, name: str, chosen: Bools | None = None) -> Floats:
        """The values that a mean over the chosen questions is made of; see `reason` for whether there may be one."""
        column = self.values[name]
        picked = ~np.isnan(column)
        return column[picked if chosen is None else picked & chosen]

    def mean(self, name: str, chosen: Bools | None = None) -> float | None:
        """Macro mean over the chosen questions (all that have gold by default), None where `reason` gives a reason."""
        return None if self.reason(name, chosen) else float(self.defined(name, chosen).mean())

    def satisfied(self, name: str) -> Ints:
        """Groups found per question at a recall name: the numerator of the micro average (0 where undefined)."""
        if self.metrics[name].kind != "recall":
            raise ConfigError(f"groups are counted for recall, not for {name}")
        return np.rint(np.nan_to_num(self.values[name]) * self.groups).astype(np.int64)

    def micro(self, name: str, chosen: Bools | None = None) -> tuple[int, int]:
        """Satisfied groups and all groups over the chosen questions: micro recall is their quotient, n the second."""
        picked = self.has_gold if chosen is None else chosen & self.has_gold
        return int(self.satisfied(name)[picked].sum()), int(self.groups[picked].sum())


def ranked(
    run: Run,
    questions: Sequence[Question],
    names: Sequence[str],
    *,
    ties: Ties = "asc",
    threads: int = 1,
) -> RankedTable:
    """Every named metric for every question that has gold, whatever its state; who enters a mean is decided elsewhere.

    Nothing found, nothing returned and an error all score 0. A name whose K some ranking could not fill because the
    candidate pool cut it short has reason `depth_below_k` for that question.
    Errors: `bad_k`, `bad_id`, `bad_score`, `duplicate_question_ids`, `unknown_question_ids`, `depth_below_k` (fewer
    than K were asked for), those of `groups_of`; `ConfigError` for an unknown name or chunk metrics on span gold.

    >>> from denominator.ranking import run_from_dicts
    >>> q = Question("q", answerability="answerable", gold=((Evidence("a"),), (Evidence("c"),)))
    >>> table = ranked(run_from_dicts({"q": {"x": 3.0, "a": 2.0, "c": 1.0}}), [q], ["recall@2", "mrr@2"])
    >>> table.row(0)
    ({'recall@2': 0.5, 'mrr@2': 0.5}, {})
    """
    check_ties(ties)
    metrics = {name: parse_name(name) for name in names}
    for metric in metrics.values():
        if metric.k is not None:
            check_depth(metric.k, run.depth)
    position = _positions(run, questions)
    rows = {question_id: i for i, question_id in enumerate(run.question_ids) if question_id not in run.errors}
    in_order = [q for q in map(position.get, rows) if q is not None]
    absent = [i for i, q in enumerate(questions) if q.id not in rows]
    at = np.array(in_order + absent, np.int64)
    inverse = np.empty(len(questions), np.int64)
    inverse[at] = np.arange(len(questions))
    arranged = [questions[i] for i in at]
    short = np.zeros(len(questions), np.bool_)
    short[at[: len(in_order)]] = cut_short(run)[list(rows.values())] if rows else False
    values: dict[str, Floats] = {}
    reasons: dict[str, dict[int, str]] = {}
    groups = np.zeros(len(questions), np.int64)
    levels: list[Level] = sorted({m.level for m in metrics.values()}) or ["L1"]
    for level in levels:
        wanted = {n: m for n, m in metrics.items() if m.level == level}
        found = _level_values(run, arranged, list(rows.values()), level, metrics=wanted, ties=ties, threads=threads)
        lengths = found.lengths[inverse]
        has_gold = found.groups[inverse] > 0
        groups = found.groups[inverse]  # the same at every level
        for name, metric in wanted.items():
            column = found.values[name][inverse]
            why: dict[int, str] = {}
            if metric.kind in PLAIN_GOLD_ONLY and found.has_or is not None:
                why = dict.fromkeys(np.flatnonzero(found.has_or[inverse] & has_gold).tolist(), "or_groups_unsupported")
            if metric.kind == "judged":
                why = dict.fromkeys(np.flatnonzero(np.isnan(column) & has_gold).tolist(), "n_zero")
            need = found.sizes[inverse] if metric.kind == "r_precision" else metric.k
            if need is not None and metric.kind != "map":
                for i in np.flatnonzero(short & (lengths < need) & has_gold).tolist():
                    why.setdefault(i, "depth_below_k")
                    column[i] = np.nan
            values[name], reasons[name] = column, why
    gone = [questions[i].id for i in absent if groups[i]]
    return RankedTable(
        question_ids=tuple(position),
        values={name: values[name] for name in names},
        reasons=reasons,
        groups=groups,
        metrics=metrics,
        missing=tuple(i for i in gone if i not in run.errors),
        failed=tuple(i for i in gone if i in run.errors),
    )


def _positions(run: Run, questions: Sequence[Question]) -> dict[str, int]:
    position = {check_id(q.id): i for i, q in enumerate(questions)}
    if len(position) < len(questions):
        last = {i for i in position if sum(q.id == i for q in questions) > 1}
        raise MeasurementError("duplicate_question_ids", last, "a question may be listed once only")
    unknown = [i for i in chain(run.question_ids, run.errors) if i not in position]
    if unknown:
        raise MeasurementError(
            "unknown_question_ids", dict.fromkeys(unknown), "the run has results for questions that are not in the set"
        )
    return position


@dataclass(frozen=True, slots=True, eq=False)
class _LevelValues:
    values: dict[str, Floats]
    groups: Ints
    sizes: Ints
    lengths: Ints
    has_or: Bools | None


def _level_values(
    run: Run,
    questions: Sequence[Question],
    rows: Sequence[int],
    level: Level,
    *,
    metrics: Mapping[str, Metric],
    ties: Ties,
    threads: int,
) -> _LevelValues:
    """Values at one level. The first `len(rows)` questions have these rankings of the run, the others have none."""
    gold, ids = _gold_of([ids_at(q, level) for q in questions], [q.grades for q in questions])
    slots: Ints | None = None
    chunk_lengths = np.zeros(0, np.int64)
    if level == "L1":
        run = run if is_documents(run.units) else to_documents(run, ties)
    elif level == "L2":
        if any(m.kind == "judged" for m in metrics.values()):
            raise ConfigError("judged@K counts documents or chunks, not slots: use judged@K or chunk_judged@K")
        chunks = canonical(run, ties)
        chunk_lengths = np.diff(chunks.offsets)
        run, slots = slots_of_documents(chunks)
    columns = columns_of(run, ties)
    judged_ids = [tuple(q.grades or ()) for q in questions] if any(m.kind == "judged" for m in metrics.values()) else []
    number = _numbers(run.units, chain(ids, *judged_ids))
    place, lengths = _places_of_rows(
        columns, gold.offsets, _codes(ids, number), rows, questions=len(questions), threads=threads
    )
    if slots is None:
        slot, rank = place, None
    else:  # `place` counts documents here, and the cut counts chunks
        start = np.zeros(len(gold), np.int64)
        start[: len(rows)] = run.offsets[:-1][np.array(rows, np.int64)]
        seen = place > 0
        slot, rank = np.zeros(len(place), np.int32), place
        slot[seen] = slots[np.repeat(start, np.diff(gold.offsets))[seen] + place[seen] - 1]
        lengths[: len(rows)] = chunk_lengths[np.array(rows, np.int64)]
    values = _values(gold, slot, {n: m for n, m in metrics.items() if m.kind != "judged"}, rank)
    if judged_ids:
        offsets = offsets_of(np.fromiter(map(len, judged_ids), np.int64, len(judged_ids)))
        codes = _codes(list(chain.from_iterable(judged_ids)), number)
        judged_place, _ = _places_of_rows(columns, offsets, codes, rows, questions=len(questions), threads=threads)
        for name, metric in metrics.items():
            if metric.kind == "judged":
                values[name] = _judged(offsets, judged_place, lengths, metric.cut)
    return _LevelValues(values, gold.groups, np.diff(gold.offsets), lengths, gold.has_or)


def ids_at(question: Question, level: Level) -> tuple[tuple[str, ...], ...]:
    if level == "L3" and any(e.start is not None for group in question.gold for e in group):
        raise ConfigError(
            f"chunk metrics need gold of chunk ids; question {question.id!r} has spans: use recall@K (documents), "
            "slot_recall@K or coverage"
        )
    return document_groups(question)


def _numbers(units: Units, ids: Iterable[str]) -> dict[str, int]:
    """The first unit of each id that is asked about."""
    asked = set(ids)
    number: dict[str, int] = {}
    for n, i in enumerate(units.ids):
        if i in asked:
            number.setdefault(i, n)
    return number


def _places_of_rows(
    columns: Columns, entry_offsets: Ints, codes: Any, rows: Sequence[int], *, questions: int, threads: int
) -> tuple[Int32s, Ints]:
    """Places for questions whose rankings are the given rows of the run, in row order; the others have none."""
    offsets = np.zeros(len(columns.offsets), np.int64)
    sizes = np.zeros(len(columns.offsets) - 1, np.int64)
    sizes[list(rows)] = np.diff(entry_offsets)[: len(rows)]
    np.cumsum(sizes, out=offsets[1:])
    held = int(entry_offsets[len(rows)])
    place = np.zeros(len(codes), np.int32)
    found, of_rows = places(columns, offsets, codes[:held], threads)
    place[:held] = found
    lengths = np.zeros(questions, np.int64)
    lengths[: len(rows)] = of_rows[list(rows)]
    return place, lengths


def _judged(offsets: Ints, place: Any, lengths: Ints, cut: int) -> Floats:
    """Judged units in the first K places / filled places there; NaN where nothing was judged or nothing retrieved."""
    shown = np.minimum(lengths, cut)
    counted = (shown > 0) & (np.diff(offsets) > 0)
    share = np.full(len(lengths), np.nan)
    share[counted] = _sum_segments((place > 0) & (place <= cut), offsets)[counted] / shown[counted]
    return share


def _codes(ids: Sequence[str], number: Mapping[str, int]) -> Int32s:
    return np.fromiter((number.get(i, ABSENT) for i in ids), np.int32, len(ids))


# ------------------------------------------------------------------ integer columns


def score_arrays(
    ids: Any,
    scores: Any | None,
    gold_offsets: Any,
    gold_ids: Any,
    names: Sequence[str],
    *,
    gold_grades: Any | None = None,
    offsets: Any | None = None,
    order: Any | None = None,
    ties: Ties = "asc",
    depth: int | None = None,
    threads: int = 1,
) -> dict[str, Floats]:
    """Integer-coded rankings and gold, no strings at all: one array per name, NaN for questions without gold.

    `ids` is a table (questions × hits) of codes ≥ 0, or flat with `offsets` (n + 1). `scores` has the same form, or is
    None: the given order is the ranking. Gold of question i is `gold_ids[gold_offsets[i]:gold_offsets[i+1]]`, each a
    group of its own, weighed by `gold_grades` (1 without; grades of 0 and below are no gold). Ties go by `order[code]`,
    the rank of each code's id, or by the code itself.
    Errors: `bad_k`, `bad_score`, `depth_below_k`, `bad_id` for negative or non-integer codes.

    >>> values = score_arrays([[7, 3, 9]], [[0.9, 0.5, 0.5]], [0, 2], [9, 4], ["recall@2", "recall@3"])
    >>> {name: float(column[0]) for name, column in values.items()}
    {'recall@2': 0.0, 'recall@3': 0.5}
    """
    check_ties(ties)
    metrics = {name: parse_name(name) for name in names}
    for metric in metrics.values():
        if metric.kind == "judged" or metric.level == "L2":
            raise ConfigError(f"{metric.name} cannot be computed from codes alone")
        if metric.k is not None:
            check_depth(metric.k, depth)
    ids = _code_column(ids)
    if scores is not None:
        scores = np.asarray(scores)
        if scores.dtype not in (np.float32, np.float64):
            scores = scores.astype(np.float64)
        if scores.shape != ids.shape:
            raise ValueError(f"scores have the shape {scores.shape}, ids {ids.shape}")
        scores = scores.ravel()
    if offsets is None:
        if ids.ndim != 2:
            raise ValueError("flat ids need offsets")
        offsets = np.arange(len(ids) + 1, dtype=np.int64) * ids.shape[1]
    offsets = _checked_offsets(offsets, ids.size)
    ids = ids.ravel()
    gold_offsets = _checked_offsets(gold_offsets, len(gold_ids))
    if len(gold_offsets) != len(offsets):
        raise ValueError(f"gold is given for {len(gold_offsets) - 1} questions, rankings for {len(offsets) - 1}")
    gold_ids = _code_column(gold_ids)
    if gold_ids.size and gold_ids.min() < 0:
        raise MeasurementError("bad_id", [str(gold_ids.min())], "codes are not negative")
    grades = None if gold_grades is None else np.asarray(gold_grades)
    if grades is not None and grades.shape != gold_ids.shape:
        raise ValueError(f"there are {len(gold_ids)} gold ids and {grades.size} grades")
    table = None if order is None else np.asarray(order)
    columns = Columns(
        offsets=offsets,
        ids=ids,
        scores=scores,
        ties=ties,
        tie_rank=(lambda c: np.asarray(c, np.int64)) if table is None else (lambda c: table[c]),
        canonical_rows=lambda o, u, s: None if s is None else _sorted_codes(o, u, s, table, ties),
        names=lambda c: [str(i) for i in c],
        width=uniform(offsets),
    )
    values = {name: np.empty(len(offsets) - 1) for name in metrics}
    turn = Lock()  # many short array operations: two threads at once would only hand the interpreter lock to and fro

    def work(bounds: tuple[int, int]) -> None:
        start, stop = bounds
        part = columns.part(start, stop)
        if part.ids.size and part.ids.min() < 0:
            raise MeasurementError("bad_id", [str(part.ids.min())], "codes are not negative")
        low, high = int(gold_offsets[start]), int(gold_offsets[stop])
        given = None if grades is None else grades[low:high]
        gold, codes = _plain_gold(gold_offsets[start : stop + 1] - low, gold_ids[low:high], given)
        place, _ = places(part, gold.offsets, _as_wide_as(part.ids, codes), threads=1)
        with turn:
            found = _values(gold, place, metrics)
        for name in metrics:
            values[name][start:stop] = found[name]

    each(work, blocks(offsets, _ROWS_PER_PART), threads)
    return values


def _code_column(codes: Any) -> Any:
    column = np.asarray(codes)
    if column.size == 0:
        return column.astype(np.int32)
    if column.dtype.kind not in "iu":
        raise MeasurementError("bad_id", [str(column.dtype)], "codes are whole numbers")
    if column.dtype not in (np.int32, np.int64):
        column = column.astype(np.int64)
    return np.ascontiguousarray(column)


def _as_wide_as(ids: Any, codes: Any) -> Any:
    """The codes in the type of the ids; one that does not fit is no id that was retrieved."""
    if codes.dtype.itemsize > ids.dtype.itemsize:
        codes = np.where(codes > np.iinfo(ids.dtype).max, ABSENT, codes)
    return codes.astype(ids.dtype, copy=False)


def _checked_offsets(offsets: Any, rows: int) -> Ints:
    column = np.asarray(offsets, np.int64)
    if len(column) < 1 or column[0] != 0 or column[-1] != rows or (np.diff(column) < 0).any():
        raise ValueError(f"offsets start at 0, never fall and end at the number of rows, {rows}")
    return column


def _plain_gold(offsets: Ints, codes: Any, grades: Any | None) -> tuple[Gold, Any]:
    """Gold of codes: positive grades only, each id once per question."""
    keep = np.ones(len(codes), np.bool_)
    grade = np.ones(len(codes), np.float64)
    if grades is not None:
        keep = grades > 0
        grade = grades.astype(np.float64)
    copies = distinct_rows(offsets, codes) if _may_repeat(offsets, codes) else None
    if copies is not None:
        once = np.zeros(len(codes), np.bool_)
        once[copies] = True
        keep &= once
    if not keep.all():
        before = np.concatenate([[0], np.cumsum(keep)])
        offsets = before[offsets]
        codes, grade = codes[keep], grade[keep]
    return Gold(offsets=offsets, grade=grade, groups=np.diff(offsets)), codes


def _may_repeat(offsets: Ints, codes: Any) -> bool:
    """False when neighbours at every distance up to the largest question differ: cheaper than a sort, and it settles
    the usual case of a few gold ids each.
    """
    lengths = np.diff(offsets)
    most = int(lengths.max(initial=0))
    if most > _SLOTS:
        return True
    return any((codes[d:] == codes[:-d]).any() for d in range(1, most))


def _sorted_codes(offsets: Ints, codes: Any, scores: Any, order: Any | None, ties: Ties) -> Ints:
    key = scores
    if ties == "trec":
        with np.errstate(over="ignore"):
            key = scores.astype(np.float32)
    rank = (codes if order is None else order[codes]).astype(np.int64)
    question = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.lexsort((-rank if ties == "trec" else rank, -key, question))


# ------------------------------------------------------------------ dicts


def score_dicts(
    qrels: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Mapping[str, float]],
    names: Sequence[str],
    *,
    ties: Ties = "asc",
    depth: int | None = None,
) -> RankedTable:
    """Judgements `{question: {id: grade}}` and a run `{question: {id: score}}`, as the field passes them around.

    Ids graded above 0 are gold, each a group of its own; other judged ids are not relevant. The questions are those of
    `qrels`, all taken as answerable; one without a positive grade has no value (it is neither 0 nor 1), one that the
    run does not name is `missing` and scores 0.
    Errors: `unknown_question_ids` (the run has others), `bad_id`, `mixed_scores`, `bad_score`, `bad_k`,
    `depth_below_k`.

    >>> table = score_dicts({"q1": {"a": 1, "b": 0}, "q2": {"c": 1}}, {"q1": {"b": 2.0, "a": 1.0}}, ["recall@1", "mrr"])
    >>> table.mean("mrr"), table.missing
    (0.25, ('q2',))
    """
    check_ties(ties)
    metrics = {name: parse_name(name) for name in names}
    for metric in metrics.values():
        if metric.level == "L2":
            raise ConfigError(f"{metric.name} needs chunks that know their document: give a Run")
        if metric.k is not None:
            check_depth(metric.k, depth)
    unknown = run.keys() - qrels.keys()
    if unknown:
        raise MeasurementError("unknown_question_ids", unknown, "the run has questions that the judgements do not name")
    check_ids(qrels)
    judgements: list[dict[str, int]] = _dicts(qrels.values())
    offsets, ids, grades = _flat_judgements(judgements)
    keep = grades > 0
    before = np.concatenate([[0], np.cumsum(keep)])
    gold_offsets = before[offsets]
    gold = Gold(offsets=gold_offsets, grade=grades[keep].astype(np.float64), groups=np.diff(gold_offsets))
    rows: list[dict[str, float]] = _dicts(map(run.get, qrels, repeat(_NOTHING)))
    if _without_scores(rows):
        rows = [{i: -float(n) for n, i in enumerate(row)} for row in rows]
    gold_ids = ids if keep.all() else list(compress(ids, keep.tolist()))
    asked_judged = any(m.kind == "judged" for m in metrics.values())
    place, lengths = dict_places(rows, gold_offsets, gold_ids, ties)
    judged_place = dict_places(rows, offsets, ids, ties)[0] if asked_judged else place
    values = _values(gold, place, {n: m for n, m in metrics.items() if m.kind != "judged"})
    reasons: dict[str, dict[int, str]] = {}
    for name, metric in metrics.items():
        reasons[name] = {}
        if metric.kind == "judged":
            values[name] = _judged(offsets, judged_place, lengths, metric.cut)
            undefined = np.flatnonzero(np.isnan(values[name]) & (gold.groups > 0))
            reasons[name] = dict.fromkeys(undefined.tolist(), "n_zero")
        elif metric.kind == "r_precision" and depth is not None:
            cut = np.flatnonzero((lengths >= depth) & (gold.groups > depth))  # it reads as many hits as there is gold
            values[name][cut] = np.nan
            reasons[name] = dict.fromkeys(cut.tolist(), "depth_below_k")
    question_ids = tuple(qrels)
    return RankedTable(
        question_ids=question_ids,
        values=values,
        reasons=reasons,
        groups=gold.groups,
        metrics=metrics,
        missing=()
        if len(run) == len(qrels)
        else tuple(i for i, n in zip(question_ids, gold.groups.tolist(), strict=True) if n and i not in run),
    )


_NOTHING: dict[str, Any] = {}


def _dicts(rows: Iterable[Any]) -> list[Any]:
    """Mappings as dicts, whose methods can then be mapped over in C."""
    rows = list(rows)
    if all(issubclass(kind, dict) for kind in set(map(type, rows))):
        return rows
    return [row if isinstance(row, dict) else dict(row) for row in rows]


def _flat_judgements(judgements: Sequence[dict[str, int]]) -> tuple[Ints, list[str], Ints]:
    lengths = np.fromiter(map(len, judgements), np.int64, len(judgements))
    ids = list(chain.from_iterable(judgements))
    check_ids(ids)
    kinds = set(map(type, chain.from_iterable(map(dict.values, judgements))))
    for kind in kinds:
        if not issubclass(kind, (int, np.integer)) or kind is bool:
            raise ConfigError(f"grades are whole numbers, found {kind.__name__}")
    grades = np.fromiter(chain.from_iterable(map(dict.values, judgements)), np.int64, len(ids))
    return offsets_of(lengths), ids, grades


def _without_scores(rows: Sequence[dict[str, Any]]) -> bool:
    first = next((value for row in rows for value in row.values()), 0.0)
    return first is None and all(value is None for row in rows for value in row.values())


# ------------------------------------------------------------------ plain Python

Retrieved = Sequence[str] | Sequence[tuple[str, float]] | Sequence[Hit] | Mapping[str, float]
"""A ranking: ids in order, or ids with scores (any order), or hits (chunks are then mapped to their documents)."""
EvidenceLike = Mapping[str, int] | Iterable[str | Evidence | Collection[str | Evidence]] | None
"""Gold: ids (each a group of its own), collections of alternatives, or a mapping of ids to grades."""


def recall_at_k(retrieved: Retrieved, evidence: EvidenceLike, k: int, *, ties: Ties = "asc") -> float | None:
    """Share of the evidence groups with an alternative in the first K places; in [0, 1].

    None when there is no evidence: a mean must leave such a question out, and eligibility decides whether it may.
    Nothing retrieved is a legitimate 0. Duplicates count once, before the cut.
    Errors: `bad_k`, `bad_id`, `mixed_scores`, `bad_score`, `empty_group`.

    >>> recall_at_k(["d3", "d1", "d1", "d2"], ["d1", "d2"], 2)
    0.5
    >>> recall_at_k(["d1"], [["d1", "d9"], "d2"], 5)  # d1 or d9, and d2
    0.5
    >>> recall_at_k([], ["d1"], 5), recall_at_k(["d1"], [], 5)
    (0.0, None)

    The mean over answerable questions of the seed example: 5/7, not the .750 that a 1 for the empty list gives.

    >>> values = [1, 1, 0.5, 1, 0, 0.5, 1, recall_at_k(["d1", "d2"], [], 5)]
    >>> eligible = [v for v in values if v is not None]
    >>> round(sum(eligible) / len(eligible), 3), len(eligible)
    (0.714, 7)
    """
    return _one("recall", retrieved, evidence, k, ties)


def complete_at_k(retrieved: Retrieved, evidence: EvidenceLike, k: int, *, ties: Ties = "asc") -> float | None:
    """1.0 if every evidence group is satisfied within K places, else 0.0; None without evidence.

    >>> complete_at_k(["a", "b"], ["a", "b"], 2), complete_at_k(["a", "b"], ["a", "b"], 1)
    (1.0, 0.0)
    """
    return _one("complete", retrieved, evidence, k, ties)


def precision_at_k(retrieved: Retrieved, evidence: EvidenceLike, k: int, *, ties: Ties = "asc") -> float | None:
    """Relevant units in the first K places / K, also when fewer than K came back (trec_eval); None without evidence.

    >>> precision_at_k(["a"], ["a"], 5)
    0.2
    """
    return _one("precision", retrieved, evidence, k, ties)


def hit_at_k(retrieved: Retrieved, evidence: EvidenceLike, k: int, *, ties: Ties = "asc") -> float | None:
    """1.0 if any relevant unit is in the first K places, else 0.0 (success@K); None without evidence.

    >>> hit_at_k(["x", "a"], ["a", "b"], 2)
    1.0
    """
    return _one("hit", retrieved, evidence, k, ties)


def mrr_at_k(retrieved: Retrieved, evidence: EvidenceLike, k: int | None = None, *, ties: Ties = "asc") -> float | None:
    """1 / rank of the first relevant unit, 0 if it is not in the first K places (K None: anywhere).

    None without evidence.

    >>> mrr_at_k(["x", "a"], ["a"], 5), mrr_at_k(["x", "a"], ["a"], 1)
    (0.5, 0.0)
    """
    return _one("mrr", retrieved, evidence, k, ties)


def ndcg_at_k(
    retrieved: Retrieved,
    evidence: EvidenceLike,
    k: int | None = None,
    *,
    exponential: bool = False,
    ties: Ties = "asc",
) -> float | None:
    """DCG / ideal DCG with gain = grade (or 2^grade - 1) and discount log2(rank + 1); the ideal is cut to K as well.

    Grades come with a mapping of ids to grades; otherwise every gold id has grade 1. None without evidence, and when a
    group has more than one alternative (`or_groups_unsupported`): an ideal ranking is then not defined.

    By hand: DCG = 1 + 3/2, ideal = 3 + 2/log2(3) + 1/2 = 4.7619.

    >>> round(ndcg_at_k(["c", "z", "a"], {"a": 3, "b": 2, "c": 1, "z": 0}, 3), 4)
    0.525
    """
    return _one("ndcg_exp" if exponential else "ndcg", retrieved, evidence, k, ties)


def average_precision(retrieved: Retrieved, evidence: EvidenceLike, *, ties: Ties = "asc") -> float | None:
    """Sum of the precisions at the ranks of relevant units / relevant ids, over the whole ranking.

    None without evidence or with alternatives.

    >>> average_precision(["x", "a", "y", "b"], ["a", "b"])  # (1/2 + 2/4) / 2
    0.5
    """
    return _one("map", retrieved, evidence, None, ties)


def r_precision(retrieved: Retrieved, evidence: EvidenceLike, *, ties: Ties = "asc") -> float | None:
    """Relevant units among the first R / R, with R relevant ids. None without evidence or with alternatives.

    >>> r_precision(["x", "a", "y", "b"], ["a", "b"])
    0.5
    """
    return _one("r_precision", retrieved, evidence, None, ties)


def judged_at_k(retrieved: Retrieved, grades: Mapping[str, int], k: int, *, ties: Ties = "asc") -> float | None:
    """Share of the units in the first K places that somebody judged, whatever the grade.

    The denominator is the places that are filled. None when nothing was retrieved or nothing judged. Low values say
    that the other metrics may count unseen relevant units as misses.

    >>> judged_at_k(["a", "x", "b", "y"], {"a": 2, "b": 0}, 4)
    0.5
    """
    k = check_k(k)
    ids = _ranking(retrieved, ties)[:k]
    for key in grades:
        check_id(key)
    if not ids or not grades:
        return None
    return sum(i in grades for i in ids) / len(ids)


def _one(kind: str, retrieved: Retrieved, evidence: EvidenceLike, k: int | None, ties: Ties) -> float | None:
    metric = Metric(kind, None if k is None and kind in _WHOLE_RANKING | {"r_precision"} else check_k(k))
    groups, grades = _evidence(evidence)
    place = {unit: n for n, unit in enumerate(_ranking(retrieved, ties), 1)}
    if not groups:
        return None
    gold, ids = _gold_of([groups], [grades])
    value = float(_Scorer(gold, np.array([place.get(i, 0) for i in ids], np.int64)).values(metric)[0])
    return None if math.isnan(value) else value


def _evidence(evidence: EvidenceLike) -> tuple[tuple[tuple[str, ...], ...], Mapping[str, int] | None]:
    if evidence is None:
        return (), None
    if isinstance(evidence, str):
        raise TypeError(f"evidence is one string, {evidence!r}; give a list of ids")
    if isinstance(evidence, Mapping):
        return document_groups(Question("evidence", grades=evidence)), evidence
    items = sorted(evidence, key=repr) if isinstance(evidence, AbstractSet) else evidence
    gold = tuple(
        (_alternative(item),) if isinstance(item, (str, Evidence)) else tuple(map(_alternative, _group(item)))
        for item in items
    )
    return document_groups(Question("evidence", gold=gold)), None


def _group(item: Any) -> Iterable[Any]:
    if isinstance(item, AbstractSet):
        return sorted(item, key=repr)
    if isinstance(item, Collection):
        return item
    raise MeasurementError("bad_id", [str(item)], "ids are non-empty strings and are not converted")


def _alternative(item: Any) -> Evidence:
    return item if isinstance(item, Evidence) else Evidence(check_id(item))


def _ranking(retrieved: Retrieved, ties: Ties) -> list[str]:
    """Ids in canonical order, each once."""
    if isinstance(retrieved, str):
        raise TypeError(f"retrieved is one string, {retrieved!r}; give a list of ids")
    check_ties(ties)
    if isinstance(retrieved, Mapping):
        return [h.id for h in order_of([Hit(i, i, s) for i, s in retrieved.items()], ties)]
    items: list[Any] = list(retrieved)
    if items and isinstance(items[0], Hit):
        documents = to_documents(run_from_results({"q": Result(tuple(items))}), ties)
        return [documents.units.ids[u] for u in documents.unit]
    if items and isinstance(items[0], tuple):
        return [h.id for h in order_of([Hit(i, i, s) for i, s in items], ties)]
    return list(dict.fromkeys(map(check_id, items)))
