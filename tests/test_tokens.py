"""regex-v1 against hand-made tables, against a character-by-character walk, and its two properties."""

from __future__ import annotations

import doctest
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator import tokens
from tests.conftest import examples

texts = st.text(
    st.one_of(
        st.sampled_from(list("ab_Z9 \n\t,.-'召回の한カ・é\u0301\u3000\u00a0\u200b😀👩\u200d\U0001f1e9\x1c")),
        st.characters(),
    ),
    max_size=60,
)


def test_doctests() -> None:
    assert doctest.testmod(tokens).failed == 0


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("", []),
        (" \n\t\u3000", []),
        ("word", [4]),
        ("two words", [3, 9]),
        ("don't", [3, 4, 5]),
        ("退款期限十四天内", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("サーバー1台", [1, 2, 3, 4, 5, 6]),  # the long-vowel mark is in the kana range
        ("한국어 text", [1, 2, 3, 8]),
        ("cafe\u0301 noir", [4, 5, 10]),  # a combining mark is no word character: a token of its own
        ("café noir", [4, 9]),
        ("a😀b", [1, 2, 3]),
        ("👩\u200d🔬", [1, 2, 3]),  # a joined emoji is three code points, three marks
        ("x_1 2.5%", [3, 5, 6, 7, 8]),
        ("ein\u00a0Wort", [3, 8]),  # a no-break space is a space
        (
            "\u3040\u30ff\u3400\u4dbf\u4e00\u9fff\uf900\ufaff\uac00\ud7af",
            list(range(1, 11)),
        ),  # first and last of each range
        ("Ωmega Ж1", [5, 8]),
    ],
)
def test_by_hand(text: str, ends: list[int]) -> None:
    assert tokens.token_ends(text) == ends
    assert tokens.count(text) == len(ends)


def walk(text: str) -> list[int]:
    """The definition, one character at a time, without regular expressions."""
    ranges = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xAC00, 0xD7AF))
    ends: list[int] = []
    in_word = False
    for i, char in enumerate(text):
        cjk = any(low <= ord(char) <= high for low, high in ranges)
        word = not cjk and (char.isalnum() or char == "_")
        if word and in_word:
            ends[-1] = i + 1
        elif not char.isspace():
            ends.append(i + 1)
        in_word = word
    return ends


@given(texts)
@settings(max_examples=examples(400))
def test_equals_the_walk(text: str) -> None:
    assert tokens.token_ends(text) == walk(text)


@given(texts)
@settings(max_examples=examples(400))
def test_arrays_equal_the_expression(text: str) -> None:
    kind = tokens.kinds(tokens.code_points(text))
    assert kind.size == len(text)
    assert (np.flatnonzero(tokens.ends_mask(kind)) + 1).tolist() == tokens.token_ends(text)


@given(texts, st.data())
@settings(max_examples=examples(300))
def test_a_cut_changes_only_the_token_it_cuts(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    left = tokens.token_ends(text[:at])
    right = [at + end for end in tokens.token_ends(text[at:])]
    assert sorted({*left, *right} - {at}) == [end for end in tokens.token_ends(text) if end != at]


def test_every_code_point_is_in_one_token_or_a_space() -> None:
    every = "".join(chr(c) for c in range(0x3000, 0x3200)) + "".join(map(chr, range(0x300)))
    kind = tokens.kinds(tokens.code_points(every))
    assert [k == tokens.SPACE for k in kind] == [char.isspace() for char in every]


def test_lone_surrogates_are_marks_and_do_not_break_it() -> None:
    assert tokens.token_ends("a\ud800b") == [1, 2, 3]
    assert tokens.kinds(tokens.code_points("a\ud800b")).tolist() == [1, 2, 1]


def test_text_is_not_normalised() -> None:
    text = "ﬁ e\u0301"
    assert unicodedata.normalize("NFC", text) != text
    assert tokens.token_ends(text) == [1, 3, 4]


def test_identity_names_version_and_cut() -> None:
    assert tokens.identity("whole") == "regex-v1/1/whole"
    assert tokens.identity() != tokens.identity("whole")
