"""Deciders, the matrix, thresholds, risk–coverage and the joint table, against scikit-learn and plain definitions."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    cohen_kappa_score,
    confusion_matrix,
    matthews_corrcoef,
    precision_recall_fscore_support,
    roc_auc_score,
)

from denominator import phrases
from denominator.abstention import (
    JointRow,
    Row,
    Scored,
    agreement,
    auroc,
    confusion,
    cross_fit,
    decide,
    fixed_threshold,
    joint,
    pick_threshold,
    report,
    retrieval_decisions,
    risk_coverage,
    scored,
)
from denominator.errors import ConfigError, InputError, MeasurementError
from denominator.types import Answer, Outcome, Plan
from tests.conftest import shared_path

VALUES = ("precision", "recall", "f1", "mcc", "false_refusal_rate")
flags = st.sampled_from([True, False, None])
rows_strategy = st.lists(st.builds(Row, st.booleans(), flags), max_size=40)
decided_strategy = st.lists(st.builds(Row, st.booleans(), st.booleans()), max_size=40)


def rows_of(tn: int, fp: int, fn: int, tp: int) -> list[Row]:
    return [Row(False, False)] * tn + [Row(False, True)] * fp + [Row(True, False)] * fn + [Row(True, True)] * tp


# ------------------------------------------------------------------ deciders


@pytest.mark.parametrize(
    ("answer", "abstained", "rung"),
    [
        (None, None, "error"),
        (Answer(error="timeout", flag=True), None, "error"),
        (Answer(error=""), None, "error"),
        (Answer(flag=True, structured=True, text="Paris."), True, "flag"),
        (Answer(flag=False), False, "flag"),
        (Answer(structured=False, text="Paris."), True, "structured"),
        (Answer(structured=True, text="NO_ANSWER"), False, "structured"),
        (Answer(), None, "empty_output"),
        (Answer(text=" \n\t "), None, "empty_output"),
        (Answer(text="no_answer"), True, "sentinel"),
        (Answer(text="__NO_ANSWER__\n"), True, "sentinel"),
        (Answer(text="「NO_ANSWER」。"), True, "sentinel"),
        (Answer(text="\uff2e\uff2f_ANSWER"), True, "sentinel"),  # full-width letters are the same under NFKC
        (Answer(text="NO_ANSWER!?"), True, "sentinel"),
        (Answer(text="NO_ANSWER 42"), False, "phrase"),
        (Answer(text="..."), False, "phrase"),
        (Answer(text="I do not know"), True, "phrase"),
        (Answer(text="The answer is 42."), False, "phrase"),
    ],
)
def test_ladder(answer: Answer | None, abstained: bool | None, rung: str) -> None:
    decision = decide(answer)
    assert (decision.abstained, decision.rung) == (abstained, rung)


def test_eight_tokens_beside_a_refusal_are_a_courtesy_and_nine_are_undecided() -> None:
    eight = "I don't know. One two three four five six seven eight."
    assert decide(Answer(text=eight)).abstained is True
    assert decide(Answer(text=eight + " Nine.")).abstained is None
    # text in the matching sentence itself does not count, and matching sentences may be many
    assert (
        decide(Answer(text="I don't know a b c d e f g h i j. I cannot answer.\nWe can't find it!")).abstained is True
    )


@pytest.mark.parametrize("end", [".", "!", "?", "。", "\n", "\r\n", "\u2028"])
def test_sentences_end_at_marks_and_line_ends(end: str) -> None:
    # "^unable to answer" is anchored to the sentence, so it shows where one begins
    assert decide(Answer(text=f"Sorry{end}Unable to answer")).abstained is True
    assert decide(Answer(text="Sorry, unable to answer")).abstained is False


def test_language_decides_which_patterns_are_used() -> None:
    assert decide(Answer(text="Ich weiß es nicht."), "de").abstained is True
    assert decide(Answer(text="Ich weiß es nicht."), "de-CH").abstained is True
    assert decide(Answer(text="Ich weiß es nicht."), "en").abstained is False
    assert decide(Answer(text="I don't know."), "de").abstained is False
    for not_a_language in ("version", "sentinel", "max_remainder_tokens", "", "fi"):
        assert decide(Answer(text="I don't know."), not_a_language).rung == "no_patterns"


def test_judge_is_asked_only_where_the_ladder_passes_on() -> None:
    asked = []

    def judge(text: str, *, question: str | None, lang: str) -> bool | None:
        asked.append((text, question, lang))
        return True

    for settled in (
        Answer(flag=False),
        Answer(text="NO_ANSWER"),
        Answer(text="I don't know."),
        Answer(error="x"),
        None,
    ):
        assert decide(settled, "en", judge).rung != "judge"
    assert not asked
    assert decide(Answer(text="Paris."), "en", judge, question="Where?") == decide(Answer(text="Hm."), "fi", judge)
    assert asked == [("Paris.", "Where?", "en"), ("Hm.", None, "fi")]
    mixed = Answer(text="The context does not mention it. " + "word " * 9)
    assert decide(mixed, "en", judge).rung == "judge"
    assert decide(mixed, "en").rung == "phrase"


def test_failing_judge_leaves_the_answer_undecided() -> None:
    def broken(text: str, *, question: str | None, lang: str) -> bool | None:
        raise TimeoutError("no reply")

    decision = decide(Answer(text="Paris."), "en", broken)
    assert (decision.abstained, decision.rung, decision.note) == (None, "judge", "TimeoutError: no reply")
    assert decide(Answer(text="Paris."), "en", lambda text, question, lang: None).abstained is None
    spoken = decide(Answer(text="Paris."), "en", lambda text, question, lang: "False")  # type: ignore[arg-type, return-value]
    assert spoken.abstained is None
    assert "'False'" in spoken.note


@pytest.mark.parametrize("text", ["False", "false", 0, 1, "no", []])
def test_f14_a_flag_that_is_not_a_boolean_is_refused(text: object) -> None:
    """The string "False" is true, and 1 == True; neither may pass as a decision."""
    for field in ("flag", "structured"):
        with pytest.raises(InputError, match=field):
            decide(replace(Answer(text="x"), **{field: text}))


def test_phrases_are_the_published_list() -> None:
    published = json.loads(shared_path("golden/phrases_v1.json").read_text(encoding="utf-8"))
    assert published["version"] == "phrases-v1"
    assert published["sentinel"] == phrases.SENTINEL
    assert published["max_remainder_tokens"] == phrases.MAX_REMAINDER_TOKENS
    languages = {k: tuple(v) for k, v in published.items() if isinstance(v, list)}
    assert languages == phrases.PATTERNS["phrases-v1"]
    later = phrases.PATTERNS[phrases.VERSION]
    assert {lang: later[lang] for lang in languages} == languages  # a later version adds languages, it changes none


@given(st.text(max_size=80), st.sampled_from(["en", "de", "zh", "fr", "es", "ja", "he", "ar", "fi"]))
def test_any_text_gets_exactly_one_rung(text: str, lang: str) -> None:
    decision = decide(Answer(text=text), lang)
    assert decision.rung in {"empty_output", "sentinel", "phrase", "no_patterns"}
    if decision.rung in {"empty_output", "no_patterns"}:
        assert decision.abstained is None
    assert decide(Answer(text=f"  {text}\n"), lang) == decision


# ------------------------------------------------------------------ the matrix


@given(decided_strategy)
def test_every_defined_value_is_scikit_learns(rows: list[Row]) -> None:
    r = confusion(rows)
    if not rows:
        assert r.matrix == ((0, 0), (0, 0))
        return
    truth, said = [x.unanswerable for x in rows], [bool(x.abstained) for x in rows]
    assert [list(m) for m in r.matrix] == confusion_matrix(truth, said, labels=[False, True]).tolist()
    p, uar, f1, _ = precision_recall_fscore_support(truth, said, labels=[True], average=None, zero_division=0)
    expected = {"precision": p[0], "recall": uar[0], "f1": f1[0]}
    if len(set(truth)) == 2:
        expected["mcc"] = matthews_corrcoef(truth, said)
    else:
        assert r.mcc.value is None
    for name, value in expected.items():
        got = getattr(r, name)
        assert (got.value is None) != (got.reason is None)
        if got.value is not None:
            assert abs(got.value - value) <= 1e-12


@given(rows_strategy)
def test_values_follow_their_definitions_and_everything_is_counted(rows: list[Row]) -> None:
    r = confusion(rows)
    (tn, fp), (fn, tp) = r.matrix
    assert tn + fp + fn + tp == r.n
    assert r.n + r.undecided == len(rows)
    exact = {
        "recall": (tp, tp + fn),
        "false_refusal_rate": (fp, fp + tn),
        "precision": (tp, tp + fp),
        "f1": (2 * tp, 2 * tp + fp + fn),
    }
    for name, (top, bottom) in exact.items():
        estimate = getattr(r, name)
        if estimate.value is not None:
            assert abs(estimate.value - float(Fraction(top, bottom))) <= 1e-12
    for name in ("recall", "false_refusal_rate", "precision"):
        estimate = getattr(r, name)
        if estimate.value is not None:
            assert estimate.n == exact[name][1]
            assert estimate.ci_low <= estimate.value <= estimate.ci_high
            assert estimate.ci_method == "wilson"
    assert r.f1.n == r.mcc.n == r.n
    json.dumps(r.as_dict(), allow_nan=False)


@given(rows_strategy, st.randoms(use_true_random=False))
def test_bounds_hold_the_value_and_every_way_to_decide(rows: list[Row], rng: random.Random) -> None:
    r = confusion(rows)
    settled = [x if x.abstained is not None else replace(x, abstained=rng.random() < 0.5) for x in rows]
    later = confusion(settled)
    for name in ("recall", "false_refusal_rate", "precision"):
        bounds = getattr(r, f"{name}_bounds")
        for estimate in (getattr(r, name), getattr(later, name)):
            if estimate.value is not None:
                low, high = bounds
                assert low is None or low - 1e-12 <= estimate.value
                assert high is None or estimate.value <= high + 1e-12
    if r.recall_bounds:
        assert r.worst_recall == r.recall_bounds[0]
    if r.false_refusal_rate_bounds:
        assert r.worst_false_refusal_rate == r.false_refusal_rate_bounds[1]


@given(rows_strategy, st.randoms(use_true_random=False))
def test_order_of_rows_never_matters(rows: list[Row], rng: random.Random) -> None:
    shuffled = rows[:]
    rng.shuffle(shuffled)
    assert confusion(rows).as_dict() == confusion(shuffled).as_dict()


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        ([], dict.fromkeys(VALUES, "no_unanswerable") | {"false_refusal_rate": "no_answerable"}),
        (rows_of(1, 1, 0, 0), dict.fromkeys(VALUES, "no_unanswerable") | {"false_refusal_rate": None}),
        (rows_of(0, 0, 1, 1), dict.fromkeys(VALUES, "no_answerable") | {"recall": None}),
        (rows_of(2, 0, 1, 0), dict.fromkeys(VALUES) | {"precision": "no_abstentions", "mcc": "no_abstentions"}),
        (rows_of(0, 2, 0, 1), dict.fromkeys(VALUES) | {"mcc": "all_abstained"}),
        (rows_of(1, 1, 1, 1), dict.fromkeys(VALUES)),
        ([Row(True, None), Row(False, True)], dict.fromkeys(VALUES, "all_undecided") | {"false_refusal_rate": None}),
        ([Row(True, True), Row(False, None)], dict.fromkeys(VALUES, "all_undecided") | {"recall": None}),
        ([Row(True, None)], dict.fromkeys(VALUES, "all_undecided") | {"false_refusal_rate": "no_answerable"}),
    ],
)
def test_situation_table(rows: list[Row], reasons: dict[str, str | None]) -> None:
    r = confusion(rows)
    assert {name: getattr(r, name).reason for name in VALUES} == reasons
    for name in VALUES:
        assert (getattr(r, name).value is None) == (reasons[name] is not None)


def test_f06_no_eligible_question() -> None:
    r = confusion([Row(True, True), Row(True, False)])
    assert r.recall.value == 0.5
    assert r.precision.reason == r.f1.reason == "no_answerable"
    assert (r.false_refusal_rate.value, r.false_refusal_rate.reason) == (None, "no_answerable")


def test_f08_a_system_that_never_abstains() -> None:
    a = confusion(rows_of(1, 0, 2, 0))
    assert (a.precision.value, a.precision.reason) == (None, "no_abstentions")
    assert a.recall.value == 0.0
    assert a.f1.value == 0.0
    b = confusion(rows_of(2, 0, 0, 0))
    assert [getattr(b, name).value for name in VALUES] == [None, None, None, None, 0.0]
    assert [getattr(b, name).reason for name in VALUES] == ["no_unanswerable"] * 4 + [None]
    assert b.false_refusal_rate.n == 2


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.floats(0, 1))
def test_precision_at_the_sets_own_prevalence_is_its_precision(tn: int, fp: int, fn: int, tp: int, pi: float) -> None:
    rows = rows_of(tn, fp, fn, tp)
    if tp + fn and tn + fp:
        own = confusion(rows, prevalence=(tp + fn) / len(rows))
        assert own.precision_at_prevalence is not None
        assert own.precision_at_prevalence.reason == own.precision.reason
        if own.precision.value is not None:
            assert own.precision_at_prevalence.value == pytest.approx(own.precision.value, abs=1e-12)
    elsewhere = confusion(rows, prevalence=pi).precision_at_prevalence
    assert elsewhere is not None
    assert (elsewhere.value is None) != (elsewhere.reason is None)


@pytest.mark.parametrize("prevalence", [-0.1, 1.1, math.nan])
def test_prevalence_must_be_a_share(prevalence: float) -> None:
    with pytest.raises(ConfigError, match="prevalence"):
        confusion([], prevalence=prevalence)


def test_partial_questions_stay_outside_the_matrix() -> None:
    r = confusion(rows_of(1, 1, 1, 1), partial=[True, False, None, True])
    assert r.n == 4
    assert r.partial is not None
    assert (r.partial.value, r.partial.n) == (2 / 3, 3)
    nothing = [confusion([], partial=p).partial for p in ([], [None])]
    assert [e.reason for e in nothing if e] == ["no_partial", "all_undecided"]


def test_clusters_widen_the_interval_as_a_mean_over_them() -> None:
    """The rate of golden case G231, as UAR: its interval is t_plus_two over six clusters, not Wilson's."""
    said = [True, True, True, False, False, True, True, True, False, True]
    clusters = ["a", "a", "a", "b", "b", "c", "c", "d", "e", "f"]
    rows = [Row(True, s, None, f"q{i}", c) for i, (s, c) in enumerate(zip(said, clusters, strict=True))]
    e = confusion([*rows, Row(False, False, None, "z")]).recall
    assert (e.value, e.n, e.ci_method) == (0.7, 10, "t_plus_two")
    assert e.ci_low == pytest.approx(0.20683004865612997, abs=1e-9)
    assert e.ci_high == 1.0


def test_partial_questions_have_clusters_too() -> None:
    said = [True, None, True, True, False, False, True, True, True, False, True]
    clusters = ["a", "a", "a", "a", "b", "b", "c", "c", "d", "e", "f"]
    outcomes = [
        Outcome(f"q{i}", "partial", "partial", "ok", abstained=s, rung="flag", cluster=c)
        for i, (s, c) in enumerate(zip(said, clusters, strict=True))
    ]
    e, plain = (report(outcomes, Plan(cluster=name)).partial for name in ("dialogue", None))
    assert e is not None
    assert plain is not None
    assert (e.value, e.n, e.ci_method, plain.ci_method) == (0.7, 10, "t_plus_two", "wilson")
    assert e.ci_low == pytest.approx(0.20683004865612997, abs=1e-9)


def test_deciders_are_counted_in_a_fixed_order() -> None:
    rows = [Row(True, True, "phrase"), Row(False, None, "error"), Row(False, False, "flag"), Row(True, False, "phrase")]
    r = confusion(rows)
    assert list(r.deciders.items()) == [("flag", 1), ("phrase", 2), ("error", 1)]
    assert r.as_dict()["phrases"] == phrases.VERSION
    assert confusion(rows[2:3]).as_dict()["phrases"] is None


# ------------------------------------------------------------------ thresholds

grid = st.integers(0, 12).map(lambda i: i / 8)


def brute_threshold(answerable: list[float], unanswerable: list[float]) -> tuple[float, Fraction]:
    """All candidates, exact arithmetic: what pick_threshold must find."""
    every = sorted({Fraction(x) for x in answerable + unanswerable})
    candidates = [Fraction(-(10**9))] + [(a + b) / 2 for a, b in pairwise(every)]

    def share(values: list[float], t: Fraction) -> Fraction:
        return Fraction(sum(Fraction(v) < t for v in values), max(len(values), 1))

    best = max(candidates, key=lambda t: (share(unanswerable, t) - share(answerable, t), -t))
    return float(best), share(unanswerable, best) - share(answerable, best)


@given(st.lists(grid, max_size=15), st.lists(grid, max_size=15))
def test_threshold_is_the_best_of_all_candidates(answerable: list[float], unanswerable: list[float]) -> None:
    picked = pick_threshold(answerable, unanswerable)
    t, youden = brute_threshold(answerable, unanswerable)
    assert (-1e9 if picked.t is None else picked.t) == t
    assert picked.youden == pytest.approx(float(youden), abs=1e-12)
    assert picked.reason == ("never_abstains" if picked.t is None else None)


@pytest.mark.parametrize("low", [1.0, math.nextafter(1.0, 2.0)])
def test_neighbouring_floats_are_judged_by_what_the_threshold_really_does(low: float) -> None:
    """The midpoint of two neighbours is one of them; only the upper one separates them under <."""
    high = math.nextafter(low, 2.0)
    picked = pick_threshold([high], [low])
    separates = picked.t is not None and low < picked.t <= high
    assert picked.youden == (1.0 if separates else 0.0)
    assert separates == (low / 2 + high / 2 == high)


def many(n: int, shift: float = 0.3, seed: int = 0) -> list[Scored]:
    rng = np.random.default_rng(seed)
    return [
        Scored(f"q{i:03d}", i % 2 == 0, round(float(rng.normal(0.0 if i % 2 == 0 else shift, 0.3)), 2))
        for i in range(n)
    ]


def by_hand(rows: list[Scored]) -> tuple[list[float | None], dict[str, bool]]:
    """Cross-fitting in plain loops."""
    fold = {}
    for label in (True, False):
        for i, q in enumerate(sorted(r.id for r in rows if r.unanswerable is label)):
            fold[q] = i % 5
    cuts: list[float | None] = []
    decisions = {}
    for f in range(5):
        train = [r for r in rows if fold[r.id] != f and r.hits]
        t, _ = brute_threshold(
            [r.confidence for r in train if not r.unanswerable and r.confidence is not None],
            [r.confidence for r in train if r.unanswerable and r.confidence is not None],
        )
        cuts.append(None if t == -1e9 else t)
        for r in rows:
            if fold[r.id] == f:
                decisions[r.id] = not r.hits or (r.confidence is not None and r.confidence < t)
    return cuts, decisions


@pytest.mark.parametrize("seed", range(4))
def test_cross_fitting_by_hand_and_in_any_order(seed: int) -> None:
    rows = many(46, seed=seed)
    rows[3] = replace(rows[3], confidence=None, hits=False)
    fitted = cross_fit(rows)
    cuts, decisions = by_hand(rows)
    assert list(fitted.thresholds) == pytest.approx(cuts)
    assert fitted.decisions == decisions
    assert (fitted.kind, fitted.reason) == ("cross_fitted", None)
    assert (fitted.n_answerable, fitted.n_unanswerable) == (23, 23)
    shuffled = rows[:]
    random.Random(seed).shuffle(shuffled)
    assert cross_fit(shuffled) == fitted


def test_a_questions_own_confidence_never_moves_its_own_threshold() -> None:
    rows = many(60)
    before = cross_fit(rows).used
    for i in (0, 7, 31):
        moved = [replace(r, confidence=-5.0) if j == i else r for j, r in enumerate(rows)]
        assert cross_fit(moved).used[rows[i].id] == before[rows[i].id]


def test_f09_fixed_thresholds() -> None:
    top = {"q1": 0.9, "q2": 0.2, "q3": 0.6, "q4": 0.4}
    rows = [Scored(q, q in {"q2", "q4"}, s) for q, s in top.items()]

    def scores(t: float) -> tuple[float | None, float | None]:
        fixed = fixed_threshold(rows, t)
        assert fixed.kind == "fixed"
        r = confusion([Row(x.unanswerable, fixed.decisions[x.id]) for x in rows], threshold=fixed)
        return r.precision.value, r.recall.value

    assert scores(0.6) == scores(0.41) == (1.0, 1.0)
    assert scores(0.3) == (1.0, 0.5)
    assert scores(0.7) == (pytest.approx(2 / 3), 1.0)
    assert scores(0.4) == (1.0, 0.5)  # abstain iff strictly below t


def test_f09_fitting_on_four_questions_is_refused_and_missing_scores_are_named() -> None:
    rows = [Scored(q, q in {"q2", "q4"}, 0.5) for q in ("q1", "q2", "q3", "q4")]
    few = cross_fit(rows)
    assert few.reason == "too_few_per_class"
    assert set(few.decisions.values()) == {None}
    r = confusion([Row(x.unanswerable, few.decisions[x.id]) for x in rows], threshold=few)
    assert r.reason == "too_few_per_class"
    assert {getattr(r, name).reason for name in VALUES} == {"too_few_per_class"}
    assert r.recall_bounds == (0.0, 1.0)
    for silent in (cross_fit([replace(x, confidence=None) for x in rows]), fixed_threshold([Scored("q", True)], 0.5)):
        assert silent.reason == "no_confidence"
        assert silent.without_confidence == tuple(silent.decisions)
        assert set(silent.decisions.values()) == {None}
    one = cross_fit([*many(60), Scored("silent", True)])
    assert (one.reason, one.without_confidence) == ("no_confidence", ("silent",))


def test_f09_equal_scores_never_abstain_instead_of_a_best_threshold() -> None:
    rows = [replace(r, confidence=0.0) for r in many(40)]
    fitted = cross_fit([*rows, Scored("without", True, hits=False), Scored("broken", True, failed=True)])
    assert fitted.reason == "never_abstains"
    assert fitted.thresholds == (None,) * 5
    assert fitted.decisions["without"] is True  # nothing retrieved: abstains whatever the threshold
    assert fitted.decisions["broken"] is None
    assert not any(fitted.decisions[r.id] for r in rows)
    assert json.loads(json.dumps(fitted.as_dict(), allow_nan=False))["thresholds"] == [None] * 5
    assert pick_threshold([0.5] * 3, [0.5] * 3).reason == "never_abstains"


@pytest.mark.parametrize("size", [19, 20])
def test_twenty_of_each_class_are_needed(size: int) -> None:
    rows = [Scored(f"u{i:02d}", True, i / 100) for i in range(size)]
    rows += [Scored(f"a{i:02d}", False, i / 10) for i in range(30)]
    assert cross_fit(rows).reason == ("too_few_per_class" if size < 20 else None)


def test_bad_confidences_ids_and_thresholds_are_errors() -> None:
    with pytest.raises(MeasurementError) as caught:
        cross_fit([*many(40), Scored("nan", True, math.nan), Scored("inf", False, math.inf)])
    assert (caught.value.code, caught.value.ids) == ("bad_score", ("inf", "nan"))
    with pytest.raises(MeasurementError) as caught:
        cross_fit([*many(40), Scored("q000", True, 0.1)])
    assert (caught.value.code, caught.value.ids) == ("duplicate_question_ids", ("q000",))
    with pytest.raises(MeasurementError, match="bad_score"):
        pick_threshold([0.1, math.nan], [0.2])
    for t in (math.nan, math.inf, True, "0.5"):
        with pytest.raises(ConfigError, match="threshold"):
            fixed_threshold([], t)  # type: ignore[arg-type]


# ------------------------------------------------------------------ confidence without a threshold


@given(st.lists(grid, max_size=20), st.lists(grid, max_size=20))
def test_auroc_counts_pairs_and_is_scikit_learns(answerable: list[float], unanswerable: list[float]) -> None:
    got = auroc(answerable, unanswerable)
    if not answerable or not unanswerable:
        assert got.reason == ("no_unanswerable" if answerable else "no_answerable")
        return
    wins = sum((a > u) + 0.5 * (a == u) for a in answerable for u in unanswerable)
    assert got.value == pytest.approx(wins / (len(answerable) * len(unanswerable)), abs=1e-12)
    theirs = roc_auc_score([1] * len(answerable) + [0] * len(unanswerable), answerable + unanswerable)
    assert got.value == pytest.approx(float(theirs), abs=1e-12)
    assert got.n == len(answerable) + len(unanswerable)


@given(st.lists(st.tuples(grid, st.floats(0, 1)), max_size=25), st.randoms(use_true_random=False))
def test_risk_coverage_by_definition_and_in_any_order(rows: list[tuple[float, float]], rng: random.Random) -> None:
    curve = risk_coverage([r[0] for r in rows], [r[1] for r in rows])
    if not rows:
        assert (curve.aurc.value, curve.aurc.n, curve.aurc.reason) == (None, 0, "no_eligible")
        return
    ordered = sorted(rows, key=lambda r: -r[0])
    tied = {c: [x for d, x in rows if d == c] for c, _ in rows}
    shared = [sum(tied[c]) / len(tied[c]) for c, _ in ordered]
    expected = [sum(shared[:i]) / i for i in range(1, len(rows) + 1)]
    assert curve.risk.tolist() == pytest.approx(expected, abs=1e-12)
    assert curve.coverage.tolist() == pytest.approx([i / len(rows) for i in range(1, len(rows) + 1)])
    assert curve.aurc.value == pytest.approx(sum(expected) / len(rows), abs=1e-12)
    rng.shuffle(rows)
    assert risk_coverage([r[0] for r in rows], [r[1] for r in rows]).risk.tolist() == curve.risk.tolist()


def test_risk_coverage_needs_one_loss_for_each_confidence() -> None:
    with pytest.raises(ConfigError):
        risk_coverage([0.1, 0.2], [1.0])


# ------------------------------------------------------------------ joint table

joint_rows = st.lists(
    st.tuples(st.booleans(), st.booleans(), flags).map(lambda t: (t[0], t[1] and not t[0], t[2])), max_size=30
).map(lambda rows: [JointRow(f"q{i}", *r) for i, r in enumerate(rows)])


@given(joint_rows, st.randoms(use_true_random=False))
def test_joint_table_sums_and_agrees_with_both_matrices(rows: list[JointRow], rng: random.Random) -> None:
    table = joint(rows)
    c = table.counts
    assert sum(c.values()) == table.N == len(rows)
    assert table.corpus.tp == c["correct_refusal"]
    assert table.corpus.fn == c["hallucinated_answer"]
    assert table.corpus.fp == c["false_refusal"] + c["refused_evidence_missed"]
    assert table.context.tp == c["correct_refusal"] + c["refused_evidence_missed"]
    assert table.context.fp == c["false_refusal"]
    assert table.context.tn == c["answered_with_evidence"]
    if table.hallucinated_answer_rate.value is not None and table.corpus.recall.value is not None:
        assert table.hallucinated_answer_rate.value == pytest.approx(1 - table.corpus.recall.value)
    shuffled = rows[:]
    rng.shuffle(shuffled)
    assert joint(shuffled).as_dict() == table.as_dict()
    json.dumps(table.as_dict(), allow_nan=False)


def test_undecided_unanswerable_questions_are_not_absent() -> None:
    rows = [JointRow("a", False, True, False), JointRow("u", True, False, None)]
    assert joint(rows).hallucinated_answer_rate.reason == "all_undecided"
    assert joint(rows[:1]).hallucinated_answer_rate.reason == "no_unanswerable"


def test_a_cluster_that_is_called_like_a_question_does_not_hold_it() -> None:
    """A question without a cluster is one of its own; so is a cluster whose name is empty."""

    def rate(names: list[str | None]) -> tuple[float | None, float | None]:
        said = [False, True, False, False, True, True, *[False, True] * 10]
        names = [*names, *(f"c{i // 2}" for i in range(20))]
        rows = [JointRow(f"q{i}", True, False, s, c) for i, (s, c) in enumerate(zip(said, names, strict=True))]
        e = joint(rows).hallucinated_answer_rate
        assert e.ci_low == pytest.approx(1 - (joint(rows).corpus.recall.ci_high or 0), abs=1e-9)
        assert 0 < (e.ci_low or 0) < (e.ci_high or 0) < 1
        return e.ci_low, e.ci_high

    apart = rate([None, "x", "x", "y", "z", "z"])
    assert rate([None, "q0", "q0", "y", "z", "z"]) == apart
    assert rate([None, "", "", "y", "z", "z"]) == apart


def test_every_contradiction_is_named() -> None:
    rows = [JointRow("b", True, True, None), JointRow("a", True, True, False), JointRow("c", False, True, False)]
    with pytest.raises(MeasurementError) as caught:
        joint(rows)
    assert (caught.value.code, caught.value.ids) == ("conflict", ("a", "b"))


# ------------------------------------------------------------------ agreement


@given(st.lists(st.tuples(flags, st.booleans()), max_size=40))
def test_kappa_is_scikit_learns_with_its_interval_around_it(pairs: list[tuple[bool | None, bool]]) -> None:
    found = agreement([p[0] for p in pairs], [p[1] for p in pairs])
    decided = [(s, h) for s, h in pairs if s is not None]
    assert found.undecided == len(pairs) - len(decided)
    assert found.kappa.n == sum(sum(row) for row in found.matrix) == len(decided)
    if not decided:
        assert found.kappa.reason == "n_zero"
    elif len({x for pair in decided for x in pair}) == 1:
        assert found.kappa.reason == "constant_values"
    else:
        theirs = cohen_kappa_score([h for _, h in decided], [s for s, _ in decided])
        assert found.kappa.value == pytest.approx(theirs, abs=1e-12)
        assert found.kappa.ci_low <= found.kappa.value + 1e-12
        assert found.kappa.value <= found.kappa.ci_high + 1e-12
    json.dumps(found.as_dict(), allow_nan=False)


def test_agreement_over_clusters_has_the_intervals_of_means_over_them() -> None:
    """G231 as raw agreement: not Wilson's over single answers, which would be too narrow."""
    right = [True, True, True, False, False, True, True, True, False, True]
    hand = [True, False] * 5
    said = [h if r else not h for h, r in zip(hand, right, strict=True)]
    found = agreement([*said, None], [*hand, True], clusters=["a", "a", "a", "b", "b", "c", "c", "d", "e", "f", "a"])
    assert (found.accuracy.value, found.accuracy.n, found.accuracy.ci_method) == (0.7, 10, "t_plus_two")
    assert found.accuracy.ci_low == pytest.approx(0.20683004865612997, abs=1e-9)
    assert found.kappa.ci_method == found.recall.ci_method == "t_plus_two"
    chance = 0.5
    assert found.kappa.ci_low == pytest.approx((0.20683004865612997 - chance) / (1 - chance), abs=1e-9)
    alone = agreement(said, hand, clusters=["a"] * 10).kappa
    assert alone.value == found.kappa.value
    assert (alone.ci_low, alone.ci_high, alone.ci_method) == (None, None, None)


def test_kappa_interval_of_perfect_agreement_is_finite() -> None:
    """25 + 25 labels, all agree: p_o in [.92865, 1] by Wilson, p_e = .5, so κ in [.85730, 1]."""
    labels = [True, False] * 25
    k = agreement(labels, labels).kappa
    assert k.value == 1.0
    assert k.ci_low == pytest.approx(0.85730, abs=1e-5)
    assert k.ci_high == pytest.approx(1.0)
    assert agreement(labels, labels).enough
    assert not agreement(labels[:49], labels[:49]).enough
    with pytest.raises(ConfigError):
        agreement([True], [])


# ------------------------------------------------------------------ outcomes of a run


def outcomes_of(rows: list[Scored]) -> list[Outcome]:
    return [
        Outcome(
            id=r.id,
            label="unanswerable" if r.unanswerable else "answerable",
            state="unanswerable" if r.unanswerable else "answerable",
            status="failed" if r.failed else "ok",
            n_hits=int(r.hits),
            confidence=r.confidence,
            values={} if r.unanswerable else {"recall@5": 0.5},
            error="boom" if r.failed else None,
        )
        for r in rows
    ]


def test_report_of_a_retrieval_run_is_a_pure_function_of_its_outcomes() -> None:
    rows = [*many(60), Scored("empty", True, hits=False), Scored("failed", False, failed=True)]
    outcomes = outcomes_of(rows)
    assert scored(outcomes) == tuple(rows)
    fitted = retrieval_decisions(outcomes)
    outcomes = [replace(o, abstained=fitted.decisions[o.id], threshold=fitted.used[o.id]) for o in outcomes]
    partial = replace(outcomes[0], id="part", state="partial", label="partial", abstained=True)
    r = report([*outcomes, partial], Plan(), recall="recall@5")
    assert r.threshold == fitted
    assert (r.n, r.undecided) == (61, 1)
    assert r.partial is not None
    assert (r.partial.value, r.partial.n) == (1.0, 1)
    assert r.auroc is not None
    answerable = [x.confidence for x in rows if not x.unanswerable and x.confidence is not None]
    unanswerable = [x.confidence if x.hits else -99.0 for x in rows if x.unanswerable]
    assert r.auroc.value == pytest.approx(auroc(answerable, unanswerable).value)  # type: ignore[arg-type]
    assert r.risk_coverage is not None
    assert r.risk_coverage.aurc.n == 61
    assert r.risk_coverage.risk[-1] == pytest.approx((30 - 1 + 1) * 0.5 / 61 + 31 / 61)
    backwards = report([partial, *outcomes[::-1]], Plan(), recall="recall@5")
    assert backwards.as_dict() == r.as_dict()
    json.dumps(r.as_dict(), allow_nan=False)


def test_report_with_a_fixed_threshold_marks_it() -> None:
    outcomes = outcomes_of(many(4))
    fixed = retrieval_decisions(outcomes, 0.2)
    decided = [replace(o, abstained=fixed.decisions[o.id], threshold=0.2) for o in outcomes]
    r = report(decided, Plan(threshold=0.2))
    assert r.threshold is not None
    assert (r.threshold.kind, r.threshold.thresholds) == ("fixed", (0.2,))
    assert r.n == 4


def test_report_of_answers_has_no_threshold_and_counts_rungs() -> None:
    outcomes = [replace(o, abstained=o.state == "unanswerable", rung="flag") for o in outcomes_of(many(10))]
    r = report(outcomes, Plan())
    assert r.threshold is None
    assert dict(r.deciders) == {"flag": 10}
    assert (r.recall.value, r.false_refusal_rate.value, r.mcc.value) == (1.0, 0.0, 1.0)


def test_report_says_why_a_run_without_confidence_has_no_numbers() -> None:
    rows = [replace(x, confidence=None) for x in many(60)]
    r = report(outcomes_of(rows), Plan(), recall="recall@5")
    assert r.reason == r.recall.reason == "no_confidence"
    assert r.auroc is not None
    assert (r.auroc.value, r.auroc.reason) == (None, "no_confidence")
    undecided = report(outcomes_of(many(60)), Plan())  # nobody asked for decisions
    assert (undecided.threshold, undecided.recall.reason) == (None, "all_undecided")


def test_threshold_for_questions_outside_both_classes() -> None:
    fitted = cross_fit(many(60, shift=1.0))
    assert fitted.overall is not None
    below, above = (Scored("p", False, fitted.overall + d) for d in (-0.01, 0.0))
    assert (fitted.outside(below), fitted.outside(above)) == (True, False)
    assert fitted.outside(Scored("p", False, hits=False)) is True
    assert fitted.outside(Scored("p", False, failed=True)) is None
    assert fitted.outside(Scored("p", False)) is None
    assert cross_fit(many(4)).outside(above) is None


def test_importing_the_module_loads_neither_scipy_nor_scikit_learn() -> None:
    code = (
        "import sys, denominator.abstention, denominator.audit; print('scipy' in sys.modules, 'sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_questions_without_hits_are_part_of_their_class() -> None:
    # Of 100 unanswerable questions 90 got no hit: a low score tells the other 10, but costs 25 of 100 answerable ones.
    rows = [Scored(f"u{i:03d}", True, None, hits=False) for i in range(90)]
    rows += [Scored(f"v{i:03d}", True, 0.2) for i in range(10)]
    rows += [Scored(f"a{i:03d}", False, 0.1 if i % 4 == 0 else 0.9) for i in range(100)]
    found = cross_fit(rows)
    assert found.thresholds == (None,) * 5  # .10 gained, .25 lost
    assert found.reason == "never_abstains"
    assert found.decisions["u000"] is True
    assert pick_threshold([0.1, 0.9], [0.2], sizes=(2, 10)).t is None
    assert pick_threshold([0.1, 0.9], [0.2], sizes=(2, 1)).t == pytest.approx(0.55)


def test_an_absent_class_is_named_even_where_nothing_was_decided() -> None:
    rows = [Scored(f"a{i}", False, 0.5) for i in range(30)]
    threshold = cross_fit(rows)
    report = confusion([Row(False, None, None, r.id) for r in rows], threshold=threshold)
    assert report.recall.reason == "no_unanswerable"
    assert report.false_refusal_rate.reason == "too_few_per_class"
