"""`score` from files to numbers: field cases, public sets, trec_eval's printed figures, every refusal."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from denominator import cli, scoring
from denominator.errors import ConfigError, InputError, MeasurementError, StoreError
from denominator.records import outcomes_from_lines
from denominator.scoring import score
from denominator.tracking import Store, find_store, load_sweep
from tests.blank_store import blank_store
from tests.conftest import shared_path


def golden(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "golden.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def answerable(identifier: str, *gold: str) -> dict[str, Any]:
    return {"id": identifier, "state": "answerable", "gold": [{"document_id": d} for d in gold]}


def trec_run(folder: Path, **lists: str) -> Path:
    """`q1="d1 x"` as a TREC run whose scores fall by one."""
    path = folder / "run.trec"
    lines = [
        f"{q} Q0 {doc} {rank} {100 - rank} t\n" for q, docs in lists.items() for rank, doc in enumerate(docs.split(), 1)
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def lines(folder: Path, *rows: dict[str, Any], name: str = "run.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def call(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    parser = argparse.ArgumentParser()
    scoring.add_arguments(parser)
    assert scoring.run(parser.parse_args(words)) == 0
    return capsys.readouterr().out


def value(report: scoring.ScoreReport, name: str) -> tuple[float | None, int, str | None]:
    e = report.summary.metrics[name]
    return e.value, e.n, e.reason


# ------------------------------------------------------------------ the seed example


SEED = (1, 1, 0.5, 1, 0, 0.5, 1)


def seed(folder: Path) -> tuple[Path, Path]:
    """Seven answerable questions with these recalls, and one unanswerable one that still got two hits."""
    rows = [answerable(f"q{i}", f"a{i}", f"b{i}") for i in range(7)] + [{"id": "u", "state": "unanswerable"}]
    hits = {1: ["a{}", "b{}"], 0.5: ["a{}", "x"], 0: ["x", "y"]}
    run = [
        {"question_id": f"q{i}", "hits": [{"id": h.format(i)} for h in hits[recall]]} for i, recall in enumerate(SEED)
    ]
    return golden(folder, *rows), lines(folder, *run, {"question_id": "u", "hits": [{"id": "x"}, {"id": "y"}]})


def test_seed_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    made = json.loads(call(capsys, "--golden", str(gold), "--run", str(run), "-k", "1,5", "--json"))
    assert made["metrics"]["recall@5"]["value"] == pytest.approx(5 / 7, abs=1e-12)
    assert made["metrics"]["recall@5"]["n"] == 7
    assert made["metrics"]["recall@5"]["ci_method"] == "t_plus_two"
    ledger = made["ledger"]
    assert (ledger["N"], ledger["eligible"], ledger["states"]["unanswerable"]) == (8, 7, 1)
    assert made["audit"]["naive_one"] == 0.75
    assert made["audit"]["naive_zero"] == 0.625
    assert made["audit"]["inflation"] == pytest.approx(1 / 28, abs=1e-12)
    assert made["abstention"]["reason"] == "no_confidence"
    assert made["metric_version"] == "1"


def test_json_holds_no_nan_and_the_same_bytes_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    words = ("--golden", str(gold), "--run", str(run), "-k", "1,5", "--json")
    first = call(capsys, *words)
    assert first == call(capsys, *words)
    json.loads(first, parse_constant=lambda name: pytest.fail(f"{name} in the output"))
    for estimate in json.loads(first)["metrics"].values():
        assert (estimate["value"] is None) == (estimate["reason"] is not None)


def test_starter_sample_output(tmp_path: Path) -> None:
    """The starter's own run: it says 0.75 over 8; over the 7 eligible questions it is 5/7."""
    folder = shared_path("data/starter")
    sample = json.loads((folder / "sample_output.json").read_text(encoding="utf-8"))
    run = lines(
        tmp_path,
        *(
            {"question_id": r["id"], "hits": [{"id": c["source_id"]} for c in r["retrieved_chunks"]]}
            for r in sample["results"]
        ),
    )
    made = score(folder / "questions.jsonl", run, ks=(3,), corpus=folder / "corpus.jsonl")
    assert value(made, "recall@3") == (pytest.approx(5 / 7), 7, None)
    assert made.summary.audit is not None
    assert made.summary.audit.naive_one == sample["summary"]["mean_scores"]["retrieval_recall_at_k"] == 0.75


# ------------------------------------------------------------------ field cases


def test_f01_an_absent_question_counts_as_zero(tmp_path: Path) -> None:
    gold = golden(tmp_path, answerable("q1", "d1"), answerable("q2", "d2", "d3"), answerable("q3", "d4"))
    made = score(gold, trec_run(tmp_path, q1="d1 x", q2="d2 x"), ks=(2,))
    assert value(made, "recall@2") == (0.5, 3, None)
    assert (made.summary.ledger.missing, made.summary.ledger.incomplete) == (1, True)
    row = next(o for o in made.outcomes if o.id == "q3")
    assert (row.status, row.values["recall@2"]) == ("missing", 0.0)
    assert "INCOMPLETE" in scoring.render_text(made)
    run = lines(
        tmp_path,
        {"question_id": "q1", "hits": [{"id": "d1"}, {"id": "x"}]},
        {"question_id": "q2", "hits": [{"id": "d2"}, {"id": "x"}]},
        {"question_id": "q3", "hits": []},
    )
    made = score(gold, run, ks=(2,))
    assert value(made, "recall@2") == (0.5, 3, None)
    assert not made.summary.ledger.incomplete


def test_f02_a_repeated_document_counts_once(tmp_path: Path) -> None:
    gold = golden(tmp_path, answerable("a", "A"), answerable("b", "A", "B"))
    made = score(gold, trec_run(tmp_path, a="A A X", b="A A"), ks=(2, 3))
    by_id = {o.id: o.values for o in made.outcomes}
    assert (by_id["a"]["recall@3"], by_id["b"]["recall@2"]) == (1.0, 0.5)
    assert "documents that were there twice for a question, the better place counts: 2" in made.notes


def test_f05_grades_of_qrels(tmp_path: Path) -> None:
    qrels = tmp_path / "qrels"
    qrels.write_text("q1 0 d1 1\nq1 0 d2 0\nq1 0 d3 -1\nq2 0 d4 0\n")
    run = trec_run(tmp_path, q1="d2 d3 d1")
    with pytest.raises(MeasurementError) as caught:
        score(qrels, run, ks=(2, 3), assume_answerable=True)
    assert (caught.value.code, caught.value.ids) == ("unscorable_questions", ("q2",))
    made = score(qrels, run, ks=(2, 3), assume_answerable=True, lenient=True)
    assert value(made, "recall@2") == (0.0, 1, None)
    assert value(made, "recall@3") == (1.0, 1, None)
    assert made.summary.ledger.states["unlabelled"] == 1
    assert made.summary.ledger.label_source == "assumed"
    qrels.write_text("q3 0 d1 1\nq3 0 d2 2\nq3 0 d3 3\n")
    run = trec_run(tmp_path, q3="d1 d3")
    assert value(score(qrels, run, ks=(2,), assume_answerable=True), "recall@2") == (pytest.approx(2 / 3), 1, None)
    made = score(qrels, run, ks=(2,), assume_answerable=True, min_grade=2)
    assert value(made, "recall@2") == (0.5, 1, None)
    assert "min_grade 2: 1 judgements below it count as not relevant (0)" in made.notes


def test_f06_no_eligible_question(tmp_path: Path) -> None:
    gold = golden(tmp_path, {"id": "u1", "state": "unanswerable"}, {"id": "u2", "state": "unanswerable"})
    answers = lines(
        tmp_path,
        {"question_id": "u1", "abstained": True},
        {"question_id": "u2", "abstained": False},
        name="answers.jsonl",
    )
    run = lines(tmp_path, {"question_id": "u1", "hits": []})
    made = score(gold, run, answers, ks=(1,))
    assert value(made, "recall@1") == (None, 0, "no_eligible")
    block = made.summary.abstention
    assert (block.recall.value, block.precision.reason, block.f1.reason) == (0.5, "no_answerable", "no_answerable")
    assert (block.false_refusal_rate.value, block.false_refusal_rate.reason) == (None, "no_answerable")
    scoring.render_text(made)


def test_f07_labels_decide_and_not_emptiness(tmp_path: Path) -> None:
    gold = golden(
        tmp_path,
        answerable("q1", "d1"),
        {"id": "q2", "state": "answerable", "gold": []},
        {"id": "q3", "state": "unanswerable", "gold": []},
        {"id": "q4", "state": "unanswerable", "gold": [{"document_id": "d9"}]},
    )
    run = trec_run(tmp_path, q1="d1")
    with pytest.raises(MeasurementError) as caught:
        score(gold, run, ks=(1,))
    assert (caught.value.code, caught.value.ids) == ("unscorable_questions", ("q2", "q4"))
    assert "--lenient" in str(caught.value)
    made = score(gold, run, ks=(1,), lenient=True)
    assert value(made, "recall@1") == (1.0, 1, None)
    states = {s: n for s, n in made.summary.ledger.states.items() if n}
    assert states == {"answerable": 1, "answerable_no_gold": 1, "unanswerable": 1, "conflict": 1}


def test_f08_a_system_that_never_abstains(tmp_path: Path) -> None:
    gold = golden(tmp_path, answerable("a", "d"), *({"id": u, "state": "unanswerable"} for u in ("u", "v")))
    answers = lines(tmp_path, *({"question_id": q, "abstained": False} for q in "auv"), name="answers.jsonl")
    block = score(gold, None, answers).summary.abstention
    assert (block.precision.reason, block.recall.value, block.f1.value) == ("no_abstentions", 0.0, 0.0)


def test_undecided_answers_are_shown_as_bounds(tmp_path: Path) -> None:
    gold = golden(tmp_path, answerable("a", "d"), *({"id": u, "state": "unanswerable"} for u in ("u", "v")))
    answers = lines(tmp_path, *({"question_id": q, "abstained": q == "u"} for q in "au"), name="answers.jsonl")
    said = scoring.render_text(score(gold, None, answers))
    assert "with the undecided either way: recall 0.5000 to 1.0000, false refusal rate 0.0000 to 0.0000" in said


def test_f09_a_fixed_threshold(tmp_path: Path) -> None:
    gold = golden(
        tmp_path,
        answerable("q1", "d"),
        answerable("q3", "d"),
        {"id": "q2", "state": "unanswerable"},
        {"id": "q4", "state": "unanswerable"},
    )

    def block(threshold: float | None, scores: list[float | None]) -> Any:
        rows = [
            {"question_id": f"q{i}", "hits": [{"id": "d"} if s is None else {"id": "d", "score": s}]}
            for i, s in enumerate(scores, 1)
        ]
        return score(gold, lines(tmp_path, *rows), ks=(1,), threshold=threshold).summary.abstention

    tops: list[float | None] = [0.9, 0.2, 0.6, 0.4]
    assert (block(0.5, tops).precision.value, block(0.5, tops).recall.value) == (1.0, 1.0)
    assert (block(0.3, tops).precision.value, block(0.3, tops).recall.value) == (1.0, 0.5)
    assert (block(0.7, tops).precision.value, block(0.7, tops).recall.value) == (pytest.approx(2 / 3), 1.0)
    assert block(None, tops).reason == "too_few_per_class"
    assert block(0.5, [None] * 4).reason == "no_confidence"


def test_f12_ids_are_not_numbers(tmp_path: Path) -> None:
    gold = golden(tmp_path, answerable("q", "001"))
    assert value(score(gold, trec_run(tmp_path, q="1"), ks=(1,)), "recall@1") == (0.0, 1, None)
    assert value(score(gold, trec_run(tmp_path, q="001"), ks=(1,)), "recall@1") == (1.0, 1, None)


def test_f18_gold_outside_the_corpus(tmp_path: Path) -> None:
    gold = golden(
        tmp_path, answerable("q1", "d1", "d9") | {"question": "x"}, answerable("q2", "d1") | {"question": "y"}
    )
    corpus = lines(tmp_path, {"id": "d1", "text": "one"}, name="corpus.jsonl")
    run = trec_run(tmp_path, q1="d1", q2="d1")
    with pytest.raises(MeasurementError, match="q1") as caught:
        score(gold, run, ks=(1,), corpus=corpus)
    assert (caught.value.code, caught.value.ids) == ("unscorable_questions", ("q1",))
    assert "d9" in str(caught.value)
    made = score(gold, run, ks=(1,), corpus=corpus, lenient=True)
    assert value(made, "recall@1") == (1.0, 1, None)
    assert made.summary.ledger.states["needs_review"] == 1
    assert value(score(gold, run, ks=(1,)), "recall@1") == (0.75, 2, None)


# ------------------------------------------------------------------ public sets


# trec_eval's out.test and out.test.a; metric names are ours.
TREC_EVAL = {
    "map@500": 0.1785,
    "r_precision": 0.2174,
    "mrr@100": 0.4064,
    "precision@5": 0.2667,
    "precision@10": 0.3000,
    "recall@5": 0.0173,
    "recall@10": 0.0317,
    "recall@100": 0.4980,
    "ndcg@5": 0.2768,
    "ndcg@10": 0.3016,
    "hit@10": 0.6667,
}


@pytest.mark.parametrize("qrels", ["qrels.test", "qrels.test.with-comments"])
def test_trec_eval_figures(qrels: str) -> None:
    folder = shared_path("data/trec")
    made = score(
        folder / qrels,
        folder / "results.test",
        ks=(5, 10, 100),
        assume_answerable=True,
        depth=500,
        plan=scoring.Plan(ties="trec"),
    )
    for name, printed in TREC_EVAL.items():
        assert made.summary.metrics[name].value == pytest.approx(printed, abs=5.1e-5), name
        assert made.summary.metrics[name].n == 3


def test_trec_eval_with_a_topic_missing_from_the_run() -> None:
    """results.trunc has no topic 302; `-c` averages over three topics, as the law does."""
    folder = shared_path("data/trec")
    printed = dict(
        re.findall(r"^(map|recall_100|P_5)\s+all\s+(\S+)$", (folder / "out.test.aqc").read_text(), flags=re.MULTILINE)
    )
    made = score(
        folder / "qrels.test",
        folder / "results.trunc",
        ks=(5, 100),
        assume_answerable=True,
        depth=500,
        plan=scoring.Plan(ties="trec"),
    )
    assert (made.summary.ledger.missing, made.summary.ledger.incomplete) == (1, True)
    for ours, theirs in (("map@500", "map"), ("recall@100", "recall_100"), ("precision@5", "P_5")):
        assert made.summary.metrics[ours].value == pytest.approx(float(printed[theirs]), abs=5.1e-5), ours


def test_nomiracl_both_languages(tmp_path: Path) -> None:
    """gpt-4-azure: counts of SOURCE.md by exact match; its outputs are English in both languages."""
    folder = shared_path("data/nomiracl")
    with gzip.open(folder / "outputs.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["model"] == "gpt-4-azure"]
    answers = lines(
        tmp_path, *({"question_id": r["question_id"], "answer": r["output"]} for r in rows), name="answers.jsonl"
    )
    made = score(folder / "questions.jsonl.gz", None, answers)
    block = made.summary.abstention
    assert block.matrix == ((500 - 12 - 26, 12 + 26), (467 - 142 - 138, 142 + 138))
    assert value(made, "recall@5") == (None, 0, "abstention_only")
    assert made.summary.audit is None
    scoring.render_text(made)


def test_mtrag_strict_refuses_and_lenient_counts(tmp_path: Path) -> None:
    folder = shared_path("data/mtrag-un")
    run = lines(tmp_path, {"question_id": "18ef26058d321c5d96ca3ebf8117789e<::>7", "hits": [{"id": "162428-0-349"}]})
    with pytest.raises(MeasurementError, match="78 unlabelled") as caught:
        score(folder / "questions.jsonl.gz", run, ks=(5,))
    assert len(caught.value.ids) == 78
    made = score(folder / "questions.jsonl.gz", run, ks=(5,), lenient=True)
    assert value(made, "recall@5") == (pytest.approx(0.25 / 285), 285, None)
    ledger = made.summary.ledger
    assert (ledger.N, ledger.eligible, ledger.missing) == (507, 285, 284)


def test_coverage_of_spans_with_a_corpus(tmp_path: Path) -> None:
    gold = golden(
        tmp_path,
        {
            "id": "q",
            "question": "x",
            "state": "answerable",
            "gold": [{"document_id": "d", "start": 0, "end": 4, "text": "abcd"}],
        },
    )
    corpus = lines(tmp_path, {"id": "d", "text": "abcd efgh"}, name="corpus.jsonl")
    run = lines(tmp_path, {"question_id": "q", "hits": [{"id": "d#0", "doc": "d", "start": 0, "end": 3, "score": 1.0}]})
    made = score(gold, run, ks=(1,), corpus=corpus)
    assert value(made, "coverage@1") == (0.75, 1, None)
    without = score(gold, run, ks=(1,)).summary.metrics["coverage@1"]
    assert (without.value, without.reason) == (None, "no_spans")


# ------------------------------------------------------------------ the commands


def test_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    rows = list(csv.DictReader(io.StringIO(call(capsys, "--golden", str(gold), "--run", str(run), "-k", "5", "--csv"))))
    recall = next(r for r in rows if r["metric"] == "recall@5" and r["section"] == "metrics")
    assert (float(recall["value"]), recall["n"], recall["reason"]) == (pytest.approx(5 / 7), "7", "")
    precision = next(r for r in rows if r["section"] == "abstention" and r["metric"] == "precision")
    assert (precision["value"], precision["reason"]) == ("", "no_confidence")


def test_text_shows_n_and_interval_beside_every_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    out = call(capsys, "--golden", str(gold), "--run", str(run), "-k", "5")
    assert "golden" in out
    assert "8 questions = 7 answerable, 1 unanswerable" in out
    assert "eligible 7 = 7 ok + 0 failed + 0 missing (strict, labels: labels)" in out
    assert re.search(r"recall@5 +0\.7143 +7 +\[0\.3338, 0\.9995\] +t_plus_two", out)
    assert re.search(r"empty_is_one +0\.7500 +8 +\+0\.0357", out)
    assert re.search(r"undefined \(no_spans, n = \d+\): coverage@b2000", out)
    assert "the run does not say how many hits were asked for (longest list: 2)" in out


def test_slices_clusters_and_micro(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        answerable(f"q{i}", *gold) | {"slice": {"kind": kind}, "talk": f"t{i % 2}"}
        for i, (gold, kind) in enumerate([("a", "x"), ("ab", "x"), ("a", "y"), ("abc", "y")])
    ]
    gold = golden(tmp_path, *rows, {"id": "u", "state": "unanswerable", "slice": {"kind": "z"}, "talk": "t0"})
    run = trec_run(tmp_path, q0="a", q1="a", q2="z", q3="a", u="a")
    words = ("--golden", str(gold), "--run", str(run), "-k", "1", "--json")
    made = json.loads(call(capsys, *words, "--slice", "kind", "--cluster", "talk"))
    slices = made["slices"]["kind"]
    assert slices["x"]["recall@1"]["value"] == pytest.approx(0.75)
    assert (slices["z"]["recall@1"]["value"], slices["z"]["recall@1"]["reason"]) == (None, "empty_slice")
    assert made["metrics"]["recall@1"]["value"] == pytest.approx((1 + 0.5 + 0 + 1 / 3) / 4)
    micro = json.loads(call(capsys, *words, "--micro"))["metrics"]["recall@1"]
    assert (micro["value"], micro["n"], micro["unit"]) == (pytest.approx(3 / 7), 7, "groups")


def test_per_question_file_recomputes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    made = json.loads(
        call(capsys, "--golden", str(gold), "--run", str(run), "-k", "5", "--json", "--per-question", str(target))
    )
    outcomes = outcomes_from_lines(target.read_text(encoding="utf-8").splitlines())
    assert [o.id for o in outcomes] == [f"q{i}" for i in range(7)] + ["u"]
    mine = [o.values["recall@5"] or 0.0 for o in outcomes if o.state == "answerable"]
    assert sum(mine) / len(mine) == pytest.approx(made["metrics"]["recall@5"]["value"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["golden.jsonl", "out.jsonl", "run.jsonl"]


@pytest.mark.parametrize("target", ["nowhere/out.jsonl", "."])
def test_an_unwritable_target_is_named(tmp_path: Path, target: str) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        scoring.write_atomically(tmp_path / target, "x")
    assert list(tmp_path.iterdir()) == []


def test_failed_questions_and_answers(tmp_path: Path) -> None:
    gold = golden(tmp_path, answerable("a", "d"), answerable("b", "d"), {"id": "u", "state": "unanswerable"})
    run = lines(
        tmp_path,
        {"question_id": "a", "hits": [{"id": "d", "score": 1.0}]},
        {"question_id": "b", "error": "time-out"},
        {"question_id": "u", "error": "time-out"},
    )
    answers = lines(
        tmp_path,
        {"question_id": "a", "answer": "It is 42."},
        {"question_id": "u", "answerable": False},
        name="answers.jsonl",
    )
    made = score(gold, run, answers, ks=(1,))
    assert value(made, "recall@1") == (0.5, 2, None)
    assert (made.summary.ledger.failed, made.summary.ledger.incomplete) == (1, True)
    block = made.summary.abstention
    assert (block.tp, block.tn, block.undecided_answerable) == (1, 1, 1)
    assert dict(block.deciders) == {"structured": 1, "phrase": 1, "error": 1}


def test_depth(tmp_path: Path) -> None:
    gold, run = seed(tmp_path)
    with pytest.raises(MeasurementError) as caught:
        score(gold, run, ks=(1, 3), depth=2)
    assert (caught.value.code, caught.value.ids) == ("depth_below_k", ("depth=2", "k=3"))
    made = score(gold, run, ks=(1, 2), depth=2)
    assert made.depth == 2
    assert not any("does not say" in note for note in made.notes)
    assert "map@2" in made.summary.metrics
    with pytest.raises(ConfigError, match="--depth is 0"):
        score(gold, run, depth=0)


def test_refusals(tmp_path: Path) -> None:
    gold, run = seed(tmp_path)
    with pytest.raises(ConfigError, match="nothing to score"):
        score(gold, None)
    with pytest.raises(MeasurementError, match="unknown_question_ids") as caught:
        score(gold, trec_run(tmp_path, nobody="d"))
    assert caught.value.ids == ("nobody",)
    with pytest.raises(MeasurementError, match="unknown_question_ids"):
        score(gold, run, lines(tmp_path, {"question_id": "nobody", "answer": "x"}, name="answers.jsonl"))
    mixed = lines(tmp_path, {"question_id": "q1", "hits": [{"id": "a", "score": 1}, {"id": "b"}]}, name="mixed.jsonl")
    with pytest.raises(MeasurementError, match="mixed_scores"):
        score(gold, mixed)
    with pytest.raises(MeasurementError, match="bad_k"):
        score(gold, run, ks=(0,))
    with pytest.raises(ConfigError, match="--min-grade is for TREC qrels"):
        score(gold, run, min_grade=2)
    qrels = tmp_path / "qrels"
    qrels.write_text("q 0 d 1\n")
    with pytest.raises(ConfigError, match="--corpus needs a golden set as JSON lines"):
        score(qrels, run, corpus=gold)


@pytest.mark.parametrize("text", ["0", "1,x", "", "-1", "1.5"])
def test_a_k_that_is_none_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    scoring.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--golden", "g", f"-k={text}"])
    assert "is not a list of whole numbers of at least 1" in capsys.readouterr().err


# ------------------------------------------------------------------ what the tie rule decided, what was judged


def test_tied_hits_give_a_range_worked_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """q1: gold d2 tied with d1 for place 1, so recall@1 is 0 or 1. q2: no tie at the cut. Means 1/2 to 1."""
    gold = golden(tmp_path, answerable("q1", "d2"), answerable("q2", "d1"), {"id": "u", "state": "unanswerable"})
    run = lines(
        tmp_path,
        {"question_id": "q1", "hits": [{"id": "d2", "score": 1.0}, {"id": "d1", "score": 1.0}]},
        {"question_id": "q2", "hits": [{"id": "d1", "score": 2.0}, {"id": "d2", "score": 1.0}]},
        {"question_id": "u", "hits": [{"id": "d2", "score": 1.0}, {"id": "d1", "score": 1.0}]},
    )
    words = ("--golden", str(gold), "--run", str(run), "-k", "1,2")
    made = json.loads(call(capsys, *words, "--json"))
    assert made["metrics"]["recall@1"]["value"] == 0.5  # d1 before d2: the rule took the gold of q1 out
    assert made["tie_range"] == {
        "recall@1": {"low": 0.5, "high": 1.0, "questions": 1, "n": 2},
        "hit@1": {"low": 0.5, "high": 1.0, "questions": 1, "n": 2},
        "mrr@1": {"low": 0.5, "high": 1.0, "questions": 1, "n": 2},
        "mrr@2": {"low": 0.75, "high": 1.0, "questions": 1, "n": 2},
    }
    out = call(capsys, *words)
    assert re.search(r"tied hits, in other orders +worst +best +differ on", out)
    assert re.search(r"recall@1 +0\.5000 +1\.0000 +1 of 2 questions", out)


def test_micro_tie_range_weighs_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """q1 has three groups and gets 0 or 1 of them, q2 has one and gets it: 1/4 to 2/4 over groups."""
    gold = golden(tmp_path, answerable("q1", "a", "b", "c"), answerable("q2", "d"))
    run = lines(
        tmp_path,
        {"question_id": "q1", "hits": [{"id": "a", "score": 1.0}, {"id": "Z", "score": 1.0}]},
        {"question_id": "q2", "hits": [{"id": "d", "score": 1.0}]},
    )
    words = ("--golden", str(gold), "--run", str(run), "-k", "1", "--micro", "--json")
    found = json.loads(call(capsys, *words))["tie_range"]["recall@1"]
    assert (found["low"], found["high"]) == (0.25, 0.5)


def test_no_ties_no_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    words = ("--golden", str(gold), "--run", str(run), "-k", "1")
    assert json.loads(call(capsys, *words, "--json"))["tie_range"] == {}
    assert "tied hits" not in call(capsys, *words)


def test_judged_is_a_mean_over_questions_that_show_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """q1: d1 judged, x not: 1/2. q2: d0 judged 0: 1/1. q3 has no grades, q4 retrieved nothing: not in its n."""
    gold = golden(
        tmp_path,
        {"id": "q1", "state": "answerable", "grades": {"d1": 2, "d2": 1}},
        {"id": "q2", "state": "answerable", "grades": {"d1": 1, "d0": 0}},
        answerable("q3", "d1"),
        {"id": "q4", "state": "answerable", "grades": {"d1": 1}},
    )
    run = trec_run(tmp_path, q1="d1 x", q2="d0", q3="d1")
    words = ("--golden", str(gold), "--run", str(run), "-k", "2")
    made = json.loads(call(capsys, *words, "--json"))
    judged = made["metrics"]["judged@2"]
    assert (judged["value"], judged["n"], judged["reason"]) == (0.75, 2, None)
    assert made["metrics"]["recall@2"]["n"] == 4  # it makes nothing undefined and changes no other n
    assert made["metrics"]["recall@2"]["value"] == (0.5 + 0 + 1 + 0) / 4
    assert re.search(r"judged@2 +0\.7500 +2 ", call(capsys, *words))
    rows = list(csv.DictReader(io.StringIO(call(capsys, *words, "--csv"))))
    assert next(r["n"] for r in rows if r["metric"] == "judged@2") == "2"


def test_judged_without_a_hit_has_a_reason_and_without_grades_is_absent(tmp_path: Path) -> None:
    gold = golden(tmp_path, {"id": "q1", "state": "answerable", "grades": {"d1": 2}})
    run = lines(tmp_path, {"question_id": "q1", "hits": []})
    assert value(score(gold, run, ks=(2,)), "judged@2") == (None, 0, "n_zero")  # a question is eligible
    gold, run = seed(tmp_path)
    assert "judged@2" not in score(gold, run, ks=(2,)).summary.metrics


# ------------------------------------------------------------------ bad input, as a person meets it


MANY = [f"q{i:02}" for i in range(12)]
TEN = ", ".join(repr(q) for q in MANY[:10])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["score", *words]) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("denominator: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("k", ["0", "-1", "5,0", "x", "1.5"])
def test_bad_k(k: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    assert "is not a list of whole numbers of at least 1" in refused(
        capsys, "--golden", str(gold), "--run", str(run), f"-k={k}"
    )


@pytest.mark.parametrize("token", ["nan", "inf", "-inf", "high"])
def test_scores_that_are_no_numbers(token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = golden(tmp_path, *(answerable(q, "d") for q in MANY))
    run = tmp_path / "run.trec"
    run.write_text("".join(f"{q} Q0 d 1 {token} t\n" for q in MANY))
    said = refused(capsys, "--golden", str(gold), "--run", str(run))
    assert f"run.trec:1: field 'score': is not a finite number (bad_score), in lines of 12 questions: {TEN} … " in said
    assert "(12 in all)" in said
    assert f"found '{token}'" in said


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_scores_that_are_no_numbers_in_json(number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = golden(tmp_path, answerable("q", "d"))
    run = tmp_path / "run.jsonl"
    run.write_text('{"question_id": "q", "hits": [{"id": "d", "score": ' + number + "}]}\n")
    assert "run.jsonl:1: " in refused(capsys, "--golden", str(gold), "--run", str(run))


def test_duplicate_question_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = [answerable(q, "d") for q in MANY]
    twice = golden(tmp_path, *once, *once)
    run = lines(tmp_path, *({"question_id": q, "hits": []} for q in MANY))
    said = refused(capsys, "--golden", str(twice), "--run", str(run))
    assert (
        f"golden.jsonl:13: field 'id': duplicate question id, first in line 1, and so are others (12 ids: {TEN}" in said
    )
    assert "(12 in all)" in said
    gold = golden(tmp_path, *once)
    run = lines(tmp_path, *({"question_id": q, "hits": []} for q in MANY * 2))
    said = refused(capsys, "--golden", str(gold), "--run", str(run))
    assert (
        f"run.jsonl:13: field 'question_id': duplicate question id, first in line 1, and so are others (12 ids: {TEN}"
        in said
    )
    answers = lines(tmp_path, *({"question_id": q, "abstained": True} for q in MANY * 2), name="answers.jsonl")
    said = refused(capsys, "--golden", str(gold), "--answers", str(answers))
    assert "answers.jsonl:13: " in said
    assert f"12 ids: {TEN}" in said


def test_unknown_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = golden(tmp_path, answerable("known", "d"))
    run = lines(tmp_path, *({"question_id": q, "hits": []} for q in ["known", *MANY]))
    said = refused(capsys, "--golden", str(gold), "--run", str(run))
    assert (
        f"[unknown_question_ids] the run has results for questions that are not in the dataset: {TEN} … (12 in all)"
        in said
    )
    answers = lines(tmp_path, *({"question_id": q, "abstained": True} for q in MANY), name="answers.jsonl")
    said = refused(capsys, "--golden", str(gold), "--answers", str(answers))
    assert "[unknown_question_ids]" in said
    assert f"{TEN} … (12 in all)" in said


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n"])
def test_an_empty_run(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = golden(tmp_path, answerable("q", "d"))
    run = tmp_path / "run.file"
    run.write_text(content)
    said = refused(capsys, "--golden", str(gold), "--run", str(run))
    assert "run.file: is empty" in said or "run.file: holds no hits" in said


def test_labels_that_contradict_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = golden(tmp_path, *({"id": q, "state": "unanswerable", "gold": [{"document_id": "d"}]} for q in MANY))
    run = lines(tmp_path, *({"question_id": q, "hits": []} for q in MANY))
    said = refused(capsys, "--golden", str(gold), "--run", str(run))
    assert "[unscorable_questions] 12 of 12 questions cannot be scored (12 conflict)" in said
    assert "--lenient" in said
    assert f"{TEN} … (12 in all)" in said
    gold = golden(
        tmp_path,
        *({"id": q, "state": "answerable", "gold": [{"document_id": "d"}], "grades": {"d": 0}} for q in MANY),
    )
    said = refused(capsys, "--golden", str(gold), "--run", str(run))
    assert "gold_grade_mismatch" in said
    assert f"{TEN} … (12 in all)" in said


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, run = seed(tmp_path)
    assert "nowhere.jsonl" in refused(capsys, "--golden", str(tmp_path / "nowhere.jsonl"), "--run", str(run))
    assert "nowhere.jsonl" in refused(capsys, "--golden", str(gold), "--run", str(tmp_path / "nowhere.jsonl"))
    assert "nothing to score" in refused(capsys, "--golden", str(gold))
    assert "--run-name belongs to --mlflow" in refused(
        capsys, "--golden", str(gold), "--run", str(run), "--run-name", "x"
    )


# ------------------------------------------------------------------ into the record


def stored(out: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with sqlite3.connect(out / "mlflow.db") as connection:
        return connection.execute(query, values).fetchall()


def test_a_scored_run_is_recorded_like_a_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out = tmp_path / "out"
    blank_store(out)
    gold, run = seed(tmp_path)
    words = ["--golden", str(gold), "--run", str(run), "-k", "1,5", "--depth", "5", "--mlflow", "--out", str(out)]
    words += ["--experiment", "old systems"]
    made = json.loads(call(capsys, *words, "--run-name", "search v1", "--json"))
    assert made["mlflow"]["new"] is True
    run_id = made["mlflow"]["run_id"]
    metrics = dict(stored(out, "select key, value from latest_metrics where run_uuid = ?", run_id))
    assert metrics["recall_at_5"] == pytest.approx(5 / 7, abs=1e-12)
    assert (metrics["recall_at_5__n"], metrics["eligible_n"], metrics["audit.naive_one"]) == (7, 7, 0.75)
    assert metrics["recall_at_5__ci_low"] == made["metrics"]["recall@5"]["ci_low"]
    tags = dict(stored(out, "select key, value from tags where run_uuid = ?", run_id))
    assert (tags["kind"], tags["recorded"], tags["incomplete"]) == ("score", "true", "false")
    assert (tags["headline_metric"], tags["mlflow.runName"]) == ("recall@5", "search v1")
    assert tags["undefined.coverage_at_b2000"] == "no_spans"
    params = dict(stored(out, "select key, value from params where run_uuid = ?", run_id))
    assert (params["golden"], params["run"], params["depth"]) == ("golden.jsonl", "run.jsonl", "5")
    names = {p.name for p in (out / "artifacts" / run_id / "artifacts").iterdir()}
    assert names >= {"per_question.jsonl", "per_question_table.json", "ledger.json", "audit.json", "fingerprint.json"}

    # the same again adds nothing, under whatever name
    again = call(capsys, *words, "--run-name", "another name")
    assert f"recorded before, nothing added: 'search v1', run {run_id}, experiment old systems" in again
    assert stored(out, "select count(*) from runs") == [(1,)]

    # another run beside it: the commands that read recorded runs take both
    better = lines(
        tmp_path,
        *({"question_id": f"q{i}", "hits": [{"id": f"a{i}"}, {"id": f"b{i}"}]} for i in range(7)),
        {"question_id": "u", "hits": []},
        name="better.jsonl",
    )
    words[words.index(str(run))] = str(better)
    assert "recorded 'better.jsonl', run " in call(capsys, *words)
    at = ["--out", str(out), "--experiment", "old systems"]
    assert cli.main(["compare", "better.jsonl", "search v1", "--json", *at]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["difference"]["value"] == pytest.approx(2 / 7)
    assert cli.main(["gate", "recall@5 >= 0.9", "--run", "better.jsonl", *at]) == 0
    assert cli.main(["gate", "recall@5 >= 0.9", "--run", "search v1", *at]) == 1
    capsys.readouterr()
    store = find_store(out, None, "old systems")
    (cell,) = load_sweep(tags["sweep_id"], store=store)
    assert (cell.name, cell.run_id, len(cell.outcomes)) == ("search v1", run_id, 8)


def test_csv_stays_csv_when_it_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    blank_store(out)
    gold, run = seed(tmp_path)
    uri = f"sqlite:///{out}/mlflow.db"
    assert (
        cli.main(["score", "--golden", str(gold), "--run", str(run), "--csv", "--mlflow", uri, "--out", str(out)]) == 0
    )
    said = capsys.readouterr()
    assert len({len(row) for row in csv.reader(io.StringIO(said.out))}) == 1
    assert "recorded" not in said.out
    assert "recorded 'run.jsonl'" in said.err


def test_what_could_not_be_sent_is_sent_by_the_next_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    blank_store(out)
    gold, run = seed(tmp_path)
    words = ["score", "--golden", str(gold), "--run", str(run), "--mlflow", f"sqlite:///{out}/mlflow.db"]
    words += ["--out", str(out)]
    with monkeypatch.context() as broken:

        def away(*_: object) -> str:
            raise StoreError("writing a run failed: connection refused")

        broken.setattr(Store, "_send", away)
        assert cli.main(words) == 2
    assert "connection refused" in capsys.readouterr().err
    assert stored(out, "select count(*) from runs") == [(0,)]
    assert cli.main(words) == 0
    assert stored(out, "select value from tags where key in ('kind', 'recorded') order by key") == [
        ("score",),
        ("true",),
    ]
    assert not (out / "pending").exists()
