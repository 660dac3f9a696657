"""Rerankers behind HTTP, in the two dialects that there are.

| dialect | asked | answered |
| --- | --- | --- |
| `cohere` (Cohere, Jina, Voyage-like, vLLM) | `{model, query, documents}` | `{results: [{index, relevance_score}]}` |
| `tei` (Text Embeddings Inference) | `{query, texts}` | `[{index, score}]` |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, ClassVar, Literal

import numpy as np

from denominator.cache import Cache
from denominator.endpoints.client import Endpoint, EndpointError, split_on_content
from denominator.endpoints.kept import Kept
from denominator.errors import ConfigError
from denominator.fingerprint import sha
from denominator.rerankers import without
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import Ranked, resorted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank(Endpoint):
    """Scores of `POST {url}/rerank` for the whole pool; a question whose pool is not scored completely has failed.

    `batch`: texts in one request (null: the pool at once; a server that takes fewer is asked in halves). `extra`:
    further fields of the request. `max_characters`: longer texts are cut. `confidence`: whether its scores compare
    across questions. Prices in any currency: by tokens, or by searches (what the server bills, else requests).
    `version`: to be raised when the server changes the model under the same name. Texts carry the document's title, as
    in the index.
    """

    dialect: Literal["cohere", "tei"] = "cohere"
    model: str | None = None
    batch: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    max_characters: int | None = None
    confidence: bool = True
    price_per_million_tokens: float | None = None
    price_per_thousand_searches: float | None = None
    version: str | None = None
    code: ClassVar[int] = 1
    what: ClassVar[str] = "reranker endpoint"
    suffix: ClassVar[str] = "/rerank"

    def __post_init__(self) -> None:
        Endpoint.__post_init__(self)
        if self.dialect not in ("cohere", "tei"):
            raise ConfigError(f"{self.what}: dialect must be cohere or tei, found {self.dialect!r}")
        for name in ("batch", "max_characters"):
            if getattr(self, name) is not None:
                self._whole(name, 1)
        for name in ("price_per_million_tokens", "price_per_thousand_searches"):
            if getattr(self, name) is not None:
                self._at_least(name, 0)
        taken = sorted({"query", "documents", "texts", "model", "top_n"} & set(self.extra))
        if taken:
            raise ConfigError(f"{self.what}: extra cannot set {', '.join(taken)}")

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        rows = [i for i in range(len(ranked)) if ranked.offsets[i] < ranked.offsets[i + 1] and i not in ranked.errors]
        pools = {i: self._pool(bench, ranked, i) for i in rows}
        keys = {i: sha([bench.queries.texts[i], list(pools[i])]) for i in rows}
        namespace = {
            "stage": "rerank",
            "code": self.code,
            "url": self.identity(),
            "dialect": self.dialect,
            "model": self.model,
            "batch": self.batch,
            "extra": dict(self.extra),
            "version": self.version,
        }
        cache = bench.cache if bench.queries.kept else Cache(None)
        kept = Kept(cache, namespace, f"{self.model or self.dialect} rerank")
        client = self.client()
        found, wrong = kept.complete(
            keys, client, lambda i, stop: self._asked(client, bench.queries.texts[i], pools[i], stop)
        )
        scores = np.zeros(len(ranked.unit))
        errors = dict(ranked.errors)
        for i in rows:
            if keys[i] in found:
                scores[ranked.offsets[i] : ranked.offsets[i + 1]] = found[keys[i]]["scores"]
            else:
                errors[i] = f"{self.what}: {wrong[keys[i]]}"
        done = without(resorted(ranked, scores, bench.order), errors)
        facts = {**ranked.facts, **self._costs([found[key] for key in dict.fromkeys(keys.values()) if key in found])}
        return replace(done, confidence=None, has_confidence=self.confidence, facts=facts)

    def _pool(self, bench: Bench, ranked: Ranked, i: int) -> tuple[str, ...]:
        units = ranked.unit[ranked.offsets[i] : ranked.offsets[i + 1]].tolist()
        return tuple(bench.table.indexed(unit)[: self.max_characters] for unit in units)

    def _costs(self, values: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        tokens = sum(value["tokens"] or 0 for value in values)
        searches = sum(value["searches"] for value in values)
        facts = {"reranker_searches": float(searches)}
        if tokens or self.price_per_million_tokens is not None:
            facts["reranker_tokens"] = float(tokens)
        if self.price_per_million_tokens is not None or self.price_per_thousand_searches is not None:
            by_tokens = tokens * (self.price_per_million_tokens or 0.0) / 1e6
            facts["reranker_cost"] = by_tokens + searches * (self.price_per_thousand_searches or 0.0) / 1e3
        return facts

    # ---------------------------------------------------------------- asking

    def _asked(self, client: Any, question: str, texts: Sequence[str], stop: Event) -> dict[str, Any]:
        """Scores in the order of the texts. Raises EndpointError unless each has exactly one."""
        from denominator.tokens import count

        scores: list[float | None] = [None] * len(texts)
        bill: dict[str, Any] = {"tokens": None, "searches": 0}

        def ask(places: Sequence[int]) -> None:
            part = [texts[place] for place in places]
            if self.dialect == "cohere":
                body = {"query": question, "documents": part, "top_n": len(part), **self.extra}
            else:
                body = {"query": question, "texts": part, **self.extra}
            if self.model is not None:
                body["model"] = self.model
            reply = client.call(body, stop=stop)
            for place, score in zip(places, self._scores(reply, len(part)), strict=True):
                scores[place] = score
            tokens, searches = _billed(reply)
            if tokens is None and self.price_per_million_tokens is not None:
                tokens = sum(map(count, part)) + len(part) * count(question)
            if tokens is not None:
                bill["tokens"] = (bill["tokens"] or 0) + tokens
            bill["searches"] += searches

        def failed(place: int, error: EndpointError) -> None:  # noqa: ARG001
            raise error

        size = self.batch or len(texts)
        for a in range(0, len(texts), size):
            split_on_content(range(a, min(a + size, len(texts))), ask, failed)
        return {"scores": scores, **bill}

    def _scores(self, reply: Any, n: int) -> list[float]:
        name = "relevance_score" if self.dialect == "cohere" else "score"
        items = reply.get("results") if self.dialect == "cohere" and isinstance(reply, Mapping) else reply
        if not isinstance(items, list):
            wanted = "a list `results`" if self.dialect == "cohere" else "a list"
            raise EndpointError(
                f"the answer is not {wanted}; does the server speak another dialect than {self.dialect}?"
            )
        scores: list[float | None] = [None] * n
        for item in items:
            index = item.get("index") if isinstance(item, Mapping) else None
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < n:
                raise EndpointError(f"an item has index {index!r}, expected 0 to {n - 1}")
            if scores[index] is not None:
                raise EndpointError(f"two items have index {index}")
            score = item.get(name)
            if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
                raise EndpointError(f"{name} of index {index} is {score!r}, expected a finite number")
            scores[index] = float(score)
        given = [score for score in scores if score is not None]
        if len(given) < n:
            raise EndpointError(f"{len(given)} of {n} texts were scored; index {scores.index(None)} is missing")
        return given


def _billed(reply: Any) -> tuple[int | None, int]:
    """Tokens and searches as Jina and vLLM (`usage`) or Cohere (`meta.billed_units`) tell them."""

    def number(node: Any, *names: str) -> int | None:
        for name in names:
            node = node.get(name) if isinstance(node, Mapping) else None
        good = isinstance(node, (int, float)) and not isinstance(node, bool) and math.isfinite(node) and node >= 0
        return int(node) if good else None

    tokens = number(reply, "usage", "total_tokens")
    if tokens is None:
        tokens = number(reply, "meta", "billed_units", "input_tokens")
    searches = number(reply, "meta", "billed_units", "search_units")
    return tokens, 1 if searches is None else searches
