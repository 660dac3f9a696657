"""The one-liners of docs/retrievers.md for other frameworks, as the page has them, run with those frameworks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from denominator.chunkers import Fixed
from denominator.embedders import Callable
from tests.endpoint_parts import QUESTIONS, TEXTS, bench_of, rankings
from tests.http_server import counts, overlap

PAGE = Path(__file__).resolve().parents[1] / "docs" / "retrievers.md"
BEST = ["filters", "refunds", "paints"]

pytestmark = pytest.mark.peers


def functions_of(framework, **names):
    """What the page's blocks of one framework define, with the names that they take for granted."""
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(rf"^```python {framework}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)
    return names


def firsts(function, **options):
    bench = bench_of()
    ranked, _ = bench.ranked(Callable(function, **options))
    assert not ranked.errors
    return [row[0] for row in rankings(bench, ranked)]


def test_the_page_has_no_other_python():
    kinds = set(re.findall(r"^```python (\S+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert kinds == {"my_search.py", "langchain", "llama_index", "haystack"}


@pytest.fixture(scope="module")
def langchain():
    pytest.importorskip("langchain_core", reason="needs langchain-core")
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    class Counted(Embeddings):
        def embed_documents(self, texts):
            return [[float(x) for x in counts(t)] for t in texts]

        def embed_query(self, text):
            return self.embed_documents([text])[0]

    store = InMemoryVectorStore(Counted())
    store.add_documents([Document(id=d, page_content=t, metadata={"document_id": d}) for d, t in TEXTS.items()])
    return functions_of("langchain", store=store, retriever=store.as_retriever(search_kwargs={"k": 1}))


@pytest.mark.parametrize("name", ["search", "by_rank", "awaited", "by_document"])
def test_langchain(langchain, name):
    assert firsts(langchain[name]) == BEST


def test_langchain_gives_as_many_as_are_asked_for(langchain):
    """The retriever's own k is 1; the page's functions ask for more."""
    for name in ("search", "by_rank", "awaited"):
        bench = bench_of(depth=4)
        ranked, _ = bench.ranked(Callable(langchain[name], concurrency=2))
        assert all(len(row) == 4 for row in rankings(bench, ranked)), name


def test_langchain_batch(langchain):
    assert firsts(langchain["batched"], many=True) == BEST


def test_langchain_passages_by_their_place(langchain):
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    bench = bench_of(chunker=Fixed(4))
    units = bench.table.units

    class Overlap(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager, k):
            found = [
                Document(
                    page_content=bench.table.sent(i),
                    metadata={"document_id": units.docs[units.doc[i]], "start_index": int(units.start[i])},
                )
                for i in range(len(units))
            ]
            return sorted(found, key=lambda d: -overlap(query, d.page_content))[:k]

    functions = functions_of("langchain", store=None, retriever=Overlap())
    ranked, _ = bench.ranked(Callable(functions["by_place"]))
    assert not ranked.errors
    assert [row[0] for row in rankings(bench, ranked)] == BEST
    assert len(ranked.one(0).unit) == min(10, len(units))


@pytest.mark.parametrize("name", ["search", "awaited"])
def test_llama_index(name):
    pytest.importorskip("llama_index.core", reason="needs llama-index-core")
    from llama_index.core import Document, VectorStoreIndex
    from llama_index.core.embeddings import BaseEmbedding

    class Counted(BaseEmbedding):
        def _get_text_embedding(self, text):
            return [float(x) for x in counts(text)]

        def _get_query_embedding(self, query):
            return self._get_text_embedding(query)

        async def _aget_query_embedding(self, query):
            return self._get_text_embedding(query)

    documents = [Document(doc_id=d, text=t) for d, t in TEXTS.items()]
    index = VectorStoreIndex.from_documents(documents, embed_model=Counted())
    functions = functions_of("llama_index", retriever=index.as_retriever(similarity_top_k=100))
    assert firsts(functions[name]) == BEST


def test_haystack():
    pytest.importorskip("haystack", reason="needs haystack-ai")
    from haystack import Document
    from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore()
    store.write_documents([Document(id=d, content=t) for d, t in TEXTS.items()])
    functions = functions_of("haystack", retriever=InMemoryBM25Retriever(document_store=store))
    bench = bench_of(questions=QUESTIONS)
    ranked, _ = bench.ranked(Callable(functions["search"]))
    assert not ranked.errors
    assert [row[0] for row in rankings(bench, ranked)] == BEST
