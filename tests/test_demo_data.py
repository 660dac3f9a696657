"""The bundled demo data keep what their README promises.

Two checks are about meaning rather than form. Every number and every proper name of a reference answer must be
found in the gold text, in each alternative of a group; and every required span must contribute a word to the answer.
Normalisation for both: lower case, number words from two to twenty become digits, thousands separators and a
final full stop are dropped. Sentences of a partial answer that say what is *not* stated are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib import resources
from itertools import pairwise
from typing import Any

import pytest

DEMO = resources.files("denominator") / "demo"


def _rows(name: str) -> list[dict[str, Any]]:
    text = (DEMO / name).read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert "\r" not in text
    return [json.loads(line) for line in text.split("\n")[:-1]]


CORPUS = _rows("corpus.jsonl")
QUESTIONS = _rows("questions.jsonl")
TEXTS: dict[str, str] = {row["id"]: row["text"] for row in CORPUS}

# Kinds by state, with the number of questions the README names.
PROMISED = {
    ("answerable", "single"): 101,
    ("answerable", "several"): 34,
    ("answerable", "alternatives"): 19,
    ("unanswerable", "near_miss"): 45,
    ("partial", "partial"): 12,
    ("unlabelled", "unlabelled"): 6,
}
CATEGORIES = {"product", "support", "safety", "hr", "finance", "operations"}
DIFFICULTIES = {"easy", "medium", "hard"}
NUMBERS = (
    *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"),
    *("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
NUMBER_WORDS = {word: str(number) for number, word in enumerate(NUMBERS, start=2)}
ORDINALS = {"first", "second", "third", "fourth", "fifth"}
# Capitalised only because they begin a sentence of an answer.
OPENERS = {"the", "it", "their", "in"}
SMALL_WORDS = {"a", "an", "and", "at", "by", "each", "for", "from", "in", "is", "it", "now", "of", "the", "to", "with"}


def groups(question: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Gold as a list of groups, each a list of alternatives."""
    return [item if isinstance(item, list) else [item] for item in question["gold"]]


def words(text: str) -> list[str]:
    """Words and numbers after the normalisation that the module text describes."""
    found = re.findall(r"\d+(?:[.,:]\d+)*|[^\W\d_]+", text)
    return [NUMBER_WORDS.get(word.lower(), word.lower().replace(",", "")) for word in found]


def stated(answer: str) -> str:
    """The answer without sentences that name what the corpus lacks."""
    sentences = re.split(r"(?<=\.)\s+", answer)
    return " ".join(s for s in sentences if not s.endswith("not stated."))


def must_be_in_gold(answer: str) -> set[str]:
    """Numbers (as digits or words), ordinals and capitalised words of an answer."""
    tokens = set()
    for word in re.findall(r"\d+(?:[.,:]\d+)*|[^\W\d_]+", answer):
        plain = words(word)[0]
        if plain[0].isdigit() or plain in ORDINALS or (word[0].isupper() and plain not in OPENERS):
            tokens.add(plain)
    return tokens


def by_state(*states: str) -> list[dict[str, Any]]:
    return [question for question in QUESTIONS if question["state"] in states]


def test_documents_have_the_promised_number_and_lengths() -> None:
    counts = {row["id"]: len(row["text"].split()) for row in CORPUS}
    assert len(CORPUS) == 63
    assert sum(count > 1000 for count in counts.values()) == 13
    assert min(counts.values()) >= 150
    assert max(counts.values()) <= 1800
    assert 24_000 <= sum(counts.values()) <= 28_000


def test_documents_have_the_fields_of_the_format() -> None:
    for row in CORPUS:
        assert list(row) == ["id", "title", "text"]
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row["id"])
        assert row["text"].startswith(f"# {row['title']}\n\n")


def test_questions_have_the_fields_of_the_format() -> None:
    for question in QUESTIONS:
        answered = ["answer"] if question["state"] in ("answerable", "partial") else []
        assert list(question) == ["id", "question", "state", "gold", *answered, "slice"]
        for group in groups(question):
            assert group
            for item in group:
                assert list(item) == ["document_id", "start", "end", "text"]


def test_ids_documents_and_questions_are_unique() -> None:
    for values in (
        [row["id"] for row in CORPUS],
        [row["title"] for row in CORPUS],
        [row["text"] for row in CORPUS],
        [question["id"] for question in QUESTIONS],
        [" ".join(words(question["question"])) for question in QUESTIONS],
    ):
        assert len(values) == len(set(values))


def test_states_and_kinds_have_the_promised_counts() -> None:
    assert Counter((q["state"], q["slice"]["kind"]) for q in QUESTIONS) == PROMISED


def test_slices_are_present_and_filled() -> None:
    for question in QUESTIONS:
        assert set(question["slice"]) == {"category", "difficulty", "kind"}
    for name, values, least in (("category", CATEGORIES, 10), ("difficulty", DIFFICULTIES, 15)):
        seen = Counter(question["slice"][name] for question in by_state("answerable"))
        assert set(seen) == values
        assert min(seen.values()) >= least


def test_every_span_is_the_text_at_its_offsets() -> None:
    for question in QUESTIONS:
        for group in groups(question):
            for item in group:
                text = TEXTS[item["document_id"]]
                assert 0 <= item["start"] < item["end"] <= len(text), question["id"]
                assert text[item["start"] : item["end"]] == item["text"], question["id"]
                assert item["text"] == item["text"].strip(), question["id"]
                assert len(item["text"]) <= 300, question["id"]
                assert text.count(item["text"]) == 1, question["id"]


def test_gold_fits_state_and_kind() -> None:
    for question in QUESTIONS:
        shape = [len(group) for group in groups(question)]
        kind = question["slice"]["kind"]
        if kind in ("single", "partial"):
            assert shape == [1], question["id"]
        elif kind == "several":
            assert len(shape) >= 2, question["id"]
            assert set(shape) == {1}, question["id"]
        elif kind == "alternatives":
            assert len(shape) == 1, question["id"]
            assert shape[0] >= 2, question["id"]
            documents = [item["document_id"] for item in groups(question)[0]]
            assert len(set(documents)) == len(documents), question["id"]
        elif kind == "near_miss":
            assert question["gold"] == [], question["id"]


def test_no_two_spans_of_a_question_overlap() -> None:
    for question in QUESTIONS:
        items = sorted((i["document_id"], i["start"], i["end"]) for group in groups(question) for i in group)
        for (doc, _, end), (next_doc, start, _) in pairwise(items):
            assert doc != next_doc or end <= start, question["id"]


@pytest.mark.parametrize("question", by_state("answerable", "partial"), ids=lambda question: question["id"])
def test_gold_says_what_the_answer_needs(question: dict[str, Any]) -> None:
    answer = stated(question["answer"])
    assert answer
    for token in must_be_in_gold(answer):
        assert any(all(token in words(item["text"]) for item in group) for group in groups(question)), token
    content = set(words(answer)) - SMALL_WORDS
    for group in groups(question):
        for item in group:
            assert content & set(words(item["text"])), item["text"]


def test_no_question_contains_its_evidence() -> None:
    for question in QUESTIONS:
        for group in groups(question):
            for item in group:
                assert item["text"].lower() not in question["question"].lower(), question["id"]


def test_the_check_of_answers_can_fail() -> None:
    assert must_be_in_gold("It is 1,450 euro; three years, in Vila Serena") == {"1450", "3", "vila", "serena"}
    assert "1450" not in words("| T-2 | 1,540 |")
    assert stated("Nine buoys. Their value is not stated.") == "Nine buoys."
