"""Decisions over made-up sweeps whose truth is known: winners, ties, refusals, and what the page has to say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator.errors import ConfigError, MeasurementError
from denominator.evaluation import summarize
from denominator.selection import Decision, compare, decide, find_run, headline
from denominator.types import Evidence, Ledger, Outcome, Plan, RecordedRun
from denominator.uncertainty import best_set, gains_losses, holm, mcnemar, optimism, sign_flip, t_plus_two
from tests.conftest import examples

METRIC = "recall@5"
FIELDS = {
    "dataset_hash": "d",
    "corpus_hash": "c",
    "metric": METRIC,
    "metric_version": "1",
    "level": "L1",
    "k": 5,
    "aggregation": "macro",
    "eligibility": "strict",
    "ties": "asc",
    "tokenizer": None,
}
FAST = Plan(resamples=499)


def outcome(name: str, value: float | None, metric: str = METRIC, **kw: Any) -> Outcome:
    given = {"label": "answerable", "state": "answerable", "status": "ok", "gold": ((Evidence("d"),),), "n_hits": 5}
    given |= {"groups": 1, "values": {metric: value}} | kw
    return Outcome(name, **given)  # type: ignore[arg-type]


def ledger(outcomes: Sequence[Outcome]) -> Ledger:
    eligible = [o for o in outcomes if o.state == "answerable"]
    failed = sum(o.status == "failed" for o in eligible)
    missing = sum(o.status == "missing" for o in eligible)
    states = {state: sum(o.state == state for o in outcomes) for state in {o.state for o in outcomes}}
    return Ledger(
        len(outcomes), states, len(eligible), len(eligible) - failed - missing, failed, missing, bool(failed or missing)
    )


def run(
    name: str,
    values: Sequence[float | None] | None = None,
    *,
    outcomes: Sequence[Outcome] | None = None,
    params: Mapping[str, str] | None = None,
    facts: Mapping[str, float] | None = None,
    plan: Plan = FAST,
    metric: str = METRIC,
    **fields: Any,
) -> RecordedRun:
    if outcomes is None:
        outcomes = [outcome(f"q{i:03d}", v, metric) for i, v in enumerate(values or ())]
    return RecordedRun(
        run_id=f"id-{name}",
        name=name,
        cell_key=f"key-{name}",
        sweep_id="s",
        params=params if params is not None else {"embedder": name},
        tags={"headline_metric": metric},
        metrics={},
        plan=plan,
        outcomes=tuple(outcomes),
        facts=facts if facts is not None else {"latency_ms_median": 1.0, "index_bytes": 1.0, "context_tokens": 1.0},
        fingerprints={metric: FIELDS | {"metric": metric} | fields},
        ledger=ledger(outcomes),
    )


def sweep(n: int = 120, configs: int = 6, seed: int = 0, plan: Plan = FAST) -> list[RecordedRun]:
    rng = np.random.default_rng(seed)
    hard = rng.random(n)
    values = [np.clip(np.round((hard + rng.normal(0, 0.3, n)) * 4) / 4, 0, 1) for _ in range(configs)]
    return [
        run(
            f"c{i}",
            v.tolist(),
            facts={"latency_ms_median": 10.0 - i, "index_bytes": 5.0, "context_tokens": 1.0},
            plan=plan,
        )
        for i, v in enumerate(values)
    ]


# ------------------------------------------------------------------ winners and ties


@pytest.mark.parametrize("plan", [FAST, replace(FAST, aggregation="micro"), replace(FAST, cluster="talk", alpha=0.1)])
@pytest.mark.parametrize("metric", ["recall@5", "hit@5", "mrr@10"])
def test_the_ranking_shows_what_the_run_reported(metric: str, plan: Plan) -> None:
    rng = np.random.default_rng(1)
    outcomes = [
        outcome(
            f"q{i}",
            float(rng.integers(0, 2)),
            metric,
            groups=1 + i % 3,
            cluster=f"t{i % 7}",
            tags={"lang": "de" if i % 3 else "en"},
        )
        for i in range(30)
    ]
    recorded = run("a", outcomes=outcomes, metric=metric, plan=plan)
    ranking = decide([recorded]).rankings[0]
    summary = summarize(recorded.outcomes, replace(plan, headline=metric))
    assert ranking.rows[0].estimate == summary.metrics[metric]
    assert {s.value: s.estimates["a"] for s in ranking.slices} == {
        value: found[metric] for value, found in summary.slices["lang"].items()
    }


def test_planted_ties_stay_ties_and_the_cheapest_is_recommended() -> None:
    decision = decide(sweep())
    ranking = decision.rankings[0]
    assert len(ranking.best_set) == 6
    assert ranking.recommendation.name == "c5"
    assert ranking.recommendation.run_id == "id-c5"
    assert decision.sentence.startswith("None of the 6 configurations can be told apart from the best at α = 0.05")
    assert "of these c5 is the cheapest (median query latency 5 ms)" in decision.sentence


def test_a_planted_winner_is_found() -> None:
    runs = sweep()
    better = [min(1.0, v + 0.5) for v in (o.values[METRIC] for o in runs[2].outcomes)]
    decision = decide([*runs, run("winner", better, facts={"latency_ms_median": 99.0})])
    ranking = decision.rankings[0]
    assert (ranking.best, ranking.best_set) == ("winner", ("winner",))
    # It lacks two costs that the others have, so it is on no front; alone in the best set it needs no cost.
    assert "winner" in ranking.not_on_front_for_lack_of
    assert (ranking.recommendation.name, ranking.recommendation.by) == ("winner", None)
    full = decide([*runs, run("winner", better)]).rankings[0]
    assert full.recommendation.name == "winner"
    assert full.optimism.corrected <= full.row("winner").estimate.value + 1e-9
    assert full.nested_cv.value == pytest.approx(full.row("winner").estimate.value, abs=1e-12)
    assert "can be told apart from each of the other 6" in full.sentence


def test_a_recommended_baseline_that_another_beats_is_said() -> None:
    """Pairs with the baseline are fewer than all pairs, so the two tests may differ; the page must not contradict."""
    rng = np.random.default_rng(5)
    base = rng.integers(0, 2, 240).astype(float)
    better = base.copy()
    better[np.flatnonzero(base == 0)[:12]] = 1.0
    runs = [
        run("base", base.tolist(), facts={"latency_ms_median": 1.0}, params={"embedder": "base"}),
        run("good", better.tolist(), facts={"latency_ms_median": 9.0}, params={"embedder": "good"}),
    ]
    runs += [run(f"poor{i}", rng.permutation(base).tolist(), facts={"latency_ms_median": 9.0}) for i in range(6)]
    decision = decide(runs, baseline="base")
    ranking = decision.rankings[0]
    versus = ranking.row("good").versus
    assert versus is not None
    assert (versus.verdict, ranking.best, ranking.recommendation.name) == ("better", "good", "base")
    assert (
        "It is the cheapest, yet worse than good: against one baseline 7 pairs are tested, for the best set all 28."
        in (ranking.sentence)
    )
    assert "yet worse" not in decide(runs, baseline="good").rankings[0].sentence


def test_some_are_tied_and_the_sentence_counts_them() -> None:
    runs = sweep()
    worse = [v * 0.3 for v in (o.values[METRIC] for o in runs[0].outcomes)]
    decision = decide([*runs, run("bad", worse)])
    assert decision.sentence.startswith(
        "6 of 7 configurations cannot be told apart from the best at α = 0.05; of these"
    )
    assert decision.rankings[0].rows[-1].name == "bad"
    assert not decision.rankings[0].row("bad").in_best_set


def test_figures_are_those_of_the_core() -> None:
    runs = sweep(plan=replace(FAST, baseline="c3", seed=7))
    ranking = decide(runs).rankings[0]
    vectors = {r.name: np.array([o.values[METRIC] for o in r.outcomes]) for r in runs}
    found = best_set(vectors, resamples=499, seed=7)
    assert (ranking.best, set(ranking.best_set)) == (found.best, set(found.members))
    assert {r.name: r.p_best for r in ranking.rows} == {c: found.tukey.of(found.best, c) for c in vectors}
    assert ranking.optimism == optimism(vectors, seed=7)
    diffs = {c: vectors[c] - vectors["c3"] for c in vectors if c != "c3"}
    adjusted = holm({c: sign_flip(d, resamples=499, seed=7).p for c, d in diffs.items()})
    for row in ranking.rows:
        i = t_plus_two(vectors[row.name])
        assert (row.estimate.value, row.estimate.ci_low, row.estimate.ci_high) == pytest.approx(
            (vectors[row.name].mean(), i.low, i.high), abs=1e-12
        )
        assert (row.estimate.n, row.estimate.k, row.estimate.level) == (120, 5, "L1")
        if row.is_baseline:
            assert (row.name, row.versus) == ("c3", None)
            continue
        assert row.versus.p_adjusted == adjusted[row.name]
        between = gains_losses(diffs[row.name])
        assert (row.versus.difference.low, row.versus.difference.high) == (between.low, between.high)


def test_without_a_baseline_there_are_no_p_values_against_one() -> None:
    ranking = decide(sweep()).rankings[0]
    assert ranking.baseline is None
    assert all(row.versus is None and not row.is_baseline for row in ranking.rows)
    assert "baseline" not in ranking.sentence


def test_rates_take_mcnemar_and_wilson() -> None:
    a, b = [1.0] * 30 + [0.0] * 20, [1.0] * 22 + [0.0] * 23 + [1.0] * 5
    runs = [run("a", a, metric="hit@5"), run("b", b, metric="hit@5")]
    ranking = decide(runs, baseline="b").rankings[0]
    assert ranking.row("a").estimate.ci_method == "wilson"
    assert ranking.row("a").versus.difference.p == mcnemar(8, 5).p


@settings(max_examples=examples(15), deadline=None)
@given(st.randoms(use_true_random=False))
def test_order_of_runs_and_questions_changes_nothing(random) -> None:
    runs = sweep(n=40, configs=4, plan=replace(FAST, resamples=99, baseline="c0"))
    mixed = [replace(r, outcomes=tuple(random.sample(r.outcomes, len(r.outcomes)))) for r in runs]
    random.shuffle(mixed)
    assert json.dumps(decide(mixed).as_dict()) == json.dumps(decide(runs).as_dict())


# ------------------------------------------------------------------ F39, F41


def test_twins_have_no_winner_and_the_same_intervals_in_any_company() -> None:
    """F39: two copies of the same answers must not get different intervals."""
    runs = sweep(plan=replace(FAST, resamples=199))
    twin = replace(runs[0], run_id="id-twin", name="twin")
    pair = decide([runs[0], twin], baseline="c0").rankings[0]
    assert [row.rank for row in pair.rows] == [1, 1]
    assert pair.coincide == (("c0", "twin"),)
    assert pair.row("twin").same_as == ("c0",)
    d = pair.row("twin").versus
    assert (d.difference.value, d.difference.wins, d.difference.losses, d.p_adjusted) == (0, 0, 0, 1)
    assert pair.disagreement is None
    assert pair.detectable_reason == "no_differences"
    assert any("cannot choose" in note for note in pair.notes)
    many = decide([*runs, twin], baseline="c0")
    for name in ("c0", "twin"):
        assert many.rankings[0].row(name).estimate == pair.row(name).estimate
    assert many.rankings[0].row("twin").versus.difference == d.difference
    assert many.settings.seed == 0
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    decide(runs)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_means_that_differ_in_the_fifth_digit_are_ranked_unrounded() -> None:
    """F41: rounded numbers must not decide."""
    runs = [run("a", [0.79666] * 8), run("b", [0.79674] * 8)]
    ranking = decide(runs).rankings[0]
    assert [(row.name, row.rank) for row in ranking.rows] == [("b", 1), ("a", 2)]
    assert json.loads(json.dumps(decide(runs).as_dict()))["rankings"][0]["rows"][1]["estimate"]["value"] == 0.79666
    # .1 + .2 and .3 are one mean: float noise is no rank.
    noisy = decide([run("a", [0.3] * 4), run("b", [0.1 + 0.2] * 4)]).rankings[0]
    assert [row.rank for row in noisy.rows] == [1, 1]


# ------------------------------------------------------------------ what may not be compared


def test_runs_with_other_fingerprints_never_share_a_ranking() -> None:
    runs = sweep(n=40)
    others = [
        replace(r, run_id=f"{r.run_id}-2", fingerprints={METRIC: FIELDS | {"dataset_hash": "e"}}) for r in runs[:2]
    ]
    decision = decide([*runs, *others])
    assert [len(r.rows) for r in decision.rankings] == [6, 2]
    assert decision.differs == ("dataset_hash",)
    assert decision.sentence.startswith("The runs form 2 groups that cannot be compared, they differ in dataset_hash.")
    # A name that is used twice is told apart by the run id.
    assert {row.name for row in decision.rankings[1].rows} == {"c0 (id-c0-2)", "c1 (id-c1-2)"}
    together = decide([*runs, *others], allow=["dataset_hash"])
    assert [len(r.rows) for r in together.rankings] == [8]
    assert together.allowed == {"dataset_hash": ("d", "e")}
    assert "dataset_hash" not in together.rankings[0].fields
    with pytest.raises(ConfigError, match="cannot allow 'colour'"):
        decide(runs, allow=["colour"])


def test_an_incomplete_run_is_shown_and_not_ranked() -> None:
    runs = sweep(n=40, configs=3)
    broken = [
        replace(o, status="failed", error="timeout", values={METRIC: 0.0}) if i < 2 else o
        for i, o in enumerate(runs[0].outcomes)
    ]
    decision = decide([run("broken", outcomes=broken), *runs[1:]])
    assert [row.name for row in decision.rankings[0].rows if row.name == "broken"] == []
    (out,) = decision.excluded
    assert (out.name, out.reason, out.estimate.n) == ("broken", "incomplete", 40)
    assert "2 questions failed" in out.detail
    assert decision.sentence.endswith("1 run is shown but not ranked.")
    only = decide([run("broken", outcomes=broken)])
    assert only.rankings == ()
    assert only.sentence == "No configuration can be ranked on recall@5 (incomplete)."
    noted = decide([run("broken", outcomes=broken), *runs[1:]], baseline="broken")
    assert "not ranked" in noted.notes[0]
    assert noted.rankings[0].baseline is None


def test_one_denominator_is_asserted() -> None:
    a, b = run("a", [1, 0, 1]), run("b", [1, 0, 1, 1])
    with pytest.raises(MeasurementError) as caught:
        decide([a, b])
    assert (caught.value.code, caught.value.ids) == ("not_comparable", ("q003",))
    assert "'a' has 3 eligible questions and 'b' 4" in str(caught.value)


def test_a_run_in_which_the_metric_is_undefined_is_listed_with_its_reason() -> None:
    holes = [outcome("q000", None, reasons={METRIC: "depth_below_k"}), outcome("q001", 1.0)]
    decision = decide([run("holes", outcomes=holes), run("a", [1, 0]), run("b", [0, 0])])
    assert [(e.name, e.reason, e.estimate) for e in decision.excluded] == [("holes", "depth_below_k", None)]
    assert len(decision.rankings[0].rows) == 2
    nothing = decide([run("none", outcomes=[outcome("q", None, state="unanswerable", values={})])])
    assert nothing.excluded[0].reason == "no_eligible"
    bare = replace(run("bare", [1, 0]), fingerprints={})
    assert [e.reason for e in decide([bare, run("a", [1, 0])]).excluded] == ["no_fingerprint"]
    other = run("other", [1, 0], metric="mrr@10")
    assert [e.reason for e in decide([other, run("a", [1, 0])], METRIC).excluded] == ["not_measured"]
    answers = run("answers", [1, 0], plan=replace(FAST, evaluate="abstention"))
    assert decide([answers]).excluded[0].reason == "abstention_only"


def test_selection_on_chunks_is_refused_when_the_chunker_varies() -> None:
    name = "chunk_recall@5"
    runs = [run(c, [1, 0, 1], metric=name, level="L3", params={"chunker": c}) for c in "ab"]
    with pytest.raises(MeasurementError) as caught:
        decide(runs)
    assert caught.value.code == "level_not_comparable"
    fixed = [run(c, [1, 0, 1], metric=name, level="L3", params={"embedder": c}) for c in "ab"]
    assert len(decide(fixed).rankings[0].rows) == 2


def test_wrong_use_names_what_there_is() -> None:
    runs = sweep(n=20, configs=2)
    with pytest.raises(ConfigError, match="no recorded runs"):
        decide([])
    with pytest.raises(ConfigError, match=r"baseline 'bm25' names no run; runs there are: 'c0', 'c1'"):
        decide(runs, baseline="bm25")
    with pytest.raises(ConfigError, match=r"no run has the metric 'recall@50'; these are recorded: recall@5"):
        decide(runs, "recall@50")
    with pytest.raises(ConfigError, match="not a metric name"):
        decide(runs, "Recall at 5")
    twice = [runs[0], replace(runs[0], run_id="again"), runs[1]]
    with pytest.raises(ConfigError, match="names 2 comparable runs"):
        decide(twice, baseline="c0")
    assert decide(twice, baseline="again").rankings[0].baseline == "c0 (again)"
    with pytest.raises(ConfigError, match="do not agree on one metric"):
        headline([runs[0], run("x", [1, 0], metric="mrr@10")])
    with pytest.raises(ConfigError, match="different baselines"):
        decide([replace(r, plan=replace(FAST, baseline=r.name)) for r in runs])
    noted = decide([runs[0], replace(runs[1], plan=replace(FAST, alpha=0.1))])
    assert "different values of alpha" in noted.notes[0]


def test_a_run_is_found_by_its_parts_in_any_order() -> None:
    runs = [run("fixed · bm25 · none", [1, 0]), run("fixed · static · none", [1, 0])]
    for text in ("bm25, fixed, none", "fixed · bm25 · none", "id-fixed · bm25 · none", "key-fixed · bm25 · none"):
        assert find_run(runs, text).name == "fixed · bm25 · none"
    with pytest.raises(ConfigError, match="names no run"):
        find_run(runs, "bm25")


def test_a_best_set_without_all_costs_has_no_recommendation() -> None:
    runs = [run("a", [1, 0, 1], facts={"latency_ms_median": 1.0}), run("b", [1, 1, 0], facts={"index_bytes": 1.0})]
    ranking = decide(runs).rankings[0]
    assert ranking.recommendation.name is None
    assert ranking.recommendation.not_comparable == ("a", "b")
    assert "(no configuration of the best set has all costs)" in ranking.sentence


def test_one_configuration_gives_no_recommendation() -> None:
    decision = decide([run("a", [1, 0, 1])])
    assert decision.sentence.startswith("Only one configuration can be compared")
    assert decision.rankings[0].recommendation.reason == "fewer than two comparable configurations"


# ------------------------------------------------------------------ costs


def test_recommendation_follows_the_first_declared_cost_within_the_front() -> None:
    vector = [1, 0, 1, 0.5, 1, 0]
    runs = [
        run("small", vector, facts={"latency_ms_median": 9.0, "index_bytes": 1.0}),
        run("fast", vector, facts={"latency_ms_median": 2.0, "index_bytes": 8.0}),
        run("worse in both", vector, facts={"latency_ms_median": 9.0, "index_bytes": 8.0}),
    ]
    ranking = decide(runs).rankings[0]
    assert ranking.front == ("fast", "small")
    assert (ranking.recommendation.name, ranking.recommendation.by) == ("fast", "latency_ms_median")
    assert ranking.costs == ("latency_ms_median", "index_bytes")
    assert ranking.notes[0] == "no run recorded context_tokens; it plays no part"
    other = decide(runs, costs=["index_bytes", "latency_ms_median"]).rankings[0]
    assert (other.recommendation.name, other.recommendation.by) == ("small", "index_bytes")
    free = decide([run(n, vector, facts={}) for n in "ab"]).rankings[0]
    assert (free.recommendation.name, free.recommendation.by) == ("a", None)
    assert "no cost was recorded" in free.sentence


# ------------------------------------------------------------------ factors


def grid(values: Mapping[tuple[str, str], Sequence[float]]) -> list[RecordedRun]:
    return [run(f"{c} · {e}", v, params={"chunker": c, "embedder": e, "seed": "0"}) for (c, e), v in values.items()]


def test_factor_effects_over_matched_cells_by_hand() -> None:
    ranking = decide(
        grid(
            {
                ("fixed", "bm25"): [1, 0, 0, 0],
                ("fixed", "dense"): [1, 1, 0, 0],
                ("sentences", "bm25"): [1, 1, 0, 0],
                ("sentences", "dense"): [1, 1, 1, 1],
            }
        )
    ).rankings[0]
    by = {f.name: f for f in ranking.factors}
    assert list(by) == ["chunker", "embedder"]
    best, worst = by["chunker"].levels
    assert (best.level, best.value, best.matched, best.n) == ("sentences", 0.375, 2, 4)
    assert (best.lowest, best.lowest_at, best.highest, best.highest_at) == (0.25, "bm25", 0.5, "dense")
    assert (worst.level, worst.value) == ("fixed", -0.375)
    i = gains_losses([0, 0.5, 0.5, 0.5])
    assert (best.low, best.high) == (i.low, i.high)
    assert by["chunker"].interaction == 0.25


def test_factor_settings_belong_to_their_part_and_unmatched_cells_do_not_count() -> None:
    runs = [
        run("a", [1, 0, 0], params={"chunker": "fixed", "chunker.size": "128", "embedder": "x"}),
        run("b", [1, 1, 0], params={"chunker": "fixed", "chunker.size": "256", "embedder": "x"}),
        run("c", [1, 1, 1], params={"chunker": "sentences", "chunker.most": "9", "embedder": "x"}),
        run("d", [0, 0, 0], params={"chunker": "tokens", "embedder": "y"}),
    ]
    factors = {f.name: {e.level: e for e in f.levels} for f in decide(runs).rankings[0].factors}
    assert list(factors["chunker"]) == ["sentences", "fixed (size=256)", "fixed (size=128)", "tokens"]
    assert factors["chunker"]["sentences"].value == pytest.approx(0.5)
    assert (factors["chunker"]["tokens"].value, factors["chunker"]["tokens"].reason) == (None, "no_matched_cells")
    assert factors["embedder"]["x"].matched == 0


# ------------------------------------------------------------------ slices, conventions, questions


def test_slices_count_every_member_of_a_list_and_warn_when_small() -> None:
    def tagged(name: str, shift: float) -> RecordedRun:
        outcomes = [
            outcome(
                f"q{i:03d}",
                min(1.0, i % 2 + shift),
                tags={"lang": "de" if i < 25 else "en", "kind": ["a", "b"] if i == 0 else ["a"]},
            )
            for i in range(30)
        ]
        zh = Outcome("u", "unanswerable", "unanswerable", "ok", tags={"lang": "zh"}, empty_gold=True)
        return run(name, outcomes=[*outcomes, zh])

    slices = {(s.tag, s.value): s for s in decide([tagged("x", 0), tagged("y", 0.5)]).rankings[0].slices}
    assert list(slices) == [("kind", "a"), ("kind", "b"), ("lang", "de"), ("lang", "en"), ("lang", "zh")]
    assert [s.n for s in slices.values()] == [30, 1, 25, 5, 0]
    assert slices["lang", "de"].warning is None
    assert "only 5 questions" in slices["lang", "en"].warning
    empty = slices["lang", "zh"].estimates["x"]
    assert (empty.value, empty.n, empty.reason) == (None, 0, "empty_slice")
    assert slices["lang", "de"].estimates["y"].value == pytest.approx((12 * 1 + 13 * 0.5) / 25)
    only = decide([tagged("x", 0), tagged("y", 0.5)], slices=["lang"]).rankings[0].slices
    assert {s.tag for s in only} == {"lang"}


def test_naive_conventions_may_choose_another_winner() -> None:
    """Returning nothing where nothing can be found gains under one convention, a wrong label under all."""
    unanswerable = {"label": "unanswerable", "values": {}, "gold": (), "empty_gold": True, "state": "unanswerable"}

    def both(values: Sequence[float], hits: int, conflict: float) -> list[Outcome]:
        rows = [outcome(f"q{i}", v) for i, v in enumerate(values)]
        rows += [outcome(f"u{i}", None, **unanswerable, n_hits=hits) for i in range(2)]
        return [*rows, outcome("x", conflict, state="conflict", label="unanswerable")]

    right, idle = both([1, 1, 1, 0], 5, 0.0), both([1, 1, 0.5, 0], 0, 1.0)
    naive = {
        c.convention: c for c in decide([run("right", outcomes=right), run("idle", outcomes=idle)]).rankings[0].naive
    }
    assert naive["empty_is_one"].values == pytest.approx({"right": 5 / 7, "idle": 5.5 / 7})
    assert naive["empty_is_zero"].values == pytest.approx({"right": 3 / 7, "idle": 3.5 / 7})
    assert naive["empty_is_skipped"].values == pytest.approx({"right": 3 / 5, "idle": 3.5 / 5})
    assert naive["empty_is_one_if_nothing_retrieved"].values == pytest.approx({"right": 3 / 7, "idle": 5.5 / 7})
    assert all(c.winner == "idle" and c.winner_changes and c.order_changes for c in naive.values())
    clean = [run("right", outcomes=right[:-1]), run("idle", outcomes=idle[:-1])]
    changed = {c.convention: c.winner_changes for c in decide(clean).rankings[0].naive}
    assert changed["empty_is_one"] is False
    assert changed["empty_is_one_if_nothing_retrieved"] is True


def test_questions_that_decided_and_questions_that_all_fail() -> None:
    ranking = decide([run("a", [1, 1, 0, 0.5, 0]), run("b", [1, 0, 0, 1, 0]), run("c", [0, 0, 0, 0, 0])]).rankings[0]
    assert ranking.failed_by_all == ("q002", "q004")
    assert (ranking.disagreement.a, ranking.disagreement.b, ranking.disagreement.differing) == ("a", "b", 2)
    assert [(c.id, c.a, c.b) for c in ranking.disagreement.questions] == [("q001", 1, 0), ("q003", 0.5, 1)]


# ------------------------------------------------------------------ clusters and micro


def test_clusters_are_the_units_of_every_interval_and_test() -> None:
    rng = np.random.default_rng(4)
    names = [f"talk{i // 4}" for i in range(40)]
    vectors = {c: rng.integers(0, 3, 40) / 2 for c in "ab"}
    asked = replace(FAST, cluster="talk")
    runs = [
        run(c, outcomes=[outcome(f"q{i:03d}", float(x), cluster=names[i]) for i, x in enumerate(v)], plan=asked)
        for c, v in vectors.items()
    ]
    ranking = decide(runs, baseline="a").rankings[0]
    assert ranking.clusters == 10
    i = t_plus_two(vectors["b"], clusters=names)
    assert (ranking.row("b").estimate.ci_low, ranking.row("b").estimate.ci_high) == (i.low, i.high)
    diffs = vectors["b"] - vectors["a"]
    assert ranking.row("b").versus.difference.p == sign_flip(diffs, clusters=names).p
    assert ranking.row("b").versus.difference.m <= 10
    assert dict(best_set(vectors, clusters=names, resamples=499).tukey.p) == {("a", "b"): ranking.rows[-1].p_best}
    unasked = decide([replace(r, plan=FAST) for r in runs], baseline="a").rankings[0]
    assert unasked.clusters is None
    assert unasked.row("b").versus.difference.p == sign_flip(diffs, resamples=499).p
    mixed = [runs[0], run("b", vectors["b"].tolist())]
    with pytest.raises(MeasurementError) as caught:
        decide(mixed)
    assert caught.value.ids == ("clusters",)


def test_micro_ranks_by_groups() -> None:
    plan = replace(FAST, aggregation="micro")
    groups = [1, 4, 1]

    def weighed(name: str, values: Sequence[float]) -> RecordedRun:
        rows = [outcome(f"q{i}", v, groups=g) for i, (v, g) in enumerate(zip(values, groups, strict=True))]
        return run(name, outcomes=rows, plan=plan, aggregation="micro")

    ranking = decide([weighed("macro", [1, 0.25, 1]), weighed("micro", [0, 1, 0])]).rankings[0]
    assert [(r.name, r.estimate.value, r.estimate.n, r.estimate.unit) for r in ranking.rows] == [
        ("micro", 4 / 6, 6, "groups"),
        ("macro", 3 / 6, 6, "groups"),
    ]
    assert ranking.optimism.apparent == pytest.approx(4 / 6)
    assert ranking.nested_cv.n == 6
    assert ranking.detectable is not None  # a field that could cluster does so only where the plan names it
    talks = [
        replace(r, outcomes=tuple(replace(o, cluster="talk") for o in r.outcomes))
        for r in (weighed("macro", [1, 0.25, 1]), weighed("micro", [0, 1, 0]))
    ]
    assert decide(talks).rankings[0].detectable == ranking.detectable


# ------------------------------------------------------------------ two runs


def test_compare_two_runs_by_hand() -> None:
    new, old = run("new", [1, 1, 0.5, 1, 0, 1]), run("old", [1, 0, 1, 0.5, 0, 0])
    c = compare(new, old)
    assert c.difference.value == pytest.approx(2 / 6)
    assert (c.difference.wins, c.difference.losses, c.difference.ties) == (3, 1, 2)
    assert [x.id for x in c.gained] == ["q001", "q005", "q003"]
    assert [(x.id, x.a, x.b) for x in c.lost] == [("q002", 0.5, 1.0)]
    assert c.difference.p == sign_flip([1, -0.5, 0.5, 1]).p
    assert c.verdict == "inconclusive"
    assert "3 questions gained, 1 lost, 2 the same" in c.sentence
    assert "power 0.8" in c.sentence
    json.dumps(c.as_dict())
    back = compare(old, new)
    assert (back.difference.value, back.difference.wins) == (-c.difference.value, 1)


def test_compare_pairs_by_id_not_by_position() -> None:
    new, old = run("new", [1, 1, 0, 0]), run("old", [0, 1, 0, 1])
    assert compare(replace(new, outcomes=new.outcomes[::-1]), old).difference == compare(new, old).difference


def test_compare_refuses_what_differs() -> None:
    a = run("a", [1, 0])
    for other, ids in (
        (run("b", [1, 0], k=10, ties="trec"), ("k", "ties")),
        (run("b", [1, 0, 1]), ("q002",)),
        (run("b", outcomes=[outcome("q000", 1.0), outcome("q001", 0.0, status="missing")]), ("incomplete",)),
        (replace(run("b", [1, 0]), fingerprints={}), (METRIC,)),
        (run("b", [1, None]), ("not_recorded",)),
    ):
        with pytest.raises(MeasurementError) as caught:
            compare(a, other, METRIC)
        assert (caught.value.code, caught.value.ids) == ("not_comparable", ids)
    assert compare(a, run("b", [1, 0], k=10), METRIC, allow=["k"]).difference.value == 0
    with pytest.raises(ConfigError, match="no run has the metric"):
        compare(a, a, "mrr@10")


def test_an_incomplete_candidate_is_compared_when_told_and_an_incomplete_baseline_never() -> None:
    a = run("a", [1, 1, 0])
    short = run("b", outcomes=[outcome("q000", 1.0), *(outcome(f"q00{i}", 0.0, status="missing") for i in (1, 2))])
    with pytest.raises(MeasurementError, match=r"'b' .*has 0 failed and 2 missing questions"):
        compare(short, a, METRIC)
    found = compare(short, a, METRIC, allow_incomplete=True)
    assert (found.difference.value, found.difference.n) == (pytest.approx(-1 / 3), 3)
    with pytest.raises(MeasurementError, match="2 missing"):
        compare(a, short, METRIC, allow_incomplete=True)


def test_a_decision_is_json() -> None:
    decision = decide(sweep(n=30), baseline="c1")
    assert isinstance(decision, Decision)
    text = json.dumps(decision.as_dict(), allow_nan=False)
    assert json.loads(text)["settings"]["resamples"] == 499
    assert text == json.dumps(decide(sweep(n=30), baseline="c1").as_dict(), allow_nan=False)
