"""Labelling by hand: the model against plain Python, sittings through the command, interruptions of real ones."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import json
import os
import re
import select
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator import doctor, label, labelling
from denominator.cache import Cache
from denominator.cli import main
from denominator.eligibility import BLOCKING, classify, groups_of
from denominator.errors import InputError
from denominator.labelling import Book, Decision
from denominator.pool import Pool
from denominator.readers import native
from denominator.types import Dataset, Document, Evidence, Question
from tests.conftest import examples

CORPUS = [
    {
        "id": "returns",
        "title": "Returns",
        "text": "Appliances can be returned within thirty days of delivery. Keep the receipt. "
        "Without a receipt you get a voucher.",
    },
    {"id": "returns-old", "text": "You may bring an appliance back within thirty days. Food cannot be returned."},
    {"id": "hours", "text": "The shop opens at nine.\nOn Sundays it is closed. On holidays it is closed, too."},
    {"id": "delivery", "text": "We deliver on weekdays. Delivery is free above fifty euro."},
]
TEXTS = {d["id"]: d["text"] for d in CORPUS}
# Written by hand, each line in another style: what is not changed must stay to the byte.
LINES = [
    '{"id": "done", "question": "When do you open?", "state": "answerable", '
    '"gold": [{"document_id": "hours", "start": 0, "end": 23}], "weight": 1.50}',
    '{"weight":1.50,"id":"bare","question":"How long can I bring a toaster back?","tags_of_mine":[ 1,2 ]}',
    '{"id": "marked", "question": "Free delivery?", "state": "unlabelled", "needs_review": true, "x": {"b": 1}}',
    "",
    '{"id": "conflict", "question": "Do you repair bicycles?", "state": "unanswerable", "gold": ["delivery"]}',
    '{ "id" : "hole" , "question" : "Open on Sunday?" , "state" : "answerable" , "gold" : [] }',
    '{"id": "part", "question": "Voucher and bicycles?", "state": "partial", "caf\\u00e9": "\\u00fc"}',
    '{"id": "lost", "question": "What of the attic?", "state": "answerable", "gold": ["attic", "hours"]}',
    '{"id": "grades", "question": "Weekdays?", "state": "answerable", "gold": ["hours"], '
    '"grades": {"delivery": 2, "hours": 0, "returns": 0}}',
]
WAITING = ["bare", "marked", "conflict", "hole", "part", "lost", "grades"]
NOW = "2026-03-01T10:00:00+00:00"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "_now", lambda: NOW)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text("".join(json.dumps(d) + "\n" for d in CORPUS), encoding="utf-8")
    (folder / "questions.jsonl").write_bytes("\n".join(LINES).encode())
    return folder


@pytest.fixture
def sit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A whole sitting: what is typed line by line, and the arguments. Gives exit code, stdout, stderr."""

    def run(typed: Sequence[str], *arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{t}\n" for t in typed)))
        code = main(["label", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def record(folder: Path, identifier: str) -> dict[str, Any]:
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").split("\n")
    return next(r for line in lines if line.strip() and (r := json.loads(line))["id"] == identifier)


def passages(out: str, identifier: str) -> list[str]:
    """The document of each numbered passage of a question, in the order of the screen."""
    part = out.partition(f"--- {identifier} (")[2].partition("\nstate (")[0]
    found = re.findall(r"^ {1,2}(\d+)  (\S+)", part, re.M)
    assert [int(n) for n, _ in found] == list(range(1, len(found) + 1))
    return [name for _, name in found]


@pytest.fixture
def number(shop: Path, sit: Callable[..., tuple[int, str, str]]) -> Callable[[str, str], str]:
    """The number under which a question's sitting shows a document; every document of the shop is one passage."""

    def of(identifier: str, document: str) -> str:
        _, out, _ = sit([":q"], shop, "--id", identifier)
        return str(passages(out, identifier).index(document) + 1)

    return of


# ------------------------------------------------------------------ the queue


def test_every_state_that_stops_a_strict_run_is_asked_in_the_order_of_the_file() -> None:
    questions = [
        Question("ok", answerability="answerable", gold=((Evidence("d"),),)),
        Question("un"),
        Question("cf", answerability="unanswerable", gold=((Evidence("d"),),)),
        Question("no", answerability="unanswerable"),
        Question("ag", answerability="answerable"),
        Question("pg", answerability="partial"),
        Question("rv", answerability="answerable", gold=((Evidence("d"),),), needs_review=True),
        Question("gone", answerability="answerable", gold=((Evidence("x"), Evidence("y")),)),
        Question("gg", answerability="answerable", gold=((Evidence("d"),),), grades={"e": 1}),
    ]
    asked = labelling.queue(questions, {"d"})
    assert [(a.id, a.why) for a in asked] == [
        ("un", "unlabelled"),
        ("cf", "conflict"),
        ("ag", "answerable_no_gold"),
        ("pg", "partial_no_gold"),
        ("rv", "needs_review"),
        ("gone", "needs_review"),
        ("gg", "gold_grade_mismatch"),
    ]
    assert {a.why for a in asked} > set(BLOCKING)
    assert asked[5].lost == ("x", "y")
    assert [a.id for a in labelling.queue(questions, {"d"}, states=["conflict", "unlabelled"])] == ["un", "cf"]
    assert [a.id for a in labelling.queue(questions, {"d"}, ids=["no", "un"])] == ["un", "no"]
    # Recorded answers without a corpus: labels alone decide.
    assert [a.id for a in labelling.queue(questions[:-1], None, evaluate="abstention")] == ["un", "rv"]


# ------------------------------------------------------------------ candidates


_PASSAGE = st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.integers(4, 6))
_RANKING = st.lists(_PASSAGE, max_size=8, unique=True)


@given(st.lists(_RANKING, min_size=1, max_size=4), st.integers(1, 5), st.text(max_size=5), st.randoms())
@settings(max_examples=examples(200), deadline=None)
def test_the_pool_favours_no_retriever(rankings: list[Any], top: int, seed: str, random: Any) -> None:
    named = {f"r{i}": ranking for i, ranking in enumerate(rankings)}
    pool = labelling.pooled(named, top, seed)
    assert {(c.doc, c.start, c.end) for c in pool} == {p for r in rankings for p in r[:top]}
    assert len({(c.doc, c.start, c.end) for c in pool}) == len(pool)
    for c in pool:
        assert c.found_by == tuple(n for n, r in sorted(named.items()) if (c.doc, c.start, c.end) in r[:top])
    # Neither the order of the retrievers nor any rank within the few changes what is seen.
    other = {
        name: random.sample(named[name][:top], len(named[name][:top]))
        for name in random.sample(list(named), len(named))
    }
    assert labelling.pooled(other, top, seed) == pool


def test_the_order_is_fixed_by_the_question_and_differs_between_questions() -> None:
    ranking = {"r": [(f"d{i}", 0, 9) for i in range(6)]}
    orders = [tuple(c.doc for c in labelling.pooled(ranking, 6, f"q{i}")) for i in range(200)]
    assert orders == [tuple(c.doc for c in labelling.pooled(ranking, 6, f"q{i}")) for i in range(200)]
    first = [sum(o[0] == f"d{i}" for o in orders) for i in range(6)]
    assert min(first) > 15, first  # each place is as likely: 200 / 6 expected


# ------------------------------------------------------------------ what is typed


@given(
    st.text(alphabet="ab .\n", max_size=30),
    st.text(alphabet="ab .", max_size=4),
    st.integers(0, 30),
    st.integers(0, 30),
)
@settings(max_examples=examples(400), deadline=None)
def test_typed_words_are_found_as_by_brute_force(text: str, typed: str, a: int, b: int) -> None:
    start, end = sorted((min(a, len(text)), min(b, len(text))))
    words = typed.split()

    def places(low: int, high: int) -> list[tuple[int, int]]:
        found = []
        for i in range(low, high):
            for j in range(i + 1, high + 1):
                piece = text[i:j]
                if piece.split() == words and not piece[0].isspace() and not piece[-1].isspace():
                    found.append((i, j))
        return found

    inside = places(start, end) if words else []
    every = places(0, len(text)) if words else []
    expected = inside[0] if len(inside) == 1 else every[0] if not inside and len(every) == 1 else None
    if expected is None:
        with pytest.raises(ValueError, match=r"typed|stand|type them"):
            labelling.locate(text, typed, start, end)
    else:
        assert labelling.locate(text, typed, start, end) == expected


@pytest.mark.parametrize(
    ("typed", "runs"),
    [("2", [(2, 2)]), (" 1 - 3 ", [(1, 3)]), ("1,3-3", [(1, 1), (3, 3)]), ("two", None), ("1 2", None), ("-1", None)],
)
def test_runs(typed: str, runs: object) -> None:
    assert labelling.runs_of(typed, 3) == runs


@pytest.mark.parametrize("typed", ["0", "4", "3-2", "1,9"])
def test_runs_out_of_range(typed: str) -> None:
    with pytest.raises(ValueError, match="the numbers are 1 to 3"):
        labelling.runs_of(typed, 3)


# ------------------------------------------------------------------ one line


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
_NAME = st.text(max_size=4) | st.sampled_from(["state", "gold", 'a"b', "{,}", ":"])
_BLANKS = st.text(alphabet=" \t", max_size=2)


_FIELDS = st.dictionaries(_NAME, st.tuples(_VALUE, _BLANKS, _BLANKS, _BLANKS, _BLANKS, st.booleans()), max_size=5)
_SCALAR = st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=4)


def line_of(fields: dict[str, Any], new: dict[str, str]) -> str:
    """A line put together from pieces; `new` holds the JSON of some values in the place of their own."""
    pieces = []
    for name, (value, a, b, c, d, escaped) in fields.items():
        key, old = json.dumps(name, ensure_ascii=escaped), json.dumps(value, ensure_ascii=escaped)
        pieces.append(f"{a}{key}{b}:{c}{new.get(name, old)}{d}")
    return "{" + ",".join(pieces) + "}"


@given(_FIELDS, st.dictionaries(_NAME, _SCALAR, min_size=1, max_size=4), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_only_the_values_that_change_are_rewritten(
    fields: dict[str, Any], new: dict[str, Any], ascii_only: bool
) -> None:
    there = {name: value for name, value in new.items() if name in fields}
    written = {name: json.dumps(value, ensure_ascii=ascii_only) for name, value in there.items()}
    assert labelling.edited(line_of(fields, {}), there, ascii_only=ascii_only) == line_of(fields, written)


@given(_FIELDS, st.dictionaries(_NAME, _VALUE, max_size=4), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_an_edited_line_means_what_was_said(fields: dict[str, Any], changes: dict[str, Any], ascii_only: bool) -> None:
    made = json.loads(labelling.edited(line_of(fields, {}), changes, ascii_only=ascii_only))
    assert made == {**{name: piece[0] for name, piece in fields.items()}, **changes}
    assert list(made) == list({**fields, **changes})


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ('{"id":"q"}', '{"id":"q","state":"partial","gold":["d"]}'),
        ('{"id": "q"}', '{"id": "q", "state": "partial", "gold": ["d"]}'),
        ('{"n": 1.50, "state": 0, "z": "\\u00e9"}', '{"n": 1.50, "state": "partial", "z": "\\u00e9", "gold": ["d"]}'),
        ('{ "gold" : [ ] , "id" : "q" }', '{ "gold" : ["d"] , "id" : "q" , "state" : "partial" }'),
        ('{"st\\u0061te":"x"}', '{"st\\u0061te":"partial","gold":["d"]}'),
        ('  {"id": "q"}  ', '  {"id": "q", "state": "partial", "gold": ["d"]}  '),
    ],
)  # fmt: skip
def test_the_style_of_a_line_is_kept(line: str, made: str) -> None:
    assert labelling.edited(line, {"state": "partial", "gold": ["d"]}) == made


# ------------------------------------------------------------------ the file


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda raw: raw,
    "newline at the end": lambda raw: raw + b"\n",
    "crlf": lambda raw: raw.replace(b"\n", b"\r\n"),
    "mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "gzip": lambda raw: gzip.compress(raw, 3),
    "gzip in two members": lambda raw: gzip.compress(raw[:100], 1) + gzip.compress(raw[100:], 9),
}


@pytest.mark.parametrize("form", list(FORMS))
@given(st.lists(st.sampled_from(["undo", *WAITING, "done"]), max_size=8))
@settings(max_examples=examples(15), deadline=None)
def test_other_lines_keep_every_byte_and_undo_brings_all_back(
    tmp_path_factory: pytest.TempPathFactory, form: str, steps: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{form.replace(' ', '_')}.jsonl"
    first = FORMS[form]("\n".join(LINES).encode())
    path.write_bytes(first)

    def content() -> list[bytes]:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).split(b"\n")

    book, kept, untouched = Book(path), [path.read_bytes()], content()
    for n, step in enumerate(steps):
        if step == "undo":
            if len(kept) > 1:
                book.undo()
                kept.pop()
                assert path.read_bytes() == kept[-1]
            continue
        before = content()
        book.write(step, {"state": "unanswerable", "n": n})
        kept.append(path.read_bytes())
        after = content()
        changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        assert [json.loads(after[i].removeprefix(b"\xef\xbb\xbf"))["id"] for i in changed] == [step]
        assert after[changed[0]].endswith(b"\r") == untouched[changed[0]].endswith(b"\r")
        assert native.read_questions(path) is not None
        assert {q.id: q.answerability for q in native.read_questions(path)}[step] == "unanswerable"
    while len(book):
        book.undo()
    assert path.read_bytes() == first


def test_the_file_stays_a_link_and_keeps_its_mode(shop: Path, tmp_path: Path) -> None:
    (shop / "questions.jsonl").chmod(0o640)
    link = tmp_path / "link.jsonl"
    link.symlink_to(shop / "questions.jsonl")
    Book(link).write("bare", {"state": "unanswerable"})
    assert link.is_symlink()
    assert stat.S_IMODE((shop / "questions.jsonl").stat().st_mode) == 0o640
    assert record(shop, "bare")["state"] == "unanswerable"


def test_whoever_has_the_file_open_sees_all_of_the_old_or_all_of_the_new(shop: Path) -> None:
    path = shop / "questions.jsonl"
    before = path.read_bytes()
    with path.open("rb") as reader:
        head = reader.read(10)
        Book(path).write("bare", {"state": "unanswerable"})
        assert head + reader.read() == before  # the file was replaced, not written over
    assert path.read_bytes() != before


def test_ctrl_c_while_an_answer_is_being_written(
    shop: Path, sit: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (shop / "questions.jsonl").read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    assert sit(["u", ""], shop)[0] == 130
    assert (shop / "questions.jsonl").read_bytes() == before
    assert sorted(p.name for p in shop.iterdir()) == ["corpus.jsonl", "questions.jsonl"]


def test_a_full_disk_leaves_the_file_as_it_was(
    shop: Path, sit: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (shop / "questions.jsonl").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = sit(["u", ""], shop)
    assert code == 64
    assert "cannot be written; it is as it was before this answer" in err
    assert "No space left" in err
    assert (shop / "questions.jsonl").read_bytes() == before
    assert sorted(p.name for p in shop.iterdir()) == ["corpus.jsonl", "questions.jsonl"]


def test_a_read_only_file_is_refused_before_the_first_question(
    shop: Path, sit: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shop / "questions.jsonl"
    path.chmod(0o444)
    code, out, err = sit(["u", ""], shop)
    assert (code, out) == (64, "")
    assert "is read-only" in err
    assert "chmod u+w" in err
    path.chmod(0o644)

    def refused(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "touch", refused)
    code, out, err = sit(["u", ""], shop)
    assert (code, out) == (64, "")
    assert "lies in a folder that cannot be written" in err
    assert path.read_bytes() == "\n".join(LINES).encode()


def test_a_concurrent_change_is_noticed_and_not_overwritten(
    shop: Path, sit: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, typed = shop / "questions.jsonl", iter(["u", "", "u", ""])
    theirs = path.read_bytes() + b'\n{"id": "new", "question": "And?"}\n'

    def ask(prompt: str) -> str:
        if prompt.startswith("note") and record(shop, "bare").get("state"):
            path.write_bytes(theirs)
        return next(typed)

    monkeypatch.setattr(label, "_ask", ask)
    code, _, err = sit([], shop)
    assert code == 64
    assert "was changed by somebody else since it was read" in err
    assert path.read_bytes() == theirs
    assert sorted(p.name for p in shop.iterdir()) == ["corpus.jsonl", "questions.jsonl"]


def test_undo_refuses_a_changed_file_too(shop: Path) -> None:
    book = Book(shop / "questions.jsonl")
    book.write("bare", {"state": "unanswerable"})
    theirs = (shop / "questions.jsonl").read_bytes() + b"\n"
    (shop / "questions.jsonl").write_bytes(theirs)
    with pytest.raises(InputError, match="changed by somebody else"):
        book.undo()
    assert (shop / "questions.jsonl").read_bytes() == theirs
    assert len(book) == 1


# ------------------------------------------------------------------ sittings


def test_a_whole_sitting_ends_in_a_set_that_can_be_scored(
    shop: Path, number: Callable[[str, str], str], sit: Callable[..., tuple[int, str, str]]
) -> None:
    raw = (shop / "questions.jsonl").read_bytes().split(b"\n")
    typed = [
        *("a", number("bare", "returns"), "1", "or " + number("bare", "returns-old"), "1", "", "both are in force"),
        *("a", number("marked", "delivery"), "2", "", ""),
        *("u", ""),
        *("a", number("hole", "hours"), "The shop opens at nine. On Sundays", "", ""),
        *("p", number("part", "returns"), "2-3", number("part", "returns"), "1,2", "", ""),
        *("a", "k", "", ""),
        *("a", number("grades", "delivery"), "d", "", ""),
    ]
    code, out, err = sit(typed, shop, "--by", "Ana")
    assert (code, err) == (0, "")
    assert "labelled 7, left 0\n" in out
    data = native.Native(folder=str(shop)).load()
    states = classify(data.questions, TEXTS.keys())
    assert states == {
        **dict.fromkeys(["done", "bare", "marked", "hole", "lost", "grades"], "answerable"),
        "conflict": "unanswerable",
        "part": "partial",
    }
    gold = {q.id: q.gold for q in data.questions}
    said = {
        i: [[TEXTS[e.doc][e.start : e.end] for e in g] for g in gold[i]] for i in ("bare", "marked", "hole", "part")
    }
    assert said == {
        "bare": [
            [
                "Appliances can be returned within thirty days of delivery.",
                "You may bring an appliance back within thirty days.",
            ]
        ],
        "marked": [["Delivery is free above fifty euro."]],
        "hole": [["The shop opens at nine.\nOn Sundays"]],
        "part": [
            ["Keep the receipt. Without a receipt you get a voucher."],
            ["Appliances can be returned within thirty days of delivery."],
            ["Keep the receipt."],
        ],
    }  # fmt: skip
    assert gold["lost"] == ((Evidence("hours"),),)
    assert gold["grades"] == ((Evidence("delivery", whole=True),),)
    assert record(shop, "grades")["grades"] == {"delivery": 2, "hours": 0, "returns": 0}  # they agree with it now
    assert record(shop, "marked")["needs_review"] is False
    assert list(record(shop, "bare")) == [
        "weight",
        "id",
        "question",
        "tags_of_mine",
        "state",
        "gold",
        "label_provenance",
    ]
    made = (shop / "questions.jsonl").read_bytes().split(b"\n")
    assert [made[i] for i in (0, 3)] == [raw[i] for i in (0, 3)]
    assert made[1].startswith(raw[1][:-1] + b',"state":"answerable","gold":[[{"document_id":"returns","start":0,')
    assert b'"caf\\u00e9": "\\u00fc"' in made[6]
    assert doctor.gather(native.Native(folder=str(shop)))[1] == ()
    code, out, _ = sit([], shop)
    assert (code, out) == (0, "nothing to label: 8 questions\n")


def test_provenance(shop: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = sit(["u", "no bicycles here"], shop, "--by", "Ana", "--state", "conflict")
    assert re.search(r"^--- conflict \(1 of 1\): labelled unanswerable, but it has gold$", out, re.M)
    made = record(shop, "conflict")
    (entry,) = made["label_provenance"]
    shown = entry.pop("candidates")
    from denominator import __version__

    assert entry == {
        "time": NOW,
        "tool": f"denominator {__version__}",
        "by": "Ana",
        "note": "no bicycles here",
        "previous": {"counted_as": "conflict", "state": "unanswerable", "gold": ["delivery"]},
    }
    assert made["gold"] == []
    assert [c["document_id"] for c in shown] == passages(out, "conflict")
    assert {name for c in shown for name in c["found_by"]} == {"bm25", "hybrid", "static"}
    for c in shown:
        assert (c["start"], c["end"]) == (0, len(TEXTS[c["document_id"]]))
    # Who found a passage is on record and not on screen.
    assert not re.search("bm25|static|hybrid|score|rank", out, re.IGNORECASE)
    # Asked again by its id: the first answer stays on record, its note is shown.
    code, out, _ = sit(["a", "1", "", "", ""], shop, "--id", "conflict")
    assert code == 0
    assert "asked by id, now unanswerable" in out
    assert "note: no bicycles here" in out
    first, second = record(shop, "conflict")["label_provenance"]
    assert (first["by"], "by" in second, second["previous"]["state"]) == ("Ana", False, "unanswerable")


def test_hash_covers_the_label_and_not_its_provenance(shop: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    before = native.Native(folder=str(shop)).load()
    sit(["u", "a note", ":q"], shop, "--by", "Ana")
    after = native.Native(folder=str(shop)).load()
    assert before.dataset_hash != after.dataset_hash
    assert not any("label_provenance" in note for note in after.notes)
    path = shop / "questions.jsonl"
    plain = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert any(r.pop("label_provenance", None) for r in plain)
    path.write_text("".join(json.dumps(r) + "\n" for r in plain), encoding="utf-8")
    assert native.Native(folder=str(shop)).load().dataset_hash == after.dataset_hash


def test_what_is_written_fits_the_published_schema(shop: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the schemas are checked with the package jsonschema")
    from denominator.schema import schema

    sit([*("a", "1", "", "or 2", "1", "3", "d", "", "x"), *("u", ""), ":q"], shop)
    judge = jsonschema.Draft202012Validator(schema("questions"))
    for identifier in ("bare", "marked"):
        assert list(judge.iter_errors(record(shop, identifier))) == []
    assert [len(g) if isinstance(g, list) else 1 for g in record(shop, "bare")["gold"]] == [2, 1]


def test_it_goes_on_where_it_was_left(shop: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = sit(["u", "", "s", "u", "", ":quit"], shop)
    assert "labelled 2, left 5; the same command goes on" in out
    _, out, _ = sit([], shop)  # the input ends at once: that is a quit, too
    assert "(1 of 5)" in out
    assert "labelled 0, left 5" in out
    _, out, _ = sit([], shop, "--list")
    assert [line.split()[0] for line in out.splitlines()[:-1]] == ["marked", "hole", "part", "lost", "grades"]
    assert out.splitlines()[-1] == "5 of 8 questions to label"


@pytest.mark.parametrize("packed", [False, True])
def test_undo_goes_back_through_the_sitting_to_the_first_byte(
    shop: Path, sit: Callable[..., tuple[int, str, str]], packed: bool
) -> None:
    path = shop / "questions.jsonl"
    if packed:
        first = gzip.compress(path.read_bytes(), 2)
        path.unlink()
        path = shop / "questions.jsonl.gz"
        path.write_bytes(first)
    first = path.read_bytes()
    typed = ["u", "", "s", "a", "1", "", "", "", ":undo", "undo", "a", ":u", ":undo", ":q"]
    code, out, _ = sit(typed, shop)
    assert code == 0
    asked = re.findall(r"^--- (\w+)", out, re.M)
    assert asked == ["bare", "marked", "conflict", "hole", "conflict", "marked", "bare", "bare"]
    assert re.findall(r"^taken back: (\w+)", out, re.M) == ["conflict", "bare"]
    assert "nothing to take back" in out
    assert "labelled 0, left 7" in out
    assert path.read_bytes() == first


def test_undo_of_one_answer_keeps_those_before(shop: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    sit(["u", "", ":q"], shop)
    once = (shop / "questions.jsonl").read_bytes()
    sit(["u", "", ":undo", ":q"], shop)
    assert (shop / "questions.jsonl").read_bytes() == once
    assert record(shop, "bare")["state"] == "unanswerable"


def test_what_cannot_be_meant_is_asked_again(
    shop: Path, number: Callable[[str, str], str], sit: Callable[..., tuple[int, str, str]]
) -> None:
    n = number("bare", "returns")
    typed = ["x", "", "?", ":frobnicate", ":", "a", "", "99", "or 1", "or", "-", "k", "v 0", f"v {n}", "hello", n]
    typed += [
        "9",
        "receipt",
        "never written",
        "2",
        "-",
        n,
        '"thirty days"',
        f"or {n}",
        "1,2",
        "1-2",
        "",
        ":back",
        "u",
        "",
    ]
    code, out, err = sit([*typed, ":q"], shop)
    assert (code, err) == (0, "")
    for said in (
        "a answerable, p partial, u unanswerable, s skip",
        "no such command: :undo",
        "needs evidence (:back for another state, :skip)",
        "the passages are 1 to 4",
        "an alternative to what?",
        "no gold is noted",
        ">>>Appliances can",
        "9: the numbers are 1 to 3",
        "these words stand 2 times in the passage",
        "these words are neither in the passage nor in its document",
        "an alternative is one piece",
    ):
        assert said in " ".join(out.split()), said
    assert record(shop, "bare")["state"] == "unanswerable"  # :back led to another state; no evidence came along
    assert "gold" not in record(shop, "bare")
    assert record(shop, "marked")["state"] == "unlabelled"


def test_a_search_of_ones_own_adds_passages(shop: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    first = passages(sit([":q"], shop, "--top", "1")[1], "bare")
    assert "hours" not in first
    typed = ["a", "/", "/open at nine on Sundays", "/open at nine on Sundays", str(len(first) + 1), "1", "", ""]
    _, out, _ = sit([*typed, ":q"], shop, "--top", "1")
    assert "what is to be searched?" in out
    assert "nothing new was found" in out
    (entry,) = record(shop, "bare")["label_provenance"]
    assert [(c["document_id"], c.get("query")) for c in entry["candidates"]] == [
        *((d, None) for d in first),
        ("hours", "open at nine on Sundays"),
    ]
    assert record(shop, "bare")["gold"] == [
        {"document_id": "hours", "start": 0, "end": 23, "text": "The shop opens at nine."}
    ]


def test_grades_that_contradict_the_answer_are_taken_out_and_kept_on_record(
    shop: Path, sit: Callable[..., tuple[int, str, str]]
) -> None:
    _, out, _ = sit(["u", ""], shop, "--id", "grades")
    assert "its grades contradict its gold" in out
    assert "grades that contradict this are taken out" in out
    made = record(shop, "grades")
    assert made["grades"] == {"hours": 0, "returns": 0}
    assert made["label_provenance"][0]["previous"]["grades"] == {"delivery": 2, "hours": 0, "returns": 0}
    assert groups_of(native.question_of(native.Row(made, Path("x"), 1))) == ()


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(-1, 2)),
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=2), max_size=3),
)
@settings(max_examples=examples(200), deadline=None)
def test_after_a_decision_grades_and_gold_agree(grades: dict[str, int], gold: list[list[str]]) -> None:
    groups = [tuple(g) for g in gold]
    left = labelling.grades_beside(grades, groups)
    question = Question("q", gold=tuple(tuple(map(Evidence, g)) for g in groups), grades=left)
    assert {e.doc for g in groups_of(question) for e in g} == {d for g in gold for d in g}
    assert all(grades[d] == v for d, v in (left or {}).items())


def test_an_escape_sequence_in_a_document_does_not_reach_the_terminal(
    shop: Path, sit: Callable[..., tuple[int, str, str]]
) -> None:
    evil = {"id": "evil\x1b[31m", "title": "t\x1b]0;x\x07", "text": "toaster \x1b[2J\x9b2J toaster back"}
    with (shop / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(evil) + "\n")
    _, out, _ = sit(["a", "v 1", "v 2", "v 3", "v 4", ":q"], shop)
    assert "toaster" in out.split("state (")[0].replace("bring a toaster", "")
    assert not set(out) & set("\x1b\x07\x9b")


def test_abstention_needs_a_state_only(tmp_path: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text('{"id": "a"}\n{"id": "b", "question": "B?", "gold": ["x"]}\n', encoding="utf-8")
    code, _, err = sit([], "--questions", path)
    assert (code, "label needs the documents, too" in err) == (64, True)
    code, out, _ = sit(["a", "", "u", ""], "--questions", path, "--evaluate", "abstention")
    assert (code, "labelled 2, left 0" in out) == (0, True)
    made = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(r["state"], r.get("gold")) for r in made] == [("answerable", None), ("unanswerable", ["x"])]


def test_assumed_labels_are_asked_all_the_same(shop: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    (shop / "questions.jsonl").write_text('{"id": "a", "question": "Q?", "gold": ["hours"]}\n', encoding="utf-8")
    arguments = (
        "native",
        f"dataset.folder={shop}",
        "dataset.questions=''",
        "dataset.corpus=null",
        "dataset.assume_answerable=true",
    )
    _, out, _ = sit([], *arguments, "--list")
    assert out == "a  unlabelled  Q?\n1 of 1 questions to label\n"
    assert sit(["a", "k", "", ""], *arguments)[0] == 0
    made = record(shop, "a")
    assert (made["state"], made["gold"]) == ("answerable", ["hours"])
    assert "gold" not in made["label_provenance"][0]["previous"]


def test_a_folder_of_texts_with_questions_beside(tmp_path: Path, sit: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("# Öffnung\n\nWir öffnen um neun.\n", encoding="utf-8")
    path = tmp_path / "asked.jsonl"
    path.write_text('{"id": "é", "question": "Wann öffnen Sie?", "lang": "de"}\n', encoding="utf-8")
    assert sit(["a", "1", "öffnen um neun", "", "schön"], "--folder", tmp_path / "texts", "--questions", path)[0] == 0
    made = path.read_text(encoding="utf-8")
    assert '"text": "öffnen um neun"' in made
    assert '"note": "schön"' in made


def test_refusals(shop: Path, sit: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "t.qrels").write_text("q1 0 d1 1\n", encoding="utf-8")
    for arguments, said in {
        (): "label needs a dataset",
        ("demo",): "the bundled demo data is none",
        ("--questions", tmp_path / "t.qrels"): "Qrels reads is none",
        (shop, "--id", "bar"): "there is no question 'bar' (did you mean 'bare'?)",
        (shop, "--top", "0"): "--top is 0",
        (tmp_path / "nothing",): "no such folder",
        ("beir",): "a value is needed: denominator label beir",
        ("squad", "dataset.path=x", "--evaluate", "abstention"): "--evaluate: Squad has no such setting",
    }.items():
        code, out, err = sit(["u", ""], *arguments)
        assert (code, out) == (64, ""), arguments
        assert said in err, (arguments, err)
    (shop / "questions.jsonl").write_text('{"id": "a", "question": "Q?", "state": "Answerable"}\n', encoding="utf-8")
    code, _, err = sit([], shop)
    assert (code, "questions.jsonl:1: field 'state'" in err) == (64, True)


def test_the_demo_data_can_be_listed(sit: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = sit([], "demo", "--list")
    assert code == 0
    assert out.splitlines()[-1] == "6 of 217 questions to label"


# ------------------------------------------------------------------ real processes


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "denominator", "label", *map(str, arguments)]


def test_a_killed_sitting_has_lost_nothing_that_was_answered(shop: Path) -> None:
    with subprocess.Popen(command(shop), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=shop) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"u\n\na\n1\n")
        process.stdin.flush()
        seen = b""
        while b"(2 of 7)" not in seen or b"part (" not in seen:
            more = os.read(process.stdout.fileno(), 65536)
            assert more, seen
            seen += more
        process.kill()
    assert sorted(p.name for p in shop.iterdir()) == ["corpus.jsonl", "questions.jsonl"]
    assert record(shop, "bare")["state"] == "unanswerable"
    rest = (shop / "questions.jsonl").read_text(encoding="utf-8").split("\n")
    assert [line for i, line in enumerate(rest) if i != 1] == [line for i, line in enumerate(LINES) if i != 1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_in_a_terminal(shop: Path) -> None:
    """Typed into a pseudo-terminal, as a person would: an answer, then Ctrl-C in the middle of the next one."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(sys.executable, command(shop, "--by", "Ana"), os.environ | {"TERM": "dumb", "COLUMNS": "100"})
    seen, deadline = b"", time.monotonic() + 60

    def until(words: bytes) -> None:
        nonlocal seen
        while words not in seen:
            assert time.monotonic() < deadline, seen.decode(errors="replace")
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 65536)
        seen = seen[seen.index(words) + len(words) :]

    try:
        for words, typed in (
            (b"help) > ", b"u\n"),
            (b"none) > ", b"no\n"),
            (b"help) > ", b"a\n"),
            (b"help) > ", b"1\n"),
        ):
            until(words)
            os.write(terminal, typed)
        until(b"or its words) > ")
        os.write(terminal, b"half a sen\x03")
        until(b"the same command again goes on where it stopped")
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert sorted(p.name for p in shop.iterdir()) == ["corpus.jsonl", "questions.jsonl"]
    assert record(shop, "bare")["label_provenance"][0]["note"] == "no"
    rest = (shop / "questions.jsonl").read_text(encoding="utf-8").split("\n")
    assert [line for i, line in enumerate(rest) if i != 1] == [line for i, line in enumerate(LINES) if i != 1]


# ------------------------------------------------------------------ docs/label.md


DOCS = Path(__file__).resolve().parents[1] / "docs" / "label.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
TYPED = re.compile(r"^(?:state|evidence|part|note) \(.*?\) > ?(.*)$", re.M)


def commands(body: str) -> Iterator[tuple[str, str]]:
    """Command lines of a console block, each with the output below it."""
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        line, _, out = part.partition("\n")
        yield line, out


def test_every_transcript_of_the_page_is_what_comes_out(
    tmp_path: Path, sit: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran, seen = 0, []
    for language, name, body in BLOCK.findall(DOCS.read_text(encoding="utf-8")):
        if language == "jsonl":
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(body, encoding="utf-8")
        if language == "json":  # a question as it is after the sitting above it, or some of its fields
            made, shown = record(tmp_path / "shop", name), json.loads(body)
            assert {field: made[field] for field in shown} == shown
            seen.append(name)
        for line, out in commands(body) if language == "console" else ():
            words = shlex.split(line)
            assert words[:2] == ["denominator", "label"]
            code, said, err = sit(TYPED.findall(out), *words[2:])
            assert (code, err) == (0, ""), line
            assert [row.rstrip() for row in said.splitlines()] == [row.rstrip() for row in out.splitlines()], line
            ran += 1
    assert (ran, seen) == (5, ["q2", "q3"])


def test_the_page_names_every_option_and_command() -> None:
    import argparse

    page = DOCS.read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    label.add_arguments(parser)
    options = itertools.chain.from_iterable(a.option_strings for a in parser._actions)
    missing = [o for o in options if o.startswith("--") and o != "--help" and o not in page]
    assert missing == []
    for word in (":undo", ":back", ":skip", ":quit", ":help", "label_provenance"):
        assert word in page
    assert Decision("unanswerable").groups == ()


# ------------------------------------------------------------------ who finds the passages


def shown_by(folder: Path, identifier: str) -> dict[tuple[str, int, int], list[str]]:
    """What the provenance says of each passage that was shown."""
    entries = record(folder, identifier)["label_provenance"][-1]["candidates"]
    return {(c["document_id"], c["start"], c["end"]): c["found_by"] for c in entries}


def test_configured_retrievers_find_the_passages_and_only_the_record_says_which(
    shop: Path, sit: Callable[..., tuple[int, str, str]]
) -> None:
    """Two chunkers × two first stages: chunks of 4 words become the passages that they lie in, each shown once."""
    grid = ("chunker=fixed_128", "chunker.size=4,128", "chunker.overlap=0", "embedder=bm25,static")
    code, out, err = sit(["u", ""], shop, *grid, "--id", "bare", "--top", "2")
    assert (code, err) == (0, "")
    names = {f"fixed_128 size={n} overlap=0 · {e} · none" for n in (4, 128) for e in ("bm25", "static")}
    assert f"passages are found by 4 retrievers: {'; '.join(sorted(names))}" in out.replace("\n", " ")
    found = shown_by(shop, "bare")
    assert {name for by in found.values() for name in by} == names
    texts = {d["id"]: d["text"] for d in CORPUS}
    assert all(0 <= a < b <= len(texts[doc]) for doc, a, b in found)
    assert passages(out, "bare") == [doc for doc, _, _ in found]  # the order of the screen
    screen = out.partition("--- bare (")[2]
    assert not any(name in screen for name in names)


def test_cells_of_one_name_are_retrievers_of_their_own(
    shop: Path, sit: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Which experiment a cell belongs to is not in its name."""
    own = tmp_path / "own"
    (own / "experiment").mkdir(parents=True)
    for name, k1 in (("a", 0.0), ("b", 2.0)):
        text = f"# @package _global_\nchunker:\n  size: 4\n  overlap: 0\nembedder:\n  k1: {k1}\n"
        (own / "experiment" / f"{name}.yaml").write_text(text, encoding="utf-8")
    grid = ("+experiment=a,b", "chunker=fixed_128", "embedder=bm25", "--config-dir", own)
    code, out, err = sit(["u", ""], shop, *grid, "--id", "bare", "--top", "2")
    assert (code, err) == (0, "")
    assert "passages are found by 2 retrievers" in out.replace("\n", " ")
    names = {name for by in shown_by(shop, "bare").values() for name in by}
    assert names == {"fixed_128 · bm25 · none", "fixed_128 · bm25 · none (2)"}


def test_a_recorded_run_finds_passages_beside_others(
    shop: Path, sit: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """By document, by our chunk id, and by a span of a document; the best-scored first, unknown documents passed."""
    hits = [
        {"id": "delivery", "score": 0.1},
        {"id": "unknown", "score": 0.9},
        {"id": "hours#000000000-000000010", "score": 0.8},
        {"id": "anything", "doc": "returns", "start": 60, "end": 70, "score": 0.7},
    ]
    run = tmp_path / "other.jsonl"
    run.write_text(json.dumps({"question_id": "bare", "hits": hits}) + "\n", encoding="utf-8")
    assert sit(["u", ""], shop, "--id", "bare", "--top", "2", "--run", run)[0] == 0
    assert {doc: by for (doc, _, _), by in shown_by(shop, "bare").items()} == {
        "hours": ["other.jsonl"], "returns": ["other.jsonl"],
    }  # fmt: skip
    code, _, err = sit(["u", ""], shop, "embedder=bm25", "chunker=whole", "--id", "bare", "--run", run)
    assert (code, err) == (0, "")
    by = shown_by(shop, "bare")
    assert ["other.jsonl", "whole · bm25 · none"] in by.values()


def test_a_trec_run_and_a_search_of_ones_own(
    shop: Path, sit: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """A search of one's own asks the built-in retrievers: a recorded run cannot be asked."""
    run = tmp_path / "run.trec"
    run.write_text("bare Q0 delivery 1 2.5 x\nother Q0 hours 1 1.0 x\n", encoding="utf-8")
    code, out, err = sit(["a", "/Sundays closed", "2", "", "", ""], shop, "--id", "bare", "--top", "1", "--run", run)
    assert (code, err) == (0, "")
    assert passages(out, "bare") == ["delivery"]
    shown = record(shop, "bare")["label_provenance"][-1]["candidates"]
    assert [(c["document_id"], c.get("query")) for c in shown] == [("delivery", None), ("hours", "Sundays closed")]
    assert shown[1]["found_by"] == ["bm25", "hybrid", "static"]


def test_the_order_on_screen_does_not_follow_the_retrievers(tmp_path: Path) -> None:
    """Over many questions the first place goes to each of two retrievers' findings about equally often."""
    a, b = [(f"a{i}", 0, 5) for i in range(4)], [(f"b{i}", 0, 5) for i in range(4)]
    first = [labelling.pooled({"one": a, "two": b}, 4, f"q{i}")[0].found_by[0] for i in range(400)]
    assert 160 < first.count("one") < 240  # 200 expected, four standard deviations are 40


def test_refused_retrievers(shop: Path, sit: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    strange = tmp_path / "strange.jsonl"
    strange.write_text('{"question_id": "bare", "hits": [{"id": "nowhere"}]}\n', encoding="utf-8")
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"question_id": "zz", "hits": [{"id": "hours"}]}\n', encoding="utf-8")
    before = (shop / "questions.jsonl").read_bytes()
    for arguments, said in (
        ((shop, "embedder=bm52"), "embedder: there is no choice 'bm52'; did you mean 'bm25'?"),
        ((shop, "embedder.k7=3"), "embedder has no setting 'k7'"),
        ((shop, "--run", strange), "none of its hits (such as 'nowhere') is a document of this corpus"),
        ((shop, "--run", foreign), "none of its 1 questions is one of this data set"),
        ((shop, "--run", tmp_path / "none.jsonl"), "none.jsonl"),
    ):
        code, out, err = sit(["u", ""], *arguments)
        assert (code, out) == (64, ""), arguments
        assert said in err, (arguments, err)
    assert (shop / "questions.jsonl").read_bytes() == before


@pytest.mark.parametrize("lang", ["en-US", "en_US"])
def test_words_are_stemmed_in_the_language_of_the_questions_however_its_tag_is_written(lang: str) -> None:
    documents = (Document("a", "Connected pipes."), Document("b", "Blue paint."))
    data = Dataset("d", documents, (Question("q", "connections?", lang=lang),), "h", "c")
    pool = Pool.build(data, Cache(None))
    assert pool is not None
    assert [doc for doc, _, _ in pool._proposed("connections?")["bm25"]][:1] == ["a"]
