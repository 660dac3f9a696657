"""Embedders of other libraries: sentence-transformers and fastembed (extras of the same names).

Neither library is imported before it is used, and neither is needed for anything else. A name that is no folder is
looked for by the library itself, in its cache or on its hub. Last bits of vectors may depend on `batch` and on the
library's own threads; vectors are kept on disk once they are made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from denominator.cache import Entry, Payload, describe
from denominator.errors import ConfigError, MissingExtraError
from denominator.retrievers.bench import Bench
from denominator.retrievers.dense import DenseIndex, Vectors, unit_vectors
from denominator.retrievers.table import Queries
from denominator.types import Ints

Kind = Literal["query", "passage"]


class Encoder(Protocol):
    """A loaded model: vectors of texts, and how many tokens of each it does not read (None: it does not say)."""

    def encode(self, texts: Sequence[str], kind: Kind) -> tuple[Any, Ints | None]: ...


def check_model(who: str, model: str, batch: int) -> None:
    if not isinstance(model, str) or not model.strip():
        raise ConfigError(f"{who}: model must be a name or a folder, found {model!r}")
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ConfigError(f"{who}: batch must be a whole number of at least 1, found {batch!r}")


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
    to be shortened. `device`: `cpu`, `cuda`, …; None: the library chooses.
    """

    model: str
    revision: str | None = None
    max_tokens: int | None = None
    dimensions: int | None = None
    query_prefix: str = ""
    passage_prefix: str = ""
    device: str | None = "cpu"
    batch: int = 32
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("batch", "device")

    def __post_init__(self) -> None:
        check_model("embedder sentence_transformers", self.model, self.batch)

    def identity(self) -> list[str]:
        who = "embedder sentence_transformers"
        return library_identity(who, "sentence-transformers", "sentence-transformers", self.model)

    def open(self, bench: Bench) -> DenseIndex:
        return opened(self, bench, lambda: _sentences(self))

    def embed(self, bench: Bench, queries: Queries) -> Vectors:
        """Unit vectors of questions."""
        return embedded(self, bench, queries, lambda: _sentences(self))


@lru_cache(maxsize=2)
def _sentences(part: SentenceTransformer) -> Encoder:
    return _Sentences(part)


class _Sentences:
    def __init__(self, part: SentenceTransformer) -> None:
        try:
            import sentence_transformers
        except ImportError as error:
            raise MissingExtraError("embedder sentence_transformers", "sentence-transformers") from error
        self.batch = part.batch
        self.model: Any = sentence_transformers.SentenceTransformer(
            part.model, revision=part.revision, device=part.device, truncate_dim=part.dimensions
        )
        if part.max_tokens is not None:
            self.model.max_seq_length = part.max_tokens

    def encode(self, texts: Sequence[str], kind: Kind) -> tuple[Any, Ints | None]:  # noqa: ARG002
        vectors = self.model.encode(list(texts), batch_size=self.batch, convert_to_numpy=True, show_progress_bar=False)
        most = self.model.max_seq_length
        if most is None:
            return vectors, np.zeros(len(texts), np.int64)
        ids = self.model.tokenizer(list(texts), truncation=False, padding=False)["input_ids"]
        return vectors, np.array([max(0, len(row) - most) for row in ids], np.int64)


@dataclass(frozen=True, slots=True)
class FastEmbed:
    """A model of fastembed, by name, compared by cosine (extra `fastembed`).

    `folder`: where the model's files lie, for use without a network; the name still says what model it is. Texts over
    the model's limit are cut, counted and reported.
    """

    model: str = "BAAI/bge-small-en-v1.5"
    folder: str | None = None
    query_prefix: str = ""
    passage_prefix: str = ""
    batch: int = 64
    threads: int = 0
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("batch", "threads", "folder")

    def __post_init__(self) -> None:
        check_model("embedder fastembed", self.model, self.batch)
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ConfigError(f"embedder fastembed: there is no folder {self.folder}")

    def identity(self) -> list[str]:
        return library_identity("embedder fastembed", "fastembed", "fastembed", self.folder or self.model)

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
            raise MissingExtraError("embedder fastembed", "fastembed") from error
        from denominator.retrievers.threads import threads

        local = {} if part.folder is None else {"specific_model_path": part.folder, "local_files_only": True}
        self.batch = part.batch
        self.model: Any = fastembed.TextEmbedding(part.model, threads=part.threads or threads(), **local)

    def encode(self, texts: Sequence[str], kind: Kind) -> tuple[Any, Ints | None]:
        embed = self.model.query_embed if kind == "query" else self.model.passage_embed
        vectors = np.array(list(embed(list(texts), batch_size=self.batch)))
        tokenizer = getattr(getattr(self.model, "model", None), "tokenizer", None)
        if tokenizer is None:
            return vectors, None
        found = tokenizer.encode_batch(list(texts))
        # What is left over comes in pieces that repeat the special tokens.
        over = [sum(len(o.ids) - sum(o.special_tokens_mask) for o in e.overflowing) for e in found]
        return vectors, np.array(over, np.int64)
