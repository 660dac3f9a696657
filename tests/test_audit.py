"""The audit block: hand-made tables, the identities that hold exactly, and the tools whose conventions it names."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denominator.audit import TOOLS, AuditReport, AuditRow, audit, audit_outcomes, audit_run, recover
from denominator.errors import ConfigError, InputError
from denominator.types import STATES, Evidence, Outcome

SEED = [1, 1, 0.5, 1, 0, 0.5, 1]
unit = st.floats(0, 1, allow_nan=False)


def reported(report: AuditReport) -> dict[str, float | None]:
    return {c.name: c.reported for c in report.conventions}


# Two answerable questions (1 and 0), one partial with gold (.5), a failed answerable one, an unanswerable one without
# hits, an unlabelled one without gold that got hits, and a contradictory one.
TABLE = [
    AuditRow("answerable", True, 1.0, retrieved=5),
    AuditRow("answerable", True, 0.0, retrieved=5),
    AuditRow("partial", True, 0.5, retrieved=5),
    AuditRow("answerable", True, 0.0, "failed"),
    AuditRow("unanswerable", False, 0.0, retrieved=0),
    AuditRow("unlabelled", False, 0.0, retrieved=3),
    AuditRow("conflict", True, 1.0, retrieved=5),
]


def test_every_convention_by_hand() -> None:
    a = audit_run(TABLE)
    assert (a.r, a.n) == (pytest.approx(1 / 3), 3)
    assert (a.seen, a.empty, a.u) == (7, 2, pytest.approx(2 / 7))
    assert reported(a) == pytest.approx(
        {
            "empty_is_one": 4.5 / 7,
            "empty_is_zero": 2.5 / 7,
            "empty_is_skipped": 2.5 / 5,
            "missing_label_is_miss": 2.5
            / 6,  # the unlabelled question counts as a miss, the unanswerable one is left out
            "absent_from_run_is_skipped": 2.5 / 4,  # the failed question goes unnoticed
            "empty_is_one_if_nothing_retrieved": 3.5 / 7,
        }
    )
    assert {c.name: c.n for c in a.conventions} == {
        "empty_is_one": 7,
        "empty_is_zero": 7,
        "empty_is_skipped": 5,
        "missing_label_is_miss": 6,
        "absent_from_run_is_skipped": 4,
        "empty_is_one_if_nothing_retrieved": 7,
    }
    for c in a.conventions:
        assert c.inflation == pytest.approx(c.reported - a.r)
        assert c.tools == TOOLS[c.name]


def test_what_depends_on_hits_is_left_out_where_hits_are_unknown() -> None:
    assert "empty_is_one_if_nothing_retrieved" not in reported(audit(SEED, 1))
    assert "empty_is_one_if_nothing_retrieved" in reported(audit(SEED, 0))


def test_a_missing_label_is_not_a_deliberate_unanswerable() -> None:
    answerable = [AuditRow("answerable", True, 1.0)] * 2
    deliberate, forgotten = AuditRow("unanswerable", False), AuditRow("answerable_no_gold", False)
    assert reported(audit_run([*answerable, deliberate, deliberate]))["missing_label_is_miss"] == 1.0
    assert reported(audit_run([*answerable, forgotten, forgotten]))["missing_label_is_miss"] == 0.5


def test_triples_are_enough() -> None:
    triples = [(row.state, row.has_gold, row.value) for row in TABLE]
    ours, full = audit_run(triples), audit_run(TABLE)
    for name in ("r", "n", "u", "naive_one", "naive_zero", "drop", "from_empty", "from_labels"):
        assert getattr(ours, name) == getattr(full, name)


@given(st.lists(st.tuples(st.sampled_from(STATES), st.booleans(), unit), max_size=30))
def test_inflation_is_what_empty_lists_and_what_labels_do(triples: list[tuple[str, bool, float]]) -> None:
    # answerable means that there is gold; a question without gold has no recall
    rows = [(s, gold or s == "answerable", value) for s, gold, value in triples]
    a = audit_run([(s, gold, value if gold else 0.0) for s, gold, value in rows])  # type: ignore[misc]
    assert a.n == sum(s == "answerable" for s, _, _ in rows)
    assert a.empty + sum(gold for _, gold, _ in rows) == a.seen == len(rows)
    assert (a.r is None) == (a.n == 0) == (a.reason == "no_eligible")
    if a.r is not None:
        assert a.inflation == pytest.approx(a.from_empty + a.from_labels, abs=1e-12)
        assert a.naive_one == pytest.approx(a.u + (1 - a.u) * a.drop, abs=1e-12)
        assert a.naive_zero == pytest.approx((1 - a.u) * a.drop, abs=1e-12)
        assert -1e-12 <= a.naive_zero <= a.drop + 1e-12
        assert a.drop <= a.naive_one + 1e-12
    assert audit_run([(s, gold, value if gold else 0.0) for s, gold, value in rows[::-1]]) == a  # type: ignore[misc]
    json.dumps(a.as_dict(), allow_nan=False)


@given(st.lists(unit, min_size=1, max_size=20), st.integers(0, 20))
def test_on_a_clean_dataset_drop_is_right_and_inflation_is_u_times_one_minus_r(
    recalls: list[float], empty: int
) -> None:
    a = audit(recalls, empty)
    assert a.drop == a.r == pytest.approx(sum(recalls) / len(recalls), abs=1e-12)
    assert a.inflation == pytest.approx(a.u * (1 - a.r), abs=1e-12)
    assert a.from_labels == 0


def test_nothing_seen_and_only_empty_lists() -> None:
    nothing = audit([], 0)
    assert (nothing.r, nothing.u, nothing.naive_one, nothing.reason) == (None, None, None, "no_eligible")
    only = audit([], 3)
    assert (only.r, only.u, only.naive_one, only.naive_zero, only.drop) == (None, 1.0, 1.0, 0.0, None)
    assert {c.name: c.reason for c in only.conventions} == dict.fromkeys(reported(only), "no_eligible")
    for empty in (-1, True, 1.0):
        with pytest.raises(ConfigError):
            audit(SEED, empty)  # type: ignore[arg-type]


def test_refusing_tools_are_named() -> None:
    assert [t["name"] for t in audit(SEED, 1).as_dict()["refused_by"]] == ["LlamaIndex Recall", "chunking_evaluation"]


# ------------------------------------------------------------------ from the record


def outcome(name: str, state: str, value: float | None, **more: object) -> Outcome:
    gold = ((Evidence("d"),),) if value is not None or more.get("reasons") else ()
    given: dict[str, object] = {"status": "ok", "n_hits": 2, "values": {"recall@5": value} if gold else {}}
    return Outcome(id=name, label=state, state=state, gold=gold, empty_gold=not gold, **{**given, **more})  # type: ignore[arg-type]


def test_outcomes_alone_give_the_audit() -> None:
    outcomes = [outcome(f"q{i}", "answerable", v) for i, v in enumerate(SEED)]
    outcomes.append(outcome("u", "unanswerable", None, n_hits=0))
    a = audit_outcomes(outcomes, "recall@5")
    assert a.metric == "recall@5"
    assert (a.r, a.n, a.naive_one, a.naive_zero) == (pytest.approx(5 / 7), 7, 0.75, 0.625)
    assert reported(a)["empty_is_one_if_nothing_retrieved"] == 0.75
    failed = [*outcomes[:-1], outcome("f", "answerable", 0.0, status="failed", error="boom", n_hits=0)]
    assert reported(audit_outcomes(failed))["absent_from_run_is_skipped"] == pytest.approx(5 / 7)
    assert audit_outcomes(failed).r == pytest.approx(5 / 8)


def test_an_undefined_metric_has_no_audit_but_a_reason() -> None:
    outcomes = [
        outcome("a", "answerable", 1.0),
        outcome("b", "answerable", None, reasons={"recall@5": "depth_below_k"}),
    ]
    a = audit_outcomes(outcomes)
    assert (a.r, a.naive_one, a.reason, a.n, a.seen) == (None, None, "depth_below_k", 2, 2)
    json.dumps(a.as_dict(), allow_nan=False)


# ------------------------------------------------------------------ the way back


@given(st.lists(unit, min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 4))
def test_recovery_undoes_each_convention(recalls: list[float], empty: int, digits: int) -> None:
    a = audit(recalls, empty)
    assert a.u is not None
    for convention, naive in (("one", a.naive_one), ("zero", a.naive_zero), ("drop", a.drop)):
        assert naive is not None
        back = recover(naive, a.u, convention)  # type: ignore[arg-type]
        assert back.value == pytest.approx(a.r, abs=1e-9)
        published = recover(round(naive, digits), a.u, convention, 0.5 * 10**-digits)  # type: ignore[arg-type]
        assert published.low is not None
        assert published.low - 1e-9 <= a.r <= published.high + 1e-9
        assert 0 <= published.low <= published.value <= published.high <= 1


def test_recovery_says_when_it_cannot_be_done() -> None:
    assert recover(1.0, 1.0).reason == "all_unanswerable"
    assert recover(0.0, 1, "zero").reason == "all_unanswerable"
    assert recover(0.1, 0.2).reason == "inconsistent_u"
    assert recover(0.9, 0.2, "zero").reason == "inconsistent_u"
    assert recover(1.1, 0.0, "drop").reason == "inconsistent_u"
    assert recover(0.1995, 0.2, half_width=0.0005).value == 0.0  # within its rounding
    assert recover(0.1994, 0.2, half_width=0.0005).reason == "inconsistent_u"
    given = recover(0.1, 0.2)
    assert (given.value, given.low, given.high) == (None, None, None)


@pytest.mark.parametrize(
    "bad",
    [
        {"naive": math.nan, "u": 0.1},
        {"naive": 0.5, "u": math.inf},
        {"naive": 0.5, "u": -0.1},
        {"naive": 0.5, "u": 1.2},
        {"naive": "0.5", "u": 0.1},
        {"naive": 0.5, "u": True},
        {"naive": 0.5, "u": 0.1, "half_width": -1.0},
    ],
)
def test_recovery_refuses_what_is_not_a_number(bad: dict[str, float]) -> None:
    with pytest.raises(InputError):
        recover(**bad)  # type: ignore[arg-type]


def test_recovery_refuses_an_unknown_convention() -> None:
    with pytest.raises(ConfigError, match="two"):
        recover(0.5, 0.1, "two")  # type: ignore[arg-type]


# ------------------------------------------------------------------ the tools that are named

QRELS = {"a": {"d1": 1}, "b": {"d2": 1}, "u": {"d3": 0}}  # u has nothing relevant
RUN = {"a": {"d1": 1.0}, "b": {"x": 1.0}, "u": {"x": 1.0}}


def expected(name: str, *, without: str = "") -> float | None:
    rows = [AuditRow("answerable", True, 1.0, retrieved=1), AuditRow("answerable", True, 0.0, retrieved=1)]
    if without:
        rows[1] = AuditRow("answerable", True, 0.0, "missing")
    return reported(audit_run([*rows, AuditRow("unanswerable", False, retrieved=1)]))[name]


@pytest.mark.peers
def test_trec_eval_skips_topics_without_judgments_and_those_absent_from_the_run() -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")

    def recall(qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]]) -> float:
        per = pytrec_eval.RelevanceEvaluator(qrels, {"recall.5"}).evaluate(run)
        return sum(q["recall_5"] for q in per.values()) / len(per)

    judged = {q: QRELS[q] for q in ("a", "b")}
    assert recall(judged, RUN) == expected("empty_is_skipped")
    assert recall(judged, {q: RUN[q] for q in ("a", "u")}) == expected("absent_from_run_is_skipped", without="b")
    assert recall(QRELS, RUN) == pytest.approx(expected("empty_is_zero"))  # grade-0 judgments alone: a 0


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ir_measures_and_ranx_score_zero() -> None:
    ir_measures = pytest.importorskip("ir_measures")
    measure = ir_measures.parse_measure("R@5")
    assert ir_measures.calc_aggregate([measure], QRELS, RUN)[measure] == pytest.approx(expected("empty_is_zero"))
    ranx = pytest.importorskip("ranx")
    got = ranx.evaluate(ranx.Qrels(QRELS), ranx.Run(RUN), "recall@5")
    assert got == pytest.approx(expected("empty_is_zero"))


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_rewards_returning_nothing() -> None:
    import pandas as pd
    from mlflow.metrics import recall_at_k

    def score(targets: list[list[str]], hits: list[list[str]]) -> list[float]:
        return list(recall_at_k(5).eval_fn(pd.Series(hits), pd.Series(targets)).scores)

    assert score([["d1"], [], []], [["d1"], ["x"], []]) == [1, 0, 1]


def test_a_question_that_only_conventions_count_takes_nothing_from_the_corrected_value() -> None:
    rows = [
        AuditRow("answerable", True, 1.0),
        AuditRow("answerable", True, 0.5),
        AuditRow("partial", True, undefined=True),
        AuditRow("unanswerable", False),
    ]
    report = audit_run(rows, reason="depth_below_k")
    assert (report.r, report.n, report.naive_one, report.inflation, report.reason) == (0.75, 2, None, None, None)
    assert report.conventions == ()
    rows[0] = AuditRow("answerable", True, undefined=True)
    assert (audit_run(rows, reason="depth_below_k").r, audit_run(rows, reason="depth_below_k").reason) == (
        None,
        "depth_below_k",
    )
