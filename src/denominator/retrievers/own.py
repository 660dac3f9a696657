"""A user's own retriever: any Python function, text in, ids and scores out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench
from denominator.retrievers.calling import Caller, Calls, Failed, called
from denominator.retrievers.table import ChunkTable, Queries, Ranked, ranked_of
from denominator.types import Hit, Ints

Answers = Iterable[Any]


def function_of(function: Any, who: str) -> Callable[..., Any]:
    """The function itself, or what a dotted name stands for. Raises ConfigError naming what is missing."""
    if callable(function):
        found: Callable[..., Any] = function
        return found
    if not isinstance(function, str) or "." not in function:
        raise ConfigError(f"{who}: function must be callable or a name like my_module.search, found {function!r}")
    module, _, name = function.rpartition(".")
    try:
        named = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{who}: {function} cannot be imported ({error})") from error
    except AttributeError:
        raise ConfigError(f"{who}: module {module} has no {name!r}") from None
    if not callable(named):
        raise ConfigError(f"{who}: {function} is not callable")
    return function_of(named, who)


@dataclass(frozen=True, slots=True)
class Own(Calls):
    """Calls `function(question, k)`, or a coroutine function, or what a dotted name stands for, for each question.

    It returns hits in order: ids, `(id, score)` pairs, `Hit`s, or mappings with `id` (or `document_id`), `score`, and
    perhaps `start` and `end`. An id is a chunk's id, or a document's id where the chunker makes one chunk of it
    (`chunker: none`); a span names the chunk that has it. All hits of a question carry a score or none does; without,
    the order counts. Fewer than `k` hits say that there are no more. An exception, a time-out, an unknown id or a
    mixed list makes that question failed, never the sweep.

    `many`: the function takes a list of questions, at most `batch`, and returns as many lists of hits in their order;
    a call that fails then fails all of them. How it is called (`timeout`, `retries`, `concurrency`,
    `calls_per_minute` …): see `Calls`.

    Results are kept on disk only under a declared `version`, since nobody can see inside the function.
    """

    function: Callable[..., Any] | str
    name: str = "own"
    version: str | None = None
    confidence: bool = True
    many: bool = False
    batch: int = 64
    code: ClassVar[int] = 2
    not_in_key: ClassVar[tuple[str, ...]] = (*Calls.not_in_key, "batch")

    def __post_init__(self) -> None:
        Calls.__post_init__(self)
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ConfigError(f"embedder {self.name}: batch must be a whole number of at least 1, found {self.batch!r}")
        object.__setattr__(self, "function", function_of(self.function, f"embedder {self.name}"))

    @property
    def cacheable(self) -> bool:
        return self.version is not None

    def open(self, bench: Bench) -> OwnIndex:
        return OwnIndex(self, bench.table, bench.order)


class ChunkFinder:
    """Finds the chunks that foreign ids and spans mean."""

    def __init__(self, table: ChunkTable) -> None:
        units = table.units
        self.of_id = {name: i for i, name in enumerate(units.ids)}
        self.of_span: dict[tuple[str, int, int], int] = {}
        chunks_of: dict[str, list[int]] = {}
        for i, (doc, start, end) in enumerate(
            zip(units.doc.tolist(), units.start.tolist(), units.end.tolist(), strict=True)
        ):
            self.of_span[units.docs[doc], start, end] = i
            chunks_of.setdefault(units.docs[doc], []).append(i)
        self.of_document = chunks_of

    @staticmethod
    def texts(table: ChunkTable) -> dict[tuple[str, str], str]:
        """Chunk ids by document and text, for rows that name a chunk by what it says."""
        found: dict[tuple[str, str], str] = {}
        for i, unit_id in enumerate(table.units.ids):
            found.setdefault((table.units.docs[table.units.doc[i]], table.sent(i).strip()), unit_id)
        return found

    def hits(self, found: Answers, depth: int) -> list[tuple[int, float]]:
        """Chunks with scores of at most `depth` hits, best first. Raises ValueError, TypeError, KeyError.

        With scores they decide, whatever the order; of several hits in one chunk the best-placed counts.
        """
        units = [self._one(item) for item in found]
        given = [score for _, score in units if score is not None]
        if len(given) not in (0, len(units)):
            raise ValueError("some hits have a score and some have none")
        if not np.isfinite(given).all():
            raise ValueError("a score is not a finite number")
        if given:
            units.sort(key=lambda hit: -(hit[1] or 0.0))
        best: dict[int, float | None] = {}
        for unit, score in units:
            best.setdefault(unit, score)
        hits = list(best.items())[:depth]
        return [(unit, float(depth - n) if score is None else score) for n, (unit, score) in enumerate(hits)]

    def _one(self, item: Any) -> tuple[int, float | None]:
        start = end = None
        if isinstance(item, str):
            name, score = item, None
        elif isinstance(item, Hit):
            name, score, start, end = item.id, item.score, item.start, item.end
            if item.id not in self.of_id and start is not None:
                name = item.doc
        elif isinstance(item, Mapping):
            name = item["id"] if "id" in item else item["document_id"]
            score, start, end = item.get("score"), item.get("start"), item.get("end")
            if "document_id" in item and start is not None and name not in self.of_id:
                name = item["document_id"]
        elif isinstance(item, (tuple, list)) and len(item) == 2:
            name, score = item
        else:
            raise TypeError(f"a hit is an id, an (id, score) pair or a mapping, found {type(item).__name__}")
        if not isinstance(name, str):
            raise TypeError(f"ids are texts, found {name!r}")
        return self._unit(name, start, end), None if score is None else float(score)

    def _unit(self, name: str, start: int | None, end: int | None) -> int:
        if name in self.of_id:
            return self.of_id[name]
        if start is not None and end is not None and (name, start, end) in self.of_span:
            return self.of_span[name, start, end]
        chunks = self.of_document.get(name, [])
        if len(chunks) == 1:
            return chunks[0]
        if chunks:
            raise ValueError(f"document {name!r} has {len(chunks)} chunks; return chunk ids, or use chunker: none")
        raise ValueError(f"id {name!r} is neither a chunk nor a document of the corpus")


class Found:
    """Hits of the rows of a search, gathered in any order; what is wrong with a row's hits fails that row alone."""

    def __init__(self, finder: ChunkFinder, rows: int, depth: int) -> None:
        self.finder, self.depth = finder, depth
        self.hits: list[list[tuple[int, float]]] = [[] for _ in range(rows)]
        self.errors: dict[int, str] = {}
        self.exhausted = np.zeros(rows, np.bool_)

    def put(self, row: int, answers: Sequence[Any], *, exhausted: bool | None = None) -> None:
        try:
            self.hits[row] = self.finder.hits(answers, self.depth)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            self.errors[row] = f"{type(error).__name__}: {error}"
        # Of its own units, not of ours: several hits may be one document here.
        self.exhausted[row] = len(answers) < self.depth if exhausted is None else exhausted

    def ranked(self, order: Ints, *, has_confidence: bool) -> Ranked:
        lengths = [len(hits) for hits in self.hits]
        flat = [hit for hits in self.hits for hit in hits]
        ranked = ranked_of(
            np.repeat(np.arange(len(lengths)), lengths),
            np.array([unit for unit, _ in flat], np.int64),
            np.array([score for _, score in flat], np.float64),
            order=order,
            rows=len(lengths),
            depth=self.depth,
            exhausted=self.exhausted,
        )
        return replace(ranked, has_confidence=has_confidence, errors=dict(sorted(self.errors.items())))


class OwnIndex(ChunkFinder):
    """The function with the tables that its ids are looked up in."""

    def __init__(self, part: Own, table: ChunkTable, order: Ints) -> None:
        super().__init__(table)
        self.part, self.order = part, order
        self.function = function_of(part.function, part.name)
        self.caller = Caller(part)
        self.facts: Mapping[str, float] = {}

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        found = Found(self, len(queries), bench.depth)
        asked = [i for i, text in enumerate(queries.texts) if text.strip()]
        size = self.part.batch if self.part.many else 1
        batches = [asked[a : a + size] for a in range(0, len(asked), size)]

        def call(b: int) -> list[list[Any]]:
            return self._call([queries.texts[i] for i in batches[b]], bench.depth)

        for b, answers in self.caller.each(len(batches), call):
            if isinstance(answers, Failed):
                found.errors |= dict.fromkeys(batches[b], str(answers))
                continue
            for i, hits in zip(batches[b], answers, strict=True):
                found.put(i, hits)
        return found.ranked(self.order, has_confidence=self.part.confidence)

    def _call(self, texts: list[str], depth: int) -> list[list[Any]]:
        """One list of hits for each text."""
        timeout = self.part.timeout
        if not self.part.many:
            return [called(self.function, texts[0], depth, timeout=timeout, listed=list)]
        made = called(self.function, texts, depth, timeout=timeout, listed=lambda all_: [list(one) for one in all_])
        if len(made) != len(texts):
            raise ValueError(f"the function gave {len(made)} lists of hits for {len(texts)} questions")
        return made
