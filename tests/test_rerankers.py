from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from denominator.cache import Cache
from denominator.embedders import BM25, Hybrid, LateInteraction, Static
from denominator.embedders import Callable as OwnRetriever
from denominator.errors import ConfigError
from denominator.rerankers import MMR, BM25Rescore, Callable, Chain, MaxSim, Mix, NoRerank, likeness
from denominator.retrievers.static import static_model
from denominator.retrievers.threads import threads_limited
from tests.test_retrievers import CORPUS, QUESTIONS, make_bench, rankings

LENGTHS = Callable(lambda q, texts: [len(t) for t in texts])
PARTS = (
    NoRerank(),
    Mix(),
    Mix(weight=0.2),
    MaxSim(),
    MaxSim(64),
    LENGTHS,
    BM25Rescore(),
    MMR(),
    MMR(0.3, "dense"),
    Chain(BM25Rescore(), MMR(), LENGTHS),
)


@pytest.mark.parametrize("first", [BM25(), Static(), Hybrid()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("part", PARTS, ids=lambda p: type(p).__name__)
def test_every_reranker_permutes_its_pool(part, first):
    bench = make_bench(CORPUS, QUESTIONS, depth=7)
    before, _ = bench.ranked(first)
    after = part.rerank(bench, before)
    for a, b in zip(rankings(bench, before), rankings(bench, after), strict=True):
        assert sorted(d for d, _ in a) == sorted(d for d, _ in b)
        assert b == sorted(b, key=lambda h: (-h[1], h[0]))
    assert after.depth == before.depth
    assert np.array_equal(after.exhausted, before.exhausted)


def test_mix_by_hand_has_both_sides_whatever_the_first_stage():
    everything = make_bench(CORPUS, QUESTIONS[:4], depth=40)
    lexical, dense = (rankings(everything, everything.ranked(p)[0]) for p in (BM25(), Static()))
    for first in (BM25(), Static(), Hybrid()):
        bench = make_bench(CORPUS, QUESTIONS[:4], depth=8)
        before, _ = bench.ranked(first)
        after = rankings(bench, Mix(weight=0.6).rerank(bench, before))
        for i, pool in enumerate(rankings(bench, before)):
            names = [d for d, _ in pool]

            def scaled(scores, names=names):
                values = [scores.get(d, 0.0) for d in names]
                low, high = min(values), max(values)
                return {d: (v - low) / (high - low) if high > low else 0.0 for d, v in zip(names, values, strict=True)}

            left, right = scaled(dict(lexical[i])), scaled(dict(dense[i]))
            expected = {d: 0.4 * left[d] + 0.6 * right[d] for d in names}
            assert [d for d, _ in after[i]] == sorted(names, key=lambda d: (-round(expected[d], 6), d))
            assert dict(after[i]) == pytest.approx(expected, abs=2e-6)


def test_mix_keeps_the_first_stages_confidence():
    bench = make_bench(CORPUS, QUESTIONS)
    for first, expected in ((BM25(), None), (Static(), None), (Hybrid(confidence="none"), False)):
        before, _ = bench.ranked(first)
        after = Mix().rerank(bench, before)
        assert after.has_confidence is before.has_confidence
        if expected is None:
            tops = [
                before.scores[a] if b > a else math.nan
                for a, b in zip(before.offsets, before.offsets[1:], strict=False)
            ]
            wanted = tops if before.confidence is None else before.confidence
            assert np.array_equal(after.confidence, wanted, equal_nan=True)


def brute_maxsim(bench, dimensions=256):
    """Σ idf·max cosine / Σ idf with plain loops over float64 vectors (not rounded: equal to about 1e-4)."""
    model = static_model()
    table = model.table[:, :dimensions].astype(np.float64)

    def tokens(text):
        _, ids = model.token_ids([text])
        return ids.tolist()

    chunks = [set(tokens(bench.table.indexed(i))) for i in range(len(bench.table))]
    out = []
    for text in bench.queries.texts:
        question, scores = tokens(text), {}
        for i, chunk in enumerate(chunks):
            total = norm = 0.0
            for t in question:
                df = sum(t in c for c in chunks)
                idf = math.log(1 + (len(chunks) - df + 0.5) / (df + 0.5))
                cosines = [
                    table[t] @ table[u] / (np.linalg.norm(table[t]) * np.linalg.norm(table[u])) for u in sorted(chunk)
                ]
                total, norm = total + idf * max(cosines), norm + idf
            scores[bench.table.units.docs[i]] = total / norm
        out.append(scores)
    return out


def test_maxsim_by_plain_loops():
    bench = make_bench(CORPUS[:12], QUESTIONS[:3])
    before, _ = bench.ranked(Static())
    after = rankings(bench, MaxSim().rerank(bench, before))
    for hits, expected in zip(after, brute_maxsim(bench), strict=True):
        assert dict(hits) == pytest.approx(expected, abs=5e-4)
        assert all(abs(s) < 1 + 1e-3 for _, s in hits)  # rounded vectors are not quite of length 1


def test_maxsim_of_the_same_text_is_one():
    bench = make_bench(["pump valve filter", "cable sensor"], ["pump valve filter"])
    before, _ = bench.ranked(Static())
    assert rankings(bench, MaxSim().rerank(bench, before))[0][0] == ("d0", pytest.approx(1.0, abs=2e-3))


def test_maxsim_bits_do_not_depend_on_tables_or_threads(monkeypatch):
    from denominator.retrievers import late

    found = []
    for limit, tokens, threads in ((10**9, 256, 1), (10**9, 3, 2), (0, 1, 1), (0, 256, 2)):
        monkeypatch.setattr(late, "POOL_TOKENS", limit)
        monkeypatch.setattr(late, "TOKENS_PER_BLOCK", tokens)
        bench = make_bench(CORPUS, QUESTIONS, cache=Cache(None))
        before, _ = bench.ranked(Static())
        with threads_limited(threads):
            found.append(MaxSim().rerank(bench, before))
    for other in found[1:]:
        assert other.scores.tobytes() == found[0].scores.tobytes()
        assert other.unit.tobytes() == found[0].unit.tobytes()


def test_maxsim_sums_stay_exact():
    """The rounding's promise: no sum in the product of tables can reach 2²⁴, where float32 stops counting by ones."""
    from denominator.retrievers.late import TokenSpace

    every = np.arange(0, 32_000, 7)
    for dimensions in (1, 64, 256):
        vectors = TokenSpace(dimensions).vectors(every).astype(np.float64)
        assert np.array_equal(vectors, np.rint(vectors))
        assert (np.abs(vectors) @ np.abs(vectors).T).max() < 2**24


def test_one_question_alone_is_ranked_as_among_all():
    """Latency is measured on the path for one question: it must do the same work."""
    bench = make_bench(CORPUS, QUESTIONS, depth=9)
    for first in (BM25(), Static(), Hybrid()):
        before, _ = bench.ranked(first)
        for part in (NoRerank(), Mix(), MaxSim()):
            after = part.rerank(bench, before)
            for i, text in enumerate(QUESTIONS):
                alone = bench.alone(text)
                single = alone.opened(first).search(alone, alone.queries)
                assert rankings(alone, single) == [rankings(bench, before)[i]]
                assert rankings(alone, part.rerank(alone, before.one(i))) == [rankings(bench, after)[i]]


def test_f24_a_reranker_can_rescue_only_what_is_in_the_pool():
    texts = {f"d{i:02d}": f"text number {i}" for i in range(1, 13)}
    first = OwnRetriever(lambda q, k: sorted(texts)[:k])
    rescue = Callable(lambda q, texts: [1.0 if t == "text number 12" else 0.0 for t in texts])
    tops = {}
    for pool in (12, 10):
        bench = make_bench(texts, ["x"], depth=pool)
        before, _ = bench.ranked(first)
        tops[pool] = [d for d, _ in rankings(bench, rescue.rerank(bench, before))[0]][:10]
        assert "d12" not in [d for d, _ in rankings(bench, before)[0]][:10]
    assert tops[12][0] == "d12"
    assert "d12" not in tops[10]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda q, t: [1.0], "8 texts were given"),
        (lambda q, t: [float("nan")] * len(t), "not a finite number"),
        (lambda q, t: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["short", "nan", "raises"],
)
def test_own_reranker_failures_are_failed_questions(function, says):
    bench = make_bench(CORPUS, ["pump", "zebra"], depth=8)
    before, _ = bench.ranked(BM25())
    after = Callable(function, name="mine").rerank(bench, before)
    assert list(after.errors) == [0]  # the question without candidates is not asked about
    assert says in after.errors[0]
    assert "reranker mine" in after.errors[0]
    assert np.diff(after.offsets).tolist() == [0, 0]


def test_own_reranker_sees_the_text_as_sent():
    bench = make_bench({"a": "pump text"}, ["pump"], titles={"a": "Title"})
    before, _ = bench.ranked(BM25())
    seen = []
    Callable(lambda q, t: seen.append((q, t)) or [1.0]).rerank(bench, before)
    assert seen == [("pump", ["pump text"])]


@pytest.mark.parametrize(
    "make",
    [lambda: Mix(weight=1.5), lambda: Mix(weight=True), lambda: MaxSim(0), lambda: MaxSim(300), lambda: Callable(3)],
)
def test_settings_are_checked(make):
    with pytest.raises(ConfigError, match="reranker"):
        make()


def test_a_hybrid_cannot_be_a_side():
    bench = make_bench(CORPUS, ["pump"])
    with pytest.raises(ConfigError, match="cannot be one side of a mix"):
        Mix(dense=Hybrid()).rerank(bench, bench.ranked(BM25())[0])


# Late interaction as a first stage


def test_late_interaction_is_maxsim_of_every_chunk(monkeypatch):
    """The plain loops of MaxSim over the whole corpus, and the reranker's own bits where both score a pair."""
    from denominator.retrievers import late

    asked = QUESTIONS[:5]
    loops = brute_maxsim(make_bench(CORPUS, asked))
    for depth, block in ((40, 8_000_000), (7, 8_000_000), (7, 50)):
        monkeypatch.setattr(late, "SCORES_PER_BLOCK", block)
        bench = make_bench(CORPUS, asked, depth=depth)
        ranked, facts = bench.ranked(LateInteraction())
        assert facts["index_bytes"] > 0
        for hits, expected in zip(rankings(bench, ranked), loops, strict=True):
            everything = sorted(expected.values(), reverse=True)
            assert len(hits) == depth
            assert hits == sorted(hits, key=lambda h: (-h[1], h[0]))
            assert [s for _, s in hits] == pytest.approx(everything[:depth], abs=5e-4)
            assert dict(hits) == pytest.approx({d: expected[d] for d, _ in hits}, abs=5e-4)
        again = MaxSim().rerank(bench, ranked)
        assert again.scores.tobytes() == ranked.scores.tobytes()
        assert again.unit.tobytes() == ranked.unit.tobytes()
        pairs = bench.scorer(LateInteraction()).score(bench, bench.queries, ranked.row, ranked.unit.astype(np.int64))
        assert pairs.tobytes() == ranked.scores.tobytes()
        assert ranked.exhausted.tolist() == [depth == 40] * len(asked)


def test_late_interaction_finds_nothing_without_tokens():
    bench = make_bench({"a": "pump", "b": "\u200b \u200b"}, ["", "pump"], depth=5)
    found = rankings(bench, bench.ranked(LateInteraction())[0])
    assert found[0] == []
    assert found[1][0][0] == "a"
    with pytest.raises(ConfigError, match="dimensions must be 1 to 256, found 300"):
        LateInteraction(300)


# BM25 rescoring


def test_bm25_rescoring_is_the_order_of_bm25_within_the_pool():
    everything = make_bench(CORPUS, QUESTIONS[:4], depth=40)
    lexical, _ = everything.ranked(BM25(0.9, 0.4))
    wanted = [dict(hits) for hits in rankings(everything, lexical)]
    bench = make_bench(CORPUS, QUESTIONS[:4], depth=8)
    before, _ = bench.ranked(Static())
    after = BM25Rescore(BM25(0.9, 0.4)).rerank(bench, before)
    for pool, hits, scores in zip(rankings(bench, before), rankings(bench, after), wanted, strict=True):
        expected = {d: scores.get(d, 0.0) for d, _ in pool}
        assert hits == sorted(expected.items(), key=lambda h: (-h[1], h[0]))


def test_bm25_rescoring_has_the_confidence_of_bm25():
    bench = make_bench(CORPUS, QUESTIONS, depth=40)
    lexical, _ = bench.ranked(BM25())
    dense, _ = bench.ranked(Static())
    after = BM25Rescore().rerank(bench, dense)
    assert after.has_confidence
    some = np.diff(dense.offsets) > 0  # the whole corpus is the pool, so the best is the best
    found = np.flatnonzero(some & (np.diff(lexical.offsets) > 0))
    assert len(found) >= 4
    assert np.array_equal(after.confidence[found], lexical.confidence[found])
    with pytest.raises(ConfigError, match="lexical must be a BM25, found Static"):
        BM25Rescore(Static())


# MMR


def brute_mmr(relevance, vectors, names, weight):
    """The definition with plain loops over float64 vectors; `(name, value)` in the order of choice."""
    left, chosen, out = list(range(len(names))), [], []
    while left:
        values = {
            i: weight * relevance[i] - (1 - weight) * max([0.0, *(float(vectors[i] @ vectors[j]) for j in chosen)])
            for i in left
        }
        best = min(left, key=lambda i: (-round(values[i], 3), names[i]))
        chosen.append(best)
        left.remove(best)
        out.append((names[best], values[best]))
    return out


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("relevance", ["scores", "dense"])
@pytest.mark.parametrize("first", [BM25(), Static()], ids=lambda p: type(p).__name__)
def test_mmr_is_the_definition(weight, relevance, first):
    bench = make_bench(CORPUS, QUESTIONS[:4], depth=9)
    before, _ = bench.ranked(first)
    index = bench.opened(Static())
    asked = index.embed(bench, bench.queries).astype(np.float64)
    after = rankings(bench, MMR(weight, relevance).rerank(bench, before))
    for i, pool in enumerate(rankings(bench, before)):
        names = [d for d, _ in pool]
        vectors = [index.vectors[bench.table.units.docs.index(d)].astype(np.float64) for d in names]
        scores = [s for _, s in pool]
        low, high = min(scores), max(scores)
        given = [(s - low) / (high - low) for s in scores]
        used = given if relevance == "scores" else [float(asked[i] @ v) for v in vectors]
        expected = brute_mmr(used, vectors, names, weight)
        assert [s for _, s in after[i]] == pytest.approx([v for _, v in expected], abs=1e-3)
        gaps = np.abs(np.diff([v for _, v in expected]))
        if gaps.min(initial=1.0) > 2e-3:  # where choices are clear the order is theirs
            assert [d for d, _ in after[i]] == [d for d, _ in expected]


def test_mmr_puts_a_copy_last():
    texts = {"a": "pump pressure valve", "b": "pump pressure valve", "c": "pump pressure", "d": "refund late order"}
    bench = make_bench(texts, ["pump pressure valve"], depth=4)
    before, _ = bench.ranked(Static())
    assert [d for d, _ in rankings(bench, before)[0]] == ["a", "b", "c", "d"]
    # By hand: a gets .3·1; then a copy has .3·1 − .7·1, and any other cosine s gives .3·s − .7·s, which is more.
    after = rankings(bench, MMR(0.3, "dense").rerank(bench, before))[0]
    assert after[0] == ("a", pytest.approx(0.3, abs=1e-6))
    assert after[-1] == ("b", pytest.approx(0.3 - 0.7, abs=1e-3))
    same = rankings(bench, MMR(1.0).rerank(bench, before))[0]
    assert [d for d, _ in same] == ["a", "b", "c", "d"]


def test_mmr_keeps_confidence_and_refuses_what_it_cannot_use():
    bench = make_bench(CORPUS, QUESTIONS)
    before, _ = bench.ranked(BM25())
    assert np.array_equal(MMR().rerank(bench, before).confidence, before.confidence, equal_nan=True)
    with pytest.raises(ConfigError, match="BM25 has no vectors of chunks to compare"):
        MMR(dense=BM25()).rerank(bench, before)
    with pytest.raises(ConfigError, match=r"weight must be in \[0, 1\], found 1.5"):
        MMR(1.5)
    with pytest.raises(ConfigError, match="relevance must be scores or dense, found 'x'"):
        MMR(relevance="x")


@pytest.mark.parametrize("dimensions", [8, 256, 768])
def test_likeness_has_the_same_bits_on_any_number_of_threads(dimensions):
    vectors = np.random.default_rng(3).standard_normal((90, dimensions))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = []
    for threads in (1, 2):
        with threads_limited(threads):
            found.append(likeness(vectors))
    assert found[0].tobytes() == found[1].tobytes()
    assert likeness(vectors[:7]).tobytes() == found[0][:7, :7].tobytes()
    assert np.abs(found[0] - vectors @ vectors.T).max() < 1e-3


# Chains


def test_a_chain_is_its_parts_in_order():
    bench = make_bench(CORPUS, QUESTIONS, depth=9)
    before, _ = bench.ranked(Static())
    by_hand = LENGTHS.rerank(bench, MMR().rerank(bench, BM25Rescore().rerank(bench, before)))
    chained = Chain(BM25Rescore(), MMR(), LENGTHS).rerank(bench, before)
    assert rankings(bench, chained) == rankings(bench, by_hand)
    assert chained.has_confidence == by_hand.has_confidence
    two = Chain(BM25Rescore(), MMR())
    assert rankings(bench, two.rerank(bench, before)) != rankings(bench, MMR().rerank(bench, before))
    assert two.cacheable
    assert not Chain(BM25Rescore(), LENGTHS).cacheable
    with pytest.raises(ConfigError, match="then must be a reranker, found 3"):
        Chain(BM25Rescore(), 3)


def test_facts_of_a_chain_add_up():
    class Paid:
        def rerank(self, bench, ranked):
            return replace(ranked, facts={"reranker_tokens": 5.0})

    bench = make_bench(CORPUS, QUESTIONS, depth=9)
    before, _ = bench.ranked(Static())
    assert Chain(Paid(), NoRerank(), Paid()).rerank(bench, before).facts == {"reranker_tokens": 10.0}
