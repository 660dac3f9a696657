"""States and ledger against the state table typed out, and the properties that no ledger may break."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denominator.eligibility import (
    BLOCKING,
    LENIENT,
    assume_answerable,
    build_ledger,
    classify,
    document_groups,
    groups_of,
    has_gold,
    lost_evidence,
    span_groups,
    state_of,
    statuses_of,
)
from denominator.errors import MeasurementError
from denominator.ranking import run_from_dicts, run_from_results
from denominator.types import LABELS, STATES, Evidence, Question, Result

A, B, C = Evidence("a"), Evidence("b"), Evidence("c")
GOLD = ((A,),)

TABLE = {  # (needs review, label, has gold): state
    (False, None, False): "unlabelled",
    (False, None, True): "unlabelled",
    (False, "unlabelled", False): "unlabelled",
    (False, "unlabelled", True): "unlabelled",
    (False, "unanswerable", False): "unanswerable",
    (False, "unanswerable", True): "conflict",
    (False, "answerable", True): "answerable",
    (False, "answerable", False): "answerable_no_gold",
    (False, "partial", True): "partial",
    (False, "partial", False): "partial_no_gold",
}


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_state_table(row: tuple[bool, str | None, bool]) -> None:
    _, label, gold = row
    question = Question("q", answerability=label, gold=GOLD if gold else ())
    assert state_of(question) == TABLE[row]
    assert state_of(dataclasses.replace(question, needs_review=True)) == "needs_review"


def test_what_blocks_is_everything_that_cannot_be_scored() -> None:
    assert set(STATES) - set(BLOCKING) == {"answerable", "unanswerable", "partial"}


@pytest.mark.parametrize("label", ["UNANSWERABLE", "unanswerable ", "conversational", "", True, 3])
def test_a_label_outside_the_list_is_never_guessed(label: object) -> None:
    with pytest.raises(MeasurementError) as caught:
        classify([Question("q1", answerability=label), Question("q2")])  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.ids) == ("bad_label", ("q1",))
    if isinstance(label, str) and "unanswerable" in label.lower():
        assert "did you mean 'unanswerable'" in str(caught.value)


def test_an_id_that_says_abstain_changes_nothing() -> None:
    assert state_of(Question("q_abs", answerability="answerable", gold=GOLD)) == "answerable"


def test_all_wrong_labels_are_listed_at_once() -> None:
    with pytest.raises(MeasurementError) as caught:
        classify([Question(f"q{i:02d}", answerability="yes") for i in range(12)])
    assert caught.value.ids == tuple(f"q{i:02d}" for i in range(12))
    assert "(12 in all)" in str(caught.value)


def test_duplicate_ids_come_before_everything_else() -> None:
    with pytest.raises(MeasurementError) as caught:
        classify([Question("a", answerability="nonsense"), Question("b"), Question("a"), Question("a")])
    assert (caught.value.code, caught.value.ids) == ("duplicate_question_ids", ("a",))


@pytest.mark.parametrize("bad", ["", 7, None])
def test_bad_question_and_gold_ids(bad: object) -> None:
    with pytest.raises(MeasurementError, match="bad_id"):
        classify([Question(bad)])  # type: ignore[arg-type]
    with pytest.raises(MeasurementError, match="bad_id"):
        groups_of(Question("q", gold=((Evidence(bad),),)))  # type: ignore[arg-type]
    with pytest.raises(MeasurementError, match="bad_id"):
        groups_of(Question("q", grades={bad: 1}))  # type: ignore[dict-item]


def test_grade_zero_is_not_gold_and_negative_neither() -> None:
    assert not has_gold(Question("q", grades={"a": 0, "b": -2}))
    assert groups_of(Question("q", grades={"b": 2, "z": 0, "a": 1})) == ((A,), (B,))


@pytest.mark.parametrize("grades", [{"a": 0}, {"a": -1}, {"a": 1, "c": 1}])
def test_grades_that_contradict_the_gold(grades: dict[str, int]) -> None:
    with pytest.raises(MeasurementError) as caught:
        groups_of(Question("q9", gold=((A,), (B,)), grades=grades))
    assert (caught.value.code, caught.value.ids) == ("gold_grade_mismatch", ("q9",))


def test_grades_beside_gold_may_be_few_and_judge_others_as_not_relevant() -> None:
    assert groups_of(Question("q", gold=((A,), (B,)), grades={"a": 3, "z": 0})) == ((A,), (B,))


def test_groups_are_sets() -> None:
    q = Question("q", gold=((A, B), (B, A, A), (C, C), (C,)))
    assert groups_of(q) == ((A, B), (C,))


def test_empty_group() -> None:
    with pytest.raises(MeasurementError) as caught:
        classify([Question("ok", gold=GOLD), Question("bad", gold=((A,), ()))])
    assert (caught.value.code, caught.value.ids) == ("empty_group", ("bad",))


def test_spans_stand_for_their_document_and_equal_groups_merge() -> None:
    one, two = Evidence("d1", 0, 5), Evidence("d1", 9, 12)
    q = Question("q", gold=((one,), (two,), (Evidence("d2", 0, 4), Evidence("d1", 1, 2))))
    assert len(groups_of(q)) == 3
    assert document_groups(q) == (("d1",), ("d2", "d1"))


def test_span_groups_need_offsets_or_whole_on_every_alternative() -> None:
    span, whole, neither = Evidence("d", 0, 5), Evidence("e", whole=True), Evidence("f")
    assert span_groups(Question("q", gold=((span,), (whole,)))) == ((span,), (whole,))
    assert span_groups(Question("q", gold=((span, neither),))) is None
    assert span_groups(Question("q")) is None
    assert span_groups(Question("q", grades={"a": 1})) is None


def test_gold_that_the_corpus_lacks_asks_for_a_review() -> None:
    q1 = Question("q1", answerability="answerable", gold=((Evidence("d1"),), (Evidence("d9"),)))
    q2 = Question("q2", answerability="answerable", gold=((Evidence("d9"), Evidence("d1")),))
    assert classify([q1, q2], ["d1"]) == {"q1": "needs_review", "q2": "answerable"}
    assert lost_evidence([q1, q2], {"d1"}) == {"q1": ("d9",)}
    with pytest.raises(MeasurementError, match="unscorable_questions"):
        build_ledger(classify([q1, q2], ["d1"]), {})


def test_a_graded_question_is_reviewed_too_when_its_document_is_gone() -> None:
    assert state_of(Question("q", answerability="answerable", grades={"a": 2, "b": 1}), {"a"}) == "needs_review"


def test_labels_alone_decide_where_only_abstention_is_evaluated() -> None:
    questions = [
        Question("a", answerability="answerable"),
        Question("u", answerability="unanswerable", gold=GOLD),
        Question("p", answerability="partial"),
        Question("n"),
        Question("r", answerability="answerable", needs_review=True),
    ]
    assert classify(questions, evaluate="abstention") == {
        "a": "answerable",
        "u": "unanswerable",
        "p": "partial",
        "n": "unlabelled",
        "r": "needs_review",
    }


def test_seed_ledger_strict_names_both_ways_out() -> None:
    states = {"a": "answerable", "n": "unlabelled", "c": "conflict"}
    with pytest.raises(MeasurementError) as caught:
        build_ledger(states, {})  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.ids) == ("unscorable_questions", ("c", "n"))
    for words in ("2 of 3", "mend their labels", LENIENT, "1 unlabelled, 1 conflict"):
        assert words in str(caught.value)


def test_the_option_is_named_with_the_commands_that_have_it() -> None:
    from importlib import import_module

    from denominator.cli import parser, top_commands

    commands = top_commands(parser())
    have = []
    for name, command in commands.items():
        module, arguments, _ = command.get_default("late") or ("", "", "")
        if module:
            getattr(import_module(module), arguments)(command)
        if "--lenient" in command._option_string_actions and name != "doctor":  # there it only changes the severity
            have.append(name)
    named = re.search(r"--lenient \((.*)\)", LENIENT)
    assert named
    assert sorted(named[1].split(", ")) == sorted(have)


def test_failed_and_missing_stay_in_the_ledger() -> None:
    questions = [Question(i, answerability="answerable", gold=GOLD) for i in ("ok", "empty", "failed", "missing")]
    questions.append(Question("u", answerability="unanswerable"))
    run = run_from_results(
        {
            "ok": Result(()),
            "empty": Result(()),
            "failed": Result(error="time-out"),
            "u": Result(error="time-out"),
        }
    )
    states = classify(questions)
    statuses = statuses_of(states, run)
    assert statuses == {"ok": "ok", "empty": "ok", "failed": "failed", "missing": "missing", "u": "failed"}
    ledger = build_ledger(states, statuses)
    assert (ledger.N, ledger.eligible, ledger.ok, ledger.failed, ledger.missing) == (5, 4, 2, 1, 1)
    assert ledger.incomplete
    assert not build_ledger({"u": "unanswerable"}, {"u": "failed"}).incomplete  # errors there touch no retrieval metric


def test_results_for_unknown_questions() -> None:
    with pytest.raises(MeasurementError) as caught:
        statuses_of({"a": "answerable"}, run_from_dicts({"a": {}, "zz": {"d": 1.0}}))
    assert (caught.value.code, caught.value.ids) == ("unknown_question_ids", ("zz",))
    with pytest.raises(MeasurementError, match="unknown_question_ids"):
        build_ledger({"a": "answerable"}, {"b": "ok"})


def test_only_the_two_eligibilities_exist() -> None:
    with pytest.raises(ValueError, match="lenient"):
        build_ledger({}, {}, eligibility="loose")


def test_assumed_labels_only_where_there_is_gold_and_no_label() -> None:
    questions = (
        Question("gold", gold=GOLD),
        Question("none"),
        Question("graded", grades={"a": 1}),
        Question("zero", grades={"a": 0}),
        Question("not", answerability="unanswerable", gold=GOLD),
        Question("partial", answerability="partial", gold=GOLD),
    )
    labels = {q.id: q.answerability for q in assume_answerable(questions)}
    assert labels == {
        "gold": "answerable",
        "none": None,
        "graded": "answerable",
        "zero": None,
        "not": "unanswerable",
        "partial": "partial",
    }


questions_strategy = st.lists(
    st.builds(
        Question,
        id=st.uuids().map(str),
        answerability=st.sampled_from([*LABELS, None]),
        gold=st.lists(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
        needs_review=st.booleans(),
    ),
    max_size=20,
    unique_by=lambda q: q.id,
)


@given(questions_strategy, st.randoms(use_true_random=False))
def test_ledger_sums_to_n_in_any_order(questions: list[Question], random: object) -> None:
    states = classify(questions, {"a", "b"})
    statuses = {q.id: random.choice(["ok", "failed", "missing"]) for q in questions}  # type: ignore[attr-defined]
    ledger = build_ledger(states, statuses, eligibility="lenient")  # type: ignore[arg-type]
    assert sum(ledger.states.values()) == ledger.N == len(questions)
    assert ledger.ok + ledger.failed + ledger.missing == ledger.eligible == ledger.states["answerable"]
    assert list(ledger.states) == list(STATES)
    shuffled = questions[::-1]
    again = build_ledger(classify(shuffled, {"a", "b"}), statuses, eligibility="lenient")  # type: ignore[arg-type]
    assert again == ledger


@given(questions_strategy)
def test_strict_passes_exactly_when_nothing_blocks(questions: list[Question]) -> None:
    states = classify(questions)
    blocking = sorted(i for i, s in states.items() if s in BLOCKING)
    if blocking:
        with pytest.raises(MeasurementError) as caught:
            build_ledger(states, {})
        assert list(caught.value.ids) == blocking
    else:
        assert build_ledger(states, {}) == build_ledger(states, {}, eligibility="lenient").__class__(
            **{**build_ledger(states, {}, eligibility="lenient").as_dict(), "eligibility": "strict"}
        )
