"""Texts that are equal or nearly equal, found exactly and without comparing all pairs.

A text is the set of its windows of `width` characters (case folded, compatibility forms joined, blanks and marks left
out, so that it works without knowing words). Two texts are near when the Jaccard similarity of their sets reaches a
threshold t. Sets with similarity ≥ t must share one of the n − ⌈t·n⌉ + 1 rarest members of each (prefix filtering:
Chaudhuri, Ganti and Kaushik 2006; Bayardo, Ma and Srikant 2007), so only texts that share a rare window are compared.
No pair at or above t is missed and none below it is reported, as long as two windows do not have one 64-bit hash.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from denominator import tokens

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_MARKS = re.compile(r"[\W_]+")
_SLACK = 1e-9
_BLOCK = 2048
MOST_WINDOWS = 1 << 23
"""Above this many windows in all, a hash-chosen share of them stands for the rest while candidates are looked for."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Texts that belong together, by index, ascending; `similarity` is the least one of the pairs that joined them."""

    members: tuple[int, ...]
    similarity: float


def plain(text: str) -> str:
    """Letters and digits only, case folded, compatibility forms joined (NFKC).

    >>> plain("What's  the Price?") == plain("whats the price")
    True
    """
    return _MARKS.sub("", unicodedata.normalize("NFKC", text).casefold())


def windows(text: str, width: int) -> npt.NDArray[np.uint64]:
    """The distinct hashes of all windows of a plain text, sorted; a shorter text is one window; empty, none.

    >>> len(windows("abcab", 2)), len(windows("a", 2)), len(windows("", 2))
    (3, 1, 0)
    """
    if not text:
        return np.zeros(0, np.uint64)
    codes = tokens.code_points(text).astype(np.uint64) + np.uint64(1)
    width = min(width, codes.size)
    n = codes.size - width + 1
    hashed = np.full(n, width, np.uint64)
    for j in range(width):
        hashed = hashed * _FACTOR + codes[j : j + n]
    for shift, factor in zip((30, 27), _MIX, strict=True):
        hashed = (hashed ^ (hashed >> np.uint64(shift))) * factor
    return np.unique(hashed ^ (hashed >> np.uint64(31)))


def jaccard(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> float:
    """Shared members over all members; two empty sets have nothing in common (0).

    >>> jaccard(np.array([1, 2, 3], np.uint64), np.array([2, 3, 4], np.uint64))
    0.5
    """
    shared = np.intersect1d(a, b, assume_unique=True).size
    every = a.size + b.size - shared
    return shared / every if every else 0.0


def equal_texts(texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Indices of texts that are the same character by character, each group ascending; blank texts are left out.

    >>> equal_texts(["a", "b", "a", "", ""])
    [(0, 2)]
    """
    found: dict[bytes, list[int]] = {}
    for i, text in enumerate(texts):
        if text and not text.isspace():
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()  # the texts themselves may be many
            found.setdefault(digest, []).append(i)
    return [tuple(group) for group in found.values() if len(group) > 1]


def near_texts(texts: Sequence[str], *, least: float, width: int) -> list[Alike]:
    """Groups of texts that are near: joined by pairs whose similarity is at least `least`.

    Texts without a letter or digit are near to nothing. Time grows with the length of all texts and with the number of
    pairs that share a rare window; memory with the length of all texts, up to `MOST_WINDOWS`. `texts` is read by
    position, more than once.

    >>> [a.members for a in near_texts(["one two three", "One, two, three!", "four five six"], least=0.8, width=4)]
    [(0, 1)]
    """
    if not 0 < least <= 1:
        raise ValueError(f"least is a similarity above 0 and at most 1, found {least!r}")
    made: list[str] | None = []
    total = 0
    for text in texts:
        one = plain(text)
        total += len(one)
        if made is not None:
            made.append(one)
        if total > MOST_WINDOWS:  # too many to be held: made again where they are needed
            made = None
    every = 1 + total // MOST_WINDOWS

    @lru_cache(maxsize=2)  # pairs come sorted, so the first of a pair is that of the pair before
    def hashes(i: int) -> npt.NDArray[np.uint64]:
        return windows(plain(texts[i]) if made is None else made[i], width)

    wanted = least if every == 1 else max(0.3, least - 0.2)  # a share estimates: look wider, then compare in full
    sets = [_share(hashes(i), every) for i in range(len(texts))]
    parent = list(range(len(texts)))
    least_of: dict[int, float] = {}
    for i, j in _candidates(sets, wanted):
        a, b = _root(parent, i), _root(parent, j)
        if a == b:
            continue
        full = (sets[i], sets[j]) if every == 1 else (hashes(i), hashes(j))
        similarity = jaccard(*full)
        if similarity + _SLACK >= least:
            first, second = min(a, b), max(a, b)
            parent[second] = first
            least_of[first] = min(similarity, least_of.pop(first, 1.0), least_of.pop(second, 1.0))
    groups: dict[int, list[int]] = {}
    for i in range(len(texts)):
        groups.setdefault(_root(parent, i), []).append(i)
    return [Alike(tuple(g), least_of[root]) for root, g in groups.items() if len(g) > 1]


def _share(hashes: npt.NDArray[np.uint64], every: int) -> npt.NDArray[np.uint64]:
    return hashes if every == 1 else hashes[hashes % np.uint64(every) == 0]


def _root(parent: list[int], i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


def _candidates(sets: Sequence[npt.NDArray[np.uint64]], least: float) -> Iterable[tuple[int, int]]:
    """Pairs i < j that share a window of both prefixes and are not too different in size."""
    from scipy.sparse import csr_array

    sizes = np.array([s.size for s in sets], np.int64)
    if not sizes.sum():
        return
    member, inverse, spread = np.unique(np.concatenate(sets), return_inverse=True, return_counts=True)
    owner = np.repeat(np.arange(len(sets)), sizes)
    common = np.flatnonzero(spread[inverse] > 1)  # a window of one text only fills the prefix and joins nothing
    owner, inverse = owner[common], inverse[common]
    shared_sizes = np.bincount(owner, minlength=len(sets))
    order = np.lexsort((inverse, spread[inverse], owner))  # the rarest first inside each text
    ahead = (sizes - shared_sizes) - (np.cumsum(shared_sizes) - shared_sizes)
    place = np.arange(order.size) + ahead[owner]  # `order` keeps texts together, so `owner` is as it was
    prefix = sizes - np.ceil(least * sizes - _SLACK).astype(np.int64) + 1
    kept = order[place < prefix[owner]]
    if not kept.size:
        return
    table = csr_array((np.ones(kept.size, np.int32), (owner[kept], inverse[kept])), shape=(len(sets), member.size))
    across = table.T.tocsr()
    for start in range(0, len(sets), _BLOCK):
        shared = (table[start : start + _BLOCK] @ across).tocoo()
        rows, columns = shared.row.astype(np.int64) + start, shared.col.astype(np.int64)
        small, large = np.minimum(sizes[rows], sizes[columns]), np.maximum(sizes[rows], sizes[columns])
        fits = (rows < columns) & (small + _SLACK >= least * large)
        pairs = sorted(zip(rows[fits].tolist(), columns[fits].tolist(), strict=True))
        yield from pairs


def longest_run(words: Sequence[str], text: str) -> int:
    """The most consecutive words that stand in `text`, which is words between single blanks with a blank at both ends.

    >>> longest_run(["how", "long", "is", "the", "refund", "period"], " the refund period is 30 days ")
    3
    """
    longest = 0
    for start in range(len(words)):
        while start + longest < len(words) and f" {' '.join(words[start : start + longest + 1])} " in text:
            longest += 1
    return longest


def words_of(text: str) -> list[str]:
    """The `regex-v1` tokens that are words or numbers (a CJK character is one), case folded.

    >>> words_of("RAG召回, ok_42!")
    ['rag', '召', '回', 'ok_42']
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    ends = tokens.token_ends(text)
    starts = [0, *ends[:-1]]
    pieces = (text[start:end].strip() for start, end in zip(starts, ends, strict=False))  # no tokens: no starts
    return [piece for piece in pieces if any(c.isalnum() for c in piece)]


def line_of(text: str) -> str:
    """The words of a text as `longest_run` wants them."""
    return f" {' '.join(words_of(text))} "
