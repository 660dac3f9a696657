"""Parts that ask a server over HTTP: embeddings, reranking, chat, search. See docs/endpoints.md."""
