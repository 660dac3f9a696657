"""Span metrics against sets of positions, worked cases and field cases."""

from __future__ import annotations

import doctest
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator import spans
from denominator.errors import MeasurementError
from denominator.spans import (
    FAMILIES,
    CorpusIndex,
    SpanGold,
    budget_guard,
    precision_omega,
    span_scores,
    span_table,
    split_evidence,
)
from denominator.types import Document, Evidence, Group, Hit, Question, Result, Run, Units, filled
from tests.conftest import examples

from .golden.cases import run_case
from .test_tokens import walk

EXTRA = json.loads((Path(__file__).parent / "data" / "extra_cases_spans.json").read_text(encoding="utf-8"))


def test_doctests() -> None:
    assert doctest.testmod(spans).failed == 0


# ------------------------------------------------------------------ worked cases in golden form


def evidence(record: Mapping[str, Any]) -> Evidence:
    return Evidence(record["doc"], record["start"], record["end"])


def gold_of(items: Sequence[Any]) -> tuple[Group, ...]:
    return tuple(tuple(map(evidence, item if isinstance(item, list) else [item])) for item in items)


def hit_of(record: Mapping[str, Any]) -> Hit:
    return Hit(
        record["id"], record["doc"], None, record["start"], record["end"], record.get("header_tokens", 0),
        record.get("tokens"),
    )  # fmt: skip


def units_of(chunks: Sequence[Hit]) -> Units:
    return Run.from_results({"any": Result(tuple(chunks))}).units


def case_split(
    texts: dict[str, str],
    gold: list[Any],
    chunks: list[dict[str, Any]],
    budget: int | None = None,
    policy: Any = "truncate",
) -> dict[str, Any]:
    index = CorpusIndex.build(Document(i, t) for i, t in texts.items())
    question = Question("q", answerability="answerable", gold=gold_of(gold))
    got = split_evidence(index, [question], units_of([hit_of(c) for c in chunks]), budget=budget, cut=policy)
    reachable = None if got.reachable is None or math.isnan(got.reachable[0]) else float(got.reachable[0])
    return {
        "groups": int(got.groups[0]),
        "split": int(got.split[0]),
        "share": got.share(),
        "ceiling": None if 0 in got.reasons else float(got.ceiling[0]),
        "reachable": reachable,
        "reason": got.reasons.get(0),
    }


def case_omega(texts: dict[str, str], gold: list[Any], chunks: list[dict[str, Any]]) -> dict[str, Any]:
    index = CorpusIndex.build(Document(i, t) for i, t in texts.items())
    question = Question("q", answerability="answerable", gold=gold_of(gold))
    return {"precision_omega": precision_omega(index, [question], units_of([hit_of(c) for c in chunks])).value(0)}


def case_run(texts: dict[str, str], gold: list[Any], hits: list[dict[str, Any]], k: int) -> dict[str, Any]:
    return span_scores(gold_of(gold), [hit_of(h) for h in hits], k=k, texts=texts)


EXTRA_ADAPTERS = {"split_evidence": case_split, "precision_omega": case_omega, "span_run": case_run}


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in EXTRA])
def test_golden_extra_cases(case: dict[str, Any]) -> None:
    run_case(case, EXTRA_ADAPTERS[case["fn"]])


# ------------------------------------------------------------------ field cases

MICHAEL = {"d": "Michael met Michael"}
A, B = Hit("A", "d", start=0, end=12), Hit("B", "d", start=12, end=19)


@pytest.mark.parametrize(
    ("span", "hits", "with_text", "without"),
    [
        ((12, 19), [A], 0.0, 0.0),  # the same word elsewhere is not the evidence
        ((5, 15), [A], 5 / 8, 0.7),
        ((5, 15), [A, B], 1.0, 1.0),
        ((5, 15), [Hit("C", "d", start=0, end=15), Hit("D", "d", start=5, end=19)], 1.0, 1.0),
    ],
)
def test_f36_evidence_is_matched_by_position(
    span: tuple[int, int], hits: list[Hit], with_text: float, without: float
) -> None:
    gold = [(Evidence("d", *span),)]
    assert span_scores(gold, hits, k=2, texts=MICHAEL)["coverage"] == pytest.approx(with_text, abs=1e-12)
    assert span_scores(gold, hits, k=2)["coverage"] == pytest.approx(without, abs=1e-12)


def test_f19_repeated_text_is_told_apart_by_offsets() -> None:
    texts = {"d": "chunk chunk"}
    gold = [(Evidence("d", 6, 11),)]
    pieces = [Hit("1", "d", start=0, end=5), Hit("2", "d", start=5, end=10), Hit("3", "d", start=10, end=11)]
    assert span_scores(gold, pieces, k=1, texts=texts)["coverage"] == 0
    assert span_scores(gold, pieces, k=2, texts=texts)["coverage"] == pytest.approx(4 / 5, abs=1e-12)
    assert span_scores(gold, pieces, k=3, texts=texts)["coverage"] == 1


def test_f20_offsets_are_code_points() -> None:
    copy = "naïve café 😀 数据 end "
    text = copy * 20
    index = CorpusIndex.build([Document("d", text)])
    assert text.index("数据") == 13
    assert index.lengths.tolist() == [len(text)]
    assert index.size == sum(not c.isspace() for c in text)
    assert index.n_tokens == len(walk(text))
    for n in range(20):
        at = n * len(copy) + 13
        gold = [(Evidence("d", at, at + 2),)]
        exact = Hit("c", "d", start=at, end=at + 2)
        shifted = Hit("c", "d", start=at + 1, end=at + 3)
        assert span_scores(gold, [exact], k=1, texts={"d": text})["coverage"] == 1
        assert span_scores(gold, [shifted], k=1, texts={"d": text})["coverage"] == 0.5


def test_f20_joined_emoji_and_flags_are_several_code_points() -> None:
    text = "👩\u200d👩\u200d👧 \U0001f1e9\U0001f1ea"
    gold = [(Evidence("d", 0, len(text)),)]
    got = span_scores(gold, [Hit("c", "d", start=0, end=5)], k=1, texts={"d": text})
    assert got["coverage"] == pytest.approx(5 / 7, abs=1e-12)


# ------------------------------------------------------------------ sets of positions


@dataclass
class World:
    texts: dict[str, str]
    chunks: list[Hit]
    rankings: dict[str, list[Hit]]
    questions: list[Question]
    k: int
    budget: int
    cut: Any


ALPHABET = "ab1_ \n\u3000召の.é\u0301😀"


@st.composite
def worlds(draw: st.DrawFn) -> World:
    texts = {
        f"d{i}": draw(st.text(ALPHABET, min_size=1, max_size=24)) + draw(st.sampled_from(["x", "召", " end"]))
        for i in range(draw(st.integers(1, 3)))
    }

    def interval(least: int) -> tuple[str, int, int]:
        doc = draw(st.sampled_from(sorted(texts)))
        a = draw(st.integers(0, len(texts[doc]) - least))
        return doc, a, draw(st.integers(a + least, len(texts[doc])))

    chunks = []
    for n in range(draw(st.integers(0, 7))):
        header = draw(st.integers(0, 2))
        doc, a, b = interval(0)
        if draw(st.integers(0, 7)) == 0:
            chunks.append(Hit(f"c{n}", doc, None, None, None, header, draw(st.integers(0, 6))))
        else:
            chunks.append(Hit(f"c{n}", doc, None, a, b, header))

    def alternative() -> Evidence:
        kind = draw(st.integers(0, 9))
        if kind == 0:
            return Evidence(draw(st.sampled_from(sorted(texts))), whole=True)
        if kind == 1:
            return Evidence("gone", draw(st.integers(0, 3)), draw(st.integers(4, 9)))
        doc, a, b = interval(1)
        return Evidence(doc, a, b if texts[doc][a:b].strip() else len(texts[doc]))

    questions, rankings = [], {}
    for n in range(draw(st.integers(1, 4))):
        most = draw(st.sampled_from([1, 1, 3]))
        groups = tuple(
            tuple(alternative() for _ in range(draw(st.integers(1, most)))) for _ in range(draw(st.integers(1, 3)))
        )
        questions.append(Question(f"q{n}", answerability="answerable", gold=groups))
        scored = [replace(c, score=float(draw(st.integers(0, 2)))) for c in chunks if draw(st.booleans())]
        rankings[f"q{n}"] = draw(st.permutations(scored))
    return World(
        texts, chunks, rankings, questions, draw(st.integers(1, 4)), draw(st.integers(1, 12)),
        draw(st.sampled_from(["truncate", "whole"])),
    )  # fmt: skip


Positions = frozenset[tuple[str, int]]


def letters(world: World, doc: str, start: int, end: int) -> Positions:
    if doc not in world.texts:
        return frozenset((doc, i) for i in range(start, end))
    return frozenset((doc, i) for i in range(start, end) if not world.texts[doc][i].isspace())


def sent_at_k(world: World, ranked: Sequence[Hit]) -> list[tuple[Positions, bool]]:
    """What each retrieved chunk shows, and whether it has offsets."""
    return [
        (frozenset(), False) if h.start is None else (letters(world, h.doc, h.start, h.end or 0), True)
        for h in ranked[: world.k]
    ]


def sent_in_budget(world: World, ranked: Sequence[Hit]) -> tuple[list[tuple[Positions, bool]], int]:
    """One token after the other, until the budget is used."""
    out: list[tuple[Positions, bool]] = []
    used = 0
    for hit in ranked:
        if hit.start is None:
            body: list[int | None] = [None] * (hit.tokens or 0)
        else:
            body = [hit.start + e for e in walk(world.texts[hit.doc][hit.start : hit.end])]
        line: list[int | None] = [None] * hit.header_tokens + body
        if used + len(line) > world.budget:
            room = world.budget - used
            if world.cut == "truncate":
                if room:
                    ends = [e for e in line[:room] if e is not None]
                    shown = (
                        letters(world, hit.doc, hit.start, ends[-1]) if ends and hit.start is not None else frozenset()
                    )
                    out.append((shown, hit.start is not None))
                used = world.budget
            break
        used += len(line)
        out.append(
            (
                letters(world, hit.doc, hit.start, hit.end or 0) if hit.start is not None else frozenset(),
                hit.start is not None,
            )
        )
    return out, used


def brute(world: World, question: Question, sent: Sequence[tuple[Positions, bool]]) -> dict[str, float | None]:
    groups = []
    for group in question.gold:
        spans = {
            (a.doc, 0, len(world.texts[a.doc])) if a.start is None else (a.doc, a.start, a.end or 0) for a in group
        }
        if spans not in groups:
            groups.append(spans)
    got: Positions = frozenset().union(*[s for s, _ in sent])
    best = [max(len(letters(world, *a) & got) / len(letters(world, *a)) for a in group) for group in groups]
    out: dict[str, float | None] = {
        "coverage": sum(best) / len(best),
        "recall_tau100": sum(b == 1 for b in best) / len(best),
        "recall_tau50": sum(b >= 0.5 for b in best) / len(best),
        "span_recall": None,
        "span_precision": None,
        "span_iou": None,
    }
    if all(len(g) == 1 for g in groups) and all(anchored for _, anchored in sent):
        gold: Positions = frozenset().union(*[letters(world, *a) for g in groups for a in g])
        paid = sum(len(s) for s, _ in sent)
        out["span_recall"] = len(gold & got) / len(gold)
        out["span_precision"] = len(gold & got) / paid if paid else 0.0
        out["span_iou"] = len(gold & got) / (paid + len(gold - got))
    return out


def ranked_by_hand(hits: Sequence[Hit]) -> list[Hit]:
    return sorted(hits, key=lambda h: (-(h.score or 0), h.id))


def close(got: float | None, want: float | None) -> bool:
    return got is None if want is None else got is not None and abs(got - want) <= 1e-12


def table_of(world: World) -> spans.SpanTable:
    index = CorpusIndex.build(Document(i, t) for i, t in world.texts.items())
    run = Run.from_results({q: Result(tuple(hits)) for q, hits in world.rankings.items()})
    return span_table(index, world.questions, run, ks=[world.k], budget=world.budget, cut=world.cut)


@given(worlds())
@settings(max_examples=examples(250), deadline=None)
def test_every_value_equals_sets_of_positions(world: World) -> None:
    table = table_of(world)
    for row, question in enumerate(world.questions):
        ranked = ranked_by_hand(world.rankings[question.id])
        in_budget, used = sent_in_budget(world, ranked)
        for suffix, sent in ((f"@{world.k}", sent_at_k(world, ranked)), (f"@b{world.budget}", in_budget)):
            want = brute(world, question, sent)
            for family in FAMILIES:
                got = table.value(family + suffix, row)
                assert close(got, want[family]), (family + suffix, got, want[family])
                assert (table.reason(family + suffix, row) is None) == (got is not None)
                assert math.isnan(table.values[family + suffix][row]) == (got is None)
        assert close(table.value(f"budget_fill@b{world.budget}", row), used / world.budget)
        assert table.unanchored[row] == sum(h.start is None for h in ranked)


@given(worlds())
@settings(max_examples=examples(80), deadline=None)
def test_one_question_alone_has_the_values_of_the_table(world: World) -> None:
    table = table_of(world)
    for row, question in enumerate(world.questions):
        hits = world.rankings[question.id]
        by_k = span_scores(question.gold, hits, k=world.k, texts=world.texts)
        by_b = span_scores(question.gold, hits, budget=world.budget, cut=world.cut, texts=world.texts)
        for family in FAMILIES:
            assert by_k[family] == table.value(f"{family}@{world.k}", row)
            assert by_b[family] == table.value(f"{family}@b{world.budget}", row)
        assert by_b["tokens_used"] == round(table.values[f"budget_fill@b{world.budget}"][row] * world.budget)


@given(worlds(), st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_order_and_blocks_change_nothing(world: World, random: Any) -> None:
    before = table_of(world)
    shuffled = list(world.questions)
    random.shuffle(shuffled)
    hits = {q: random.sample(world.rankings[q], len(world.rankings[q])) for q in reversed(world.rankings)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "_PAIR_BLOCK", 1)
        patch.setattr(spans, "_TEXT_BLOCK", 3)
        after = table_of(replace(world, questions=shuffled, rankings=hits))
    for name in before.names:
        for row, question in enumerate(world.questions):
            other = shuffled.index(question)
            assert before.value(name, row) == after.value(name, other)
            assert before.reason(name, row) == after.reason(name, other)


@given(worlds())
@settings(max_examples=examples(60), deadline=None)
def test_more_never_covers_less(world: World) -> None:
    index = CorpusIndex.build(Document(i, t) for i, t in world.texts.items())
    run = Run.from_results({q: Result(tuple(hits)) for q, hits in world.rankings.items()})
    several = [1, 2, 3, 5, 8, 13, 40]
    table = span_table(index, world.questions, run, ks=several, budget=several, cut=world.cut)
    for prefix in ("@", "@b"):
        columns = np.stack([table.values[f"coverage{prefix}{n}"] for n in several])
        assert (np.diff(columns, axis=0) >= -1e-12).all()


@given(worlds())
@settings(max_examples=examples(120), deadline=None)
def test_omega_equals_sets_of_positions(world: World) -> None:
    index = CorpusIndex.build(Document(i, t) for i, t in world.texts.items())
    got = precision_omega(index, world.questions, units_of(world.chunks))
    shown = [letters(world, c.doc, c.start, c.end or 0) for c in world.chunks if c.start is not None]
    for row, question in enumerate(world.questions):
        gold: Positions = frozenset()
        for group in question.gold:
            for a in set(group):
                gold |= letters(world, a.doc, a.start or 0, len(world.texts[a.doc]) if a.start is None else a.end or 0)
        near: Positions = frozenset().union(*[s for s in shown if s & gold])
        varied = got.reasons.get(row) == "or_groups_unsupported"
        assert varied == (table_of(world).reason(f"span_recall@{world.k}", row) == "or_groups_unsupported")
        if not varied:
            assert close(got.value(row), len(near & gold) / len(near | gold))


@given(worlds())
@settings(max_examples=examples(120), deadline=None)
def test_split_and_ceilings_equal_sets_of_positions(world: World) -> None:
    index = CorpusIndex.build(Document(i, t) for i, t in world.texts.items())
    chunks = world.chunks[:4]
    got = split_evidence(index, world.questions, units_of(chunks), budget=world.budget, cut=world.cut)
    shown = [letters(world, c.doc, c.start, c.end or 0) for c in chunks if c.start is not None]
    for row, question in enumerate(world.questions):
        everything = brute(world, question, [(s, True) for s in shown])["coverage"]
        assert close(float(got.ceiling[row]), everything)
        groups = {
            frozenset(
                letters(world, a.doc, a.start or 0, len(world.texts[a.doc]) if a.start is None else a.end or 0)
                for a in group
            )
            for group in question.gold
        }
        split = sum(not any(a <= s for a in group for s in shown) for group in groups)
        if len(groups) == got.groups[row]:  # spans that differ by whitespace alone are two groups
            assert split == got.split[row]
        assert got.reachable is not None
        reached = float(got.reachable[row])
        ways = [
            brute(world, question, sent_in_budget(world, way)[0])["coverage"]
            for n in range(len(chunks) + 1)
            for way in itertools.permutations(chunks, n)
        ]
        assert any(close(reached, way) for way in ways)  # a real ranking attains it
        assert reached <= (everything or 0) + 1e-12


# ------------------------------------------------------------------ questions, runs, states

TEXTS = [Document("d", "one two three four"), Document("e", "five six")]
INDEX = CorpusIndex.build(TEXTS)


def question(name: str, *spans_: tuple[str, int, int], **more: Any) -> Question:
    return Question(name, answerability="answerable", gold=tuple((Evidence(*s),) for s in spans_), **more)


def test_questions_without_spans_are_undefined_with_the_reason() -> None:
    bare = Question("bare", answerability="answerable", gold=((Evidence("d"),),))
    mixed = Question("mixed", answerability="answerable", gold=((Evidence("d", 0, 3),), (Evidence("e"),)))
    none = Question("none", answerability="unanswerable")
    good = question("good", ("d", 0, 3))
    run = Run.from_results({q: Result((Hit("c", "d", 1.0, 0, 7),)) for q in ("bare", "mixed", "none", "good")})
    table = span_table(INDEX, [bare, mixed, none, good], run, ks=[1], budget=5)
    for name in table.names:
        assert [table.reason(name, row) for row in range(4)] == ["no_spans", "no_spans", "no_spans", None]
    assert table.value("coverage@1", 3) == 1
    assert table.groups.tolist() == [0, 0, 0, 1]


def test_every_state_has_values() -> None:
    asked = [replace(question("q", ("d", 0, 3)), answerability=label) for label in ("partial", "unlabelled", None)]
    asked = [replace(q, id=f"q{i}") for i, q in enumerate(asked)]
    run = Run.from_results({q.id: Result((Hit("c", "d", 1.0, 0, 7),)) for q in asked})
    assert span_table(INDEX, asked, run, ks=[1]).values["coverage@1"].tolist() == [1, 1, 1]


def test_failed_missing_and_empty_are_zero_and_not_held_against_the_depth() -> None:
    asked = [question(i, ("d", 0, 3)) for i in ("ok", "failed", "missing", "empty")]
    run = Run.from_results(
        {
            "empty": Result((), exhausted=True),
            "ok": Result((Hit("c", "d", 1.0, 0, 3),)),
            "failed": Result(error="time-out"),
        }
    )
    table = span_table(INDEX, asked, run, ks=[1], budget=10)
    for family in ("coverage", "recall_tau100", "span_recall", "span_precision", "span_iou"):
        for suffix in ("@1", "@b10"):
            assert table.values[family + suffix].tolist() == [1, 0, 0, 0]
            assert not table.reasons[family + suffix]
    assert table.exhausted.tolist() == [False, True, True, True]
    assert table.values["budget_fill@b10"].tolist() == [0.1, 0, 0, 0]
    with pytest.raises(MeasurementError, match="budget_underfilled"):
        table.check_fill(10)
    table.check_fill(10, np.array([False, True, True, True]))


def test_an_empty_run_and_no_questions() -> None:
    nothing = Run.from_results({})
    table = span_table(INDEX, [question("q", ("d", 0, 3))], nothing, ks=[1], budget=3)
    assert table.values["coverage@1"].tolist() == table.values["coverage@b3"].tolist() == [0]
    assert span_table(INDEX, [], nothing, ks=[1], budget=3).values["coverage@1"].size == 0
    assert split_evidence(INDEX, [], units_of([])).share() is None


def test_duplicates_count_once() -> None:
    twice = [Hit("c1", "d", 0.9, 0, 3), Hit("c1", "d", 0.8, 0, 3), Hit("c2", "d", 0.7, 4, 7)]
    run = Run.from_results({"q": Result(tuple(twice))})
    table = span_table(INDEX, [question("q", ("d", 0, 7))], run, ks=[2], budget=2)
    assert table.value("coverage@2", 0) == 1
    assert table.value("coverage@b2", 0) == 1
    assert table.value("span_precision@2", 0) == 1


def test_ties_follow_the_rule_that_is_asked_for() -> None:
    run = Run.from_results({"q": Result((Hit("a", "d", 0.5, 0, 3), Hit("b", "d", 0.5, 4, 7)))})
    asked = [question("q", ("d", 0, 3))]
    assert span_table(INDEX, asked, run, ks=[1]).value("coverage@1", 0) == 1
    assert span_table(INDEX, asked, run, ks=[1], ties="trec").value("coverage@1", 0) == 0


def test_chunks_without_offsets_use_tokens_and_bare_documents_say_nothing() -> None:
    rewritten = Hit("s", "d", 0.9, tokens=2)
    unknown = Hit("s", "d", 0.9)
    text = Hit("c", "d", 0.5, 0, 3)
    asked = [question("q", ("d", 0, 3))]

    def table(*hits: Hit) -> spans.SpanTable:
        return span_table(INDEX, asked, Run.from_results({"q": Result(hits)}), ks=[1, 2], budget=2)

    got = table(rewritten, text)
    assert got.value("coverage@2", 0) == 1
    assert got.value("coverage@b2", 0) == 0
    assert got.reason("span_precision@2", 0) == "unanchored_chunks"
    assert got.unanchored.tolist() == [1]
    got = table(unknown, text)
    assert got.value("coverage@2", 0) == 1
    assert got.reason("coverage@b2", 0) == "unanchored_chunks"
    got = table(
        Hit("c", "d", 0.9, 0, 7), replace(rewritten, score=0.1)
    )  # the budget is used up before the rewritten chunk is sent
    assert got.value("span_precision@b2", 0) == 0.5
    assert got.reason("span_precision@2", 0) == "unanchored_chunks"
    got = table(Hit("c", "d", 0.9, 0, 3), replace(rewritten, score=0.1))  # half of it is sent
    assert got.reason("span_precision@b2", 0) == "unanchored_chunks"
    got = table(Hit("d", "d", 0.9), text)
    assert got.reason("coverage@1", 0) == got.reason("coverage@b2", 0) == "no_spans"
    assert got.unanchored.tolist() == [0]


def test_a_whole_document_is_evidence_only_where_it_says_so() -> None:
    whole = Question("q", answerability="answerable", gold=((Evidence("e", whole=True),),))
    run = Run.from_results({"q": Result((Hit("c", "e", 1.0, 0, 4),))})
    assert span_table(INDEX, [whole], run, ks=[1]).value("coverage@1", 0) == pytest.approx(4 / 7, abs=1e-12)


def test_gold_in_a_document_that_the_corpus_lacks_is_never_covered() -> None:
    asked = [
        question("spans", ("gone", 0, 4), ("d", 0, 4)),
        Question("whole", answerability="answerable", gold=((Evidence("gone", whole=True),),)),
    ]
    run = Run.from_results({i: Result((Hit("c", "d", 1.0, 0, 18),)) for i in ("spans", "whole")})
    table = span_table(INDEX, asked, run, ks=[1])
    assert table.values["coverage@1"].tolist() == [0.5, 0]
    assert table.value("span_recall@1", 0) == pytest.approx(3 / 7, abs=1e-12)
    assert table.reason("span_recall@1", 1) == "no_spans"


def test_ready_gold_gives_the_same_table() -> None:
    asked = [question("q", ("d", 0, 3), ("e", 0, 8))]
    run = Run.from_results({"q": Result((Hit("c", "d", 1.0, 0, 7),))})
    one = span_table(INDEX, asked, run, ks=[1], budget=[1, 4])
    two = span_table(INDEX, SpanGold.build(INDEX, asked), run, ks=[1], budget=[1, 4])
    assert one.names == two.names
    assert all((one.values[n] == two.values[n]).all() for n in one.names)


# ------------------------------------------------------------------ refusals


def refused(code: str, ids: Sequence[str], work: Any) -> None:
    with pytest.raises(MeasurementError) as caught:
        work()
    assert (caught.value.code, list(caught.value.ids)) == (code, list(ids))


RUN = Run.from_results({"q": Result((Hit("c", "d", 1.0, 0, 7),), depth=5)})


def test_bad_spans_name_what_to_mend() -> None:
    refused("empty_span", ["q"], lambda: SpanGold.build(INDEX, [question("q", ("d", 2, 2))]))
    refused("empty_span", ["q"], lambda: SpanGold.build(INDEX, [question("q", ("d", 3, 4))]))  # only a space
    refused("empty_span", ["q"], lambda: SpanGold.build(INDEX, [question("q", ("d", 9, 4))]))
    refused("empty_span", ["q"], lambda: SpanGold.build(INDEX, [question("q", ("d", 99, 4))]))
    refused("span_out_of_range", ["d"], lambda: SpanGold.build(INDEX, [question("q", ("d", 0, -99))]))
    asked = [question("q", ("d", 0, 19)), question("r", ("e", -1, 3)), question("s", ("d", 0, 3))]
    refused("span_out_of_range", ["d", "e"], lambda: SpanGold.build(INDEX, asked))


@pytest.mark.parametrize("chunk", [(0, 19), (-1, 3), (5, 4), (0, None), (None, 4)])
def test_chunks_that_leave_their_document_are_refused(chunk: tuple[Any, Any]) -> None:
    run = Run.from_results({"q": Result((Hit("c", "d", 1.0, *chunk),))})
    refused("span_out_of_range", ["d"], lambda: span_table(INDEX, [question("q", ("d", 0, 3))], run, ks=[1]))


def test_chunks_of_unknown_documents_are_refused() -> None:
    run = Run.from_results({"q": Result((Hit("c", "gone", 1.0, 0, 3),))})
    refused("span_out_of_range", ["gone"], lambda: span_table(INDEX, [question("q", ("d", 0, 3))], run, ks=[1]))


@pytest.mark.parametrize("budget", [0, -1, True, 2.5, "7"])
def test_bad_budgets_are_refused(budget: Any) -> None:
    asked = [question("q", ("d", 0, 3))]
    refused("bad_budget", [str(budget)], lambda: span_table(INDEX, asked, RUN, budget=budget))


def test_bad_k_and_depth_are_refused() -> None:
    asked = [question("q", ("d", 0, 3))]
    refused("bad_k", ["0"], lambda: span_table(INDEX, asked, RUN, ks=[0]))
    refused("bad_k", ["True"], lambda: span_table(INDEX, asked, RUN, ks=[True]))
    refused("bad_k", ["None"], lambda: span_scores([(Evidence("d", 0, 3),)], []))
    refused("depth_below_k", ["depth=5", "k=6"], lambda: span_table(INDEX, asked, RUN, ks=[6]))


def test_a_budget_needs_text_or_tokens() -> None:
    plain = CorpusIndex.plain({"d": 18})
    asked = [question("q", ("d", 0, 4))]
    assert span_table(plain, asked, RUN, ks=[1]).value("coverage@1", 0) == 1
    refused("bad_budget", ["3"], lambda: span_table(plain, asked, RUN, budget=3))
    refused("bad_budget", ["3"], lambda: split_evidence(plain, asked, RUN.units, budget=3))
    assert split_evidence(plain, asked, RUN.units).split.tolist() == [0]
    gold = [(Evidence("d", 0, 3),)]
    refused("bad_budget", ["3"], lambda: span_scores(gold, [Hit("c", "d", start=0, end=5)], budget=3))
    refused(
        "span_out_of_range",
        ["d"],
        lambda: span_scores([(Evidence("d", whole=True),)], [Hit("d#0", "d", start=0, end=5)], k=1),
    )


@pytest.mark.parametrize(
    ("fills", "exhausted", "passes"),
    [
        ([], [], True),
        ([0.1], [True], True),
        ([0.95], [False], True),
        ([1.0, 0.9, 0.0], [False, False, True], True),
        ([1.0, 0.89], [False, False], False),
        ([math.nan, 0.96], [False, False], True),
        ([0.95] * 7, [False] * 7, True),  # the mean of equal values is the value, whatever the sum rounds to
    ],
)
def test_budget_guard(fills: list[float], exhausted: list[bool], passes: bool) -> None:
    if passes:
        budget_guard(fills, exhausted)
    else:
        refused("budget_underfilled", [], lambda: budget_guard(fills, exhausted))


def test_document_ids_occur_once() -> None:
    refused("bad_id", ["d"], lambda: CorpusIndex.build([Document("d", "a"), Document("d", "b")]))


# ------------------------------------------------------------------ the index as columns


def test_the_index_survives_files_without_pickle() -> None:
    index = CorpusIndex.build([Document("é #1", "a  b"), Document("\ud800", ""), Document("z", "数据")])
    kept: dict[str, Any] = {}
    for name, column in index.arrays().items():
        file = io.BytesIO()
        np.save(file, column, allow_pickle=False)
        file.seek(0)
        kept[name] = np.load(file, allow_pickle=False)
    again = CorpusIndex.from_arrays(kept)
    assert (again.ids, again.has_text) == (index.ids, index.has_text)
    assert all((a == b).all() for a, b in zip(again.arrays().values(), index.arrays().values(), strict=True))
    assert again.lengths.tolist() == [4, 0, 2]


def test_an_empty_corpus() -> None:
    index = CorpusIndex.build([])
    assert (index.size, index.n_tokens, index.ids) == (0, 0, ())
    table = span_table(index, [question("q", ("d", 0, 3))], Run.from_results({}), ks=[1])
    assert table.values["coverage@1"].tolist() == [0]


def test_tokens_do_not_run_across_documents() -> None:
    index = CorpusIndex.build([Document("a", "one"), Document("b", "two")])
    assert index.n_tokens == 2


def test_rows_of_the_run_may_come_in_any_question_order() -> None:
    asked = [question("a", ("d", 0, 3)), question("b", ("e", 0, 4))]
    run = Run.from_results(
        {"b": Result((Hit("e", "e", 1.0, 0, 4),)), "z": Result(), "a": Result((Hit("c", "d", 1.0, 4, 7),))}
    )
    assert span_table(INDEX, asked, run, ks=[1]).values["coverage@1"].tolist() == [0, 1]


def test_blocks_fill_their_array() -> None:
    """A block too few would leave what was in that memory before."""
    assert filled((3,), np.int32, lambda: [np.ones(2), np.zeros(1)]).tolist() == [1, 1, 0]
    with pytest.raises(AssertionError, match="2 of 3 rows"):
        filled((3,), np.int32, lambda: [np.ones(2)])
