"""A first stage over vectors of an OpenAI-compatible `/embeddings` server: OpenAI, vLLM, TEI, Ollama and others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from denominator.cache import Cache, Payload, describe
from denominator.endpoints.client import Endpoint, EndpointError, split_on_content
from denominator.endpoints.kept import Kept
from denominator.errors import ConfigError
from denominator.fingerprint import sha
from denominator.retrievers import dense
from denominator.retrievers.bench import Bench
from denominator.retrievers.dense import Vectors, pair_scores
from denominator.retrievers.table import Queries, Ranked, resorted
from denominator.types import Floats, Ints

Kind = Literal["query", "passage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAI(Endpoint):
    """Embeds chunks and questions through `POST {url}/embeddings` and searches them exactly.

    `dimensions`: asked for, and checked; without it all vectors must be as long as the first. `query_prefix`,
    `passage_prefix`: put before the text; `query_extra`, `passage_extra`: further fields of the request, for servers
    that want the kind of text there (`input_type`). `batch`: texts in one request. `max_characters`: longer texts are
    cut, counted and reported; without it a text that the server refuses is an error. `similarity`: `cosine` scales
    vectors to length 1, `dot` takes them as they come. `price_per_million_tokens` in any currency. `version`: to be
    raised when the server changes the model under the same name.

    Vectors are kept per text, whatever the chunker and the batch. A text without any character but white space is not
    sent and has the zero vector. A chunk that gets no vector fails the cell, a question only itself.
    """

    model: str
    dimensions: int | None = None
    query_prefix: str = ""
    passage_prefix: str = ""
    query_extra: Mapping[str, Any] = field(default_factory=dict)
    passage_extra: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 64
    max_characters: int | None = None
    similarity: Literal["cosine", "dot"] = "cosine"
    price_per_million_tokens: float | None = None
    version: str | None = None
    code: ClassVar[int] = 1
    what: ClassVar[str] = "embedder openai"
    suffix: ClassVar[str] = "/embeddings"
    not_in_key: ClassVar[tuple[str, ...]] = (*Endpoint.not_in_key, "batch")

    def __post_init__(self) -> None:
        Endpoint.__post_init__(self)
        if not self.model.strip():
            raise ConfigError(f"{self.what}: model is empty")
        self._whole("batch", 1)
        for name in ("dimensions", "max_characters"):
            if getattr(self, name) is not None:
                self._whole(name, 1)
        if self.price_per_million_tokens is not None:
            self._at_least("price_per_million_tokens", 0)
        if self.similarity not in ("cosine", "dot"):
            raise ConfigError(f"{self.what}: similarity must be cosine or dot, found {self.similarity!r}")
        for name in ("query_extra", "passage_extra"):
            taken = sorted({"model", "input", "dimensions"} & set(getattr(self, name)))
            if taken:
                raise ConfigError(f"{self.what}: {name} cannot set {', '.join(taken)}")

    def open(self, bench: Bench) -> EndpointIndex:
        table = bench.table

        def compute() -> Payload:
            made = self.embed(bench.cache, _texts(bench), "passage", name=lambda i: f"chunk {table.units.ids[i]!r}")
            for i, error in sorted(made.errors.items()):
                raise EndpointError(f"{self.what}: {error}{_more(made.errors, 'chunks', i)}")
            vectors, lengths = _scaled(made.vectors)
            top = 1.0
            if self.similarity == "dot":
                # Lengths up to 1, so that the bound of the exact search holds; the factor is given back to the scores.
                top = float(lengths.max(initial=0.0)) or 1.0
                vectors = (made.vectors.astype(np.float64) / top).astype(np.float32)
            counted = {"cut": made.cut, "lost": made.lost, "tokens": made.tokens, "top": top}
            return Payload({"vectors": vectors}, facts=counted)

        inputs = {"part": describe(self), "chunks": table.key, "facts": 2}
        entry = bench.stage("endpoint_vectors", inputs, compute, f"{self.model}, {len(table)} chunks")
        width = entry["vectors"].shape[1]
        asked = self.questions(bench, bench.queries, width)
        tokens = float(entry.facts["tokens"] + asked.tokens)
        facts = {
            "index_bytes": float(entry.array_bytes),
            "truncated_chunks": float(entry.facts["cut"]),
            "truncated_questions": float(asked.cut),
            "truncated_chunks_characters": float(entry.facts["lost"]),
            "truncated_questions_characters": float(asked.lost),
            "embedder_tokens": tokens,
        }
        if self.price_per_million_tokens is not None:
            facts["embedder_cost"] = tokens * self.price_per_million_tokens / 1e6
        index = EndpointIndex(self, entry["vectors"], float(entry.facts["top"]), bench.order, facts)
        index.asked[bench.queries.key] = asked
        return index

    def questions(self, bench: Bench, queries: Queries, width: int | None) -> Embedded:
        """Vectors of questions; those that fail, or have another length than `width`, are among its errors."""
        cache = bench.cache if queries.kept else None
        made = self.embed(
            cache, queries.texts, "query", width=width, name=lambda i: f"question {queries.texts[i][:80]!r}"
        )
        return replace(made, errors={i: f"{self.what}: {why}" for i, why in made.errors.items()})

    # ---------------------------------------------------------------- asking

    def embed(
        self,
        cache: Cache | None,
        texts: Sequence[str],
        kind: Kind,
        *,
        width: int | None = None,
        name: Callable[[int], str] = "text {}".format,
    ) -> Embedded:
        """Raw vectors of texts, with what failed and why. Without a cache nothing is looked up or kept.

        A failure names the text by `name(i)`. Never raises for what a server does.
        """
        prefix = self.query_prefix if kind == "query" else self.passage_prefix
        extra = dict(self.query_extra if kind == "query" else self.passage_extra)
        most = self.max_characters
        cut = lost = 0
        place: dict[str, list[int]] = {}
        sent: dict[str, str] = {}
        for i, text in enumerate(texts):
            if not text.strip():
                continue
            whole = prefix + text
            if most is not None and len(whole) > most:
                cut, lost, whole = cut + 1, lost + len(whole) - most, whole[:most]
            key = sha(whole)
            place.setdefault(key, []).append(i)
            sent[key] = whole
        namespace = {
            "stage": "embeddings",
            "code": self.code,
            "url": self.identity(),
            "model": self.model,
            "dimensions": self.dimensions,
            "extra": extra,
            "version": self.version,
        }
        kept = Kept(Cache(None) if cache is None else cache, namespace, f"{self.model} embeddings")
        found = kept.find(place)
        errors: dict[str, str] = {}
        todo = [key for key in place if key not in found]
        batches = [todo[a : a + self.batch] for a in range(0, len(todo), self.batch)]
        client = self.client()

        def work(b: int, stop: Event) -> _Reply:
            reply = _Reply()

            def ask(keys: Sequence[str]) -> None:
                body = {"model": self.model, "input": [sent[key] for key in keys], **extra}
                if self.dimensions is not None:
                    body["dimensions"] = self.dimensions
                reply.read(
                    client.call(body, stop=stop), keys, [len(sent[key]) for key in keys], self.dimensions or width
                )

            def failed(key: str, error: EndpointError) -> None:
                reply.errors[key] = str(error)

            split_on_content(batches[b], ask, failed)
            return reply

        asking = client.each(len(batches), work)
        try:
            for b, reply in asking:
                if isinstance(reply, EndpointError):
                    errors |= dict.fromkeys(batches[b], str(reply))
                else:
                    errors |= reply.errors
                    for key, vector in reply.vectors.items():
                        value = {"tokens": reply.tokens[key]}
                        found[key] = (value, vector)
                        kept.add(key, value, vector)
                if errors and kind == "passage":
                    break  # the cell has failed: nothing more is paid for
        finally:
            asking.close()
            kept.flush()
        if errors and kind == "passage":
            wrong = {i: f"{name(i)}: {why}" for key, why in errors.items() for i in place[key]}
            return Embedded(np.zeros((len(texts), 1), np.float32), wrong, 0, cut, lost)
        return _collected(
            len(texts),
            place=place,
            sent=sent,
            found=found,
            errors=errors,
            width=width or self.dimensions,
            cut=(cut, lost),
            name=name,
        )


def _collected(
    rows: int,
    *,
    place: Mapping[str, list[int]],
    sent: Mapping[str, str],
    found: Mapping[str, tuple[Any, Vectors | None]],
    errors: Mapping[str, str],
    width: int | None,
    cut: tuple[int, int],
    name: Callable[[int], str],
) -> Embedded:
    from denominator.tokens import count

    answered = {
        key: (value["tokens"], v) for key in place if key in found for value, v in [found[key]] if v is not None
    }
    expected = width or next((len(vector) for _, vector in answered.values()), 1)
    vectors = np.zeros((rows, expected), np.float32)
    wrong: dict[int, str] = {}
    total = 0
    for key, at in place.items():
        if key in answered and len(answered[key][1]) == expected:
            tokens, vectors[at] = answered[key]
            total += count(sent[key]) if tokens is None else tokens
            continue
        length = ""
        if key in answered:
            length = (
                f"a vector has {len(answered[key][1])} numbers, expected {expected}; "
                "if the server changed its model, give `version` another value"
            )
        wrong |= {i: f"{name(i)}: {length or errors[key]}" for i in at}
    return Embedded(vectors, wrong, total, *cut)


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Vectors as the server gave them (zero where there is none), errors by row, tokens, texts that were cut.

    `lost` counts the characters that were cut off.

    Each distinct text counts its tokens once: those that the server reported, or by regex-v1 where it reports none.
    """

    vectors: Vectors
    errors: Mapping[int, str]
    tokens: int
    cut: int
    lost: int


class _Reply:
    """What one batch gave: per text a vector or an error."""

    def __init__(self) -> None:
        self.vectors: dict[str, Vectors] = {}
        self.errors: dict[str, str] = {}
        self.tokens: dict[str, int | None] = {}

    def read(self, reply: Any, keys: Sequence[str], lengths: Sequence[int], dimensions: int | None) -> None:
        """Items are put where their `index` says, in whatever order they come."""
        data = reply.get("data") if isinstance(reply, Mapping) else None
        if not isinstance(data, list):
            known = ", ".join(sorted(map(str, reply))[:10]) if isinstance(reply, Mapping) else type(reply).__name__
            self.errors |= dict.fromkeys(keys, f"the answer has no list `data` (found {known})")
            return
        items: dict[int, list[Any]] = {}
        for item in data:
            index = item.get("index") if isinstance(item, Mapping) else None
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(keys):
                # Whose it is nobody can say, so no item of this answer is safe.
                self.errors |= dict.fromkeys(keys, f"an item has index {index!r}, expected 0 to {len(keys) - 1}")
                return
            items.setdefault(index, []).append(item.get("embedding"))
        vectors: dict[str, Vectors] = {}
        for i, key in enumerate(keys):
            if len(items.get(i, ())) != 1:
                what = f"{len(items[i])} items with index {i}" if i in items else f"no item with index {i}"
                self.errors[key] = f"the answer has {what} ({len(data)} items for {len(keys)} texts)"
                continue
            vector = _vector(items[i][0])
            if isinstance(vector, str):
                self.errors[key] = vector
            else:
                vectors[key] = vector
        common = Counter(map(len, vectors.values())).most_common(1)
        expected = dimensions or (common[0][0] if common else 0)
        shares = dict(zip(keys, _shares(_usage(reply), lengths), strict=True))
        for key, vector in vectors.items():
            if len(vector) == expected:
                self.vectors[key], self.tokens[key] = vector, shares[key]
            else:  # such a vector must not be kept: it would fail every later run
                self.errors[key] = f"a vector has {len(vector)} numbers, expected {expected}"


def _vector(embedding: Any) -> Vectors | str:
    """The vector, or what is wrong with it."""
    if not isinstance(embedding, list) or not embedding:
        return f"embedding is {type(embedding).__name__}, expected a list of numbers"
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in embedding):
        return "an embedding holds something that is not a number"
    with np.errstate(over="ignore"):
        try:
            vector = np.array(embedding, np.float64).astype(np.float32)
        except OverflowError:  # a whole number of hundreds of digits
            return "an embedding holds NaN or an infinite number"
    if not np.isfinite(vector).all():
        return "an embedding holds NaN or an infinite number"
    return vector


def _usage(reply: Mapping[str, Any]) -> int | None:
    usage = reply.get("usage")
    if isinstance(usage, Mapping):
        for name in ("prompt_tokens", "total_tokens"):
            value = usage.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _shares(total: int | None, lengths: Sequence[int]) -> list[int | None]:
    """The batch's tokens dealt to its texts by length; they add up to it.

    >>> _shares(10, [1, 1, 3]), _shares(None, [4])
    ([2, 2, 6], [None])
    """
    if total is None:
        return [None] * len(lengths)
    ends = np.rint(np.cumsum(lengths) * (total / max(1, sum(lengths)))).astype(int)
    shares: list[int | None] = np.diff(ends, prepend=0).tolist()
    return shares


def _scaled(vectors: Vectors) -> tuple[Vectors, Floats]:
    lengths = np.sqrt(np.add.reduce(vectors.astype(np.float64) ** 2, axis=1))
    return dense.unit_vectors(vectors, "text"), lengths


def _texts(bench: Bench) -> list[str]:
    batches: Iterable[list[str]] = bench.table.batches()
    return [text for batch in batches for text in batch]


def _more(errors: Mapping[int, str], what: str, but: int) -> str:
    others = len(errors) - (but in errors)
    return f" (and {others} more {what})" if others else ""


class EndpointIndex:
    """The chunks' vectors, and the server that turns a question into one."""

    def __init__(self, part: OpenAI, vectors: Vectors, top: float, order: Ints, facts: Mapping[str, float]) -> None:
        self.part, self.vectors, self.top, self.order = part, vectors, top, order
        self.facts: Mapping[str, float] = facts
        self.asked: dict[str, Embedded] = {}  # a question that failed is not asked again by the same index

    def _embed(self, bench: Bench, queries: Queries) -> tuple[Vectors, npt.NDArray[Any], Mapping[int, str]]:
        """Unit vectors, the factor that gives scores back their size, and what failed."""
        made = self.asked.get(queries.key) if queries.kept else None
        if made is None:
            made = self.part.questions(bench, queries, self.vectors.shape[1])
            if queries.kept:
                self.asked[queries.key] = made
        vectors, lengths = _scaled(made.vectors)
        return vectors, lengths * self.top, made.errors

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        vectors, factor, errors = self._embed(bench, queries)
        ranked = dense.search(vectors, self.vectors, self.order, bench.depth)
        if self.part.similarity == "dot":
            ranked = resorted(ranked, ranked.scores * factor[ranked.row], self.order)
        return replace(ranked, errors=dict(errors))

    def score(self, bench: Bench, queries: Queries, row: Ints, unit: Ints) -> Floats:
        vectors, factor, _ = self._embed(bench, queries)
        scores = pair_scores(vectors, self.vectors, row, unit)
        return scores * factor[row] if self.part.similarity == "dot" else scores
