"""A recorded run in the place of the first stage: what a system found is measured, reranked and compared as a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from denominator.errors import ConfigError, MeasurementError
from denominator.retrievers.bench import Bench
from denominator.retrievers.own import ChunkFinder, Found
from denominator.retrievers.table import Queries, Ranked
from denominator.types import Result


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Hits from a file: JSON lines (`{"question_id", "hits": [{"id", "score"?, …}], "depth"?}`) or a TREC run.

    Ids are those of documents (then use `chunker: none`), of chunks, or a document with `start` and `end` of a chunk.
    A recorded `depth` holds: no K beyond it is measured. Without one a list is taken for all that there was. A
    question that the file does not have, or whose hits name nothing of the corpus, has failed; one that the data set
    does not have is the error `unknown_question_ids`. Scores are the confidence unless the file says otherwise.
    Nothing is asked, so there is no latency.
    """

    path: str
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("path",)
    cacheable: ClassVar[bool] = False  # a ranking is kept by the questions' texts, a run speaks of their ids
    timed: ClassVar[bool] = False

    def identity(self) -> str:
        """The content counts, not where it lies."""
        import hashlib

        try:
            return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        except OSError as error:
            raise ConfigError(f"embedder recorded: {self.path} cannot be read ({error.strerror})") from None

    def open(self, bench: Bench) -> RecordedIndex:
        from denominator.readers.runs import read_run

        results, _ = read_run(self.path)
        asked = set(bench.queries.ids)
        unknown = [q for q in results if q not in asked]
        if unknown:
            message = f"{self.path} has questions that the data set does not have"
            raise MeasurementError("unknown_question_ids", unknown, message)
        return RecordedIndex(results, bench)


class RecordedIndex(ChunkFinder):
    """The results with the tables that their ids are looked up in."""

    def __init__(self, results: Mapping[str, Result], bench: Bench) -> None:
        super().__init__(bench.table)
        self.results = results
        self.facts: Mapping[str, float] = {}

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        if len(queries.ids) != len(queries):
            raise ConfigError("embedder recorded: it answers the questions of the data set, by their ids, and no other")
        given = [self.results.get(q) for q in queries.ids]
        known = [r.depth for r in given if r is not None and r.depth is not None]
        depth = min([bench.depth, *known])
        found = Found(self, len(queries), depth)
        confidence = np.full(len(queries), np.nan)
        for i, result in enumerate(given):
            if result is None:
                found.errors[i] = "the recorded run does not have this question"
            elif result.error is not None:
                found.errors[i] = result.error
            else:
                short = result.depth is None or len(result.hits) < result.depth
                found.put(i, result.hits, exhausted=result.exhausted or (short and len(result.hits) <= depth))
                if result.confidence is not None:
                    confidence[i] = result.confidence
        scored = any(hit.score is not None for r in given if r is not None for hit in r.hits)
        declared = not np.isnan(confidence).all()
        silent = any(r is not None and r.no_confidence for r in given) or not (scored or declared)
        ranked = found.ranked(bench.order, has_confidence=not silent)
        return replace(ranked, confidence=confidence if declared and not silent else None)
