"""The one canonical order: score descending, ties by id, duplicates dropped, cut at K. Metrics do this themselves.

A ranking that depends on the order of lines in a file is not a measurement: two machines would disagree. So the order
is always made here, from scores and ids alone, and only a run without any score keeps the order in which it came.
Definitions: docs/measurement.md, "Canonical ranking and levels".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from denominator.eligibility import check_id
from denominator.errors import MeasurementError
from denominator.types import Bools, Hit, Ints, Level, Result, Run, Ties, Units

LEVELS_OF_A_FIXED_CHUNKER: tuple[Level, ...] = ("L2", "L3", "L4")
_ROWS_PER_BLOCK = 1 << 18  # bounds the working memory of a sort to a few MB


def check_k(k: Any) -> int:
    """K as an int ≥ 1; anything else, `True` and 5.0 included, is the error `bad_k`.

    >>> check_k(5)
    5
    """
    if isinstance(k, (int, np.integer)) and not isinstance(k, bool) and k >= 1:
        return int(k)
    raise MeasurementError("bad_k", [str(k)], "K is a whole number of at least 1")


def check_depth(k: int, depth: int | None) -> None:
    """Refuses a K above the depth that was asked for (`depth_below_k`): it would be recall@depth under another name.

    An unknown depth (None, as in an imported run) passes.
    """
    if depth is not None and depth < k:
        raise MeasurementError(
            "depth_below_k", [f"depth={depth}", f"k={k}"], f"only {depth} hits were asked for, {k} are to be measured"
        )


def level_guard(varies: Collection[str], level: Level) -> None:
    """Refuses to select on L2, L3 or L4 when the chunker varies within a sweep (`level_not_comparable`).

    `varies` names what differs between the cells: group names, or settings below them such as `chunker.size`.

    >>> level_guard(["chunker", "embedder"], "L5")
    """
    if level in LEVELS_OF_A_FIXED_CHUNKER and any(v.partition(".")[0] == "chunker" for v in varies):
        raise MeasurementError(
            "level_not_comparable",
            [level],
            "K chunks are another amount of text for every chunker: select on documents (L1) or on a token budget (L5)",
        )


def check_ties(ties: str) -> None:
    if ties not in {"asc", "trec"}:
        raise ValueError(f"ties is 'asc' or 'trec', found {ties!r}")


# ------------------------------------------------------------------ plain records


def order_of(hits: Sequence[Hit], ties: Ties = "asc") -> list[Hit]:
    """Hits in canonical order, each id once (its best-placed hit).

    All hits have a finite score (sorted by it, descending, ties by id) or none has (the given order is the ranking).
    `ties="trec"`: ids descending and scores compared as float32, which is how trec_eval reads them.
    Errors: `bad_id`, `mixed_scores`, `bad_score`, with the ids of the hits.

    >>> [h.id for h in order_of([Hit("b", "b", 0.5), Hit("a", "a", 0.5), Hit("c", "c", 0.9)])]
    ['c', 'a', 'b']
    """
    run = run_from_results({"q": Result(tuple(hits))})
    rows = _canonical_rows(run, ties)
    return list(hits) if rows is None else [hits[i] for i in rows]


def top(hits: Sequence[Hit], k: int, level: Level = "L3", ties: Ties = "asc", depth: int | None = None) -> list[str]:
    """The ids that are measured at K: documents at L1 and L2, chunks at L3 (and L4, whose units are chunks).

    L1 maps chunks to documents (score of the best chunk, ties on the document id) and cuts to K documents; L2 cuts to
    K chunks first. Fewer hits than K is fine.
    Errors: `bad_k`, `depth_below_k` (only when fewer than K were asked for), and those of `order_of`.

    >>> chunks = [Hit("d1#0", "d1", 0.9), Hit("d1#1", "d1", 0.8), Hit("d2#0", "d2", 0.7)]
    >>> top(chunks, 2, "L1"), top(chunks, 2, "L2"), top(chunks, 2, "L3")
    (['d1', 'd2'], ['d1'], ['d1#0', 'd1#1'])
    """
    check_depth(check_k(k), depth)
    run = run_from_results({"q": Result(tuple(hits))})
    if level == "L1":
        documents = to_documents(run, ties)
        return [documents.units.ids[u] for u in documents.unit[:k]]
    chunks = canonical(run, ties)
    if level == "L2":
        return list(dict.fromkeys(chunks.units.docs[d] for d in chunks.units.doc[chunks.unit[:k]]))
    return [chunks.units.ids[u] for u in chunks.unit[:k]]


# ------------------------------------------------------------------ doors into columns


def run_from_results(results: Mapping[str, Result]) -> Run:
    """Columns from plain records; see `Run.from_results`. Failed questions go to `errors` and have no rows.

    `depth` is the smallest that any question declares. A list shorter than its own depth counts as exhausted.
    Errors: `bad_id` (question, hit or document), `mixed_scores` and `bad_score` with the ids of the hits.
    """
    question_ids: list[str] = []
    errors: dict[str, str] = {}
    lengths: list[int] = []
    exhausted: list[bool] = []
    confidence: list[float] = []
    table: dict[tuple[str, str, int, int, int, int], int] = {}
    codes: list[int] = []
    scores: list[Any] = []
    depths: list[int] = []
    for question_id, result in results.items():
        check_id(question_id)
        if result.depth is not None:
            depths.append(result.depth)
        if result.error is not None:
            errors[question_id] = result.error
            continue
        question_ids.append(question_id)
        lengths.append(len(result.hits))
        exhausted.append(result.exhausted or (result.depth is not None and len(result.hits) < result.depth))
        confidence.append(math.nan if result.confidence is None else result.confidence)
        for hit in result.hits:
            row = (
                check_id(hit.id),
                check_id(hit.doc),
                -1 if hit.start is None else hit.start,
                -1 if hit.end is None else hit.end,
                hit.header_tokens,
                -1 if hit.tokens is None else hit.tokens,
            )
            codes.append(table.setdefault(row, len(table)))
            scores.append(hit.score)
    rows = list(table)
    _check_scores([rows[c][0] for c in codes], scores)
    documents = {doc: i for i, doc in enumerate(dict.fromkeys(row[1] for row in rows))}
    units = Units(
        ids=tuple(row[0] for row in rows),
        docs=tuple(documents),
        doc=np.array([documents[row[1]] for row in rows], np.int32),
        start=np.array([row[2] for row in rows], np.int64),
        end=np.array([row[3] for row in rows], np.int64),
        header_tokens=np.array([row[4] for row in rows], np.int32),
        tokens=np.array([row[5] for row in rows], np.int32),
    )
    return Run(
        question_ids=tuple(question_ids),
        offsets=_offsets(lengths),
        unit=np.array(codes, np.int32),
        scores=np.array(scores, np.float64) if scores and scores[0] is not None else None,
        units=units,
        exhausted=np.array(exhausted, np.bool_),
        depth=min(depths) if depths else None,
        confidence=None if all(math.isnan(c) for c in confidence) else np.array(confidence, np.float64),
        has_confidence=not any(r.no_confidence for r in results.values()),
        errors=errors,
    )


def run_from_dicts(run: Mapping[str, Mapping[str, float]], *, depth: int | None = None) -> Run:
    """Columns from `{question id: {document id: score}}`, as the field passes runs around.

    Errors: `bad_id`, `mixed_scores` (some scores are None), `bad_score`.

    >>> run = run_from_dicts({"q1": {"d2": 0.5, "d1": 0.5}})
    >>> [run.units.ids[u] for u in canonical(run).unit]
    ['d1', 'd2']
    """
    table: dict[str, int] = {}
    codes: list[int] = []
    scores: list[Any] = []
    for question_id, row in run.items():
        check_id(question_id)
        for key, score in row.items():
            codes.append(table.setdefault(key, len(table)))
            scores.append(score)
    for key in table:
        check_id(key)
    ids = tuple(table)
    _check_scores([ids[c] for c in codes], scores)
    return Run(
        question_ids=tuple(run),
        offsets=_offsets([len(row) for row in run.values()]),
        unit=np.array(codes, np.int32),
        scores=np.array(scores, np.float64) if scores and scores[0] is not None else None,
        units=document_units(ids),
        exhausted=np.zeros(len(run), np.bool_),
        depth=depth,
    )


def document_units(ids: Sequence[str]) -> Units:
    """The units of a run of documents: each is its own document, without offsets."""
    n = len(ids)
    none = np.full(n, -1, np.int64)
    return Units(
        ids=tuple(ids),
        docs=tuple(ids),
        doc=np.arange(n, dtype=np.int32),
        start=none,
        end=none,
        header_tokens=np.zeros(n, np.int32),
        tokens=np.full(n, -1, np.int32),
    )


def is_documents(units: Units) -> bool:
    """Whether every unit is its own document, so that chunks and documents are the same thing."""
    return units.ids is units.docs or units.ids == units.docs


def _offsets(lengths: Sequence[int]) -> Ints:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.asarray(lengths, np.int64), out=offsets[1:])
    return offsets


def _check_scores(ids: Sequence[str], scores: Sequence[Any]) -> None:
    absent = [i for i, s in zip(ids, scores, strict=True) if s is None]
    if absent and len(absent) < len(ids):
        raise MeasurementError("mixed_scores", dict.fromkeys(absent), "some hits have a score and these have none")
    if absent:
        return
    bad = [i for i, s in zip(ids, scores, strict=True) if not _is_score(s)]
    if bad:
        raise MeasurementError("bad_score", dict.fromkeys(bad), "scores are finite numbers")


def _is_score(score: Any) -> bool:
    return isinstance(score, (int, float, np.integer, np.floating)) and math.isfinite(score)


# ------------------------------------------------------------------ columns


def canonical(run: Run, ties: Ties = "asc") -> Run:
    """The run in canonical order: rows per question by score descending and id, each id once. K is not involved.

    A run that already is in this order is recognised in one pass and given back as it is. Scores are kept as they
    came (`ties="trec"` compares them as float32 but does not round them).
    Errors: `bad_score` (with the ids of the hits).
    """
    rows = _canonical_rows(run, ties)
    return run if rows is None else _take(run, rows)


def to_documents(run: Run, ties: Ties = "asc") -> Run:
    """L1: the canonical run of documents. A document has the score of its best chunk; ties are broken on its own id.

    The result's `depth` and `exhausted` still speak of what was asked for, in chunks.
    """
    if is_documents(run.units):
        return canonical(run, ties)
    return canonical(dataclasses.replace(run, unit=run.units.doc[run.unit], units=document_units(run.units.docs)), ties)


def slots_of_documents(chunks: Run) -> tuple[Run, Ints]:
    """L2: documents of a canonical run of chunks in order of first appearance, and the chunk rank (from 1) of each.

    A document is inside the cut when that chunk rank is ≤ K; its own rank counts distinct documents.
    """
    documents = dataclasses.replace(
        chunks, unit=chunks.units.doc[chunks.unit], scores=None, units=document_units(chunks.units.docs)
    )
    rank = np.arange(len(chunks.unit), dtype=np.int64) - np.repeat(chunks.offsets[:-1], np.diff(chunks.offsets)) + 1
    rows = _canonical_rows(documents, "asc")
    return (documents, rank) if rows is None else (_take(documents, rows), rank[rows])


def cut(run: Run, k: int) -> Run:
    """The first `k` rows of every question; meant for a canonical run."""
    lengths = np.diff(run.offsets)
    if not len(lengths) or lengths.max() <= k:
        return run
    place = np.arange(len(run.unit)) - np.repeat(run.offsets[:-1], lengths)
    return _take(run, np.flatnonzero(place < k))


def cut_short(run: Run) -> Bools:
    """Per question: the list ends because only `depth` hits were asked for, and the index may have had more.

    False throughout for a run of unknown depth (it passes, with a note) and where the index was exhausted.
    """
    if run.depth is None:
        return np.zeros(len(run), np.bool_)
    return (np.diff(run.offsets) >= run.depth) & ~run.exhausted


def _take(run: Run, rows: Ints) -> Run:
    """The run with these rows, which are in question order."""
    offsets = np.searchsorted(_question_of(run.offsets)[rows], np.arange(len(run) + 1))
    return dataclasses.replace(
        run,
        offsets=offsets.astype(np.int64),
        unit=run.unit[rows],
        scores=None if run.scores is None else run.scores[rows],
    )


def _question_of(offsets: Ints) -> Ints:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def blocks(offsets: Ints, rows: int = _ROWS_PER_BLOCK) -> list[tuple[int, int]]:
    """Question ranges of about `rows` rows each (at least one question), covering all questions."""
    out: list[tuple[int, int]] = []
    start, n = 0, len(offsets) - 1
    while start < n:
        stop = int(np.searchsorted(offsets, offsets[start] + rows, side="right")) - 1
        stop = min(max(stop, start + 1), n)
        out.append((start, stop))
        start = stop
    return out


def _canonical_rows(run: Run, ties: Ties) -> Ints | None:
    """Row numbers in canonical order, duplicates left out; None when that is every row as it stands."""
    check_ties(ties)
    codes = _codes(run.units)
    parts: list[Ints] = []
    changed = False
    for start, stop in blocks(run.offsets):
        low, high = int(run.offsets[start]), int(run.offsets[stop])
        offsets = run.offsets[start : stop + 1] - low
        unit = run.unit[low:high]
        order = None
        if run.scores is not None:
            order = sorted_rows(offsets, unit, run.scores[low:high], run.units, ties)
            if order is not None:
                unit = unit[order]
        keep = distinct_rows(offsets, unit if codes is None else codes[unit])
        if order is None and keep is None:
            parts.append(np.arange(low, high))
            continue
        changed = True
        rows = np.arange(high - low) if order is None else order
        parts.append((rows if keep is None else rows[keep]) + low)
    return np.concatenate(parts) if changed else None


def _codes(units: Units) -> Ints | None:
    """One number per id where two units share an id; None when ids are distinct and the unit number will do."""
    if len(set(units.ids)) == len(units.ids):
        return None
    first: dict[str, int] = {}
    return np.array([first.setdefault(i, n) for n, i in enumerate(units.ids)], np.int64)


def sorted_rows(offsets: Ints, unit: Any, scores: Any, units: Units, ties: Ties) -> Ints | None:
    """Row numbers by question, score descending and id; None when the rows are in that order already.

    Ids are compared only among tied rows, so a run without ties never looks at a string.
    """
    if not np.isfinite(scores).all():
        bad = np.unique(unit[~np.isfinite(scores)])
        raise MeasurementError("bad_score", {units.ids[u] for u in bad}, "scores are finite numbers")
    key = scores
    if ties == "trec":
        with np.errstate(over="ignore"):
            key = scores.astype(np.float32)
    n = len(key)
    inner = np.ones(max(n - 1, 0), np.bool_)  # row i and i + 1 belong to one question
    edges = offsets[1:-1]
    inner[edges[(edges > 0) & (edges < n)] - 1] = False
    order: Ints | None = None
    if (inner & (key[1:] > key[:-1])).any():
        order = np.lexsort((-key, _question_of(offsets)))
        key = key[order]
    tied = inner & (key[1:] == key[:-1])
    if not tied.any():
        return order
    member = np.zeros(n, np.bool_)
    member[:-1] |= tied
    member[1:] |= tied
    places = np.flatnonzero(member)
    block = np.zeros(n, np.int64)
    block[1:] = np.cumsum(~tied)
    rows = places if order is None else order[places]
    used, inverse = np.unique(unit[rows], return_inverse=True)
    names = [units.ids[u] for u in used]
    rank_of = {name: r for r, name in enumerate(sorted(set(names)))}
    rank = np.array([rank_of[name] for name in names], np.int64)[inverse]
    if ties == "trec":
        rank = -rank
    again = np.lexsort((rank, block[places]))
    if (again == np.arange(len(again))).all():
        return order
    out = np.arange(n) if order is None else order
    out[places] = rows[again]
    return out


def distinct_rows(offsets: Ints, code: Any) -> Ints | None:
    """Row numbers without the later copies of an id in the same question; None when there are no copies."""
    n, questions = len(code), len(offsets) - 1
    if n < 2:
        return None
    width = n // questions
    if width * questions == n and (np.diff(offsets) == width).all():
        rows = np.sort(code.reshape(questions, width), axis=1)
        if not (rows[:, 1:] == rows[:, :-1]).any():
            return None
    key = _question_of(offsets) * (int(code.max()) + 1) + code
    order = np.argsort(key, kind="stable")
    key = key[order]
    copies = order[1:][key[1:] == key[:-1]]
    if not len(copies):
        return None
    keep = np.ones(n, np.bool_)
    keep[copies] = False
    return np.flatnonzero(keep)
