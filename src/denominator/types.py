"""The nouns that every other module speaks in. Nothing here computes a metric.

Two forms of the same thing live side by side: plain records for people and files (`Question`, `Hit`,
`Result`) and columns for bulk work (`Units`, `Run`). `Run.from_results` turns the first into the second,
so that below it there is one implementation of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

METRIC_VERSION = "1"

Answerability = Literal["answerable", "unanswerable", "partial", "unlabelled"]
LABELS: tuple[str, ...] = get_args(Answerability)
State = Literal[
    "answerable",
    "unanswerable",
    "partial",
    "unlabelled",
    "conflict",
    "answerable_no_gold",
    "partial_no_gold",
    "needs_review",
]
STATES: tuple[State, ...] = get_args(State)
Level = Literal["L1", "L2", "L3", "L4", "L5"]
Ties = Literal["asc", "trec"]
Status = Literal["ok", "failed", "missing", "not_scored"]
Rung = Literal[
    "flag",
    "structured",
    "sentinel",
    "phrase",
    "judge",
    "error",
    "empty_output",
    "no_patterns",
]

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def filled(
    shape: tuple[int, ...], dtype: npt.DTypeLike, blocks: Callable[[], Iterable[npt.NDArray[Any]]]
) -> npt.NDArray[Any]:
    """An array in memory of this shape: the blocks one after the other along its first axis, which they must fill."""
    whole = np.empty(shape, dtype)
    at = 0
    for block in blocks():
        whole[at : at + len(block)] = block
        at += len(block)
    assert at == len(whole), f"{at} of {len(whole)} rows"
    return whole


# ------------------------------------------------------------------ corpus and questions


@dataclass(frozen=True, slots=True)
class Document:
    """One document as stored. Offsets everywhere are code points into `text`; the title is not part of them."""

    id: str
    text: str
    title: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Evidence:
    """One alternative of an evidence group: a document (or chunk) id, or a span `[start, end)` of a document.

    `whole` says that the whole document is the evidence, so that it also counts at span level.
    """

    doc: str
    start: int | None = None
    end: int | None = None
    whole: bool = False


Group = tuple[Evidence, ...]
"""An OR of alternatives. A question's gold is an AND of groups."""


@dataclass(frozen=True, slots=True)
class Question:
    """A labelled question. `answerability` is an explicit label and is never read from `gold`."""

    id: str
    question: str | None = None
    answerability: str | None = None
    gold: tuple[Group, ...] = ()
    grades: Mapping[str, int] | None = None
    needs_review: bool = False
    tags: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    answers: tuple[str, ...] = ()
    history: tuple[tuple[str, str], ...] = ()
    lang: str = "en"


@dataclass(frozen=True, slots=True)
class Dataset:
    """Documents and labelled questions, as a reader gives them. Without a corpus `documents` is empty.

    `documents` is a tuple, or `corpus.Documents` where the texts would fill the memory; it is read by position or in
    order, and by id through the functions of `corpus`, which copy neither.
    `label_source` is `"labels"` or `"assumed"` (a declared option marked questions with gold answerable).
    `extracted` says what made text of files that hold none as it stands (PDF, HTML), with its version; another version
    may give another text, so the texts are kept with the run.
    """

    name: str
    documents: Sequence[Document]
    questions: tuple[Question, ...]
    dataset_hash: str
    corpus_hash: str | None
    label_source: str = "labels"
    evaluate: Literal["retrieval", "abstention"] = "retrieval"
    source: str = ""
    notes: tuple[str, ...] = ()
    extracted: tuple[str, ...] = ()


# ------------------------------------------------------------------ what a retriever gives back


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document. Without `start`/`end` it is unanchored: rewritten text that covers nothing.

    `header` is sent before the text, costs tokens and covers nothing. Ids sort as positions do.
    """

    id: str
    doc: str
    text: str
    start: int | None = None
    end: int | None = None
    header: str = ""

    @classmethod
    def of(cls, document: Document, start: int, end: int, header: str = "") -> Chunk:
        return cls(chunk_id(document.id, start, end), document.id, document.text[start:end], start, end, header)


def chunk_id(document_id: str, start: int, end: int) -> str:
    """`{document_id}#{start:09d}-{end:09d}`: ids decide ties, so they must sort as positions do."""
    return f"{document_id}#{start:09d}-{end:09d}"


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved unit. For a run of documents `id == doc`. `tokens` only for unanchored chunks (text as sent).

    `rank` (from 1) is its place in the canonical order where a record keeps only some of the hits.
    """

    id: str
    doc: str
    score: float | None = None
    start: int | None = None
    end: int | None = None
    header_tokens: int = 0
    tokens: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What came back for one question: hits (perhaps none), or an error.

    `depth` is how many were asked for (None: unknown, as in an imported run); `exhausted` says that the
    index had no more. `confidence` replaces the top score where scores say nothing across questions;
    `no_confidence` says that the part that ranked declares none.
    """

    hits: tuple[Hit, ...] = ()
    error: str | None = None
    depth: int | None = None
    exhausted: bool = False
    confidence: float | None = None
    no_confidence: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a generator said. `flag`: an explicit abstained boolean; `structured`: its `answerable` field.

    `lang` is the language it is written in, where that is not the question's.
    """

    text: str | None = None
    flag: bool | None = None
    structured: bool | None = None
    error: str | None = None
    lang: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """The table that hits point into: chunks of an index, or documents of an imported run. Columns, length n.

    `doc` indexes `docs`; `start`/`end` are -1 for an unanchored unit or a plain document id;
    `tokens` is -1 unless the unit is unanchored.
    """

    ids: tuple[str, ...]
    docs: tuple[str, ...]
    doc: Int32s
    start: Ints
    end: Ints
    header_tokens: Int32s
    tokens: Int32s

    def __len__(self) -> int:
        return len(self.ids)

    def order(self) -> Ints:
        """Rank of each unit's id in code-point order: the tie rule as an integer key."""
        rank = np.empty(len(self.ids), np.int64)
        rank[sorted(range(len(self.ids)), key=self.ids.__getitem__)] = np.arange(len(self.ids))
        return rank


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Hits of many questions in columns (CSR): hits of question i are rows `offsets[i]:offsets[i+1]`.

    `question_ids` are the questions something came back for, in any order; a question that is absent is
    *missing*. `errors` holds the failed ones (they have no rows). `scores` is None when no hit carries one:
    the given order is then the ranking. Rows need not be sorted or distinct: metrics put them in canonical order.
    `confidence` is NaN where a question has none; `None` as a whole means: use the top canonical score.
    `exhausted[i]`: the index had no more than what is listed.
    """

    question_ids: tuple[str, ...]
    offsets: Ints
    unit: Int32s
    scores: Floats | None
    units: Units
    exhausted: Bools
    depth: int | None = None
    confidence: Floats | None = None
    has_confidence: bool = True
    errors: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.question_ids)

    @classmethod
    def from_results(cls, results: Mapping[str, Result]) -> Run:
        """Columns from plain records. Order of the mapping does not matter to any metric.

        Raises MeasurementError `mixed_scores`, `bad_score`, `bad_id` as MEASUREMENT.md section 3 says.
        """
        from denominator.ranking import run_from_results

        return run_from_results(results)


# ------------------------------------------------------------------ what is measured


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how, declared before the sweep. Every field is logged."""

    ks: tuple[int, ...] = (1, 3, 5, 10)
    budget: int = 2000
    headline: str = "auto"
    pool: int = 100
    eligibility: Literal["strict", "lenient"] = "strict"
    aggregation: Literal["macro", "micro"] = "macro"
    ties: Ties = "asc"
    budget_cut: Literal["truncate", "whole"] = "truncate"
    alpha: float = 0.05
    margin: float = 0.02
    resamples: int = 9999
    seed: int = 0
    baseline: str | None = None
    threshold: float | None = None
    cluster: str | None = None
    slices: tuple[str, ...] = ()
    evaluate: Literal["retrieval", "abstention"] = "retrieval"
    phrases: Literal["phrases-v1", "phrases-v2"] = "phrases-v2"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that a person may see: its value or the reason why there is none, and always its n (C1)."""

    value: float | None
    n: int
    reason: str | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    ci_method: str | None = None
    unit: str = "questions"
    k: int | None = None
    level: str | None = None
    aggregation: str = "macro"
    metric_version: str = METRIC_VERSION

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every question in exactly one row. `sum(states) == N`, `ok + failed + missing == eligible` (C3)."""

    N: int
    states: Mapping[str, int]
    eligible: int
    ok: int
    failed: int
    missing: int
    incomplete: bool
    eligibility: str = "strict"
    label_source: str = "labels"

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"states": dict(self.states)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a run says about one question: one line of `per_question.jsonl`, no clock in it.

    `values[name]` is the per-question value or None with `reasons[name]`. Values exist for every question that
    has gold and is not failed or missing (failed and missing eligible questions have 0), so that the audit can
    say what other conventions would have reported; which of them enter a mean is decided by `state` alone.
    `groups` counts evidence groups at document level, for micro averages. `ties[name]` is the worst and the best value
    over all orders of tied hits, only where the two differ. `quality` holds what an answer's text is worth
    (`denominator.quality`).
    """

    id: str
    label: str | None
    state: State
    status: Status
    question: str | None = None
    gold: tuple[Group, ...] = ()
    hits: tuple[Hit, ...] = ()
    n_hits: int = 0
    values: Mapping[str, float | None] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    groups: int = 0
    empty_gold: bool = False
    tags: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    confidence: float | None = None
    abstained: bool | None = None
    rung: Rung | None = None
    threshold: float | None = None
    answer: str | None = None
    error: str | None = None
    ties: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    quality: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage's own time: what it took when it was computed, what it took in this run, and whether it was cached."""

    stage: str
    seconds_computed: float
    seconds_now: float
    cached: bool
    key: str = ""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A cell run as the record gives it back, ready for selection and report."""

    run_id: str
    name: str
    cell_key: str
    sweep_id: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    plan: Plan
    outcomes: Sequence[Outcome]
    facts: Mapping[str, float]
    fingerprints: Mapping[str, Mapping[str, Any]]
    ledger: Ledger
