from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from denominator.cache import Cache
from denominator.embedders import BM25, Approximate, Hybrid, Static
from denominator.errors import ConfigError, MissingExtraError
from denominator.pipeline import run_cell
from denominator.rerankers import MMR, Mix
from denominator.retrievers import dense
from tests.test_pipeline import cell, lines
from tests.test_retrievers import CORPUS, QUESTIONS, make_bench, rankings

if find_spec("usearch") is None:
    pytest.skip("needs the extra ann", allow_module_level=True)

MANY = [" ".join(np.random.default_rng(i).choice(" ".join(CORPUS).split(), 4 + i % 11)) for i in range(700)]
ASKED = [" ".join(np.random.default_rng(9000 + i).choice(" ".join(CORPUS).split(), 3)) for i in range(60)] + [
    "",
    "zebra",
]


def test_a_small_corpus_is_searched_completely():
    """The graph is asked for more than the pool; where that is everything nothing can be missed."""
    bench = make_bench(CORPUS, QUESTIONS, depth=9)
    exact, _ = bench.ranked(Static())
    near, facts = bench.ranked(Approximate())
    assert rankings(bench, near) == rankings(bench, exact)
    assert np.array_equal(near.exhausted, exact.exhausted)
    assert facts["ann_recall_at_9"] == 1.0
    assert facts["ann_questions"] == 5, "a question without a vector finds nothing either way"
    assert facts["index_bytes"] > bench.ranked(Static())[1]["index_bytes"]


@pytest.mark.parametrize("precision", ["i8", "f16", "f32"])
def test_its_recall_is_measured_and_its_scores_are_exact(precision):
    part = Approximate(connectivity=3, expansion_add=4, expansion_search=1, precision=precision, sample=1000)
    bench = make_bench(MANY, ASKED, depth=20)
    exact, _ = bench.ranked(Static())
    near, facts = bench.ranked(part)
    true = [
        dict(hits)
        for hits in rankings(make_bench(MANY, ASKED, depth=700), make_bench(MANY, ASKED, depth=700).ranked(Static())[0])
    ]
    shares = []
    for wanted, hits, scores in zip(rankings(bench, exact), rankings(bench, near), true, strict=True):
        assert hits == sorted(hits, key=lambda h: (-h[1], h[0]))
        assert all(scores[d] == s for d, s in hits), "scores are those of the exact search"
        if wanted:
            shares += [d in dict(hits) for d, _ in wanted]
    # So poor a graph misses something; the fact is the share by hand.
    assert facts["ann_recall_at_20"] == pytest.approx(np.mean(shares), abs=1e-12)
    assert 0.05 < np.mean(shares) < 1
    better = bench.ranked(Approximate(precision=precision))[1]["ann_recall_at_20"]
    assert better > max(0.95, np.mean(shares))


def test_the_same_vectors_give_the_same_graph(tmp_path):
    graphs = []
    for folder in ("a", "b"):
        bench = make_bench(MANY, ASKED, depth=20, cache=Cache(tmp_path / folder))
        bench.ranked(Approximate())
        graphs += [bench.cache.get(e.key)["graph"].tobytes() for e in bench.cache.entries() if e.stage == "ann_graph"]
    assert len(graphs) == 2
    assert graphs[0] == graphs[1]


def test_a_graph_is_read_back_and_a_cell_says_what_it_misses(tmp_path):
    part = Approximate()
    cold = run_cell(cell(embedder=part), Cache(tmp_path))
    warm = run_cell(cell(embedder=part), Cache(tmp_path))
    assert lines(cold) == lines(warm)
    assert cold.facts["ann_recall_at_20"] == warm.facts["ann_recall_at_20"] == 1.0
    assert [t.stage for t in warm.timings if not t.cached] == []
    assert lines(cold) == lines(run_cell(cell(embedder=Static()), Cache(None)))


def test_it_is_one_side_of_a_mix_and_gives_vectors():
    bench = make_bench(MANY, ASKED, depth=20)
    before, _ = bench.ranked(BM25())
    near, exact = Approximate(sample=0), Static()
    assert rankings(bench, Mix(dense=near).rerank(bench, before)) == rankings(
        bench, Mix(dense=exact).rerank(bench, before)
    )
    assert rankings(bench, MMR(dense=near).rerank(bench, before)) == rankings(
        bench, MMR(dense=exact).rerank(bench, before)
    )
    _, facts = bench.ranked(Hybrid(dense=Approximate()))
    assert facts["ann_recall_at_20"] > 0.9
    assert "ann_recall_at_20" not in bench.ranked(near)[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"connectivity": 1}, "connectivity must be a whole number of at least 2, found 1"),
        ({"expansion_search": 0}, "expansion_search must be a whole number of at least 1, found 0"),
        ({"sample": -1}, "sample must be a whole number of at least 0, found -1"),
        ({"precision": "b1"}, "precision must be i8, f16 or f32, found 'b1'"),
    ],
)
def test_it_refuses(settings, message):
    with pytest.raises(ConfigError, match=message):
        Approximate(**settings)


def test_only_dense_stages_have_vectors():
    with pytest.raises(ConfigError, match="BM25 has no unit vectors to search"):
        make_bench(CORPUS, QUESTIONS).ranked(Approximate(BM25()))


def test_missing_library_names_its_command(monkeypatch):
    from importlib import metadata

    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'denominator\[ann\]'"):
        make_bench(CORPUS, QUESTIONS).ranked(Approximate())
    monkeypatch.setattr(metadata, "version", nothing)
    with pytest.raises(MissingExtraError, match=r"pip install 'denominator\[ann\]'"):
        Approximate().identity()


def test_the_exact_search_is_what_recall_is_measured_against(monkeypatch):
    from denominator.retrievers import approximate

    seen = []

    def watched(questions, vectors, order, depth):
        seen.append((len(questions), depth))
        return dense.search(questions, vectors, order, depth)

    monkeypatch.setattr(approximate, "search", watched)
    make_bench(MANY, ASKED, depth=20).ranked(Approximate(sample=7))
    assert seen == [(7, 20)]


def test_a_graph_and_a_transformer_live_in_one_process():
    """One release of usearch, imported before onnxruntime, ends the process with a segmentation fault."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    code = (
        "from tests.test_retrievers import CORPUS, QUESTIONS, make_bench;"
        "from denominator.embedders import Approximate, Onnx;"
        "bench = make_bench(CORPUS, QUESTIONS, depth=5);"
        "bench.ranked(Approximate()); bench.ranked(Onnx()); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "alive"
