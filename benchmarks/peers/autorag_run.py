"""AutoRAG on the shared chunks and vectors: one project for each chunker, `python autorag_run.py OUT CHUNKER…`.

AutoRAG takes chunks as its corpus and chunk ids as gold; a span's chunks are those that hold half of it. What it can do
offline without torch is BM25 and a vector store; its rerankers need torch or a service.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import autorag
import pandas as pd
import yaml
from autorag.embedding.base import embedding_models
from autorag.evaluator import Evaluator
from llama_index.core.embeddings import BaseEmbedding
from parts import embed, embed_one, spans

Row = dict[str, Any]
METRICS = ["retrieval_recall", "retrieval_precision", "retrieval_ndcg", "retrieval_mrr"]


class SharedEmbedding(BaseEmbedding):
    def _get_query_embedding(self, query: str) -> list[float]:
        return embed_one(query).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed_one(text).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return embed(texts).tolist()

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._get_text_embeddings(texts)


def config(folder: Path) -> Path:
    def node(kind: str, module: dict[str, Any]) -> dict[str, Any]:
        return {"node_type": kind, "strategy": {"metrics": METRICS}, "top_k": 10, "modules": [module]}

    store = {"name": "shared", "db_type": "chroma", "client_type": "persistent", "embedding_model": "shared"}
    store |= {"collection_name": "shared", "path": str(folder / "chroma")}
    nodes = [
        node("lexical_retrieval", {"module_type": "bm25"}),
        node("semantic_retrieval", {"module_type": "vectordb", "vectordb": "shared"}),
    ]
    path = folder / "config.yaml"
    made = {"vectordb": [store], "node_lines": [{"node_line_name": "retrieval", "nodes": nodes}]}
    path.write_text(yaml.safe_dump(made), encoding="utf-8")
    return path


def project(folder: Path, chunker: str, documents: list[dict[str, Any]], questions: list[dict[str, Any]]) -> None:
    """Runs both cells of one chunker."""
    folder.mkdir(parents=True)
    cut = {d["id"]: spans(chunker, d["id"], d["text"]) for d in documents}
    texts = {d["id"]: d["text"] for d in documents}
    moment = {"last_modified_datetime": datetime(2024, 1, 1, tzinfo=UTC)}
    chunks = [
        {"doc_id": f"{name}:{a}-{b}", "contents": texts[name][a:b], "path": name, "start_end_idx": (a, b)}
        for name, found in cut.items()
        for a, b in found
    ]
    asked = []
    for row in questions:
        groups = []
        for gold in row["required_passages"]:
            first, last, name = gold["char_start"], gold["char_end"], gold["doc_id"]
            held = [(a, b) for a, b in cut[name] if 2 * (min(b, last) - max(a, first)) >= last - first]
            groups.append([f"{name}:{a}-{b}" for a, b in held])
        groups = [group for group in groups if group]
        if groups:
            asked.append({"qid": row["id"], "query": row["question"], "retrieval_gt": groups, "generation_gt": [""]})
    pd.DataFrame([chunk | {"metadata": moment} for chunk in chunks]).to_parquet(folder / "corpus.parquet", index=False)
    pd.DataFrame(asked).to_parquet(folder / "qa.parquet", index=False)
    evaluator = Evaluator(str(folder / "qa.parquet"), str(folder / "corpus.parquet"), str(folder / "project"))
    evaluator.start_trial(str(config(folder)), skip_validation=True)


def main() -> None:
    embedding_models["shared"] = autorag.LazyInit(SharedEmbedding)
    documents, questions = (
        [json.loads(line) for line in Path(os.environ[name]).read_text(encoding="utf-8").splitlines()]
        for name in ("PEERS_DOCUMENTS", "PEERS_QUESTIONS")
    )
    out = Path(sys.argv[1]).resolve()
    for name in sys.argv[2:]:
        project(out / name, name, documents, questions)


if __name__ == "__main__":
    main()
