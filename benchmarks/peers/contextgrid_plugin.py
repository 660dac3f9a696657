"""context-grid's plug-ins: the chunkers, the embedder and two rerankers that all tools share. Index, search, matching,
metrics and report are context-grid's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from contextgrid.chunk import CHUNKERS
from contextgrid.chunk.base import ChunkBuilder
from contextgrid.embed import EMBEDDERS
from contextgrid.embed.base import EmbeddingResult
from contextgrid.index.base import Scored
from contextgrid.rerank import RERANKERS
from parts import Corpus, embed, embed_one, numbered, spans

MADE: dict[str, list[Any]] = {}
OPEN: dict[str, tuple[Corpus, dict[str, int]]] = {}


@dataclass(frozen=True)
class SharedChunker:
    which: str

    name: ClassVar[str] = "shared"
    version: ClassVar[str] = "1"

    def chunk(self, parsed: Any) -> list[Any]:
        builder = ChunkBuilder(parsed)
        made = [
            builder.build(a, b, index=i, extra_meta={"chunker": self.which})
            for i, (a, b) in enumerate(spans(self.which, parsed.id, parsed.text))
        ]
        MADE.setdefault(self.which, []).extend(made)
        return made


@dataclass(frozen=True)
class SharedEmbedder:
    name: ClassVar[str] = "static"
    version: ClassVar[str] = "1"
    dimensions: ClassVar[int] = 256
    normalised: ClassVar[bool] = True
    max_tokens: ClassVar[int | None] = None

    def prepare(self, documents: Sequence[str]) -> None:  # noqa: ARG002
        return None

    def embed_documents(self, texts: Sequence[str]) -> EmbeddingResult:
        return EmbeddingResult(vectors=embed(texts))

    def embed_queries(self, texts: Sequence[str]) -> EmbeddingResult:
        return EmbeddingResult(vectors=embed_one(texts[0])[None, :] if len(texts) == 1 else embed(texts))


@dataclass(frozen=True)
class SharedReranker:
    how: str

    name: ClassVar[str] = "shared"
    version: ClassVar[str] = "1"

    def rerank(self, query: str, candidates: Sequence[Any], k: int) -> list[Scored]:
        if not candidates:
            return []
        import numpy as np

        which = candidates[0].meta["chunker"]
        if which not in OPEN:
            OPEN[which] = Corpus([c.text for c in MADE[which]]), numbered(c.id for c in MADE[which])
        corpus, numbers = OPEN[which]
        given = np.array([numbers[c.id] for c in candidates], np.int64)
        order = corpus.rerank(self.how, query, given)[:k]
        made = MADE[which]
        return [Scored(made[place].id, float(len(candidates) - i)) for i, place in enumerate(order.tolist())]


CHUNKERS.register("shared", shorthand="which", doc="denominator's chunkers")(SharedChunker)
EMBEDDERS.register("static", doc="denominator's static model")(SharedEmbedder)
RERANKERS.register("shared", shorthand="how", doc="mix or maxsim")(SharedReranker)
