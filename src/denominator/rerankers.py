"""Rerankers: they put a pool of candidates in another order, and see no more than the pool.

A user's own class works by `_target_` when it has `rerank(bench, ranked) -> Ranked`; a user's own function is wrapped
by `Callable`.
"""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from denominator.cache import describe
from denominator.errors import ConfigError, StageError
from denominator.fingerprint import sha
from denominator.retrievers.bench import Bench, FirstStage
from denominator.retrievers.late import check_dimensions, exact_scale, pool_scores
from denominator.retrievers.lexical import BM25
from denominator.retrievers.libraries import (
    check_model,
    checked_limit,
    each_alone,
    lengths,
    sentence_model,
    torch_identity,
)
from denominator.retrievers.onnx import file_identity, load_session, load_tokenizer, model_files, run_session
from denominator.retrievers.own import function_of
from denominator.retrievers.static import DIMENSIONS, Static, static_model
from denominator.retrievers.table import Ranked, min_max, resorted, rounded, top_scores
from denominator.retrievers.threads import threads
from denominator.types import Floats, Ints


class Reranker(Protocol):
    """What the pipeline needs. `cacheable = False` (class attribute): results are not kept on disk."""

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked: ...


@dataclass(frozen=True, slots=True)
class NoRerank:
    """Leaves the first stage's order."""

    code: ClassVar[int] = 1
    cacheable: ClassVar[bool] = False

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:  # noqa: ARG002
        return ranked


@dataclass(frozen=True, slots=True)
class Mix:
    """Min-max mix over the pool: `weight` on the dense side, 1 − weight on BM25, whatever the first stage is.

    Mixed scores are scaled per question and say nothing across questions, so confidence stays the first stage's.
    """

    weight: float = 0.5
    lexical: FirstStage = field(default_factory=BM25)
    dense: FirstStage = field(default_factory=Static)
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not 0 <= self.weight <= 1:
            raise ConfigError(f"reranker mix: weight must be in [0, 1], found {self.weight!r}")

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        row, unit = ranked.row, ranked.unit.astype(np.int64)
        sides = [bench.scorer(part).score(bench, bench.queries, row, unit) for part in (self.lexical, self.dense)]
        left, right = (min_max(row, side, len(ranked)) for side in sides)
        mixed = resorted(ranked, (1 - self.weight) * left + self.weight * right, bench.order)
        return replace(mixed, confidence=top_scores(ranked) if ranked.confidence is None else ranked.confidence)


@dataclass(frozen=True, slots=True)
class MaxSim:
    """Late interaction over static token vectors: Σ idf·max cosine over the question's tokens, divided by Σ idf.

    idf = ln(1 + (N − df + ½)/(df + ½)) over the chunks. Being divided by Σ idf the score compares across questions, so
    the top score is the confidence. See `denominator.retrievers.late`, which is the same as a first stage.
    """

    dimensions: int = DIMENSIONS
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_dimensions("reranker maxsim", self.dimensions)

    def identity(self) -> str:
        return static_model().identity

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        scores = pool_scores(bench, bench.queries, ranked.offsets, ranked.unit, self.dimensions)
        return replace(resorted(ranked, scores, bench.order), confidence=None, has_confidence=True)


@dataclass(frozen=True, slots=True)
class BM25Rescore:
    """The pool in the order of its BM25 scores; what shares no term with the question has 0.

    Confidence is the best of these scores divided by the number of the question's terms, as that of `BM25` itself.
    """

    lexical: BM25 = field(default_factory=BM25)
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not isinstance(self.lexical, BM25):
            raise ConfigError(f"reranker bm25_rescore: lexical must be a BM25, found {type(self.lexical).__name__}")

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        index: Any = bench.scorer(self.lexical)
        done = resorted(
            ranked, index.score(bench, bench.queries, ranked.row, ranked.unit.astype(np.int64)), bench.order
        )
        return replace(done, confidence=top_scores(done) / index.terms_of(bench.queries), has_confidence=True)


@dataclass(frozen=True, slots=True)
class MMR:
    """Maximal marginal relevance: each next chunk is the best of `weight`·relevance − (1 − weight)·likeness.

    Relevance is the score that the chunk comes with, scaled to [0, 1] over the pool (`relevance: scores`), or its
    cosine with the question (`dense`). Likeness is the greatest cosine with a chunk chosen before, never below 0 and 0
    for the first. Vectors are those of `dense`, rounded so that products are exact. The value with which a chunk was
    chosen is its score; values never rise, so their order is the order of choice (ties by id). They say nothing across
    questions, so confidence stays that of the ranking before. After Carbonell and Goldstein (1998).
    """

    weight: float = 0.7
    relevance: Literal["scores", "dense"] = "scores"
    dense: FirstStage = field(default_factory=Static)
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not 0 <= self.weight <= 1:
            raise ConfigError(f"reranker mmr: weight must be in [0, 1], found {self.weight!r}")
        if self.relevance not in ("scores", "dense"):
            raise ConfigError(f"reranker mmr: relevance must be scores or dense, found {self.relevance!r}")

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        index: Any = bench.scorer(self.dense)
        if not hasattr(index, "vectors"):
            raise ConfigError(f"reranker mmr: {type(self.dense).__name__} has no vectors of chunks to compare")
        row, unit = ranked.row, ranked.unit.astype(np.int64)
        if self.relevance == "dense":
            relevance = index.score(bench, bench.queries, row, unit)
        else:
            relevance = min_max(row, np.asarray(ranked.scores), len(ranked))
        scores = np.zeros(len(unit))
        for i in range(len(ranked)):
            a, b = ranked.offsets[i], ranked.offsets[i + 1]
            if b > a:
                alike = likeness(np.asarray(index.vectors[unit[a:b]], np.float64))
                scores[a:b] = _chosen(self.weight * relevance[a:b], (1 - self.weight) * alike, bench.order[unit[a:b]])
        done = resorted(ranked, scores, bench.order)
        return replace(done, confidence=top_scores(ranked) if ranked.confidence is None else ranked.confidence)


def likeness(vectors: Floats) -> Floats:
    """Cosines of all pairs of unit vectors, the same bits for any number of threads.

    Rounded to whole numbers of at most 2¹² the sums of products stay below 2²⁴ and are exact in float32.
    """
    scale = exact_scale(vectors.shape[1])
    whole = np.rint(vectors * scale).astype(np.float32)
    return (whole @ whole.T).astype(np.float64) / scale**2


def _chosen(relevance: Floats, penalty: Floats, order: Ints) -> Floats:
    """The value with which each candidate is chosen, best first, ties by `order`."""
    scores = np.empty(len(relevance))
    left = np.argsort(order, kind="stable")
    worst = np.zeros(len(relevance))
    while len(left):
        values = rounded(relevance[left] - worst[left])
        best = int(np.argmax(values))  # the first of equal ones
        chosen = left[best]
        scores[chosen] = values[best]
        left = np.delete(left, best)
        worst[left] = np.maximum(worst[left], penalty[chosen, left])
    return scores


@dataclass(frozen=True, slots=True)
class Chain:
    """Two or three rerankers one after the other, each over the whole pool in the order that the one before left.

    It is worth something where a later one uses earlier scores (`MMR`), or reorders only the top (`CrossEncoder`).
    """

    first: Reranker
    then: Reranker
    last: Reranker | None = None
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name, part in (("first", self.first), ("then", self.then), ("last", self.last)):
            if not hasattr(part, "rerank") and not (name == "last" and part is None):
                raise ConfigError(f"reranker chain: {name} must be a reranker, found {part!r}")

    @property
    def parts(self) -> tuple[Reranker, ...]:
        return (self.first, self.then, *((self.last,) if self.last is not None else ()))

    @property
    def cacheable(self) -> bool:
        return all(getattr(part, "cacheable", True) or isinstance(part, NoRerank) for part in self.parts)

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        facts: dict[str, float] = {}
        for part in self.parts:
            ranked = part.rerank(bench, replace(ranked, facts={}))
            for name, value in ranked.facts.items():  # tokens and money add up
                facts[name] = facts.get(name, 0.0) + value
        return replace(ranked, facts=facts)


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """A cross-encoder of your own as ONNX: it reads question and chunk together and says how well they fit.

    `folder` holds `model.onnx` (or `onnx/model.onnx`) and `tokenizer.json` (extra `onnx`). The model gives one number a
    pair, or two, of which the difference second − first counts. Pairs over `max_tokens` are cut at the longer side,
    counted and reported. `top`: only the first so many of the pool are read, the others keep their order below them;
    0: all. Pairs go through the model one at a time, `threads` of them at once (0: all cores), so no score depends on
    its neighbours. `confidence`: whether its scores compare across questions, as those of most cross-encoders do.
    """

    folder: str
    max_tokens: int = 512
    top: int = 0
    confidence: bool = True
    threads: int = 0
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("threads", "folder")
    who: ClassVar[str] = "reranker cross_encoder"

    def __post_init__(self) -> None:
        _check_whole(self.who, max_tokens=(self.max_tokens, 4), top=(self.top, 0), threads=(self.threads, 0))

    def identity(self) -> list[str]:
        return list(file_identity(model_files(self.folder, self.who), self.who))

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        files = model_files(self.folder, self.who)
        file_identity(files, self.who)
        model = _pair_model(*files, self.max_tokens)
        return _read(bench, ranked, lambda pairs: model.score(pairs, self.threads or threads()), self)


@dataclass(frozen=True, slots=True)
class SentenceCrossEncoder:
    """A cross-encoder of sentence-transformers, by name or folder (extra `sentence-transformers`).

    Scores are the model's own numbers, before any function that squeezes them into [0, 1]: the order is the same, and
    nothing is rounded into a tie. `top`: only the first so many of the pool are read, the others keep their order below
    them; 0: all. `max_tokens`: instead of the model's own limit; longer pairs are cut, counted and reported. `device`:
    `cpu`, `cuda`, …; None: the library chooses. On a CPU pairs go through the model one at a time; `batch`: pairs at
    once on another device.
    """

    model: str
    revision: str | None = None
    max_tokens: int | None = None
    top: int = 0
    confidence: bool = True
    device: str | None = "cpu"
    batch: int = 32
    code: ClassVar[int] = 2
    not_in_key: ClassVar[tuple[str, ...]] = ("batch", "device")
    who: ClassVar[str] = "reranker sentence_transformers"

    def __post_init__(self) -> None:
        check_model(self.who, self.model, batch=self.batch, max_tokens=self.max_tokens)
        _check_whole(self.who, top=(self.top, 0))

    def identity(self) -> list[str]:
        return torch_identity(self.who, self.model, self.device, self.batch)

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        model = bench.cache.once(
            sha(["cross_encoder", describe(self), self.device]), lambda: _SentencePairs(self), lambda _: 0
        )
        return _read(bench, ranked, model.score, self)


class _SentencePairs:
    def __init__(self, part: SentenceCrossEncoder) -> None:
        self.model: Any = sentence_model("CrossEncoder", part)
        self.most = checked_limit(part.who, self.model, part.max_tokens)
        self.batch = part.batch
        self.who = part.who

    def score(self, pairs: Sequence[tuple[str, str]]) -> tuple[Any, int | None]:
        """One number for each pair, and how many pairs were cut (None: the tokenizer does not say)."""
        import torch

        if self.model.num_labels != 1:
            raise StageError(f"{self.who}: the model gives {self.model.num_labels} numbers for a pair, expected 1")
        if self.model.device.type == "cpu":
            scores = np.ravel(each_alone(self.model, pairs, "scores"))
        else:
            scores = self.model.predict(
                list(pairs), batch_size=self.batch, activation_fn=torch.nn.Identity(), show_progress_bar=False
            )
        if self.most is None:
            return scores, 0
        found = lengths(self.model.tokenizer, [q for q, _ in pairs], [t for _, t in pairs])
        return scores, None if found is None else int(np.count_nonzero(found > self.most))


def _check_whole(who: str, **values: tuple[object, int]) -> None:
    for name, (value, least) in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{who}: {name} must be a whole number of at least {least}, found {value!r}")


def _read(
    bench: Bench,
    ranked: Ranked,
    score: Function[[Sequence[tuple[str, str]]], tuple[Any, int | None]],
    part: CrossEncoder | SentenceCrossEncoder,
) -> Ranked:
    """The pool by the scores of (question, chunk) pairs; `score` also says how many pairs were cut, if it knows."""
    row, place = ranked.row, np.arange(len(ranked.unit)) - ranked.offsets[ranked.row]
    read = np.flatnonzero(place < part.top) if part.top else np.arange(len(row))
    texts = {unit: bench.table.indexed(unit) for unit in np.unique(ranked.unit[read]).tolist()}
    pairs = [(bench.queries.texts[i], texts[u]) for i, u in zip(row[read], ranked.unit[read].tolist(), strict=True)]
    found, cut = score(pairs) if pairs else (np.empty(0), 0)
    values = np.asarray(found, np.float64)
    if values.shape != (len(pairs),) or not np.isfinite(values).all():
        raise StageError(f"{part.who}: {len(pairs)} pairs were given, the scores have shape {values.shape} or are NaN")
    scores = np.zeros(len(row))
    scores[read] = values
    if len(read) < len(row):
        low = np.full(len(ranked), np.inf)
        np.minimum.at(low, row[read], values)
        rest = np.setdiff1d(np.arange(len(row)), read)
        scores[rest] = low[row[rest]] - 1 - (place[rest] - part.top)
    done = resorted(ranked, scores, bench.order)
    facts = {**ranked.facts, "reranker_pairs": float(len(pairs))}
    if cut is not None:
        facts["reranker_truncated_pairs"] = float(cut)
    return replace(done, confidence=None, has_confidence=part.confidence, facts=facts)


class PairModel:
    """A loaded cross-encoder: tokenizer and session, single-threaded inside."""

    def __init__(self, model: str, tokenizer: str, max_tokens: int) -> None:
        self.tokenizer = load_tokenizer(tokenizer)
        self.tokenizer.enable_truncation(max_tokens, strategy="longest_first")
        self.session = load_session(model)
        self.inputs = [given.name for given in self.session.get_inputs()]

    def score(self, pairs: Sequence[tuple[str, str]], workers: int) -> tuple[Floats, int]:
        """One number for each pair, and how many pairs were cut."""
        scores, cut = np.empty(len(pairs)), 0
        with ThreadPoolExecutor(max(1, workers)) as pool:
            for a in range(0, len(pairs), 1024):
                encodings = self.tokenizer.encode_batch(list(pairs[a : a + 1024]))
                cut += sum(bool(e.overflowing) for e in encodings)
                scores[a : a + len(encodings)] = list(pool.map(self._one, encodings))
        return scores, cut

    def _one(self, encoding: Any) -> float:
        ids, kinds = np.array([encoding.ids], np.int64), np.array([encoding.type_ids], np.int64)
        values = np.ravel(run_session(self.session, self.inputs, ids, kinds)).astype(np.float64)
        if len(values) not in (1, 2):
            raise StageError(f"{CrossEncoder.who}: the model gives {len(values)} numbers for a pair, expected 1 or 2")
        return float(values[-1] - values[0]) if len(values) == 2 else float(values[0])


@lru_cache(maxsize=2)
def _pair_model(model: str, tokenizer: str, max_tokens: int) -> PairModel:
    return PairModel(model, tokenizer, max_tokens)


@dataclass(frozen=True, slots=True)
class Callable:
    """A user's own scores: `function(question, texts) -> scores`, one for each text as it would be sent.

    What it raises, a wrong number of scores and a score that is not finite make that question failed. Results are
    kept on disk only under a declared `version`. `confidence`: whether its scores compare across questions.
    """

    function: Function[..., Any] | str
    name: str = "own"
    version: str | None = None
    confidence: bool = True
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", function_of(self.function, f"reranker {self.name}"))

    @property
    def cacheable(self) -> bool:
        return self.version is not None

    def rerank(self, bench: Bench, ranked: Ranked) -> Ranked:
        scores = np.zeros(len(ranked.unit))
        errors: dict[int, str] = dict(ranked.errors)
        score = function_of(self.function, self.name)
        for i in range(len(ranked)):
            a, b = ranked.offsets[i], ranked.offsets[i + 1]
            if a == b:
                continue
            texts = [bench.table.sent(unit) for unit in ranked.unit[a:b].tolist()]
            try:
                found = np.asarray(score(bench.queries.texts[i], texts), np.float64)
                if found.shape != (b - a,):
                    raise ValueError(f"{b - a} texts were given, the scores have shape {found.shape}")
                if not np.isfinite(found).all():
                    raise ValueError("a score is not a finite number")
            except Exception as error:  # whatever a user's function raises fails this question alone
                errors[i] = f"reranker {self.name}: {type(error).__name__}: {error}"
                continue
            scores[a:b] = found
        done = resorted(ranked, scores, bench.order)
        return replace(without(done, errors), confidence=None, has_confidence=self.confidence)


def without(ranked: Ranked, errors: Mapping[int, str]) -> Ranked:
    """Failed rows have no hits."""
    if not errors:
        return ranked
    row = ranked.row
    keep = ~np.isin(row, list(errors))
    counts = np.bincount(row[keep], minlength=len(ranked))
    return replace(
        ranked,
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        unit=ranked.unit[keep],
        scores=ranked.scores[keep],
        errors=dict(errors),
    )
