"""The commands report, compare and gate, from a store and from files: what they print, each refusal with its code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from denominator.cli import main
from denominator.deciding import failures_of, make_report, prepare_report, read, verify
from denominator.errors import JudgementError
from denominator.evaluation import Summary, summarize
from denominator.pipeline import DatasetFacts
from denominator.tracking import Store, default_uri
from denominator.tracking.files import OUTCOMES_HASH
from denominator.types import Outcome, Plan, RecordedRun, StageTime
from tests import report_runs
from tests.blank_store import blank_store


@dataclass(frozen=True)
class FakeResult:
    """What the pipeline gives, made of a recorded run."""

    cell_key: str
    name: str
    params: dict[str, Any]
    plan: Plan
    dataset: DatasetFacts
    outcomes: Sequence[Outcome]
    summary: Summary
    facts: dict[str, float]
    fingerprints: dict[str, dict[str, Any]]
    timings: tuple[StageTime, ...] = ()
    notes: tuple[str, ...] = ()


def result_of(run: RecordedRun, key: str, **changes: Any) -> Any:
    """With `fingerprint` (fields to change) and others."""
    other = changes.pop("fingerprint", {})
    prints = {m: dict(p) | other for m, p in run.fingerprints.items()}
    made = FakeResult(
        key,
        run.name,
        dict(run.params) | {"dataset": "tiny"},
        run.plan,
        DatasetFacts("tiny", "d" * 64, "c" * 64, 12, 87, "tiny"),
        run.outcomes,
        summarize(run.outcomes, run.plan),
        dict(run.facts),
        prints,
    )
    return replace(made, **changes)


def cell(name: str, skill: float, seed: int, **options: Any) -> RecordedRun:
    embedder, chunker, reranker = name.split(" · ")
    params = {"embedder": embedder, "chunker": chunker, "reranker": reranker}
    return report_runs.recorded(name, params, skill=skill, seed=seed, **options)


NAMES = {"bm25 · fixed · none": 0.45, "hybrid · fixed · none": 0.95, "hybrid · fixed · mix": 0.95}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One sweep of three cells and one that failed; `bm25` is the declared baseline."""
    out = tmp_path_factory.mktemp("record") / "out"
    made = Store.open(default_uri(out), "tests", out)
    sweep_run = made.start_sweep("sweep1", "sweep of 4 cells")
    for i, (name, skill) in enumerate(NAMES.items()):
        made.log_cell(result_of(cell(name, skill, 10 + i), f"{i}" * 64), "sweep1")
    broken = made.start_cell("static · fixed · none", "9" * 64, "sweep1", ["embedder=static"])
    made.log_failure(broken, "static · fixed · none", "no <b>weights</b>", overrides=["embedder=static"])
    cells = [
        {"name": "late · fixed · none", "cell_key": "8" * 64, "status": "not_started", "overrides": ["embedder=x"]}
    ]
    made.log_sweep(sweep_run, note="done", cells=cells, status="FAILED", tags={"command": "denominator sweep …"})
    return made


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A second store, for tests that record runs of their own in an experiment of their own."""
    out = tmp_path_factory.mktemp("others") / "out"
    return Store.open(default_uri(out), "first", out)


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> Store:
    """A store of its own to spoil. Artifact addresses are absolute, so they are moved too."""
    out = tmp_path / "out"
    shutil.copytree(store.out, out)
    with sqlite3.connect(out / "mlflow.db") as connection:
        connection.execute("pragma wal_checkpoint")
        for table, column in (("runs", "artifact_uri"), ("experiments", "artifact_location")):
            connection.execute(
                f"update {table} set {column} = replace({column}, ?, ?)", (store.out.as_uri(), out.as_uri())
            )
    return Store(default_uri(out), "tests", out)


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(w) for w in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def artifacts(store: Store, name: str) -> Path:
    run = next(r for r in store.cells("sweep1") if r.name == name)
    return store.out / "artifacts" / run.run_id / "artifacts"


# ------------------------------------------------------------------ report


def test_report_writes_attaches_and_says_the_verdict(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "report", "--out", store.out, "--output", tmp_path / "r")
    assert (code, err) == (0, "")
    assert "hybrid" in out.splitlines()[0]
    assert "no result: static · fixed · none: no <b>weights</b>" in out
    assert "no result: late · fixed · none: not started" in out
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "no &lt;b&gt;weights&lt;/b&gt;" in page
    assert "<b>weights" not in page
    assert "denominator sweep …" in page
    assert "Passages are named by their place, without text" in page
    sweep = store.sweep("sweep1")
    assert sweep is not None
    attached = store.out / "artifacts" / sweep.run_id / "artifacts" / "report"
    assert (attached / "report.html").read_bytes() == (tmp_path / "r" / "report.html").read_bytes()
    assert {p.name for p in attached.iterdir()} == {
        "report.html",
        "report.md",
        "results.csv",
        "results.json",
        "figures",
    }
    assert (attached / "figures" / "forest.svg").is_file()


def test_report_takes_chosen_runs_and_leaves_the_sweeps_own_report_alone(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = (
        "--runs",
        "none, bm25, fixed",
        "hybrid · fixed · none",
        "--metric",
        "recall@5",
        "--output",
        tmp_path,
        "--json",
    )
    code, out, _ = call(capsys, "report", "--out", store.out, *words)
    said = json.loads(out)
    assert code == 0
    assert said["metric"] == "recall@5"
    assert said["failures"] == []
    data = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert sorted(r["name"] for r in data["runs"]) == ["bm25 · fixed · none", "hybrid · fixed · none"]
    code, out, _ = call(
        capsys, "report", "--out", store.out, "--runs", "bm25 · fixed · none,hybrid · fixed · mix", "--output", tmp_path
    )
    assert code == 0
    data = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert sorted(r["name"] for r in data["runs"]) == ["bm25 · fixed · none", "hybrid · fixed · mix"]


def test_a_declared_baseline_without_result_is_a_note(store: Store) -> None:
    made = prepare_report(store, "sweep1", names=["hybrid · fixed · none", "hybrid · fixed · mix"])
    assert made.ranking is not None
    assert made.ranking.baseline is None
    assert any("bm25 · fixed · none has no result" in line for line in made.health)


def test_make_report_takes_what_the_caller_knows(store: Store, tmp_path: Path) -> None:
    texts = {d.id: d.text for d in report_runs.corpus()}
    written = make_report(store, "sweep1", folder=tmp_path, texts=texts, failures=[], meta={"command": "mine & yours"})
    page = written.html.read_text(encoding="utf-8")
    assert "mine &amp; yours" in page
    assert "without text" not in page
    assert "static · fixed · none" not in page
    assert re.search(r"“[A-Z][a-z]+ [a-z]+ ", page)  # evidence is quoted


def test_texts_come_from_the_recorded_configuration(others: Store, tmp_path: Path) -> None:
    documents = report_runs.corpus()
    asked = report_runs.questions(documents)
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps({"id": d.id, "title": d.title, "text": d.text}) + "\n" for d in documents]
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "questions.jsonl").write_text(
        "".join(
            json.dumps({"id": q.id, "question": q.question, "state": q.answerability}) + "\n" for q in asked[-3:-2]
        ),
        encoding="utf-8",
    )
    from denominator.fingerprint import corpus_hash

    config = (
        "cluster: null\ndataset:\n  _target_: denominator.readers.native.Native\n"
        f"  folder: {folder}\n  questions: ${{.folder}}/questions.jsonl\n  corpus: ${{.folder}}/corpus.jsonl\n"
        "  cluster: ${cluster}\n"
    )
    out = others.out
    made = Store.open(others.uri, "texts", out)
    run = cell("bm25 · fixed · none", 0.6, 1)
    made.log_cell(result_of(run, "a" * 64, fingerprint={"corpus_hash": corpus_hash(documents)}), "s", config=config)
    report = prepare_report(made, "s")
    assert not any("without text" in line for line in report.health)
    assert any(p.text for q in report.failed_by_all for a in q.answers for p in a.hits)
    # another corpus by now: places only, and the page says why
    (folder / "corpus.jsonl").write_text(lines[0], encoding="utf-8")
    report = prepare_report(made, "s")
    assert any("the documents have changed" in line for line in report.health)
    assert not any(p.text for q in report.failed_by_all for a in q.answers for p in a.hits)
    # a record cannot make us call anything but this package's readers
    mark = tmp_path / "called"
    evil = f"dataset:\n  _target_: pathlib.Path\n  key: {{_target_: os.mkdir, path: {mark}}}\n"
    made.log_cell(result_of(run, "b" * 64), "t", config=evil)
    report = prepare_report(made, "t")
    assert any("own class is not called" in line for line in report.health)
    assert not mark.exists()


# ------------------------------------------------------------------ what the report refuses


def test_nothing_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "report", "--out", tmp_path / "none")
    assert code == 2
    assert "no record yet" in err
    assert "denominator sweep" in err


def test_unknown_sweep_run_metric_baseline_field(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected, said in (
        (["nosuch"], 2, "'nosuch'"),
        (["--runs", "bm25"], 64, "'bm25' names no recorded run; there are: 'bm25 · fixed · none'"),
        (["--metric", "recall@7"], 64, "'recall@7'"),
        (["--metric", "r e c"], 64, "not a metric name"),
        (["--baseline", "nosuch"], 64, "'nosuch'"),
        (["--allow", "colour"], 64, "'colour'"),
        (["--experiment", "nosuch"], 2, "'nosuch'"),
    ):
        code, out, err = call(capsys, "report", "--out", store.out, *words)
        assert (code, out) == (expected, ""), words
        assert said in err
        assert "Traceback" not in err


def edit_line(path: Path, metric: str, value: float) -> float:
    """Turns one answerable question's value into another; returns what it was."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        row = json.loads(line)
        if row["state"] == "answerable" and row["values"][metric] != value:
            before = float(row["values"][metric])
            row["values"][metric] = value
            lines[i] = json.dumps(row)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            return before
    raise AssertionError("nothing to edit")


def forget_hash(store: Store, name: str) -> None:
    """As an older version recorded it: without the hash of the outcomes."""
    run = next(r for r in store.cells("sweep1") if r.name == name)
    store.client.delete_tag(run.run_id, OUTCOMES_HASH)


def test_a_tampered_artifact_is_refused(copy: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Even a change that moves no figure: the question's text."""
    file = artifacts(copy, "hybrid · fixed · none") / "per_question.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("What of", "What about", 1), encoding="utf-8")
    code, _, err = call(capsys, "report", "--out", copy.out)
    assert code == 2
    assert "hybrid · fixed · none" in err
    assert "per_question.jsonl was changed since it was recorded" in err


def test_figures_that_differ_are_refused_with_both_values(copy: Store, capsys: pytest.CaptureFixture[str]) -> None:
    name = "hybrid · fixed · none"
    before = next(r for r in copy.cells("sweep1") if r.name == name).metrics["recall_at_5"]
    file = artifacts(copy, name) / "per_question.jsonl"
    was = edit_line(file, "recall@5", 0.123)
    forget_hash(copy, name)
    code, _, err = call(capsys, "report", "--out", copy.out)
    assert code == 2
    assert name in err
    found = re.search(r"recall_at_5: logged ([\d.]+), recomputed ([\d.]+)", err)
    assert found is not None
    assert float(found[1]) == before
    assert float(found[2]) == pytest.approx(before + (0.123 - was) / 60, abs=1e-12)


def test_a_tampered_metric_is_refused_with_both_values(copy: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = next(r for r in copy.cells("sweep1") if r.name == "bm25 · fixed · none")
    before = run.metrics["recall_at_5"]
    copy.client.log_metric(run.run_id, "recall_at_5", 0.99)
    code, _, err = call(capsys, "report", "--out", copy.out)
    assert code == 2
    assert f"recall_at_5: logged 0.99, recomputed {before!r}" in err
    for command in (("gate", "recall@5 >= 0", "--run", run.name), ("compare", run.name, "hybrid · fixed · none")):
        assert call(capsys, *command, "--out", copy.out)[0] == 2


@pytest.mark.parametrize("content", [None, "", "not json\n", "[1, 2]\n", '{"id": "q"}\n'])
def test_missing_and_broken_artifacts(copy: Store, capsys: pytest.CaptureFixture[str], content: str | None) -> None:
    file = artifacts(copy, "hybrid · fixed · mix") / "per_question.jsonl"
    forget_hash(copy, "hybrid · fixed · mix")
    if content is None:
        file.unlink()
    else:
        file.write_text(content, encoding="utf-8")
    code, _, err = call(capsys, "report", "--out", copy.out)
    assert code == 2
    assert "hybrid · fixed · mix" in err
    assert "force=true" in err
    assert "Traceback" not in err


def test_verification_covers_undefined_slices_abstention_and_the_ledger(store: Store) -> None:
    run = read(store, store.cells("sweep1")[0])
    verify(run)
    some_slice = next(k for k in run.metrics if "__slice." in k and not k.endswith("__n"))
    for change in (
        {"ndcg_at_5": 0.5},
        {some_slice: 0.123456},
        {"false_refusal_rate": 0.123456},
        {"recall_at_5__n": 59.0},
        {"recall_at_5__ci_low": run.metrics["recall_at_5__ci_low"] + 2e-9},
        {"audit.naive_one": 0.0},
        {"recall_at_99__n": 1.0},
    ):
        with pytest.raises(JudgementError, match=re.escape(next(iter(change)))):
            verify(replace(run, metrics=dict(run.metrics) | change))
    verify(replace(run, metrics=dict(run.metrics) | {"recall_at_5": run.metrics["recall_at_5"] + 5e-10}))
    without = {k: v for k, v in run.metrics.items() if k != "recall_at_5"}
    with pytest.raises(JudgementError, match="recall_at_5: not logged"):
        verify(replace(run, metrics=without))
    with pytest.raises(JudgementError, match="ledger"):
        verify(replace(run, ledger=replace(run.ledger, N=1)))


def test_mixed_fingerprints_are_never_ranked_together(
    others: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = others.out
    made = Store.open(others.uri, "mixed", out)
    plan = replace(report_runs.PLAN, baseline=None)
    a, b, c = (cell(f"e{i} · fixed · none", 0.6, i, plan=plan) for i in range(3))
    for i, run in enumerate((a, b)):
        made.log_cell(result_of(run, str(i) * 64), "s")
    made.log_cell(result_of(c, "c" * 64, fingerprint={"ties": "trec"}), "s")
    code, out_text, _ = call(capsys, "report", "--out", out)
    assert code == 0
    assert "2 groups that cannot be compared" in out_text
    page = (out / "reports" / "s" / "report.html").read_text(encoding="utf-8")
    assert "They differ in ties" in page
    code, _, err = call(capsys, "compare", "--out", out, "e0 · fixed · none", "e2 · fixed · none")
    assert code == 2
    assert "ties" in err
    assert "--allow" in err
    assert call(capsys, "compare", "--out", out, "e0 · fixed · none", "e2 · fixed · none", "--allow", "ties")[0] == 0
    code, out_text, _ = call(capsys, "report", "--out", out, "--allow", "ties", "--output", tmp_path / "allowed")
    assert code == 0
    page = (tmp_path / "allowed" / "report.html").read_text(encoding="utf-8")
    assert "Compared by declared exception" in page
    code, out_text, _ = call(
        capsys,
        "gate",
        "--out",
        out,
        "recall@5 no-regression",
        "--run",
        "e0 · fixed · none",
        "--baseline-run",
        "e2 · fixed · none",
    )
    assert code == 2
    assert "ties" in out_text


def test_runs_with_other_questions_cannot_be_judged(others: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """One fingerprint, two denominators: the ranking is refused."""
    out = others.out
    made = Store.open(others.uri, "apart", out)
    documents = report_runs.corpus()
    asked = report_runs.questions(documents)
    plan = replace(report_runs.PLAN, baseline=None)
    made.log_cell(
        result_of(
            cell("a · fixed · none", 0.6, 1, plan=plan, asked=asked), "1" * 64, fingerprint={"dataset_hash": "x"}
        ),
        "s",
    )
    made.log_cell(
        result_of(
            cell("b · fixed · none", 0.6, 2, plan=plan, asked=asked[5:]), "2" * 64, fingerprint={"dataset_hash": "x"}
        ),
        "s",
    )
    code, _, err = call(capsys, "report", "--out", out)
    assert code == 2
    assert "not_comparable" in err
    assert "q000" in err


# ------------------------------------------------------------------ compare


def test_compare_two_recorded_runs(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "hybrid · fixed · none", "bm25, fixed, none", "--out", store.out, "--metric", "recall@1")
    code, out, _ = call(capsys, *words, "--html", tmp_path / "c.html")
    assert code == 0
    assert "verdict    better" in out
    code, text, _ = call(capsys, *words, "--json")
    said = json.loads(text)
    runs = {r.name: read(store, r) for r in store.cells("sweep1") if r.recorded}
    new, old = (
        {o.id: o.values["recall@1"] for o in runs[n].outcomes if o.state == "answerable"}
        for n in ("hybrid · fixed · none", "bm25 · fixed · none")
    )
    won = {q for q in new if new[q] > old[q]}
    assert {c["id"] for c in said["gained"]} == won
    assert said["difference"]["wins"] == len(won)
    assert said["difference"]["value"] == pytest.approx(sum(new.values()) / 60 - sum(old.values()) / 60, abs=1e-12)
    assert set(said["questions"]) == {q for q in new if new[q] != old[q]}
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert f"Won by the candidate: {len(won)}" in page
    assert "<script" not in page


def test_compare_names_what_it_cannot_find(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected, said in (
        (["hybrid · fixed · none", "nosuch"], 64, "'nosuch'"),
        (["hybrid · fixed · none", "hybrid · fixed · none"], 64, "same recorded run"),
        (["hybrid · fixed · none", "hybrid · fixed · mix", "--metric", "recal@5"], 64, "'recall@5'"),
        (["hybrid · fixed · none", "hybrid · fixed · mix", "--allow", "tie"], 64, "'ties'"),
        (["hybrid · fixed · none", "hybrid · fixed · mix", "--margin", "2"], 64, "--margin"),
    ):
        code, out, err = call(capsys, "compare", "--out", store.out, *words)
        assert (code, out) == (expected, ""), words
        assert said in err


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The seed example (5/7) with two unanswerable questions, a run that is worse on one question, and answers."""
    seed = [1, 1, 0.5, 1, 0, 0.5, 1]
    golden = [
        {
            "id": f"q{i}",
            "question": f"Wo ist {i}?",
            "state": "answerable",
            "gold": [{"document_id": f"a{i}"}, {"document_id": f"b{i}"}],
        }
        for i in range(7)
    ]
    golden += [{"id": f"u{i}", "state": "unanswerable"} for i in range(2)]
    jsonl(tmp_path / "golden.jsonl", golden)
    hits = {1: ["a{}", "b{}"], 0.5: ["a{}", "x"], 0: ["x", "y"]}
    for name, values in (("run", seed), ("old", [1, 1, 1, *seed[3:]])):
        rows = [{"question_id": f"q{i}", "hits": [{"id": h.format(i)} for h in hits[v]]} for i, v in enumerate(values)]
        rows += [{"question_id": f"u{i}", "hits": [{"id": "x"}]} for i in range(2)]
        jsonl(tmp_path / f"{name}.jsonl", rows)
    answers = [{"question_id": f"q{i}", "abstained": i == 0} for i in range(7)]
    answers += [{"question_id": "u0", "abstained": True}, {"question_id": "u1", "abstained": False}]
    jsonl(tmp_path / "answers.jsonl", answers)
    return tmp_path


def test_compare_two_files(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = ("--golden", files / "golden.jsonl")
    code, out, _ = call(capsys, "compare", files / "run.jsonl", files / "old.jsonl", *golden, "--metric", "recall@5")
    assert code == 0
    assert "0.7143" in out
    assert "0 won, 1 lost, 6 the same" in out
    assert "q2  1.000 → 0.500  Wo ist 2?" in out
    code, out, _ = call(capsys, "compare", files / "run.jsonl", files / "run.jsonl", *golden)
    assert code == 0
    assert "0 won, 0 lost, 7 the same" in out


# ------------------------------------------------------------------ gate


def test_gate_on_files_needs_no_record(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    base = ("gate", "--golden", "golden.jsonl", "--run", "run.jsonl")
    code, out, _ = call(capsys, *base, "recall@5 >= 0.714", "recall@5.n == 7")
    assert code == 0
    assert "pass: 2 of 2 rules passed" in out
    code, out, _ = call(capsys, *base, "recall@5 >= 0.7143")
    assert code == 1
    assert "0.71429 is not >= 0.71430" in out
    code, out, _ = call(capsys, *base, "uar >= 0")  # too few for a threshold, no answers
    assert code == 2
    assert "too_few_per_class" in out or "no_confidence" in out
    code, out, _ = call(
        capsys, *base, "uar >= 0.5", "frr <= 0.15", "frr <= 0.14", "--answers", "answers.jsonl", "--json"
    )
    assert code == 1
    data = json.loads(out)
    assert [r["verdict"] for r in data["results"]] == ["pass", "pass", "fail"]
    assert data["results"][1]["found"] == 1 / 7
    assert not (files / "denominator-out").exists()


def test_gate_measures_the_cuts_that_its_rules_name(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ("gate", "--golden", files / "golden.jsonl", "--run", files / "run.jsonl")
    assert call(capsys, *base, "recall@7 >= 0.7", "recall@2 >= 0.7")[0] == 0
    # a run that asked for two hits has no recall@7, and the rules that ask for recall@2 alone do not mind
    assert call(capsys, *base, "recall@2 >= 0.7", "--depth", 2)[0] == 0
    code, _, err = call(capsys, *base, "recall@7 >= 0.7", "--depth", 2)
    assert code == 64
    assert "depth_below_k" in err


def test_gate_against_a_baseline_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = (
        "gate",
        "--golden",
        files / "golden.jsonl",
        "--run",
        files / "run.jsonl",
        "--baseline-run",
        files / "old.jsonl",
    )
    code, out, _ = call(capsys, *base, "n >= 0.95 * baseline", "--no-regression")
    assert code == 0
    assert "inconclusive" in out
    code, out, _ = call(capsys, *base, "--non-inferior")
    assert code == 1
    assert "not ruled out" in out
    bigger = (files / "golden.jsonl").read_text(encoding="utf-8").splitlines()
    extra = [{"id": f"z{i}", "state": "answerable", "gold": [{"document_id": "a0"}]} for i in range(3)]
    jsonl(files / "old_golden.jsonl", [json.loads(line) for line in bigger] + extra)
    code, out, _ = call(
        capsys, *base, "n >= 0.95 * baseline", "--no-regression", "--baseline-golden", files / "old_golden.jsonl"
    )
    assert code == 1
    assert "7 is not >= 9.5 (baseline 10)" in out
    assert "CANNOT JUDGE" in out


def test_gate_on_recorded_runs_takes_the_declared_baseline(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = ("gate", "--out", store.out, "--run", "hybrid · fixed · none")
    code, out, err = call(capsys, *run, "recall@5 >= baseline", "--no-regression", "--rule", "latency_ms_median <= 100")
    assert (code, err) == (0, "")
    assert "held against the declared baseline bm25 · fixed · none" in out
    code, _, err = call(capsys, "gate", "--out", store.out, "recall@5 >= 0.5")
    assert code == 64
    assert "3 recorded runs; say which with --run" in err
    code, out, _ = call(
        capsys,
        "gate",
        "--out",
        store.out,
        "--run",
        "bm25 · fixed · none",
        "--baseline-run",
        "hybrid · fixed · mix",
        "recall@1 no-regression",
    )
    assert code == 1
    assert "worse" in out


def test_gate_files_for_ci(files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    base = ("gate", "--golden", files / "golden.jsonl", "--run", files / "run.jsonl", "recall@5 >= 0.9", "uar >= 0")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    code, out, err = call(capsys, *base, "--github-summary")
    assert (code, out) == (64, "")
    assert "GITHUB_STEP_SUMMARY is not set" in err
    summary = files / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    code, _, _ = call(capsys, *base, "--github-summary", "--junit", files / "gate.xml")
    assert code == 1
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("before\n### ❌")
    assert "recall&#64;5 &#62;= 0.9" in text
    root = ET.parse(files / "gate.xml").getroot()
    assert [child.tag for case in root.iter("testcase") for child in case] == ["failure", "error"]


def test_gate_writes_the_comment_for_a_pull_request(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, comment = files / "summary.md", files / "comment.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    base = ("gate", "--golden", files / "golden.jsonl", "--run", files / "run.jsonl", "recall@5 >= 0.9")
    code, out, _ = call(capsys, *base, "--markdown", comment, "--github-summary", "--json")
    assert code == 1
    text = comment.read_text(encoding="utf-8")
    assert text.startswith("### ❌ denominator gate: run.jsonl\n")
    assert summary.read_text(encoding="utf-8") == text + "\n"
    assert json.loads(out)["verdict"] == "fail"


def test_gate_with_an_alpha_and_failed_questions(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    lines = [json.loads(line) for line in (files / "run.jsonl").read_text(encoding="utf-8").splitlines()]
    lines[0] = {"question_id": lines[0]["question_id"], "error": "time-out"}
    jsonl(files / "partly.jsonl", lines)
    rules = "alpha: 0.2\nrun: partly.jsonl\nbaseline_run: old.jsonl\nrules: [recall@5 non-inferior within 0.9]\n"
    (files / "gate.yaml").write_text(rules, encoding="utf-8")
    base = ("gate", "--golden", "golden.jsonl", "--rules", "gate.yaml")
    code, out, _ = call(capsys, *base)
    assert code == 2
    assert "the run is incomplete: 1 question failed and 0 are missing" in out
    code, out, _ = call(capsys, *base, "--allow-incomplete")
    assert code == 0
    assert out.startswith("gate of partly.jsonl, baseline old.jsonl, α = 0.2\n")
    assert "judged all the same (--allow-incomplete), each counts 0" in out
    assert ", α = 0.01\n" in call(capsys, *base, "--alpha", "0.01", "--allow-incomplete")[1]
    assert call(capsys, *base, "--alpha", "0")[0] == 64  # not silently the file's
    code, _, err = call(capsys, "compare", "partly.jsonl", "old.jsonl", "--golden", "golden.jsonl")
    assert code == 2
    assert "1 failed and 0 missing questions" in err


def test_gate_rules_from_yaml(files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    (files / "gate.yaml").write_text(
        "run: run.jsonl\nbaseline_run: old.jsonl\nmargin: 0.9\n"
        "rules:\n  - recall@5 >= 0.7\n  - recall@5 non-inferior\n",
        encoding="utf-8",
    )
    code, out, _ = call(capsys, "gate", "--golden", "golden.jsonl", "--rules", "gate.yaml")
    assert code == 0
    assert "above -0.9" in out
    code, out, _ = call(capsys, "gate", "--golden", "golden.jsonl", "--rules", "gate.yaml", "--margin", "0.01")
    assert code == 1
    (files / "bad.yaml").write_text("rules: [\n", encoding="utf-8")
    for name, said in (("bad.yaml", "not YAML"), ("none.yaml", "cannot be read")):
        code, _, err = call(capsys, "gate", "--golden", "golden.jsonl", "--run", "run.jsonl", "--rules", name)
        assert code == 64
        assert said in err


def test_wrong_use_of_the_gate(files: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    golden = ("--golden", files / "golden.jsonl")
    run = ("--run", files / "run.jsonl")
    for words, said in (
        ((*golden, *run), "there is no rule"),
        ((*golden, "recall@5 >= 0.5"), "--golden needs --run"),
        ((*golden, *run, "recal@5 >= 0.5"), "did you mean 'recall@5'"),
        ((*golden, *run, "recall@5 => 0.5"), "cannot be read"),
        ((*golden, *run, "recall@5 >= baseline"), "--baseline-run"),
        ((*golden, *run, "--no-regression", "--margin", "0"), "--margin"),
        ((*golden, *run, "--no-regression", "--alpha", "1"), "--alpha is 1; it lies between 0 and 1"),
        ((*golden, *run, "coverage@b5 > 0", "coverage@b6 > 0"), "two token budgets"),
        (
            ("--out", store.out, "--answers", "x", "--run", "hybrid · fixed · none", "recall@5 > 0"),
            "belongs to --golden",
        ),
        (("--out", store.out, "--run", "nosuch", "recall@5 > 0"), "'nosuch'"),
    ):
        code, out, err = call(capsys, "gate", *words)
        assert (code, out) == (64, ""), words
        assert said.replace("two token", "2 token") in err


@pytest.mark.slow
def test_the_examples_of_the_help_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blank_store(tmp_path / "denominator-out")
    demo = ("chunker=fixed_128,sentences_128", "embedder=bm25", "reranker=none")
    assert main(["sweep", "-q", "+experiment=demo", *demo]) == 0
    for command in ("compare", "gate"):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([command, "--help"])
        (example,) = re.findall(rf"^  (denominator {command} .*)$", capsys.readouterr().out, re.M)
        assert main(shlex.split(example)[1:]) == 0, capsys.readouterr()


def test_two_cells_of_one_name_without_a_result_are_two(others: Store) -> None:
    """Neither got as far as a key: each is listed with its own overrides."""
    sweep_run = others.start_sweep("alike", "sweep of 2 cells")
    cells = [
        {"name": "fixed · bm25 · none", "cell_key": "", "status": "failed", "overrides": [f"+experiment={e}"]}
        for e in "ab"
    ]
    others.log_sweep(sweep_run, note="done", cells=cells, status="FAILED")
    assert [f.overrides for f in failures_of(others, "alike")] == ["+experiment=a", "+experiment=b"]
