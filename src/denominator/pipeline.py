"""A cell: dataset → chunker → first stage → reranker → answerer, run to one outcome per question.

Every stage is cached by content, so the work of a grid is that of its distinct stages, and a label that changes
recomputes no chunk and no vector. A question that fails stays a question: it is counted, never dropped.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from denominator import __version__
from denominator.answerers import (
    Answerer,
    Threshold,
    Writer,
    asked_judge,
    check_languages,
    contexts_of,
    instruments,
    worth_of,
)
from denominator.cache import Array, Cache, Entry, Payload, describe
from denominator.chunkers import Chunker, checked_chunks
from denominator.corpus import ids_of, in_memory, in_order
from denominator.eligibility import document_groups
from denominator.errors import ConfigError, DenominatorError, MeasurementError, StageError
from denominator.evaluation import Summary, evaluate, parse_metric, summarize
from denominator.fingerprint import sha
from denominator.ranking import check_depth, check_k
from denominator.rerankers import Reranker, without
from denominator.retrievers.bench import Bench, FirstStage, pack, ranked_inputs, unpack
from denominator.retrievers.table import NO_TEXT, ChunkTable, Columns, Queries, Ranked, columns_of
from denominator.retrievers.threads import threads, threads_limited
from denominator.spans import CorpusIndex, split_evidence
from denominator.types import (
    METRIC_VERSION,
    Answer,
    Bools,
    Chunk,
    Dataset,
    Document,
    Floats,
    Outcome,
    Plan,
    Question,
    Run,
    StageTime,
)


class DatasetPart(Protocol):
    """The choice of config group `dataset`."""

    def load(self) -> Dataset: ...


@dataclass(frozen=True, slots=True)
class Latency:
    """How query latency is measured: `questions` one at a time, `repeats` times each, after a warm-up. 0: never."""

    questions: int = 20
    repeats: int = 3
    warm_up: int = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration. The parts are instantiated, so whatever they refuse was refused before any work."""

    name: str
    params: Mapping[str, str | int | float | bool]
    dataset: DatasetPart
    chunker: Chunker
    embedder: FirstStage
    reranker: Reranker
    answerer: Answerer | Writer | None = None
    plan: Plan = field(default_factory=Plan)
    latency: Latency = field(default_factory=Latency)
    chunker_varies: bool = True

    def key(self, dataset_hash: str, corpus_hash: str | None) -> str:
        """`cell_key`: SHA-256 over resolved parts, plan, data, metric and package version; not over name and params."""
        return sha(
            {
                "chunker": describe(self.chunker),
                "embedder": describe(self.embedder),
                "reranker": describe(self.reranker),
                "answerer": describe(self.answerer),
                "plan": describe(self.plan),
                "latency": describe(self.latency),
                "chunker_varies": self.chunker_varies,
                "dataset_hash": dataset_hash,
                "corpus_hash": corpus_hash,
                "metric_version": METRIC_VERSION,
                "version": __version__,
            }
        )

    def check(self) -> None:
        """What can be refused before any work: K, and a K beyond the pool (`depth_below_k`)."""
        for k in self.plan.ks:
            check_k(k)
        check_k(self.plan.pool)
        if self.plan.evaluate == "retrieval":
            check_depth(max(self.plan.ks), self.plan.pool)


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What a run was measured on."""

    name: str
    dataset_hash: str
    corpus_hash: str | None
    documents: int
    questions: int
    source: str = ""
    label_source: str = "labels"
    notes: tuple[str, ...] = ()
    extracted: tuple[str, ...] = ()

    @classmethod
    def of(cls, dataset: Dataset) -> DatasetFacts:
        return cls(
            dataset.name,
            dataset.dataset_hash,
            dataset.corpus_hash,
            len(dataset.documents),
            len(dataset.questions),
            dataset.source,
            dataset.label_source,
            dataset.notes,
            dataset.extracted,
        )


@dataclass(frozen=True, slots=True)
class CellResult:
    """Everything that a cell gives. Outcomes are the source of every number in `summary`; times are kept apart."""

    cell_key: str
    name: str
    params: Mapping[str, str | int | float | bool]
    plan: Plan
    dataset: DatasetFacts
    outcomes: tuple[Outcome, ...]
    summary: Summary
    timings: tuple[StageTime, ...]
    facts: Mapping[str, float]
    fingerprints: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()


def run_cell(
    cell: Cell, cache: Cache, *, dataset: Dataset | None = None, progress: Callable[[str], None] | None = None
) -> CellResult:
    """Runs a cell. `dataset`: already loaded (a sweep loads it once); else the part loads it, once per cache.

    Raises DenominatorError: settings and labels before any stage, StageError for a part that fails at its work.
    """
    cell.check()
    data = dataset or cache.once(sha(["dataset", describe(cell.dataset)]), cell.dataset.load, _dataset_bytes)
    plan = replace(cell.plan, evaluate=data.evaluate) if data.evaluate != cell.plan.evaluate else cell.plan
    if isinstance(cell.answerer, Threshold) and cell.answerer.t is not None:
        plan = replace(plan, threshold=cell.answerer.t)
    key = cell.key(data.dataset_hash, data.corpus_hash)
    with threads_limited(threads()), cache.recording() as times:
        work = _Work(replace(cell, plan=plan), data, cache, progress)
        outcomes, summary = work.run()
    return CellResult(
        cell_key=key,
        name=cell.name,
        params={**cell.params, **instruments(cell.answerer)},
        plan=plan,
        dataset=DatasetFacts.of(data),
        outcomes=outcomes,
        summary=summary,
        timings=tuple(times.values()),
        facts=dict(sorted(work.facts.items())),
        fingerprints=fingerprints_of(summary, plan, data),
        notes=tuple(dict.fromkeys([*data.notes, *work.notes])),
    )


def ranking_of(cell: Cell, data: Dataset, cache: Cache) -> tuple[tuple[str, ...], Ranked, ChunkTable]:
    """What a cell ranks for every question, without measuring it: question ids, rankings, chunks. Cached as in a sweep.

    Raises DenominatorError as `run_cell` does.
    """
    with threads_limited(threads()):
        work = _Work(cell, data, cache, None)
        bench = work.bench()
        first, _ = work._first(bench)
        return tuple(q.id for q in work.questions), work._reranked(bench, first), bench.table


def _dataset_bytes(data: Dataset) -> int:
    return in_memory(data.documents) + 2000 * len(data.questions)


class _Work:
    """One run of one cell: the stages in order, and the facts that they leave."""

    def __init__(self, cell: Cell, data: Dataset, cache: Cache, progress: Callable[[str], None] | None) -> None:
        self.cell, self.data, self.cache, self.progress = cell, data, cache, progress
        self.plan = cell.plan
        self.facts: dict[str, float] = {}
        self.notes: list[str] = []
        self.questions = tuple(sorted(data.questions, key=lambda q: q.id))

    def run(self) -> tuple[tuple[Outcome, ...], Summary]:
        part: Any = self.cell.answerer
        writer: Writer | None = part if hasattr(part, "generate") else None
        answers: Mapping[str, Answer] | None = None if part is None or writer else part.answers()
        judge = None
        if writer or answers is not None:
            check_languages(self.questions, answers or {}, self.plan.phrases)
        if answers is not None:
            asked = getattr(part, "judge", None)
            judge, facts, said = asked_judge(asked, self.cache, self.questions, answers, self.plan.phrases)
            self.facts.update(facts)
            self.notes.extend(said)
        index = None
        ranked: tuple[Ranked, ChunkTable] | None = None
        if self.plan.evaluate == "abstention":
            if writer:
                raise ConfigError(
                    f"answerer {type(writer).__name__} writes answers from what was retrieved, but dataset "
                    f"{self.data.name} is evaluated for abstention alone; choose answerer=recorded"
                )
            run = _nothing([q.id for q in self.questions])
        else:
            if not self.data.documents:
                raise MeasurementError(
                    "unscorable_questions", [], f"dataset {self.data.name} has no documents to search"
                )
            bench = self.bench()
            first, index_facts = self._first(bench)
            final = self._reranked(bench, first)
            ranked = final, bench.table
            index = self._corpus_index()
            run = final.run([q.id for q in self.questions], bench.table.units)
            self._facts(bench, first, final, index_facts, index)
            self._latency(bench, first)
            if writer:
                self._say(f"answer: {type(writer).__name__}")
                written = writer.generate(bench, final, self.questions, self.plan)
                answers, judge = written.answers, written.judge
                self.facts.update(written.facts)
                self.notes.extend(written.notes)
        self._say("evaluate")
        outcomes = evaluate(
            self.questions,
            run,
            self.plan,
            index=index,
            corpus_ids=ids_of(self.data.documents) if self.data.documents else None,
            answers=answers,
            judge=judge,
            decide=self.cell.answerer is not None,
            label_source=self.data.label_source,
        )
        if answers is not None:
            contexts = None if ranked is None else contexts_of(part, ranked[1], ranked[0], self.questions, self.plan)
            worth = worth_of(
                part, self.cache, outcomes, self.questions, answers=answers, contexts=contexts, plan=self.plan
            )
            outcomes = worth.outcomes
            self.facts.update(worth.facts)
            self.notes.extend(worth.notes)
        summary = summarize(
            outcomes, self.plan, label_source=self.data.label_source, chunker_varies=self.cell.chunker_varies
        )
        budget = f"coverage@b{self.plan.budget}"
        if (
            self.plan.headline == "auto"
            and summary.metrics[budget].reason == "depth_below_k"
            and self.cell.chunker_varies
        ):
            # Selection would silently fall back to another metric than that of the sweep's other cells.
            raise MeasurementError(
                "budget_underfilled",
                [f"budget={self.plan.budget}", f"pool={self.plan.pool}"],
                "the pool holds too little text for the token budget; raise pool, lower budget, or name a headline",
            )
        if ranked is not None:
            self.facts.update(_context_facts(*ranked, self.plan, summary.headline))
        return outcomes, summary

    def _say(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what)

    # ---------------------------------------------------------------- stages

    def bench(self) -> Bench:
        documents = in_order(self.data.documents)
        part: Any = self.cell.chunker
        inputs = _chunk_inputs(part, self.data.corpus_hash)
        name = type(part).__name__

        def chunks() -> Payload:
            return _packed(columns_of(documents, _chunked(part, documents)))

        self._say(f"chunk: {name}")
        table = self._table("chunks", inputs, chunks, documents)[0]
        if not len(table):
            raise StageError(
                f"{name} made no chunk of {len(documents)} documents; an empty index would score 0 like a real one"
            )
        if hasattr(part, "small_chunks"):
            parent: Any
            small, parent = self._table("small_chunks", inputs, lambda: _small(part, documents, table), documents)
            table = replace(table, small=small, parent=parent)
        queries = _queries(self.questions)
        return Bench(self.cache, table, queries, self.plan.pool, self.progress)

    def _table(
        self, stage: str, inputs: Mapping[str, Any], compute: Callable[[], Payload], documents: Sequence[Document]
    ) -> tuple[ChunkTable, Array | None]:
        """The chunks of a stage, and the chunk that each belongs to where they are small units.

        What a chunker gave whose inside nobody can see is not kept; its content is then the key of all that follows.
        """
        name = type(self.cell.chunker).__name__
        made: Payload | Entry
        if getattr(self.cell.chunker, "cacheable", True):
            made = self.cache.stage(stage, inputs, compute, f"{name}, {len(documents)} documents")
            key = made.key
        else:
            made = self.cache.once(sha([stage, inputs]), compute, lambda p: sum(a.nbytes for a in p.arrays.values()))
            content = {n: hashlib.sha256(np.ascontiguousarray(a).data).hexdigest() for n, a in made.arrays.items()}
            key = sha([stage, inputs["corpus"], content, {n: list(v) for n, v in made.lists.items()}])
        arrays, lists = made.arrays, made.lists
        table = self.cache.once(
            f"table:{key}", lambda: _unpacked(arrays, lists).table(key, documents), lambda t: 200 * len(t)
        )
        return table, np.asarray(arrays["parent"]) if "parent" in arrays else None

    def _first(self, bench: Bench) -> tuple[Ranked, Mapping[str, float]]:
        try:
            ranked, facts = bench.ranked(self.cell.embedder)
        except DenominatorError:
            raise
        except Exception as error:
            raise StageError(f"{type(self.cell.embedder).__name__}: {type(error).__name__}: {error}") from error
        silent = [i for i, text in enumerate(bench.queries.texts) if not text.strip()]
        return (without(ranked, {**ranked.errors, **dict.fromkeys(silent, NO_TEXT)}) if silent else ranked), facts

    def _reranked(self, bench: Bench, first: Ranked) -> Ranked:
        part = self.cell.reranker
        name = type(part).__name__

        def work() -> Ranked:
            try:
                found = part.rerank(bench, first)
            except DenominatorError:
                raise
            except Exception as error:
                raise StageError(f"reranker {name}: {type(error).__name__}: {error}") from error
            _check_permutation(name, first, found)
            return found

        if not (getattr(part, "cacheable", True) and getattr(self.cell.embedder, "cacheable", True)):
            return work()
        inputs = _rerank_inputs(self.cell, bench.table.key, bench.queries.key, bench.depth)
        what = f"{name} over {type(self.cell.embedder).__name__}, {len(first)} questions"
        entry = bench.stage("rerank", inputs, lambda: pack(work()), what)
        return unpack(entry)

    def _corpus_index(self) -> CorpusIndex:
        documents = in_order(self.data.documents)
        entry = self.cache.stage(
            "corpus_index",
            {"corpus": self.data.corpus_hash or "", "code": 1},
            lambda: Payload(CorpusIndex.build(documents, self.cache.gather).arrays()),
            f"{len(documents)} documents",
        )
        return self.cache.once(f"corpus_index:{entry.key}", lambda: CorpusIndex.from_arrays(entry.arrays), lambda _: 0)

    # ---------------------------------------------------------------- facts

    def _facts(
        self, bench: Bench, first: Ranked, final: Ranked, index_facts: Mapping[str, float], index: CorpusIndex
    ) -> None:
        table, units = bench.table, bench.table.units
        facts = self.facts
        facts["n_documents"] = float(len(table.documents))
        facts["n_chunks"] = float(len(table))
        facts["chunk_tokens_mean"] = float(np.mean(table.tokens))
        facts["chunk_tokens_max"] = float(np.max(table.tokens))
        facts["unanchored_chunks"] = float(np.count_nonzero(units.start < 0))
        facts["pool"] = float(bench.depth)
        facts["index_bytes"] = float(index_facts.get("index_bytes", 0.0))
        indexed = table.small or table
        if table.small is not None:
            facts["small_chunks"] = float(len(indexed))
            facts["small_chunk_tokens_mean"] = float(np.mean(indexed.tokens))
        for what, n in (("chunks", len(indexed)), ("questions", len(bench.queries))):
            self._truncated(what, n, index_facts)
        silent = int(np.count_nonzero(np.diff(final.offsets) == 0)) - len(final.errors)
        facts["questions_without_hits"] = float(silent)
        if silent:
            self.notes.append(f"{silent} of {len(final)} questions retrieved nothing (no matching term, or no vector)")
        if final.errors:
            self.notes.append(f"{len(final.errors)} of {len(final)} questions failed in retrieval")
        for name, value in {**index_facts, **final.facts}.items():
            if name.startswith(("embedder_", "reranker_", "ann_")):  # tokens, money: what a part says of itself
                facts[name] = value
        facts.update(self._pool_recall(first, table))
        facts.update(self._ceiling(index, table))

    def _truncated(self, what: str, n: int, index_facts: Mapping[str, float]) -> None:
        """How many texts the embedder cut, and by how much where it says so."""
        name = f"truncated_{what}"
        if name not in index_facts:
            return
        self.facts[name] = index_facts[name]
        self.facts[f"{name}_share"] = index_facts[name] / n
        lost = [f"{name}_{unit}" for unit in ("tokens", "characters") if f"{name}_{unit}" in index_facts]
        for each in lost:
            self.facts[each] = index_facts[each]
        if index_facts[name]:
            by = "".join(f", {int(index_facts[each])} {each.rpartition('_')[2]} are not read" for each in lost)
            self.notes.append(f"{int(index_facts[name])} of {n} {what} are longer than the embedder reads{by}")

    def _pool_recall(self, first: Ranked, table: ChunkTable) -> dict[str, float]:
        """Document recall of the first stage at the whole pool, over answerable questions: a reranker's ceiling."""

        def asked() -> list[tuple[int, list[list[int]]]]:
            row_of = {d: i for i, d in enumerate(table.units.docs)}
            groups = [(i, document_groups(q)) for i, q in enumerate(self.questions) if q.answerability == "answerable"]
            return [(i, [[row_of.get(d, -1) for d in group] for group in of]) for i, of in groups if of]

        key = sha(["pool_groups", self.data.dataset_hash, self.data.corpus_hash])
        docs = table.units.doc[first.unit]
        shares = []
        for i, groups in self.cache.once(key, asked, lambda made: 200 * len(made)):
            pool = set(docs[first.offsets[i] : first.offsets[i + 1]].tolist())
            shares.append(sum(not pool.isdisjoint(group) for group in groups) / len(groups))
        return {"first_stage_recall_at_pool": float(np.mean(shares))} if shares else {}

    def _ceiling(self, index: CorpusIndex, table: ChunkTable) -> dict[str, float]:
        """What the chunker did to the evidence, whatever is retrieved: share of spans cut apart, best coverage left."""
        questions = [q for q in self.questions if q.answerability == "answerable" and not q.needs_review]
        inputs = {"chunks": table.key, "dataset": self.data.dataset_hash, "code": 1}

        def compute() -> Payload:
            found = split_evidence(index, questions, table.units)
            share = found.share()
            ceiling = np.asarray(found.ceiling)
            known = bool(len(questions)) and bool(np.isfinite(ceiling).all())
            facts = {"split_evidence": share, "coverage_ceiling": float(np.mean(ceiling)) if known else None}
            return Payload(facts={name: value for name, value in facts.items() if value is not None})

        try:
            return dict(self.cache.stage("split_evidence", inputs, compute, f"{len(table)} chunks").facts)
        except MeasurementError:
            return {}  # gold that cannot be read is named by `evaluate`

    # ---------------------------------------------------------------- latency

    def _latency(self, bench: Bench, first: Ranked) -> None:
        """One question at a time, apart from the throughput run. A cached stage gives the figures of its own day."""
        how, cell = self.cell.latency, self.cell
        usable = [i for i in range(len(first)) if i not in first.errors]
        if not how.questions or not how.repeats or not usable or not getattr(cell.embedder, "timed", True):
            return
        picked = [usable[j] for j in np.linspace(0, len(usable) - 1, min(how.questions, len(usable))).astype(int)]
        texts = [bench.queries.texts[i] for i in picked]
        base = {
            "part": describe(cell.embedder),
            "chunks": bench.table.key,
            "questions": sha(texts),
            "how": [how.repeats, how.warm_up],
            "depth": bench.depth,
        }

        def first_stage() -> Payload:
            index = bench.first(cell.embedder)
            return Payload({"seconds": _timed(texts, lambda _, alone: index.search(alone, alone.queries), bench, how)})

        def rerank() -> Payload:
            rows = [first.one(i) for i in picked]
            return Payload(
                {"seconds": _timed(texts, lambda j, alone: cell.reranker.rerank(alone, rows[j]), bench, how)}
            )

        seconds = np.array(bench.stage("latency_first_stage", base, first_stage, f"{len(texts)} questions")["seconds"])
        asked = base | {"reranker": describe(cell.reranker)}
        seconds = seconds + np.array(bench.stage("latency_rerank", asked, rerank, f"{len(texts)} questions")["seconds"])
        each = np.median(seconds, axis=1) * 1000
        self.facts["latency_ms_median"] = float(np.median(each))
        self.facts["latency_ms_p95"] = float(np.percentile(each, 95))
        self.facts["latency_questions"] = float(len(texts))
        self.facts["latency_repeats"] = float(how.repeats)


def _timed(texts: Sequence[str], work: Callable[[int, Bench], Any], bench: Bench, how: Latency) -> Floats:
    """Seconds of each question (rows) in each repeat (columns), on one thread: other loads then disturb it least."""
    seconds = np.zeros((len(texts), how.repeats))
    with threads_limited(1):
        for j in range(min(how.warm_up, len(texts))):
            work(j, bench.alone(texts[j]))
        for r in range(how.repeats):
            for j, text in enumerate(texts):
                alone = bench.alone(text)
                clock = time.perf_counter()
                work(j, alone)
                seconds[j, r] = time.perf_counter() - clock
    return seconds


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _chunked(chunker: Chunker, documents: Sequence[Document]) -> Iterator[Sequence[Any]]:
    for document in documents:
        try:
            yield checked_chunks(chunker, document)
        except DenominatorError:
            raise
        except Exception as error:
            name = type(chunker).__name__
            raise StageError(f"chunker {name}, document {document.id!r}: {type(error).__name__}: {error}") from error


def _small(chunker: Any, documents: Sequence[Document], table: ChunkTable) -> Payload:
    """The small units of each chunk, with the chunk's number as `parent`."""
    edges = np.searchsorted(table.units.doc, np.arange(len(documents) + 1)).tolist()
    parents: list[int] = []

    def units() -> Iterator[Sequence[Chunk]]:
        for d, document in enumerate(documents):
            found = chunker.small_chunks(document, [table.chunk(i) for i in range(edges[d], edges[d + 1])])
            parents.extend(edges[d] + i for _, i in found)
            yield [unit for unit, _ in found]

    packed = _packed(columns_of(documents, units()))
    return replace(packed, arrays={**packed.arrays, "parent": np.array(parents, np.int32)})


def _packed(columns: Columns) -> Payload:
    arrays: dict[str, Array] = {
        "doc": columns.doc,
        "start": columns.start,
        "end": columns.end,
        "header_tokens": columns.header_tokens,
        "tokens": columns.tokens,
    }
    headers = [[i, text] for i, text in sorted(columns.headers.items())]
    own = [[i, name, text] for i, (name, text) in sorted(columns.own.items())]
    return Payload(arrays, {"headers": headers, "own": own})


def _unpacked(arrays: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> Columns:
    return Columns(
        doc=np.asarray(arrays["doc"]),
        start=np.asarray(arrays["start"]),
        end=np.asarray(arrays["end"]),
        header_tokens=np.asarray(arrays["header_tokens"]),
        tokens=np.asarray(arrays["tokens"]),
        headers={int(i): text for i, text in lists["headers"]},
        own={int(i): (name, text) for i, name, text in lists["own"]},
    )


def _check_permutation(name: str, before: Ranked, after: Ranked) -> None:
    """A reranker orders its pool; it neither adds nor loses a candidate, but for questions that failed in it."""
    left, right = without(before, after.errors), after
    if len(left) == len(right) and np.array_equal(left.offsets, right.offsets):
        a = np.sort(left.row * (1 << 32) + left.unit)
        b = np.sort(right.row * (1 << 32) + right.unit)
        if np.array_equal(a, b):
            return
    raise StageError(f"reranker {name} must return a permutation of the pool: it added or lost candidates")


def _context_facts(final: Ranked, table: ChunkTable, plan: Plan, headline: str) -> dict[str, float]:
    """Mean tokens that a generator gets, over questions that did not fail.

    `context_tokens_at_K` (5 where measured, else the largest K), `context_tokens_at_budget`, and `context_tokens`:
    the one of these at which the headline cuts, so that quality and cost speak of the same context.
    """
    good: Bools = np.ones(len(final), np.bool_)
    good[list(final.errors)] = False
    if not good.any():
        return {}
    metric = parse_metric(headline)
    k = 5 if 5 in plan.ks else max(plan.ks)
    at_budget = float(_context_tokens(final, table, None, plan)[good].mean())
    at_k = {n: float(_context_tokens(final, table, n, plan)[good].mean()) for n in {k, metric.k or k}}
    return {
        f"context_tokens_at_{k}": at_k[k],
        "context_tokens_at_budget": at_budget,
        "context_tokens": at_budget if metric.level == "L5" else at_k[metric.k or k],
    }


def _context_tokens(final: Ranked, table: ChunkTable, k: int | None, plan: Plan) -> Floats:
    """Tokens of each question's first `k` chunks; None: of what fits into the budget."""
    tokens = table.tokens[final.unit].astype(np.float64)
    row = final.row
    if k is not None:
        within = np.arange(len(row)) - final.offsets[row] < k
    elif plan.budget_cut == "truncate":
        return np.minimum(np.bincount(row, weights=tokens, minlength=len(final)), plan.budget)
    else:
        total = np.concatenate(([0], np.cumsum(tokens)))
        # Running sums only grow, so nothing fits after the first that does not.
        within = total[1:] - total[final.offsets[row]] <= plan.budget
    found: Floats = np.bincount(row[within], weights=tokens[within], minlength=len(final)).astype(np.float64)
    return found


def _nothing(question_ids: Sequence[str]) -> Run:
    """A run without retrieval: recorded answers alone are judged."""
    from denominator.types import Result

    return Run.from_results({q: Result(depth=None, no_confidence=True) for q in question_ids})


def fingerprints_of(summary: Summary, plan: Plan, data: Dataset) -> dict[str, dict[str, Any]]:
    """The fingerprint's fields for each metric of a run (docs/measurement.md, section 9)."""
    from denominator.tokens import identity

    found = {}
    for name in summary.metrics:
        metric = parse_metric(name)
        found[name] = {
            "dataset_hash": data.dataset_hash,
            "corpus_hash": data.corpus_hash,
            "metric": name,
            "metric_version": METRIC_VERSION,
            "level": metric.level,
            "k": metric.k,
            "aggregation": plan.aggregation,
            "eligibility": plan.eligibility,
            "ties": plan.ties,
            "tokenizer": identity(plan.budget_cut),
        }
    return found


@dataclass(frozen=True, slots=True)
class StageKey:
    """A stage of a cell before it is run. `key` is None where results are not kept (a live service) or unknown yet."""

    stage: str
    part: Any
    key: str | None
    distinct: str


def stage_keys(cell: Cell, data: Dataset) -> tuple[StageKey, StageKey, StageKey]:
    """The chunks, the first stage's ranking and the reranking of a cell, known by their cache keys without any work."""
    queries = _queries(sorted(data.questions, key=lambda q: q.id))
    chunks = Cache.key("chunks", _chunk_inputs(cell.chunker, data.corpus_hash))
    first = Cache.key("first_stage", ranked_inputs(cell.embedder, chunks, queries.key, cell.plan.pool))
    rerank = Cache.key("rerank", _rerank_inputs(cell, chunks, queries.key, cell.plan.pool))
    cut_anew = not getattr(cell.chunker, "cacheable", True)  # keys then follow from what it gives
    live = cut_anew or not getattr(cell.embedder, "cacheable", True)
    lively = live or not getattr(cell.reranker, "cacheable", True)
    return (
        StageKey("chunks", cell.chunker, None if cut_anew else chunks, chunks),
        StageKey("first_stage", cell.embedder, None if live else first, first),
        StageKey("rerank", cell.reranker, None if lively else rerank, rerank),
    )


def _queries(questions: Sequence[Question]) -> Queries:
    return Queries(tuple(q.question or "" for q in questions), ids=tuple(q.id for q in questions))


def _chunk_inputs(chunker: Chunker, corpus_hash: str | None) -> dict[str, Any]:
    library = getattr(chunker, "library", None)
    libraries = [f"{library} {_version(library)}"] if library else []
    return {"part": describe(chunker), "corpus": corpus_hash or "", "libraries": libraries}


def _rerank_inputs(cell: Cell, chunks: str, queries: str, depth: int) -> dict[str, Any]:
    return {
        "part": describe(cell.reranker),
        "first": describe(cell.embedder),
        "chunks": chunks,
        "queries": queries,
        "depth": depth,
    }


def unique_stages(cells: Sequence[Cell], dataset: Dataset) -> dict[str, int]:
    """How many distinct chunkings, indexes, rankings and reranks a grid needs: what its cost grows with."""
    chunkers = [sha(describe(c.chunker)) for c in cells]
    firsts = [sha([a, describe(c.embedder)]) for a, c in zip(chunkers, cells, strict=True)]
    reranks = [sha([a, describe(c.reranker)]) for a, c in zip(firsts, cells, strict=True)]
    return {
        "documents": len(dataset.documents),
        "cells": len(cells),
        "chunkings": len(set(chunkers)),
        "first_stages": len(set(firsts)),
        "reranks": len(set(reranks)),
    }
