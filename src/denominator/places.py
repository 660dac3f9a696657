"""Where each gold id stands in its canonical ranking: the one kernel below every door of `metrics`.

Nothing is sorted for it. Where the rows are in canonical order already (found out in one pass) a place is a column;
otherwise it is one more than the number of larger scores, and ids are compared only among hits that tie with a gold
hit. Work goes in blocks of rankings, so that memory stays bounded and blocks can run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, repeat
from struct import Struct
from struct import error as struct_error
from threading import Thread
from typing import Any

import numpy as np

from denominator.eligibility import check_id
from denominator.errors import MeasurementError
from denominator.ranking import blocks, distinct_rows, sorted_rows
from denominator.types import Floats, Int32s, Ints, Run, Ties, Units

ABSENT = -2
"""The code of a gold id that no unit has."""
_PAD = -3  # -3, -4, …: cells that no hit fills; distinct, so that they are no duplicates
_ROWS_PER_BLOCK = 1 << 20  # large: threads hand the interpreter lock over between array operations, and each takes time
_CELLS = 1 << 18  # of rows that are copied to be looked at
_ROWS_PER_DICT_BLOCK = 1 << 17


def offsets_of(lengths: Ints) -> Ints:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


TieRank = Callable[[Any], Ints]
"""Ranks of unit codes in id order: only hits that tie with a gold hit are ever asked about."""


def _tie_rank_of(units: Units) -> TieRank:
    def rank(codes: Any) -> Ints:
        used, inverse = np.unique(codes, return_inverse=True)
        names = [units.ids[u] for u in used]
        number = {name: r for r, name in enumerate(sorted(set(names)))}
        return np.array([number[name] for name in names], np.int64)[inverse]

    return rank


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Rankings as the kernel takes them: flat ids and scores, the rule for ties, how to sort a block that needs it."""

    offsets: Ints
    ids: Any
    scores: Any | None
    ties: Ties
    tie_rank: TieRank
    canonical_rows: Callable[[Ints, Any, Any | None], Ints | None]
    names: Callable[[Any], list[str]]
    width: int | None  # hits per question where all have the same number

    def part(self, start: int, stop: int) -> Columns:
        """The rankings `start` to `stop`, as views."""
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        return replace(
            self,
            offsets=self.offsets[start : stop + 1] - low,
            ids=self.ids[low:high],
            scores=None if self.scores is None else self.scores[low:high],
        )


def places(columns: Columns, row_offsets: Ints, codes: Any, threads: int) -> tuple[Int32s, Ints]:
    """The 1-based place of every gold entry in its ranking (0: absent), and how many distinct units each ranking has.

    Entries of ranking i are `row_offsets[i]:row_offsets[i+1]`.
    """
    place = np.zeros(len(codes), np.int32)
    lengths = np.diff(columns.offsets)

    def work(bounds: tuple[int, int]) -> None:
        start, stop = bounds
        entries = slice(int(row_offsets[start]), int(row_offsets[stop]))
        of_row = row_offsets[start : stop + 1] - row_offsets[start]
        found, distinct = _block_places(columns, start, stop, of_row, codes[entries])
        place[entries] = found
        if distinct is not None:
            lengths[start:stop] = distinct

    each(work, blocks(columns.offsets, _ROWS_PER_BLOCK), threads)
    return place, lengths


def each(work: Callable[[tuple[int, int]], None], parts: Sequence[tuple[int, int]], threads: int) -> None:
    """Runs the parts, side by side where asked to; every part writes to places of its own.

    Each thread is dealt its parts beforehand and the caller's thread takes its share: with a queue the hand-over of
    the interpreter lock between short parts costs more than the second core brings.
    """
    hands = max(1, min(threads, len(parts)))
    errors: dict[int, BaseException] = {}

    def run(hand: int) -> None:
        for n in range(hand, len(parts), hands):
            try:
                work(parts[n])
            except BaseException as error:
                errors[n] = error
                return

    others = [Thread(target=run, args=(hand,)) for hand in range(1, hands)]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        thread.join()
    if errors:
        raise errors[min(errors)]


def _block_places(columns: Columns, start: int, stop: int, of_row: Ints, codes: Any) -> tuple[Any, Ints | None]:
    low, high = int(columns.offsets[start]), int(columns.offsets[stop])
    rows = stop - start
    flat = columns.ids[low:high]
    scores = None if columns.scores is None else columns.scores[low:high]
    if scores is not None and columns.ties == "trec":
        with np.errstate(over="ignore"):
            keys = scores.astype(np.float32)
    else:
        keys = scores
    if low == high:
        return np.zeros(len(codes), np.int32), None
    offsets, distinct = columns.offsets[start : stop + 1] - low, None
    if columns.width is None:
        lengths = np.diff(offsets)
        width = int(lengths.max())
        padded = width * rows
        if padded > max(_ROWS_PER_BLOCK, 2 * (high - low)) and rows > 1:  # one very long ranking among short ones
            return _halves(columns, start, stop, of_row, codes)
        filled = np.arange(width) < lengths[:, None]
        ids = np.broadcast_to(_PAD - np.arange(width, dtype=flat.dtype), (rows, width)).copy()
        ids[filled] = flat
        table = None
        if keys is not None:
            table = np.full((rows, width), -np.inf, keys.dtype)
            table[filled] = keys
    else:
        width = columns.width
        ids = flat.reshape(rows, width)
        table = None if keys is None else keys.reshape(rows, width)
        filled = None
    ordered = True
    if keys is not None:
        ordered = _is_descending(columns, flat, scores, keys, offsets=offsets, width=width if filled is None else None)
    if _has_copies(ids):
        order = columns.canonical_rows(offsets, flat, scores)
        kept = distinct_rows(offsets, flat if order is None else flat[order])
        order = np.arange(len(flat)) if order is None else order
        order = order if kept is None else order[kept]
        distinct = np.bincount(np.repeat(np.arange(rows), np.diff(offsets))[order], minlength=rows)
        longest = int(distinct.max())
        filled = np.arange(longest) < distinct[:, None]
        ids = np.broadcast_to(_PAD - np.arange(longest, dtype=flat.dtype), (rows, longest)).copy()
        ids[filled] = flat[order]
        ordered, table, width = True, None, longest
    place = _locate(ids, of_row, codes)
    if ordered or table is None:
        place += 1
        return place, distinct
    present = np.flatnonzero(place >= 0)
    where = np.repeat(np.arange(rows), np.diff(of_row))[present]
    score = table[where, place[present]]
    larger, equal = _count(table, where, score)
    tied = np.flatnonzero(equal > 1)
    if len(tied):
        larger[tied] += _before_among_ties(
            columns,
            ids,
            table,
            where=where[tied],
            score=score[tied],
            own=ids[where[tied], place[present[tied]]],
        )
    out = np.zeros(len(codes), np.int32)
    out[present] = larger + 1
    return out, distinct


def _halves(columns: Columns, start: int, stop: int, of_row: Ints, codes: Any) -> tuple[Any, Ints | None]:
    middle = (start + stop) // 2
    split = int(of_row[middle - start])
    first, n1 = _block_places(columns, start, middle, of_row[: middle - start + 1], codes[:split])
    second, n2 = _block_places(columns, middle, stop, of_row[middle - start :] - split, codes[split:])
    if n1 is None and n2 is None:
        return np.concatenate([first, second]), None
    lengths = np.diff(columns.offsets[start : stop + 1])
    if n1 is not None:
        lengths[: middle - start] = n1
    if n2 is not None:
        lengths[middle - start :] = n2
    return np.concatenate([first, second]), lengths


def _is_descending(columns: Columns, ids: Any, scores: Any, keys: Any, *, offsets: Ints, width: int | None) -> bool:
    """Whether rows stand in canonical order already; checks on the way that scores are finite.

    Where every score is larger than the next, all are finite as soon as the first and the last of each row are.
    """
    falls = keys[:-1] > keys[1:]
    if width is None:
        edges = offsets[1:-1]
        edges = edges[(edges > 0) & (edges < len(keys))]
        falls[edges - 1] = True
        first, last = keys[np.concatenate([[0], edges])], keys[np.concatenate([edges - 1, [len(keys) - 1]])]
    else:
        falls[width - 1 :: width] = True
        first, last = keys[::width], keys[width - 1 :: width]
    if falls.all() and np.isfinite(first).all() and np.isfinite(last).all():
        return True
    finite = np.isfinite(scores)
    if not finite.all():
        bad = columns.names(np.unique(ids[~finite]))
        raise MeasurementError("bad_score", bad, "scores are finite numbers")
    level = ~falls
    if (level & (keys[:-1] < keys[1:])).any():
        return False
    level = np.flatnonzero(level)
    rank = columns.tie_rank(np.concatenate([ids[level], ids[level + 1]]))
    before, after = rank[: len(level)], rank[len(level) :]
    return bool((before > after).all() if columns.ties == "trec" else (before < after).all())


def _has_copies(ids: Any) -> bool:
    """Whether any row of the table holds an id twice."""
    if ids.shape[1] < 2:
        return False
    rows = np.sort(ids, axis=1).ravel()
    same = rows[1:] == rows[:-1]
    same[ids.shape[1] - 1 :: ids.shape[1]] = False
    return bool(same.any())


def _locate(ids: Any, of_row: Ints, codes: Any) -> Int32s:
    """Column of every entry's id in its row of the table, -1 where it is not there."""
    rows, width = ids.shape
    found = np.full(len(codes), -1, np.int32)
    per_row = np.diff(of_row)
    most = int(per_row.max(initial=0))
    if most > 8:  # many gold ids for a question: take entries as they come
        where = np.repeat(np.arange(rows), per_row)
        step = max(1, _CELLS // width)
        for i in range(0, len(codes), step):
            _mark(ids[where[i : i + step]], codes[i : i + step], found, np.arange(i, min(i + step, len(codes))))
        return found
    if not most:
        return found
    for slot in range(most):  # the first gold id of every row, then the second …
        has = np.flatnonzero(per_row > slot)
        entries = of_row[has] + slot
        if 2 * len(has) > rows:  # to look at all rows costs less than to copy most of them
            wanted = np.full(rows, ABSENT, ids.dtype)
            wanted[has] = codes[entries]
            _mark(ids, wanted, found, of_row[:-1] + slot)
        else:
            _mark(ids[has], codes[entries], found, entries)
    return found


def _mark(table: Any, wanted: Any, found: Int32s, entries: Ints) -> None:
    width = table.shape[1]
    hits = np.flatnonzero(table == wanted[:, None])
    row = hits // width
    found[entries[row]] = hits - row * width


def _count(table: Any, where: Ints, score: Any) -> tuple[Ints, Ints]:
    """Per entry: how many scores of its row are larger, how many are equal (itself included)."""
    larger = np.empty(len(where), np.int64)
    equal = np.empty(len(where), np.int64)
    width = table.shape[1]
    step = max(1, _CELLS // max(width, 1))
    for i in range(0, len(where), step):
        part = slice(i, i + step)
        rows = table[where[part]]
        mine = score[part, None]
        larger[part] = _ones(rows > mine)
        same = rows == mine
        equal[part] = 1 if np.count_nonzero(same) == len(rows) else _ones(same)  # each at least equals itself
    return larger, equal


def _ones(mask: Any) -> Any:
    """True cells per row; a narrow accumulator makes this several times as fast as `mask.sum(axis=1)`."""
    narrow = np.uint8 if mask.shape[1] < 256 else np.uint16 if mask.shape[1] < 65536 else np.uint32
    return np.add.reduce(mask.view(np.uint8), axis=1, dtype=narrow)


def _before_among_ties(columns: Columns, ids: Any, table: Any, *, where: Ints, score: Any, own: Any) -> Ints:
    """Per entry: how many hits of the same score come before it by the rule for ids."""
    before = np.zeros(len(where), np.int64)
    step = max(1, _CELLS // ids.shape[1])
    for i in range(0, len(where), step):
        part = slice(i, i + step)
        entry, column = np.nonzero(table[where[part]] == score[part, None])
        others = ids[where[part]][entry, column]
        rank = columns.tie_rank(np.concatenate([others, own[part]]))
        theirs, mine = rank[: len(others)], rank[len(others) :][entry]
        ahead = theirs > mine if columns.ties == "trec" else theirs < mine
        before[part] = np.bincount(entry[ahead], minlength=len(own[part]))
    return before


def columns_of(run: Run, ties: Ties) -> Columns:
    """A run as the kernel takes it. Where two units share an id, both are called by the first one's number."""
    ids = run.unit
    if len(set(run.units.ids)) < len(run.units.ids):
        first: dict[str, int] = {}
        ids = np.array([first.setdefault(i, n) for n, i in enumerate(run.units.ids)], np.int32)[ids]
    units = run.units

    def rows(offsets: Ints, unit: Any, scores: Any | None) -> Ints | None:
        return None if scores is None else sorted_rows(offsets, unit, scores, units, ties)

    return Columns(
        offsets=run.offsets,
        ids=ids,
        scores=run.scores,
        ties=ties,
        tie_rank=_tie_rank_of(units),
        canonical_rows=rows,
        names=lambda codes: [units.ids[c] for c in codes],
        width=uniform(run.offsets),
    )


def uniform(offsets: Ints) -> int | None:
    lengths = np.diff(offsets)
    return int(lengths[0]) if len(lengths) and lengths[0] and (lengths == lengths[0]).all() else None


def dict_places(
    rows: Sequence[dict[str, float]], entry_offsets: Ints, ids: Sequence[str], ties: Ties
) -> tuple[Int32s, Ints]:
    """Places of gold ids in rankings given as dicts: a look-up of each one's score, then a count of larger ones."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    place = np.zeros(len(ids), np.int32)
    for start, stop in blocks(offsets_of(lengths), _ROWS_PER_DICT_BLOCK):
        part = rows[start:stop]
        scores = _dict_scores(part)
        low, high = int(entry_offsets[start]), int(entry_offsets[stop])
        mine = ids[low:high]
        per_row = np.diff(entry_offsets[start : stop + 1]).tolist()
        own = np.fromiter(
            map(dict.get, chain.from_iterable(map(repeat, part, per_row)), mine, repeat(math.nan)),
            np.float64,
            high - low,
        )
        if ties == "trec":
            with np.errstate(over="ignore"):
                scores, own = scores.astype(np.float32), own.astype(np.float32)
        where = np.repeat(np.arange(stop - start), per_row)
        present = np.flatnonzero(~np.isnan(own))
        if not len(present):
            continue
        where, own = where[present], own[present]
        larger, equal = _count_flat(scores, offsets_of(lengths[start:stop]), where, own)
        for i in np.flatnonzero(equal > 1).tolist():
            row, score, me = part[where[i]], own[i], mine[present[i]]
            values = np.fromiter(row.values(), np.float64, len(row)).astype(own.dtype)
            others = compress(row, (values == score).tolist())
            larger[i] += sum(map(me.__lt__ if ties == "trec" else me.__gt__, others))
        place[low + present] = larger + 1
    return place, lengths


def _dict_scores(rows: Sequence[dict[str, float]]) -> Floats:
    """All scores of the rows, flat; ids and scores are checked on the way."""
    scores = np.empty(sum(map(len, rows)))
    buffer = scores.view(np.uint8).data
    packers: dict[int, Callable[..., None]] = {}
    at = 0
    try:
        for row in rows:
            "".join(row)  # refuses anything that is not a string, in C
            size = len(row)
            pack = packers.get(size) or packers.setdefault(size, Struct(f"{size}d").pack_into)
            pack(buffer, at, *row.values())  # refuses anything that is not a number, where numpy would read "1.5"
            at += 8 * size
    except (TypeError, struct_error):
        _explain(rows)
        raise
    if any("" in row for row in rows):
        check_id("")
    if not np.isfinite(scores).all():
        _explain(rows)
    return scores


def _explain(rows: Sequence[dict[str, Any]]) -> None:
    """The error of the first thing that is wrong with the rows, with all ids that it concerns."""
    for row in rows:
        for i in row:
            check_id(i)
    absent = dict.fromkeys(i for row in rows for i, score in row.items() if score is None)
    if absent:
        raise MeasurementError("mixed_scores", absent, "some hits have a score and these have none")
    bad = dict.fromkeys(
        i
        for row in rows
        for i, score in row.items()
        if not isinstance(score, (int, float, np.integer, np.floating)) or not math.isfinite(score)
    )
    if bad:
        raise MeasurementError("bad_score", bad, "scores are finite numbers")


def _count_flat(scores: Any, offsets: Ints, where: Ints, own: Any) -> tuple[Ints, Ints]:
    """Per entry: how many scores of its row are larger, how many equal, for rows of any lengths."""
    width = uniform(offsets)
    if width is not None:
        return _count(scores.reshape(-1, width), where, own)
    lengths = np.diff(offsets)
    larger = np.zeros(len(where), np.int64)
    equal = np.zeros(len(where), np.int64)
    step = max(1, _ROWS_PER_DICT_BLOCK // max(int(lengths.max()), 1))
    for i in range(0, len(where), step):
        rows, mine = where[i : i + step], own[i : i + step, None]
        wide = int(lengths[rows].max())
        column = np.arange(wide)
        cell = offsets[rows][:, None] + column
        inside = column < lengths[rows][:, None]
        table = scores[np.where(inside, cell, 0)]
        larger[i : i + step] = _ones((table > mine) & inside)
        equal[i : i + step] = _ones((table == mine) & inside)
    return larger, equal


def check_ids(ids: Collection[Any]) -> None:
    """Non-empty strings. `str.join` refuses anything else in C, several times as fast as a loop of `isinstance`."""
    try:
        "".join(ids)
    except TypeError:
        for i in ids:
            check_id(i)
        raise
    if "" in ids:
        check_id("")
