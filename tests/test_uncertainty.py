"""Intervals and tests against scipy, against plain loops, and against what must hold for any values."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from denominator import uncertainty as u
from tests.conftest import examples

SIXTEEN = [0, 0.25, 1, 0.75, 0.5, 1, 1, 0, 0.25, 0.5, 1, 0.75, 0, 1, 0.5, 0.25]
TWENTY = [0.5, 0.25, -0.25, 0.5, 0, 0, 1, -0.5, 0, 0, 0.25, 0, 0, -1, 0.5, 0, 0, 0, 0.25, 0]

units = st.lists(st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 2 / 3, 0.9, 1.0]), min_size=2, max_size=60)
signed = st.lists(st.sampled_from([-1.0, -0.5, -1 / 3, 0.0, 0.0, 0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=60)


# ------------------------------------------------------------------ against scipy


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 10), (3, 7), (5, 7), (99, 100), (250, 500)])
def test_wilson_is_scipys(k: int, n: int) -> None:
    expected = stats.binomtest(k, n).proportion_ci(method="wilson")
    got = u.wilson(k, n)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), abs=1e-14)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_quantiles_are_scipys(alpha: float) -> None:
    assert u.z_quantile(alpha) == pytest.approx(stats.norm.ppf(1 - alpha / 2), abs=1e-13)
    for df in (1, 2, 9, 100, 5000):
        assert u.t_quantile(alpha, df) == pytest.approx(stats.t.ppf(1 - alpha / 2, df), rel=1e-12)


@pytest.mark.parametrize("values", [SIXTEEN, [1.0] * 30, [0.5] * 12, [0.0, 1.0] * 40])
def test_t_plus_two_is_scipys_t_interval_of_two_more_values(values: list[float]) -> None:
    more = [*values, 0, 1]
    low, high = stats.t.interval(0.95, len(more) - 1, loc=np.mean(more), scale=stats.sem(more))
    got = u.t_plus_two(values)
    assert (got.low, got.high) == pytest.approx((max(low, 0), min(high, 1)), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("values", [SIXTEEN, TWENTY])
def test_bca_is_scipys_on_the_same_draws(values: list[float], seed: int) -> None:
    """Multiples of ¼: sums are exact, so no float noise splits ties (MEASUREMENT.md section 10, f)."""
    expected = stats.bootstrap(
        (np.array(values),),
        np.mean,
        n_resamples=2000,
        method="BCa",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    got = u.bca(values, seed=seed, resamples=2000)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_many_bca_intervals_are_the_single_ones() -> None:
    columns = np.random.default_rng(1).integers(0, 5, (6, 40)) / 4
    columns[2] = 0.5
    assert u.bca_many(columns, seed=3, resamples=500) == [u.bca(c, seed=3, resamples=500) for c in columns]
    names = [f"d{i % 9}" for i in range(40)]
    assert u.bca_many(columns, clusters=names, resamples=500) == [
        u.bca(c, clusters=names, resamples=500) for c in columns
    ]
    assert u.bca_many([]) == []


@pytest.mark.parametrize(("b", "c"), [(0, 1), (1, 8), (3, 3), (40, 61), (700, 800)])
def test_mcnemar_is_the_two_sided_binomial(b: int, c: int) -> None:
    assert u.mcnemar(b, c).p == pytest.approx(stats.binomtest(b, b + c, 0.5).pvalue, rel=1e-12)
    assert u.mcnemar(b, c) == u.mcnemar(c, b)


@pytest.mark.parametrize("diffs", [[0.5, 0.5, -0.25, 1, 0.75, -0.5, 0.25, 1], TWENTY[:12]])
def test_exact_sign_flip_is_scipys(diffs: list[float]) -> None:
    def total(a, b, axis=-1):
        return np.sum(a - b, axis=axis)

    expected = stats.permutation_test(
        (np.array(diffs), np.zeros(len(diffs))),
        total,
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    ).pvalue
    got = u.sign_flip(diffs)
    assert got.method == "exact"
    assert got.p == pytest.approx(expected, abs=1e-12)


def test_monte_carlo_sign_flip_is_near_the_exact_one() -> None:
    diffs = [0.5, 0.25, -0.25, 0.5, 0.25, 0.5, -0.5, 0.25, 0.25, 0.5, 0.25, -0.25]
    exact, drawn = u.sign_flip(diffs), u.sign_flip(diffs, exact_up_to=0, resamples=20_000)
    assert (exact.method, drawn.method) == ("exact", "monte_carlo")
    assert drawn.p == pytest.approx(exact.p, abs=4 * math.sqrt(exact.p * (1 - exact.p) / 20_000))


def test_gains_losses_of_zero_and_one_is_newcombes_square_and_add() -> None:
    """For 0/1 gains and losses: Wilson's ends of both shares, squared and added with their correlation."""
    b, c, n = 12, 5, 60
    d = [1] * b + [-1] * c + [0] * (n - b - c)
    g, l_ = b / n, c / n
    (g1, g2), (l1, l2) = (stats.binomtest(k, n).proportion_ci(method="wilson") for k in (b, c))
    r = np.corrcoef([x == 1 for x in d], [x == -1 for x in d])[0, 1]
    low = g - l_ - math.sqrt((g - g1) ** 2 + (l2 - l_) ** 2 - 2 * r * (g - g1) * (l2 - l_))
    high = g - l_ + math.sqrt((g2 - g) ** 2 + (l_ - l1) ** 2 - 2 * r * (g2 - g) * (l_ - l1))
    got = u.gains_losses(d)
    assert (got.low, got.high) == pytest.approx((low, high), abs=1e-12)


def test_mdd_has_the_power_that_it_says() -> None:
    least = u.mdd(0.3, 100, alpha=0.05, power=0.8).value
    assert least is not None
    shift = least / (0.3 / math.sqrt(100))
    assert 1 - stats.norm.cdf(stats.norm.ppf(0.975) - shift) == pytest.approx(0.8, abs=1e-12)


# ------------------------------------------------------------------ what must hold for any values


@settings(deadline=None)
@given(signed)
def test_gains_losses_mirrors(values: list[float]) -> None:
    there, back = u.gains_losses(values), u.gains_losses([-v for v in values])
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=1e-12)


@settings(deadline=None)
@given(signed, st.randoms(use_true_random=False))
def test_order_of_differences_changes_no_bit(values: list[float], random) -> None:
    mixed = random.sample(values, len(values))
    assert u.gains_losses(values) == u.gains_losses(mixed)
    if len(values) <= u.EXACT_SIGNS:
        assert u.sign_flip(values).p == u.sign_flip(mixed).p


@settings(deadline=None)
@given(signed)
def test_gains_losses_holds_its_estimate_and_stays_in_range(values: list[float]) -> None:
    i = u.gains_losses(values)
    d = math.fsum(values) / len(values)
    assert -1 <= i.low <= d + 1e-12
    assert d - 1e-12 <= i.high <= 1
    assert i.high - i.low > 0


@settings(deadline=None)
@given(units, st.randoms(use_true_random=False))
def test_mean_estimate_holds_its_value_in_any_order(values: list[float], random) -> None:
    e = u.estimate_mean(values)
    assert 0 <= e.ci_low <= e.value <= e.ci_high <= 1
    assert e.ci_high > e.ci_low
    assert e == u.estimate_mean(random.sample(values, len(values)))
    assert e.n == len(values)


@settings(deadline=None)
@given(units, st.integers(1, 6), st.randoms(use_true_random=False))
def test_clustered_intervals_do_not_depend_on_order_or_names(values: list[float], k: int, random) -> None:
    names = [f"d{i % k}" for i in range(len(values))]
    order = random.sample(range(len(values)), len(values))
    mixed, renamed = [values[i] for i in order], [f"x{names[i]}" for i in order]
    assert u.t_plus_two(values, clusters=names) == u.t_plus_two(mixed, clusters=renamed)
    shifted = [v - 0.5 for v in values]
    first = u.gains_losses(shifted, clusters=names)
    second = u.gains_losses([shifted[i] for i in order], clusters=renamed)
    if first.low is None:
        assert second.reason == "n_below_2"
    else:
        assert (first.low, first.high) == pytest.approx((second.low, second.high), abs=1e-12)


@settings(deadline=None)
@given(units)
def test_clusters_of_one_change_nothing(values: list[float]) -> None:
    names = [str(i) for i in range(len(values))]
    plain, alone = u.t_plus_two(values), u.t_plus_two(values, clusters=names)
    assert (plain.low, plain.high) == pytest.approx((alone.low, alone.high), abs=1e-12)
    assert u.t_plus_two(values, clusters=[None] * len(values)) == alone


@settings(deadline=None)
@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(0, 1), min_size=1, max_size=8))
def test_holm_by_its_definition(pvalues: dict[str, float]) -> None:
    order = sorted(pvalues.values())
    adjusted = u.holm(pvalues)
    for name, p in pvalues.items():
        below = [min(1.0, (len(order) - i) * q) for i, q in enumerate(order) if q <= p]
        # Equal p-values share the largest factor among them only through the running maximum.
        assert adjusted[name] >= p
        assert adjusted[name] <= max(below) + 1e-12
    ranked = sorted(pvalues, key=lambda n: (pvalues[n], n))
    assert [adjusted[n] for n in ranked] == sorted(adjusted[n] for n in ranked)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 3)),
            st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 3))),
        ),
        max_size=9,
    )
)
def test_pareto_by_its_definition(points) -> None:
    candidates = [u.Candidate(f"c{i}", q, costs) for i, (q, costs) in enumerate(points)]
    known = [c for c in candidates if c.quality is not None and None not in c.costs]

    def dominates(a: u.Candidate, b: u.Candidate) -> bool:
        no_worse = a.quality >= b.quality and all(x <= y for x, y in zip(a.costs, b.costs, strict=True))
        return no_worse and (a.quality > b.quality or any(x < y for x, y in zip(a.costs, b.costs, strict=True)))

    front = u.pareto(candidates)
    assert front.front == tuple(sorted(b.id for b in known if not any(dominates(a, b) for a in known)))
    assert set(front.not_comparable) == {c.id for c in candidates} - {c.id for c in known}


# ------------------------------------------------------------------ Tukey, best set, winner's curse


def _plain_tukey(scores: dict[str, list[float]]) -> dict[tuple[str, str], float]:
    names = sorted(scores)
    rows = list(zip(*(scores[n] for n in names), strict=True))
    null = []
    for choice in itertools.product(*(list(itertools.permutations(row)) for row in rows)):
        means = [sum(column) / len(rows) for column in zip(*choice, strict=True)]
        null.append(max(means) - min(means))
    return {
        (a, b): sum(x >= abs(sum(scores[a]) - sum(scores[b])) / len(rows) - 1e-9 for x in null) / len(null)
        for a, b in itertools.combinations(names, 2)
    }


def test_exact_tukey_by_enumeration() -> None:
    scores = {"a": [1, 0.5, 1, 0, 1], "b": [0.5, 0.5, 0, 0, 1], "c": [0, 1, 0, 0.25, 0.5]}
    got = u.tukey(scores)
    assert got.method == "exact"
    assert got.resamples == 6**5
    assert dict(got.p) == pytest.approx(_plain_tukey(scores), abs=1e-12)
    drawn = u.tukey(scores, exact_up_to=1, resamples=20_000)
    assert dict(drawn.p) == pytest.approx(dict(got.p), abs=0.015)


def test_tukey_does_not_depend_on_the_order_of_configurations() -> None:
    rng = np.random.default_rng(0)
    scores = {name: (rng.integers(0, 3, 40) / 2).tolist() for name in "dbca"}
    assert u.tukey(scores, resamples=200).p == u.tukey(dict(sorted(scores.items())), resamples=200).p


def test_tukey_of_two_is_the_sign_flip_also_by_cluster() -> None:
    a, b = [1, 1, 0.5, 1, 0, 1, 0.5], [0.5, 0.5, 0.5, 0, 0, 0.5, 1]
    diffs = np.subtract(a, b)
    assert u.tukey({"a": a, "b": b}).of("b", "a") == pytest.approx(u.sign_flip(diffs).p, abs=1e-12)
    names = ["x", "x", "y", "y", "z", "w", "w"]
    assert u.tukey({"a": a, "b": b}, clusters=names).of("a", "b") == pytest.approx(
        u.sign_flip(diffs, clusters=names).p, abs=1e-12
    )


def test_a_planted_winner_is_found_and_planted_ties_stay_ties() -> None:
    rng = np.random.default_rng(8)
    hard = rng.random(200)
    scores = {f"c{i}": (rng.random(200) < hard * 0.6).astype(float) for i in range(8)}
    assert len(u.best_set(scores, resamples=999).members) == 8
    scores["c5"] = np.maximum(scores["c5"], rng.random(200) < 0.4)
    found = u.best_set(scores, resamples=999)
    assert (found.best, found.members) == ("c5", ("c5",))
    scores["c6"] = scores["c5"].copy()
    found = u.best_set(scores, resamples=999)
    assert (found.best, found.members) == ("c5", ("c5", "c6"))
    assert found.tukey.of("c5", "c6") == 1


def test_optimism_by_a_plain_loop() -> None:
    rng = np.random.default_rng(2)
    scores = {name: (rng.integers(0, 5, 30) / 4).tolist() for name in "abc"}
    gaps = []
    for draw in np.random.default_rng(4).integers(0, 30, (300, 30)).tolist():
        means = {c: sum(v[i] for i in draw) / 30 for c, v in scores.items()}
        winner = min(means, key=lambda c: (-round(means[c], 12), c))
        gaps.append(means[winner] - sum(scores[winner]) / 30)
    got = u.optimism(scores, seed=4, resamples=300)
    assert got.optimism == pytest.approx(sum(gaps) / 300, abs=1e-12)
    assert got.corrected == pytest.approx(got.apparent - got.optimism, abs=1e-12)


def test_optimism_draws_clusters() -> None:
    values = [1.0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    names = [str(i // 3) for i in range(12)]
    expected = np.mean(
        [np.mean(np.repeat(np.array(values)[::3][d], 3)) for d in np.random.default_rng(0).integers(0, 4, (100, 4))]
    )
    assert u.optimism({"a": values}, clusters=names, resamples=100).optimism == pytest.approx(expected - 0.5, abs=1e-12)


def test_nested_cv_deals_ids_in_sorted_order() -> None:
    ids = [f"q{i:02d}" for i in range(23)]
    rng = np.random.default_rng(1)
    scores = {name: rng.integers(0, 2, 23).astype(float) for name in "abc"}
    chosen, held = [], []
    for f in range(5):
        inside = [i for i in range(23) if i % 5 == f]
        rest = [i for i in range(23) if i % 5 != f]
        best = min(scores, key=lambda c: (-round(float(np.mean(scores[c][rest])), 12), c))
        chosen.append(best)
        held += scores[best][inside].tolist()
    order = rng.permutation(23)
    got = u.nested_cv({c: v[order] for c, v in scores.items()}, [ids[i] for i in order])
    assert got.chosen == tuple(chosen)
    assert got.value == pytest.approx(np.mean(held), abs=1e-12)
    assert u.nested_cv({"a": [1.0]}, ["q"]).reason == "n_below_2"
    assert u.nested_cv({"a": [1.0, 0.0, 1.0]}, ["q", "r", "s"]).n == 3


# ------------------------------------------------------------------ draws


@pytest.mark.parametrize("block", [1, 37, 1000])
def test_results_do_not_depend_on_the_size_of_a_block(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    rng = np.random.default_rng(3)
    scores = {f"c{i}": rng.integers(0, 5, 30) / 4 for i in range(4)}
    names = [f"d{i % 11}" for i in range(30)]
    pairs = [(scores["c0"], scores[f"c{i}"]) for i in (1, 2, 3)]

    def everything() -> list[object]:
        return [
            u.bca(scores["c0"], resamples=200),
            u.bca(scores["c0"], clusters=names, resamples=200),
            u.sign_flip(scores["c0"] - scores["c1"], resamples=200),
            u.tukey(scores, resamples=200).p,
            u.optimism(scores, resamples=200),
            u.paired_differences(pairs, resamples=200),
        ]

    whole = everything()
    monkeypatch.setattr(u, "BLOCK", block)
    assert everything() == whole


def test_shared_sign_draws_give_what_each_test_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    base = rng.integers(0, 5, 60) / 4
    pairs = [(np.where(rng.random(60) < share, rng.integers(0, 5, 60) / 4, base), base) for share in (0.4, 0.8, 1)]
    shared = u.paired_differences(pairs, resamples=500, seed=9)
    assert {d.test for d in shared} == {"monte_carlo"}
    assert shared == [u.paired_difference(a, b, resamples=500, seed=9) for a, b in pairs]
    assert [d.p for d in shared] == [u.sign_flip(a - b, resamples=500, seed=9).p for a, b in pairs]
    monkeypatch.setattr(u, "SHARED_SIGNS", 0)
    assert shared == u.paired_differences(pairs, resamples=500, seed=9)


def test_global_generator_is_untouched_and_seeds_decide() -> None:
    """F39: intervals change from run to run when a global or an unseeded generator is used."""
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    scores = {"a": SIXTEEN, "b": SIXTEEN[::-1]}
    first = (u.bca(SIXTEEN, resamples=300), u.tukey(scores, resamples=300).p, u.optimism(scores))
    assert first == (u.bca(SIXTEEN, resamples=300), u.tukey(scores, resamples=300).p, u.optimism(scores))
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    assert u.bca(TWENTY, seed=1, resamples=300) != u.bca(TWENTY, seed=2, resamples=300)


# ------------------------------------------------------------------ estimates, empty cases, bad input


def test_nothing_rounded_decides() -> None:
    """F41: arithmetic on unrounded values."""
    assert u.estimate_mean([1 / 3] * 7).value == pytest.approx(1 / 3, abs=1e-12)
    assert u.estimate_mean([0.1 + 0.2 - 0.2]).value >= 0.1
    assert u.verdict(0.01, 0.0199999, 0.01, 0.03) == "small"
    assert u.verdict(0.01, 0.02, 0.01, 0.03) == "better"
    # Float noise in a difference is no difference: .1 + .2 against .3.
    d = u.paired_difference([0.1 + 0.2, 0.5], [0.3, 0.5])
    assert (d.value, d.wins, d.losses, d.ties, d.p) == (0, 0, 0, 2, 1)


def test_empty_and_single() -> None:
    e = u.estimate_mean([], reason="empty_slice", k=5, level="L1")
    assert (e.value, e.n, e.reason, e.ci_low, e.ci_high, e.ci_method, e.k) == (
        None,
        0,
        "empty_slice",
        None,
        None,
        None,
        5,
    )
    one = u.estimate_mean([0.5])
    assert (one.value, one.n, one.reason, one.ci_low, one.ci_method) == (0.5, 1, None, None, None)
    assert u.estimate_mean([1, 0, 1], clusters=["a"] * 3).ci_low is None
    assert u.estimate_rate(0, 0, reason="no_unanswerable").reason == "no_unanswerable"
    assert u.estimate_micro([], []).reason == "no_eligible"
    empty = u.paired_difference([], [])
    assert (empty.value, empty.n, empty.reason, empty.p) == (None, 0, "no_eligible", 1)
    assert u.paired_difference([1], [0]).reason == "n_below_2"


def test_rates_are_wilsons_unless_clustered() -> None:
    values = [1, 1, 0, 1, 0, 0, 1, 1]
    e = u.estimate_mean(values, rate=True)
    assert e == u.estimate_rate(5, 8)
    assert (e.ci_method, e.value, e.n) == ("wilson", 5 / 8, 8)
    names = ["a", "a", "b", "b", "c", "c", "d", "d"]
    assert u.estimate_mean(values, rate=True, clusters=names).ci_method == "t_plus_two"
    assert u.interval("rate", values, clusters=names) == u.interval("mean", values, clusters=names)
    with pytest.raises(ValueError, match="0 or 1"):
        u.estimate_mean([0.5, 1], rate=True)


def test_micro_weighs_groups_and_takes_questions_as_clusters() -> None:
    values, groups = [1.0, 0.5, 1 / 3, 0.0], [1, 4, 3, 2]
    e = u.estimate_micro(values, groups)
    assert (e.value, e.n, e.unit, e.aggregation) == (4 / 10, 10, "groups", "micro")
    flags = [1, *[1, 1, 0, 0], *[1, 0, 0], *[0, 0]]
    owner = ["q1", *["q2"] * 4, *["q3"] * 3, *["q4"] * 2]
    same = u.t_plus_two(flags, clusters=owner)
    assert (e.ci_low, e.ci_high) == pytest.approx((same.low, same.high), abs=1e-12)
    wider = u.estimate_micro(values, groups, clusters=["d1", "d1", "d2", "d2"])
    same = u.t_plus_two(flags, clusters=["d1"] * 5 + ["d2"] * 5)
    assert (wider.ci_low, wider.ci_high) == pytest.approx((same.low, same.high), abs=1e-12)


@pytest.mark.parametrize("bad", [[math.nan, 1], [0, math.inf], [0, 1.01], [-0.01, 1], [[0, 1]]])
def test_values_that_are_no_values(bad: list) -> None:
    with pytest.raises(ValueError, match=r"values must|one value per question"):
        u.estimate_mean(bad)


def test_wrong_use_is_said() -> None:
    with pytest.raises(ValueError, match="2 values but 1 clusters"):
        u.estimate_mean([0, 1], clusters=["a"])
    with pytest.raises(ValueError, match="same questions"):
        u.paired_difference([0, 1], [0])
    with pytest.raises(ValueError, match="different numbers"):
        u.tukey({"a": [0, 1], "b": [0]})
    with pytest.raises(ValueError, match="no questions"):
        u.tukey({"a": [], "b": []})
    with pytest.raises(ValueError, match="no configurations"):
        u.optimism({})
    with pytest.raises(ValueError, match="alpha"):
        u.estimate_mean([0, 1], alpha=0)
    with pytest.raises(ValueError, match="only 'bca'"):
        u.interval("rate", [0, 1], method="bca")
    with pytest.raises(ValueError, match="3 successes of 2"):
        u.wilson(3, 2)
    with pytest.raises(ValueError, match="at least one group"):
        u.estimate_micro([1], [0])


def test_binary_pairs_take_mcnemar_unless_clustered() -> None:
    a, b = [1, 1, 1, 1, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0, 1, 1, 0]
    d = u.paired_difference(a, b, binary=True)
    assert (d.test, d.p, d.wins, d.losses, d.ties) == ("mcnemar", u.mcnemar(6, 1).p, 6, 1, 2)
    names = [str(i // 3) for i in range(9)]
    assert u.paired_difference(a, b, binary=True, clusters=names).test == "exact"
    # For 0/1 values the exact sign flip and McNemar are one test.
    assert u.sign_flip(np.subtract(a, b)).p == pytest.approx(d.p, abs=1e-12)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=12), st.randoms(use_true_random=False))
def test_the_difference_of_a_pair_turns_round(values: list[float], random) -> None:
    other = random.sample(values, len(values))
    there, back = u.paired_difference(values, other), u.paired_difference(other, values)
    assert there.value == -back.value
    assert (there.wins, there.losses, there.p, there.sd) == (back.losses, back.wins, back.p, back.sd)


def test_importing_costs_no_scipy() -> None:
    code = (
        "import sys, denominator.uncertainty, denominator.fingerprint\n"
        "sys.exit(any(m.startswith(('scipy', 'sklearn')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
