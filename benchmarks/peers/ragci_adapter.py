"""rag-ci's adapter: the pipeline that all tools share. Matching, metrics, tests and report are rag-ci's own.

The environment names the documents (PEERS_DOCUMENTS, JSON Lines), the grid (PEERS_GRID, JSON) and, for a run of one
cell, which one (PEERS_CELL, JSON).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import parts
from ragci.contract import Chunk, ParamSpec, RetrievalTrace, Step, adapter

GRID = json.loads(os.environ["PEERS_GRID"])
CELL = json.loads(os.environ.get("PEERS_CELL", "{}"))


@adapter(
    index_time_params=[ParamSpec(name="chunker", values=GRID["chunker"])],
    query_time_params=[
        ParamSpec(name="first", values=GRID["embedder"]),
        ParamSpec(name="reranker", values=GRID["reranker"]),
    ],
    primary_metric="recall@5",
)
class Shared:
    def build_index(self, _: Any, config: dict[str, Any]) -> tuple[parts.Corpus, list[Chunk]]:
        chunks, config = [], config | CELL
        with Path(os.environ["PEERS_DOCUMENTS"]).open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                for a, b in parts.spans(config["chunker"], row["id"], row["text"]):
                    chunks.append(Chunk(text=row["text"][a:b], doc_id=row["id"], char_start=a, char_end=b))
        return parts.Corpus([c.text for c in chunks]), chunks

    def retrieve(self, query: str, index: Any, config: dict[str, Any]) -> RetrievalTrace:
        (corpus, chunks), config = index, config | CELL
        reranks = config["reranker"] != "none"
        places = corpus.first(config["first"], query, parts.POOL if reranks else 10)
        places = corpus.rerank(config["reranker"], query, places)[:10]
        return RetrievalTrace(steps=[Step(query=query, chunks=[chunks[p] for p in places.tolist()])])
