"""Small benches, parts and rankings that the tests of the endpoint parts share."""

from __future__ import annotations

from denominator.cache import Cache
from denominator.chunkers import WholeDocument
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import Queries, columns_of
from denominator.types import Document

TEXTS = {
    "filters": "Clean the filter of the pump when the pressure falls.",
    "pumps": "The pump lifts water. The pump runs on a motor.",
    "refunds": "A late order is refunded. Name the order.",
    "paints": "The paint dries in four hours. Keep paint away from frost.",
}
QUESTIONS = ("Where is the filter of the pump?", "When is an order refunded?", "Does paint stand frost?")
QUICK = {"backoff": 0.001, "retries": 2, "timeout": 5.0}


def bench_of(texts=None, questions=QUESTIONS, *, depth=10, chunker=None, cache=None, titles=None):
    documents = tuple(
        Document(i, text, (titles or {}).get(i)) for i, text in sorted((TEXTS if texts is None else texts).items())
    )
    chunker = chunker or WholeDocument()
    columns = columns_of(documents, [chunker.chunk(d) for d in documents])
    table = columns.table(repr((documents, chunker)), documents)
    return Bench(cache or Cache(None), table, Queries(tuple(questions)), depth)


def rankings(bench, ranked):
    """Document ids of each row, in order; None where the question failed."""
    units = bench.table.units
    out = []
    for i in range(len(ranked)):
        row = ranked.unit[ranked.offsets[i] : ranked.offsets[i + 1]]
        out.append(None if i in ranked.errors else [units.docs[units.doc[u]] for u in row])
    return out
