"""Models of one's own: local ONNX folders (tiny ones, made here), and libraries that are extras."""

from __future__ import annotations

import shutil
import sys
import types

import numpy as np
import pytest

from denominator.cache import Cache, describe
from denominator.embedders import BM25, FastEmbed, Onnx, SentenceTransformer, Static
from denominator.errors import ConfigError, MissingExtraError, StageError
from denominator.pipeline import run_cell
from denominator.rerankers import Chain, CrossEncoder, NoRerank, SentenceCrossEncoder
from tests.test_pipeline import cell, lines
from tests.test_retrievers import CORPUS, QUESTIONS, make_bench, rankings
from tests.tiny_models import TABLE, VOCABULARY, WEIGHTS, token_ids, write_cross_encoder, write_embedder

CLS, SEP = VOCABULARY["[CLS]"], VOCABULARY["[SEP]"]


@pytest.fixture
def runtime():
    pytest.importorskip("onnx", reason="tiny models are written with onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")


def by_hand(text, pooling="mean", most=10**9, dimensions=None):
    """The unit vector of a text by the table; [CLS] and [SEP] are tokens like others."""
    if not text.split():
        return np.zeros(dimensions or TABLE.shape[1])
    ids = [*[CLS, *token_ids(text)][: most - 1], SEP]
    vector = (TABLE[CLS] if pooling == "cls" else TABLE[ids].astype(np.float64).mean(axis=0))[:dimensions]
    return vector / np.linalg.norm(vector)


# ------------------------------------------------------------------ embedders from a folder


@pytest.mark.parametrize("settings", [{}, {"pooling": "cls"}, {"max_tokens": 6}, {"dimensions": 3}], ids=str)
@pytest.mark.parametrize("name", ["model.onnx", "onnx/model.onnx"])
def test_a_folder_gives_the_vectors_of_its_table(runtime, tmp_path, settings, name):
    part = Onnx(folder=str(write_embedder(tmp_path, name)), **settings)
    how = {"pooling": "mean"} | {("most" if k == "max_tokens" else k): v for k, v in settings.items()}
    bench = make_bench(CORPUS, QUESTIONS, depth=40)
    index = bench.opened(part)
    expected = np.array([by_hand(bench.table.indexed(i), **how) for i in range(len(bench.table))])
    assert np.abs(np.asarray(index.vectors) - expected).max() < 1e-6
    ranked, _ = bench.ranked(part)
    for question, hits in zip(QUESTIONS, rankings(bench, ranked), strict=True):
        asked = by_hand(question, **how)
        if not question:
            assert hits == []
            continue
        scores = expected @ asked
        assert [s for _, s in hits] == pytest.approx(sorted(scores, reverse=True), abs=2e-6)


def test_what_a_model_does_not_read_is_counted(runtime, tmp_path):
    part = Onnx(folder=str(write_embedder(tmp_path)), max_tokens=6, passage_prefix="pump ")
    texts = {"a": "valve " * 3, "b": "valve " * 4, "c": "valve " * 10, "d": ""}
    bench = make_bench({k: v for k, v in texts.items() if v}, ["pump " * 9, "pump"])
    _, facts = bench.ranked(part)
    # Six tokens are [CLS], the prefix, three words and [SEP].
    assert facts["truncated_chunks"] == 2
    assert facts["truncated_chunks_tokens"] == (4 - 3) + (10 - 3)
    assert facts["truncated_questions"] == 1
    assert facts["truncated_questions_tokens"] == 9 + 2 - 6


def test_truncation_reaches_the_record_and_the_notes(runtime, tmp_path):
    part = Onnx(folder=str(write_embedder(tmp_path)), max_tokens=5)
    result = run_cell(cell(embedder=part), Cache(None))
    facts = result.facts
    assert facts["truncated_chunks"] > 0
    assert facts["truncated_chunks_share"] == facts["truncated_chunks"] / facts["n_chunks"]
    assert facts["truncated_chunks_tokens"] >= facts["truncated_chunks"]
    assert any("tokens are not read" in note for note in result.notes)


def test_a_models_files_are_its_key_and_not_its_place(runtime, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_embedder(tmp_path / name)
    one, two = Onnx(folder=str(tmp_path / "a")), Onnx(folder=str(tmp_path / "b"))
    assert describe(one) == describe(two)
    (tmp_path / "c").mkdir()
    assert describe(one) != describe(Onnx(folder=str(write_cross_encoder(tmp_path / "c"))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "max"}, "pooling must be mean or cls, found 'max'"),
        ({"dimensions": 0}, "dimensions must be at least 1, found 0"),
        ({"max_tokens": 2}, "max_tokens must be a whole number of at least 3, found 2"),
    ],
)
def test_onnx_refuses(settings, message):
    with pytest.raises(ConfigError, match=message):
        Onnx(**settings)


def test_more_dimensions_than_the_model_has(runtime, tmp_path):
    part = Onnx(folder=str(write_embedder(tmp_path)), dimensions=99)
    with pytest.raises(ConfigError, match="dimensions 99 are more than the 6 of the model"):
        make_bench(CORPUS, QUESTIONS).ranked(part)


# ------------------------------------------------------------------ cross-encoders from a folder


def pair_by_hand(question, text, most=10**9):
    """Cut at the longer side until [CLS] q [SEP] t [SEP] fits."""
    first, second = token_ids(question), token_ids(text)
    while len(first) + len(second) + 3 > most:
        (first if len(first) > len(second) else second).pop()
    left = WEIGHTS[[CLS, *first, SEP]].sum()
    return WEIGHTS[[*second, SEP]].sum() - left / 2


@pytest.mark.parametrize("logits", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_cross_encoder_reads_question_and_chunk(runtime, tmp_path, logits, threads):
    part = CrossEncoder(str(write_cross_encoder(tmp_path, logits)), threads=threads)
    bench = make_bench(CORPUS, QUESTIONS[:5], depth=9)
    before, _ = bench.ranked(Static())
    after = part.rerank(bench, before)
    text_of = {bench.table.units.docs[d]: bench.table.indexed(i) for i, d in enumerate(bench.table.units.doc)}
    for question, pool, hits in zip(QUESTIONS, rankings(bench, before), rankings(bench, after), strict=False):
        expected = {d: float(pair_by_hand(question, text_of[d])) - (logits == 2) for d, _ in pool}
        assert hits == sorted(expected.items(), key=lambda h: (-h[1], h[0]))
    assert after.has_confidence
    assert after.confidence is None
    assert after.facts["reranker_pairs"] == len(before.unit)
    assert after.facts["reranker_truncated_pairs"] == 0
    assert CrossEncoder(str(tmp_path), confidence=False).rerank(bench, before).has_confidence is False


def test_a_cross_encoders_cut_is_counted(runtime, tmp_path):
    part = CrossEncoder(str(write_cross_encoder(tmp_path)), max_tokens=7)
    texts = {"a": "pump valve", "b": "pump valve filter pressure tank", "c": "pump"}
    bench = make_bench(texts, ["motor cable"])
    before, _ = bench.ranked(Static())
    after = part.rerank(bench, before)
    assert after.facts["reranker_truncated_pairs"] == 1
    assert dict(rankings(bench, after)[0]) == {d: float(pair_by_hand("motor cable", t, 7)) for d, t in texts.items()}


@pytest.mark.parametrize("top", [1, 3, 9, 50])
def test_only_the_top_is_read(runtime, tmp_path, top):
    folder = str(write_cross_encoder(tmp_path))
    bench = make_bench(CORPUS, QUESTIONS, depth=9)
    before, _ = bench.ranked(Static())
    after = CrossEncoder(folder, top=top).rerank(bench, before)
    whole = [dict(hits) for hits in rankings(bench, CrossEncoder(folder).rerank(bench, before))]
    for pool, hits, scores in zip(rankings(bench, before), rankings(bench, after), whole, strict=True):
        names = [d for d, _ in pool]
        head = sorted(names[:top], key=lambda d: (-scores[d], d))
        assert [d for d, _ in hits] == head + names[top:]
    assert after.facts["reranker_pairs"] == sum(min(top, n) for n in np.diff(before.offsets))


def test_a_cross_encoder_in_a_cell_is_cached(runtime, tmp_path):
    (tmp_path / "model").mkdir()
    part = CrossEncoder(str(write_cross_encoder(tmp_path / "model")))
    cold = run_cell(cell(reranker=part), Cache(tmp_path / "cache"))
    warm = run_cell(cell(reranker=part), Cache(tmp_path / "cache"))
    assert lines(cold) == lines(warm)
    assert [t.stage for t in warm.timings if not t.cached] == []
    assert cold.facts["reranker_pairs"] == warm.facts["reranker_pairs"] > 0
    assert Chain(NoRerank(), part).cacheable


def test_cross_encoders_that_cannot_be_used(runtime, tmp_path):
    bench = make_bench(CORPUS, QUESTIONS, depth=5)
    before, _ = bench.ranked(BM25())
    with pytest.raises(ConfigError, match=r"reranker cross_encoder: .*model\.onnx is missing; a model folder holds"):
        CrossEncoder(str(tmp_path)).rerank(bench, before)
    with pytest.raises(StageError, match="gives 3 numbers for a pair, expected 1 or 2"):
        CrossEncoder(str(write_cross_encoder(tmp_path, 3))).rerank(bench, before)
    with pytest.raises(ConfigError, match="top must be a whole number of at least 0, found -1"):
        CrossEncoder("x", top=-1)
    (tmp_path / "e").mkdir()
    embedder = CrossEncoder(str(write_embedder(tmp_path / "e")))
    with pytest.raises(StageError, match="numbers for a pair, expected 1 or 2"):
        embedder.rerank(bench, before)


def test_a_missing_runtime_names_its_command(monkeypatch, runtime, tmp_path):
    from denominator.retrievers import onnx as module

    folder = str(write_cross_encoder(tmp_path))
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"cross_encoder needs an extra: pip install 'denominator\[onnx\]'"):
        CrossEncoder(folder).identity()


# ------------------------------------------------------------------ libraries that are extras


@pytest.mark.parametrize(
    ("part", "library", "extra"),
    [
        (SentenceTransformer("some/model"), "sentence_transformers", "sentence-transformers"),
        (SentenceCrossEncoder("some/model"), "sentence_transformers", "sentence-transformers"),
        (FastEmbed(), "fastembed", "fastembed"),
    ],
    ids=lambda p: type(p).__name__,
)
def test_missing_libraries_name_their_command(monkeypatch, part, library, extra):
    from importlib import metadata

    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    monkeypatch.setitem(sys.modules, library, None)
    bench = make_bench(CORPUS, QUESTIONS, depth=5)
    command = rf"pip install 'denominator\[{extra}\]'"
    with pytest.raises(MissingExtraError, match=command):
        part.identity()
    with pytest.raises(MissingExtraError, match=command):
        part.rerank(bench, bench.ranked(NOTHING)[0]) if hasattr(part, "rerank") else part.open(bench)


class _Given:
    """A first stage that needs no library at all."""

    cacheable = False

    def open(self, bench):
        return self

    facts = types.MappingProxyType({})

    def search(self, bench, queries):
        from denominator.retrievers.table import ranked_of

        rows = np.repeat(np.arange(len(queries)), 2)
        units = np.tile(np.arange(2), len(queries))
        return ranked_of(rows, units, np.ones(len(rows)), order=bench.order, rows=len(queries), depth=bench.depth)


NOTHING = _Given()


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (SentenceTransformer, {"model": " "}, "model must be a name or a folder, found ' '"),
        (SentenceTransformer, {"model": "x", "batch": 0}, "batch must be a whole number of at least 1, found 0"),
        (
            SentenceTransformer,
            {"model": "x", "max_tokens": 0},
            "max_tokens must be a whole number of at least 1, found 0",
        ),
        (SentenceTransformer, {"model": "x", "dimensions": 2.5}, "dimensions must be a whole number of at least 1"),
        (SentenceCrossEncoder, {"model": "x", "top": -1}, "top must be a whole number of at least 0, found -1"),
        (FastEmbed, {"folder": "nowhere/at/all"}, "there is no folder nowhere/at/all"),
    ],
)
def test_libraries_refuse(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**settings)


def test_a_folders_hash_follows_its_files(tmp_path):
    from denominator.retrievers.libraries import folder_hash

    for name in ("a", "b", "c"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "x").write_bytes(b"one" if name != "c" else b"two")
    a, b, c = (folder_hash(str(tmp_path / name)) for name in "abc")
    assert a == b != c


@pytest.fixture(scope="module")
def fast_folder(tmp_path_factory):
    """A tiny model that reads 8 tokens, as a folder that fastembed knows under the name tiny/model."""
    pytest.importorskip("onnx", reason="tiny models are written with onnx")
    fastembed = pytest.importorskip("fastembed", reason="needs the extra fastembed (make extras)")
    from fastembed.common.model_description import ModelSource, PoolingType

    folder = write_embedder(tmp_path_factory.mktemp("fast"))
    (folder / "config.json").write_text('{"pad_token_id": 0}')
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 8, "pad_token": "[PAD]"}')
    (folder / "special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
    fastembed.TextEmbedding.add_custom_model(
        model="tiny/model",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="tiny/model"),
        dim=6,
        model_file="model.onnx",
    )
    return str(folder)


def test_fastembed_from_a_folder(fast_folder):
    """Its own loading code over a tiny model; nothing is fetched."""
    bench = make_bench(CORPUS, QUESTIONS[:5], depth=40)
    index = bench.opened(FastEmbed("tiny/model", folder=fast_folder, passage_prefix="late "))
    texts = ["late " + bench.table.indexed(i) for i in range(len(bench.table))]
    expected = np.array([by_hand(t, most=8) for t in texts])
    assert np.abs(np.asarray(index.vectors) - expected).max() < 1e-5
    lost = [max(0, len(t.split()) + 2 - 8) for t in texts]
    assert index.facts["truncated_chunks"] == sum(n > 0 for n in lost) > 0
    assert index.facts["truncated_chunks_tokens"] == sum(lost)


def test_fastembed_gives_the_same_bits_for_any_number_of_threads(fast_folder):
    found = set()
    for workers in (1, 3):
        bench = make_bench(CORPUS, QUESTIONS, depth=40)
        part = FastEmbed("tiny/model", folder=fast_folder, threads=workers)
        found.add(np.asarray(bench.opened(part).vectors).tobytes() + bench.ranked(part)[0].scores.tobytes())
    assert len(found) == 1


def test_fastembed_keys_follow_the_files(fast_folder, tmp_path):
    copy = shutil.copytree(fast_folder, tmp_path / "copy")
    part = FastEmbed("tiny/model", folder=fast_folder)
    assert describe(FastEmbed("tiny/model", folder=str(copy), threads=2)) == describe(part)
    assert describe(FastEmbed("tiny/model", folder=str(copy), query_prefix="q ")) != describe(part)
    other = shutil.copytree(copy, tmp_path / "other")
    (other / "config.json").write_text('{"pad_token_id": 0, "more": 1}')
    assert describe(FastEmbed("tiny/model", folder=str(other))) != describe(part)


def test_fastembed_says_what_it_cannot_load(fast_folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    bench = make_bench(CORPUS, QUESTIONS, depth=5)
    with pytest.raises(StageError, match=r"embedder fastembed: cannot load '.*empty'"):
        bench.opened(FastEmbed("tiny/model", folder=str(empty)))
    with pytest.raises(StageError, match="cannot load 'no/such': it is no folder here, and as a name: Model no/such"):
        bench.opened(FastEmbed("no/such"))
