from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator.chunkers import (
    Fixed,
    FixedChars,
    FixedTokens,
    Headings,
    Recursive,
    Sentences,
    WholeDocument,
    checked_chunks,
    count_words,
)
from denominator.errors import ConfigError, StageError
from denominator.types import Chunk, Document

UNICODE = "naïve café 😀 数据 end"


def spans(chunker, text):
    return [(c.start, c.end) for c in checked_chunks(chunker, Document("d", text))]


def every(size, overlap=0):
    return [
        Fixed(size, overlap),
        FixedChars(size, overlap),
        FixedTokens(size, overlap),
        Recursive(size, overlap),
        Headings(size, overlap),
        Sentences(size),
        WholeDocument(),
    ]


def assert_sound(chunker, text):
    """text[start:end] == chunk, starts strictly increase, every non-blank character is in some chunk."""
    chunks = chunker.chunk(Document("d", text))
    covered = set()
    for chunk in chunks:
        assert 0 <= chunk.start < chunk.end <= len(text)
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.text.strip()
        assert chunk.id == f"d#{chunk.start:09d}-{chunk.end:09d}"
        covered.update(range(chunk.start, chunk.end))
    starts = [c.start for c in chunks]
    assert all(a < b for a, b in itertools.pairwise(starts))
    assert [c.id for c in chunks] == sorted(c.id for c in chunks)
    assert {i for i, c in enumerate(text) if not c.isspace()} <= covered


# F19 offsets found by text search


def test_repeated_text_keeps_its_own_place():
    assert spans(FixedChars(5), "chunk chunk") == [(0, 5), (5, 10), (10, 11)]
    assert spans(Fixed(1), "chunk chunk") == [(0, 5), (6, 11)]
    text = "The pump was checked. " * 15
    assert count_words(text) == 60
    for chunker in (FixedTokens(10, 5), Fixed(10, 5), Recursive(10, 5), Sentences(10)):
        assert_sound(chunker, text)
        assert len(spans(chunker, text)) > 3


# F20 code points, not bytes


@pytest.mark.parametrize("size", [1, 3, 7])
def test_offsets_are_code_points(size):
    text = UNICODE * 20
    assert len(UNICODE) == 19
    assert len(UNICODE.encode()) == 28
    for chunker in every(size):
        assert_sound(chunker, text)
        assert "\ufffd" not in "".join(c.text for c in chunker.chunk(Document("d", text)))
    assert text[13:15] == "数据"
    assert (13, 14) in spans(Fixed(1), text)


def test_joined_emoji_and_flags():
    text = "👨‍👩‍👧‍👦 and 🇩🇪 flag " * 5
    for size in (1, 2, 5):
        for chunker in every(size):
            assert_sound(chunker, text)


# F21 windows that could not advance


@pytest.mark.parametrize("kind", [Fixed, FixedChars, FixedTokens, Recursive, Headings])
@pytest.mark.parametrize(
    ("size", "overlap", "says"),
    [
        (50, 50, "overlap 50 must be below size 50"),
        (50, 60, "overlap 60 must be below size 50"),
        (0, 0, "size must be at least 1, found size 0"),
        (50, -1, "found overlap -1 .size 50."),
        ("50", 0, "must be a whole number, found '50'"),
        (True, 0, "must be a whole number, found True"),
        (5.0, 0, "must be a whole number, found 5.0"),
    ],
)
def test_impossible_windows_are_refused_before_work(kind, size, overlap, says):
    with pytest.raises(ConfigError, match=says):
        kind(size, overlap)
    if overlap == 0:
        with pytest.raises(ConfigError, match=says):
            Sentences(size)


def test_extreme_overlap_ends_with_the_plain_count():
    assert len(spans(FixedChars(50, 49), "abc\n" * 50)) == 151
    word = "x" * 5000
    assert len(spans(FixedChars(100, 20), word)) == 63  # ceil((5000 - 20) / 80)
    assert spans(Fixed(100, 20), word) == [(0, 5000)]
    assert len(spans(Recursive(100, 20), word)) <= 5000
    for chunker in every(100, 20):
        assert_sound(chunker, word)


def test_fixed_windows_by_hand():
    text = "a b c d e"
    assert spans(Fixed(2), text) == [(0, 3), (4, 7), (8, 9)]
    assert spans(Fixed(3, 1), text) == [(0, 5), (4, 9)]
    assert spans(FixedTokens(2), "a,b c") == [(0, 2), (2, 5)]
    assert spans(Fixed(2), "数据检索") == [(0, 2), (2, 4)]


def test_sentences_are_packed_whole():
    text = "One two three. Four five. Six seven eight nine ten eleven. Twelve."
    pieces = [text[a:b] for a, b in spans(Sentences(5), text)]
    assert pieces == [
        "One two three. Four five.",
        "Six seven eight nine ten",
        "eleven.",
        "Twelve.",
    ]
    assert [text[a:b] for a, b in spans(Sentences(100), text)] == [text]


def test_recursive_prefers_strong_borders():
    text = "First paragraph has six words here.\n\nSecond one has six words too."
    assert [text[a:b] for a, b in spans(Recursive(8), text)] == text.split("\n\n")


def test_headings_sections_and_path():
    text = "intro\n\n# A\nalpha beta\n\n## B\ngamma\n```\n# no heading\n```\n# C\ndelta"
    chunks = checked_chunks(Headings(100, path=True), Document("d", text))
    assert [c.text.split("\n")[0] for c in chunks] == ["intro", "# A", "## B", "# C"]
    assert [c.header for c in chunks] == ["", "", "A\n", ""]
    pieces = checked_chunks(Headings(3, path=True), Document("d", "# A\none two three four"))
    assert [(c.header, c.text) for c in pieces] == [("", "# A\none"), ("A\n", "two three four")]


@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000"])
def test_blank_documents_have_no_chunks(text):
    for chunker in every(3):
        assert chunker.chunk(Document("d", text)) == []


LETTERS = st.text(st.sampled_from("abA.!? \n\t,;#`数。é😀\u200d\r\u2028\x0b"), max_size=120)


@settings(max_examples=150, deadline=None)
@given(LETTERS, st.integers(1, 9), st.integers(0, 8))
def test_every_chunker_is_sound_on_any_text(text, size, overlap):
    for chunker in every(size, min(overlap, size - 1)):
        assert_sound(chunker, text)


@settings(max_examples=100, deadline=None)
@given(LETTERS, st.integers(1, 9))
def test_sizes_are_kept(text, size):
    for chunker in (Fixed(size), Sentences(size), Headings(size)):
        assert all(count_words(c.text) <= size for c in chunker.chunk(Document("d", text)))


@given(LETTERS)
def test_count_words_matches_its_definition(text):
    assert count_words(text) == len(
        re.findall(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]|\S", text)
    ) - sum(
        1
        for a, b in itertools.pairwise(text)
        if not a.isspace()
        and not b.isspace()
        and not re.match("[\u4e00-\u9fff]", a)
        and not re.match("[\u4e00-\u9fff]", b)
    )


# A user's own chunker


@dataclass(frozen=True)
class Wrong:
    made: tuple[Chunk, ...]

    def chunk(self, document):
        return self.made


@dataclass(frozen=True)
class Summaries:
    anchored: ClassVar[bool] = False

    def chunk(self, document):
        return [Chunk(f"{document.id}~1", document.id, "rewritten")]


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        ([Chunk("d1", "d", "abc", 0, 3), Chunk("d2", "d", "xx", 3, 5)], r"chunk 1 \('d2'\): text\[3:5\] is 'de' but"),
        ([Chunk("d1", "d", "abcdefg", 0, 99)], "outside the text of 7 characters"),
        ([Chunk("d1", "d", "", 2, 2)], "outside the text"),
        ([Chunk("d1", "d", "bc", -2, 3)], "outside the text"),
        ([Chunk("d1", "d", "abc")], "has no offsets"),
        ([Chunk("d1", "other", "abc", 0, 3)], "belongs to document 'other'"),
        ([Chunk("d1", "d", "bc", 1, 3), Chunk("d2", "d", "a", 0, 1)], "chunk 1 .*not after the chunk before"),
        ([Chunk("d1", "d", "a", 0, 1), Chunk("d1", "d", "b", 1, 2)], "given before"),
    ],
)
def test_first_offending_chunk_is_named(chunks, says):
    with pytest.raises(StageError, match=says):
        checked_chunks(Wrong(tuple(chunks)), Document("d", "abcdefg"))


def test_unanchored_chunks_pass_when_declared():
    assert [c.text for c in checked_chunks(Summaries(), Document("d", "abc"))] == ["rewritten"]


def test_real_texts(shared):
    import gzip
    import json

    with gzip.open(shared / "data/chunking-eval/corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    text = max((r["text"] for r in records), key=len)[:120_000]
    for chunker in (Fixed(128, 32), Sentences(128), Recursive(256), Recursive(64, 16), FixedTokens(200, 50)):
        assert_sound(chunker, text)
