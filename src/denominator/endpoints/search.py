"""A search service of the user's as the retriever: what is sent and where the hits are is written in the YAML.

It serves OpenSearch, Elasticsearch, Qdrant, Weaviate, Typesense, a service of one's own: whatever takes a question over
HTTP and answers with JSON. Nothing of the mapping is run as code: the request is filled in by name, and the response is
read by JMESPath expressions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Event
from typing import Any, ClassVar, Literal

import numpy as np

from denominator.cache import Cache
from denominator.endpoints.client import Endpoint, EndpointError, address_in_key, filled, filled_address
from denominator.endpoints.embeddings import Embedded, OpenAI
from denominator.endpoints.kept import Kept
from denominator.errors import ConfigError
from denominator.fingerprint import sha
from denominator.retrievers.bench import Bench
from denominator.retrievers.own import ChunkFinder
from denominator.retrievers.table import Queries, Ranked, ranked_of

PATHS = ("hits", "id", "score", "document", "text", "start", "end", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSearch(Endpoint):
    """Asks `method url` for each question; use it with `chunker: none`, or with chunks of the same ids.

    In `url`, `params` and `body`, `{question}` and `{depth}` (how many hits are wanted) are filled in, and `{vector}`
    where `vector` is an embeddings part. `response` names JMESPath expressions: `hits`, the list; inside a hit `id`,
    and if wanted `score`, `document` (where the id is not that of a chunk or a document of the corpus), `text` (then
    the chunk of that document that has this text is meant), `start` and `end`; `failed` is true where the service says
    that its answer is not complete. Without scores the order counts. `lower_is_better`: scores are distances.

    Several hits in one document count once, at the best place. `confidence`: whether scores compare across questions.
    Results are kept only under a declared `version`, since the service's content may change.
    """

    method: Literal["POST", "GET"] = "POST"
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    response: Mapping[str, str] = field(default_factory=lambda: {"hits": "hits", "id": "id", "score": "score"})
    lower_is_better: bool = False
    vector: OpenAI | None = None
    confidence: bool = True
    version: str | None = None
    code: ClassVar[int] = 1
    what: ClassVar[str] = "embedder http"

    def __post_init__(self) -> None:
        Endpoint.__post_init__(self)
        if self.method not in ("POST", "GET"):
            raise ConfigError(f"{self.what}: method must be POST or GET, found {self.method!r}")
        unknown = sorted(set(self.response) - set(PATHS))
        if unknown or not {"hits", "id"} <= set(self.response):
            found = ", ".join(map(str, self.response)) or "nothing"
            raise ConfigError(f"{self.what}: response needs hits and id, and knows {', '.join(PATHS)}; found {found}")
        if ("start" in self.response) != ("end" in self.response):
            raise ConfigError(f"{self.what}: response needs start and end, or neither of them")
        for name, path in self.response.items():
            _compiled(path, f"{self.what}: response.{name}")
        if self.vector is not None and not isinstance(self.vector, OpenAI):
            raise ConfigError(f"{self.what}: vector must be an embeddings part, found {type(self.vector).__name__}")
        asked = repr([self.url, dict(self.params), self.body])
        if "{question}" not in asked and "{vector}" not in asked:
            raise ConfigError(f"{self.what}: neither url, params nor body holds {{question}} or {{vector}}")
        if "{vector}" in asked and self.vector is None:
            raise ConfigError(f"{self.what}: {{vector}} needs the setting `vector`, an embeddings part")

    @property
    def cacheable(self) -> bool:
        return self.version is not None

    def open(self, bench: Bench) -> SearchIndex:
        return SearchIndex(self, bench)


@lru_cache(maxsize=256)
def _compiled(path: str, what: str) -> Any:
    import jmespath

    try:
        compiled = jmespath.compile(path)
        with contextlib.suppress(jmespath.exceptions.JMESPathTypeError):  # an empty answer has no values to work on
            compiled.search({})  # names functions that do not exist
    except (jmespath.exceptions.JMESPathError, TypeError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{what}: {path!r} is not a JMESPath expression ({why})") from None
    return compiled


class SearchIndex(ChunkFinder):
    """The service with the tables that its ids are looked up in."""

    def __init__(self, part: HttpSearch, bench: Bench) -> None:
        super().__init__(bench.table)
        self.part, self.order = part, bench.order
        self.paths = {name: _compiled(path, f"{part.what}: response.{name}") for name, path in part.response.items()}
        self.of_text: dict[tuple[str, str], str] = {}
        if "text" in self.paths:
            units = bench.table.units
            for i, unit_id in enumerate(units.ids):
                self.of_text.setdefault((units.docs[units.doc[i]], bench.table.sent(i).strip()), unit_id)
        self.facts: Mapping[str, float] = {}
        self.asked: dict[str, Embedded] = {}
        if part.vector is not None:
            self.asked[bench.queries.key] = part.vector.questions(bench, bench.queries, None)
            tokens = self.asked[bench.queries.key].tokens
            self.facts = {"embedder_tokens": float(tokens)}
            if part.vector.price_per_million_tokens is not None:
                self.facts["embedder_cost"] = tokens * part.vector.price_per_million_tokens / 1e6

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        part, depth = self.part, bench.depth
        client = part.client()
        errors: dict[int, str] = {}
        values: list[dict[str, Any]] = [{"question": text, "depth": depth} for text in queries.texts]
        if part.vector is not None:
            made = self.asked.get(queries.key) if queries.kept else None
            if made is None:
                made = part.vector.questions(bench, queries, None)
            errors |= made.errors
            for i, vector in enumerate(made.vectors):
                values[i]["vector"] = vector.tolist()
        requests: list[tuple[str, dict[str, str], Any]] = []
        for value in values:
            params = {k: str(v) for k, v in filled(part.params, value).items()}
            requests.append((filled_address(client.bare_url, value), params, filled(part.body, value)))
        keys = [sha([address_in_key(url), params, body]) for url, params, body in requests]
        cache = bench.cache if queries.kept and part.version is not None else Cache(None)
        namespace = {
            "stage": "search",
            "code": part.code,
            "method": part.method,
            "response": dict(part.response),
            "version": part.version,
        }
        kept = Kept(cache, namespace, "search service")
        found: dict[str, list[dict[str, Any]]] = {key: value for key, (value, _) in kept.find(keys).items()}
        todo = [i for i, key in enumerate(keys) if key not in found and i not in errors and queries.texts[i].strip()]

        def work(j: int, stop: Event) -> list[dict[str, Any]]:
            url, params, body = requests[todo[j]]
            return self.read(client.call(body, method=part.method, url=url, params=params, stop=stop))

        asking = client.each(len(todo), work)
        try:
            for j, reply in asking:
                if isinstance(reply, EndpointError):
                    errors[todo[j]] = f"{part.what}: {reply}"
                else:
                    found[keys[todo[j]]] = reply
                    kept.add(keys[todo[j]], reply)
        finally:
            asking.close()
            kept.flush()
        return self._ranked(queries, [found.get(key, []) for key in keys], errors, depth)

    def read(self, reply: Any) -> list[dict[str, Any]]:
        """The hits of one answer by the response's expressions. Raises EndpointError where they are not there."""
        if "failed" in self.paths and self._at("failed", reply):
            raise EndpointError(f"the service says that its answer is not complete ({self.part.response['failed']})")
        hits = self._at("hits", reply)
        if not isinstance(hits, list):
            keys = f"the keys {', '.join(list(reply)[:10])}" if isinstance(reply, Mapping) else type(reply).__name__
            raise EndpointError(f"no list of hits at {self.part.response['hits']!r}; the answer has {keys}")
        names = [name for name in PATHS if name in self.paths and name not in ("hits", "failed")]
        items = []
        for n, hit in enumerate(hits):
            item = {name: self._at(name, hit) for name in names}
            for name in ("id", "document"):
                if name in item and not isinstance(item[name], str):
                    raise EndpointError(
                        f"hit {n}: {name} at {self.part.response[name]!r} is {item[name]!r}, expected a text"
                        + (f"; write to_string({self.part.response[name]})" if isinstance(item[name], int) else "")
                    )
            score = item.get("score")
            if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
                raise EndpointError(f"hit {n}: score is {score!r}, expected a number")
            items.append(item)
        return items

    def _at(self, name: str, node: Any) -> Any:
        import jmespath

        try:
            return self.paths[name].search(node)
        except jmespath.exceptions.JMESPathError as error:
            raise EndpointError(f"response.{name}: {' '.join(str(error).split())}") from None

    def _ranked(
        self, queries: Queries, found: Sequence[Sequence[Mapping[str, Any]]], errors: dict[int, str], depth: int
    ) -> Ranked:
        rows: list[int] = []
        units: list[int] = []
        scores: list[float] = []
        given = np.zeros(len(queries), np.int64)
        for i, items in enumerate(found):
            if i in errors:
                continue
            try:
                hits = self.hits([self._item(item) for item in self._sorted(items)], depth)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                errors[i] = f"{self.part.what}: {error}"
                continue
            given[i] = len(items)  # of the service's own units: several may be one chunk here
            rows += [i] * len(hits)
            units += [unit for unit, _ in hits]
            scores += [score for _, score in hits]
        ranked = ranked_of(
            np.array(rows, np.int64),
            np.array(units, np.int64),
            np.array(scores, np.float64),
            order=self.order,
            rows=len(queries),
            depth=depth,
            exhausted=given < depth,
        )
        return replace(ranked, has_confidence=self.part.confidence, errors=errors)

    def _sorted(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Best first, so that of several hits in one document the best counts."""
        if any(item.get("score") is None for item in items):
            return list(items)
        sign = 1.0 if self.part.lower_is_better else -1.0
        return sorted(items, key=lambda item: sign * float(item["score"]))

    def _item(self, item: Mapping[str, Any]) -> dict[str, Any]:
        name = item["id"]
        document = item.get("document")
        if name not in self.of_id and document is not None:
            name = self.of_text.get((document, str(item.get("text") or "").strip()), document)
        elif name in self.of_document and len(self.of_document[name]) > 1 and item.get("text"):
            name = self.of_text.get((name, str(item["text"]).strip()), name)
        score = item.get("score")
        if score is not None and self.part.lower_is_better:
            score = -float(score)
        return {"id": name, "score": score, "start": item.get("start"), "end": item.get("end")}
