"""Ranked metrics against a plain re-computation with sets, worked cases and the properties that must never break."""

from __future__ import annotations

import itertools
import json
import math
import random
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator import metrics as m
from denominator.errors import ConfigError, MeasurementError
from denominator.metrics import Metric, metric_names, parse_name, ranked, score_arrays, score_dicts
from denominator.ranking import run_from_dicts, run_from_results
from denominator.ties import tie_range
from denominator.types import Evidence, Hit, Question, Result, Ties

from .golden.cases import check
from .golden.test_golden_ranking import hit, question

KINDS = ("recall", "complete", "precision", "hit", "mrr", "ndcg", "ndcg_exp", "map")
Groups = Sequence[Sequence[str]]


def plain(ranking: Sequence[str], groups: Groups, grades: Mapping[str, int], k: int) -> dict[str, float]:
    """Every metric from its definition, with sets and sums, for a ranking that is in order and has no copies."""
    wanted = {i for g in groups for i in g}
    first_k = list(ranking)[:k]
    ranks = [r for r, i in enumerate(first_k, 1) if i in wanted]
    found = sum(any(i in first_k for i in g) for g in groups)
    out = {
        "recall": found / len(groups),
        "complete": float(found == len(groups)),
        "precision": len(ranks) / k,
        "hit": float(bool(ranks)),
        "mrr": 1 / ranks[0] if ranks else 0.0,
        "map": sum(n / r for n, r in enumerate(ranks, 1)) / len(wanted),
        "r_precision": sum(i in wanted for i in list(ranking)[: len(wanted)]) / len(wanted),
    }
    for name, gain in (("ndcg", lambda g: g), ("ndcg_exp", lambda g: 2**g - 1)):
        gains = {i: gain(grades.get(i, 1)) for i in wanted}
        dcg = sum(gains.get(i, 0) / math.log2(r + 1) for r, i in enumerate(first_k, 1))
        best = sorted(gains.values(), reverse=True)[:k]
        out[name] = dcg / sum(g / math.log2(r + 1) for r, g in enumerate(best, 1))
    return out


def make_question(groups: Groups, grades: Mapping[str, int] | None = None, name: str = "q") -> Question:
    gold = tuple(tuple(Evidence(i) for i in g) for g in groups)
    return Question(name, answerability="answerable", gold=gold, grades=grades or None)


POOL = [f"d{i:02d}" for i in range(30)]
rankings = st.lists(st.sampled_from(POOL), max_size=20, unique=True)
scored = st.dictionaries(st.sampled_from(POOL), st.integers(0, 6).map(lambda n: n / 4), max_size=20)
plain_gold = st.dictionaries(st.sampled_from(POOL), st.integers(1, 4), min_size=1, max_size=12)
or_gold = st.lists(st.lists(st.sampled_from(POOL), min_size=1, max_size=3, unique=True), min_size=1, max_size=5)


def distinct_groups(groups: Groups) -> list[list[str]]:
    return [sorted(g) for g in dict.fromkeys(frozenset(g) for g in groups)]


@given(rankings, plain_gold, st.integers(1, 22))
def test_plain_gold_equals_the_definitions(ranking: list[str], grades: dict[str, int], k: int) -> None:
    expected = plain(ranking, [[i] for i in grades], grades, k)
    names = {f"{kind}@{k}": expected[kind] for kind in KINDS} | {"r_precision": expected["r_precision"]}
    run = run_from_results({"q": Result(tuple(Hit(i, i) for i in ranking))})
    values, reasons = ranked(run, [make_question([[i] for i in grades], grades)], list(names)).row(0)
    assert reasons == {}
    assert values == pytest.approx(names, abs=1e-12)
    assert all(0 <= v <= 1 + 1e-12 for v in values.values() if v is not None)


@given(rankings, or_gold, st.integers(1, 22))
def test_groups_of_alternatives_equal_the_definitions(ranking: list[str], groups: Groups, k: int) -> None:
    groups = distinct_groups(groups)
    expected = plain(ranking, groups, {}, k)
    assert m.recall_at_k(ranking, groups, k) == pytest.approx(expected["recall"], abs=1e-12)
    assert m.complete_at_k(ranking, groups, k) == expected["complete"]
    assert m.precision_at_k(ranking, groups, k) == pytest.approx(expected["precision"], abs=1e-12)
    assert m.hit_at_k(ranking, groups, k) == expected["hit"]
    assert m.mrr_at_k(ranking, groups, k) == pytest.approx(expected["mrr"], abs=1e-12)
    if any(len(g) > 1 for g in groups):
        assert m.ndcg_at_k(ranking, groups, k) is None
        assert m.average_precision(ranking, groups) is None
        assert m.r_precision(ranking, groups) is None


def in_order(row: Mapping[str, float], ties: Ties) -> list[str]:
    return sorted(sorted(row, reverse=ties == "trec"), key=lambda i: -row[i])


@given(st.lists(st.tuples(scored, plain_gold), min_size=1, max_size=8), st.sampled_from(["asc", "trec"]))
def test_three_doors_give_the_definitions(cases: list[Any], ties: Ties) -> None:
    """Dicts, a Run and integer codes, ragged and with ties, all against the plain computation."""
    names = ["recall@3", "ndcg@5", "mrr@4", "map", "precision@2", "hit@1", "complete@9", "r_precision", "ndcg_exp"]
    qrels = {f"q{i}": grades for i, (_, grades) in enumerate(cases)}
    run = {f"q{i}": row for i, (row, _) in enumerate(cases)}
    table = score_dicts(qrels, run, names, ties=ties)
    columns = ranked(run_from_dicts(run), [Question(i, grades=g) for i, g in qrels.items()], names, ties=ties)
    code = {i: n for n, i in enumerate(POOL)}
    arrays = score_arrays(
        [code[i] for row in run.values() for i in row],
        np.array([s for row in run.values() for s in row.values()], np.float64),
        np.cumsum([0, *map(len, qrels.values())]),
        [code[i] for grades in qrels.values() for i in grades],
        names,
        gold_grades=[g for grades in qrels.values() for g in grades.values()],
        offsets=np.cumsum([0, *map(len, run.values())]),
        ties=ties,
    )
    for i, (row, grades) in enumerate(cases):
        ranking = in_order(row, ties)
        for name in names:
            metric = parse_name(name)
            expected = plain(ranking, [[g] for g in grades], grades, metric.k or 1000)[metric.kind]
            for got in (table.values[name][i], columns.values[name][i], arrays[name][i]):
                assert got == pytest.approx(expected, abs=1e-12), (name, i)


def test_blocks_padding_copies_and_long_rows_agree_with_the_definitions() -> None:
    """Several blocks, rows of very different lengths, many gold ids, the same id twice, threads."""
    rng = np.random.default_rng(3)
    documents = [f"d{i:05d}" for i in range(9000)]
    results, questions, expected = {}, [], {}
    for q in range(700):
        n = 6000 if q == 350 else int(rng.integers(0, 300))
        picked = rng.permutation(9000)[:n]
        scores = rng.integers(0, 500, n) / 8
        hits = [Hit(documents[d], documents[d], float(s)) for d, s in zip(picked, scores, strict=True)]
        if q % 5 == 0 and hits:
            hits += [Hit(hits[0].id, hits[0].id, 0.5), Hit(hits[-1].id, hits[-1].id, 70.0)]
        best: dict[str, float] = {}
        for h in hits:
            best[h.id] = max(best.get(h.id, -1.0), h.score or 0.0)
        gold = {documents[d]: int(rng.integers(1, 4)) for d in rng.permutation(9000)[: rng.integers(1, 40)]}
        gold |= {h.id: 2 for h in hits[:3]}
        name = f"q{q}"
        results[name] = Result(tuple(hits))
        questions.append(Question(name, grades=gold))
        expected[name] = plain(in_order(best, "asc"), [[g] for g in gold], gold, 10)
    names = {f"{kind}@10": kind for kind in KINDS} | {"r_precision": "r_precision"}
    run = run_from_results(results)
    for threads in (1, 2):
        table = ranked(run, questions, list(names), threads=threads)
        for name, kind in names.items():
            wanted = [expected[i][kind] for i in table.question_ids]
            np.testing.assert_allclose(table.values[name], wanted, atol=1e-12)


def test_integer_columns_in_any_order_and_with_copies() -> None:
    rng = np.random.default_rng(8)
    n, width = 3000, 120
    ids = np.array([rng.permutation(1000)[:width] for _ in range(n)], np.int32)
    scores = rng.integers(0, 300, (n, width)).astype(np.float64)  # ties
    ids[::50, 5] = ids[::50, 80]  # copies: the better one counts
    size = rng.integers(0, 13, n)
    offsets = np.concatenate([[0], np.cumsum(size)])
    gold = np.concatenate([rng.permutation(1000)[:s] for s in size])
    names = ["recall@10", "ndcg@10", "mrr", "map", "r_precision"]
    values = score_arrays(ids, scores, offsets, gold, names, threads=2)
    again = score_arrays(ids[:, ::-1], scores[:, ::-1], offsets, gold, names)
    for name in names:
        np.testing.assert_array_equal(values[name], again[name])
    for i in [*range(200), 50, 100]:
        best: dict[str, float] = {}
        for d, s in zip(ids[i].tolist(), scores[i].tolist(), strict=True):
            best[f"{d:04d}"] = max(best.get(f"{d:04d}", -1), s)
        wanted = [[f"{d:04d}"] for d in gold[offsets[i] : offsets[i + 1]]]
        if not wanted:
            assert np.isnan(values["recall@10"][i])
            continue
        expected = plain(in_order(best, "asc"), wanted, {}, 10)
        whole = plain(in_order(best, "asc"), wanted, {}, 10_000)
        for name, value in (
            ("recall@10", expected["recall"]),
            ("ndcg@10", expected["ndcg"]),
            ("mrr", whole["mrr"]),
            ("map", whole["map"]),
            ("r_precision", whole["r_precision"]),
        ):
            assert values[name][i] == pytest.approx(value, abs=1e-12), (i, name)


def test_integer_columns_take_the_order_of_ids_for_ties() -> None:
    args = ([[0, 1]], [[1.0, 1.0]], [0, 1], [1], ["recall@1"])
    assert score_arrays(*args)["recall@1"][0] == 0.0
    assert score_arrays(*args, order=[1, 0])["recall@1"][0] == 1.0
    assert score_arrays(*args, ties="trec")["recall@1"][0] == 1.0
    assert score_arrays([[1, 0]], None, [0, 1], [1], ["recall@1"])["recall@1"][0] == 1.0


# ------------------------------------------------------------------ properties


dataset = st.lists(st.tuples(scored, plain_gold), min_size=1, max_size=6)
NAMES = metric_names((1, 3, 10), 100)


def both(cases: list[Any]) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    return {f"q{i}": g for i, (_, g) in enumerate(cases)}, {f"q{i}": r for i, (r, _) in enumerate(cases)}


@given(dataset, st.randoms(use_true_random=False))
def test_order_of_questions_hits_and_keys_changes_nothing(cases: list[Any], rng: random.Random) -> None:
    qrels, run = both(cases)
    table = score_dicts(qrels, run, NAMES)

    def shuffled(d: dict[str, Any]) -> dict[str, Any]:
        keys = list(d)
        rng.shuffle(keys)
        return {k: shuffled(d[k]) if isinstance(d[k], dict) else d[k] for k in keys}

    other_qrels, other_run = shuffled(qrels), shuffled(run)
    again = score_dicts(other_qrels, other_run, NAMES)
    columns = ranked(run_from_dicts(other_run), [Question(i, grades=g) for i, g in other_qrels.items()], NAMES)
    for name in NAMES:
        before = dict(zip(table.question_ids, table.values[name].tolist(), strict=True))
        assert before == dict(zip(again.question_ids, again.values[name].tolist(), strict=True))
        assert before == dict(zip(columns.question_ids, columns.values[name].tolist(), strict=True))


@given(dataset)
def test_a_value_depends_on_its_own_question_alone(cases: list[Any]) -> None:
    """To the last bit: few gold ids are laid out otherwise than many, and company must not decide which."""
    qrels, run = both(cases)
    alone = [score_dicts({q: qrels[q]}, {q: run[q]}, NAMES) for q in qrels]
    crowd = {f"d{i:03d}": 1 for i in range(200)}
    together = score_dicts({**qrels, "many": crowd}, {**run, "many": {"d001": 1.0}}, NAMES)
    for name in NAMES:
        assert [t.values[name][0] for t in alone] == together.values[name][:-1].tolist()


@given(dataset, scored)
def test_an_unanswerable_question_changes_no_metric(cases: list[Any], row: dict[str, float]) -> None:
    qrels, run = both(cases)
    questions = [Question(i, answerability="answerable", grades=g) for i, g in qrels.items()]
    before = ranked(run_from_dicts(run), questions, NAMES)
    more = [*questions, Question("u", answerability="unanswerable")]
    after = ranked(run_from_dicts({**run, "u": row}), more, NAMES)
    for name in NAMES:
        assert before.mean(name) == after.mean(name)
    assert after.row(len(questions)) == ({}, {})


@given(dataset)
def test_recall_never_falls_with_k(cases: list[Any]) -> None:
    qrels, run = both(cases)
    names = [f"{kind}@{k}" for kind in ("recall", "complete", "hit", "mrr") for k in range(1, 25)]
    table = score_dicts(qrels, run, names)
    for kind in ("recall", "complete", "hit", "mrr"):
        curve = np.array([table.values[f"{kind}@{k}"] for k in range(1, 25)])
        assert (np.diff(curve, axis=0) >= 0).all()


@given(dataset)
def test_relabelling_ids_in_their_order_changes_nothing(cases: list[Any]) -> None:
    qrels, run = both(cases)
    new = {old: f"é{i:04d}" for i, old in enumerate(sorted(POOL))}
    table = score_dicts(qrels, run, NAMES)
    again = score_dicts(
        {q: {new[i]: g for i, g in row.items()} for q, row in qrels.items()},
        {q: {new[i]: s for i, s in row.items()} for q, row in run.items()},
        NAMES,
    )
    for name in NAMES:
        np.testing.assert_array_equal(table.values[name], again.values[name])


@given(st.lists(st.sampled_from(POOL[:6]), max_size=12), plain_gold, st.integers(1, 8))
def test_copies_never_push_a_metric_above_one(ranking: list[str], grades: dict[str, int], k: int) -> None:
    evidence = list(grades)
    once = list(dict.fromkeys(ranking))
    for function in (m.recall_at_k, m.precision_at_k, m.hit_at_k, m.mrr_at_k, m.ndcg_at_k, m.complete_at_k):
        value = function(ranking, evidence, k)
        assert value == function(once, evidence, k)
        assert value is not None
        assert 0 <= value <= 1 + 1e-12


# ------------------------------------------------------------------ denominators and reasons


def test_seed_example_five_sevenths() -> None:
    gold = {"q1": 1, "q2": 1, "q3": 2, "q4": 1, "q5": 1, "q6": 2, "q7": 1}
    questions = [make_question([[f"{q}-{i}"] for i in range(n)], name=q) for q, n in gold.items()]
    questions.append(Question("q8", answerability="unanswerable"))
    run = {q: {f"{q}-0": 2.0, "x": 1.0} for q in gold if q != "q5"} | {"q5": {"x": 1.0}, "q8": {"x": 1.0, "y": 0.5}}
    table = ranked(run_from_dicts(run), questions, ["recall@5"])
    assert table.defined("recall@5").tolist() == [1, 1, 0.5, 1, 0, 0.5, 1]
    assert table.mean("recall@5") == pytest.approx(5 / 7, abs=1e-15)


def test_absent_question_counts_as_zero_and_is_named() -> None:
    questions = [make_question([["d1"]], name="q1"), make_question([["d2"], ["d3"]], name="q2")]
    questions += [make_question([["d4"]], name="q3"), make_question([["d5"]], name="q4")]
    run = run_from_results(
        {
            "q2": Result((Hit("d2", "d2"), Hit("x", "x"))),
            "q1": Result((Hit("d1", "d1"), Hit("x", "x"))),
            "q4": Result(error="boom"),
        }
    )
    table = ranked(run, questions, ["recall@2", "judged@2"])
    assert table.values["recall@2"].tolist() == [1.0, 0.5, 0.0, 0.0]
    assert (table.missing, table.failed) == (("q3",), ("q4",))
    assert table.mean("recall@2") == 0.375
    dicts = score_dicts(
        {"q1": {"d1": 1}, "q2": {"d2": 1, "d3": 1}, "q3": {"d4": 1}},
        {"q1": {"d1": 2.0, "x": 1.0}, "q2": {"d2": 2.0, "x": 1.0}},
        ["recall@2"],
    )
    assert (dicts.mean("recall@2"), dicts.missing) == (0.5, ("q3",))


def test_grade_zero_and_negative_grades_are_no_gold() -> None:
    qrels = {"q1": {"d1": 1, "d2": 0, "d3": -1}, "q2": {"d4": 0}}
    run = {"q1": {"d2": 3.0, "d3": 2.0, "d1": 1.0}, "q2": {"d4": 1.0}}
    table = score_dicts(qrels, run, ["recall@2", "recall@3"])
    assert table.row(0)[0] == {"recall@2": 0.0, "recall@3": 1.0}
    assert table.row(1) == ({}, {})
    assert table.mean("recall@3") == 1.0


def test_nothing_to_average_has_a_reason() -> None:
    table = score_dicts({"q": {"a": 0}}, {"q": {"a": 1.0}}, ["recall@1"])
    assert (table.reason("recall@1"), table.mean("recall@1")) == ("no_eligible", None)
    assert score_dicts({}, {}, ["recall@1"]).reason("recall@1") == "no_eligible"


def test_one_question_with_alternatives_makes_the_mean_undefined() -> None:
    questions = [make_question([["a"]], name="q1"), make_question([["a", "b"]], name="q2")]
    run = run_from_dicts({"q1": {"a": 1.0}, "q2": {"b": 1.0}})
    table = ranked(run, questions, ["ndcg@5", "map", "recall@5"])
    assert table.row(0)[0] == {"ndcg@5": 1.0, "map": 1.0, "recall@5": 1.0}
    assert table.row(1) == (
        {"ndcg@5": None, "map": None, "recall@5": 1.0},
        {"ndcg@5": "or_groups_unsupported", "map": "or_groups_unsupported"},
    )
    assert (table.reason("ndcg@5"), table.mean("ndcg@5")) == ("or_groups_unsupported", None)
    first = np.array([True, False])
    assert (table.reason("ndcg@5", first), table.mean("ndcg@5", first)) == (None, 1.0)


def test_missing_question_with_alternatives_is_undefined_too() -> None:
    table = ranked(run_from_dicts({}), [make_question([["a", "b"]])], ["ndcg@5", "recall@5"])
    assert table.row(0) == ({"ndcg@5": None, "recall@5": 0.0}, {"ndcg@5": "or_groups_unsupported"})


def test_micro_counts_groups() -> None:
    questions = [make_question([["a"]], name="q1"), make_question([["b"], ["c", "x"], ["d"], ["e"]], name="q2")]
    table = ranked(run_from_dicts({"q1": {"a": 1.0}, "q2": {"b": 2.0, "x": 1.0}}), questions, ["recall@5", "hit@5"])
    assert table.micro("recall@5") == (3, 5)
    assert table.micro("recall@5", np.array([True, False])) == (1, 1)
    with pytest.raises(ConfigError):
        table.micro("hit@5")


def test_depth_is_an_error_when_asked_for_and_a_reason_when_a_pool_cut_it() -> None:
    hits = tuple(Hit(f"d{i // 2}#{i}", f"d{i // 2}", 9.0 - i) for i in range(6))  # 3 documents in 6 chunks
    q = make_question([["d0"], ["d2"]])
    run = run_from_results({"q": Result(hits, depth=6)})
    values, reasons = ranked(run, [q], ["recall@3", "recall@4", "mrr@4", "map@6", "r_precision"]).row(0)
    assert values == {
        "recall@3": 1.0,
        "recall@4": None,
        "mrr@4": None,
        "map@6": pytest.approx(5 / 6),
        "r_precision": 0.5,
    }
    assert reasons == {"recall@4": "depth_below_k", "mrr@4": "depth_below_k"}
    assert ranked(run, [q], ["recall@4"]).reason("recall@4") == "depth_below_k"
    with pytest.raises(MeasurementError) as caught:
        ranked(run, [q], ["recall@7"])
    assert (caught.value.code, caught.value.ids) == ("depth_below_k", ("depth=6", "k=7"))
    exhausted = run_from_results({"q": Result(hits, depth=6, exhausted=True)})
    assert ranked(exhausted, [q], ["recall@4"]).row(0) == ({"recall@4": 1.0}, {})
    unknown = run_from_results({"q": Result(hits)})
    assert ranked(unknown, [q], ["recall@40"]).row(0) == ({"recall@40": 1.0}, {})
    many = make_question([[f"d{i}"] for i in range(4)])
    assert ranked(run, [many], ["r_precision"]).row(0)[1] == {"r_precision": "depth_below_k"}
    with pytest.raises(MeasurementError, match="depth_below_k"):
        score_dicts({"q": {"a": 1}}, {"q": {"a": 1.0}}, ["recall@5"], depth=3)


# ------------------------------------------------------------------ levels


def test_levels_by_hand() -> None:
    """Chunks x1 x2 y1 x3 z1 in this order; gold documents y and z; K = 3."""
    hits = tuple(Hit(c, c[0], 9.0 - i) for i, c in enumerate(["x1", "x2", "y1", "x3", "z1"]))
    q = make_question([["y"], ["z"]])
    names = [f"{p}{n}@3" for p in ("", "slot_") for n in ("recall", "precision", "mrr", "ndcg")] + ["slot_map", "map"]
    values, _ = ranked(run_from_results({"q": Result(hits)}), [q], names).row(0)
    ideal = 1 + 1 / math.log2(3)
    assert values == pytest.approx(
        {
            "recall@3": 1.0,  # documents x y z
            "precision@3": 2 / 3,
            "mrr@3": 1 / 2,
            "ndcg@3": (1 / math.log2(3) + 1 / 2) / ideal,
            "slot_recall@3": 1 / 2,  # chunks x1 x2 y1: documents x y
            "slot_precision@3": 1 / 3,
            "slot_mrr@3": 1 / 2,  # y is the second distinct document
            "slot_ndcg@3": (1 / math.log2(3)) / ideal,
            "slot_map": (1 / 2 + 2 / 3) / 2,
            "map": (1 / 2 + 2 / 3) / 2,
        }
    )
    chunk = make_question([["y1"], ["z1"]])
    values, _ = ranked(run_from_results({"q": Result(hits)}), [chunk], ["chunk_recall@3", "chunk_mrr@3"]).row(0)
    assert values == pytest.approx({"chunk_recall@3": 1 / 2, "chunk_mrr@3": 1 / 3})


def test_slots_short_of_k_are_counted_in_chunks() -> None:
    hits = tuple(Hit(f"x{i}", "x", 9.0 - i) for i in range(3))
    run = run_from_results({"q": Result(hits, depth=3)})
    table = ranked(run, [make_question([["x"]])], ["slot_recall@3", "recall@3"])
    assert table.row(0) == ({"slot_recall@3": 1.0, "recall@3": None}, {"recall@3": "depth_below_k"})


def test_spans_stand_for_documents_and_merge() -> None:
    q = Question("q", gold=((Evidence("d1", 0, 5),), (Evidence("d1", 9, 12),), (Evidence("d2", 0, 3),)))
    table = ranked(run_from_dicts({"q": {"d1": 1.0}}), [q], ["recall@1", "slot_recall@1"])
    assert table.row(0)[0] == {"recall@1": 0.5, "slot_recall@1": 0.5}
    assert table.groups.tolist() == [2]
    with pytest.raises(ConfigError, match="span"):
        ranked(run_from_dicts({"q": {"d1": 1.0}}), [q], ["chunk_recall@1"])


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "name", ["recall", "recall@0", "recall@-1", "recall@2.5", "recall@", "recall@x", "r_precision@5"]
)
def test_bad_k_in_a_name(name: str) -> None:
    with pytest.raises(MeasurementError, match="bad_k"):
        parse_name(name)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'recall'"):
        parse_name("recal@5")
    with pytest.raises(ConfigError, match="precision"):
        parse_name("slots_recall@5")


@pytest.mark.parametrize("name", [*metric_names((1, 5), 100, ("L1", "L2", "L3")), "ndcg_exp@3", "mrr", "chunk_map"])
def test_names_read_as_they_are_written(name: str) -> None:
    assert parse_name(name).name == name
    assert isinstance(parse_name(name), Metric)


@pytest.mark.parametrize("function", [m.recall_at_k, m.precision_at_k, m.hit_at_k, m.mrr_at_k, m.ndcg_at_k])
def test_plain_door_refuses(function: Any) -> None:
    for k in (0, -1, 2.5, True, "5"):
        with pytest.raises(MeasurementError, match="bad_k"):
            function(["a"], ["a"], k)
    for retrieved in ([7], [""], [None], [("a", math.nan)], [("a", 1.0), ("b", None)], {"a": math.inf}):
        with pytest.raises(MeasurementError, match=r"bad_id|bad_score|mixed_scores"):
            function(retrieved, ["a"], 1)
    for evidence in ([7], [""], [["a", 7]], [None], [[]]):
        with pytest.raises(MeasurementError, match=r"bad_id|empty_group"):
            function(["a"], evidence, 1)
    with pytest.raises(TypeError):
        function("abc", ["a"], 1)
    with pytest.raises(TypeError):
        function(["a"], "abc", 1)
    assert function(["a"], [], 1) is None
    assert function(["a"], None, 1) is None
    assert function(["a"], {"a": 0}, 1) is None
    assert function([], ["a"], 1) == 0.0


def test_plain_door_takes_every_form() -> None:
    chunks = [Hit("d2#0", "d2", 0.1), Hit("d1#0", "d1", 0.9), Hit("d1#1", "d1", 0.8)]
    for retrieved in (["d1", "d2"], [("d2", 0.1), ("d1", 0.9)], {"d2": 0.1, "d1": 0.9}, chunks):
        for evidence in (
            ["d1", "d3"],
            {"d1", "d3"},
            {"d1": 2, "d3": 1},
            [Evidence("d1"), ("d3", "d4")],
            [{"d1"}, "d3"],
        ):
            assert m.recall_at_k(retrieved, evidence, 1) == 0.5
    assert m.recall_at_k(["b", "a"], ["a"], 1) == 0.0
    assert m.recall_at_k({"b": 1.0, "a": 1.0}, ["a"], 1) == 1.0
    assert m.recall_at_k({"b": 1.0, "a": 1.0}, ["a"], 1, ties="trec") == 0.0
    assert m.judged_at_k(["a", "x"], {"a": 0}, 5) == 0.5
    assert m.judged_at_k([], {"a": 0}, 5) is None


def test_dict_door_refuses() -> None:
    good = {"q": {"a": 1}}
    bad: list[tuple[str, tuple[str, ...], Any]] = [
        ("bad_id", ("7",), {"q": {7: 1.0}}),
        ("bad_id", ("",), {"q": {"": 1.0}}),
        ("bad_score", ("a",), {"q": {"a": math.nan, "b": 1.0}}),
        ("bad_score", ("b",), {"q": {"a": 1.0, "b": "2.0"}}),
        ("bad_score", ("b",), {"q": {"a": 1.0, "b": math.inf}}),
        ("mixed_scores", ("b",), {"q": {"a": 1.0, "b": None}}),
        ("unknown_question_ids", ("zz",), {"q": {}, "zz": {"a": 1.0}}),
    ]
    for code, ids, run in bad:
        with pytest.raises(MeasurementError) as caught:
            score_dicts(good, run, ["recall@1"])
        assert (caught.value.code, caught.value.ids) == (code, ids)
    for qrels in ({"": {"a": 1}}, {7: {"a": 1}}, {"q": {7: 1}}, {"q": {"": 1}}):
        with pytest.raises(MeasurementError, match="bad_id"):
            score_dicts(qrels, {}, ["recall@1"])  # type: ignore[arg-type]
    for grade in (1.5, "1", None, True):
        with pytest.raises(ConfigError, match="whole numbers"):
            score_dicts({"q": {"a": grade}}, {}, ["recall@1"])  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="chunks"):
        score_dicts(good, {}, ["slot_recall@1"])


def test_dict_door_without_scores_takes_the_order() -> None:
    table = score_dicts({"q": {"a": 1}}, {"q": {"b": None, "a": None}}, ["recall@1", "mrr"])  # type: ignore[dict-item]
    assert table.row(0)[0] == {"recall@1": 0.0, "mrr": 0.5}


def test_bulk_door_refuses() -> None:
    q = make_question([["a"]])
    with pytest.raises(MeasurementError, match="duplicate_question_ids"):
        ranked(run_from_dicts({}), [q, q], ["recall@1"])
    with pytest.raises(MeasurementError) as caught:
        ranked(run_from_dicts({"zz": {}}), [q], ["recall@1"])
    assert (caught.value.code, caught.value.ids) == ("unknown_question_ids", ("zz",))
    with pytest.raises(MeasurementError, match="unknown_question_ids"):
        ranked(run_from_results({"zz": Result(error="x")}), [q], ["recall@1"])


def test_integer_door_refuses() -> None:
    good: dict[str, Any] = {"ids": [[1, 2]], "scores": [[2.0, 1.0]], "gold_offsets": [0, 1], "gold_ids": [1]}

    def call(names: Sequence[str] = ("recall@1",), **change: Any) -> Any:
        return score_arrays(**{**good, **change}, names=names)

    assert call()["recall@1"].tolist() == [1.0]
    for change in ({"ids": [[-1, 2]]}, {"ids": [[1.5, 2.0]]}, {"gold_ids": [-1]}, {"gold_ids": ["a"]}):
        with pytest.raises(MeasurementError, match="bad_id"):
            call(**change)
    for scores in ([[1.0, math.nan]], [[math.inf, 1.0]], [[1.0, -math.inf]], [[math.nan, 1.0]]):
        for ties in ("asc", "trec"):
            with pytest.raises(MeasurementError, match="bad_score"):
                call(scores=scores, ties=ties)
    for change in (
        {"scores": [[1.0]]},
        {"gold_offsets": [0, 2]},
        {"gold_offsets": [0, 1, 1]},
        {"gold_offsets": [1, 0]},
        {"gold_grades": [1, 2]},
        {"ids": [1, 2], "scores": [2.0, 1.0]},
    ):
        with pytest.raises(ValueError, match=r"shape|offsets|gold|flat"):
            call(**change)
    for name in ("judged@1", "slot_recall@1"):
        with pytest.raises(ConfigError):
            call(names=[name])
    with pytest.raises(MeasurementError, match="depth_below_k"):
        call(names=["recall@3"], depth=2)
    assert call(gold_grades=[0])["recall@1"].tolist() == pytest.approx([math.nan], nan_ok=True)
    assert call(gold_offsets=[0, 3], gold_ids=[1, 1, 5])["recall@1"].tolist() == [0.5]


def test_scores_too_large_for_float32_are_a_tie_under_trec_only() -> None:
    run = run_from_dicts({"q": {"a": 1e300, "b": 1e299}})
    q = make_question([["a"]])
    assert ranked(run, [q], ["recall@1"]).row(0)[0] == {"recall@1": 1.0}
    assert ranked(run, [q], ["recall@1"], ties="trec").row(0)[0] == {"recall@1": 0.0}


def test_empty_run_and_no_names() -> None:
    q = make_question([["a"]])
    assert ranked(run_from_dicts({}), [q], ["recall@5"]).row(0) == ({"recall@5": 0.0}, {})
    assert ranked(run_from_dicts({}), [], ["recall@5"]).mean("recall@5") is None
    assert ranked(run_from_dicts({"q": {"a": 1.0}}), [q], []).row(0) == ({}, {})


def test_memory_stays_bounded() -> None:
    rng = np.random.default_rng(0)
    n, width = 20_000, 100
    ids = (rng.integers(0, 10**6, (n, 1)) + 3 * np.arange(width)).astype(np.int32)
    scores = rng.random((n, width))
    call = lambda: score_arrays(  # noqa: E731
        ids, scores, np.arange(n + 1), ids[:, 5].copy(), ["recall@1", "recall@5", "ndcg@10", "mrr"], threads=2
    )
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 2**20, f"{peak / 2**20:.1f} MB beside {ids.nbytes / 2**20 + scores.nbytes / 2**20:.0f} MB input"


# ------------------------------------------------------------------ judged, ties, worked cases


def test_judged_mean_is_over_questions_that_showed_something() -> None:
    qrels = {"q1": {"a": 1, "b": 0}, "q2": {"a": 1}, "q3": {"c": 1}}
    run = {"q1": {"a": 3.0, "b": 2.0, "x": 1.0, "y": 0.5}, "q2": {}}
    table = score_dicts(qrels, run, ["judged@4"])
    assert table.row(0)[0] == {"judged@4": 0.5}
    assert table.row(1)[1] == table.row(2)[1] == {"judged@4": "n_zero"}
    assert (table.reason("judged@4"), table.mean("judged@4")) == (None, 0.5)
    columns = ranked(run_from_dicts(run), [Question(i, grades=g) for i, g in qrels.items()], ["judged@4"])
    assert columns.row(0) == table.row(0)
    assert columns.row(2) == table.row(2)


def permuted(row: Mapping[str, float]) -> list[list[str]]:
    """All rankings that differ only in the order of equal scores."""
    by_score = [[i for i in row if row[i] == s] for s in sorted(set(row.values()), reverse=True)]
    return [
        list(itertools.chain.from_iterable(orders))
        for orders in itertools.product(*(itertools.permutations(g) for g in by_score))
    ]


small = st.dictionaries(st.sampled_from(POOL[:8]), st.sampled_from([0.0, 1.0, 2.0]), max_size=5)


@settings(deadline=None)
@given(small, st.dictionaries(st.sampled_from(POOL[:8]), st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 5))
def test_tie_range_is_what_listing_all_orders_gives(row: dict[str, float], grades: dict[str, int], k: int) -> None:
    kinds = ("recall", "complete", "precision", "hit", "mrr", "ndcg", "ndcg_exp")
    groups = [[i] for i in grades]
    found = tie_range(run_from_dicts({"q": row}), [make_question(groups, grades)], [f"{n}@{k}" for n in kinds])
    every = [plain(order, groups, grades, k) for order in permuted(row)]
    for kind in kinds:
        name = f"{kind}@{k}"
        assert found.low[name][0] == pytest.approx(min(v[kind] for v in every), abs=1e-12), name
        assert found.high[name][0] == pytest.approx(max(v[kind] for v in every), abs=1e-12), name
        assert found.low[name][0] - 1e-12 <= found.values[name][0] <= found.high[name][0] + 1e-12


@settings(deadline=None)
@given(
    small,
    st.lists(st.lists(st.sampled_from(POOL[:8]), min_size=1, max_size=3, unique=True), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_tie_range_with_alternatives(row: dict[str, float], groups: Groups, k: int) -> None:
    groups = distinct_groups(groups)
    kinds = ("recall", "complete", "precision", "hit", "mrr")
    found = tie_range(run_from_dicts({"q": row}), [make_question(groups)], [f"{n}@{k}" for n in kinds])
    every = [plain(order, groups, {}, k) for order in permuted(row)]
    for kind in kinds:
        name = f"{kind}@{k}"
        assert found.low[name][0] == pytest.approx(min(v[kind] for v in every), abs=1e-12), name
        assert found.high[name][0] == pytest.approx(max(v[kind] for v in every), abs=1e-12), name


def test_tie_range_counts_and_refuses() -> None:
    questions = [make_question([["b"]], name="q1"), make_question([["b"]], name="q2"), Question("u")]
    run = run_from_dicts({"q1": {"a": 1.0, "b": 1.0}, "q2": {"a": 1.0, "b": 2.0}, "u": {"a": 1.0, "b": 1.0}})
    found = tie_range(run, questions, ["recall@1"])
    assert found.tied("recall@1") == 1
    assert np.isnan(found.low["recall@1"][2])
    for name in ("map", "r_precision", "slot_recall@1", "judged@1"):
        with pytest.raises(ConfigError):
            tie_range(run, questions, [name])
    chunks = run_from_results({"q1": Result((Hit("x", "a", 1.0), Hit("y", "b", 1.0), Hit("z", "b", 0.5)))})
    assert tie_range(chunks, questions, ["recall@1"]).high["recall@1"][0] == 1.0
    close = run_from_dicts({"q1": {"b": 0.1, "a": 0.1000000001}})
    assert tie_range(close, questions, ["recall@1"]).tied("recall@1") == 0
    assert tie_range(close, questions, ["recall@1"], ties="trec").tied("recall@1") == 1


def test_tie_range_of_very_many_shared_alternatives_is_an_outer_bound() -> None:
    ids = [f"d{i:02d}" for i in range(24)]
    groups = [[ids[i], ids[(i + 1) % 24]] for i in range(24)]  # every id serves two groups
    found = tie_range(run_from_dicts({"q": dict.fromkeys(ids, 1.0)}), [make_question(groups)], ["recall@12"])
    assert found.high["recall@12"][0] == 1.0  # every second id serves all groups
    assert 0 < found.low["recall@12"][0] <= 13 / 24  # twelve neighbours serve 13 groups: never narrower than that


EXTRA = json.loads((Path(__file__).parent / "data" / "extra_cases_metrics.json").read_text(encoding="utf-8"))


def judged(q: Any, hits: Any, k: int) -> dict[str, Any]:
    name = f"chunk_judged@{k}"
    run = run_from_results({q["id"]: Result(tuple(hit(h) for h in hits))})
    values, reasons = ranked(run, [question(q)], [name]).row(0)
    return {"judged": values[name], "reason": reasons.get(name)}


def ends(q: Any, hits: Any, k: int) -> dict[str, Any]:
    run = run_from_results({q["id"]: Result(tuple(hit(h) for h in hits))})
    out: dict[str, Any] = {}
    for kind in ("recall", "complete", "precision", "hit", "mrr", "ndcg"):
        name = f"chunk_{kind}@{k}"
        found = tie_range(run, [question(q)], [name])
        three = [float(found.low[name][0]), float(found.values[name][0]), float(found.high[name][0])]
        out[kind] = None if math.isnan(three[1]) else three
    return out


def depth(q: Any, hits: Any, depth: int, exhausted: bool, ks: list[int]) -> dict[str, Any]:
    run = run_from_results({q["id"]: Result(tuple(hit(h) for h in hits), depth=depth, exhausted=exhausted)})
    values, reasons = ranked(run, [question(q)], [f"recall@{k}" for k in ks]).row(0)
    return {**values, **{f"reason@{k}": reasons.get(f"recall@{k}") for k in ks}}


@pytest.mark.parametrize("case", EXTRA, ids=lambda c: c["id"])
def test_worked_cases_of_our_own(case: dict[str, Any]) -> None:
    check(case["expect"], {"judged": judged, "tie_range": ends, "depth": depth}[case["fn"]](**case["input"]))


def test_many_questions_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    results, questions = {}, []
    for q in range(40):
        hits = tuple(Hit(f"d{d % 7}#{d}", f"d{d % 7}", float(s)) for d, s in enumerate(rng.permutation(20)))
        results[f"q{q}"] = Result(hits)
        questions.append(make_question([[f"d{d}"] for d in rng.permutation(9)[: q % 4]], name=f"q{q}"))
    run = run_from_results(results)
    names = [*metric_names((1, 5), 20, ("L1", "L2")), "ndcg_exp@5"]
    whole = ranked(run, questions, names)
    monkeypatch.setattr(m, "_QUESTIONS_PER_PART", 7)
    parts = ranked(run, questions, names)
    for name in names:
        np.testing.assert_array_equal(whole.values[name], parts.values[name])
        assert np.isnan(whole.values[name]).sum() == 10


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "_ROWS_PER_PART", 4)
    ids = np.tile(np.arange(4), (8, 1))
    scores = np.tile([4.0, 3.0, 2.0, 1.0], (8, 1))
    scores[5, 1] = np.nan
    ids[5, 1] = 9
    with pytest.raises(MeasurementError) as caught:
        score_arrays(ids, scores, np.arange(9), np.zeros(8, np.int64), ["recall@1"], threads=2)
    assert (caught.value.code, caught.value.ids) == ("bad_score", ("9",))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [8, 64, 1 << 20])
def test_blocks_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, rows: int, threads: int) -> None:
    """Ragged and even rankings, sorted or not, with ties and copies, in blocks of any size: the plain door's values."""
    rng = np.random.default_rng(3)
    monkeypatch.setattr(m, "_ROWS_PER_PART", 3 * rows)
    monkeypatch.setattr("denominator.places._ROWS_PER_BLOCK", rows)
    names = ["recall@2", "precision@3", "hit@1", "mrr", "ndcg@5", "map", "r_precision"]
    for lengths in (np.full(60, 12), rng.integers(0, 30, 60), np.r_[np.ones(59, np.int64), 300]):
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = rng.integers(0, 40, offsets[-1]).astype(np.int32)
        scores = rng.integers(0, 25, offsets[-1]) / 4
        size = rng.integers(0, 12, 60)
        gold = np.concatenate([rng.choice(60, n, replace=False) for n in size])
        gold_offsets = np.concatenate([[0], np.cumsum(size)])
        values = score_arrays(ids, scores, gold_offsets, gold, names, offsets=offsets, threads=threads)
        for i in range(60):
            low, high = offsets[i], offsets[i + 1]
            order = sorted(range(low, high), key=lambda h: (-scores[h], ids[h]))
            ranking = list(dict.fromkeys(int(ids[h]) for h in order))
            wanted = set(gold[gold_offsets[i] : gold_offsets[i + 1]].tolist())
            got = {name: float(values[name][i]) for name in names}
            if not wanted:
                assert all(np.isnan(v) for v in got.values())
                continue
            places = [p for p, d in enumerate(ranking, 1) if d in wanted]
            assert got["recall@2"] == sum(p <= 2 for p in places) / len(wanted)
            assert got["precision@3"] == pytest.approx(sum(p <= 3 for p in places) / 3, abs=1e-15)
            assert got["hit@1"] == float(bool(places) and places[0] == 1)
            assert got["mrr"] == (1 / places[0] if places else 0.0)
            assert got["map"] == pytest.approx(sum((n + 1) / p for n, p in enumerate(places)) / len(wanted), abs=1e-12)
            assert got["r_precision"] == sum(p <= len(wanted) for p in places) / len(wanted)
            ideal = sum(1 / np.log2(p + 1) for p in range(1, min(len(wanted), 5) + 1))
            assert got["ndcg@5"] == pytest.approx(sum(1 / np.log2(p + 1) for p in places if p <= 5) / ideal, abs=1e-12)


def test_a_gold_code_too_large_for_the_type_of_the_ids_is_no_hit() -> None:
    ids = np.array([[7, 3]], np.int32)
    gold = np.array([2**32 + 7], np.int64)
    assert score_arrays(ids, np.array([[2.0, 1.0]]), [0, 1], gold, ["recall@2"])["recall@2"].tolist() == [0.0]


def test_r_precision_needs_as_many_hits_as_there_is_gold() -> None:
    qrels = {"deep": {"a": 1, "b": 1, "c": 1}, "short": {"a": 1, "b": 1, "c": 1}, "few": {"a": 1}}
    run = {"deep": {"x": 3.0, "a": 2.0}, "short": {"a": 1.0}, "few": {"a": 2.0, "x": 1.0}}
    table = score_dicts(qrels, run, ["r_precision"], depth=2)
    assert table.row(0) == ({"r_precision": None}, {"r_precision": "depth_below_k"})
    assert table.row(1)[0]["r_precision"] == pytest.approx(1 / 3)  # one hit of two that were asked for: all there is
    assert table.row(2)[0]["r_precision"] == 1.0
    assert table.reason("r_precision") == "depth_below_k"
