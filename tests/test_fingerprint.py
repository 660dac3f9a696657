"""Hashes of question sets and corpora, and what may be compared."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator import fingerprint as f
from denominator.errors import MeasurementError
from denominator.types import Document, Evidence, Question

FULL = Question(
    id="q1",
    question="Who?",
    answerability="answerable",
    gold=(
        (Evidence("d1"),),
        (Evidence("d1", 3, 9), Evidence("d2", 0, 4)),
        (Evidence("d3", whole=True),),
    ),
    grades={"d1": 2},
    needs_review=True,
    tags={"lang": "en"},
    cluster="talk-7",
)
DOCUMENTS = [Document("b", "zwei", "Titel"), Document("a", "eins"), Document("ü", "drei")]


def test_a_question_as_a_record() -> None:
    assert f.question_record(FULL) == {
        "id": "q1",
        "question": "Who?",
        "answerability": "answerable",
        "gold": [
            "d1",
            [{"doc": "d1", "start": 3, "end": 9}, {"doc": "d2", "start": 0, "end": 4}],
            {"doc": "d3", "whole": True},
        ],
        "grades": {"d1": 2},
        "needs_review": True,
        "tags": {"lang": "en"},
        "cluster": "talk-7",
    }
    assert f.question_record(Question("q")) == {"id": "q", "answerability": "unlabelled", "gold": []}


def test_questions_and_their_records_have_one_hash() -> None:
    questions = [FULL, Question("q0", answerability="unanswerable")]
    assert f.dataset_hash(questions) == f.dataset_hash([f.question_record(q) for q in reversed(questions)])


@pytest.mark.parametrize(
    "other",
    [
        Question("q1", "Who?", "partial", ((Evidence("d1"),),)),
        Question("q1", "What?", "answerable", ((Evidence("d1"),),)),
        Question("q1", "Who?", "answerable", ((Evidence("d2"),),)),
        Question("q1", "Who?", "answerable", ((Evidence("d1", 0, 2),),)),
        Question("q1", "Who?", "answerable", ((Evidence("d1", whole=True),),)),
        Question("q1", "Who?", "answerable", ((Evidence("d1"),),), needs_review=True),
        Question("q1", "Who?", "answerable", ((Evidence("d1"),),), cluster="c"),
        Question("q1", "Who?", "answerable", ((Evidence("d1"),),), tags={"a": 1}),
        Question("q1", "Who?", "answerable", ((Evidence("d1"),),), grades={"d1": 2}),
    ],
)
def test_whatever_is_measured_changes_the_hash(other: Question) -> None:
    first = Question("q1", "Who?", "answerable", ((Evidence("d1"),),))
    assert f.dataset_hash([first]) != f.dataset_hash([other])


def test_what_is_not_measured_does_not_change_the_hash() -> None:
    first = Question("q1", "Who?", "answerable", ((Evidence("d1"),),))
    other = Question("q1", "Who?", "answerable", ((Evidence("d1"),),), answers=("x",), history=(("user", "hi"),))
    assert f.dataset_hash([first]) == f.dataset_hash([other])


def test_the_corpus_hash_can_be_redone_by_hand() -> None:
    rows = []
    for name, title, text in [("a", "null", '"eins"'), ("b", '"Titel"', '"zwei"'), ("ü", "null", '"drei"')]:
        rows.append(f'["{name}","{hashlib.sha256(f"[{title},{text}]".encode()).hexdigest()}"]')
    assert f.corpus_hash(DOCUMENTS) == hashlib.sha256(f"[{','.join(rows)}]".encode()).hexdigest()


def test_the_corpus_may_come_as_a_stream_in_any_order() -> None:
    hasher = f.CorpusHasher()
    for document in reversed(DOCUMENTS):
        hasher.add(document)
    assert hasher.hexdigest() == f.corpus_hash(d for d in DOCUMENTS)
    # Another title, text or id is another corpus; a title moved into the text too.
    changed = [
        Document("a", "eins", "Titel"),
        Document("a", "eins "),
        Document("A", "eins"),
        Document("a", "Titel eins"),
    ]
    hashes = {f.corpus_hash([Document("a", "eins")]), *(f.corpus_hash([d]) for d in changed)}
    assert len(hashes) == 5
    with pytest.raises(MeasurementError) as caught:
        hasher.add(DOCUMENTS[0])
    assert caught.value.ids == ("b",)


def test_a_lone_surrogate_has_a_hash_and_nan_has_none() -> None:
    assert len(f.corpus_hash([Document("a", json.loads('"\\ud800"'))])) == 64
    with pytest.raises(ValueError, match="JSON"):
        f.sha({"x": float("nan")})


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)), lambda x: st.lists(x, max_size=3)
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4), values, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(obj: dict, random) -> None:
    keys = random.sample(list(obj), len(obj))
    assert f.sha(obj) == f.sha({k: obj[k] for k in keys})
    assert json.loads(f.canonical(obj)) == obj


def test_comparable_names_what_differs() -> None:
    a = dict.fromkeys(f.FIELDS, "x")
    assert f.comparable(a, a | {"note": "not a field"}) == f.fingerprint(a)
    assert f.differing(a, a | {"ties": "trec", "k": 5}) == ("k", "ties")
    with pytest.raises(MeasurementError) as caught:
        f.comparable(a | {"incomplete": True}, a | {"ties": "trec"})
    assert (caught.value.code, caught.value.ids) == ("not_comparable", ("incomplete", "ties"))
    assert f.fingerprint({}) == f.fingerprint(dict.fromkeys(f.FIELDS))
