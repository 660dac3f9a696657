r"""`regex-v1`: the tokenizer that budgets are counted in, offline and the same for every configuration.

A token is one CJK character (U+3040–30FF, 3400–4DBF, 4E00–9FFF, F900–FAFF, AC00–D7AF), else a run of other
word characters, else one other non-space mark. What a word character or a space is, Python's `re` says (`\w`,
`\s`). Two properties make budgets cheap, and both are tested: every non-space code point is in exactly one
token, and cutting a text anywhere changes no token but the one that is cut, which becomes one token on each side.

Source: docs/measurement.md, section 5.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

NAME = "regex-v1"
VERSION = "1"

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
CJK = f"[{_CJK}]"
"""Pattern of one character that is a token of its own."""
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s]")
_WORD = re.compile(rf"[^\W{_CJK}]")

SPACE, WORD, SINGLE = 0, 1, 2
"""Kinds of code points: in no token; part of a run; a token of its own."""


def identity(cut: str = "truncate") -> str:
    """What the fingerprint calls the tokenizer: its name, its version and how a chunk that does not fit is cut.

    >>> identity()
    'regex-v1/1/truncate'
    """
    return f"{NAME}/{VERSION}/{cut}"


def token_ends(text: str) -> list[int]:
    """The end offset of every token, in code points from the start of `text`; no token, empty list.

    >>> token_ends("RAG召回, ok_42!")
    [3, 4, 5, 6, 12, 13]
    """
    return [match.end() for match in _TOKEN.finditer(text)]


def count(text: str) -> int:
    r"""How many tokens `text` has; 0 when it is empty or all whitespace.

    >>> count("one two, three"), count("退款期限"), count(" \n")
    (4, 4, 0)
    """
    return len(_TOKEN.findall(text))


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The code points of `text` as numbers, one each, so that array positions are `str` indices."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def kinds(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """SPACE, WORD or SINGLE for every code point.

    Only the distinct code points are asked about, so a long text costs two look-ups per position.

    >>> kinds(code_points("a é,召")).tolist()
    [1, 0, 1, 2, 2]
    """
    table = np.zeros(int(codes.max()) + 1 if codes.size else 1, np.uint8)
    table[codes] = 1
    for code in np.flatnonzero(table):
        char = chr(int(code))
        table[code] = SPACE if char.isspace() else WORD if _WORD.match(char) else SINGLE
    return table[codes]


def ends_mask(kind: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """True where a token ends, for kinds in text order.

    >>> ends_mask(kinds(code_points("ab, c"))).tolist()
    [False, True, True, False, True]
    """
    following = np.append(kind[1:], np.uint8(SPACE))
    ends: npt.NDArray[np.bool_] = (kind == SINGLE) | ((kind == WORD) & (following != WORD))
    return ends
