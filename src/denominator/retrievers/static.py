"""Static token vectors: the table and the tokenizer that the `wordllama` wheel carries, read without importing it.

(Importing it would load an HTTP client and configure the root logger.) A text's vector is the mean of its tokens'
vectors, scaled to length 1, as `WordLlama.embed(norm=True)` gives it; a text without tokens has the zero vector.
"""

from __future__ import annotations

import json
import os
import re
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from denominator.cache import Payload, describe
from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench
from denominator.retrievers.dense import DenseIndex, Vectors, unit_vectors
from denominator.retrievers.table import Queries
from denominator.types import Ints

DIMENSIONS = 256
PIECE = re.compile(r" *[^ ]+| +")
NAME = "wordllama l2_supercat 256"


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """Token counts of texts (CSR): tokens of text i are `tokens[offsets[i]:offsets[i+1]]`, ascending, each once."""

    offsets: Ints
    tokens: npt.NDArray[np.uint16]
    counts: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.offsets) - 1


class _Pieces(dict[str, int]):
    """Numbers texts in the order in which they first appear, and keeps the tokens of those that were cut."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []  # numbered, not cut yet
        self.tokens = array("i")  # of all pieces, one after the other
        self.ends = array("q", [0])  # those of piece i: tokens[ends[i] : ends[i + 1]]

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        self.new.append(text)
        return number

    def taken(self, which: Ints) -> tuple[Ints, Ints]:
        """`(ends, ids)`: the tokens of these pieces one after the other, and where those of each end.

        Copies, and no view outlives the call: an array cannot grow while one looks into it.
        """
        bounds, flat = np.frombuffer(self.ends, np.int64), np.frombuffer(self.tokens, np.int32)
        starts = bounds[which]
        size = bounds[which + 1] - starts
        ends = np.cumsum(size)
        return ends, flat[np.repeat(starts - (ends - size), size) + np.arange(int(size.sum()))].astype(np.int64)


PIECES = 1 << 18
"""Distinct pieces that are remembered: a corpus of random words must not fill the memory."""
VECTORS_PER_BLOCK = 4096


class StaticModel:
    """The table of token vectors and its tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.weights = folder / "weights" / "l2_supercat_256.safetensors"
        self.tokens = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
        for path in (self.weights, self.tokens):
            if not path.is_file():
                raise ConfigError(
                    f"the static embedder's file {path.name} is missing from the installed wordllama; "
                    "to mend it: pip install --force-reinstall 'wordllama==0.4.0.post1'"
                )
        self._pieces = _Pieces()
        self._lock = threading.Lock()

    @cached_property
    def table(self) -> npt.NDArray[np.float16]:
        """Vectors by token, memory-mapped."""
        with self.weights.open("rb") as source:
            size = int.from_bytes(source.read(8), "little")
            header = json.loads(source.read(size))["embedding.weight"]
        if header["dtype"] != "F16":
            raise ConfigError(f"the static embedder's weights are {header['dtype']}, expected F16")
        shape = tuple(header["shape"])
        return np.memmap(self.weights, np.float16, "r", 8 + size + header["data_offsets"][0], shape)

    @cached_property
    def identity(self) -> str:
        """Hash of both files: part of every key."""
        import hashlib

        digest = hashlib.sha256()
        for path in (self.weights, self.tokens):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    @cached_property
    def _tokenizer(self) -> tuple[Any, bool]:
        """The tokenizer, and whether it may work piece by piece.

        It writes a blank as "▁" and never joins one to what stands before it. Where the vocabulary confirms that, a
        text's tokens are those of its blank-separated pieces one after the other, and each piece is cut only once.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # cells of a sweep share the cores
        from tokenizers import Tokenizer, normalizers

        tokenizer = Tokenizer.from_file(str(self.tokens))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        by_piece = all("▁" not in token.lstrip("▁") for token in tokenizer.get_vocab())
        if by_piece:
            tokenizer.normalizer = normalizers.Replace(" ", "▁")
        return tokenizer, by_piece

    def token_ids(self, texts: Sequence[str]) -> tuple[Ints, npt.NDArray[np.int64]]:
        """`(offsets, ids)` of the texts' tokens in order, without special ones."""
        tokenizer, by_piece = self._tokenizer
        if not by_piece:
            rows = [e.ids for e in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
            offsets = np.concatenate(([0], np.cumsum([len(r) for r in rows]))).astype(np.int64)
            return offsets, np.array([t for r in rows for t in r], np.int64)
        with self._lock:
            # The blank that goes before every text is the tokenizer's own rule; an empty text gets none.
            pieces = [PIECE.findall(" " + text) if text else [] for text in texts]
            if len(self._pieces) > PIECES:
                self._pieces = _Pieces()
            per_text = np.cumsum([0, *map(len, pieces)])
            every = chain.from_iterable(pieces)
            which = np.fromiter(map(self._pieces.__getitem__, every), np.int64, int(per_text[-1]))
            self._cut()
            ends, ids = self._pieces.taken(which)
        return np.concatenate(([0], ends))[per_text], ids

    def _cut(self) -> None:
        """Cuts the pieces that were numbered but not cut yet."""
        tokenizer, known = self._tokenizer[0], self._pieces
        for first in range(0, len(known.new), 8192):
            for encoding in tokenizer.encode_batch_fast(known.new[first : first + 8192], add_special_tokens=False):
                known.tokens.extend(encoding.ids)
                known.ends.append(len(known.tokens))
        known.new.clear()

    def bags(self, texts: Sequence[str]) -> Bags:
        offsets, ids = self.token_ids(texts)
        ids = np.minimum(ids, len(self.table) - 1)  # as the library clips
        owner = np.repeat(np.arange(len(texts)), np.diff(offsets))
        codes, counts = np.unique(owner * len(self.table) + ids, return_counts=True)
        text = codes // len(self.table)
        per_text = np.bincount(text, minlength=len(texts))
        return Bags(
            np.concatenate(([0], np.cumsum(per_text))).astype(np.int64),
            (codes % len(self.table)).astype(np.uint16),
            counts.astype(np.uint32),
        )

    def vectors(self, bags: Bags, dimensions: int, what: str) -> Vectors:
        """Mean of the token vectors, scaled to length 1. Only directions matter, so the sum will do."""
        blocks = list(self.vector_blocks(bags, dimensions, what))
        return np.concatenate(blocks) if blocks else np.zeros((0, dimensions), np.float32)

    def vector_blocks(self, bags: Bags, dimensions: int, what: str) -> Iterator[Vectors]:
        """The same in blocks of texts: the same bits as at once, and memory for one block of float64 sums."""
        from scipy.sparse import csr_matrix

        size = VECTORS_PER_BLOCK
        blocks = [bags.offsets[a : a + size + 1] for a in range(0, len(bags), size)]
        known = np.zeros(len(self.table), np.bool_)
        for at in blocks:
            known[bags.tokens[at[0] : at[-1]]] = True
        used = np.flatnonzero(known)
        column = np.cumsum(known, dtype=np.int32) - 1
        table = np.ascontiguousarray(self.table[used, :dimensions], np.float64)
        for at in blocks:
            if not len(used):
                yield np.zeros((len(at) - 1, dimensions), np.float32)
                continue
            tokens = column[bags.tokens[at[0] : at[-1]]]
            counts = bags.counts[at[0] : at[-1]].astype(np.float64)
            yield unit_vectors(
                csr_matrix((counts, tokens, at - at[0]), shape=(len(at) - 1, len(used))) @ table,
                what,
            )


@lru_cache(maxsize=1)
def static_model() -> StaticModel:
    """The one model of this process."""
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the static embedder needs wordllama; to mend it: pip install 'wordllama==0.4.0.post1'")
    return StaticModel(Path(spec.submodule_search_locations[0]))


@dataclass(frozen=True, slots=True)
class Static:
    """Mean of static token vectors (wordllama, 256 dimensions; fewer are the first ones), compared by cosine."""

    dimensions: int = DIMENSIONS
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if isinstance(self.dimensions, bool) or not 1 <= self.dimensions <= DIMENSIONS:
            raise ConfigError(f"embedder static: dimensions must be 1 to {DIMENSIONS}, found {self.dimensions!r}")

    def identity(self) -> str:
        return static_model().identity

    def open(self, bench: Bench) -> DenseIndex:
        model, table = static_model(), bench.table

        def compute() -> Payload:
            bags = chunk_bags(bench)
            shape = (len(table), self.dimensions)
            made = bench.cache.gather(shape, np.float32, lambda: model.vector_blocks(bags, self.dimensions, "chunk"))
            return Payload({"vectors": made})

        inputs = {"part": describe(self), "chunks": table.key}
        entry = bench.stage("static_vectors", inputs, compute, f"{NAME}, {self.dimensions} dims, {len(table)} chunks")
        return DenseIndex(entry["vectors"], bench.order, self.embed, {"index_bytes": float(entry.array_bytes)})

    def embed(self, bench: Bench, queries: Queries) -> Vectors:
        """Unit vectors of questions; those of the sweep are made once in a process."""
        model = static_model()

        def make() -> Vectors:
            return model.vectors(model.bags(queries.texts), self.dimensions, "question")

        if not queries.kept:
            return make()
        return bench.cache.once(f"static:{self.dimensions}:{queries.key}", make, lambda made: made.nbytes)


def chunk_bags(bench: Bench) -> Bags:
    """Token counts of every chunk: a stage of its own, because vectors and MaxSim both start from it."""
    model, table = static_model(), bench.table

    def compute() -> Payload:
        offsets: list[Ints] = []
        tokens: list[npt.NDArray[Any]] = []
        counts: list[npt.NDArray[Any]] = []
        for batch in table.batches():
            bags = model.bags(batch)
            offsets.append(bags.offsets)
            tokens.append(bags.tokens)
            counts.append(bags.counts)
        return Payload(
            {
                "offsets": _joined_offsets(offsets),
                "tokens": _joined(tokens, np.uint16),
                "counts": _joined(counts, np.uint32),
            }
        )

    inputs = {"model": model.identity, "code": Static.code, "chunks": table.key}
    entry = bench.stage("static_tokens", inputs, compute, f"{NAME}, {len(table)} chunks")
    return Bags(np.asarray(entry["offsets"]), np.asarray(entry["tokens"]), np.asarray(entry["counts"]))


def _joined_offsets(parts: Iterable[Ints]) -> Ints:
    lengths = [np.diff(p) for p in parts]
    return np.concatenate(([0], np.cumsum(np.concatenate(lengths) if lengths else []))).astype(np.int64)


def _joined(parts: list[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    """The parts as one array; they are let go, so that a large corpus is not held twice."""
    joined = np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
    parts.clear()
    return joined
