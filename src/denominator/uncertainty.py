"""Intervals, paired tests, corrections for many comparisons, and the best set (MEASUREMENT.md, sections 8 and 9).

Everything works on plain per-question values. Intervals need no random draws; what does draw takes a seed and uses
`numpy.random.default_rng(seed)` in the order that MEASUREMENT.md section 1 fixes. Draws are made in blocks of rows:
the same stream in bounded memory, and the result does not depend on the size of a block. Sums are exact (`math.fsum`),
so the order of the questions changes no estimate and no interval by a single bit.

>>> estimate_mean([1, 1, 0.5, 1, 0, 0.5, 1]).value == 5 / 7
True
>>> estimate_mean([]).reason
'no_eligible'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, permutations
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from denominator.types import Estimate, Floats, Ints

SLACK = 1e-9  # test statistics are compared with it
DECIMALS = 12  # means are rounded to it before they are ranked
EXACT_SIGNS = 14
EXACT_TUKEY = 50_000
BLOCK = 1 << 21  # drawn numbers held at once
SHARED_SIGNS = 1 << 26  # bytes of sign draws that several tests may share

Values = Sequence[float] | npt.NDArray[Any]
Clusters = Sequence[str | None]
Scores = Mapping[str, Values]

_NORMAL = NormalDist()


# ------------------------------------------------------------------ units, sums, quantiles


def _array(values: Values, low: float, high: float) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"one value per question is needed, found an array of shape {array.shape}")
    # Written so that NaN fails too.
    if array.size and not (array.min() >= low - SLACK and array.max() <= high + SLACK):
        raise ValueError(
            f"values must be finite and lie in [{low:g}, {high:g}], found {array.min():g} to {array.max():g}"
        )
    return array


def _sum(array: Floats) -> float:
    return math.fsum(array.tolist())


def _cluster_positions(clusters: Clusters) -> list[list[int]]:
    """Positions of each cluster, names ascending. A question without a cluster is one of its own."""
    members: dict[tuple[str, int], list[int]] = {}
    for i, name in enumerate(clusters):
        members.setdefault((name, -1) if name is not None else ("", i), []).append(i)
    return [members[key] for key in sorted(members)]


def _units(array: Floats, clusters: Clusters | None) -> tuple[Floats, Floats | None]:
    """One sum and one size per unit; sizes are None where each question is its own unit."""
    if clusters is None:
        return array, None
    if len(clusters) != len(array):
        raise ValueError(f"{len(array)} values but {len(clusters)} clusters")
    groups = _cluster_positions(clusters)
    sums = np.array([math.fsum(array[i] for i in group) for group in groups], dtype=np.float64)
    return sums, np.array([len(group) for group in groups], dtype=np.float64)


@lru_cache(maxsize=64)
def z_quantile(alpha: float) -> float:
    """Upper α/2 quantile of the normal distribution: 1.96 for α = .05."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, found {alpha!r}")
    return _NORMAL.inv_cdf(1 - alpha / 2)


@lru_cache(maxsize=4096)
def t_quantile(alpha: float, df: int) -> float:
    """Upper α/2 quantile of Student's t with `df` degrees of freedom."""
    from scipy.special import stdtrit  # a fifth of what importing scipy.stats costs

    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, found {alpha!r}")
    return float(stdtrit(df, 1 - alpha / 2))


# ------------------------------------------------------------------ intervals


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends and the method, or neither end and the reason."""

    low: float | None
    high: float | None
    method: str | None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def _wilson_ends(p: float, n: float, z: float) -> tuple[float, float]:
    z2 = z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z * math.sqrt(max(p * (1 - p), 0.0) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    low = 0.0 if p <= 0 else min(max(centre - half, 0.0), p)
    high = 1.0 if p >= 1 else max(min(centre + half, 1.0), p)
    return low, high


def wilson(successes: int, n: int, *, alpha: float = 0.05) -> Interval:
    """Wilson's score interval of a rate. n = 0: `n_zero`. Same as scipy `binomtest(…).proportion_ci("wilson")`.

    >>> i = wilson(5, 7)
    >>> round(i.low, 5), round(i.high, 5)
    (0.35893, 0.91778)
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return Interval(None, None, None, "n_zero")
    low, high = _wilson_ends(successes / n, n, z_quantile(alpha))
    return Interval(low, high, "wilson")


def _t_plus_two(sums: Floats, sizes: Floats | None, alpha: float) -> Interval:
    n = len(sums)
    if n < 2:
        return Interval(None, None, None, "n_below_2")
    units = n + 2
    if sizes is None:
        total = _sum(sums)
        mean = total / n
        centre = (total + 1) / units
        deviations = sums - centre
    else:
        size = _sum(sizes) / n
        mean = _sum(sums) / (size * n)
        centre = (_sum(sums) + size) / (size * units)
        deviations = (sums - centre * sizes) / size
    squares = _sum(deviations * deviations) + centre**2 + (1 - centre) ** 2
    half = t_quantile(alpha, units - 1) * math.sqrt(squares / (units * (units - 1)))
    low, high = max(centre - half, 0.0), min(centre + half, 1.0)
    return Interval(min(low, mean), max(high, mean), "t_plus_two")


def t_plus_two(values: Values, *, alpha: float = 0.05, clusters: Clusters | None = None) -> Interval:
    """Student's t interval of the values and one 0 and one 1 more, cut to [0, 1]; for means of values in [0, 1].

    Fewer than two units: `n_below_2`. With clusters a unit is a cluster. MEASUREMENT.md section 8.
    """
    return _t_plus_two(*_units(_array(values, 0, 1), clusters), alpha)


def _matched_ends(part: Floats, sizes: Floats | None, z: float) -> tuple[float, float, float, Floats]:
    """Mean, Wilson's ends at the n whose 0/1 values would vary as much as these, and deviations from the mean."""
    n = len(part)
    size = 1.0 if sizes is None else _sum(sizes) / n
    weights: Floats | float = 1.0 if sizes is None else sizes
    total = _sum(part)
    mean = min(total / (size * n), 1.0)
    around = (total + size / 2) / (size * (n + 1))
    deviations = (part - around * weights) / size
    variance = (_sum(deviations * deviations) + (around**2 + (1 - around) ** 2) / 2) / (n + 1)
    low, high = _wilson_ends(mean, n * around * (1 - around) / variance, z)
    return mean, low, high, (part - mean * weights) / size


def _gains_losses(sums: Floats, sizes: Floats | None, alpha: float) -> Interval:
    if len(sums) < 2:
        return Interval(None, None, None, "n_below_2")
    z = z_quantile(alpha)
    g, g_low, g_high, dg = _matched_ends(np.maximum(sums, 0.0), sizes, z)
    l_, l_low, l_high, dl = _matched_ends(np.maximum(-sums, 0.0), sizes, z)
    spread = math.sqrt(_sum(dg * dg) * _sum(dl * dl))
    r = _sum(dg * dl) / spread if spread > 0 else 0.0
    r = min(max(r, -1.0), 1.0)

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a * a + b * b - 2 * r * a * b, 0.0))

    d = g - l_
    low, high = d - reach(g - g_low, l_high - l_), d + reach(g_high - g, l_ - l_low)
    return Interval(max(low, -1.0), min(high, 1.0), "gains_losses")


def gains_losses(diffs: Values, *, alpha: float = 0.05, clusters: Clusters | None = None) -> Interval:
    """Interval of a mean paired difference in [−1, 1]: Wilson-type ends of gains and of losses, squared and added.

    Fewer than two units: `n_below_2`. Never leaves [−1, 1], mirrors when the signs change, and is never a point:
    nothing differs in 189 questions is ± .0199. MEASUREMENT.md section 8.
    """
    return _gains_losses(*_units(_array(diffs, -1, 1), clusters), alpha)


def _blocks(resamples: int, width: int) -> Iterator[tuple[int, int]]:
    """Row ranges that hold about BLOCK drawn numbers each."""
    rows = max(1, BLOCK // max(width, 1))
    for start in range(0, resamples, rows):
        yield start, min(start + rows, resamples)


def _counts(n: int, seed: int, resamples: int) -> Iterator[tuple[int, int, Floats]]:
    """How often each unit is in each resample, in blocks of rows."""
    rng = np.random.default_rng(seed)
    for start, stop in _blocks(resamples, n):
        rows = stop - start
        draw = rng.integers(0, n, (rows, n))
        draw += np.arange(rows)[:, None] * n
        yield start, stop, np.bincount(draw.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def bca_many(
    columns: Sequence[Values] | npt.NDArray[Any],
    *,
    clusters: Clusters | None = None,
    seed: int = 0,
    resamples: int = 9999,
    alpha: float = 0.05,
) -> list[Interval]:
    """BCa bootstrap intervals of the means of many columns over the same questions, with one shared draw.

    Each interval is the one that `bca` gives for that column alone.
    """
    arrays = [_array(column, -math.inf, math.inf) for column in columns]
    if not arrays:
        return []
    found: dict[int, Interval] = {}
    units = [_units(array, clusters) for array in arrays]
    n = len(units[0][0])
    for i, array in enumerate(arrays):
        if n < 2:
            found[i] = Interval(None, None, "bca", "n_below_2")
        elif array.max() - array.min() <= 0:
            found[i] = Interval(None, None, "bca", "constant_values")
    todo = [i for i in range(len(arrays)) if i not in found]
    if todo:
        matrix = np.stack([units[i][0] for i in todo], axis=1)
        sizes = units[0][1]
        stars = np.empty((resamples, len(todo)))
        for start, stop, counts in _counts(n, seed, resamples):
            total: Floats | float = float(n) if sizes is None else (counts @ sizes)[:, None]
            stars[start:stop] = (counts @ matrix) / total
        for j, i in enumerate(todo):
            found[i] = _bca_ends(matrix[:, j], sizes, np.ascontiguousarray(stars[:, j]), alpha)
    return [found[i] for i in range(len(arrays))]


def _bca_ends(sums: Floats, sizes: Floats | None, stars: Floats, alpha: float) -> Interval:
    weights = np.ones(len(sums)) if sizes is None else sizes
    total, weight = _sum(sums), _sum(weights)
    apart = np.round(stars - total / weight, DECIMALS)
    below = (np.count_nonzero(apart < 0) + np.count_nonzero(apart <= 0)) / (2 * len(stars))
    left_out = (total - sums) / (weight - weights)
    deviations = left_out.mean() - left_out
    squares = float(deviations @ deviations)
    if not 0 < below < 1 or not apart.any() or squares <= 0:
        return Interval(None, None, "bca", "bca_degenerate")
    acceleration = float((deviations**3).sum()) / (6 * squares**1.5)
    z0 = _NORMAL.inv_cdf(below)
    ends = []
    for z in (-z_quantile(alpha), z_quantile(alpha)):
        shifted = z0 + (z0 + z) / (1 - acceleration * (z0 + z))
        ends.append(float(np.percentile(stars, 100 * _NORMAL.cdf(shifted))))
    return Interval(ends[0], ends[1], "bca")


def bca(
    values: Values,
    *,
    clusters: Clusters | None = None,
    seed: int = 0,
    resamples: int = 9999,
    alpha: float = 0.05,
) -> Interval:
    """Bias-corrected and accelerated bootstrap interval of a mean (Efron 1987); only on request.

    Reasons: `n_below_2`, `constant_values`, `bca_degenerate` (no bootstrap spread). It is too short where values pile
    up at 0 or 1, as docs/validity.md shows, and so is nobody's default here.
    """
    return bca_many([values], clusters=clusters, seed=seed, resamples=resamples, alpha=alpha)[0]


def interval(
    kind: Literal["rate", "mean", "difference"],
    values: Values,
    *,
    clusters: Clusters | None = None,
    method: str | None = None,
    alpha: float = 0.05,
    seed: int = 0,
    resamples: int = 9999,
) -> Interval:
    """The interval that belongs to a kind of quantity; `method="bca"` only if it is asked for.

    A rate is Wilson's, with clusters that of a mean (Wilson would count questions that repeat each other).
    """
    if method == "bca" and kind in {"mean", "difference"}:
        return bca(values, clusters=clusters, seed=seed, resamples=resamples, alpha=alpha)
    if method is not None:
        raise ValueError(f"no method {method!r} for a {kind}: only 'bca', for a mean or a difference")
    if kind == "difference":
        return gains_losses(values, alpha=alpha, clusters=clusters)
    if kind == "mean" or clusters is not None:
        return t_plus_two(values, alpha=alpha, clusters=clusters)
    array = _array(values, 0, 1)
    return wilson(_successes(array), len(array), alpha=alpha)


def _successes(array: Floats) -> int:
    if array.size and not np.isin(array, (0.0, 1.0)).all():
        raise ValueError("a rate needs values that are 0 or 1")
    return int(array.sum())


# ------------------------------------------------------------------ estimates

RATES = frozenset({"hit", "complete", "exact_match", "correctness"})


def is_rate(metric: str) -> bool:
    """Whether a metric is 0 or 1 for each question, so that its mean is a rate (Wilson, McNemar).

    >>> is_rate("hit@5"), is_rate("chunk_complete@10"), is_rate("recall@5")
    (True, True, False)
    """
    base = metric.partition("@")[0]
    for prefix in ("slot_", "chunk_"):
        base = base.removeprefix(prefix)
    return base in RATES


def estimate_mean(
    values: Values,
    *,
    clusters: Clusters | None = None,
    alpha: float = 0.05,
    k: int | None = None,
    level: str | None = None,
    unit: str = "questions",
    aggregation: str = "macro",
    reason: str = "no_eligible",
    rate: bool = False,
) -> Estimate:
    """The mean of per-question values in [0, 1] with its `t_plus_two` interval, as an `Estimate`.

    No values: `value=None, n=0` with `reason`. One value (or one cluster): a value without an interval.
    `n` counts the values, not the clusters. `rate=True` says that all values are 0 or 1: Wilson's interval, unless
    there are clusters. Raises ValueError for a value that is not finite or outside [0, 1].

    >>> e = estimate_mean([1, 1, 0.5, 1, 0, 0.5, 1], k=5, level="L1")
    >>> e.n, round(e.value, 3), round(e.ci_low, 5), round(e.ci_high, 5), e.ci_method
    (7, 0.714, 0.33382, 0.99951, 't_plus_two')
    """
    array = _array(values, 0, 1)
    n = len(array)
    if n == 0:
        return Estimate(None, 0, reason, unit=unit, k=k, level=level, aggregation=aggregation)
    if rate and clusters is None:
        i = wilson(_successes(array), n, alpha=alpha)
    else:
        i = _t_plus_two(*_units(array, clusters), alpha)
    return Estimate(
        _sum(array) / n, n, None, i.low, i.high, i.method, unit=unit, k=k, level=level, aggregation=aggregation
    )


def estimate_rate(
    successes: int,
    n: int,
    *,
    alpha: float = 0.05,
    k: int | None = None,
    level: str | None = None,
    unit: str = "questions",
    aggregation: str = "macro",
    reason: str = "no_eligible",
) -> Estimate:
    """A rate with Wilson's interval, from counts. n = 0: None with `reason`.

    With clusters use `estimate_mean(…, rate=True)`.

    >>> estimate_rate(0, 10).ci_high < 0.278
    True
    """
    i = wilson(successes, n, alpha=alpha)
    if n == 0:
        return Estimate(None, 0, reason, unit=unit, k=k, level=level, aggregation=aggregation)
    return Estimate(
        successes / n, n, None, i.low, i.high, i.method, unit=unit, k=k, level=level, aggregation=aggregation
    )


def estimate_micro(
    values: Values,
    groups: Sequence[int] | Ints,
    *,
    clusters: Clusters | None = None,
    alpha: float = 0.05,
    k: int | None = None,
    level: str | None = None,
    unit: str = "groups",
    reason: str = "no_eligible",
) -> Estimate:
    """Micro average: per-question means over groups, weighted by the number of groups; n counts groups.

    The interval takes each question (or each cluster of questions) as a cluster of its groups.

    >>> e = estimate_micro([1.0, 0.5], [1, 4])
    >>> e.value, e.n
    (0.6, 5)
    """
    array, weights = _array(values, 0, 1), np.asarray(groups, dtype=np.float64)
    if array.shape != weights.shape:
        raise ValueError(f"{len(array)} values but {len(weights)} group counts")
    if array.size and weights.min() < 1:
        raise ValueError("every scored question has at least one group")
    n = int(weights.sum())
    if n == 0:
        return Estimate(None, 0, reason, unit=unit, k=k, level=level, aggregation="micro")
    # A value is a count over a count; rounding gives the count back.
    sums = np.round(array * weights, DECIMALS)
    if clusters is not None:
        members = _cluster_positions(clusters)
        sums = np.array([_sum(sums[m]) for m in members])
        weights = np.array([_sum(weights[m]) for m in members])
    i = _t_plus_two(sums, weights, alpha)
    return Estimate(_sum(sums) / n, n, None, i.low, i.high, i.method, unit=unit, k=k, level=level, aggregation="micro")


# ------------------------------------------------------------------ paired tests


@dataclass(frozen=True, slots=True)
class Significance:
    """A p-value, how many units decided it (m), how it was found, and the least p that was within reach."""

    p: float
    m: int
    method: str
    min_p: float
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def min_p(m: int) -> float:
    """The least two-sided p-value that m non-zero differences can reach: 2^(1 − m), at most 1.

    >>> min_p(5)
    0.0625
    """
    return min(1.0, 2.0 ** (1 - m))


@dataclass(slots=True)
class _Signs:
    """Coin flips that tests with the same seed may share: m flips a row are the first B·m of one stream."""

    seed: int
    resamples: int
    flips: npt.NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))

    def prepare(self, m: int) -> None:
        size = self.resamples * m
        if len(self.flips) < size <= SHARED_SIGNS:
            rng = np.random.default_rng(self.seed)
            self.flips = np.empty(size, np.int8)
            for start in range(0, size, BLOCK):
                stop = min(start + BLOCK, size)
                self.flips[start:stop] = rng.integers(0, 2, stop - start)

    def sums(self, d: Floats) -> Floats:
        m, total = len(d), float(d.sum())
        out = np.empty(self.resamples)
        shared = self.resamples * m <= len(self.flips)
        rng = None if shared else np.random.default_rng(self.seed)
        for start, stop in _blocks(self.resamples, m):
            if rng is None:
                bits: npt.NDArray[Any] = self.flips[start * m : stop * m].reshape(stop - start, m)
            else:
                bits = rng.integers(0, 2, (stop - start, m))
            out[start:stop] = 2 * (bits.astype(np.float64) @ d) - total
        return out


def _sign_flip(sums: Floats, signs: _Signs, exact_up_to: int) -> Significance:
    d = np.round(sums, DECIMALS)
    d = d[d != 0]
    m = len(d)
    if m == 0:
        return Significance(1.0, 0, "none", 1.0, "no_differences")
    seen = abs(_sum(d)) - SLACK
    if m <= exact_up_to:
        totals = np.zeros(1)
        for x in d:  # every combination of signs, built up one difference at a time
            totals = np.concatenate((totals + x, totals - x))
        return Significance(float(np.count_nonzero(np.abs(totals) >= seen) / len(totals)), m, "exact", min_p(m))
    more = int(np.count_nonzero(np.abs(signs.sums(d)) >= seen))
    return Significance((1 + more) / (signs.resamples + 1), m, "monte_carlo", 1 / (signs.resamples + 1))


def sign_flip(
    diffs: Values,
    *,
    clusters: Clusters | None = None,
    seed: int = 0,
    resamples: int = 9999,
    exact_up_to: int = EXACT_SIGNS,
) -> Significance:
    """Two-sided sign-flip permutation test of paired differences on their sum (on one sum a cluster).

    Zeros drop out; none left: p = 1, `no_differences`. Exact for m ≤ 14, else p = (1 + #)/(B + 1).

    >>> sign_flip([0.5, 0.5, 0.5]).p
    0.25
    """
    sums, _ = _units(_array(diffs, -math.inf, math.inf), clusters)
    return _sign_flip(sums, _Signs(seed, resamples), exact_up_to)


def mcnemar(b: int, c: int) -> Significance:
    """Exact McNemar test on the two discordant counts: two-sided binomial, at most 1. None: `no_discordant_pairs`.

    >>> mcnemar(1, 8).p
    0.0390625
    """
    if min(b, c) < 0:
        raise ValueError(f"counts cannot be negative: {b}, {c}")
    if b + c == 0:
        return Significance(1.0, 0, "none", 1.0, "no_discordant_pairs")
    from scipy.special import bdtr

    return Significance(min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5))), b + c, "mcnemar", min_p(b + c))


def holm(pvalues: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjustment: running maximum of (k − i)·p over p ascending (ties by name), at most 1.

    >>> holm({"a": 0.01, "b": 0.04})
    {'a': 0.02, 'b': 0.04}
    """
    adjusted: dict[str, float] = {}
    running = 0.0
    order = sorted(pvalues, key=lambda name: (pvalues[name], name))
    for i, name in enumerate(order):
        running = max(running, min(1.0, (len(order) - i) * pvalues[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in pvalues}


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired comparison a − b: mean difference, its interval and test, and what the questions say one by one."""

    value: float | None
    n: int
    low: float | None
    high: float | None
    ci_method: str | None
    reason: str | None
    p: float
    test: str
    m: int
    min_p: float
    wins: int
    losses: int
    ties: int
    sd: float | None
    mdd: float | None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def _unit_sd(sums: Floats, sizes: Floats | None) -> float | None:
    """Standard deviation (n − 1) of one unit's share in the mean."""
    n = len(sums)
    if n < 2:
        return None
    if sizes is None:
        deviations = sums - _sum(sums) / n
    else:
        size = _sum(sizes) / n
        deviations = (sums - sizes * _sum(sums) / (size * n)) / size
    return math.sqrt(_sum(deviations * deviations) / (n - 1))


def paired_differences(
    pairs: Sequence[tuple[Values, Values]],
    *,
    clusters: Clusters | None = None,
    alpha: float = 0.05,
    seed: int = 0,
    resamples: int = 9999,
    binary: bool = False,
) -> list[Difference]:
    """`paired_difference` for many pairs over the same questions; the tests share their draws."""
    signs = _Signs(seed, resamples)
    rows = []
    for a, b in pairs:
        x, y = _array(a, 0, 1), _array(b, 0, 1)
        if len(x) != len(y):
            raise ValueError(f"{len(x)} values against {len(y)}: a paired comparison needs the same questions")
        diffs = np.round(x - y, DECIMALS)
        rows.append((x, y, diffs, *_units(diffs, clusters)))
    if not binary or clusters is not None:
        needed = [int(np.count_nonzero(np.round(sums, DECIMALS))) for *_, sums, _ in rows]
        signs.prepare(max((m for m in needed if m > EXACT_SIGNS), default=0))
    found = []
    for x, y, diffs, sums, sizes in rows:
        n = len(diffs)
        wins, losses = int(np.count_nonzero(diffs > 0)), int(np.count_nonzero(diffs < 0))
        if binary and clusters is None:
            _successes(x), _successes(y)
            test = mcnemar(wins, losses)
        else:
            test = _sign_flip(sums, signs, EXACT_SIGNS)
        i = _gains_losses(sums, sizes, alpha)
        sd = _unit_sd(sums, sizes)
        value = _sum(diffs) / n if n else None
        found.append(
            Difference(
                value,
                n,
                i.low,
                i.high,
                i.method,
                "no_eligible" if n == 0 else i.reason,
                test.p,
                test.method,
                test.m,
                test.min_p,
                wins,
                losses,
                n - wins - losses,
                sd,
                None if sd is None else mdd(sd, len(sums), alpha=alpha).value,
            )
        )
    return found


def paired_difference(
    a: Values,
    b: Values,
    *,
    clusters: Clusters | None = None,
    alpha: float = 0.05,
    seed: int = 0,
    resamples: int = 9999,
    binary: bool = False,
) -> Difference:
    """The difference a − b over the same questions in the same order: interval, test, wins and losses.

    `binary=True` (hit, complete): exact McNemar, unless there are clusters. No questions: value None, `no_eligible`.
    Raises ValueError when the lengths differ.

    >>> d = paired_difference([1, 1, 0.5], [0.5, 0.5, 0.5])
    >>> round(d.value, 3), d.wins, d.losses, d.ties, d.p
    (0.333, 2, 0, 1, 0.5)
    """
    return paired_differences([(a, b)], clusters=clusters, alpha=alpha, seed=seed, resamples=resamples, binary=binary)[
        0
    ]


# ------------------------------------------------------------------ many configurations at once


@dataclass(frozen=True, slots=True)
class Tukey:
    """Randomised Tukey HSD: means, and p for each pair (a, b) with a < b."""

    means: Mapping[str, float]
    p: Mapping[tuple[str, str], float]
    method: str
    resamples: int

    def of(self, a: str, b: str) -> float:
        """The p-value of a pair in either order; 1 for a configuration against itself."""
        return 1.0 if a == b else self.p[(a, b) if a < b else (b, a)]


@dataclass(frozen=True, slots=True)
class BestSet:
    """The best mean (ties: smallest id) and everything that Tukey's test cannot tell from it."""

    best: str
    members: tuple[str, ...]
    tukey: Tukey


def _table(scores: Scores, clusters: Clusters | None) -> tuple[list[str], Floats, Floats | None]:
    """Names ascending, one row a unit and one column a configuration, and the units' sizes."""
    if not scores:
        raise ValueError("no configurations")
    names = sorted(scores)
    arrays = [_array(scores[name], 0, 1) for name in names]
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise ValueError(f"configurations have different numbers of questions: {sorted(lengths)}")
    units = [_units(array, clusters) for array in arrays]
    return names, np.stack([sums for sums, _ in units], axis=1), units[0][1]


def _means(scores: Scores) -> dict[str, float]:
    return {name: _sum(_array(scores[name], 0, 1)) / len(scores[name]) for name in sorted(scores)}


def best_of(means: Mapping[str, float]) -> str:
    """The largest mean after rounding to 12 decimals; ties take the smallest id."""
    return min(means, key=lambda name: (-round(means[name], DECIMALS), name))


def tukey(
    scores: Scores,
    *,
    clusters: Clusters | None = None,
    seed: int = 0,
    resamples: int = 9999,
    exact_up_to: int = EXACT_TUKEY,
) -> Tukey:
    """Randomised Tukey HSD over all pairs: configurations are permuted within each question (each cluster's sums).

    The statistic is max − min of the means, so all pairs together have error rate α (Carterette 2012). Exact when
    (c!)ⁿ ≤ 50 000, else p = (1 + #)/(B + 1). `scores` maps each configuration to its values, for the same questions in
    the same order.
    """
    names, matrix, sizes = _table(scores, clusters)
    n, c = matrix.shape
    if n == 0:
        raise ValueError("no questions")
    total = float(n) if sizes is None else _sum(sizes)
    exact = n * math.log(math.factorial(c)) <= math.log(exact_up_to) + SLACK
    if exact:
        sums = np.zeros((1, c))
        for row in matrix:
            orders = np.array(list(permutations(row)))
            sums = (sums[:, None, :] + orders[None, :, :]).reshape(-1, c)
        null = np.ptp(sums, axis=1) / total
    else:
        rng = np.random.default_rng(seed)
        null = np.empty(resamples)
        for start, stop in _blocks(resamples, n * c):
            shuffled = rng.permuted(np.tile(matrix, (stop - start, 1)), axis=1)
            null[start:stop] = np.ptp(shuffled.reshape(stop - start, n, c).sum(axis=1), axis=1) / total
    null.sort()
    extra = 0 if exact else 1
    means = _means(scores)
    p = {}
    for a, b in combinations(names, 2):
        reached = len(null) - int(np.searchsorted(null, abs(means[a] - means[b]) - SLACK, side="left"))
        p[a, b] = (extra + reached) / (extra + len(null))
    return Tukey(means, p, "exact" if exact else "monte_carlo", len(null))


def best_set(
    scores: Scores,
    *,
    alpha: float = 0.05,
    clusters: Clusters | None = None,
    seed: int = 0,
    resamples: int = 9999,
    exact_up_to: int = EXACT_TUKEY,
) -> BestSet:
    """The best mean and everything with Tukey p > α against it, names ascending.

    >>> best_set({"z": [1, 0, 1], "m": [0, 1, 1]}).members
    ('m', 'z')
    """
    t = tukey(scores, clusters=clusters, seed=seed, resamples=resamples, exact_up_to=exact_up_to)
    best = best_of(t.means)
    return BestSet(best, tuple(c for c in sorted(scores) if t.of(best, c) > alpha), t)


@dataclass(frozen=True, slots=True)
class Optimism:
    """How much of the best mean is luck of the draw: corrected = apparent − optimism."""

    best: str
    apparent: float
    optimism: float
    corrected: float


def optimism(scores: Scores, *, clusters: Clusters | None = None, seed: int = 0, resamples: int = 2000) -> Optimism:
    """Winner's curse: over resamples of the questions, the winner's mean there minus its mean on all.

    With clusters, clusters are drawn (names ascending). The optimism may be negative; it is not clipped.
    """
    names, matrix, sizes = _table(scores, clusters)
    n = len(matrix)
    if n == 0:
        raise ValueError("no questions")
    means = _means(scores)
    everything = np.array([means[name] for name in names])
    gaps = np.empty(resamples)
    for start, stop, counts in _counts(n, seed, resamples):
        total: Floats | float = float(n) if sizes is None else (counts @ sizes)[:, None]
        drawn = (counts @ matrix) / total
        winner = np.argmax(np.round(drawn, DECIMALS), axis=1)  # the first of equals: names are ascending
        gaps[start:stop] = drawn[np.arange(stop - start), winner] - everything[winner]
    best = best_of(means)
    gap = _sum(gaps) / resamples
    return Optimism(best, means[best], gap, means[best] - gap)


@dataclass(frozen=True, slots=True)
class NestedCV:
    """The honest score of "pick the best": `chosen[f]` was picked without fold f and scored on it."""

    value: float | None
    n: int
    chosen: tuple[str, ...]
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"value": self.value, "n": self.n, "chosen": list(self.chosen), "reason": self.reason}


def nested_cv(scores: Scores, ids: Sequence[str], *, clusters: Clusters | None = None, folds: int = 5) -> NestedCV:
    """Mean over questions of the score of the configuration that was best on the other folds.

    Units (ids, or cluster names) are sorted and dealt: fold = position mod `folds`; a cluster is never split. Fewer
    units than folds leave folds empty; fewer than two units: `n_below_2`.
    """
    names, matrix, _ = _table(scores, None)
    if len(ids) != len(matrix):
        raise ValueError(f"{len(matrix)} values but {len(ids)} question ids")
    # A question without a cluster is dealt by its own id; the pair keeps it apart from a cluster of that name.
    units = [
        (name, "") if name is not None else (q, q) for q, name in zip(ids, clusters or [None] * len(ids), strict=True)
    ]
    place = {unit: i % folds for i, unit in enumerate(sorted(set(units)))}
    if len(place) < 2:
        return NestedCV(None, len(ids), (), "n_below_2" if len(ids) else "no_eligible")
    fold = np.array([place[unit] for unit in units])
    chosen, held = [], []
    for f in range(folds):
        inside = fold == f
        if not inside.any():
            continue
        rest = matrix[~inside]
        means = {name: _sum(rest[:, j]) / len(rest) for j, name in enumerate(names)}
        best = best_of(means)
        chosen.append(best)
        held.extend(matrix[inside, names.index(best)].tolist())
    return NestedCV(math.fsum(held) / len(held), len(held), tuple(chosen))


# ------------------------------------------------------------------ planning, verdict, Pareto front


@dataclass(frozen=True, slots=True)
class Detectable:
    """A minimum detectable difference or the reason why there is none."""

    value: float | None
    reason: str | None = None


def mdd(sd: float, n: int, *, alpha: float = 0.05, power: float = 0.8) -> Detectable:
    """The least true difference that n paired units with this standard deviation find with the given power.

    (z₁₋α/₂ + z_power)·sd/√n. n < 2: `n_below_2`.

    >>> round(mdd(0.3, 100).value, 5)
    0.08405
    """
    if n < 2:
        return Detectable(None, "n_below_2")
    return Detectable((z_quantile(alpha) + _NORMAL.inv_cdf(power)) * sd / math.sqrt(n))


Verdict = Literal["better", "worse", "equivalent", "small", "inconclusive"]


def verdict(
    p: float, diff: float, low: float | None, high: float | None, *, delta: float = 0.02, alpha: float = 0.05
) -> Verdict:
    """What may be said of candidate − baseline: the first matching row of MEASUREMENT.md section 8.

    >>> verdict(0.4, 0.002, -0.015, 0.019)
    'equivalent'
    """
    if p <= alpha and abs(diff) >= delta:
        return "better" if diff > 0 else "worse"
    if low is not None and high is not None and -delta < low and high < delta:
        return "equivalent"
    return "small" if p <= alpha else "inconclusive"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration with its quality (up) and its costs (down); None where something is not known."""

    id: str
    quality: float | None
    costs: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """Ids that nothing dominates, and ids with an unknown value, both ascending."""

    front: tuple[str, ...]
    not_comparable: tuple[str, ...]


def pareto(candidates: Sequence[Candidate]) -> ParetoFront:
    """The Pareto front. Dominated: another is no worse in everything and better in something; exact ties all stay."""
    known: dict[str, tuple[float, ...]] = {}
    for c in candidates:
        costs = [x for x in c.costs if x is not None]
        if c.quality is not None and len(costs) == len(c.costs):
            known[c.id] = (-c.quality, *costs)
    if len({len(point) for point in known.values()}) > 1:
        raise ValueError("candidates have different numbers of costs")

    def beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    front = [i for i, point in known.items() if not any(beats(other, point) for other in known.values())]
    return ParetoFront(tuple(sorted(front)), tuple(sorted(c.id for c in candidates if c.id not in known)))
