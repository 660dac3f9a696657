from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator.chunkers import (
    Callable,
    Fixed,
    FixedChars,
    FixedTokens,
    Headings,
    Recursive,
    Semantic,
    Sentences,
    SmallToBig,
    WholeDocument,
    checked_chunks,
    count_words,
    sentence_spans,
)
from denominator.errors import ConfigError, StageError
from denominator.types import Chunk, Document
from tests.conftest import examples

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
        Semantic(size=size, least=0, percentile=50),
        Semantic(size=size, least=0, percentile=100, window=1),
        Callable(lambda text: [(m.start(), m.end()) for m in re.finditer(r"\S+", text)]),
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


@settings(max_examples=examples(150), deadline=None)
@given(LETTERS, st.integers(1, 9), st.integers(0, 8))
def test_every_chunker_is_sound_on_any_text(text, size, overlap):
    for chunker in every(size, min(overlap, size - 1)):
        assert_sound(chunker, text)


@settings(max_examples=examples(100), deadline=None)
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


# Cutting where the subject changes

PUMPS = "The pump lifts water from the well. The motor of the pump is small. Its filter keeps sand out of the pump. "
MONEY = "A late order is refunded in full. The refund goes to the card that paid. Support writes when money is sent. "


def brute_cosines(text, window):
    """Means of token vectors of the sentences on either side of each border, by plain loops in float64."""
    import numpy as np

    from denominator.retrievers.static import static_model

    model = static_model()

    def vector(sentences):
        _, ids = model.token_ids([" ".join(sentences)])
        return sum(model.table[i].astype(float) for i in ids.tolist())

    parts = [text[a:b] for a, b in sentence_spans(text)]
    out = []
    for i in range(1, len(parts)):
        left, right = vector(parts[max(0, i - window) : i]), vector(parts[i : i + window])
        out.append(float(left @ right / np.sqrt(left @ left) / np.sqrt(right @ right)))
    return out


@pytest.mark.parametrize("window", [1, 2, 3])
def test_semantic_judges_borders_by_the_sentences_on_either_side(window):
    text = PUMPS + MONEY + PUMPS
    found = Semantic(window=window).cosines(text, sentence_spans(text))
    assert found.tolist() == pytest.approx(brute_cosines(text, window), abs=2e-5)


def test_semantic_cuts_where_the_subject_changes():
    text = PUMPS + MONEY
    assert min(range(5), key=brute_cosines(text, 2).__getitem__) == 2, "the border between the subjects is the lowest"
    for percentile in (1, 10, 19):  # of five borders: only the lowest is below
        cut = [text[a:b] for a, b in spans(Semantic(percentile, least=0), text)]
        assert cut == [PUMPS.strip(), MONEY.strip()]
    assert len(spans(Semantic(0, least=0), text)) == 1, "nothing is below the lowest"
    assert len(spans(Semantic(100, least=0), text)) == 5, "all but the highest border"


def test_semantic_keeps_least_and_size():
    text = PUMPS + MONEY
    assert len(spans(Semantic(1, least=count_words(PUMPS)), text)) == 2
    assert len(spans(Semantic(1, least=count_words(PUMPS) + 1), text)) == 1
    for a, b in spans(Semantic(50, size=9, least=0), text * 3):
        assert count_words((text * 3)[a:b]) <= 9
    assert spans(Semantic(0, size=256), text * 40) == spans(Sentences(256), text * 40)


def test_semantic_does_not_cut_repetition_by_subject():
    text = "The pump was checked. " * 30
    assert spans(Semantic(90, least=0), text) == [(0, len(text) - 1)]
    assert spans(Semantic(90), "") == spans(Semantic(90), " \n ") == []
    assert spans(Semantic(90), "One.") == [(0, 4)]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"percentile": 101}, "percentile must be 0 to 100, found 101"),
        ({"percentile": True}, "percentile must be 0 to 100"),
        ({"least": 300}, "least must be 0 to 256, found 300"),
        ({"window": 0}, r"semantic \(window\): size must be at least 1"),
        ({"size": 0}, "semantic: size must be at least 1"),
    ],
)
def test_semantic_refuses(settings_, message):
    with pytest.raises(ConfigError, match=message):
        Semantic(**settings_)


# Small units, larger chunks


@pytest.mark.parametrize("big", [Fixed(20, 5), Sentences(20), Headings(20, path=True), WholeDocument()], ids=str)
def test_small_units_lie_in_the_chunk_that_they_belong_to(big):
    text = "# Pumps\n" + PUMPS + "\n## Money\n" + MONEY + "\n# Ende\n" + UNICODE
    document = Document("d", text, "Title")
    part = SmallToBig(Sentences(6), big)
    chunks = part.chunk(document)
    assert chunks == big.chunk(document)
    units = part.small_chunks(document, chunks)
    assert len({u.id for u, _ in units}) == len(units) > len(chunks)
    for unit, i in units:
        assert chunks[i].start <= unit.start < unit.end <= chunks[i].end
        assert text[unit.start : unit.end] == unit.text
        assert unit.header == chunks[i].header
    covered = {p for u, _ in units for p in range(u.start, u.end)}
    assert {p for p, c in enumerate(text) if not c.isspace()} <= covered


def test_a_unit_of_two_overlapping_chunks_counts_for_the_first():
    document = Document("d", "a b c d e f")
    part = SmallToBig(Fixed(1), Fixed(4, 2))
    units = part.small_chunks(document, part.chunk(document))
    assert [(u.text, i) for u, i in units] == [("a", 0), ("b", 0), ("c", 0), ("d", 0), ("e", 1), ("f", 1)]


def test_chunks_without_offsets_are_their_own_units():
    @dataclass(frozen=True)
    class Summaries:
        anchored: ClassVar[bool] = False

        def chunk(self, document):
            return [Chunk(f"{document.id}#0", document.id, "in short: pumps")]

    document = Document("d", PUMPS)
    part = SmallToBig(Sentences(6), Summaries())
    assert part.anchored is False
    assert part.small_chunks(document, part.chunk(document)) == [(part.chunk(document)[0], 0)]
    with pytest.raises(ConfigError, match="small must give offsets"):
        SmallToBig(Summaries(), Sentences(6))
    with pytest.raises(ConfigError, match="small cannot be a SmallToBig"):
        SmallToBig(SmallToBig(), Sentences(6))
    with pytest.raises(ConfigError, match="big must be a chunker, found 7"):
        SmallToBig(Sentences(6), 7)


# A function of one's own


class Piece:
    def __init__(self, text, start):
        self.page_content, self.metadata = text, {"start_index": start}


@pytest.mark.parametrize(
    "item",
    [
        (4, 7),
        [4, 7],
        ("two", 4),
        ("two", 4, 7),
        {"text": "two", "start": 4, "end": 7},
        {"text": "two", "start_index": 4},
        {"start": 4, "end": 7},
        pytest.param(Piece("two", 4), id="object"),
    ],
    ids=repr,
)
def test_every_way_to_say_where_a_chunk_is(item):
    chunk = Chunk("d#000000004-000000007", "d", "two", 4, 7)
    assert checked_chunks(Callable(lambda text: [item]), Document("d", "one two one two")) == [chunk]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([("two", 8)], r"chunk 0 .*text\[8:11\] is 'one' but the chunk is 'two'"),
        ([("one", 0), ("two", 5)], r"chunk 1 .*text\[5:8\] is 'wo ' but the chunk is 'two'"),
        (["two"], "has no offsets; a chunker that rewrites text declares"),
        ([(4, 99)], r"offsets \[4, 99\) are outside the text of 15 characters"),
        ([(-3, 2)], "are outside"),
        ([(4,)], r"chunk 0: found \(4,\)"),
        ([(True, 4)], "chunk 0: found"),
        ([None], "chunk 0: found None"),
    ],
)
def test_a_function_is_held_to_its_places(found, message):
    with pytest.raises(StageError, match=message):
        checked_chunks(Callable(lambda text: found), Document("d", "one two one two"))


def test_a_function_that_rewrites_text_says_so():
    made = checked_chunks(Callable(lambda text: ["in short", "more"], anchored=False), Document("d", "one two"))
    assert made == [Chunk("d#000000000", "d", "in short"), Chunk("d#000000001", "d", "more")]
    with pytest.raises(ConfigError, match=r"chunker own: module tests\.test_chunkers has no 'missing'"):
        Callable("tests.test_chunkers.missing")
    assert Callable("tests.test_chunkers.word_pairs", version="1").cacheable


def word_pairs(text):
    return [m.span() for m in re.finditer(r"\S+ \S+", text)]
