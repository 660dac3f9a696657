"""Tie sensitivity: the worst and the best value that a metric could have over all orders of tied hits.

Where several hits have the same score, the rule for ties (by id) decides which of them is inside the cut, not the
retriever. The range says how much of a number is owed to that rule. Definitions and worked cases: docs/measurement.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from denominator.errors import ConfigError, listing
from denominator.metrics import Metric, ids_at, parse_name, ranked
from denominator.ranking import canonical, to_documents
from denominator.types import Floats, Level, Question, Run, Ties

_COVERAGE_SEARCH = 20_000
_NOISE = 1e-12  # the same gains summed in another order are no difference


@dataclass(frozen=True, slots=True, eq=False)
class TieRange:
    """The worst and the best value of every question over all orders of hits whose scores are equal.

    `values` are those of the canonical order, `low` ≤ `values` ≤ `high`; NaN as in `RankedTable`. `tied[name]` counts
    the questions with gold where the two ends differ: there the rule for ties, not the retriever, decided.
    """

    question_ids: tuple[str, ...]
    values: Mapping[str, Floats]
    low: Mapping[str, Floats]
    high: Mapping[str, Floats]

    def tied(self, name: str) -> int:
        return int((self.high[name] > self.low[name]).sum())  # NaN compares false


_TIE_KINDS = frozenset({"recall", "complete", "precision", "hit", "mrr", "ndcg", "ndcg_exp"})


def tie_range(run: Run, questions: Sequence[Question], names: Sequence[str], *, ties: Ties = "asc") -> TieRange:
    """How far a metric could move if tied hits stood in another order: exact ends, per question, no sampling.

    Only hits with equal scores (equal as float32 under `ties="trec"`) change places. At L1 documents are what ties:
    each keeps the score of its best chunk. For recall@K only the group of ties that the cut goes through matters: of
    its t hits m are inside, and with r relevant among them between max(0, m - (t - r)) and min(m, r) can be. For a
    reciprocal rank the first group of ties that holds anything relevant matters, and DCG is extreme when every group of
    ties stands in rising or falling order of grades. Without scores nothing is tied.
    Errors: those of `ranked`; `ConfigError` for L2 and for metrics that read the whole ranking (map, r_precision).

    Three hits tie for places 1 to 3, one of them is gold; the rule puts it second:

    >>> from denominator.ranking import run_from_dicts
    >>> from denominator.types import Evidence
    >>> q = Question("q", answerability="answerable", gold=((Evidence("b"),),))
    >>> r = tie_range(run_from_dicts({"q": {"a": 1.0, "b": 1.0, "c": 1.0}}), [q], ["recall@1", "mrr@3"])
    >>> [(float(r.low[n][0]), float(r.values[n][0]), float(r.high[n][0])) for n in ("recall@1", "mrr@3")]
    [(0.0, 0.0, 1.0), (0.3333333333333333, 0.5, 1.0)]
    """
    metrics = {name: parse_name(name) for name in names}
    for metric in metrics.values():
        if metric.kind not in _TIE_KINDS or metric.level == "L2":
            raise ConfigError(
                f"tie sensitivity is defined for {listing(_TIE_KINDS)} at L1 and L3, not for {metric.name}"
            )
    table = ranked(run, questions, names, ties=ties)
    low = {name: column.copy() for name, column in table.values.items()}
    high = {name: column.copy() for name, column in table.values.items()}
    position = {question_id: i for i, question_id in enumerate(table.question_ids)}
    for level in sorted({m.level for m in metrics.values()}):
        at_level = to_documents(run, ties) if level == "L1" else canonical(run, ties)
        if at_level.scores is None:
            continue
        with np.errstate(over="ignore"):
            keys = at_level.scores.astype(np.float32) if ties == "trec" else at_level.scores
        for row, question_id in enumerate(at_level.question_ids):
            first, last = int(at_level.offsets[row]), int(at_level.offsets[row + 1])
            key = keys[first:last]
            i = position[question_id]
            if not table.groups[i] or not (key[1:] == key[:-1]).any():
                continue
            ids = [at_level.units.ids[u] for u in at_level.unit[first:last]]
            ranking = _Tied.of(ids, key, questions[i], level)
            for name, metric in metrics.items():
                if metric.level == level and not math.isnan(table.values[name][i]):
                    worst, best = ranking.ends(metric)
                    if best - worst > _NOISE:
                        low[name][i], high[name][i] = worst, best
    return TieRange(table.question_ids, table.values, low, high)


@dataclass(frozen=True, slots=True)
class _Tied:
    """One ranking as groups of ties: (hits before it, its size, the gold ids in it), in order."""

    ties: tuple[tuple[int, int, tuple[str, ...]], ...]
    groups: tuple[tuple[str, ...], ...]
    grades: Mapping[str, float]

    @classmethod
    def of(cls, ids: Sequence[str], keys: Any, question: Question, level: Level) -> _Tied:
        groups = ids_at(question, level)
        graded = question.grades or {}
        grades = {i: float(max(graded.get(i, 1), 0)) for group in groups for i in group}
        starts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(ids)]
        ties = tuple((a, b - a, tuple(i for i in ids[a:b] if i in grades)) for a, b in pairwise(starts))
        return cls(ties, groups, grades)

    def ends(self, metric: Metric) -> tuple[float, float]:
        k = metric.cut
        if metric.kind in {"mrr", "hit"}:
            return self._first(k, metric.kind)
        if metric.kind in {"ndcg", "ndcg_exp"}:
            return self._gain(k, exponential=metric.kind == "ndcg_exp")
        sure = [i for start, size, gold in self.ties if start + size <= k for i in gold]
        start, size, at_cut = next(((s, n, gold) for s, n, gold in self.ties if s < k < s + n), (k, 0, ()))
        room = k - start
        most, least = min(room, len(at_cut)), max(0, room - (size - len(at_cut)))
        if metric.kind == "precision":
            return (len(sure) + least) / k, (len(sure) + most) / k
        covered = [any(i in sure for i in group) for group in self.groups]
        open_groups = [n for n, done in enumerate(covered) if not done]
        serves = [frozenset(n for n in open_groups if i in self.groups[n]) for i in at_cut]
        worst = (sum(covered) + _coverage(serves, least, max_=False)) / len(self.groups)
        best = (sum(covered) + _coverage(serves, most, max_=True)) / len(self.groups)
        return (float(worst == 1), float(best == 1)) if metric.kind == "complete" else (worst, best)

    def _first(self, k: int, kind: str) -> tuple[float, float]:
        for start, size, gold in self.ties:
            if gold:
                best, worst = start + 1, start + size - len(gold) + 1
                if kind == "hit":
                    return float(worst <= k), float(best <= k)
                return (1 / worst if worst <= k else 0.0), (1 / best if best <= k else 0.0)
        return 0.0, 0.0

    def _gain(self, k: int, *, exponential: bool) -> tuple[float, float]:
        def gain(i: str) -> float:
            return 2.0 ** self.grades[i] - 1 if exponential else self.grades[i]

        def discounted(gains: Iterable[float], first_rank: int) -> float:
            return math.fsum(g / math.log2(r + 1) for r, g in enumerate(gains, first_rank) if r <= k)

        ideal = discounted(sorted(map(gain, self.grades), reverse=True), 1)
        low = high = 0.0
        for start, size, gold in self.ties:
            rising = sorted(map(gain, gold))
            low += discounted(rising, start + size - len(gold) + 1)
            high += discounted(reversed(rising), start + 1)
        return low / ideal, high / ideal


def _coverage(serves: Sequence[frozenset[int]], chosen: int, *, max_: bool) -> int:
    """The most or the fewest groups that `chosen` of these alternatives can satisfy.

    Exact while each alternative serves at most one group (any number of them) or the choices can be listed. Beyond
    20,000 choices of alternatives that serve several groups each it is the outer bound: never a narrower range.
    """
    if not chosen:
        return 0
    if all(len(s) <= 1 for s in serves):
        sizes: dict[int, int] = {}
        for s in serves:
            for group in s:
                sizes[group] = sizes.get(group, 0) + 1
        if max_:
            return min(chosen, len(sizes))
        left = chosen - sum(not s for s in serves)  # those that serve nothing new go first, then the largest groups
        fewest = 0
        for size in sorted(sizes.values(), reverse=True):
            if left <= 0:
                break
            left -= size
            fewest += 1
        return fewest
    if math.comb(len(serves), chosen) <= _COVERAGE_SEARCH:
        counts = [len(frozenset().union(*some)) for some in combinations(serves, chosen)]
        return max(counts) if max_ else min(counts)
    sizes_of = sorted((len(s) for s in serves), reverse=max_)
    every = len(frozenset().union(*serves))
    return min(every, sum(sizes_of[:chosen])) if max_ else max(sizes_of[:chosen])
