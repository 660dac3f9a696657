"""Labels → ledger: which questions count, which do not, and why. Every question is in exactly one row.

Eligibility is read from the label that a person gave, never from the emptiness of a gold list: an empty list on an
*unanswerable* question is meant, on an *answerable* one it is a hole in the labels; only the label tells them apart.
Definitions: docs/measurement.md, "Question states and the ledger".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from denominator.errors import MeasurementError
from denominator.types import LABELS, STATES, Evidence, Group, Ledger, Question, Run, State, Status

LENIENT = "eligibility=lenient (run, sweep) or --lenient (score, gate, compare, audit)"
"""How the commands are told to leave out and count what they cannot score."""
BLOCKING: tuple[State, ...] = (
    "unlabelled",
    "conflict",
    "answerable_no_gold",
    "partial_no_gold",
    "needs_review",
)
"""States that a strict ledger refuses: whether such a question counts cannot be known from its labels."""

Evaluate = Literal["retrieval", "abstention"]


def check_id(value: object) -> str:
    """The id itself if it is a non-empty string; otherwise the error `bad_id` (7 would never match "7").

    >>> check_id("007")
    '007'
    """
    if isinstance(value, str) and value:
        return value
    raise MeasurementError("bad_id", [str(value)], "ids are non-empty strings and are not converted")


def groups_of(question: Question) -> tuple[Group, ...]:
    """The evidence groups of a question as sets: an AND of groups, each an OR of alternatives.

    Repeated alternatives and identical groups (in whatever order) count once; the first stays where it was. With
    grades alone every id graded above 0 is a group of one (sorted by id); grade 0 and below is "judged, not relevant".
    With gold and grades the grades only weigh the gold.

    Empty case: no gold and no positive grade gives `()`.
    Errors: `empty_group` (a group without alternatives), `gold_grade_mismatch` (a positive grade outside the gold, or a
    gold id graded 0 or below), `bad_id`.

    >>> q = Question(
    ...     "q", answerability="answerable", gold=((Evidence("a"), Evidence("b")), (Evidence("b"), Evidence("a")))
    ... )
    >>> [[e.doc for e in group] for group in groups_of(q)]
    [['a', 'b']]
    >>> groups_of(Question("q", grades={"z": 0, "y": 2}))
    ((Evidence(doc='y', start=None, end=None, whole=False),),)
    """
    groups: dict[frozenset[Evidence], Group] = {}
    for given in question.gold:
        if not given:
            raise MeasurementError("empty_group", [question.id], "an evidence group has no alternatives")
        group = tuple(dict.fromkeys(given))
        for alternative in group:
            check_id(alternative.doc)
        groups.setdefault(frozenset(group), group)
    if question.grades:
        for key in question.grades:
            check_id(key)
        positive = {key for key, grade in question.grades.items() if grade > 0}
        if not groups:
            return tuple((Evidence(key),) for key in sorted(positive))
        named = {alternative.doc for group in groups.values() for alternative in group}
        if positive - named or any(key in named and grade <= 0 for key, grade in question.grades.items()):
            raise MeasurementError(
                "gold_grade_mismatch",
                [question.id],
                "grades weigh the gold: a positive grade outside it, or a gold id graded 0 or below, is a label error",
            )
    return tuple(groups.values())


def has_gold(question: Question) -> bool:
    """At least one evidence group or at least one grade above 0.

    >>> has_gold(Question("q", grades={"a": 0}))
    False
    """
    return bool(groups_of(question))


def document_groups(question: Question) -> tuple[tuple[str, ...], ...]:
    """The groups at document level: a span stands for its document, and groups that become equal merge.

    >>> q = Question("q", gold=((Evidence("d1", 0, 9),), (Evidence("d1", 20, 30),), (Evidence("d2"), Evidence("d1"))))
    >>> document_groups(q)
    (('d1',), ('d2', 'd1'))
    """
    groups: dict[frozenset[str], tuple[str, ...]] = {}
    for group in groups_of(question):
        documents = tuple(dict.fromkeys(alternative.doc for alternative in group))
        groups.setdefault(frozenset(documents), documents)
    return tuple(groups.values())


def span_groups(question: Question) -> tuple[Group, ...] | None:
    """The groups at character level, or None when the question has no spans.

    An alternative counts when it has offsets, or says that its whole document is the evidence (`whole`; its offsets
    are then None). One alternative with neither, and the question has no spans at this level.

    >>> span_groups(Question("q", gold=((Evidence("d1", 0, 9),), (Evidence("d2"),)))) is None
    True
    """
    groups = groups_of(question)
    if not groups or any(e.start is None and not e.whole for group in groups for e in group):
        return None
    return groups


def state_of(
    question: Question, corpus_ids: Collection[str] | None = None, *, evaluate: Evaluate = "retrieval"
) -> State:
    """The ledger row of one question; the first matching row of the state table wins.

    `corpus_ids` (documents of the corpus, best as a set): a group none of whose alternatives is there puts the
    question in `needs_review`, because recall 1 would be out of reach. With `evaluate="abstention"` (recorded answers
    without a corpus) labels alone decide and gold is not asked for.

    Errors: `bad_label`, and those of `groups_of`.

    >>> state_of(Question("q", answerability="unanswerable"))
    'unanswerable'
    >>> state_of(Question("q", answerability="answerable"))
    'answerable_no_gold'
    >>> state_of(Question("q"))
    'unlabelled'
    """
    label = "unlabelled" if question.answerability is None else question.answerability
    if label not in LABELS:
        raise MeasurementError("bad_label", [question.id], _label_message(label))
    groups = groups_of(question)
    lost = corpus_ids is not None and any(all(e.doc not in corpus_ids for e in group) for group in groups)
    if question.needs_review or lost:
        return "needs_review"
    if label == "unlabelled":
        return "unlabelled"
    if label == "unanswerable":
        return "conflict" if groups and evaluate == "retrieval" else "unanswerable"
    if label == "answerable":
        return "answerable" if groups or evaluate == "abstention" else "answerable_no_gold"
    return "partial" if groups or evaluate == "abstention" else "partial_no_gold"


def _label_message(label: object) -> str:
    near = str(label).strip().casefold()
    hint = f"; did you mean {near!r}" if near in LABELS else ""
    return f"label {label!r} is not one of {', '.join(LABELS)}{hint}"


def lost_evidence(questions: Iterable[Question], corpus_ids: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For the message of a refusal: by question, the gold ids that are not in the corpus and so ask for a review."""
    lost: dict[str, tuple[str, ...]] = {}
    for question in questions:
        gone = [e.doc for group in groups_of(question) if all(e.doc not in corpus_ids for e in group) for e in group]
        if gone:
            lost[question.id] = tuple(dict.fromkeys(gone))
    return lost


def classify(
    questions: Sequence[Question], corpus_ids: Iterable[str] | None = None, *, evaluate: Evaluate = "retrieval"
) -> dict[str, State]:
    """The state of every question, in the order given.

    Errors: `bad_id`, `duplicate_question_ids`, then those of `state_of`, with the ids of all questions concerned.

    >>> classify([Question("a", answerability="answerable", gold=((Evidence("d"),),)), Question("b")])
    {'a': 'answerable', 'b': 'unlabelled'}
    """
    seen: set[str] = set()
    repeated: list[str] = []
    for question in questions:
        check_id(question.id)
        if question.id in seen:
            repeated.append(question.id)
        seen.add(question.id)
    if repeated:
        raise MeasurementError("duplicate_question_ids", dict.fromkeys(repeated), "a question may be listed once only")
    corpus = (
        None if corpus_ids is None else corpus_ids if isinstance(corpus_ids, AbstractSet) else frozenset(corpus_ids)
    )
    states: dict[str, State] = {}
    wrong: list[MeasurementError] = []
    for question in questions:
        try:
            states[question.id] = state_of(question, corpus, evaluate=evaluate)
        except MeasurementError as error:
            wrong.append(error)
    if wrong:
        first = wrong[0]
        ids = [i for error in wrong if error.code == first.code for i in error.ids]
        said = dict.fromkeys(error.message for error in wrong if error.code == first.code)
        raise MeasurementError(first.code, ids, "; ".join(list(said)[:3]))
    return states


def statuses_of(states: Mapping[str, State], run: Run) -> dict[str, Status]:
    """What came back for every question: hits or an empty list `ok`, an error `failed`, nothing `missing`.

    Error: `unknown_question_ids`, the run names questions that the dataset does not have.
    """
    returned = set(run.question_ids) | set(run.errors)
    unknown = returned - states.keys()
    if unknown:
        raise MeasurementError(
            "unknown_question_ids", unknown, "the run has results for questions that are not in the dataset"
        )
    return {i: "failed" if i in run.errors else "ok" if i in returned else "missing" for i in states}


def build_ledger(
    states: Mapping[str, State],
    statuses: Mapping[str, Status],
    *,
    eligibility: str = "strict",
    label_source: str = "labels",
) -> Ledger:
    """Counts of all states (zeros included) and of what came back for the eligible, that is answerable, questions.

    Strict refuses a dataset with blocking states; lenient excludes those questions and counts them. An eligible
    question that `statuses` does not name is missing. The sums are asserted: no question leaves silently.

    Errors: `unscorable_questions` with every blocking id, `unknown_question_ids`.

    >>> led = build_ledger({"a": "answerable", "b": "answerable", "u": "unanswerable"}, {"a": "ok", "b": "failed"})
    >>> led.N, led.eligible, led.ok, led.failed, led.missing, led.incomplete
    (3, 2, 1, 1, 0, True)
    """
    if eligibility not in {"strict", "lenient"}:
        raise ValueError(f"eligibility is 'strict' or 'lenient', found {eligibility!r}")
    unknown = statuses.keys() - states.keys()
    if unknown:
        raise MeasurementError(
            "unknown_question_ids", unknown, "the run has results for questions that are not in the dataset"
        )
    counts: dict[str, int] = dict.fromkeys(STATES, 0)
    for state in states.values():
        counts[state] += 1
    if eligibility == "strict":
        blocked = [i for i, state in states.items() if state in BLOCKING]
        if blocked:
            rows = ", ".join(f"{counts[s]} {s}" for s in BLOCKING if counts[s])
            raise MeasurementError(
                "unscorable_questions",
                blocked,
                f"{len(blocked)} of {len(states)} questions cannot be scored ({rows}); mend their labels, or exclude "
                f"and count them: {LENIENT}",
            )
    came = [statuses.get(i, "missing") for i, state in states.items() if state == "answerable"]
    ok, failed = came.count("ok"), came.count("failed")
    missing = len(came) - ok - failed
    assert sum(counts.values()) == len(states)
    return Ledger(
        N=len(states),
        states=counts,
        eligible=len(came),
        ok=ok,
        failed=failed,
        missing=missing,
        incomplete=failed + missing > 0,
        eligibility=eligibility,
        label_source=label_source,
    )


def assume_answerable(questions: Iterable[Question]) -> tuple[Question, ...]:
    """Marks unlabelled questions that have gold as answerable: the declared import option for sets without labels.

    Questions without gold stay unlabelled, whatever the wish: emptiness is no label. Whoever calls this records
    `label_source = "assumed"`. Scoring never does it by itself.

    >>> a, b = assume_answerable([Question("a", gold=((Evidence("d"),),)), Question("b")])
    >>> a.answerability, b.answerability
    ('answerable', None)
    """
    return tuple(
        dataclasses.replace(q, answerability="answerable")
        if q.answerability in {None, "unlabelled"} and has_gold(q)
        else q
        for q in questions
    )
