"""The native reader: round trips on the public sets, every broken line with its error, nothing skipped."""

# ruff: noqa: E501 (a broken file and its whole message stand on one line)
from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from denominator.errors import ConfigError, InputError
from denominator.readers.native import Demo, Native, load, read_documents, read_questions
from denominator.types import Evidence
from tests.conftest import shared_path

GOOD = '{"id": "q1", "question": "Who?", "state": "answerable", "gold": [{"document_id": "d1"}]}'


def write(folder: Path, content: str | bytes, name: str = "questions.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        tuple(read_questions(path, **options))
    return str(caught.value).replace(str(path), "FILE")


# The table of ../shared/data/README.md, typed by hand: documents, questions, answerable, partial, unanswerable,
# unlabelled, gold entries, spans.
SETS = {
    "mtrag-un": (1152, 507, 285, 47, 97, 78, 851, 0),
    "chunking-eval": (5, 472, 472, 0, 0, 0, 790, 790),
    "scifact": (5183, 300, 0, 0, 0, 300, 339, 0),
    "clapnq": (597, 600, 300, 0, 300, 0, 894, 893),
    "nomiracl": (0, 967, 500, 0, 467, 0, 0, 0),
    "jaquad": (7280, 3939, 3939, 0, 0, 0, 3939, 3939),
    "starter": (10, 8, 7, 0, 1, 0, 11, 0),
}


@pytest.mark.parametrize("name", SETS)
def test_public_set(name: str) -> None:
    folder = shared_path(f"data/{name}")
    made = Native(folder=str(folder)).load()
    states = Counter(q.answerability for q in made.questions)
    alternatives = [a for q in made.questions for g in q.gold for a in g]
    assert (
        len(made.documents),
        len(made.questions),
        states["answerable"],
        states["partial"],
        states["unanswerable"],
        states["unlabelled"],
        len(alternatives),
        sum(a.start is not None for a in alternatives),
    ) == SETS[name]
    assert made.name == name
    assert made.notes == ()
    assert (made.corpus_hash is None) == (name == "nomiracl")
    assert made.label_source == "labels"


def test_public_set_by_an_independent_reading() -> None:
    """Ids, texts and offsets as a few lines of plain Python read them."""
    folder = shared_path("data/jaquad")
    made = Native(folder=str(folder)).load()
    with gzip.open(folder / "questions.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    texts = {d.id: d.text for d in made.documents}
    assert [q.id for q in made.questions] == [r["id"] for r in rows]
    for question, row in zip(made.questions, rows, strict=True):
        ((span,),) = question.gold
        assert span.start is not None
        assert texts[span.doc][span.start : span.end] == row["gold"][0]["text"]
        assert question.answers == (row["answer"],)
        assert question.tags == row["slice"]


def test_assume_answerable_says_so_and_marks_only_questions_with_gold(tmp_path: Path) -> None:
    questions = write(
        tmp_path,
        '{"id": "a", "gold": [{"document_id": "d"}]}\n{"id": "b", "gold": []}\n'
        '{"id": "c", "state": "unanswerable", "gold": [{"document_id": "d"}]}\n',
    )
    plain, assumed = load(None, questions), load(None, questions, assume_answerable=True)
    assert [q.answerability for q in plain.questions] == ["unlabelled", "unlabelled", "unanswerable"]
    assert [q.answerability for q in assumed.questions] == ["answerable", "unlabelled", "unanswerable"]
    assert (plain.label_source, assumed.label_source) == ("labels", "assumed")
    assert assumed.notes == ("assume_answerable: 1 unlabelled questions with gold are taken as answerable",)
    assert plain.dataset_hash != assumed.dataset_hash


def test_scifact_assumed_scores_all_300() -> None:
    folder = shared_path("data/scifact")
    made = Native(folder=str(folder), assume_answerable=True).load()
    assert Counter(q.answerability for q in made.questions) == {"answerable": 300}


def test_all_fields(tmp_path: Path) -> None:
    corpus = write(tmp_path, '{"id": "d", "text": "naïve café 😀 数据 end", "title": ""}\n', "corpus.jsonl")
    questions = write(
        tmp_path,
        json.dumps(
            {
                "id": "q",
                "question": "what data?",
                "state": "answerable",
                "gold": [
                    {"document_id": "d", "start": 13, "end": 15, "text": "数据"},
                    [{"document_id": "d", "whole": True}, "d"],
                ],
                "grades": {"d": 2},
                "needs_review": True,
                "slice": {"kind": ["a", "b"], "turn": 3},
                "answer": ["one", "two"],
                "history": [{"speaker": "user", "text": "hi"}, {"speaker": "agent", "text": "hello"}],
                "lang": "zh",
                "talk": 7,
            },
            ensure_ascii=False,
        ),
    )
    (q,) = load(corpus, questions, cluster="talk").questions
    assert q.gold == ((Evidence("d", 13, 15),), (Evidence("d", whole=True), Evidence("d")))
    assert (q.grades, q.needs_review, q.cluster, q.lang) == ({"d": 2}, True, "7", "zh")
    assert q.tags == {"kind": ["a", "b"], "turn": 3}
    assert q.answers == ("one", "two")
    assert q.history == (("user", "hi"), ("agent", "hello"))
    assert q.question == "what data?"
    assert load(corpus, questions, join_history=True).questions[0].question == "hi\nhello\nwhat data?"
    assert load(corpus, questions, join_history="user").questions[0].question == "hi\nwhat data?"
    with pytest.raises(ConfigError, match="the speakers are: agent, user"):
        load(corpus, questions, join_history="User")
    assert load(corpus, questions, cluster="slice.turn").questions[0].cluster == "3"


BROKEN = [
    ("{", "FILE:1: malformed JSON: Expecting property name enclosed in double quotes at column 2; found '{'; expected one JSON object a line"),
    (GOOD + "\n[1]", "FILE:2: is not an object; found a list [1]; expected a JSON object; to mend it: one object a line (JSON lines), not a list over the file"),
    (GOOD + "\n\n7", "FILE:3: is not an object; found a number 7; expected a JSON object"),
    ('{"question": "x"}', "FILE:1: field 'id': is missing; expected a non-empty text"),
    ('{"id": "", "question": "x"}', "FILE:1: field 'id': is empty; expected a non-empty text"),
    ('{"id": 7, "question": "x"}', "FILE:1: field 'id': is not a text; found a number 7; expected a non-empty text; to mend it: write it in quotes: \"7\""),
    ('{"id": null, "question": "x"}', "FILE:1: field 'id': is not a text; found null; expected a non-empty text"),
    (GOOD + "\n" + GOOD.replace("q1", "q2") + "\n" + GOOD, "FILE:3: field 'id': duplicate question id, first in line 1; found 'q1'; expected each id once"),
    ('{"id": "q", "state": "UNANSWERABLE"}', "FILE:1: field 'state': unknown state (bad_label); found 'UNANSWERABLE'; expected one of answerable, unanswerable, partial, unlabelled; to mend it: did you mean 'unanswerable'?"),
    ('{"id": "q", "state": "unanswerable "}', "FILE:1: field 'state': unknown state (bad_label); found 'unanswerable '; expected one of answerable, unanswerable, partial, unlabelled; to mend it: did you mean 'unanswerable'?"),
    ('{"id": "q", "state": "conversational"}', "FILE:1: field 'state': unknown state (bad_label); found 'conversational'; expected one of answerable, unanswerable, partial, unlabelled"),
    ('{"id": "q", "state": true}', "FILE:1: field 'state': unknown state (bad_label); found True; expected one of answerable, unanswerable, partial, unlabelled"),
    ('{"id": "q", "question": ""}', "FILE:1: field 'question': is empty; expected a non-empty text"),
    ('{"id": "q", "answerability": "answerable"}', "FILE:1: field 'answerability': unknown field; expected 'state'; to mend it: rename 'answerability' to 'state'"),
    ('{"id": "q", "golds": []}', "FILE:1: field 'golds': unknown field; expected 'gold'; to mend it: rename 'golds' to 'gold'"),
    ('{"id": "q", "gold": "d1"}', "FILE:1: field 'gold': is not a list; found a text \"d1\"; expected a list"),
    ('{"id": "q", "gold": [[]]}', "FILE:1: field 'gold[0]': is an empty group (empty_group); expected at least one alternative; to mend it: an unanswerable question has gold [] and state unanswerable"),
    ('{"id": "q", "gold": [7]}', "FILE:1: field 'gold[0]': is no evidence; found a number 7; expected an object with document_id, or a list of alternatives"),
    ('{"id": "q", "gold": [["d", {"document_id": 7}]]}', "FILE:1: field 'gold[0][1].document_id': is not a text; found a number 7; expected a non-empty text; to mend it: write it in quotes: \"7\""),
    ('{"id": "q", "gold": [{"doc": "d"}]}', "FILE:1: field 'gold[0].doc': unknown field; expected 'document_id'; to mend it: rename 'doc' to 'document_id'"),
    ('{"id": "q", "gold": [{"document_id": "d", "start": 1}]}', "FILE:1: field 'gold[0].end': is missing; expected start and end together, or neither of them"),
    ('{"id": "q", "gold": [{"document_id": "d", "start": 3, "end": 3}]}', "FILE:1: field 'gold[0].start': is an empty span (empty_span); found [3, 3); expected start < end"),
    ('{"id": "q", "gold": [{"document_id": "d", "start": -1, "end": 3}]}', "FILE:1: field 'gold[0].start': is out of range (span_out_of_range); found [-1, 3); expected 0 ≤ start < end"),
    ('{"id": "q", "gold": [{"document_id": "d", "start": true, "end": 3}]}', "FILE:1: field 'gold[0].start': is not a whole number; found true/false true; expected a whole number"),
    ('{"id": "q", "gold": [{"document_id": "d", "start": 0, "end": 3, "whole": true}]}', "FILE:1: field 'gold[0].whole': contradicts start and end; expected either a span or the whole document"),
    ('{"id": "q", "grades": {"d": 1.5}}', "FILE:1: field 'grades.d': is not a whole number; found a number 1.5; expected a whole number"),
    ('{"id": "q", "needs_review": "false"}', "FILE:1: field 'needs_review': is not true or false; found a text \"false\"; expected true or false, without quotes"),
    ('{"id": "q", "slice": {"a": {}}}', "FILE:1: field 'slice.a': cannot be grouped by; found an object {}; expected a text, a number, true/false or a list of texts"),
    ('{"id": "q", "slice": {"a": NaN}}', "FILE:1: malformed JSON: NaN is not a JSON value; expected strict JSON"),
    ('{"id": "q", "id": "p"}', "FILE:1: malformed JSON: the field 'id' is there twice; expected strict JSON"),
    ('{"id": "\\ud800"}', "FILE:1: half a surrogate pair; expected whole characters; to mend it: write the character itself"),
    (b'{"id": "q\xff"}', "FILE:1: byte 10 of the line is not UTF-8; found 0xff; expected UTF-8 text; to mend it: save the file as UTF-8"),
    (GOOD.encode("utf-16"), "FILE: is UTF-16; expected UTF-8 text; to mend it: save the file as UTF-8"),
    (GOOD.encode("utf-16-le"), "FILE:1: holds NUL bytes; expected UTF-8 text; to mend it: save the file as UTF-8"),
    ("", "FILE: is empty; expected at least one line"),
    ("\n\n", "FILE: is empty; expected at least one line"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_broken_questions(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert refusal(write(tmp_path, content)) == message


def test_deep_nesting_and_huge_numbers_are_refused(tmp_path: Path) -> None:
    assert "nested too deeply" in refusal(write(tmp_path, '{"id": ' + "[" * 200_000))
    assert "malformed JSON" in refusal(write(tmp_path, '{"id": "q", "slice": {"a": ' + "1" * 5000 + "}}"))


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "questions.jsonl.gz".removesuffix(".gz"))
    assert refusal(tmp_path / "question.jsonl") == (
        f"FILE: no such file; expected an existing file; to mend it: did you mean {tmp_path / 'questions.jsonl'}?"
    )
    assert f"of it only {tmp_path} exists" in refusal(tmp_path / "nowhere" / "deep" / "questions.jsonl")
    assert refusal(tmp_path) == "FILE: is a folder; expected a file"


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    packed = gzip.compress(GOOD.encode())
    assert len(tuple(read_questions(write(tmp_path, packed, "a.jsonl.gz")))) == 1
    assert len(tuple(read_questions(write(tmp_path, packed, "a.jsonl")))) == 1
    assert "is not gzip" in refusal(write(tmp_path, GOOD, "b.jsonl.gz"))
    assert "broken gzip data" in refusal(write(tmp_path, gzip.compress(GOOD.encode() * 99)[:60], "c.jsonl.gz"))


def test_f15_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    three = "\n".join(GOOD.replace("q1", f"q{i}") for i in range(3))
    path = write(tmp_path, b"\xef\xbb\xbf" + three.replace("\n", "\r\n").encode() + b"\r\n")
    assert [q.id for q in read_questions(path)] == ["q0", "q1", "q2"]
    plain = write(tmp_path, three, "plain.jsonl")
    assert load(None, path).dataset_hash == load(None, plain).dataset_hash


def test_f11_only_the_state_field_decides(tmp_path: Path) -> None:
    path = write(tmp_path, '{"id": "q_abs", "state": "answerable"}\n{"id": "r", "state": null}\n')
    assert [q.answerability for q in read_questions(path)] == ["answerable", "unlabelled"]


def test_f12_ids_stay_text(tmp_path: Path) -> None:
    corpus = write(tmp_path, '{"id": "001", "text": "a"}\n{"id": "1", "text": "b"}\n', "corpus.jsonl")
    questions = write(
        tmp_path, '{"id": "007", "question": "x", "gold": ["001"]}\n{"id": "7", "question": "y", "gold": ["1"]}\n'
    )
    made = load(corpus, questions)
    assert [d.id for d in made.documents] == ["001", "1"]
    assert [(q.id, q.gold[0][0].doc) for q in made.questions] == [("007", "001"), ("7", "1")]


def test_f17_duplicate_documents(tmp_path: Path) -> None:
    same = write(tmp_path, '{"id": "d1", "text": "a"}\n{"id": "d2", "text": "b"}\n{"id": "d1", "text": "a"}\n')
    with pytest.raises(InputError) as caught:
        tuple(read_documents(same))
    assert str(caught.value).replace(str(same), "FILE") == (
        "FILE:3: field 'id': duplicate document id, first in line 1; found 'd1'; expected each id once"
    )


def test_f18_gold_outside_the_corpus_is_kept_and_counted(tmp_path: Path) -> None:
    corpus = write(tmp_path, '{"id": "d1", "text": "a"}\n', "corpus.jsonl")
    questions = write(tmp_path, '{"id": "q1", "question": "x", "state": "answerable", "gold": ["d1", "d9"]}\n')
    made = load(corpus, questions)
    assert [g[0].doc for g in made.questions[0].gold] == ["d1", "d9"]
    assert made.notes == ("gold documents that are not in the corpus: 1 ('d9')",)


def test_spans_are_checked_against_the_text(tmp_path: Path) -> None:
    corpus = write(tmp_path, '{"id": "d", "text": "0123456789"}\n', "corpus.jsonl")

    def check(item: str) -> str:
        questions = write(tmp_path, '{"id": "q", "question": "x", "gold": [' + item + "]}")
        with pytest.raises(InputError) as caught:
            load(corpus, questions)
        return str(caught.value).replace(str(questions), "FILE")

    assert check('{"document_id": "d", "start": 2, "end": 11}') == (
        "FILE:1: field 'gold[0].end': lies outside the document (span_out_of_range); found [2, 11) in 'd'; "
        "expected at most 10, the document's length in code points"
    )
    assert check('{"document_id": "d", "start": 2, "end": 4, "text": "34"}') == (
        "FILE:1: field 'gold[0].text': is not what stands at these offsets; found '34'; "
        "expected '23' = 'd'[2:4]; to mend it: it stands at [3, 5)"
    )


def test_a_quote_without_offsets_is_found_where_it_stands_once(tmp_path: Path) -> None:
    corpus = write(tmp_path, '{"id": "d", "text": "Open at\\nnine. Closed at ten, at most."}\n', "corpus.jsonl")

    def gold(item: str, documents: Path | None = corpus) -> object:
        questions = write(tmp_path, '{"id": "q", "question": "x", "gold": [' + item + "]}")
        try:
            return load(documents, questions).questions[0].gold[0][0]
        except InputError as error:
            return str(error).replace(str(questions), "FILE")

    assert gold('{"document_id": "d", "text": "Open at nine."}') == Evidence("d", 0, 13)
    assert gold('{"document_id": "d", "text": " ten,  at "}') == Evidence("d", 24, 31)
    assert gold('{"document_id": "d", "text": ""}') == Evidence("d")
    assert gold('{"document_id": "d", "text": "nine", "whole": true}') == Evidence("d", whole=True)
    assert gold('{"document_id": "other", "text": "nine"}') == Evidence("other")
    assert gold('{"document_id": "d", "text": "nine"}', None) == Evidence("d")
    assert gold('{"document_id": "d", "text": "At"}') == (
        "FILE:1: field 'gold[0].text': does not stand in 'd'; found 'At'; "
        "expected its words as they are written, case included (white space may differ)"
    )
    assert gold('{"document_id": "d", "text": "at"}') == (
        "FILE:1: field 'gold[0].text': stands 3 times in 'd'; found 'at'; "
        "expected words that stand there once, or start and end; "
        "to mend it: quote more of it, or take one of [5, 7), [21, 23), [29, 31)"
    )


def test_a_question_without_text_needs_a_data_set_without_corpus(tmp_path: Path) -> None:
    corpus = write(tmp_path, '{"id": "d", "text": "x"}\n', "corpus.jsonl")
    questions = write(tmp_path, '{"id": "q", "question": null}\n')
    assert load(None, questions).questions[0].question is None
    with pytest.raises(InputError, match="field 'question': is null; expected a non-empty text"):
        load(corpus, questions)


def test_cluster_must_be_on_every_question(tmp_path: Path) -> None:
    path = write(tmp_path, '{"id": "q", "talk": "t"}\n{"id": "r"}\n')
    assert refusal(path, cluster="talk") == (
        "FILE:2: field 'talk': is missing; expected a text or a whole number on every question, "
        "because `cluster` names this field"
    )
    assert [q.cluster for q in read_questions(write(tmp_path, '{"id": "q", "cluster": "t"}'))] == [None]


def test_settings_are_checked_before_any_file_is_read() -> None:
    with pytest.raises(ConfigError, match="questions=FILE"):
        Native()
    with pytest.raises(ConfigError, match="did you mean 'abstention'"):
        Native(questions="x", evaluate="abstention_only")  # type: ignore[arg-type]


def test_relative_paths_start_at_the_folder_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert Native(questions="questions.jsonl").load().name == tmp_path.name
    assert len(Native(folder=".").load().questions) == 1


def test_demo_comes_with_the_package() -> None:
    made = Demo().load()
    assert made.name == "demo"
    assert len(made.documents) >= 40
    assert len(made.questions) >= 150
    assert made.source == "denominator/demo/questions.jsonl"
