"""The doctor: each finding from a small data set made by hand, the public sets, duplicates against brute force."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import subprocess
import sys
import unicodedata
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator import doctor, duplicates, health
from denominator.cli import main
from denominator.errors import ConfigError, InputError
from denominator.health import Finding, Health, examine
from denominator.readers import native, tables
from denominator.readers.beir import Beir
from denominator.readers.build import dataset
from denominator.readers.folder import Folder
from denominator.readers.squad import Squad
from denominator.readers.trec import Qrels
from denominator.types import Dataset, Document, Evidence, Question
from tests.conftest import SHARED, examples, shared_path


def made(
    questions: list[Question], documents: Mapping[str, str] | None = None, *, corpus: bool = True, **options: Any
) -> Dataset:
    docs = [Document(i, t) for i, t in (documents or {"d1": "one two three", "d2": "four five six"}).items()]
    return dataset(docs if corpus else [], questions, name="made", corpus=corpus, **options)


def q(identifier: str, state: str = "answerable", *gold: Any, text: str = "", **fields: Any) -> Question:
    """`gold` are document ids, spans (doc, start, end), or lists of these as alternatives."""

    def one(item: Any) -> Evidence:
        return Evidence(item) if isinstance(item, str) else Evidence(*item)

    groups = tuple(tuple(map(one, g)) if isinstance(g, list) else (one(g),) for g in gold)
    return Question(identifier, text or f"question number {identifier}?", state, groups, **fields)


def found(report: Health, code: str) -> Finding:
    (one,) = [f for f in report.findings if f.code == code]
    return one


def codes(report: Health) -> set[str]:
    return {f.code for f in report.findings}


# ------------------------------------------------------------------ labels and gold


def test_every_blocking_state_is_an_error_with_its_ids_and_under_lenient_a_warning() -> None:
    data = made(
        [
            q("ok", "answerable", "d1"),
            q("open", "unlabelled"),
            q("open2", "unlabelled", "d1"),
            q("clash", "unanswerable", "d1"),
            q("bare", "answerable"),
            q("half", "partial"),
            q("mark", "answerable", "d1", needs_review=True),
            q("lost", "answerable", "d9"),
            q("u", "unanswerable"),
        ]
    )
    strict, lenient = examine(data), examine(data, lenient=True)
    expected = {
        "unlabelled": ("open", "open2"),
        "conflict": ("clash",),
        "answerable_no_gold": ("bare",),
        "partial_no_gold": ("half",),
        "needs_review": ("mark",),
        "gold_not_in_corpus": ("lost",),
    }
    for code, ids in expected.items():
        assert found(strict, code).ids == ids
        assert (found(strict, code).count, found(strict, code).of) == (len(ids), 9)
        assert (found(strict, code).severity, found(lenient, code).severity) == ("error", "warning")
        assert "eligibility=lenient" in found(strict, code).advice
    assert "assume_answerable=true takes those with gold (1)" in found(strict, "unlabelled").advice
    assert "(absent: d9)" in found(strict, "gold_not_in_corpus").message
    assert (strict.exit_code(), lenient.exit_code(), lenient.exit_code(strict=True)) == (1, 0, 1)
    assert sum(strict.states.values()) == 9


def test_labels_that_cannot_be_read_are_errors_and_the_rest_is_examined() -> None:
    report = examine(
        made(
            [
                q("a", "Answerable", "d1"),
                q("b", "answerable", "d1", grades={"d2": 1}),
                Question("c", "x", "answerable", ((),)),
                q("d", "answerable", "d1"),
                q("d", "answerable", "d1"),
            ]
        )
    )
    for code, ids in {"bad_label": ("a",), "gold_grade_mismatch": ("b",), "empty_group": ("c",)}.items():
        assert (found(report, code).severity, found(report, code).ids) == ("error", ids)
    assert found(report, "duplicate_question_ids").ids == ("d",)
    assert report.states["answerable"] == 1
    assert report.states["unreadable"] == 4
    assert sum(report.states.values()) == report.questions == 5


def test_an_alternative_outside_of_the_corpus_is_a_warning_because_another_is_there() -> None:
    report = examine(made([q("a", "answerable", ["d1", "d9"]), q("b", "answerable", "d1")]))
    assert found(report, "alternative_not_in_corpus").ids == ("a",)
    assert "gold_not_in_corpus" not in codes(report)
    assert found(report, "or_groups").ids == ("a",)


def test_spans_outside_blank_and_missing() -> None:
    text = {"d1": "word   \n  word", "d2": "x"}
    blank, outside = q("blank", "answerable", ("d1", 4, 9)), q("outside", "answerable", ("d1", 4, 99))
    report = examine(made([blank, outside, q("whole", "answerable", ("d2", None, None, True))], text))
    assert found(report, "empty_span").ids == ("blank",)
    assert found(report, "span_out_of_range").ids == ("outside",)
    assert "no_spans" not in codes(report)
    some = examine(made([q("a", "answerable", ("d1", 0, 4)), q("b", "answerable", "d1")], text))
    assert (found(some, "no_spans").severity, found(some, "no_spans").ids) == ("warning", ("b",))
    none = examine(made([q("b", "answerable", "d1")], text))
    assert found(none, "no_spans").severity == "note"


def test_no_question_is_eligible() -> None:
    report = examine(made([q("u", "unanswerable")]))
    assert found(report, "no_eligible").severity == "error"
    assert "no_eligible" not in codes(examine(made([q("a", "answerable")], corpus=False, evaluate="abstention")))


# ------------------------------------------------------------------ texts


MOJIBAKE = [
    ("Zürich, naïve café", None),
    ("ZÃ¼rich", "Ã¼"),
    ("itâ€™s", "â€™"),
    ("clerkâ\x80\x99s", "â\x80\x99"),
    ("ï»¿start", "ï»¿"),
    ("Ångström, Ñandú, ÇA, ÂME", None),
    ("ОБЪЁМ 数据 😀", None),
    ("São João está", None),
    ("„Spaß“, «café\xa0», ‘là’, „Ä“", None),
    ("ÐŸÑ€Ð¸", "ÐŸ"),
]


@pytest.mark.parametrize(("text", "piece"), MOJIBAKE)
def test_mojibake(text: str, piece: str | None) -> None:
    assert health.mojibake(text) == piece


@given(st.text(alphabet="äöüßéèñçåøæœ’“”–€ üabc", min_size=1))
def test_mojibake_finds_what_a_wrong_reading_makes_and_leaves_the_right_text(text: str) -> None:
    assert health.mojibake(text) is None
    wrong = text.encode("utf-8").decode("latin-1")
    assert (health.mojibake(wrong) is None) == text.isascii()


def test_encodings_name_documents_and_questions() -> None:
    texts = {
        "fffd": "caf\ufffd",
        "moji": "cafÃ©",
        "ctl": "a\x07b",
        "zero": "a\u200bb",
        "nfd": unicodedata.normalize("NFD", "café"),
        "fine": "Grüße, naïve, 数据\n\ttext",
        "empty": " \n",
    }
    report = examine(made([q("q", "answerable", "fine", text="what is caf\ufffd?")], texts))
    assert found(report, "replacement_characters").ids == ("fffd", "q")
    assert "(documents: 1, questions: 1)" in found(report, "replacement_characters").message
    for code, name in {
        "mojibake": "moji",
        "control_characters": "ctl",
        "invisible_characters": "zero",
        "mixed_normalisation": "nfd",
        "empty_documents": "empty",
    }.items():
        assert found(report, code).ids == (name,)


def test_sizes_and_limits() -> None:
    texts = {"d1": "word " * 512, "d2": "word " * 513, "d3": "字" * 9000}
    report = examine(made([q("a", "answerable", "d1", text="one two three")], texts))
    over = [f for f in report.findings if f.code == "oversized_documents"]
    assert [f.ids for f in over] == [("d2", "d3"), ("d3",)]
    tokens = next(s for s in report.sizes if (s.what, s.unit) == ("documents", "tokens"))
    assert (tokens.n, tokens.least, tokens.median, tokens.most) == (3, 512, 513, 9000)


# ------------------------------------------------------------------ duplicates


LONG = "The refund period for appliances is thirty days from the day of delivery, and longer for members of the club."


def test_equal_documents_are_a_note_until_only_one_of_them_is_gold() -> None:
    texts = {"a": LONG, "b": LONG, "c": "Something else altogether, about the opening hours."}
    both = examine(made([q("x", "answerable", "a", "b"), q("y", "answerable", ["b", "a"])], texts))
    assert (found(both, "equal_documents").severity, found(both, "equal_documents").ids) == ("note", ("a = b",))
    one = examine(made([q("x", "answerable", "a"), q("y", "answerable", "c")], texts))
    assert found(one, "equal_documents").severity == "warning"
    assert "one is gold and the other not in 1 of the questions (x)" in found(one, "equal_documents").message


def test_near_documents() -> None:
    texts = {"a": LONG, "b": LONG.upper().replace(",", " ;"), "c": f"{LONG} Really.", "d": LONG[:40]}
    report = examine(made([q("x", "answerable", "a")], texts))
    assert "equal_documents" not in codes(report)
    assert found(report, "near_documents").ids == ("a = b = c",)


def brute(texts: list[str], least: float, width: int) -> list[tuple[int, ...]]:
    """All pairs of character-window sets, by Python sets."""

    def shingles(text: str) -> set[str]:
        text = re.sub(r"[\W_]", "", unicodedata.normalize("NFKC", text).casefold())
        w = min(width, len(text))
        return {text[i : i + w] for i in range(len(text) - w + 1)} if text else set()

    sets = [shingles(t) for t in texts]
    groups = {i: {i} for i in range(len(texts))}
    for i, j in itertools.combinations(range(len(texts)), 2):
        every = sets[i] | sets[j]
        if every and len(sets[i] & sets[j]) / len(every) >= least - 1e-12:
            joined = groups[i] | groups[j]
            for k in joined:
                groups[k] = joined
    return sorted({tuple(sorted(g)) for g in groups.values() if len(g) > 1})


@given(
    st.lists(st.text(alphabet="abAB ä1-ﬁ", max_size=14), max_size=9),
    st.sampled_from([0.2, 0.5, 0.6, 0.8, 1.0]),
    st.integers(1, 4),
)
@settings(max_examples=examples(400), deadline=None)
def test_near_texts_are_those_of_brute_force(texts: list[str], least: float, width: int) -> None:
    assert sorted(a.members for a in duplicates.near_texts(texts, least=least, width=width)) == brute(
        texts, least, width
    )


def test_near_texts_by_a_share_of_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit windows are sampled; pairs are still compared in full, so nothing below the threshold shows."""
    texts = [" ".join(f"{word}{i}" for word in LONG.split()) for i in range(40)] + [LONG, LONG + " Really."]
    whole = duplicates.near_texts(texts, least=0.8, width=9)
    monkeypatch.setattr(duplicates, "MOST_WINDOWS", 600)
    assert duplicates.near_texts(texts, least=0.8, width=9) == whole
    assert [a.members for a in whole] == [(40, 41)]


def test_similarity_is_the_jaccard_of_windows() -> None:
    (one,) = duplicates.near_texts(["abcdef", "abcdeg"], least=0.5, width=2)
    assert one.similarity == pytest.approx(4 / 6)  # ab bc cd de | ef eg


# ------------------------------------------------------------------ questions


def test_equal_questions_by_states() -> None:
    asked = "How long is the refund period?"
    data = made(
        [
            q("a1", "answerable", "d1", text=asked),
            q("u1", "unanswerable", text="how long is the refund period"),
            q("a2", "answerable", "d1", text="Who?"),
            q("p2", "partial", "d1", text="who"),
            q("a3", "answerable", "d1", text="When?"),
            q("b3", "answerable", "d2", text="When?"),
            q("t1", "answerable", "d2", text="And then?", history=(("user", "first"),)),
            q("t2", "unanswerable", text="And then?", history=(("user", "second"),)),
        ]
    )
    report = examine(data)
    assert (found(report, "contradicting_questions").severity, found(report, "contradicting_questions").ids) == (
        "error",
        ("a1 = u1",),
    )
    assert found(report, "equal_questions_other_state").ids == ("a2 = p2",)
    assert found(report, "repeated_questions").ids == ("a3 = b3",)
    assert found(report, "lookalike_questions").ids == ("t1 = t2",)


def test_lookalikes_are_nearly_equal_and_of_both_classes() -> None:
    data = made(
        [
            q("a", "answerable", "d1", text="How long is the refund period for members?"),
            q("u", "unanswerable", text="How long is the refund period for guests?"),
            q("b", "answerable", "d1", text="How long is the refund period for dealers?"),
            q("c", "answerable", "d1", text="Where is the head office?"),
        ]
    )
    assert found(examine(data), "lookalike_questions").ids == ("a = u = b",)


def test_copied_share_by_hand() -> None:
    gold = [duplicates.line_of("Returns: the refund period is thirty days."), duplicates.line_of("is the")]
    words = duplicates.words_of("How long is the refund period?")
    assert words == ["how", "long", "is", "the", "refund", "period"]
    assert health.copied_share(words, gold) == 3 / 6
    assert health.copied_share([], gold) == 0
    assert health.copied_share(words, []) == 0


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=9))
def test_longest_run_is_that_of_brute_force(words: list[str], text: list[str]) -> None:
    runs = [j - i for i in range(len(words)) for j in range(i + 1, len(words) + 1)
            if any(text[k : k + j - i] == words[i:j] for k in range(len(text)))]  # fmt: skip
    assert duplicates.longest_run(words, f" {' '.join(text)} ") == max(runs, default=0)


def test_copied_questions_are_a_warning_above_a_tenth() -> None:
    copied = q("c", "answerable", ("d1", 0, len(LONG)), text="What is the refund period for appliances?")
    others = [
        q(f"o{i}", "answerable", ("d1", 0, len(LONG)), text=f"May {i} goods be sent back after one month?")
        for i in range(20)
    ]
    few, many = (examine(made([copied, *rest], {"d1": LONG})) for rest in (others, others[:5]))
    assert found(few, "copied_questions").ids == ("c",)
    assert (found(few, "copied_questions").severity, found(many, "copied_questions").severity) == ("note", "warning")
    assert (found(many, "copied_questions").count, found(many, "copied_questions").of) == (1, 6)


# ------------------------------------------------------------------ power


def test_power_is_the_planning_formula() -> None:
    questions = [q(f"q{i}", "answerable", "d1", tags={"kind": ["x", "y"] if i < 25 else "x"}) for i in range(100)]
    report = examine(made([*questions, *(q(f"u{i}", "unanswerable") for i in range(30))]))
    rows = {(p.metric, p.tag, p.value): p for p in report.power}
    z = 1.959963984540054 + 0.8416212335729143  # normal quantiles at .975 and .8, from a table
    for sd, value in zip(health.SPREADS, rows["recall@5", "", ""].detectable, strict=True):
        assert value == pytest.approx(z * sd / math.sqrt(100), abs=1e-9)
    assert rows["coverage@b2000", "", ""].reason == "no_spans"
    assert rows["abstention_recall", "", ""].n == 30
    assert rows["false_refusal_rate", "", ""].n == 100
    assert (rows["recall@5", "kind", "x"].n, rows["recall@5", "kind", "y"].n) == (100, 25)
    assert "small_slices" not in codes(report)


def test_clusters_are_the_units() -> None:
    questions = [q(f"q{i}", "answerable", "d1", cluster=f"c{i % 4}") for i in range(100)]
    report = examine(made(questions))
    assert (report.power[0].n, report.power[0].unit) == (4, "clusters")
    few = found(report, "few_eligible")
    assert (
        few.message == "only 4 independent eligible units: intervals are wide; even if all differ, p is at least 0.12"
    )


def test_small_classes_and_slices() -> None:
    questions = [q(f"q{i}", "answerable", "d1", tags={"kind": "x" if i else "y"}) for i in range(30)]
    report = examine(made([*questions, q("u", "unanswerable")]))
    assert found(report, "small_slices").ids == ("kind=y (1)",)
    assert found(report, "class_too_small").message.startswith("unanswerable questions: only 1")
    assert "no_unanswerable" not in codes(report)
    assert "no_unanswerable" in codes(examine(made(questions)))
    with pytest.raises(ConfigError, match="no question has the tag 'kint' \\(there are: kind\\)"):
        examine(made(questions), slices=["kint"])


# ------------------------------------------------------------------ the public sets


def group_count(report: Health, code: str) -> int:
    return found(report, code).count if code in codes(report) else 0


# data set: (equal texts under two ids, of them hurting, blocking questions, exit code); SOURCE.md has the first column
PUBLIC = {
    "mtrag-un": (12, False, {"unlabelled": 78}, 1),
    "chunking-eval": (0, False, {}, 0),
    "scifact": (0, False, {"unlabelled": 300}, 1),
    "clapnq": (0, False, {}, 0),
    "jaquad": (0, False, {}, 0),
    "starter": (0, False, {}, 0),
    "nomiracl": (0, False, {"answerable_no_gold": 500}, 1),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_set(name: str) -> None:
    equal, hurts, blocking, code = PUBLIC[name]
    data, refused = doctor.gather(doctor.folder_part(str(shared_path(f"data/{name}"))))
    report = examine(data, refused=refused)
    assert refused == ()
    assert group_count(report, "equal_documents") == equal
    if equal:
        assert (found(report, "equal_documents").severity == "warning") == hurts
    assert {f.code: f.count for f in report.findings if f.code in health._BLOCKED} == blocking
    assert report.exit_code() == code
    assert {"span_out_of_range", "empty_span", "gold_not_in_corpus", "refused_lines"} & codes(report) == set()
    if name == "clapnq":  # the same data, the same words
        assert doctor.render_text(report) == doctor.render_text(examine(data))


def test_clapnq_has_one_question_whose_evidence_is_a_whole_passage() -> None:
    """Its gold says `whole`, so that coverage is defined for all 300; without that word it would be for none."""
    data, _ = doctor.gather(doctor.folder_part(str(shared_path("data/clapnq"))))
    assert "no_spans" not in codes(examine(data))
    bare = [replace(p, gold=tuple(tuple(replace(e, whole=False) for e in g) for g in p.gold)) for p in data.questions]
    report = examine(dataset(data.documents, bare, name="bare"))
    assert (found(report, "no_spans").count, found(report, "no_spans").severity) == (1, "warning")


# ------------------------------------------------------------------ the command


GOOD = [
    {"id": f"q{i}", "question": f"What is fact {i}?", "state": "answerable", "gold": [{"document_id": f"d{i}"}]}
    for i in range(25)
] + [{"id": f"u{i}", "question": f"Who wrote chapter {i * 7919}?", "state": "unanswerable"} for i in range(25)]
CORPUS = [{"id": f"d{i}", "text": f"Fact {i * 104729} is about {chr(97 + i) * 20}."} for i in range(25)]


def folder(path: Path, questions: list[Any] = GOOD, corpus: list[Any] = CORPUS) -> Path:
    path.mkdir(exist_ok=True)
    for name, rows in (("questions.jsonl", questions), ("corpus.jsonl", corpus)):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(folder(tmp_path / "good"))
    assert main(["doctor", good]) == 0
    assert main(["doctor", good, "--strict"]) == 0
    warned = str(folder(tmp_path / "warned", corpus=[*CORPUS, {"id": "e", "text": " "}]))
    assert (main(["doctor", warned]), main(["doctor", warned, "--strict"])) == (0, 1)
    broken = str(folder(tmp_path / "broken", [*GOOD, {"id": "x", "question": "y"}]))
    assert (main(["doctor", broken]), main(["doctor", broken, "--lenient"])) == (1, 0)
    capsys.readouterr()
    for words in (
        [],
        ["nothing"],
        [str(tmp_path / "absent")],
        ["native"],
        ["native", "dataset.foldr=x", "dataset.folder=y"],
        ["demo", "--folder", good],
        ["--folder", good, "--slice", "nope"],
        ["squad", "dataset.path=x", "--assume-answerable"],
        [good, "--html", str(tmp_path / "no" / "x.html")],
    ):
        assert main(["doctor", *words]) == 64, words
        assert "Traceback" not in capsys.readouterr().err


def test_every_refused_line_is_named_not_only_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"id": "s", "question": "x", "gold": [{"document_id": "d0", "start": 0, "end": 4, "text": "Fakt"}]}
    path = folder(
        tmp_path / "x",
        [*GOOD[:3], "{", wrong, GOOD[0], *GOOD[3:], {"id": "z", "question": "y", "state": "maybe"}],
        [*CORPUS, {"id": 7, "text": "x"}, "[]"],
    )
    assert main(["doctor", str(path), "--json", "-"]) == 1
    said = json.loads(capsys.readouterr().out)
    (refused,) = [f for f in said["findings"] if f["code"] == "refused_lines"]
    assert refused["ids"] == ["corpus.jsonl:26", "corpus.jsonl:27", *(f"questions.jsonl:{n}" for n in (4, 5, 6, 54))]
    assert said["dataset"]["questions"] == 50  # all good ones were read
    with pytest.raises(InputError):
        doctor.folder_part(str(path)).load()


def _native(where: Path) -> Any:
    return native.Native(folder=str(folder(where / "x", [*GOOD, {"id": 7}, "{", GOOD[0]], [*CORPUS, {"id": "e"}])))


def _folder(where: Path) -> Any:
    (where / "texts").mkdir()
    (where / "texts" / "a.md").write_text("Fact one.")
    (where / "texts" / "b.txt").write_bytes(b"caf\xe9")
    lines = [{"id": "a", "question": "One?", "gold": ["a.md"]}, {"id": "b"}, {"id": "a", "question": "Again?"}]
    (where / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Folder(str(where / "texts"), str(where / "q.jsonl"))


def _beir(where: Path) -> Any:
    (where / "qrels").mkdir()
    (where / "corpus.jsonl").write_text('{"_id": "d", "text": "x"}\n{"_id": "d", "text": "y"}\n{"_id": "e"}\n')
    (where / "queries.jsonl").write_text('{"_id": "q", "text": "x"}\nno\n')
    (where / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\nq\td\tmuch\nr\td\t1\n")
    return Beir(str(where))


def _qrels(where: Path) -> Any:
    (where / "q.txt").write_text("q 0 d 1\nq 0 d\nq 0 d 2\nr 0 d 1\nq 0 e x\n")
    return Qrels(str(where / "q.txt"))


def _squad(where: Path) -> Any:
    good = {"id": "a", "question": "Who?", "is_impossible": True, "answers": []}
    bad = {"id": "b", "question": "Who?", "answers": []}
    lost = {"id": "c", "question": "?", "is_impossible": False, "answers": [{"text": "Ann", "answer_start": 3}]}
    paragraphs = [{"context": "Ann did.", "qas": [good, bad, lost]}, {"qas": []}, {"context": "Bob.", "qas": ["no"]}]
    data = [{"title": "t", "paragraphs": paragraphs}, {"title": "no paragraphs"}]
    (where / "s.json").write_text(json.dumps({"data": data}))
    return Squad(str(where / "s.json"))


def _csv(where: Path) -> Any:
    (where / "c.csv").write_text("id,text\nd,Fact\n,Fact\n")
    (where / "q.csv").write_text("id,question,state\na,Who?,answerable\nb,Who?,perhaps\nc,What?\na,Again?,\n")
    names = {"id": "id", "question": "question", "state": "state"}
    return tables.Table(str(where / "q.csv"), names, corpus=str(where / "c.csv"))


def _json(where: Path) -> Any:
    (where / "q.json").write_text(json.dumps([{"id": "a"}, 3, {"id": "b"}, {"id": 7}]))
    return tables.Table(str(where / "q.json"), {"id": "id"})


@pytest.mark.parametrize(
    ("make", "places", "size"),
    [
        (_native, ["corpus.jsonl:26", "questions.jsonl:51", "questions.jsonl:52", "questions.jsonl:53"], (50, 25)),
        (_folder, ["b.txt", "q.jsonl:2", "q.jsonl:3"], (1, 1)),
        (_beir, ["test.tsv:3", "queries.jsonl:2", "queries.jsonl", "corpus.jsonl:2", "corpus.jsonl:3"], (1, 1)),
        (_qrels, ["q.txt:2", "q.txt:3", "q.txt:5"], (2, 0)),
        (_squad, ["s.json:data[0].paragraphs[0].qas[1]", "s.json:data[0].paragraphs[0].qas[2].answers[0]",
                  "s.json:data[0].paragraphs[1]", "s.json:data[0].paragraphs[2]", "s.json:data[1]"], (1, 2)),
        (_csv, ["c.csv:3", "q.csv:3", "q.csv:4", "q.csv:5"], (1, 1)),
        (_json, ["q.json:row 2", "q.json:row 4"], (2, 0)),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)  # fmt: skip
def test_every_reader_names_all_that_it_refuses(
    make: Any, places: list[str], size: tuple[int, int], tmp_path: Path
) -> None:
    part = make(tmp_path)
    with pytest.raises(InputError) as first:
        part.load()
    data, refused = doctor.gather(part)
    report = examine(data, refused=refused)
    one = found(report, "refused_lines")
    assert list(one.ids) == places
    assert one.count == len(places)
    files = not all(":" in place for place in places)
    assert one.message == ("records or files refused by the reader" if files else "records refused by the reader")
    assert (len(data.questions), len(data.documents)) == size
    assert str(first.value) in [str(e) for e in refused]
    said = doctor.render_text(report)
    assert all(str(e)[:150] in said for e in refused)
    with pytest.raises(InputError):  # outside of the doctor it stops as ever
        part.load()


def test_of_many_refused_lines_ten_are_shown_and_all_counted(tmp_path: Path) -> None:
    path = folder(tmp_path / "x", [*GOOD, *({"id": i} for i in range(40))])
    data, refused = doctor.gather(native.Native(folder=str(path)))
    report = examine(data, refused=refused)
    one = found(report, "refused_lines")
    assert (one.count, len(one.ids), len(one.details)) == (40, 40, 10)
    text = doctor.render_text(report)
    assert "40 records refused by the reader; the first 10 of them" in text
    assert text.count("is not a text") == 10
    assert doctor.render_html(report).count("is not a text") == 10
    assert json.loads(json.dumps(report.as_dict()))["findings"][0]["details"] == list(one.details)


def test_a_file_that_cannot_be_read_at_all_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("nothing\nof\nthis\nis JSON\n{\n")
    assert main(["doctor", "--questions", str(path)]) == 64
    path.write_text('{"a": 1}\n{"b": 2}\n')
    assert main(["doctor", "--questions", str(path)]) == 64
    assert "field 'id': is missing" in capsys.readouterr().err


def test_json_and_html_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "<script>alert(1)</script>"
    path = folder(tmp_path / "x", [*GOOD, {"id": evil, "question": evil}])
    page, file = tmp_path / "page.html", tmp_path / "health.json"
    assert main(["doctor", str(path), "--html", str(page), "--json", str(file)]) == 1
    text = capsys.readouterr().out
    said = json.loads(file.read_text(encoding="utf-8"))
    html = page.read_text(encoding="utf-8")
    assert said["counts"] == {"error": 1, "warning": 0, "note": len(said["findings"]) - 1}
    for finding in said["findings"]:
        assert finding["code"] in html
        assert finding["advice"].split(";")[0].split("→")[0][:30] in text
    assert "<script" not in html
    assert not re.search(r"(src|href)=|url\(|@import", html)  # nothing from elsewhere
    assert main(["doctor", str(path), "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out) == said
    before = html
    main(["doctor", str(path), "--html", str(page)])
    assert page.read_text(encoding="utf-8") == before


def test_named_data_sets_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "x", [dict(row, talk=str(i % 30)) for i, row in enumerate(GOOD)])
    assert main(["doctor", "native", f"dataset.folder={path}", "cluster=talk", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["power"]["rows"][0]["unit"] == "clusters"
    assert main(["doctor", "--folder", str(path), "--cluster", "talk", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["power"] == said["power"]
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q1 0 d1 1\n")
    assert main(["doctor", "--golden", str(qrels)]) == 1
    assert main(["doctor", "--golden", str(qrels), "--assume-answerable"]) == 0
    own = tmp_path / "own" / "dataset"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(f"_target_: denominator.readers.native.Native\nfolder: {path}\n")
    assert main(["doctor", "mine", "--config-dir", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    assert main(["doctor", "mtrag"]) == 64
    assert "did you mean 'mtrag_un'?" in capsys.readouterr().err


# ------------------------------------------------------------------ the configurations of all readers


def files(root: Path) -> dict[str, list[str]]:
    """A small data set in every format, and the overrides that point at it."""
    folder(root / "native")
    beir = root / "beir"
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text('{"_id": "d1", "title": "T", "text": "a text"}\n')
    (beir / "queries.jsonl").write_text('{"_id": "q1", "text": "what?"}\n')
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    squad = {"data": [{"paragraphs": [{"context": "Paris is big.", "qas": [
        {"id": "1", "question": "What is big?", "is_impossible": False,
         "answers": [{"text": "Paris", "answer_start": 0}]}
    ]}]}]}  # fmt: skip
    (root / "squad.json").write_text(json.dumps(squad))
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "docs" / "deep" / "a.md").write_text("# Title\n\nText.\n")
    (root / "questions.jsonl").write_text(
        '{"id": "q", "question": "x", "state": "answerable", "gold": ["deep/a.md"]}\n'
    )
    (root / "qrels.txt").write_text("q1 0 d1 1\n")
    (root / "golden.csv").write_text("id,question,gold,state\nq1,what?,d1;d2,answerable\n")
    return {
        "native": [f"dataset.folder={root}/native"],
        "beir": [f"dataset.folder={beir}"],
        "squad": [f"dataset.path={root}/squad.json"],
        "folder": [f"dataset.documents={root}/docs"],
        "trec": [f"dataset.qrels={root}/qrels.txt"],
        "table": [f"dataset.questions={root}/golden.csv"],
        "demo": [],
    }


READERS = ["native", "beir", "squad", "folder", "trec", "table", "demo"]


@pytest.mark.parametrize("name", READERS)
def test_every_configuration_composes_and_loads(name: str, tmp_path: Path) -> None:
    """By Hydra and without it, to the same data."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from denominator import config
    from denominator.composing import conf_dir

    overrides = files(tmp_path)[name]
    data, _ = doctor.gather(doctor.load_named(name, overrides))
    assert data.questions
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = compose("config", [f"dataset={name}", *overrides])
    raw = OmegaConf.to_container(composed.dataset, resolve=False)
    values = OmegaConf.to_container(composed.dataset, resolve=True)
    assert isinstance(raw, dict)
    assert isinstance(values, dict)
    part = config.build(values, "dataset", raw)  # type: ignore[arg-type]  # keys are texts
    assert part.load() == data


def test_every_reader_has_a_configuration() -> None:
    from denominator.composing import conf_dir

    there = {p.stem for p in (conf_dir() / "dataset").glob("*.yaml")}
    assert there - set(READERS) == {"chunking_eval", "clapnq", "mtrag_un", "starter"}
    assert set(READERS) <= there


def test_the_starter_configuration_is_the_mapping_that_ships() -> None:
    folder_of = SHARED / "data"
    part = doctor.load_named("starter", [f"dataset.folder={folder_of}/starter"])
    assert dict(part.columns) == tables.STARTER["columns"]
    assert dict(part.states) == tables.STARTER["states"]
    assert tuple(part.slices) == tables.STARTER["slices"]
    shared_path("data/starter")
    data = part.load()
    assert [sum(p.answerability == s for p in data.questions) for s in ("answerable", "unanswerable")] == [7, 1]
    assert len(data.documents) == 10


# ------------------------------------------------------------------ docs/data.md


DOCS = Path(__file__).resolve().parents[1] / "docs" / "data.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

MTRAG = {
    "task_id": "a<::>2",
    "answerability": ["ANSWERABLE"],
    "contexts": [{"document_id": "p1", "text": "Passage.", "title": "T"}, {"document_id": "p2", "text": "Another."}],
    "input": [
        {"speaker": "user", "text": "First?", "metadata": {}},
        {"speaker": "agent", "text": "Yes.", "metadata": {}},
        {"speaker": "user", "text": "And then?", "metadata": {}},
    ],
    "targets": [{"speaker": "agent", "text": "That."}],
    "Collection": "govt",
    "Question Type": ["Factoid"],
}


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules and rows in the form of the two libraries, so that the recipes run without a download."""
    context = "Paris is the capital."
    rows = [
        {"id": "1", "title": "P", "context": context, "question": "Which?",
         "answers": {"text": ["Paris", "capital"], "answer_start": [0, 13]}},
        {"id": "2", "title": "P", "context": context, "question": "Who?", "answers": {"text": [], "answer_start": []}},
    ]  # fmt: skip
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda name, split: rows))
    judged = namedtuple("judged", "query_id doc_id relevance iteration")
    loaded = SimpleNamespace(
        docs_iter=lambda: iter([SimpleNamespace(doc_id="d1", text="Text.", title="T")]),
        queries_iter=lambda: iter(
            [SimpleNamespace(query_id="1", text="What?"), SimpleNamespace(query_id="2", text="x")]
        ),
        qrels_iter=lambda: iter([judged("1", "d1", 1, "0")]),
    )
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=lambda name: loaded))


@pytest.mark.slow
def test_every_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    stand_ins(monkeypatch)
    (tmp_path / "reference.jsonl").write_text(json.dumps(MTRAG) + "\n")
    recipes = {"mtrag.py": [1, 2], "huggingface.py": [2, 1], "irdatasets.py": [1, 1]}  # questions, documents
    ran, said = 0, ""
    for language, name, body in BLOCK.findall(DOCS.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(body, name, "exec"), {})
            data, refused = doctor.gather(doctor.folder_part(str(tmp_path)))
            assert ([len(data.questions), len(data.documents)], refused) == (recipes.pop(name), ())
        elif name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(body, encoding="utf-8")
            if name.endswith("groups/questions.jsonl"):
                assert [len(p.gold) for p in doctor.folder_part("groups").load().questions] == [2, 1, 1, 0]
        else:
            for line in body.splitlines():
                if not line.startswith("$ "):
                    assert line in said, line
                    continue
                words = shlex.split(line[2:])
                assert words[0] == "denominator"
                if words[1] == "run":
                    command = [sys.executable, "-m", "denominator", *words[1:]]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
                    assert done.returncode == 0, done.stderr
                    said = done.stdout
                else:
                    assert main(words[1:]) == 0, line
                    said = capsys.readouterr().out
                ran += 1
    assert recipes == {}
    assert ran == 10
