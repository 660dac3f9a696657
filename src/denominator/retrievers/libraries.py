"""Embedders of other libraries: sentence-transformers and fastembed (extras of the same names).

Neither library is imported before it is used, and neither is needed for anything else. A name that is no folder is
looked for by the library itself, in its cache or on its hub. On a CPU every text goes through the model alone and
single-threaded, as many at once as the cell may use: the same bits whatever stands beside it, and no slower than in
batches. On another device last bits may depend on the batch, so device and batch are part of the key there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from denominator.cache import Entry, Payload, describe
from denominator.errors import ConfigError, MissingExtraError, StageError
from denominator.retrievers.bench import Bench
from denominator.retrievers.dense import DenseIndex, Vectors, unit_vectors
from denominator.retrievers.table import Queries
from denominator.retrievers.threads import threads
from denominator.types import Ints

T = TypeVar("T")
R = TypeVar("R")
Kind = Literal["query", "passage"]


class Encoder(Protocol):
    """A loaded model: vectors of texts, and how many tokens of each it does not read (None: it does not say)."""

    def encode(self, texts: Sequence[str], kind: Kind) -> tuple[Any, Ints | None]: ...


def check_model(who: str, model: str, **numbers: int | None) -> None:
    """`numbers` are None or at least 1."""
    if not isinstance(model, str) or not model.strip():
        raise ConfigError(f"{who}: model must be a name or a folder, found {model!r}")
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{who}: {name} must be a whole number of at least 1, found {value!r}")


@contextlib.contextmanager
def loading(who: str, model: str) -> Iterator[None]:
    """What a library raises because it has no such model, as one line; its progress bars stay silent."""
    quiet = [logging.getLogger(name) for name in ("transformers", "sentence_transformers", "fastembed")]
    levels = [logger.level for logger in quiet]
    bars: Any = sys.modules.get("transformers.utils.logging")
    shown = bars is not None and bars.is_progress_bar_enabled()
    for logger in quiet:
        logger.setLevel(logging.ERROR)
    if shown:
        bars.disable_progress_bar()
    try:
        yield
    except Exception as error:  # each library and runtime has errors of its own
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        known = "" if Path(model).is_dir() else "it is no folder here, and as a name: "
        raise StageError(f"{who}: cannot load {model!r}: {known}{first}") from error
    finally:
        for logger, level in zip(quiet, levels, strict=True):
            logger.setLevel(level)
        if shown:
            bars.enable_progress_bar()


def in_threads(
    work: Callable[[T], R], given: Iterable[T], begin: Callable[[], None] | None = None, *, workers: int = 0
) -> list[R]:
    """`work` of each, in their order, in so many threads (0: as many as the cell may use)."""
    with ThreadPoolExecutor(workers or threads(), initializer=begin) as pool:
        return list(pool.map(work, given))


def library_identity(who: str, extra: str, library: str, model: str) -> list[str]:
    """Version of the library and, of a folder, the hash of its files. Raises MissingExtraError."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = f"{library} {version(library)}"
    except PackageNotFoundError:
        raise MissingExtraError(who, extra) from None
    return [found, folder_hash(str(Path(model).resolve()))] if Path(model).is_dir() else [found]


@lru_cache(maxsize=8)
def folder_hash(folder: str) -> str:
    """Names and contents of all files below a folder."""
    digest = hashlib.sha256()
    root = Path(folder)
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as source:
            while block := source.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def opened(part: Any, bench: Bench, load: Callable[[], Encoder]) -> DenseIndex:
    """The chunks' vectors as a cached stage, and a way to embed questions."""
    table = bench.table

    def compute() -> Payload:
        return _payload(load(), ([part.passage_prefix + t for t in batch] for batch in table.batches(1024)), "passage")

    what = f"{part.model}, {len(table)} chunks"
    entry = bench.stage("library_vectors", {"part": describe(part), "chunks": table.key}, compute, what)
    facts = {"index_bytes": float(entry.array_bytes)}
    for name, made in (("chunks", entry), ("questions", asked(part, bench, bench.queries, load))):
        if made.facts["truncated"] is not None:
            facts[f"truncated_{name}"] = float(made.facts["truncated"])
            facts[f"truncated_{name}_tokens"] = float(made.facts["truncated_tokens"])
    return DenseIndex(entry["vectors"], bench.order, part.embed, facts)


def asked(part: Any, bench: Bench, queries: Queries, load: Callable[[], Encoder]) -> Entry:
    """The questions' vectors: one stage for all chunkers."""
    texts = [part.query_prefix + text for text in queries.texts]
    return bench.stage(
        "library_queries",
        {"part": describe(part), "queries": queries.key},
        lambda: _payload(load(), [texts], "query"),
        f"{part.model}, {len(texts)} questions",
    )


def embedded(part: Any, bench: Bench, queries: Queries, load: Callable[[], Encoder]) -> Vectors:
    """Unit vectors of questions."""
    if queries.kept:
        return np.asarray(asked(part, bench, queries, load)["vectors"])
    return unit_vectors(load().encode([part.query_prefix + t for t in queries.texts], "query")[0], "question")


def _payload(model: Encoder, batches: Iterable[Sequence[str]], kind: Kind) -> Payload:
    what = "question" if kind == "query" else "chunk"
    vectors, cut, lost, known = [], 0, 0, True
    for batch in batches:
        found, over = model.encode(batch, kind)
        vectors.append(unit_vectors(np.asarray(found), what))
        known = known and over is not None
        if over is not None:
            cut += int(np.count_nonzero(over > 0))
            lost += int(over[over > 0].sum())
    facts = {"truncated": cut if known else None, "truncated_tokens": lost if known else None}
    return Payload({"vectors": np.concatenate(vectors)}, facts=facts)


@dataclass(frozen=True, slots=True)
class SentenceTransformer:
    """A model of sentence-transformers, by name or folder, compared by cosine (extra `sentence-transformers`).

    `revision`: of a model from the hub; without it whatever is newest there. `max_tokens`: instead of the model's own
    limit; what is longer is cut, counted and reported. `dimensions`: only the first ones, for models that were trained
    to be shortened. Prompts that the model carries are not used: the prefixes are what is written here. `device`:
    `cpu`, `cuda`, …; None: the library chooses. `batch`: texts at once on a device other than the CPU.
    """

    model: str
    revision: str | None = None
    max_tokens: int | None = None
    dimensions: int | None = None
    query_prefix: str = ""
    passage_prefix: str = ""
    device: str | None = "cpu"
    batch: int = 32
    code: ClassVar[int] = 2
    not_in_key: ClassVar[tuple[str, ...]] = ("batch", "device")
    who: ClassVar[str] = "embedder sentence_transformers"

    def __post_init__(self) -> None:
        check_model(self.who, self.model, batch=self.batch, max_tokens=self.max_tokens, dimensions=self.dimensions)

    def identity(self) -> list[str]:
        return torch_identity(self.who, self.model, self.device, self.batch)

    def open(self, bench: Bench) -> DenseIndex:
        return opened(self, bench, lambda: _sentences(self))

    def embed(self, bench: Bench, queries: Queries) -> Vectors:
        """Unit vectors of questions."""
        return embedded(self, bench, queries, lambda: _sentences(self))


def torch_identity(who: str, model: str, device: str | None, batch: int) -> list[str]:
    """What results of a model of sentence-transformers depend on beside its settings. Raises MissingExtraError."""
    found = library_identity(who, "sentence-transformers", "sentence-transformers", model)
    return found if device == "cpu" else [*found, f"{device}, batch {batch}"]


def sentence_model(name: Literal["SentenceTransformer", "CrossEncoder"], part: Any) -> Any:
    """A part's model as sentence-transformers loads it. Errors: the extra is absent, there is no such model."""
    try:
        import sentence_transformers
    except ImportError as error:
        raise MissingExtraError(part.who, "sentence-transformers") from error
    with loading(part.who, part.model):
        return getattr(sentence_transformers, name)(part.model, revision=part.revision, device=part.device).eval()


def checked_limit(who: str, model: Any, max_tokens: int | None) -> int | None:
    """Sets the number of tokens that a loaded model reads; what holds then (None: everything is read).

    Raises ConfigError where the model has no such limit, or no positions for so many.
    """
    own = model.max_seq_length
    bounded = own is not None and math.isfinite(own)
    if max_tokens is None:
        return int(own) if bounded else None
    if not bounded:
        raise ConfigError(f"{who}: max_tokens must be null, the model reads texts of any length")
    # The model's configuration; before 6 an embedder shows it only through its first module.
    config = getattr(model, "config", None) or getattr(getattr(model[0], "auto_model", None), "config", None)
    places = getattr(config, "max_position_embeddings", None)
    if places is not None and max_tokens > places:
        raise ConfigError(f"{who}: max_tokens is {max_tokens}, the model has {places} places")
    model.max_seq_length = max_tokens
    return max_tokens


def lengths(tokenizer: Any, *texts: list[str]) -> Ints | None:
    """Tokens of each text (or pair) uncut; None where the tokenizer is of another kind."""
    if not callable(tokenizer):
        return None
    rows = tokenizer(*texts, truncation=False, padding=False, verbose=False)["input_ids"]
    return np.array([len(row) for row in rows], np.int64)


def each_alone(model: Any, inputs: Sequence[Any], output: str) -> list[Any]:
    """What a model on the CPU says of each input by itself, in the order of the inputs."""
    import torch

    def run(features: Any) -> Any:
        with torch.inference_mode():
            return model(features)[output][0].float().numpy()

    before = torch.get_num_threads()

    def alone() -> None:
        torch.set_num_threads(1)

    found = []
    try:
        for a in range(0, len(inputs), 256):
            # Tokenizers change their settings while they work and cannot be shared by threads.
            given = [model.preprocess([one]) for one in inputs[a : a + 256]]
            found += in_threads(run, given, alone)
    finally:
        torch.set_num_threads(before)
    return found


@lru_cache(maxsize=2)
def _sentences(part: SentenceTransformer) -> Encoder:
    return _Sentences(part)


class _Sentences:
    def __init__(self, part: SentenceTransformer) -> None:
        self.model: Any = sentence_model("SentenceTransformer", part)
        self.batch = part.batch
        self.most = checked_limit(part.who, self.model, part.max_tokens)
        self.dimensions = part.dimensions
        self.who = part.who

    def encode(self, texts: Sequence[str], kind: Kind) -> tuple[Any, Ints | None]:  # noqa: ARG002
        if self.model.device.type == "cpu":
            vectors = np.array(each_alone(self.model, texts, "sentence_embedding"))
        else:
            # An empty prompt keeps the model from adding its own.
            vectors = self.model.encode(list(texts), batch_size=self.batch, prompt="", show_progress_bar=False)
        if self.dimensions is not None:
            if self.dimensions > vectors.shape[1]:
                raise ConfigError(f"{self.who}: dimensions is {self.dimensions}, the model has {vectors.shape[1]}")
            vectors = vectors[:, : self.dimensions]
        if self.most is None:
            return vectors, np.zeros(len(texts), np.int64)
        found = lengths(self.model.tokenizer, list(texts))
        return vectors, None if found is None else np.maximum(found - self.most, 0)


@dataclass(frozen=True, slots=True)
class FastEmbed:
    """A model of fastembed, by name, compared by cosine (extra `fastembed`).

    `folder`: where the model's files lie, for use without a network; the name still says what model it is. Texts over
    the model's limit are cut, counted and reported. `threads`: texts at once, 0: all cores; no result depends on it.
    """

    model: str = "BAAI/bge-small-en-v1.5"
    folder: str | None = None
    query_prefix: str = ""
    passage_prefix: str = ""
    threads: int = 0
    code: ClassVar[int] = 2
    not_in_key: ClassVar[tuple[str, ...]] = ("threads", "folder")
    who: ClassVar[str] = "embedder fastembed"

    def __post_init__(self) -> None:
        check_model(self.who, self.model)
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ConfigError(f"embedder fastembed: there is no folder {self.folder}")

    def identity(self) -> list[str]:
        return library_identity(self.who, "fastembed", "fastembed", self.folder or self.model)

    def open(self, bench: Bench) -> DenseIndex:
        return opened(self, bench, lambda: _fast(self))

    def embed(self, bench: Bench, queries: Queries) -> Vectors:
        """Unit vectors of questions."""
        return embedded(self, bench, queries, lambda: _fast(self))


@lru_cache(maxsize=2)
def _fast(part: FastEmbed) -> Encoder:
    return _Fast(part)


class _Fast:
    def __init__(self, part: FastEmbed) -> None:
        try:
            import fastembed
        except ImportError as error:
            raise MissingExtraError(part.who, "fastembed") from error
        local = {} if part.folder is None else {"specific_model_path": part.folder, "local_files_only": True}
        with loading(part.who, part.folder or part.model):
            self.model: Any = fastembed.TextEmbedding(part.model, threads=1, **local)
        self.workers = part.threads

    def encode(self, texts: Sequence[str], kind: Kind) -> tuple[Any, Ints | None]:
        embed = self.model.query_embed if kind == "query" else self.model.passage_embed
        vectors = np.array(in_threads(lambda text: next(iter(embed([text]))), texts, workers=self.workers))
        tokenizer = getattr(getattr(self.model, "model", None), "tokenizer", None)
        if tokenizer is None:
            return vectors, None
        found = tokenizer.encode_batch(list(texts))
        # What is left over comes in pieces that repeat the special tokens.
        over = [sum(len(o.ids) - sum(o.special_tokens_mask) for o in e.overflowing) for e in found]
        return vectors, np.array(over, np.int64)
