"""Which chunker, embedder and reranker to use for retrieval-augmented generation, with numbers to trust."""

__version__ = "0.1.0"
