"""Answer quality: SQuAD's rules by hand, the starter's published figures, and how it stands beside abstention."""

from __future__ import annotations

import json
import string
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator import records
from denominator.answerers import Recorded, contexts_of
from denominator.cache import Cache
from denominator.chunkers import WholeDocument
from denominator.embedders import BM25
from denominator.evaluation import summarize
from denominator.gate import Measured, judge, parse_rule
from denominator.pipeline import Cell, run_cell
from denominator.quality import (
    answer_quality,
    exact_match,
    faithfulness,
    normal_tokens,
    relevance,
    token_f1,
    with_quality,
)
from denominator.readers.native import Native
from denominator.rerankers import NoRerank
from denominator.scoring import render_csv, render_text, score
from denominator.types import Answer, Hit, Outcome, Plan, Question, RecordedRun, Result
from tests.conftest import shared_path

# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize(
    ("answer", "references", "exact", "f1"),
    [
        ("Paris", ["Paris"], 1, 1),
        ("the Paris.", ["Paris"], 1, 1),
        ("PARIS, France", ["Paris"], 0, 2 / 3),
        ("New York City", ["City of New York"], 0, 6 / 7),
        ("no no yes", ["no yes yes"], 0, 2 / 3),
        ("Lyon", ["Paris"], 0, 0),
        ("in 1998", ["1998", "the year 1998", "in 1998"], 1, 1),
        ("don't", ["dont"], 1, 1),
        ("U.S.", ["US"], 1, 1),
        ("“quoted” — text…", ["quoted text"], 1, 1),
        ("A", ["A"], 1, 1),
        ("A", ["the"], 0, 0),
        ("%", ["%"], 1, 1),
        ("北京市", ["北京"], 0, 4 / 5),
        ("東京タワー", ["東京タワー。"], 1, 1),
        ("서울 특별시", ["서울특별시"], 1, 1),
        ("هو كذلك", ["كذلك"], 0, 2 / 3),
        ("हिन्दी भाषा", ["हिन्दी"], 0, 2 / 3),
    ],
)
def test_exact_match_and_f1_by_hand(answer, references, exact, f1):
    assert exact_match(answer, references) == exact
    assert token_f1(answer, references) == pytest.approx(f1, abs=1e-12)


def test_articles_are_english():
    assert normal_tokens("an der Elbe") == ["der", "elbe"]
    assert normal_tokens("an der Elbe", articles=True) == ["an", "der", "elbe"]


def test_what_is_not_there_is_none():
    assert exact_match("x", []) is None
    assert token_f1("x", ["", " "]) is None
    assert faithfulness(" ", "x") is None
    assert faithfulness("x", "") == 0
    assert exact_match("", ["x"]) == token_f1("", ["x"]) == 0


def test_faithfulness_counts_distinct_words():
    assert faithfulness("red red red blue", "The red one.") == 1 / 2
    assert faithfulness("退款", "退货期限") == 1 / 2


def test_relevance_is_a_cosine():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 50, 7))
    expected = [np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(a, b, strict=True)]
    assert relevance(a, b) == pytest.approx(np.clip(expected, 0, 1), abs=1e-6)


def squad(text):
    """The published script's normalisation for ASCII text."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return [t for t in text.split() if t not in ("a", "an", "the")]


words = st.lists(st.sampled_from(["a", "the", "cat", "Cat,", "dog", "dog's", "12.5", "x-ray", "An"]), max_size=8)


@settings(max_examples=300, deadline=None)
@given(words, words, words)
def test_equals_the_published_rules_where_these_say_something(answer, first, second):
    texts = [" ".join(t) for t in (answer, first, second)]
    given_tokens = squad(texts[0])
    if not (given_tokens and squad(texts[1]) and squad(texts[2])):
        return
    best = 0.0
    for reference in texts[1:]:
        wanted = squad(reference)
        same = sum((Counter(given_tokens) & Counter(wanted)).values())
        if same:
            precision, recall = same / len(given_tokens), same / len(wanted)
            best = max(best, 2 * precision * recall / (precision + recall))
    assert token_f1(texts[0], texts[1:]) == pytest.approx(best, abs=1e-12)
    assert exact_match(texts[0], texts[1:]) == float(given_tokens in (squad(texts[1]), squad(texts[2])))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_bounds_and_symmetry(a, b):
    f1 = token_f1(a, [b])
    if b.strip():
        assert f1 is not None
        assert 0 <= f1 <= 1
        if a.strip():
            assert f1 == token_f1(b, [a])
        assert (exact_match(a, [b]) == 1) <= (f1 == 1 or not a.strip())
    share = faithfulness(a, b)
    assert (share is None) == (not a.strip())
    assert faithfulness(a, a) in (None, 1.0)
    assert faithfulness("x " + a, f"x {a} {b}") == 1.0


# ------------------------------------------------------------------ the starter's figures


def test_the_page_shows_what_is_printed():
    """docs/answers.md prints the starter's block with its three retrieved chunks a question."""
    folder = shared_path("data/starter")
    found = json.loads((folder / "sample_output.json").read_text(encoding="utf-8"))["results"]
    answers = {r["id"]: Answer(text=r["generated_answer"], flag=False) for r in found}
    results = {
        r["id"]: Result(tuple(Hit(c["source_id"], c["source_id"]) for c in r["retrieved_chunks"]), depth=3)
        for r in found
    }
    text = render_text(score(Native(folder=str(folder)).load(), results, answers, ks=(1, 3)))
    page = (Path(__file__).resolve().parents[1] / "docs" / "answers.md").read_text(encoding="utf-8")
    shown = next(block for block in page.split("```\n") if block.startswith("answers to"))
    assert shown.strip() in text


DASH = " — "
"""The starter deletes ASCII punctuation alone, so that a dash between blanks is a word there."""


@pytest.mark.parametrize("dash", [DASH, " dash "], ids=["as they are", "with dashes as words"])
def test_the_starters_figures_where_the_definitions_coincide(dash):
    """It keeps articles; its exact match, F1 and faithfulness of each single answer are then the same."""
    found = json.loads((shared_path("data/starter") / "sample_output.json").read_text(encoding="utf-8"))["results"]
    compared = []
    for item in found:
        chunks = " ".join(chunk["text"] for chunk in item["retrieved_chunks"])
        texts = [item["generated_answer"], item["expected_answer"], chunks]
        if dash == DASH and any(DASH in text for text in texts[:2]):
            continue
        answer, reference, context = (text.replace(DASH, dash) for text in texts)
        theirs = {name: value["score"] for name, value in item["metrics"].items()}
        assert exact_match(answer, [reference], articles=True) == theirs["exact_match"], item["id"]
        assert token_f1(answer, [reference], articles=True) == pytest.approx(theirs["token_f1"], abs=5e-5), item["id"]
        share = faithfulness(answer, context, articles=True)
        assert share == pytest.approx(theirs["answer_faithfulness"], abs=5e-5), item["id"]
        compared.append(item["id"])
    assert len(compared) == (7 if dash == DASH else 8), compared


def test_the_starters_means_count_the_unanswerable_question_and_ours_do_not():
    folder = shared_path("data/starter")
    found = json.loads((folder / "sample_output.json").read_text(encoding="utf-8"))
    answers = {r["id"]: Answer(text=r["generated_answer"], flag=False) for r in found["results"]}
    report = score(Native(folder=str(folder)).load(), None, answers)
    block = report.summary.answer_quality
    assert block is not None
    assert block.counts == {"answered": 7, "refused": 0, "undecided": 0, "no_text": 0}
    assert block.metrics["exact_match"].value == pytest.approx(2 / 7)
    assert found["summary"]["mean_scores"]["exact_match"] == 2 / 8
    f1 = block.metrics["token_f1"]
    theirs = [r["metrics"]["token_f1"]["score"] for r in found["results"] if r["id"] != "q007"]
    assert f1.n == len(theirs) == 7
    assert f1.value == pytest.approx(np.mean(theirs), abs=0.01)  # they keep articles and dashes
    assert found["summary"]["mean_scores"]["token_f1"] == pytest.approx((sum(theirs) + 0.5789) / 8, abs=1e-4)
    assert "faithfulness" not in block.metrics  # no run, no context


# ------------------------------------------------------------------ per question and over a run


def question(name, *references, lang="en"):
    return Question(name, f"What is {name}?", "answerable", answers=references, lang=lang)


def outcome(name, *, abstained=False, text="x", state="answerable", cluster=None):
    return Outcome(name, state, state, "ok", abstained=abstained, answer=text, cluster=cluster)


def test_every_answerable_question_is_counted_once():
    asked = {n: question(n, "red") for n in ("right", "half", "refused", "open", "silent", "blank")}
    asked["none"] = question("none")
    asked["not"] = Question("not", "?", "unanswerable")
    texts = {
        "right": "Red.",
        "half": "red car",
        "refused": "I cannot say.",
        "open": "red?",
        "blank": "  ",
        "none": "red",
    }
    texts["not"] = "red"
    answers = {n: Answer(text=texts.get(n)) for n in asked}
    made = [
        outcome(
            n,
            abstained={"refused": True, "open": None}.get(n, False),
            text=texts.get(n),
            state="unanswerable" if n == "not" else "answerable",
        )
        for n in asked
    ]
    contexts = dict.fromkeys(asked, "a red house")
    block = answer_quality(with_quality(made, asked.values(), answers, contexts=contexts), Plan())
    assert block is not None
    assert block.counts == {"answered": 3, "refused": 1, "undecided": 1, "no_text": 2}
    assert sum(block.counts.values()) == 7
    values = {name: (e.value, e.n) for name, e in block.metrics.items()}
    assert values["exact_match"] == (1 / 2, 2)
    assert values["token_f1"] == (pytest.approx(5 / 6), 2)
    assert values["faithfulness"] == (pytest.approx((1 + 1 / 2 + 1) / 3), 3)
    assert block.metrics["exact_match"].ci_method == "wilson"
    assert block.metrics["token_f1"].ci_method == "t_plus_two"


def test_none_where_nobody_was_answered():
    asked = [question("a", "red")]
    made = with_quality(
        [outcome("a", abstained=True, text="I do not know")], asked, {"a": Answer(text="I do not know")}
    )
    block = answer_quality(made, Plan())
    assert block is not None
    assert block.metrics["token_f1"].as_dict() | {"value": None, "n": 0, "reason": "no_answers"} == (
        block.metrics["token_f1"].as_dict()
    )


def test_answers_are_counted_where_nothing_can_be_measured_of_them():
    """Questions of TREC qrels have neither text nor reference: what was answered is counted, and no mean is made up."""
    asked = [Question(n, None, "answerable") for n in "abc"]
    texts = {"a": "red", "b": "blue", "c": "I do not know."}
    made = [
        replace(outcome(n, text=t, abstained=n == "c"), tags={"kind": "x" if n == "a" else "y"})
        for n, t in texts.items()
    ]
    made = with_quality(made, asked, {n: Answer(text=t) for n, t in texts.items()})
    assert not any(o.quality for o in made)
    block = answer_quality(made, Plan())
    assert block is not None
    assert (block.counts, block.metrics) == ({"answered": 2, "refused": 1, "undecided": 0, "no_text": 0}, {})
    plan = Plan(evaluate="abstention")
    summary = summarize(made, plan)
    run = Measured(RecordedRun("r", "r", "r", "s", {}, {}, {}, plan, made, {}, {}, summary.ledger), summary)
    found = judge([parse_rule(r) for r in ("answered == 2", "token_f1 >= 0", "token_f1[kind=x] >= 0")], run)
    assert [r.verdict for r in found.results] == ["pass", "undecided", "undecided"]
    assert all("undefined: no_eligible" in r.message for r in found.results[1:])


def test_scores_of_qrels_with_answers_say_what_was_answered(tmp_path):
    (tmp_path / "x.qrels").write_text("q1 0 d1 1\nq2 0 d2 1\n", encoding="utf-8")
    answers = lines(
        tmp_path / "a.jsonl", [{"question_id": "q1", "answer": "red"}, {"question_id": "q2", "answer": "b"}]
    )
    report = score(tmp_path / "x.qrels", None, answers, assume_answerable=True)
    assert "answers to answerable questions: 2 answered, 0 refused, 0 undecided, 0 without a text; nothing" in (
        render_text(report)
    )
    assert render_csv(report)


def test_no_block_without_texts():
    assert answer_quality([outcome("a", text=None)], Plan()) is None
    made = with_quality([outcome("a", text=None)], [question("a", "x")], {"a": Answer(error="timed out")})
    assert answer_quality(made, Plan()) is None
    assert "answer_quality" not in summarize(made, Plan(evaluate="abstention")).as_dict()


def test_clusters_are_the_units_where_the_plan_has_them():
    asked = [question(f"q{i}", "red") for i in range(6)]
    answers = {q.id: Answer(text="red" if i % 2 else "blue") for i, q in enumerate(asked)}
    made = [outcome(q.id, text=answers[q.id].text, cluster=f"c{i // 2}") for i, q in enumerate(asked)]
    made = with_quality(made, asked, answers)
    alone, grouped = answer_quality(made, Plan()), answer_quality(made, Plan(cluster="cluster"))
    assert alone is not None
    assert grouped is not None
    assert alone.metrics["exact_match"].ci_method == "wilson"
    assert grouped.metrics["exact_match"].ci_method != "wilson"


def test_german_answers_keep_their_articles():
    made = with_quality(
        [outcome("a", text="an der Elbe")], [question("a", "der Elbe", lang="de-AT")], {"a": Answer("an der Elbe")}
    )
    assert made[0].quality["token_f1"] == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    ("asked", "said", "kept"),
    [
        ("en_US", None, False),
        ("EN-gb", None, False),
        ("de", "en_US", False),
        ("en", "de_AT", True),
        ("de_AT", None, True),
    ],
)
def test_the_language_of_the_answer_decides_about_articles(asked, said, kept):
    made = with_quality(
        [outcome("a", text="the Elbe")], [question("a", "Elbe", lang=asked)], {"a": Answer("the Elbe", lang=said)}
    )
    assert made[0].quality["exact_match"] == (0.0 if kept else 1.0)


def test_a_record_keeps_them_and_gives_the_same_summary():
    asked = [question("a", "red"), question("b", "blue")]
    answers = {"a": Answer(text="red"), "b": Answer(text="blue sky")}
    made = with_quality(
        [outcome("a", text="red"), outcome("b", text="blue sky")], asked, answers, contexts={"a": "red"}
    )
    back = [records.outcome_from_json(json.loads(records.dumps(records.outcome_to_json(o)))) for o in made]
    assert back == list(made)
    assert answer_quality(back, Plan()) == answer_quality(made, Plan())


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path):
    lines(
        tmp_path / "corpus.jsonl",
        [
            {"id": "d1", "title": "Pumps", "text": "The pump lifts water."},
            {"id": "d2", "title": "Orders", "text": "A late order is refunded within nine days."},
        ],
    )
    gold = [[{"document_id": "d1"}], [{"document_id": "d2"}], []]
    asked = ["What does the pump lift?", "When is a late order refunded?", "Who invented the pump?"]
    rows = [
        {"id": f"q{i}", "question": q, "state": "answerable" if g else "unanswerable", "gold": g, "answer": a}
        for i, (q, g, a) in enumerate(zip(asked, gold, ["water", "within nine days", None], strict=True))
    ]
    lines(tmp_path / "questions.jsonl", [{k: v for k, v in row.items() if v is not None} for row in rows])
    answers = [
        {"question_id": "q0", "answer": "Water and oil", "abstained": False},
        {"question_id": "q1", "answer": "within nine days", "abstained": False},
        {"question_id": "q2", "answer": "I do not know", "abstained": True},
    ]
    lines(tmp_path / "answers.jsonl", answers)
    hits = [{"question_id": f"q{i}", "hits": [{"id": d}], "depth": 10} for i, d in enumerate(["d1", "d2", "d1"])]
    lines(tmp_path / "run.jsonl", hits)
    return tmp_path


def test_a_cell_with_recorded_answers_and_score_agree(files):
    data = Native(folder=str(files))
    plan = Plan(ks=(1,), pool=10, headline="recall@1")
    answerer = Recorded(str(files / "answers.jsonl"))
    made = run_cell(Cell("c", {}, data, WholeDocument(), BM25(), NoRerank(), answerer, plan), Cache(files / "cache"))
    block = made.summary.answer_quality
    assert block is not None
    assert block.counts["answered"] == 2
    assert block.metrics["exact_match"].value == 1 / 2
    assert block.metrics["token_f1"].value == (1 / 2 + 1) / 2
    assert block.metrics["faithfulness"].value == pytest.approx((1 / 3 + 1) / 2)
    assert 0 < block.metrics["relevance"].value < 1
    report = score(data.load(), files / "run.jsonl", files / "answers.jsonl", ks=(1,))
    assert report.summary.answer_quality == block
    text = render_text(report)
    assert "answers to answerable questions: 2 answered, 0 refused, 0 undecided, 0 without a text" in text
    assert "token f1" in text
    assert "answers,token_f1" in render_csv(report)


def test_the_figures_are_recorded(files):
    from denominator.tracking.facts import cell_facts

    plan = Plan(ks=(1,), pool=10, headline="recall@1")
    cell = Cell(
        "c",
        {},
        Native(folder=str(files)),
        WholeDocument(),
        BM25(),
        NoRerank(),
        Recorded(str(files / "answers.jsonl")),
        plan,
    )
    made = cell_facts(run_cell(cell, Cache(files / "cache")), sweep_id="s")
    assert made.metrics["answer.token_f1"] == 0.75
    assert made.metrics["answer.token_f1__n"] == 2


def test_a_writer_says_what_it_sends():
    class Chat:
        def context(self, table, units, plan):
            return [{"title": "T", "text": f"first of {len(units)}"}]

    from tests.endpoint_parts import bench_of

    bench = bench_of()
    ranked, _ = bench.ranked(BM25())
    asked = [question(f"q{i}") for i in range(3)]
    sent = contexts_of(Chat(), bench.table, ranked, asked, Plan())
    assert sent["q0"] == f"T\nfirst of {ranked.offsets[1]}"
    plain = contexts_of(None, bench.table, ranked, asked, Plan(ks=(1,)))
    assert plain["q0"] == bench.table.indexed(int(ranked.unit[0]))
