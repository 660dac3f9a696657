"""Span metrics: how much of the gold text the retrieved chunks hold, at K chunks (L4) or within a token budget (L5).

Everything happens on one line. `CorpusIndex` lays the documents end to end and counts the non-space code points
before every position; a span, a chunk and a token then are intervals of *counted* positions, and whitespace,
document borders and Unicode need no further thought. The index is built once per corpus, `SpanGold` once per
question set, and a run is scored by merging the few intervals that touch gold.

Where the text is not known every position counts, as it does for tools that ignore whitespace rules.

Source: docs/measurement.md, section 5.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from denominator import eligibility, ranking, tokens
from denominator.errors import MeasurementError
from denominator.types import (
    Bools,
    Document,
    Evidence,
    Floats,
    Group,
    Hit,
    Int32s,
    Ints,
    Question,
    Result,
    Run,
    Ties,
    Units,
    filled,
)

Counts = npt.NDArray[np.int64] | npt.NDArray[np.int32]
Reasons = Mapping[int, str]
Codes = npt.NDArray[np.uint8]
Cut = Literal["truncate", "whole"]
Gather = Callable[[tuple[int, ...], Any, Callable[[], Iterable[npt.NDArray[Any]]]], Any]

_REASONS = ("", "no_spans", "or_groups_unsupported", "unanchored_chunks")
_DEFINED, _NO_SPANS, _OR_GROUPS, _UNANCHORED = range(4)

FAMILIES = ("coverage", "recall_tau100", "recall_tau50", "span_recall", "span_precision", "span_iou")
"""Per-question values of every cut; a name is `family@K` (L4) or `family@bB` (L5)."""

LEAST_FILL = 0.95
_TEXT_BLOCK = 1 << 20  # code points that are classified at once
_PAIR_BLOCK = 1 << 19  # (gold span, hit) pairs that are looked at once

# ------------------------------------------------------------------ the line


@dataclass(frozen=True, slots=True, eq=False)
class CorpusIndex:
    """A corpus as columns: where each document begins, what counts before each position, where tokens end.

    Offset `o` of document row `d` has the address `base[d] + o`; one position separates documents and counts
    nothing. `counted[a]` is the number of counted code points before address `a`, so `[start, end)` is the interval
    `[counted[start], counted[end])` and its size is the difference. `token_end` is in counted positions: `regex-v1`
    tokens tile them, so the tokens of any piece follow by two look-ups.

    >>> index = CorpusIndex.build([Document("d", "one two")])
    >>> index.counted.tolist(), index.token_end.tolist()
    ([0, 1, 2, 3, 3, 4, 5, 6, 6], [3, 6])
    """

    ids: tuple[str, ...]
    base: Ints
    counted: Counts
    token_end: Counts
    has_text: bool = True
    rows: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = {document: row for row, document in enumerate(self.ids)}
        if len(rows) != len(self.ids):
            twice = {i for row, i in enumerate(self.ids) if rows[i] != row}
            raise MeasurementError("bad_id", twice, "document ids that occur more than once")
        object.__setattr__(self, "rows", rows)

    @classmethod
    def build(cls, documents: Iterable[Document], gather: Gather | None = None) -> CorpusIndex:
        """Reads every text twice. Whitespace (`str.isspace`) is not counted; the title is no part of the text.

        `gather(shape, dtype, blocks)` puts the blocks of `counted` together; without it they are one array in memory.
        """
        if not isinstance(documents, Sequence):
            documents = tuple(documents)
        ids, sizes = [], np.empty(len(documents), np.int64)
        for row, document in enumerate(documents):
            ids.append(document.id)
            sizes[row] = len(document.text) + 1
        base = np.concatenate(([0], np.cumsum(sizes)))
        dtype = np.int32 if base[-1] < np.iinfo(np.int32).max else np.int64
        ends: list[Any] = []

        def blocks() -> Iterator[npt.NDArray[Any]]:
            ends[:] = [np.zeros(0, dtype)]
            before = 0
            yield np.zeros(1, dtype)
            for text in _batches(documents):
                kind = tokens.kinds(tokens.code_points(text))
                piece: npt.NDArray[Any] = np.cumsum(kind != tokens.SPACE, dtype=dtype)
                piece += before
                before = int(piece[-1])
                ends.append(piece[tokens.ends_mask(kind)])
                yield piece

        counted = (gather or filled)((int(base[-1]) + 1,), dtype, blocks)
        return cls(tuple(ids), base, counted, np.concatenate(ends))

    @classmethod
    def plain(cls, lengths: Mapping[str, int]) -> CorpusIndex:
        """Documents of known length and unknown text: every position counts, and there are no tokens."""
        sizes = np.fromiter((n + 1 for n in lengths.values()), np.int64, len(lengths))
        base = np.concatenate(([0], np.cumsum(sizes)))
        counts = np.ones(int(base[-1]), np.int64)
        counts[base[1:] - 1] = 0
        return cls(tuple(lengths), base, np.concatenate(([0], np.cumsum(counts))), np.zeros(0, np.int64), False)

    @property
    def size(self) -> int:
        """Counted positions of the whole corpus."""
        return int(self.counted[-1])

    @property
    def lengths(self) -> Ints:
        """Code points of each document."""
        return np.diff(self.base) - 1

    @property
    def n_tokens(self) -> int:
        return len(self.token_end)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain columns, each fit for a `.npy` file; ids are one JSON list as bytes. `from_arrays` undoes it."""
        ids = np.frombuffer(json.dumps(list(self.ids)).encode("ascii"), np.uint8)
        return {
            "ids": ids,
            "base": self.base,
            "counted": self.counted,
            "token_end": self.token_end,
            "has_text": np.array([self.has_text]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> CorpusIndex:
        """An index from what `arrays` gave; the columns are used as they are, memory-mapped ones too."""
        ids = tuple(json.loads(np.asarray(arrays["ids"]).tobytes().decode("ascii")))
        return cls(ids, arrays["base"], arrays["counted"], arrays["token_end"], bool(arrays["has_text"][0]))


def _batches(documents: Sequence[Document]) -> Iterator[str]:
    """Texts joined up to a bounded size, each followed by the one position that separates documents."""
    batch: list[str] = []
    held = 0
    for document in documents:
        if batch and held + len(document.text) > _TEXT_BLOCK:
            yield "\n".join(batch) + "\n"
            batch, held = [], 0
        batch.append(document.text)
        held += len(document.text) + 1
    if batch:
        yield "\n".join(batch) + "\n"


# ------------------------------------------------------------------ gold and chunks as intervals


@dataclass(frozen=True, slots=True, eq=False)
class SpanGold:
    """Gold spans of many questions as intervals of counted positions, in question order.

    A *target* is a distinct interval of one question: an alternative of a group, or a piece of the union Γ. Groups
    and alternatives that are listed twice count once. A document that the corpus does not hold gets positions of its
    own behind the corpus, where no chunk lies: such spans are simply never covered.
    """

    question_ids: tuple[str, ...]
    groups: Ints  # evidence groups per question; 0: no spans
    varied: Bools  # a group has alternatives: character metrics are undefined
    gold_size: Ints  # |Γ|
    group_question: Ints
    alt_group: Ints
    alt_target: Ints
    piece_question: Ints
    piece_target: Ints
    target_question: Ints
    target_lo: Ints
    target_hi: Ints

    def __len__(self) -> int:
        return len(self.question_ids)

    @classmethod
    def build(cls, index: CorpusIndex, questions: Sequence[Question]) -> SpanGold:
        """Columns of every question that has spans; the others have 0 groups.

        Raises `empty_span` (with the question ids) for a span without a counted position and `span_out_of_range`
        (with the document ids) for one that leaves its text.
        """
        return _gold_columns(index, [(q.id, eligibility.span_groups(q)) for q in questions])


def _gold_columns(
    index: CorpusIndex, rows: Sequence[tuple[str, Sequence[Group] | None]], *, name_questions: bool = True
) -> SpanGold:
    lengths = index.lengths.tolist()
    absent: dict[str, int] = {}  # document -> row behind those of the corpus
    need: list[int] = []  # positions of each
    groups = np.zeros(len(rows), np.int64)
    group_question: list[int] = []
    spans: list[tuple[int, int, int, int]] = []  # group, document row, start, end
    outside: set[str] = set()
    for question, (_, given) in enumerate(rows):
        distinct: dict[tuple[tuple[str, int, int], ...], None] = {}
        for group in given or ():
            distinct[tuple(sorted({_resolved(a, index, lengths) for a in group}))] = None
        for group_spans in distinct:
            for document, start, end in group_spans:
                row = index.rows.get(document)
                if row is None:
                    row = absent.setdefault(document, len(lengths) + len(absent))
                    if row - len(lengths) == len(need):
                        need.append(0)
                    need[row - len(lengths)] = max(need[row - len(lengths)], end)
                elif end > lengths[row]:
                    outside.add(document)
                if start < 0 or end < 0:
                    outside.add(document)
                spans.append((len(group_question), row, start, end))
            group_question.append(question)
        groups[question] = len(distinct)
    if outside:
        raise MeasurementError("span_out_of_range", outside, "gold spans that leave their document")
    alt_group, row_of, start_of, end_of = np.array(spans, np.int64).reshape(-1, 4).T
    owner = np.array(group_question, np.int64)
    start_of = np.minimum(start_of, end_of)
    inside = row_of < len(lengths)
    base = np.append(index.base, index.size + np.cumsum([0, *need]))  # behind the corpus every position counts
    base = np.delete(base, len(lengths))  # the corpus's own end is no document
    lo, hi = base[row_of] + start_of, base[row_of] + end_of
    lo[inside], hi[inside] = index.counted[lo[inside]], index.counted[hi[inside]]
    empty = (lo == hi) & (inside | (end_of > 0))  # a whole document that the corpus lacks has no known length
    if empty.any():
        named = {rows[question][0] for question in owner[alt_group[empty]]} if name_questions else ()
        raise MeasurementError("empty_span", named, "gold spans that hold no character but whitespace")
    return _columns(
        tuple(q for q, _ in rows),
        groups=groups,
        group_question=owner,
        alt_group=alt_group,
        lo=lo,
        hi=hi,
    )


def _resolved(alternative: Evidence, index: CorpusIndex, lengths: Sequence[int]) -> tuple[str, int, int]:
    """The alternative as (document, start, end); a whole document that the corpus lacks has length 0."""
    if alternative.start is not None and alternative.end is not None:
        return alternative.doc, alternative.start, alternative.end
    row = index.rows.get(alternative.doc)
    if row is not None and not index.has_text:
        message = "a whole document as evidence needs the document's text"
        raise MeasurementError("span_out_of_range", [alternative.doc], message)
    return alternative.doc, 0, 0 if row is None else lengths[row]


def _columns(
    ids: tuple[str, ...],
    *,
    groups: Ints,
    group_question: Ints,
    alt_group: Ints,
    lo: Ints,
    hi: Ints,
) -> SpanGold:
    n = len(ids)
    alternatives = np.bincount(alt_group, minlength=len(group_question))
    varied = np.bincount(group_question, weights=alternatives > 1, minlength=n) > 0
    alt_question = group_question[alt_group]
    # Γ: the union of a question's spans, as disjoint pieces.
    order = np.lexsort((hi, lo, alt_question))
    order = order[~varied[alt_question[order]]]
    key = alt_question[order] * (int(hi.max(initial=0)) + 1)
    reach = np.maximum.accumulate(key + hi[order]) if order.size else key
    begins = np.ones(order.size, bool)
    begins[1:] = key[1:] + lo[order][1:] > reach[:-1]
    first = np.flatnonzero(begins)
    piece_question = alt_question[order][first]
    piece_lo = lo[order][first]
    piece_hi = (reach - key)[np.append(first[1:], order.size) - 1] if order.size else piece_lo
    gold_size = np.bincount(piece_question, weights=piece_hi - piece_lo, minlength=n).astype(np.int64)
    # Targets: what has to be intersected with the retrieved text, each interval of a question once.
    every = np.stack(
        [np.concatenate(pair) for pair in ((alt_question, piece_question), (lo, piece_lo), (hi, piece_hi))]
    )
    by = np.lexsort(every[::-1])
    fresh = np.ones(by.size, bool)
    fresh[1:] = (every[:, by[1:]] != every[:, by[:-1]]).any(axis=0)
    number = np.empty(by.size, np.int64)
    number[by] = np.cumsum(fresh) - 1
    target_question, target_lo, target_hi = every[:, by[fresh]]
    return SpanGold(
        ids, groups, varied, gold_size, group_question, alt_group, number[: len(lo)], piece_question,
        number[len(lo) :], target_question, target_lo, target_hi,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """Chunks as intervals, and what they cost. Token j of chunk u ends at `ends[first[u] + j]`."""

    lo: Ints
    hi: Ints
    header: Ints
    tokens: Ints  # of the text itself; -1: unknown
    first: Ints
    ends: Counts
    loose: Bools  # no offsets: covers nothing
    document: Bools  # a bare document id: which characters were retrieved is not said


def _placed(index: CorpusIndex, units: Units, token_ends: Mapping[str, Sequence[int]] | None = None) -> _Placed:
    """Raises `span_out_of_range` with the document ids for chunks that leave their text or the corpus."""
    rows = np.fromiter((index.rows.get(d, -1) for d in units.docs), np.int64, len(units.docs))
    row = rows[units.doc] if len(units) else np.zeros(0, np.int64)
    start, end = units.start.astype(np.int64), units.end.astype(np.int64)
    loose = (start < 0) & (end < 0)
    held = np.append(index.lengths, -1)  # row -1: a document that the corpus lacks holds nothing
    wrong = ~loose & ((start < 0) | (end < start) | (end > held[row]))
    if wrong.any():
        named = {units.docs[units.doc[u]] for u in np.flatnonzero(wrong)}
        raise MeasurementError("span_out_of_range", named, "chunks that leave their document, or the corpus lacks it")
    address = np.where(loose, 0, index.base[row])
    lo = index.counted[address + np.where(loose, 0, start)].astype(np.int64)
    hi = index.counted[address + np.where(loose, 0, end)].astype(np.int64)
    document = loose & (units.tokens < 0)
    for u in np.flatnonzero(document):
        document[u] = units.ids[u] == units.docs[units.doc[u]]
    header = units.header_tokens.astype(np.int64)
    if token_ends is None:
        ends = index.token_end
        first = np.searchsorted(ends, lo.astype(ends.dtype), side="right")
        last = np.searchsorted(ends, hi.astype(ends.dtype), side="left")
        count = np.where(hi > lo, last - first + 1, 0) if index.has_text else np.full(len(units), -1)
        count = np.where(loose, units.tokens, count).astype(np.int64)
    else:
        first, count, ends = _given_ends(index, units, token_ends, address)
    return _Placed(lo, hi, header, count, first, ends, loose, document)


def _given_ends(
    index: CorpusIndex, units: Units, token_ends: Mapping[str, Sequence[int]], address: Ints
) -> tuple[Ints, Ints, Counts]:
    """Tokens as the caller counted them: the end offset of each, in the document, per chunk id."""
    lists: list[Ints] = []
    count = units.tokens.astype(np.int64)
    for u, i in enumerate(units.ids):
        ends = np.asarray(token_ends.get(i, ()), np.int64)
        if i in token_ends:
            count[u] = len(ends)
        # without offsets a chunk covers nothing, and where its tokens end is never asked
        lists.append(ends if units.start[u] < 0 else index.counted[address[u] + ends].astype(np.int64))
    sizes = np.fromiter(map(len, lists), np.int64, len(lists))
    return np.cumsum(sizes) - sizes, count, np.concatenate([*lists, np.zeros(0, np.int64)])


# ------------------------------------------------------------------ a run


@dataclass(frozen=True, slots=True, eq=False)
class SpanTable:
    """Per-question span values of one run, in question order.

    `values[name]` is NaN exactly in the rows of `reasons[name]`; use `value` and `reason` to read one. Questions that
    failed or are missing have 0 (nothing was retrieved) and count as `exhausted`: no depth cut them. `unanchored` is
    how many chunks without offsets each question's whole ranking lists.
    """

    question_ids: tuple[str, ...]
    ks: tuple[int, ...]
    budgets: tuple[int, ...]
    values: Mapping[str, Floats]
    reasons: Mapping[str, Reasons]
    groups: Ints
    unanchored: Ints
    exhausted: Bools

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.values)

    def value(self, name: str, row: int) -> float | None:
        """A finite number, or None with a `reason`."""
        return None if row in self.reasons[name] else float(self.values[name][row])

    def reason(self, name: str, row: int) -> str | None:
        return self.reasons[name].get(row)

    def check_fill(self, budget: int, eligible: Bools | None = None) -> None:
        """Raises `budget_underfilled` unless the rankings of the eligible questions are deep enough for the budget."""
        mine = self.groups > 0
        if eligible is not None:
            mine = mine & eligible
        budget_guard(self.values[f"budget_fill@b{budget}"][mine], self.exhausted[mine])


def span_table(
    index: CorpusIndex,
    questions: Sequence[Question] | SpanGold,
    run: Run,
    *,
    ks: Sequence[int] = (),
    budget: int | Sequence[int] | None = None,
    cut: Cut = "truncate",
    ties: Ties = "asc",
) -> SpanTable:
    r"""Every span metric of every question, whatever its state, at each K (L4) and each token budget (L5).

    With R the union of the retrieved chunks' counted positions, S a gold span, Γ the union of all of them:

    - `coverage`: mean over groups of the maximum over alternatives of |S ∩ R| / |S|. By union, never summed.
    - `recall_tau100`, `recall_tau50`: share of groups whose coverage is 1, at least ½.
    - `span_recall` |Γ ∩ R| / |Γ|, `span_precision` |Γ ∩ R| / Σ|chunk| (0 if nothing was retrieved) and `span_iou`
      |Γ ∩ R| / (Σ|chunk| + |Γ \ R|): undefined for a question with alternatives (`or_groups_unsupported`) or that
      retrieved a chunk without offsets (`unanchored_chunks`).
    - `budget_fill@bB`: tokens used / B.

    The budget walk adds chunks in rank order while they fit. The first that does not fit is cut to the tokens that
    are left (`truncate`) or dropped (`whole`), and the walk stops. A chunk pays `header_tokens` first, which cover
    nothing, then its text; overlapping chunks pay twice.

    Questions without spans are undefined with `no_spans`; so are those whose ranking lists bare document ids, because
    it does not say which characters were retrieved. Where the walk meets a chunk without offsets whose tokens are not
    known, the budget's values are undefined with `unanchored_chunks`.

    `questions` may be a ready `SpanGold`, which many runs over the same questions share. A run that is not in
    canonical order is put in it first. Work is done in blocks of questions, so memory does not grow with their number.

    Raises `bad_k`, `depth_below_k`, `bad_budget`, `empty_span`, `span_out_of_range`.
    """
    gold = questions if isinstance(questions, SpanGold) else SpanGold.build(index, questions)
    budgets = _budgets(budget)
    for k in ks:
        ranking.check_k(k)
        ranking.check_depth(k, run.depth)
    run = ranking.canonical(run, ties)
    placed = _placed(index, run.units)
    _need_text(placed, budgets)
    return _table(gold, run, placed, ks=tuple(ks), budgets=budgets, cut=cut)[0]


def _need_text(placed: _Placed, budgets: tuple[int, ...]) -> None:
    """Chunks of a text that is not known have no tokens, unless the caller counted them."""
    if budgets and ((placed.tokens < 0) & ~placed.loose).any():
        raise MeasurementError("bad_budget", map(str, budgets), "a token budget needs the documents' text")


def _budgets(budget: int | Sequence[int] | None) -> tuple[int, ...]:
    given = () if budget is None else tuple(budget) if isinstance(budget, Sequence) else (budget,)
    for b in given:
        if isinstance(b, bool) or not isinstance(b, (int, np.integer)) or b < 1:
            raise MeasurementError("bad_budget", [str(b)], "a token budget is a whole number of at least 1")
    return tuple(int(b) for b in given)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """The hits of some questions, rank by rank, and those of them that touch gold."""

    question: Ints  # per row, counted from the block's first question
    rank: Ints
    unit: Ints
    first: Ints  # per question, its first row
    length: Ints  # per question
    target_lo: Ints
    target_hi: Ints
    pair_target: Ints  # per pair, counted from the block's first target
    pair_row: Ints


def _table(
    gold: SpanGold,
    run: Run,
    placed: _Placed,
    *,
    ks: tuple[int, ...],
    budgets: tuple[int, ...],
    cut: Cut,
) -> tuple[SpanTable, dict[str, Floats]]:
    """The table, and the coverage of every evidence group at every cut."""
    n = len(gold)
    cuts = [(f"@{k}", False, k) for k in ks] + [(f"@b{b}", True, b) for b in budgets]
    values = {f"{family}{suffix}": np.zeros(n) for suffix, _, _ in cuts for family in FAMILIES}
    values |= {f"budget_fill@b{b}": np.zeros(n) for b in budgets}
    codes = {name: np.zeros(n, np.uint8) for name in values}
    by_group = {suffix: np.zeros(len(gold.group_question)) for suffix, _, _ in cuts}
    unanchored = np.zeros(n, np.int64)

    at = {q: i for i, q in enumerate(run.question_ids)}
    where = np.fromiter((at.get(q, -1) for q in gold.question_ids), np.int64, n)
    begin = np.where(where < 0, 0, run.offsets[where] if len(run) else 0)
    length = np.where(where < 0, 0, run.offsets[where + 1] - begin if len(run) else 0)
    failed = np.fromiter((q in run.errors for q in gold.question_ids), bool, n)
    exhausted = (where < 0) | failed | (run.exhausted[where] if len(run) else True)

    group_at = np.searchsorted(gold.group_question, np.arange(n + 1))
    alt_at = np.searchsorted(gold.alt_group, group_at)
    piece_at = np.searchsorted(gold.piece_question, np.arange(n + 1))
    target_at = np.searchsorted(gold.target_question, np.arange(n + 1))
    for a, z in _blocks(length * (1 + np.diff(target_at))):
        targets = slice(int(target_at[a]), int(target_at[z]))
        block = _block(
            run.unit,
            placed,
            begin[a:z],
            length[a:z],
            owner=gold.target_question[targets] - a,
            lo=gold.target_lo[targets],
            hi=gold.target_hi[targets],
        )
        lo, hi = placed.lo[block.unit], placed.hi[block.unit]
        loose, document = placed.loose[block.unit], placed.document[block.unit]
        here = slice(a, z)
        m = z - a
        unanchored[here] = np.bincount(block.question, weights=loose & ~document, minlength=m)
        groups = slice(int(group_at[a]), int(group_at[z]))
        alts = slice(int(alt_at[a]), int(alt_at[z]))
        pieces = slice(int(piece_at[a]), int(piece_at[z]))
        for suffix, is_budget, limit in cuts:
            if is_budget:
                active, reach, used, unknown = _walk(block, placed, limit, cut)
                values[f"budget_fill{suffix}"][here] = used / limit
            else:
                active, reach, unknown = block.rank < limit, hi, np.zeros(m, bool)
            covered = _covered(block, lo, reach, active)
            size = block.target_hi - block.target_lo
            share = np.divide(covered, size, out=np.zeros(len(covered)), where=size > 0)
            best = _group_max(share[gold.alt_target[alts] - targets.start], gold.alt_group[alts])
            by_group[suffix][groups] = best
            owner = gold.group_question[groups] - a
            count = np.maximum(gold.groups[here], 1)
            values[f"coverage{suffix}"][here] = np.bincount(owner, weights=best, minlength=m) / count
            for family, least in (("recall_tau100", 1.0), ("recall_tau50", 0.5)):
                # covered / size is correctly rounded, so it is 1 only for all and ≥ ½ only for half of the positions
                values[f"{family}{suffix}"][here] = np.bincount(owner, weights=best >= least, minlength=m) / count
            found = np.bincount(
                gold.piece_question[pieces] - a,
                weights=covered[gold.piece_target[pieces] - targets.start],
                minlength=m,
            )
            sent = np.bincount(block.question, weights=np.where(active, reach - lo, 0), minlength=m)
            gold_size = gold.gold_size[here]
            for family, whole in (
                ("span_recall", gold_size),
                ("span_precision", sent),
                ("span_iou", sent + gold_size - found),
            ):
                out = values[f"{family}{suffix}"][here]
                np.divide(found, whole, out=out, where=whole > 0)
            has_loose = np.bincount(block.question, weights=loose & active, minlength=m) > 0
            names_document = np.bincount(block.question, weights=document & active, minlength=m) > 0
            _explain(
                codes,
                suffix,
                here,
                gold,
                has_loose=has_loose,
                names_document=names_document,
                unknown=unknown,
                is_budget=is_budget,
            )
    reasons = _reasons(values, codes)
    table = SpanTable(gold.question_ids, ks, budgets, values, reasons, gold.groups, unanchored, exhausted)
    return table, by_group


def _reasons(values: Mapping[str, Floats], codes: Mapping[str, Codes]) -> dict[str, Reasons]:
    """Code by row, where there is one, and NaN there; names with the same codes share a mapping."""
    shared: dict[bytes, Reasons] = {}
    out: dict[str, Reasons] = {}
    for name, column in codes.items():
        rows = np.flatnonzero(column)
        values[name][rows] = np.nan
        key = column.tobytes()
        if key not in shared:
            shared[key] = {int(row): _REASONS[column[row]] for row in rows}
        out[name] = shared[key]
    return out


def _blocks(weights: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of questions whose weights add up to a bounded sum; a heavier one is alone."""
    total = np.cumsum(weights)
    a, n = 0, len(weights)
    while a < n:
        spent = int(total[a - 1]) if a else 0
        z = max(a + 1, int(np.searchsorted(total, spent + _PAIR_BLOCK, side="right")))
        yield a, z
        a = z


def _block(units: Int32s, placed: _Placed, begin: Ints, length: Ints, *, owner: Ints, lo: Ints, hi: Ints) -> _Block:
    """Questions whose hits are rows `begin : begin + length` of `units`, and the targets [lo, hi) that they own."""
    first = np.cumsum(length) - length
    question = np.repeat(np.arange(len(length)), length)
    rank = np.arange(len(question)) - first[question]
    unit = units[begin[question] + rank].astype(np.int64)
    # Every target beside every hit of its question, rank by rank; only those that overlap are kept.
    many = length[owner]
    target = np.repeat(np.arange(len(owner)), many)
    row = (first[owner] - np.cumsum(many) + many)[target] + np.arange(len(target))
    beside = unit[row]
    touches = (placed.lo[beside] < hi[target]) & (placed.hi[beside] > lo[target])
    target, row = target[touches], row[touches]
    order = np.lexsort((placed.lo[unit[row]], target))
    return _Block(question, rank, unit, first, length, lo, hi, target[order], row[order])


def _walk(block: _Block, placed: _Placed, budget: int, cut: Cut) -> tuple[Bools, Ints, Floats, Bools]:
    """Which rows were sent, up to where, the tokens used, and where the walk met unknown tokens."""
    lo, hi, text = placed.lo[block.unit], placed.hi[block.unit], placed.tokens[block.unit]
    cost = placed.header[block.unit] + np.maximum(text, 0)
    total = np.cumsum(cost)
    before = total - cost
    before -= before[block.first[block.question]] if len(before) else before
    fits = before + cost <= budget
    # Costs are not negative, so what fits is a prefix, and the next row is the one that is cut.
    kept = np.bincount(block.question, weights=fits, minlength=len(block.length)).astype(np.int64)
    cut_short = kept < block.length
    cut_row = (block.first + kept)[cut_short]
    last = total[block.first + kept - 1] if len(total) else np.zeros(len(kept), np.int64)
    start = np.where(block.first > 0, total[block.first - 1] if len(total) else 0, 0)
    used = np.where(kept > 0, last - start, 0).astype(np.float64)
    active, reach = fits.copy(), hi
    left = budget - before[cut_row]
    if cut == "truncate":
        used[cut_short] = budget
        sent = left > 0
        cut_row, left = cut_row[sent], left[sent]
        active[cut_row] = True
        unit = block.unit[cut_row]
        own = np.minimum(left - placed.header[unit], text[cut_row])  # tokens of the text that are sent
        partly = (own > 0) & ~placed.loose[unit]
        reach = hi.copy()
        reach[cut_row] = lo[cut_row]
        inside = placed.first[unit] + own - 1
        reach[cut_row[partly]] = np.minimum(placed.ends[inside[partly]], hi[cut_row[partly]])
    unknown = np.bincount(block.question, weights=active & (text < 0), minlength=len(block.length)) > 0
    return active, reach, used, unknown


def _covered(block: _Block, lo: Ints, reach: Ints, active: Bools) -> Floats:
    """|target ∩ R| for every target of the block; the pairs are sorted by start, so one pass merges them."""
    use = active[block.pair_row]
    target, row = block.pair_target[use], block.pair_row[use]
    begin = np.maximum(lo[row], block.target_lo[target])
    end = np.minimum(reach[row], block.target_hi[target])
    return _union(target, begin, end, len(block.target_lo))


def _union(owner: Ints, lo: Ints, hi: Ints, n: int) -> Floats:
    """Size of the union of each owner's intervals, given owner by owner and sorted by start; hi < lo is empty."""
    if not len(owner):
        return np.zeros(n)
    key = owner * (int(hi.max()) + 1)  # keeps the running maximum of one owner below every value of the next
    seen = np.maximum.accumulate(key + hi)
    begin = lo.copy()
    begin[1:] = np.maximum(lo[1:], seen[:-1] - key[1:])
    return np.bincount(owner, weights=np.maximum(hi - begin, 0), minlength=n).astype(np.float64)


def _group_max(share: Floats, group: Ints) -> Floats:
    if not len(share):
        return share
    best: Floats = np.maximum.reduceat(share, np.flatnonzero(np.diff(group, prepend=-1)))
    return best


def _explain(
    codes: Mapping[str, Codes],
    suffix: str,
    here: slice,
    gold: SpanGold,
    *,
    has_loose: Bools,
    names_document: Bools,
    unknown: Bools,
    is_budget: bool,
) -> None:
    """Writes the codes of one cut; the first that applies is given."""
    nothing = (gold.groups[here] == 0) | names_document
    for family in FAMILIES:
        column = codes[f"{family}{suffix}"][here]
        if family.startswith("span_"):
            column[has_loose] = _UNANCHORED
            column[gold.gold_size[here] == 0] = _NO_SPANS
            column[gold.varied[here]] = _OR_GROUPS
        column[unknown] = _UNANCHORED
        column[nothing] = _NO_SPANS
    if is_budget:
        column = codes[f"budget_fill{suffix}"][here]
        column[unknown] = _UNANCHORED
        column[nothing] = _NO_SPANS


def budget_guard(fills: Iterable[float], exhausted: Iterable[bool], least: float = LEAST_FILL) -> None:
    """Refuses a run at L5 whose rankings are too short for the budget.

    Looks at the questions whose ranking was cut by the depth and not by an exhausted index; undefined fills are left
    out. If their mean `budget_fill` is below .95, raises `budget_underfilled`: raise the depth. Without such a
    question the run passes.

    >>> budget_guard([1.0, 0.3], [False, True])
    """
    fill = np.fromiter(fills, np.float64)
    short = ~np.fromiter(exhausted, bool) & ~np.isnan(fill)
    if short.any() and (mean := float(fill[short].mean())) < least - 1e-12:
        raise MeasurementError(
            "budget_underfilled",
            (),
            f"the rankings fill only {mean:.3f} of the token budget on average over {int(short.sum())} questions that "
            f"were cut by the depth, and {least} is the least; ask for more chunks per question or lower the budget",
        )


# ------------------------------------------------------------------ a chunker without a retriever


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One value per question: NaN exactly in the rows of `reasons`."""

    question_ids: tuple[str, ...]
    values: Floats
    reasons: Reasons

    def value(self, row: int) -> float | None:
        return None if row in self.reasons else float(self.values[row])


def _overlapping(placed: _Placed, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """Every (interval, chunk) pair that shares a counted position, interval by interval, chunks by start."""
    order = np.lexsort((placed.hi, placed.lo))
    order = order[placed.hi[order] > placed.lo[order]]
    starts, furthest = placed.lo[order], np.maximum.accumulate(placed.hi[order])
    first = np.searchsorted(furthest, lo, side="right")  # chunks before it end too early
    many = np.maximum(np.searchsorted(starts, hi, side="left") - first, 0)
    pairs: list[tuple[Ints, Ints]] = []
    for a, z in _blocks(many):
        interval = np.repeat(np.arange(a, z), many[a:z])
        within = np.arange(len(interval)) - (np.cumsum(many[a:z]) - many[a:z])[interval - a]
        chunk = order[first[interval] + within]
        real = placed.hi[chunk] > lo[interval]
        pairs.append((interval[real], chunk[real]))
    if not pairs:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])


def precision_omega(index: CorpusIndex, questions: Sequence[Question] | SpanGold, units: Units) -> Column:
    """How tight a chunker can cut, no retriever involved: |N ∩ Γ| / |N ∪ Γ| per question.

    N is the union of **all** chunks of the index that share at least one counted position with Γ, the union of the
    question's gold; touching is not overlapping. No chunk overlaps: 0. Undefined with `no_spans` or, where a group has
    alternatives, `or_groups_unsupported`. Chunks without offsets overlap nothing. O((spans + chunks) log chunks).
    """
    gold = questions if isinstance(questions, SpanGold) else SpanGold.build(index, questions)
    placed = _placed(index, units)
    n = len(gold)
    lo, hi = gold.target_lo[gold.piece_target], gold.target_hi[gold.piece_target]
    piece, chunk = _overlapping(placed, lo, hi)
    question = gold.piece_question[piece]
    inside = _union(piece, np.maximum(placed.lo[chunk], lo[piece]), np.minimum(placed.hi[chunk], hi[piece]), len(lo))
    shared = np.bincount(gold.piece_question, weights=inside, minlength=n)
    order = np.lexsort((placed.lo[chunk], question))  # a chunk that overlaps several pieces still counts once
    near = _union(question[order], placed.lo[chunk[order]], placed.hi[chunk[order]], n)
    both = near + gold.gold_size - shared
    values = np.divide(shared, both, out=np.zeros(n), where=both > 0)
    codes = np.zeros(n, np.uint8)
    codes[gold.gold_size == 0] = _NO_SPANS
    codes[gold.varied] = _OR_GROUPS
    codes[gold.groups == 0] = _NO_SPANS
    return Column(gold.question_ids, values, _reasons({"omega": values}, {"omega": codes})["omega"])


@dataclass(frozen=True, slots=True, eq=False)
class SplitEvidence:
    """What a chunker did to the evidence, per question, before any retriever saw it. See `split_evidence`."""

    question_ids: tuple[str, ...]
    groups: Ints
    split: Ints
    ceiling: Floats
    reachable: Floats | None
    budget: int | None
    reasons: Reasons

    def share(self, eligible: Bools | None = None) -> float | None:
        """Split groups / all groups over the questions that are given (all without a choice); None without a group."""
        mine = np.ones(len(self.groups), bool) if eligible is None else eligible
        whole = int(self.groups[mine].sum())
        return int(self.split[mine].sum()) / whole if whole else None


def split_evidence(
    index: CorpusIndex,
    questions: Sequence[Question] | SpanGold,
    units: Units,
    *,
    budget: int | None = None,
    cut: Cut = "truncate",
) -> SplitEvidence:
    """The chunker's ceiling: evidence that was cut apart, and the coverage that a ranking could still reach.

    Per question, over its evidence groups, whitespace never counted:

    - `split`: the groups none of whose alternatives lies whole in a single chunk. With plain gold, the gold spans that
      no chunk holds whole. `split_evidence` of a run is Σ split / Σ groups (`share`). A split group is a miss of the
      chunker, never a reason to drop the question: it can still be covered by several chunks.
    - `ceiling`: coverage with every chunk of the index retrieved (R = their union). Below 1 only where the chunker
      lost text. No ranking at any K or budget exceeds it.
    - `reachable` (with a budget): coverage at B tokens of the *greedy oracle*, a ranking that knows the gold. At each
      step it takes the chunk that adds most coverage per token it would use of what is left of the budget, under the
      same cut rule and headers as any run (gains compared after rounding to 12 decimals; ties: earlier position, then
      id), until the budget is used or nothing adds. A real ranking attains it, so best possible ≥ `reachable`, and
      best possible ≤ `ceiling`; where the two are equal, both are the best possible value. (The exact best under a
      budget is a knapsack over overlapping sets; it is not computed.)

    Undefined with `no_spans`. Chunks without offsets hold nothing. O((spans + chunks) log chunks) once per chunker, and
    for `reachable` (chunks taken × chunks that overlap gold) per question.
    """
    gold = questions if isinstance(questions, SpanGold) else SpanGold.build(index, questions)
    budgets = _budgets(budget)
    placed = _placed(index, units)
    _need_text(placed, budgets)
    n = len(gold)
    lo, hi = gold.target_lo, gold.target_hi
    target, chunk = _overlapping(placed, lo, hi)
    held = np.zeros(len(lo))
    held[target[(placed.lo[chunk] <= lo[target]) & (placed.hi[chunk] >= hi[target])]] = 1.0
    size = hi - lo
    inside = _union(target, np.maximum(placed.lo[chunk], lo[target]), np.minimum(placed.hi[chunk], hi[target]), len(lo))
    share = np.divide(inside, size, out=np.zeros(len(lo)), where=size > 0)
    whole = _group_max(held[gold.alt_target], gold.alt_group)
    best = _group_max(share[gold.alt_target], gold.alt_group)
    count = np.maximum(gold.groups, 1)
    split = np.bincount(gold.group_question, weights=whole < 1, minlength=n).astype(np.int64)
    ceiling = np.bincount(gold.group_question, weights=best, minlength=n) / count
    codes = np.where(gold.groups == 0, _NO_SPANS, _DEFINED).astype(np.uint8)
    reasons = _reasons({"ceiling": ceiling}, {"ceiling": codes})["ceiling"]
    reachable = _oracle(gold, placed, units, (target, chunk), budget=budgets[0], cut=cut) if budgets else None
    return SplitEvidence(gold.question_ids, gold.groups, split, ceiling, reachable, budget, reasons)


def _oracle(
    gold: SpanGold, placed: _Placed, units: Units, pairs: tuple[Ints, Ints], *, budget: int, cut: Cut
) -> Floats:
    """Coverage of the greedy oracle at the budget, per question; NaN without spans."""
    target, chunk = pairs
    pair_question = gold.target_question[target]
    alt_question = gold.group_question[gold.alt_group]
    out = np.full(len(gold), np.nan)
    for q in range(len(gold)):
        if not gold.groups[q]:
            continue
        a, z = np.searchsorted(alt_question, (q, q + 1))
        goal = [
            (int(gold.alt_group[i]), int(gold.target_lo[t]), int(gold.target_hi[t]))
            for i, t in zip(range(a, z), gold.alt_target[a:z], strict=True)
        ]
        p, r = np.searchsorted(pair_question, (q, q + 1))
        candidates = [(int(placed.lo[u]), units.ids[u], int(u)) for u in dict.fromkeys(chunk[p:r].tolist())]
        out[q] = _greedy(goal, sorted(candidates), placed, budget, cut) / int(gold.groups[q])
    return out


def _greedy(
    goal: Sequence[tuple[int, int, int]],
    candidates: Sequence[tuple[int, str, int]],
    placed: _Placed,
    budget: int,
    cut: Cut,
) -> float:
    """Σ over groups of the best alternative's covered share, after the oracle's walk."""
    missing = [[(lo, hi)] if hi > lo else [] for _, lo, hi in goal]  # per alternative, what is not covered yet
    sizes = [max(hi - lo, 1) for _, lo, hi in goal]

    def total(open_: Sequence[Sequence[tuple[int, int]]]) -> float:
        best: dict[int, float] = {}
        for (group, lo, hi), size, holes in zip(goal, sizes, open_, strict=True):
            done = (hi - lo - sum(z - a for a, z in holes)) / size
            best[group] = max(best.get(group, 0.0), done)
        return sum(best.values())

    left, now = budget, 0.0
    remaining = list(candidates)
    while left > 0 and remaining:
        chosen: tuple[float, int, int, list[list[tuple[int, int]]], float] | None = None
        for place, (lo, _, u) in enumerate(remaining):
            cost = int(placed.header[u] + placed.tokens[u])
            hi = int(placed.hi[u])
            if cost > left:
                own = left - int(placed.header[u])
                if cut == "whole" or own <= 0:
                    continue
                hi = min(hi, int(placed.ends[placed.first[u] + own - 1]))
            after = [_without(holes, lo, hi) for holes in missing]
            value = total(after)
            used = max(min(cost, left), 1)
            gain = round((value - now) / used, 12)
            if gain > 0 and (chosen is None or gain > chosen[0]):
                chosen = (gain, place, used, after, value)
        if chosen is None:
            break
        _, place, used, missing, now = chosen
        left -= used
        del remaining[place]
    return now


def _without(holes: Sequence[tuple[int, int]], lo: int, hi: int) -> list[tuple[int, int]]:
    """The intervals with `[lo, hi)` taken out."""
    pieces = []
    for a, z in holes:
        if a < min(z, lo):
            pieces.append((a, min(z, lo)))
        if max(a, hi) < z:
            pieces.append((max(a, hi), z))
    return pieces


# ------------------------------------------------------------------ one question


def span_scores(
    gold: Sequence[Group],
    hits: Sequence[Hit],
    *,
    k: int | None = None,
    budget: int | None = None,
    cut: Cut = "truncate",
    ties: Ties = "asc",
    texts: Mapping[str, str] | None = None,
    token_ends: Mapping[str, Sequence[int]] | None = None,
    chunks: Sequence[Hit] | None = None,
) -> dict[str, Any]:
    """Span metrics of one question at K chunks, or within `budget` tokens when that is given.

    Without `texts` every position counts, and a budget needs `token_ends`: for each hit id the end offset of each of
    its tokens, in the document. `chunks`, all chunks of the index, add `precision_omega`. Undefined values are None and
    `reason` says why; `groups` is the coverage of each evidence group.

    >>> from denominator.types import Evidence
    >>> span = (Evidence("d", 0, 7),)
    >>> found = span_scores([span], [Hit("c", "d", start=0, end=3)], k=1, texts={"d": "one two"})
    >>> found["coverage"], found["recall_tau50"], found["span_precision"]  # 3 of 6 letters: the space is not counted
    (0.5, 1.0, 1.0)
    """
    budgets = _budgets(budget)
    if budget is None:
        ranking.check_k(k)
    question = Question("question", answerability="answerable", gold=tuple(gold))
    groups = eligibility.span_groups(question)
    if texts is not None:
        index = CorpusIndex.build(Document(i, t) for i, t in texts.items())
    else:
        spans: list[Evidence | Hit] = [a for g in groups or () for a in g]
        index = CorpusIndex.plain(_extents([*spans, *hits, *(chunks or ())], token_ends, hits))
    columns = _gold_columns(index, [("question", groups)], name_questions=False)
    run = ranking.canonical(Run.from_results({"question": Result(hits=tuple(hits))}), ties)
    placed = _placed(index, run.units, token_ends)
    _need_text(placed, budgets)
    ks = () if budget is not None or k is None else (k,)
    table, by_group = _table(columns, run, placed, ks=ks, budgets=budgets, cut=cut)
    suffix = f"@b{budget}" if budget is not None else f"@{k}"
    out: dict[str, Any] = {family: table.value(f"{family}{suffix}", 0) for family in FAMILIES}
    out["groups"] = by_group[suffix].tolist()
    out["reason"] = table.reason(f"coverage{suffix}", 0) or table.reason(f"span_recall{suffix}", 0)
    if budget is not None:
        fill = table.value(f"budget_fill{suffix}", 0)
        out["budget_fill"] = fill
        out["tokens_used"] = None if fill is None else round(fill * budget)
    if chunks is not None:
        units = Run.from_results({"question": Result(hits=tuple(chunks))}).units
        out["precision_omega"] = precision_omega(index, columns, units).value(0)
    return out


def _extents(
    spans: Iterable[Evidence | Hit], token_ends: Mapping[str, Sequence[int]] | None, hits: Sequence[Hit]
) -> dict[str, int]:
    """For every document that is spoken of, a length that holds all that is said of it."""
    lengths: dict[str, int] = {}
    for span in spans:
        lengths[span.doc] = max(lengths.get(span.doc, 0), span.start or 0, span.end or 0)
    for hit in hits:
        if hit.start is not None:
            lengths[hit.doc] = max(lengths[hit.doc], *(token_ends or {}).get(hit.id, (0,)))
    return lengths
