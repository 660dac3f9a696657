"""sentence-transformers for real, over small models that are made here; what is missing is said and skipped."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pytest

from denominator import cli
from denominator.cache import Cache
from denominator.embedders import BM25, SentenceTransformer, Static
from denominator.errors import ConfigError, StageError
from denominator.rerankers import SentenceCrossEncoder
from tests.test_retrievers import CORPUS, QUESTIONS, make_bench, rankings
from tests.tiny_models import VOCABULARY, write_tokenizer

torch = pytest.importorskip("torch", reason="needs torch (make extras)")
st = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers (make extras)")

MOST = 24  # places of the tiny models


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders: `bert` and `cross` (two layers, random weights from a seed), `two` (two labels), `static`."""
    from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models")
    write_tokenizer(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), model_max_length=MOST,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip
    size = {
        "vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": MOST, "initializer_range": 0.5,
    }  # fmt: skip
    torch.manual_seed(5)
    made = {
        "plain": BertModel(BertConfig(**size)),
        "cross": BertForSequenceClassification(BertConfig(**size, num_labels=1)),
        "two": BertForSequenceClassification(BertConfig(**size, num_labels=2)),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    # Without a list of modules the library adds its mean pooling.
    made_of = st.SentenceTransformer(str(folder / "plain"), device="cpu")
    made_of.prompts = {"query": "paint paint "}
    made_of.default_prompt_name = "query"
    made_of.save_pretrained(str(folder / "bert"))
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    words = StaticEmbedding(Tokenizer.from_file(str(folder / "tokenizer.json")), embedding_dim=16)
    st.SentenceTransformer(modules=[words]).save_pretrained(str(folder / "static"))
    return folder


def opened(part, **options):
    return make_bench(CORPUS, QUESTIONS, depth=40, **options).opened(part)


def vectors(part, **options):
    return np.asarray(opened(part, **options).vectors)


def by_the_library(folder, texts, **options):
    model = st.SentenceTransformer(str(folder), device="cpu")
    found = model.encode(texts, prompt="", batch_size=7, show_progress_bar=False, **options)
    length = np.linalg.norm(found, axis=1, keepdims=True)
    return np.divide(found, length, out=np.zeros_like(found), where=length > 0)


@pytest.mark.parametrize("name", ["bert", "static"])
def test_vectors_are_the_librarys_of_length_one(models, name):
    bench = make_bench(CORPUS, QUESTIONS, depth=40)
    part = SentenceTransformer(str(models / name))
    found = np.asarray(bench.opened(part).vectors)
    expected = by_the_library(models / name, [bench.table.indexed(i) for i in range(len(bench.table))])
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-5
    lengths = np.linalg.norm(found, axis=1)
    assert lengths[lengths > 0] == pytest.approx(1, abs=1e-6)
    scores = [s for _, s in rankings(bench, bench.ranked(part)[0])[0]]
    asked = by_the_library(models / name, [QUESTIONS[0]])[0]
    assert scores == pytest.approx(sorted(expected @ asked, reverse=True)[: len(scores)], abs=1e-5)


def test_the_same_bits_for_any_batch_and_any_number_of_threads(models, monkeypatch):
    from denominator.retrievers import libraries

    found = set()
    for batch, workers in ((1, 1), (32, 1), (5, 3), (32, 2)):
        monkeypatch.setenv("DENOMINATOR_THREADS", str(workers))
        libraries._sentences.cache_clear()
        before = torch.get_num_threads()
        found.add(vectors(SentenceTransformer(str(models / "bert"), batch=batch)).tobytes())
        assert torch.get_num_threads() == before
    assert len(found) == 1


def test_a_text_alone_has_the_bits_that_it_has_among_others(models):
    part = SentenceTransformer(str(models / "bert"))
    bench = make_bench(CORPUS, QUESTIONS, depth=40)
    ranked, _ = bench.ranked(part)
    index = bench.opened(part)
    for i, question in enumerate(QUESTIONS):
        alone = bench.alone(question)
        assert index.search(alone, alone.queries).scores.tobytes() == ranked.one(i).scores.tobytes()


def test_prefixes_are_those_that_are_written_and_no_others(models):
    """The model carries a prompt of its own as its default."""
    plain = vectors(SentenceTransformer(str(models / "bert")))
    prefixed = vectors(SentenceTransformer(str(models / "bert"), passage_prefix="late "))
    asked = vectors(SentenceTransformer(str(models / "bert"), query_prefix="late "))
    bench = make_bench(CORPUS, QUESTIONS, depth=40)
    texts = ["late " + bench.table.indexed(i) for i in range(len(bench.table))]
    assert np.abs(prefixed - by_the_library(models / "bert", texts)).max() < 1e-5
    assert np.abs(prefixed - plain).max() > 1e-2
    assert asked.tobytes() == plain.tobytes()


def test_what_is_not_read_is_counted(models):
    part = SentenceTransformer(str(models / "bert"), max_tokens=6)
    bench = make_bench(CORPUS, QUESTIONS, depth=40)
    facts = bench.opened(part).facts
    lost = [max(0, len(bench.table.indexed(i).split()) + 2 - 6) for i in range(len(bench.table))]
    assert facts["truncated_chunks"] == sum(n > 0 for n in lost) > 0
    assert facts["truncated_chunks_tokens"] == sum(lost)
    asked = [max(0, len(q.split()) + 2 - 6) for q in QUESTIONS]
    assert facts["truncated_questions_tokens"] == sum(asked)
    cut = [" ".join(bench.table.indexed(i).split()[:4]) for i in range(len(bench.table))]
    assert np.abs(np.asarray(bench.opened(part).vectors) - by_the_library(models / "bert", cut)).max() < 1e-5
    assert opened(SentenceTransformer(str(models / "static"))).facts["truncated_chunks"] == 0


def test_fewer_dimensions_are_the_first_ones_scaled_again(models):
    whole = vectors(SentenceTransformer(str(models / "bert")))
    short = vectors(SentenceTransformer(str(models / "bert"), dimensions=8))
    first = whole[:, :8]
    length = np.linalg.norm(first, axis=1, keepdims=True)
    assert short.shape[1] == 8
    assert np.abs(short - np.divide(first, length, out=np.zeros_like(first), where=length > 0)).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("bert", {"max_tokens": MOST + 1}, ConfigError, f"max_tokens is {MOST + 1}, the model has {MOST} places"),
        ("bert", {"dimensions": 33}, ConfigError, "dimensions is 33, the model has 32"),
        ("static", {"max_tokens": 5}, ConfigError, "max_tokens must be null, the model reads texts of any length"),
        ("nowhere", {}, StageError, "cannot load '.*nowhere': it is no folder here, and as a name"),
        (".", {}, StageError, "cannot load"),
    ],
)
def test_what_cannot_be_is_said(models, monkeypatch, name, settings, error, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(error, match=message):
        opened(SentenceTransformer(str(models / name), **settings))


def test_the_key_holds_the_versions_and_the_weights(models, tmp_path):
    import shutil

    from denominator.cache import describe

    part = SentenceTransformer(str(models / "bert"))
    assert part.identity()[0] == f"sentence-transformers {version('sentence-transformers')}"
    copy = shutil.copytree(models / "bert", tmp_path / "copy")
    assert SentenceTransformer(str(copy)).identity() == part.identity()
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    other = shutil.copytree(copy, tmp_path / "other")  # hashes are taken once a process
    assert SentenceTransformer(str(other)).identity() != part.identity()
    gpu = SentenceTransformer(str(models / "bert"), device="cuda")
    assert describe(gpu) != describe(part) != describe(SentenceTransformer(str(models / "bert"), max_tokens=6))
    assert describe(part) == describe(SentenceTransformer(str(models / "bert"), batch=3))


def test_vectors_are_kept(models, tmp_path, monkeypatch):
    from denominator.retrievers import libraries

    part = SentenceTransformer(str(models / "bert"))
    first = vectors(part, cache=Cache(tmp_path))
    monkeypatch.setattr(libraries, "_sentences", lambda _: pytest.fail("loaded again"))
    assert vectors(part, cache=Cache(tmp_path)).tobytes() == first.tobytes()


# ------------------------------------------------------------------ cross-encoders


def reranked(part, depth=9):
    bench = make_bench(CORPUS, QUESTIONS[:5], depth=depth)
    before, _ = bench.ranked(Static())
    return bench, before, part.rerank(bench, before)


def test_cross_encoders_score_as_the_library_does(models):
    bench, before, after = reranked(SentenceCrossEncoder(str(models / "cross"), top=4))
    model = st.CrossEncoder(str(models / "cross"), device="cpu")
    named = {d: bench.table.indexed(i) for i, d in enumerate(bench.table.units.docs[d] for d in bench.table.units.doc)}
    for question, pool, hits in zip(QUESTIONS, rankings(bench, before), rankings(bench, after), strict=False):
        pairs = [(question, named[d]) for d, _ in pool[:4]]
        # The library squeezes its numbers into [0, 1] unless told otherwise: the same order, another scale.
        if not pairs:
            continue
        plain = model.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        expected = sorted(
            zip([d for d, _ in pool[:4]], plain, strict=True), key=lambda x: (-round(float(x[1]), 5), x[0])
        )
        assert [d for d, _ in hits][:4] == [d for d, _ in expected]
        assert [s for _, s in hits][:4] == pytest.approx([float(s) for _, s in expected], abs=1e-5)
        assert [d for d, _ in hits][4:] == [d for d, _ in pool[4:]]
        assert model.predict(pairs, show_progress_bar=False) == pytest.approx(1 / (1 + np.exp(-plain)), abs=1e-5)
    assert after.facts["reranker_pairs"] == sum(min(4, len(pool)) for pool in rankings(bench, before))
    assert after.facts["reranker_truncated_pairs"] == 0
    assert after.has_confidence


def test_pairs_that_are_cut_are_counted(models):
    bench, before, after = reranked(SentenceCrossEncoder(str(models / "cross"), max_tokens=9))
    pairs = [(q, bench.table.indexed(u)) for q, row in zip(QUESTIONS, range(5), strict=False)
             for u in before.one(row).unit.tolist()]  # fmt: skip
    cut = sum(len(q.split()) + len(t.split()) + 3 > 9 for q, t in pairs)
    assert after.facts["reranker_truncated_pairs"] == cut > 0


def test_pairs_score_alike_for_any_batch_and_threads(models, monkeypatch):
    found = set()
    for batch, workers in ((1, 1), (32, 3)):
        monkeypatch.setenv("DENOMINATOR_THREADS", str(workers))
        found.add(reranked(SentenceCrossEncoder(str(models / "cross"), batch=batch))[2].scores.tobytes())
    assert len(found) == 1


def test_two_numbers_a_pair_are_refused(models):
    with pytest.raises(StageError, match="the model gives 2 numbers for a pair, expected 1"):
        reranked(SentenceCrossEncoder(str(models / "two")))


def test_more_tokens_than_places_are_refused(models):
    with pytest.raises(ConfigError, match=f"max_tokens is 99, the model has {MOST} places"):
        reranked(SentenceCrossEncoder(str(models / "cross"), max_tokens=99))


def test_the_command(models, tmp_path, capsys, monkeypatch):
    """Both parts on the bundled data, as a person calls them; nothing but our lines is printed."""
    monkeypatch.chdir(tmp_path)
    words = [
        "run", "eligibility=lenient", "chunker=sentences_128", "embedder=sentence_transformers",
        f"embedder.model={models / 'bert'}", "reranker=sentence_transformers", f"reranker.model={models / 'cross'}",
        "reranker.top=3", f"out={tmp_path / 'out'}",
    ]  # fmt: skip
    assert cli.main(words) == 0
    said = capsys.readouterr()
    assert "n = 154" in said.out + said.err
    assert "Loading weights" not in said.out + said.err
    assert "longer than the specified maximum" not in said.out + said.err


def test_bm25_first_and_the_cross_encoder_after_it(models):
    bench = make_bench(CORPUS, QUESTIONS, depth=9)
    before, _ = bench.ranked(BM25())
    after = SentenceCrossEncoder(str(models / "cross")).rerank(bench, before)
    assert [sorted(d for d, _ in row) for row in rankings(bench, after)] == [
        sorted(d for d, _ in row) for row in rankings(bench, before)
    ]
