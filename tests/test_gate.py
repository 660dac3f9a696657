"""Rules: how they are read, what they compare unrounded, what is never passed, and how results are handed out."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator.errors import ConfigError
from denominator.evaluation import evaluate, summarize
from denominator.gate import (
    Gate,
    Measured,
    as_junit,
    as_markdown,
    as_text,
    cuts,
    digits_apart,
    judge,
    parse_rule,
    rules_from_data,
)
from denominator.types import Evidence, Hit, Plan, Question, RecordedRun, Result, Run
from tests.conftest import examples

PLAN = Plan(ks=(1, 5), pool=10, resamples=199)


def measured(
    recalls: list[float],
    *,
    name: str = "run",
    unanswerable: int = 0,
    failed: int = 0,
    missing: int = 0,
    dataset_hash: str = "d",
    tags: list[str] | None = None,
    facts: dict[str, float] | None = None,
    plan: Plan = PLAN,
) -> Measured:
    """A run whose recall@5 is these values: each question has 100 evidence groups or fewer, found in order."""
    questions, results = [], {}
    for i, value in enumerate(recalls):
        groups = next(g for g in range(1, 101) if abs(value * g - round(value * g)) < 1e-9)
        gold = tuple((Evidence(f"d{i}-{g}"),) for g in range(groups))
        kind = {} if tags is None else {"kind": tags[i]}
        questions.append(Question(f"q{i:03d}", f"Question {i}?", "answerable", gold, tags=kind))
        hits = tuple(Hit(f"d{i}-{g}", f"d{i}-{g}", 1.0 - g / 1000) for g in range(round(value * groups)))
        results[f"q{i:03d}"] = Result(error="away") if i < failed else Result((*hits, Hit("x", "x", 0.001)), depth=10)
    for i in range(unanswerable):
        questions.append(Question(f"u{i:03d}", None, "unanswerable"))
        results[f"u{i:03d}"] = Result((Hit("x", "x", 0.1),), depth=10)
    for i in range(len(recalls) - missing, len(recalls)):
        del results[f"q{i:03d}"]
    outcomes = evaluate(questions, Run.from_results(results), plan)
    summary = summarize(outcomes, plan, chunker_varies=False)
    prints = {m: {"dataset_hash": dataset_hash, "metric": m, "metric_version": "1"} for m in summary.metrics}
    recorded = RecordedRun(
        name,
        name,
        name,
        "s",
        {},
        {"headline_metric": "recall@5"},
        {},
        plan,
        outcomes,
        facts or {},
        prints,
        summary.ledger,
    )
    return Measured(recorded, summary)


def verdicts(run: Measured, *texts: str, baseline: Measured | None = None, **options: Any) -> list[str]:
    return [r.verdict for r in judge([parse_rule(t) for t in texts], run, baseline, **options).results]


SEED = [1, 1, 0.5, 1, 0, 0.5, 1]

# ------------------------------------------------------------------ reading rules


@pytest.mark.parametrize(
    ("text", "name", "field", "op", "factor", "offset"),
    [
        ("recall@5 >= 0.7", "recall@5", None, ">=", 0.0, 0.7),
        ("recall@5>=70%", "recall@5", None, ">=", 0.0, 0.7),
        ("  recall@5.ci_low > .6 ", "recall@5", "ci_low", ">", 0.0, 0.6),
        ("coverage@b2000.n >= 1e2", "coverage@b2000", "n", ">=", 0.0, 100.0),
        ("partial.recall@5.n == 3", "partial.recall@5", "n", "==", 0.0, 3.0),
        ("frr <= 0.1", "false_refusal_rate", None, "<=", 0.0, 0.1),
        ("UAR.worst >= .5", "abstention_recall", "worst", ">=", 0.0, 0.5),
        ("n >= 0.95 * baseline", "eligible_n", None, ">=", 0.95, 0.0),
        ("n >= 95% * baseline", "eligible_n", None, ">=", 0.95, 0.0),
        ("recall@5 >= baseline - 0.02", "recall@5", None, ">=", 1.0, -0.02),
        ("recall@5 >= baseline", "recall@5", None, ">=", 1.0, 0.0),
        ("abstention_mcc > -0.5", "abstention_mcc", None, ">", 0.0, -0.5),
        ("latency_ms_median < 20", "latency_ms_median", None, "<", 0.0, 20.0),
    ],
)
def test_rules_are_read(text: str, name: str, field: str | None, op: str, factor: float, offset: float) -> None:
    rule = parse_rule(text)
    assert (rule.name, rule.field, rule.op) == (name, field, op)
    assert rule.factor == pytest.approx(factor, abs=1e-15)
    assert rule.offset == pytest.approx(offset, abs=1e-15)
    assert rule.needs_baseline == (factor != 0)


def test_slices_and_paired_rules_are_read() -> None:
    rule = parse_rule("recall@5[kind = how-to (v2), 50%].n >= 3")
    assert (rule.tag, rule.value, rule.field) == ("kind", "how-to (v2), 50%", "n")
    assert parse_rule("recall@5 no-regression").kind == "no-regression"
    assert parse_rule("recall@5 non-inferior within 2%").margin == pytest.approx(0.02)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "recall@5",
        "recall@5 =< 0.7",
        "recall@5 >= ",
        "recall@5 >= nan",
        "recall@5 >= inf",
        "recall@5 >= seven",
        "recall@5 >= 0.7 and more",
        "recall@5 >= 2 * 3",
        "recall@5 => baseline",
        "recall@5.n no-regression",
        "recall@5 non-inferior within 0",
        "recall@5 non-inferior within 1.5",
        "recall@5 >= 1e999",
    ],
)
def test_what_is_no_rule_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule(text)
    assert repr(text) in str(caught.value)
    assert caught.value.exit_code == 64


@given(st.text(max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_any_text_is_a_rule_or_a_clear_error(text: str) -> None:
    try:
        rule = parse_rule(text)
    except ConfigError:
        return
    assert rule.name
    assert rule.op in (">=", "<=", "==", ">", "<")


def test_unknown_names_give_the_nearest_one() -> None:
    run = measured(SEED, tags=list("aabbaab"))
    for text, hint in (
        ("recal@5 >= 0.7", "'recall@5'"),
        ("recall@5.low >= 0.7", "'recall@5'"),
        ("false_refusals <= 0.7", "'false_refusal_rate'"),
        ("recall@5[kinds=a] >= 0.7", "'kind'"),
        ("eligible_n no-regression", "retrieval metric"),
        ("recall@5.worst >= 0.7", "abstention_recall"),
    ):
        with pytest.raises(ConfigError, match=hint) as caught:
            verdicts(run, text, baseline=run)
        assert repr(text) in str(caught.value)


def test_without_a_rule_nothing_passes() -> None:
    with pytest.raises(ConfigError, match="would pass everything"):
        judge([], measured(SEED))


# ------------------------------------------------------------------ comparing


def test_figures_interval_ends_and_counts() -> None:
    run = measured(SEED, unanswerable=1)
    e = run.summary.metrics["recall@5"]
    assert e.value == pytest.approx(5 / 7)
    assert e.ci_low is not None
    assert verdicts(
        run,
        "recall@5 >= 0.714",
        "recall@5 >= 0.715",
        "recall@5.n == 7",
        "recall@5.n >= 8",
        f"recall@5.ci_low >= {e.ci_low - 1e-6}",
        f"recall@5.ci_low >= {e.ci_low + 1e-6}",
        "questions == 8",
        "failed == 0",
    ) == ["pass", "fail", "pass", "fail", "pass", "fail", "pass", "pass"]


def test_f41_rounded_numbers_never_decide() -> None:
    """Means .79666 and .79674 against .7967: the first fails, the second passes, and the text shows why."""
    low = replace(measured(SEED).summary.metrics["recall@5"], value=0.79666)
    run = measured(SEED)
    for value, said in ((0.79666, "fail"), (0.79674, "pass")):
        metrics = dict(run.summary.metrics) | {"recall@5": replace(low, value=value)}
        one = Measured(run.run, replace(run.summary, metrics=metrics))
        (result,) = judge([parse_rule("recall@5 >= 0.7967")], one).results
        assert result.verdict == said
        assert result.found == value
        shown = result.message.replace("is not ", "").split(">=")
        assert float(shown[0]) != float(shown[1].split(",")[0])
    metrics = dict(run.summary.metrics) | {"recall@5": replace(low, value=0.1 + 0.2 - 0.2)}
    one = Measured(run.run, replace(run.summary, metrics=metrics))
    assert verdicts(one, "recall@5 >= 0.1", "recall@5 <= 0.1", "recall@5 == 0.1", "recall@5 > 0.1") == [
        "pass",
        "pass",
        "pass",
        "fail",
    ]


def test_f41_seven_thirds() -> None:
    run = measured([1 / 3] * 7)
    assert run.summary.metrics["recall@5"].value == pytest.approx(1 / 3, abs=1e-12)
    assert verdicts(run, "recall@5 >= 0.3333333333333333") == ["pass"]


@given(st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=examples(200), deadline=None)
def test_shown_numbers_differ_when_the_numbers_do(a: float, b: float) -> None:
    one, two = digits_apart(a, b)
    if abs(a - b) > 1e-12:
        assert one != two
        assert (float(one) < float(two)) == (a < b)
    else:
        assert float(one) == pytest.approx(float(two), abs=1e-3)


def test_what_is_undefined_is_never_passed() -> None:
    run = measured(SEED)  # no unanswerable question, no answers
    gate = judge([parse_rule(t) for t in ("uar >= 0", "frr <= 1", "abstention_f1 >= 0", "recall@5 >= 0.5")], run)
    assert [r.verdict for r in gate.results] == ["undecided", "undecided", "undecided", "pass"]
    assert all("undefined: " in r.message for r in gate.results[:3])
    assert gate.exit_code == 2
    nothing = measured([], unanswerable=3)
    assert verdicts(nothing, "recall@5 >= 0", "recall@5.n >= 0") == ["undecided", "pass"]
    assert verdicts(measured([1.0]), "recall@5.ci_low >= 0") == ["undecided"]  # n = 1 has no interval


def test_or_groups_leave_ndcg_undefined_with_its_reason() -> None:
    plan = PLAN
    questions = [Question("q", None, "answerable", ((Evidence("a"), Evidence("b")),))]
    outcomes = evaluate(questions, Run.from_results({"q": Result((Hit("a", "a", 1.0),), depth=10)}), plan)
    summary = summarize(outcomes, plan)
    run = measured([1.0]).run
    one = Measured(replace(run, outcomes=outcomes), summary)
    (result,) = judge([parse_rule("ndcg@5 >= 0")], one).results
    assert (result.verdict, result.found) == ("undecided", None)
    assert "or_groups_unsupported" in result.message


def test_a_failed_rule_outweighs_one_that_could_not_be_judged() -> None:
    gate = judge([parse_rule("uar >= 0"), parse_rule("recall@5 >= 0.9")], measured(SEED))
    assert (gate.verdict, gate.exit_code) == ("fail", 1)


def test_an_incomplete_run_passes_nothing_unless_told() -> None:
    run = measured(SEED, failed=1)
    rules = ("recall@5 >= 0.1", "recall@5 >= 0.9", "failed <= 1", "failed == 0")
    assert verdicts(run, *rules) == ["undecided", "fail", "pass", "fail"]
    assert verdicts(run, *rules, allow_incomplete=True) == ["pass", "fail", "pass", "fail"]


LOST = "the run is incomplete: 2 questions failed and 1 is missing"


def test_paired_rules_count_what_failed_or_is_missing_as_0_when_told() -> None:
    """60 questions, all found by the baseline; 2 fail and 1 is missing: the mean is 57/60, the loss 3/60."""
    old, run = measured([1.0] * 60, name="old"), measured([1.0] * 60, failed=2, missing=1)
    rules = [parse_rule(t) for t in ("recall@5 no-regression", "recall@5 non-inferior within 0.3", "recall@5 >= 0.9")]
    gate = judge(rules, run, old)
    assert [r.verdict for r in gate.results] == ["undecided"] * 3
    assert all(r.message.startswith(LOST) for r in gate.results)
    assert "--allow-incomplete" in gate.results[0].message
    gate = judge(rules, run, old, allow_incomplete=True)
    assert [r.verdict for r in gate.results] == ["pass"] * 3
    for result in gate.results[:2]:
        assert result.comparison is not None
        assert result.n == 60
        assert result.comparison.difference.value == pytest.approx(-3 / 60)
        assert len(result.comparison.lost) == 3
    # every form of the output says it, and how many
    said = "2 questions failed and 1 is missing"
    assert all(r.message.endswith(f"(incomplete: {said})") for r in gate.results)
    assert f"note: {LOST}; judged all the same (--allow-incomplete), each counts 0" in as_text(gate)
    assert as_markdown(gate).count(said) == 4
    assert said in as_junit(gate)
    data = gate.as_dict()
    assert (data["failed"], data["missing"], data["allow_incomplete"]) == (2, 1, True)


def test_what_fails_by_failed_questions_alone_fails() -> None:
    old, run = measured([1.0] * 60, name="old"), measured([1.0] * 60, failed=20)
    rules = ("recall@5 no-regression", "recall@5 non-inferior within 0.05")
    assert verdicts(run, *rules, baseline=old) == ["undecided", "undecided"]
    assert verdicts(run, *rules, baseline=old, allow_incomplete=True) == ["fail", "fail"]


def test_an_incomplete_baseline_never_lowers_the_bar() -> None:
    old, run = measured([1.0] * 60, name="old", failed=1), measured([1.0] * 60)
    rules = [parse_rule(t) for t in ("recall@5 no-regression", "recall@5 >= baseline", "n >= 0.95 * baseline")]
    for allowed in (False, True):
        gate = judge(rules, run, old, allow_incomplete=allowed)
        assert [r.verdict for r in gate.results] == ["undecided", "undecided", "pass"]
        for result in gate.results[:2]:
            assert "the baseline is incomplete: 1 question failed and 0 are missing" in result.message
    assert not gate.notes  # the run itself is complete


# ------------------------------------------------------------------ alpha


def test_alpha_moves_the_ends_of_intervals_and_no_value() -> None:
    from denominator.uncertainty import t_plus_two

    run = measured(SEED, tags=list("aabbaab"))
    ends = {alpha: t_plus_two(np.array(SEED, dtype=float), alpha=alpha).low for alpha in (0.05, 0.2)}
    assert ends[0.05] is not None
    assert ends[0.2] is not None
    between = (ends[0.05] + ends[0.2]) / 2
    rule = [parse_rule(f"recall@5.ci_low >= {between:.6f}"), parse_rule("recall@5 >= 0.7")]
    for alpha, said, shown in ((None, "fail", 0.05), (0.05, "fail", 0.05), (0.2, "pass", 0.2)):
        gate = judge(rule, run, alpha=alpha)
        assert [r.verdict for r in gate.results] == [said, "pass"]
        assert gate.results[0].found == pytest.approx(ends[shown], abs=1e-12)
        assert gate.results[1].found == 5 / 7
        assert gate.alpha == gate.as_dict()["alpha"] == shown
        assert f"α = {shown:g}\n" in as_text(gate)
        assert f"(α = {shown:g})" in as_markdown(gate)
        assert f'<property name="alpha" value="{shown:g}" />' in as_junit(gate)
    slices = [parse_rule("recall@5[kind=a].ci_low >= 0")]
    found = [judge(slices, run, alpha=alpha).results[0].found for alpha in (0.05, 0.2)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0] < found[1]


def test_alpha_reaches_paired_rules() -> None:
    """8 of 60 lost, 1 gained: two-sided p = .039 by McNemar (20/512): worse at .05, not at .03."""
    old = measured([1.0] * 59 + [0.0], name="old")
    run = measured([0.0] * 8 + [1.0] * 52)
    gate = judge([parse_rule("recall@5 no-regression")], run, old, alpha=0.05, margin=0.01)
    assert gate.results[0].comparison is not None
    assert gate.results[0].comparison.difference.p == pytest.approx(20 / 512)
    assert gate.results[0].verdict == "fail"
    gate = judge([parse_rule("recall@5 no-regression")], run, old, alpha=0.03, margin=0.01)
    assert gate.results[0].verdict == "pass"
    assert gate.results[0].comparison is not None
    assert gate.results[0].comparison.alpha == gate.alpha == 0.03
    wide, narrow = (
        judge([parse_rule("recall@5 non-inferior")], run, old, alpha=alpha).results[0].found for alpha in (0.01, 0.2)
    )
    assert wide is not None
    assert narrow is not None
    assert wide < narrow


def test_another_alpha_of_the_baseline_is_said() -> None:
    old, run = measured(SEED, name="old", plan=replace(PLAN, alpha=0.1)), measured(SEED)
    rule = [parse_rule("recall@5 no-regression")]
    gate = judge(rule, run, old)
    assert gate.notes == ("paired rules use the α that the baseline declared, 0.1",)
    assert judge(rule, run, old, alpha=0.05).notes == ()


def test_slices() -> None:
    run = measured(SEED, tags=list("aabbaab"))  # a: 1 1 0 .5, b: .5 1 1
    texts = (
        "recall@5[kind=a] >= 0.625",
        "recall@5[kind=a] > 0.625",
        "recall@5[kind=b].n == 3",
        "recall@5[kind=c] >= 0",
    )
    gate = judge([parse_rule(t) for t in texts], run)
    assert [r.verdict for r in gate.results] == ["pass", "fail", "pass", "undecided"]
    assert "empty_slice" in gate.results[3].message
    assert "a, b" in gate.results[3].message


def test_facts_can_be_bounded() -> None:
    run = measured(SEED, facts={"latency_ms_median": 12.5})
    assert verdicts(run, "latency_ms_median <= 20", "latency_ms_median <= 10") == ["pass", "fail"]


def test_abstention_and_its_worse_bound() -> None:
    run = measured(SEED, unanswerable=2, plan=replace(PLAN, threshold=0.5))  # two refused; q4 got x alone: refused too
    assert verdicts(run, "uar == 1", "uar.worst == 1", "frr <= 0.15", "frr <= 0.14") == ["pass", "pass", "pass", "fail"]


# ------------------------------------------------------------------ against a baseline


def test_shrinking_is_measured_across_data_sets() -> None:
    old, new = measured([1.0] * 100, dataset_hash="old"), measured([1.0] * 94, dataset_hash="new")
    gate = judge([parse_rule("n >= 0.95 * baseline"), parse_rule("recall@5 >= baseline")], new, old)
    assert [r.verdict for r in gate.results] == ["fail", "undecided"]
    assert "94 is not >= 95 (baseline 100)" in gate.results[0].message
    assert "dataset_hash" in gate.results[1].message
    assert verdicts(new, "recall@5 >= baseline", baseline=old, allow=["dataset_hash"]) == ["pass"]


def test_a_rule_that_needs_a_baseline_says_so() -> None:
    with pytest.raises(ConfigError, match="--baseline-run"):
        verdicts(measured(SEED), "recall@5 no-regression")


def test_no_regression_and_non_inferiority() -> None:
    good, worse = [1.0] * 60, [1.0] * 40 + [0.0] * 20
    old = measured(good, name="old")
    rules = ("recall@5 no-regression", "recall@5 non-inferior within 0.05")
    assert verdicts(measured(worse), *rules, baseline=old) == ["fail", "fail"]
    # one question lost of 60: nothing is shown, and a loss of .05 is not ruled out either
    assert verdicts(measured([1.0] * 59 + [0.0]), *rules, baseline=old) == ["pass", "fail"]
    # nothing changed in 60 questions: no loss beyond .1
    assert verdicts(measured(good), *rules, "recall@5 non-inferior within 0.1", baseline=old) == [
        "pass",
        "fail",
        "pass",
    ]


def test_paired_rules_refuse_what_may_not_be_compared() -> None:
    gate = judge([parse_rule("recall@5 no-regression")], measured(SEED), measured(SEED, dataset_hash="other"))
    assert gate.exit_code == 2
    assert "dataset_hash" in gate.results[0].message
    gate = judge([parse_rule("recall@5 non-inferior")], measured([1.0]), measured([1.0], name="b"))
    assert gate.exit_code == 2
    assert "n_below_2" in gate.results[0].message


# ------------------------------------------------------------------ handing out

NASTY = 'x"<script>alert(1)</script>&|`*\x00\x1b\ud800]]>'


def nasty() -> Gate:
    run = measured(SEED, name=NASTY)
    rules = [parse_rule("recall@5 >= 0.7"), parse_rule("recall@5 >= 0.9"), parse_rule("uar >= 0")]
    return judge(rules, run, notes=[NASTY])


def test_junit_is_xml_whatever_the_names_are() -> None:
    root = ET.fromstring(as_junit(nasty()).encode("utf-8"))
    suite = root.find("testsuite")
    assert suite is not None
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
    }
    cases = suite.findall("testcase")
    assert [[child.tag for child in case] for case in cases] == [["system-out"], ["failure"], ["error"]]
    case = cases[1]
    assert case.get("name") == "recall@5 >= 0.9"
    assert "<script>alert(1)</script>" in (case.get("classname") or "")
    assert "0.7143 is not >= 0.9000" in (case[0].get("message") or "")


def test_markdown_holds_no_markup_of_the_data() -> None:
    text = as_markdown(nasty())
    assert "<" not in text
    assert "`" not in text
    assert text.count("\n| ") == 5
    assert "3 rules passed, 1 failed, 1 could not be judged" in text


def test_text_and_json_say_the_same() -> None:
    gate = nasty()
    data = json.loads(json.dumps(gate.as_dict(), allow_nan=False))
    assert data["verdict"] == "fail"
    assert [r["verdict"] for r in data["results"]] == ["pass", "fail", "undecided"]
    assert data["results"][0]["found"] == 5 / 7
    text = as_text(gate)
    assert "FAIL: 1 of 3 rules passed, 1 failed, 1 could not be judged" in text
    assert "CANNOT JUDGE" in text


# ------------------------------------------------------------------ rules from a file


def test_rules_from_yaml_data() -> None:
    rules, others = rules_from_data({"rules": ["recall@5 >= 0.7"], "margin": 0.05, "allow": ["ties"]}, "gate.yaml")
    assert [r.text for r in rules] == ["recall@5 >= 0.7"]
    assert others == {"margin": 0.05, "allow": ["ties"]}
    assert rules_from_data(["recall@5 >= 0.7"], "gate.yaml")[0] == rules


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "expected a list of rules"),
        ("recall@5 >= 0.7", "expected a list of rules"),
        ({"margin": 1}, "expected a list of rules"),
        ({"rules": "recall@5 >= 0.7"}, "rules is"),
        ({"rules": [{"recall@5": 0.7}]}, "rule 1 is"),
        ({"rules": [], "marign": 0.1}, "'margin'"),
        ({"rules": [], "margin": True}, "margin is True"),
        ({"rules": [], "alpha": "0.1"}, "alpha is '0.1'"),
        ({"rules": [], "allow": [1]}, "allow is"),
        (["recall@5 = 0.7"], "cannot be read"),
    ],
)
def test_wrong_yaml_data_is_named(data: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rules_from_data(data, "gate.yaml")


def test_cuts_that_rules_speak_of() -> None:
    texts = (
        "recall@7 >= 0",
        "partial.recall@3 >= 0",
        "coverage@b500 >= 0",
        "map@100 >= 0",
        "frr <= 1",
        "coverage@9 > 0",
    )
    assert cuts([parse_rule(t) for t in texts]) == ((3, 7, 9), (500,))
