"""Canonical order against a plain sort of tuples, and the guards around K and depth."""

from __future__ import annotations

import dataclasses
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denominator.errors import MeasurementError
from denominator.ranking import (
    blocks,
    canonical,
    check_k,
    cut,
    cut_short,
    document_units,
    level_guard,
    order_of,
    run_from_dicts,
    run_from_results,
    slots_of_documents,
    to_documents,
    top,
)
from denominator.types import Hit, Result, Run, Ties, Units


def f32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]


def expected_order(hits: list[Hit], ties: str, key: str = "id") -> list[str]:
    """The rule in its plainest form: sort twice, keep the first of each."""
    if all(h.score is None for h in hits):
        return list(dict.fromkeys(getattr(h, key) for h in hits))
    pairs = [(getattr(h, key), f32(h.score) if ties == "trec" else h.score) for h in hits]
    pairs.sort(key=lambda p: p[0], reverse=ties == "trec")
    pairs.sort(key=lambda p: -p[1])
    return list(dict.fromkeys(i for i, _ in pairs))


ids = st.sampled_from(["a", "b", "c", "10", "9", "Z", "é", "a#1", "数"])
scores = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 0.1, 0.1000000001]), st.floats(-1e6, 1e6))
hits_strategy = st.one_of(
    st.lists(st.builds(Hit, id=ids, doc=st.sampled_from(["d1", "d2", "d3"]), score=scores), max_size=15),
    st.lists(st.builds(Hit, id=ids, doc=st.sampled_from(["d1", "d2", "d3"]), score=st.none()), max_size=15),
)


def distinct_docs(hits: list[Hit]) -> list[Hit]:
    """One document per chunk id, as in any real index."""
    doc: dict[str, str] = {}
    return [dataclasses.replace(h, doc=doc.setdefault(h.id, h.doc)) for h in hits]


@given(hits_strategy, st.sampled_from(["asc", "trec"]))
def test_order_is_the_plain_sort(hits: list[Hit], ties: Ties) -> None:
    assert [h.id for h in order_of(hits, ties)] == expected_order(hits, ties)


@given(hits_strategy, st.sampled_from(["asc", "trec"]), st.integers(1, 6))
def test_top_at_every_level(hits: list[Hit], ties: Ties, k: int) -> None:
    hits = distinct_docs(hits)
    doc = {h.id: h.doc for h in hits}
    chunks = expected_order(hits, ties)
    assert top(hits, k, "L3", ties) == chunks[:k]
    assert top(hits, k, "L2", ties) == list(dict.fromkeys(doc[i] for i in chunks[:k]))
    assert top(hits, k, "L1", ties) == expected_order(hits, ties, "doc")[:k]


@given(hits_strategy, st.randoms(use_true_random=False))
def test_order_of_lines_changes_nothing_where_there_are_scores(hits: list[Hit], random: object) -> None:
    if any(h.score is None for h in hits):
        return
    shuffled = list(hits)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [h.id for h in order_of(shuffled)] == [h.id for h in order_of(hits)]


@given(st.lists(hits_strategy, max_size=6), st.sampled_from(["asc", "trec"]))
def test_columns_agree_with_records_for_many_questions(rankings: list[list[Hit]], ties: Ties) -> None:
    scored = [[h for h in r if h.score is not None] for r in rankings]
    run = run_from_results({f"q{i}": Result(tuple(r)) for i, r in enumerate(scored)})
    done = canonical(run, ties)
    for i, hits in enumerate(scored):
        rows = slice(done.offsets[i], done.offsets[i + 1])
        assert [done.units.ids[u] for u in done.unit[rows]] == expected_order(hits, ties)
    assert canonical(done, ties) is done  # recognised, not sorted again
    assert done.question_ids == run.question_ids


def test_a_canonical_run_is_given_back_as_it_is() -> None:
    run = run_from_dicts({"q1": {"a": 3.0, "b": 2.0}, "q2": {"a": 1.0, "b": 1.0, "c": 0.5}})
    assert canonical(run) is run
    assert to_documents(run) is run
    assert canonical(run, "trec") is not run


def test_many_blocks_with_ragged_rows_and_copies() -> None:
    rng = np.random.default_rng(5)
    results = {}
    for q in range(400):
        n = int(rng.integers(0, 9)) if q % 7 else 1500
        results[f"q{q}"] = Result(
            tuple(Hit(f"c{rng.integers(0, 40)}", "d", float(rng.integers(0, 5))) for _ in range(n))
        )
    run = run_from_results(results)
    done = canonical(run)
    for i, result in enumerate(results.values()):
        rows = slice(done.offsets[i], done.offsets[i + 1])
        assert [done.units.ids[u] for u in done.unit[rows]] == expected_order(list(result.hits), "asc")


def test_blocks_cover_all_questions_once() -> None:
    offsets = np.array([0, 5, 5, 5, 12, 13, 40, 40])
    for rows in (1, 5, 6, 13, 1000):
        parts = blocks(offsets, rows)
        assert [i for a, b in parts for i in range(a, b)] == list(range(7))


def test_ties_between_documents_go_by_the_document_id() -> None:
    hits = [Hit("a", "d2", 1.0), Hit("b", "d1", 1.0), Hit("z", "d1", 0.2)]
    run = to_documents(run_from_results({"q": Result(tuple(hits))}))
    assert [run.units.ids[u] for u in run.unit] == ["d1", "d2"]
    assert run.scores is not None
    assert run.scores.tolist() == [1.0, 1.0]


def test_slots_count_chunks_and_ranks_count_documents() -> None:
    hits = [Hit("x1", "x", 5), Hit("x2", "x", 4), Hit("y1", "y", 3), Hit("x3", "x", 2), Hit("z1", "z", 1)]
    documents, slot = slots_of_documents(canonical(run_from_results({"q": Result(tuple(hits))})))
    assert [documents.units.ids[u] for u in documents.unit] == ["x", "y", "z"]
    assert slot.tolist() == [1, 3, 5]


def test_two_units_with_one_id_are_one_hit() -> None:
    hits = {"q1": Result((Hit("a", "d1", 1.0), Hit("b", "d1", 0.9))), "q2": Result((Hit("a", "d2", 1.0),))}
    both = run_from_results({**hits, "q3": Result((Hit("a", "d1", 0.5), Hit("a", "d2", 0.7), Hit("b", "d1", 0.6)))})
    done = canonical(both)
    rows = slice(done.offsets[2], done.offsets[3])
    assert [done.units.ids[u] for u in done.unit[rows]] == ["a", "b"]


@pytest.mark.parametrize("k", [0, -1, 2.5, 5.0, True, False, "5", None, math.nan])
def test_bad_k(k: object) -> None:
    with pytest.raises(MeasurementError) as caught:
        check_k(k)
    assert (caught.value.code, caught.value.ids) == ("bad_k", (str(k),))


def test_numpy_integers_are_whole_numbers() -> None:
    assert check_k(np.int64(3)) == 3


def test_scores_on_some_hits_only() -> None:
    with pytest.raises(MeasurementError) as caught:
        run_from_results({"q": Result((Hit("a", "a", 1.0), Hit("b", "b"), Hit("c", "c")))})
    assert (caught.value.code, caught.value.ids) == ("mixed_scores", ("b", "c"))
    with pytest.raises(MeasurementError, match="mixed_scores"):
        run_from_dicts({"q": {"a": 1.0, "b": None}})  # type: ignore[dict-item]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, "1.0"])
def test_scores_that_are_no_finite_numbers(score: object) -> None:
    with pytest.raises(MeasurementError) as caught:
        run_from_results({"q": Result((Hit("a", "a", 1.0), Hit("b", "b", score)))})  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.ids) == ("bad_score", ("b",))
    with pytest.raises(MeasurementError, match="bad_score"):
        run_from_dicts({"q": {"a": 1.0, "b": score}})  # type: ignore[dict-item]


def test_non_finite_scores_in_columns() -> None:
    run = run_from_dicts({"q": {"a": 2.0, "b": 1.0}})
    bad = dataclasses.replace(run, scores=np.array([2.0, np.nan]))
    with pytest.raises(MeasurementError) as caught:
        canonical(bad)
    assert (caught.value.code, caught.value.ids) == ("bad_score", ("b",))


@pytest.mark.parametrize("bad", ["", 7, None])
def test_ids_are_not_converted(bad: object) -> None:
    with pytest.raises(MeasurementError, match="bad_id"):
        run_from_results({"q": Result((Hit(bad, "d", 1.0),))})  # type: ignore[arg-type]
    with pytest.raises(MeasurementError, match="bad_id"):
        run_from_results({"q": Result((Hit("c", bad, 1.0),))})  # type: ignore[arg-type]
    with pytest.raises(MeasurementError, match="bad_id"):
        run_from_results({bad: Result()})  # type: ignore[dict-item]
    with pytest.raises(MeasurementError, match="bad_id"):
        run_from_dicts({"q": {bad: 1.0}})  # type: ignore[dict-item]
    with pytest.raises(MeasurementError, match="bad_id"):
        run_from_dicts({bad: {}})  # type: ignore[dict-item]


def test_results_become_columns() -> None:
    run = Run.from_results(
        {
            "q2": Result((Hit("c1", "d1", 0.5, 0, 9, header_tokens=3), Hit("c2", "d1", 0.4, tokens=7)), depth=5),
            "q1": Result(error="boom", depth=5),
            "q3": Result((), depth=9, exhausted=True, confidence=0.25),
        }
    )
    assert (run.question_ids, run.offsets.tolist(), run.depth) == (("q2", "q3"), [0, 2, 2], 5)
    assert dict(run.errors) == {"q1": "boom"}
    assert run.exhausted.tolist() == [True, True]  # two hits where five were asked for: the index had no more
    assert run.units.start.tolist() == [0, -1]
    assert run.units.tokens.tolist() == [-1, 7]
    assert run.units.header_tokens.tolist() == [3, 0]
    assert run.confidence is not None
    assert np.isnan(run.confidence[0])
    assert run.confidence[1] == 0.25
    assert Run.from_results({"q": Result()}).confidence is None
    assert not Run.from_results({"q": Result(no_confidence=True)}).has_confidence


def test_an_empty_run_and_empty_rankings() -> None:
    for run in (run_from_results({}), run_from_results({"q": Result()}), run_from_dicts({"a": {}, "b": {}})):
        assert canonical(run) is run
        assert len(to_documents(run).unit) == 0
        assert len(cut(run, 3).unit) == 0
        assert len(slots_of_documents(run)[1]) == 0


def test_no_scores_anywhere_keeps_the_order_and_drops_copies() -> None:
    run = canonical(run_from_results({"q": Result(tuple(Hit(i, i) for i in "babca"))}))
    assert [run.units.ids[u] for u in run.unit] == ["b", "a", "c"]


def test_cut_keeps_the_first_rows_of_each_question() -> None:
    run = cut(run_from_dicts({"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"a": 1.0}, "q3": {}}), 2)
    assert run.offsets.tolist() == [0, 2, 3, 3]
    assert [run.units.ids[u] for u in run.unit] == ["a", "b", "a"]


def test_cut_short_knows_the_pool() -> None:
    full, few = tuple(Hit(f"c{i}", "d", 9.0 - i) for i in range(3)), (Hit("c0", "d", 1.0),)
    run = run_from_results(
        {
            "cut": Result(full, depth=3),
            "exhausted": Result(full, depth=3, exhausted=True),
            "few": Result(few, depth=3),
        }
    )
    assert cut_short(run).tolist() == [True, False, False]
    assert not cut_short(run_from_results({"q": Result(full)})).any()  # unknown depth passes


def test_guard_knows_settings_below_the_chunker() -> None:
    for level in ("L2", "L3", "L4"):
        with pytest.raises(MeasurementError, match="level_not_comparable"):
            level_guard(["chunker.size"], level)
        level_guard(["embedder"], level)
    level_guard(["chunker"], "L1")


def test_unknown_ties_rule() -> None:
    with pytest.raises(ValueError, match="trec"):
        canonical(run_from_dicts({}), "desc")  # type: ignore[arg-type]


def test_document_units_are_their_own_documents() -> None:
    units = document_units(["a", "b"])
    assert units.ids == units.docs == ("a", "b")
    assert units.doc.tolist() == [0, 1]
    assert isinstance(units, Units)


def test_ids_with_zeros_stay_apart() -> None:
    hits = [Hit("001", "001", 1.0), Hit("1", "1", 1.0)]
    assert [h.id for h in order_of(hits)] == ["001", "1"]
