"""`denominator sweep … --dry-run`: what a grid would do, what is there already, and about how long and how dear it is.

Nothing is computed, written or asked of a server. Time comes from the recorded times of the same part, scaled by size,
else from measured rates; the text says which. Money is an upper bound (answers that are kept are not asked for again),
and where replies have none the text says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from denominator.cache import Cache, EntryInfo
from denominator.corpus import characters
from denominator.pipeline import Cell, StageKey, stage_keys
from denominator.rerankers import NoRerank
from denominator.types import Dataset

if TYPE_CHECKING:
    from rich.console import Console

Source = Literal["recorded", "rate", "unknown"]

RATES = {
    # Seconds on two cores, from `benchmarks/rates.py`: chunkers per 1,000 characters, first stages per text (chunk or
    # question) with the index that they need, rerankers per question at the usual pool of 100.
    "Fixed": 0.0001,
    "FixedChars": 0.0001,
    "FixedTokens": 0.00015,
    "Sentences": 0.0001,
    "Recursive": 0.00012,
    "Headings": 0.0001,
    "WholeDocument": 0.00002,
    "BM25": 0.00016,
    "Static": 0.00016,
    "Hybrid": 0.0003,
    "Onnx": 0.077,
    "Mix": 0.0006,
    "MaxSim": 0.0012,
}
CELL_SECONDS = 0.65
"""What a cell costs beside its stages, measured: composition, latency, evaluation, the record."""
START_SECONDS = 7.0
"""What a sweep costs beside its cells, measured: imports, opening the record, the report."""
CHARACTERS_A_WORD = 6.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a stage that is to be computed, and where the figure comes from."""

    seconds: float | None
    source: Source


@dataclass(slots=True)
class Rehearsal:
    """What would happen. `stages`: stage → (distinct, cached); `todo` are distinct stages that would be computed."""

    cells: list[tuple[str, str]]
    recorded: int
    stages: dict[str, tuple[int, int]]
    todo: list[tuple[StageKey, Estimate]]
    money: list[str] = field(default_factory=list)
    known_seconds: float = 0.0

    @property
    def computed(self) -> int:
        return len(self.cells) - self.recorded

    @property
    def seconds(self) -> float:
        """Of one worker, without the stages of unknown cost."""
        work = sum(e.seconds or 0.0 for _, e in self.todo)
        return START_SECONDS + CELL_SECONDS * self.computed + work if self.computed else START_SECONDS


def rehearse(cells: Sequence[Cell], data: Sequence[Dataset], recorded: Sequence[bool], cache: Cache) -> Rehearsal:
    """Looks at every cell with its data and whether the record has it. Opens the cache for looking only."""
    entries = cache.entries()
    distinct: dict[str, tuple[StageKey, bool]] = {}
    needed: dict[str, tuple[StageKey, Cell, Dataset, int]] = {}
    lines = []
    sizes = _Sizes(cache)
    for cell, of, done in zip(cells, data, recorded, strict=True):
        missing = []
        keys = stage_keys(cell, of)
        for key in keys:
            if isinstance(key.part, NoRerank):  # does nothing, so it is neither kept nor counted
                continue
            if key.distinct not in distinct:
                there = key.key is not None and cache.peek(key.key) is not None
                distinct[key.distinct] = (key, there)
            if not distinct[key.distinct][1]:
                missing.append(key.stage)
                if not done:
                    needed.setdefault(key.distinct, (key, cell, of, sizes.of(cell.chunker, keys[0].distinct, of)))
        state = "recorded" if done else f"to compute: {', '.join(missing)}" if missing else "stages cached"
        lines.append((cell.name, state))
    stages = {
        name: (len(flags), sum(flags))
        for name in ("chunks", "first_stage", "rerank")
        for flags in [[there for key, there in distinct.values() if key.stage == name]]
    }
    todo = [(key, estimate(key, of, chunks, entries)) for key, _, of, chunks in needed.values()]
    money = [
        *_embedding_money(needed.values(), sizes),
        *_rerank_money(needed.values(), sizes),
        *_chat_money([(c, d) for c, d, done in zip(cells, data, recorded, strict=True) if not done]),
    ]
    return Rehearsal(lines, sum(recorded), stages, todo, money)


class _Sizes:
    """Chunks and their tokens: counted where they are cached, else estimated from the chunker's size."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.known: dict[str, tuple[int, float]] = {}

    def of(self, chunker: Any, key: str, data: Dataset) -> int:
        return self._both(chunker, key, data)[0]

    def tokens(self, chunker: Any, key: str, data: Dataset) -> float:
        return self._both(chunker, key, data)[1]

    def _both(self, chunker: Any, key: str, data: Dataset) -> tuple[int, float]:
        if key not in self.known:
            self.known[key] = self._counted(key) or self._guessed(chunker, data)
        return self.known[key]

    def _counted(self, key: str) -> tuple[int, float] | None:
        if self.cache.root is None:
            return None
        try:
            tokens = np.load(self.cache.path(key) / "tokens.npy", allow_pickle=False)
        except (OSError, ValueError):
            return None
        return len(tokens), float(tokens.sum())

    @staticmethod
    def _guessed(chunker: Any, data: Dataset) -> tuple[int, float]:
        words = characters(data.documents) / CHARACTERS_A_WORD
        size, overlap = getattr(chunker, "size", None), getattr(chunker, "overlap", 0)
        if not isinstance(size, int) or not isinstance(overlap, int):
            return len(data.documents), words
        step = max(1, size - overlap)
        pieces = len(data.documents) + words / step
        return int(pieces), words * size / step


def estimate(key: StageKey, data: Dataset, chunks: int, entries: Sequence[EntryInfo]) -> Estimate:
    """Seconds of one stage: the same part's recorded time for each unit of its size, else the measured rate."""
    name, size = type(key.part).__name__, _size(key.stage, data, chunks)
    own = [e for e in entries if e.stage == key.stage and e.what.split(",")[0].split(" over ")[0] == name]
    told = [(e.seconds_computed + e.seconds_below, n) for e in own if (n := _told(key.stage, e.what))]
    if told:
        return Estimate(size * sum(s for s, _ in told) / sum(n for _, n in told), "recorded")
    rate = RATES.get(name)
    if rate is None:
        return Estimate(None, "unknown")
    if key.stage == "chunks":
        return Estimate(rate * characters(data.documents) / 1000, "rate")
    return Estimate(rate * size, "rate")


def _size(stage: str, data: Dataset, chunks: int) -> int:
    if stage == "chunks":
        return len(data.documents)
    return len(data.questions) + (chunks if stage == "first_stage" else 0)


def _told(stage: str, what: str) -> int:
    """The size that an entry's line names, in the unit of its stage."""
    words = {"chunks": "documents", "first_stage": "questions|chunks", "rerank": "questions"}[stage]
    return sum(int(n) for n in re.findall(rf"(\d+) (?:{words})", what))


# ------------------------------------------------------------------ money


def _inside(part: Any) -> Iterator[tuple[Any, Any]]:
    """A part and the parts in it, each with the one that holds it."""
    stack: list[tuple[Any, Any]] = [(part, None)]
    while stack:
        found, above = stack.pop()
        yield found, above
        if is_dataclass(found) and not isinstance(found, type):
            below = [getattr(found, f.name) for f in fields(found)]
            stack += [
                (x, found) for v in below for x in (v if isinstance(v, (list, tuple)) else [v]) if is_dataclass(x)
            ]


def _money(what: str, amount: float, how: str) -> str:
    return f"{what}: at most {amount:,.4g} in the currency of its price ({how})"


def _embedding_money(needed: Any, sizes: _Sizes) -> Iterator[str]:
    seen = set()
    for key, cell, data, _ in needed:
        if key.stage != "first_stage":
            continue
        chunks = stage_keys(cell, data)[0]
        for part, above in _inside(key.part):
            if not hasattr(part, "price_per_million_tokens") or not hasattr(part, "embed"):
                continue
            searched = above is not None and hasattr(above, "vector")  # its index is the server's own
            label = (repr(part), chunks.distinct)
            if label in seen:
                continue
            seen.add(label)
            tokens = 0.0 if searched else sizes.tokens(chunks.part, chunks.distinct, data)
            tokens += _question_tokens(data)
            what = f"embedder {part.model}, {cell.name.split(' · ')[0]}"
            if part.price_per_million_tokens is None:
                yield f"{what}: about {tokens:,.0f} tokens; no price is set (price_per_million_tokens)"
            else:
                amount = tokens * part.price_per_million_tokens / 1e6
                yield _money(what, amount, f"about {tokens:,.0f} tokens")


def _rerank_money(needed: Any, sizes: _Sizes) -> Iterator[str]:
    for key, cell, data, chunks in needed:
        if key.stage != "rerank":
            continue
        for part, _ in _inside(key.part):
            if not hasattr(part, "price_per_thousand_searches"):
                continue
            questions, pool = len(data.questions), min(cell.plan.pool, chunks)
            searches = questions * (1 if not part.batch else -(-pool // part.batch))
            of = stage_keys(cell, data)[0]
            each = sizes.tokens(of.part, of.distinct, data) / max(1, chunks)
            tokens = questions * pool * each + pool * _question_tokens(data)
            prices = part.price_per_million_tokens, part.price_per_thousand_searches
            what, how = f"reranker {part.model}, {cell.name}", f"{searches:,} searches, about {tokens:,.0f} tokens"
            if prices == (None, None):
                yield f"{what}: {how}; no price is set (price_per_million_tokens, price_per_thousand_searches)"
            else:
                yield _money(what, tokens * (prices[0] or 0) / 1e6 + searches * (prices[1] or 0) / 1e3, how)


def _chat_money(cells: Sequence[tuple[Cell, Dataset]]) -> Iterator[str]:
    for cell, data in cells:
        for part, above in _inside(cell.answerer):
            if not hasattr(part, "price_per_million_input") or not hasattr(part, "replies"):
                continue
            read: float | None
            if above is None:
                read = float(len(data.questions) * (getattr(part, "budget", None) or cell.plan.budget))
            else:  # a judge or a grader reads the answers; which of them, nobody knows yet
                read = _answer_tokens(above, data)
            sent = (read or 0.0) + _question_tokens(data) + _prompt_tokens(part, data)
            back = None if part.max_tokens is None else len(data.questions) * part.max_tokens
            how = f"{sent:,.0f} tokens sent"
            how = f"about {how}" if read is not None else f"{how} beside the answers, which have no bound"
            how += (
                ", no bound on what is received: max_tokens is null"
                if back is None
                else f", at most {back:,.0f} received"
            )
            what = f"{type(part).__name__.lower()} {part.model}, {cell.name}"
            of_sent, of_received = part.price_per_million_input, part.price_per_million_output
            if of_sent is None and of_received is None:
                yield f"{what}: {how}; no price is set (price_per_million_input, price_per_million_output)"
                continue
            amount = (sent * (of_sent or 0) + (back or 0) * (of_received or 0)) / 1e6
            if (read is None and of_sent) or (back is None and of_received):
                yield f"{what}: no upper bound; {amount:,.4g} in the currency of its price for what is bounded ({how})"
            else:
                yield _money(what, amount, how)


def _prompt_tokens(part: Any, data: Dataset) -> float:
    """Tokens of the system prompt of every request, and of the reference answers where the prompt has them."""
    from denominator.tokens import count

    references = [a for q in data.questions for a in q.answers] if "references" in getattr(part, "names", ()) else []
    return float(len(data.questions) * count(part.system) + sum(map(count, references)))


def _answer_tokens(answerer: Any, data: Dataset) -> float | None:
    """Tokens of all recorded answers; of written ones what they may be at most, None without a bound."""
    from denominator.tokens import count

    if hasattr(answerer, "answers"):
        return float(sum(count(a.text or "") for a in answerer.answers().values()))
    most = getattr(answerer, "max_tokens", None)
    return None if most is None else float(len(data.questions) * most)


def _question_tokens(data: Dataset) -> float:
    from denominator.tokens import count

    return float(sum(count(q.question or "") for q in data.questions))


# ------------------------------------------------------------------ shown


def show(found: Rehearsal, out: Console, *, searched: str = "") -> None:
    """The rehearsal for a person."""
    if searched:
        out.print(f"{searched} chooses the cells while it runs, so there is no list of them beforehand.")
        out.print("nothing was run")
        return
    width = len(str(len(found.cells)))
    for number, (name, state) in enumerate(found.cells, 1):
        out.print(f"{number:>{width}}  {name}: {state}", soft_wrap=True)
    out.print()
    out.print(f"cells: {len(found.cells)}, recorded {found.recorded}, to run {found.computed}")
    names = {"chunks": "chunkings", "first_stage": "first stages", "rerank": "rerankings"}
    for stage, (distinct, cached) in found.stages.items():
        wanted = sum(key.stage == stage for key, _ in found.todo)
        out.print(f"{names[stage]}: {distinct} distinct, {cached} cached, {wanted} to compute")
    if found.computed:
        out.print(f"time: about {duration(found.seconds)} on one worker ({'; '.join(basis(found))})", soft_wrap=True)
    for line in found.money:
        out.print(f"money: {line}", soft_wrap=True)
    out.print("nothing was run")


def basis(found: Rehearsal) -> list[str]:
    """Where the estimate of time comes from."""
    by: Mapping[Source, list[str]] = {
        source: [type(key.part).__name__ for key, e in found.todo if e.source == source]
        for source in ("recorded", "rate", "unknown")
    }
    said = [f"{START_SECONDS:.0f} s to start and {CELL_SECONDS:.1f} s a cell beside its stages, measured rates"]
    if by["recorded"]:
        said.append(f"{len(by['recorded'])} stages by recorded times of the same part, scaled by size")
    if by["rate"]:
        said.append(f"{len(by['rate'])} stages by measured rates")
    if by["unknown"]:
        said.append(f"{len(by['unknown'])} stages of unknown cost not counted: {', '.join(sorted(set(by['unknown'])))}")
    return said


def duration(seconds: float) -> str:
    """Two figures' worth.

    >>> duration(7.4), duration(130), duration(9000)
    ('7 s', '2 min 10 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
