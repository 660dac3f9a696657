"""NoMIRACL's recorded outputs: both published readings of gpt-4-azure, every model, and our ladder beside them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sklearn.metrics import cohen_kappa_score

from denominator.abstention import Row, agreement, confusion, decide
from denominator.types import Answer
from tests.conftest import script_of, shared_path

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script_of(PROJECT / "benchmarks" / "nomiracl.py")


@pytest.fixture(scope="module")
def outputs() -> list[dict[str, Any]]:
    with gzip.open(shared_path("data/nomiracl/outputs.jsonl.gz"), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def of(outputs: list[dict[str, Any]], model: str, language: str) -> list[dict[str, Any]]:
    return [r for r in outputs if r["model"] == model and r["language"] == language]


def test_every_output_is_there(outputs: list[dict[str, Any]]) -> None:
    assert len(outputs) == 10_637
    assert len({r["model"] for r in outputs}) == 11


def test_gpt_4_by_the_exact_reading(bench: ModuleType, outputs: list[dict[str, Any]]) -> None:
    rows = of(outputs, "gpt-4-azure", "en")
    r = bench.matrix(rows, bench.exact, others_answered=True)
    assert r.matrix == ((238, 12), (108, 142))
    assert r.precision.value == pytest.approx(142 / 154, abs=1e-12)
    assert r.recall.value == pytest.approx(142 / 250, abs=1e-12)
    undecided = bench.matrix(rows, bench.exact, others_answered=False)  # the three other texts are not guessed
    assert undecided.matrix == ((237, 12), (106, 142))
    assert undecided.recall_bounds == (142 / 250, 144 / 250)
    german = bench.matrix(of(outputs, "gpt-4-azure", "de"), bench.exact, others_answered=False)
    assert german.matrix == ((221, 26), (78, 138))
    assert (german.undecided_answerable, german.undecided_unanswerable) == (3, 1)


def test_gpt_4_by_the_sources_own_parser(bench: ModuleType, outputs: list[dict[str, Any]]) -> None:
    rows = of(outputs, "gpt-4-azure", "en")
    r = bench.matrix(rows, bench.source_parser, others_answered=True)
    assert (r.tp, r.fp) == (143, 12)
    assert r.precision.value == pytest.approx(143 / 155, abs=1e-12)
    assert r.recall.value == pytest.approx(143 / 250, abs=1e-12)
    said = Counter(bench.source_parser(x["output"]) for x in rows if x["state"] == "unanswerable")
    assert said == {False: 106, True: 143, None: 1}


def test_all_models_by_an_independent_script(bench: ModuleType, outputs: list[dict[str, Any]]) -> None:
    """Counts of the exact reading, from the raw lines in a few lines of their own."""
    counts: Counter[tuple[str, str, str, bool]] = Counter()
    for r in outputs:
        refused = r["output"].strip() in ("I don't know", "I don't know.")
        counts[r["model"], r["language"], r["state"], refused] += 1
    seen = 0
    for model, language, rows in bench.groups(outputs):
        a, u = ([counts[model, language, s, x] for x in (False, True)] for s in ("answerable", "unanswerable"))
        found = bench.matrix(rows, bench.exact, others_answered=True)
        assert [list(row) for row in found.matrix] == [a, u]
        assert sum(a) == 250
        seen += len(rows)
    assert seen == len(outputs)
    assert counts["llama-2-70b-chat", "en", "answerable", True] == 0


def test_the_ladder_reads_exact_phrases_as_they_are(bench: ModuleType, outputs: list[dict[str, Any]]) -> None:
    plain = [(r["output"], bench.exact(r["output"])) for r in outputs if bench.exact(r["output"]) is not None]
    assert len(plain) == 5485
    assert all(decide(Answer(text=text), "en").abstained is label for text, label in plain)


def test_the_ladder_beside_the_parser_for_all_models(bench: ModuleType, outputs: list[dict[str, Any]]) -> None:
    for model, language, rows in bench.groups(outputs):
        said = [decide(Answer(text=r["output"]), "en").abstained for r in rows]
        report = confusion(Row(r["state"] == "unanswerable", s) for r, s in zip(rows, said, strict=True))
        assert report.n + report.undecided == len(rows)
        parser = [bool(bench.source_parser(r["output"])) for r in rows]
        found = agreement(said, parser)
        kept = [(p, s) for p, s in zip(parser, said, strict=True) if s is not None]
        theirs = cohen_kappa_score([p for p, _ in kept], [s for _, s in kept])
        assert found.kappa.value == pytest.approx(theirs, abs=1e-12)
        if model.startswith(("gpt", "aya", "flan", "Mixtral")):
            assert found.kappa.value > 0.9, (model, language)


def test_patterns_of_the_wrong_language_find_nothing(outputs: list[dict[str, Any]]) -> None:
    """The answers to German questions are English: `lang` is the language of the answer, not of the question."""
    rows = of(outputs, "gpt-4-azure", "de")
    by_lang = {
        lang: sum(decide(Answer(text=r["output"]), lang).abstained is True for r in rows) for lang in ("en", "de")
    }
    assert by_lang == {"en": 164, "de": 0}


def test_hand_labels_point_at_outputs(outputs: list[dict[str, Any]]) -> None:
    lines = (PROJECT / "tests" / "data" / "nomiracl_labels.jsonl").read_text(encoding="utf-8").splitlines()
    labels = [json.loads(line) for line in lines]
    assert Counter(x["sample"] for x in labels) == {"not_exact": 120, "refused_not_exact": 60}
    assert {x["label"] for x in labels} == {"refusal", "answer", "unclear"}
    known = {(r["model"], r["question_id"]) for r in outputs}
    assert all((x["model"], x["question_id"]) in known for x in labels)


def test_the_tables_in_the_docs_are_what_the_command_prints(bench: ModuleType, outputs: list[dict[str, Any]]) -> None:
    assert outputs
    text = (PROJECT / "docs" / "abstention_measured.md").read_text(encoding="utf-8")
    for line in bench.tables():
        assert line in text, line
