"""Outcomes and summaries: the seed example, the budget level, answers, thresholds, round trips of the record."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denominator.errors import MeasurementError
from denominator.evaluation import align, audit_metric, evaluate, headline_of, parse_metric, slice_values, summarize
from denominator.records import (
    dumps,
    ledger_from_json,
    outcomes_from_lines,
    outcomes_to_lines,
    plan_from_json,
    plan_to_json,
)
from denominator.spans import CorpusIndex
from denominator.tracking import mlflow_payload
from denominator.types import Answer, Document, Evidence, Hit, Outcome, Plan, Question, Result, Run

RECALLS = (1, 1, 0.5, 1, 0, 0.5, 1)


def seed_example() -> tuple[list[Question], dict[str, Result]]:
    """Seven answerable questions with these recalls at 5 and one that no document answers."""
    questions, results = [], {}
    for i, recall in enumerate(RECALLS):
        gold = (f"g{i}a", f"g{i}b") if recall == 0.5 else (f"g{i}a",)
        questions.append(Question(f"q{i}", answerability="answerable", gold=tuple((Evidence(g),) for g in gold)))
        found = [Hit(f"g{i}a", f"g{i}a", 0.9)] if recall else []
        results[f"q{i}"] = Result((*found, Hit("x", "x", 0.5)), depth=10, exhausted=True)
    questions.append(Question("q7", answerability="unanswerable"))
    results["q7"] = Result((Hit("x", "x", 0.4), Hit("y", "y", 0.3)), depth=10, exhausted=True)
    return questions, results


def test_seed_example_golden() -> None:
    questions, results = seed_example()
    plan = Plan(ks=(5,), pool=10)
    summary = summarize(evaluate(questions, Run.from_results(results), plan), plan)
    estimate = summary.metrics["recall@5"]
    assert estimate.value == pytest.approx(5 / 7, abs=1e-12)
    assert estimate.n == 7
    assert (estimate.ci_low, estimate.ci_high) == pytest.approx((0.3338236396135378, 0.9995096937197955))
    assert summary.headline == "recall@5"
    assert summary.audit is not None
    assert (summary.audit.naive_one, summary.audit.naive_zero) == pytest.approx((0.750, 0.625))
    assert summary.ledger.N == 8
    assert summary.ledger.states["unanswerable"] == 1
    assert summary.metrics["coverage@b2000"].reason == "no_spans"


def test_what_came_back_does_not_change_the_denominator() -> None:
    questions, results = seed_example()
    plan = Plan(ks=(5,), pool=10)
    del results["q0"]
    results["q1"] = Result(error="timeout")
    outcomes = evaluate(questions, Run.from_results(results), plan)
    summary = summarize(outcomes, plan)
    assert summary.metrics["recall@5"].n == 7
    assert summary.metrics["recall@5"].value == pytest.approx(3 / 7)
    assert (summary.ledger.ok, summary.ledger.failed, summary.ledger.missing) == (5, 1, 1)
    assert summary.ledger.incomplete
    assert {o.id: o.status for o in outcomes}["q0"] == "missing"
    assert {o.id: o.error for o in outcomes}["q1"] == "timeout"


def test_strict_names_both_ways_out_and_lenient_counts() -> None:
    questions, results = seed_example()
    questions += [Question("n1"), Question("c1", answerability="unanswerable", gold=((Evidence("x"),),))]
    run = Run.from_results(results)
    with pytest.raises(MeasurementError, match="lenient") as caught:
        evaluate(questions, run, Plan(ks=(5,), pool=10))
    assert caught.value.ids == ("c1", "n1")
    plan = Plan(ks=(5,), pool=10, eligibility="lenient")
    summary = summarize(evaluate(questions, run, plan), plan)
    assert summary.metrics["recall@5"].n == 7
    assert sum(summary.ledger.states.values()) == summary.ledger.N == 10


def test_gold_outside_the_corpus_is_named() -> None:
    questions = [Question("q1", answerability="answerable", gold=((Evidence("d1"),), (Evidence("d9"),)))]
    run = Run.from_results({"q1": Result((Hit("d1", "d1", 1.0),))})
    with pytest.raises(MeasurementError, match="q1 needs 'd9'"):
        evaluate(questions, run, Plan(ks=(1,)), corpus_ids={"d1"})
    plan = Plan(ks=(1,), eligibility="lenient")
    summary = summarize(evaluate(questions, run, plan, corpus_ids={"d1"}), plan)
    assert summary.ledger.states["needs_review"] == 1
    assert summary.metrics["recall@1"].value is None


TEXT = "Alpha beta gamma delta. " * 4


def span_run() -> tuple[list[Question], Run, CorpusIndex]:
    documents = [Document("d", TEXT), Document("e", TEXT.upper())]
    questions = [
        Question("q1", answerability="answerable", gold=((Evidence("d", 0, 10),),)),
        Question("q2", answerability="answerable", gold=((Evidence("e", 6, 16),), (Evidence("d", 30, 40),))),
        Question("u1", answerability="unanswerable"),
    ]
    hits = {
        "q1": Result((Hit("d#0", "d", 0.9, 0, 5), Hit("e#0", "e", 0.5, 0, 16)), depth=10, exhausted=True),
        "q2": Result((Hit("e#0", "e", 0.8, 0, 16), Hit("d#0", "d", 0.2, 0, 5)), depth=10, exhausted=True),
        "u1": Result((Hit("d#0", "d", 0.1, 0, 5),), depth=10, exhausted=True),
    }
    return questions, Run.from_results(hits), CorpusIndex.build(documents)


def test_coverage_counts_characters_without_white_space() -> None:
    questions, run, index = span_run()
    plan = Plan(ks=(1, 2), budget=2000, pool=10)
    outcomes = evaluate(questions, run, plan, index=index)
    values = {o.id: o.values for o in outcomes}
    assert values["q1"]["coverage@b2000"] == pytest.approx(5 / 9)  # "Alpha" of "Alpha beta"
    assert values["q2"]["coverage@b2000"] == pytest.approx(0.5)
    assert values["q2"]["coverage@1"] == pytest.approx(0.5)
    summary = summarize(outcomes, plan)
    assert summary.headline == "coverage@b2000"
    assert summary.metrics["coverage@b2000"].level == "L5"
    assert summarize(outcomes, plan, chunker_varies=False).headline == "recall@2"


def test_a_pool_too_shallow_for_the_budget() -> None:
    questions, run, index = span_run()
    shallow = Run.from_results(
        {q: Result((Hit("d#0", "d", 0.9, 0, 5), Hit("e#0", "e", 0.5, 0, 16)), depth=2) for q in run.question_ids}
    )
    plan = Plan(ks=(1,), budget=2000, pool=2)
    summary = summarize(evaluate(questions, shallow, plan, index=index), plan)
    assert summary.metrics["coverage@b2000"].reason == "depth_below_k"
    assert summary.metrics["coverage@1"].value is not None
    assert summary.headline == "recall@1"
    with pytest.raises(MeasurementError, match="budget_underfilled"):
        evaluate(questions, shallow, Plan(ks=(1,), budget=2000, pool=2, headline="coverage@b2000"), index=index)


def test_recorded_answers_decide_abstention() -> None:
    questions, results = seed_example()
    answers = {f"q{i}": Answer(text="It is 42.") for i in range(7)} | {"q7": Answer(text="NO_ANSWER")}
    plan = Plan(ks=(5,), pool=10)
    outcomes = evaluate(questions, Run.from_results(results), plan, answers=answers)
    report = summarize(outcomes, plan).abstention
    assert report.matrix == ((7, 0), (0, 1))
    assert report.deciders == {"sentinel": 1, "phrase": 7}
    with pytest.raises(MeasurementError, match="unknown_question_ids"):
        evaluate(questions, Run.from_results(results), plan, answers={"zz": Answer(text="x")})


def test_abstention_only_needs_no_gold_and_has_no_recall() -> None:
    questions = [Question("a", answerability="answerable"), Question("u", answerability="unanswerable")]
    answers = {"a": Answer(flag=False), "u": Answer(flag=True)}
    plan = Plan(evaluate="abstention")
    summary = summarize(evaluate(questions, Run.from_results({}), plan, answers=answers), plan)
    assert summary.abstention.matrix == ((1, 0), (0, 1))
    assert summary.metrics["recall@5"].reason == "abstention_only"
    assert summary.audit is None
    assert not summary.ledger.incomplete


def test_partial_questions_have_a_line_of_their_own() -> None:
    questions, results = seed_example()
    questions.append(Question("p", answerability="partial", gold=((Evidence("g0a"),), (Evidence("zz"),))))
    results["p"] = Result((Hit("g0a", "g0a", 1.0),))
    plan = Plan(ks=(5,), pool=10)
    summary = summarize(evaluate(questions, Run.from_results(results), plan), plan)
    assert summary.metrics["recall@5"].n == 7
    assert (summary.partial["recall@5"].value, summary.partial["recall@5"].n) == (0.5, 1)


def test_slices_keep_their_own_n() -> None:
    tags = [{"lang": "en", "kinds": ["a", "b"]}, {"lang": "de", "kinds": ["a"]}, {"lang": "en", "flag": True}]
    questions = [
        Question(f"q{i}", answerability="answerable", gold=((Evidence(f"g{i}"),),), tags=t) for i, t in enumerate(tags)
    ]
    run = Run.from_results({"q0": Result((Hit("g0", "g0", 1.0),)), "q1": Result(), "q2": Result()})
    plan = Plan(ks=(1,))
    slices = summarize(evaluate(questions, run, plan), plan).slices
    assert {v: (e["recall@1"].value, e["recall@1"].n) for v, e in slices["lang"].items()} == {
        "de": (0, 1),
        "en": (0.5, 2),
    }
    assert {v: e["recall@1"].n for v, e in slices["kinds"].items()} == {"a": 2, "b": 1}
    assert "flag" not in slices  # one value slices nothing
    assert slice_values(Outcome("q", None, "answerable", "ok", tags={"flag": True}), "flag") == ("true",)


def test_micro_counts_groups() -> None:
    questions, results = seed_example()
    plan = Plan(ks=(5,), pool=10, aggregation="micro")
    estimate = summarize(evaluate(questions, Run.from_results(results), plan), plan).metrics["recall@5"]
    assert (estimate.value, estimate.n, estimate.unit) == (pytest.approx(6 / 9), 9, "groups")


def test_micro_merges_spans_of_one_document() -> None:
    spans = ((Evidence("d", 0, 5),), (Evidence("d", 10, 15),))
    questions = [
        Question("q1", answerability="answerable", gold=spans),
        Question("q2", answerability="answerable", gold=((Evidence("e", 0, 5),),)),
    ]
    results = {"q1": Result((Hit("d", "d", 0.9),)), "q2": Result((Hit("x", "x", 0.9),))}
    plan = Plan(ks=(5,), pool=10, aggregation="micro")
    estimate = summarize(evaluate(questions, Run.from_results(results), plan), plan).metrics["recall@5"]
    assert (estimate.value, estimate.n) == (0.5, 2)  # two documents are wanted, not three spans


def test_a_list_that_the_depth_cut_stays_cut_when_its_copies_are_dropped() -> None:
    question = Question("q", answerability="answerable", gold=((Evidence("d"),),))
    hits = (Hit("c1", "d", 0.9), Hit("c1", "d", 0.8), Hit("c2", "d", 0.7))
    plan = Plan(ks=(1, 2, 3), pool=3)
    metrics = summarize(evaluate([question], Run.from_results({"q": Result(hits, depth=3)}), plan), plan).metrics
    assert metrics["recall@1"].value == 1.0
    assert (metrics["recall@2"].value, metrics["recall@2"].reason) == (None, "depth_below_k")


@pytest.mark.parametrize("headline", ["map@10", "r_precision", "mrr@1"])
def test_the_joint_table_has_a_context_where_the_headline_has_none(headline: str) -> None:
    questions, results = seed_example()
    answers = {q.id: Answer(flag=q.id == "q7") for q in questions}
    plan = Plan(ks=(1, 5), pool=10, headline=headline)
    summary = summarize(evaluate(questions, Run.from_results(results), plan, answers=answers), plan)
    assert summary.joint is not None, summary.joint_reason
    assert summary.joint.counts["answered_with_evidence"] == 4


def test_nothing_is_clustered_unasked_and_failed_answers_are_no_failed_retrieval() -> None:
    questions, results = seed_example()
    questions = [replace(q, cluster="talk") for q in questions]
    answers = {q.id: Answer(flag=q.id == "q7") for q in questions[2:]} | {"q1": Answer(error="boom")}
    plan = Plan(ks=(5,), pool=10)
    summary = summarize(evaluate(questions, Run.from_results(results), plan, answers=answers), plan)
    assert summary.metrics["hit@5"].ci_method == "wilson"
    assert summary.abstention.false_refusal_rate.ci_method == "wilson"
    assert summary.joint is not None
    assert summary.joint.hallucinated_answer_rate.ci_method == "wilson"
    assert summary.abstention.auroc is not None
    assert summary.abstention.auroc.n == 8  # all were retrieved for, though two have no answer
    assert summary.audit is not None
    absent = next(c for c in summary.audit.conventions if c.name == "absent_from_run_is_skipped")
    assert (absent.reported, absent.n) == (pytest.approx(5 / 7), 7)


def test_a_micro_average_has_a_name_of_its_own_in_the_record() -> None:
    questions, results = seed_example()
    plan = Plan(ks=(5,), pool=10, aggregation="micro")
    summary = summarize(evaluate(questions, Run.from_results(results), plan), plan)
    metrics, _ = mlflow_payload("recall@5", summary.metrics["recall@5"])
    assert metrics["recall_at_5__micro"] == pytest.approx(6 / 9)
    assert metrics["recall_at_5__micro__n"] == 9
    assert "recall_at_5" not in metrics
    assert "mrr_at_5" in mlflow_payload("mrr@5", summary.metrics["mrr@5"])[0]
    undefined = summary.metrics["coverage@b2000"]
    assert (undefined.aggregation, undefined.reason) == ("macro", "no_spans")


def test_the_record_gives_back_the_same_outcomes_and_bytes() -> None:
    questions, run, index = span_run()
    plan = Plan(ks=(1, 2), pool=10, slices=("a",), threshold=0.3)
    outcomes = evaluate(questions, run, plan, index=index)
    lines = list(outcomes_to_lines(outcomes))
    back = outcomes_from_lines(lines)
    assert back == outcomes
    assert list(outcomes_to_lines(back)) == lines
    assert plan_from_json(json.loads(dumps(plan_to_json(plan)))) == plan
    summary = summarize(outcomes, plan)
    assert dumps(summarize(back, plan).as_dict()) == dumps(summary.as_dict())
    assert ledger_from_json(summary.ledger.as_dict()) == summary.ledger
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps(float("nan"))


def test_kept_hits_are_those_that_a_cut_can_see() -> None:
    hits = tuple(Hit(f"d{i % 3}#{i}", f"d{i % 3}", 1 - i / 10) for i in range(9))
    questions = [Question("q", answerability="answerable", gold=((Evidence("d2"),),))]
    (outcome,) = evaluate(questions, Run.from_results({"q": Result(hits)}), Plan(ks=(2,)))
    assert [h.rank for h in outcome.hits] == [1, 2]
    hits = (Hit("a#0", "a", 0.9), Hit("a#1", "a", 0.8), Hit("a#2", "a", 0.7), Hit("b#0", "b", 0.6))
    (outcome,) = evaluate(questions, Run.from_results({"q": Result(hits)}), Plan(ks=(2,)))
    assert [(h.id, h.rank) for h in outcome.hits] == [("a#0", 1), ("a#1", 2), ("b#0", 4)]
    assert outcome.n_hits == 4


@given(st.permutations(range(8)), st.randoms())
def test_order_of_questions_and_results_changes_nothing(order: list[int], random: object) -> None:
    questions, results = seed_example()
    plan = Plan(ks=(1, 5), pool=10)
    want = evaluate(questions, Run.from_results(results), plan)
    shuffled = {f"q{i}": results[f"q{i}"] for i in order}
    assert evaluate([questions[i] for i in order], Run.from_results(shuffled), plan) == want


def test_align_fills_what_is_absent() -> None:
    _, results = seed_example()
    run = Run.from_results({q: results[q] for q in ("q3", "q1")})
    aligned = align(run, ["q0", "q1", "q3"])
    assert np.diff(aligned.offsets).tolist() == [0, 2, 2]
    assert aligned.units.ids[aligned.unit[0]] == "g1a"
    assert align(Run.from_results({}), ["q0"]).offsets.tolist() == [0, 0]


def test_names_and_defaults() -> None:
    assert parse_metric("span_precision@b500").level == "L5"
    assert audit_metric(Plan(ks=(1, 3))) == "recall@3"
    assert headline_of(Plan(headline="hit@1"), spans=True) == "hit@1"
