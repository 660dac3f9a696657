"""Quality of answers in the report, in gates, comparisons and listings: apart from retrieval, with n and interval."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from denominator.cli import main
from denominator.errors import ConfigError, MeasurementError
from denominator.evaluation import summarize
from denominator.gate import Measured, judge, parse_rule
from denominator.quality import METRICS
from denominator.report import build, write
from denominator.report.build import shown_questions
from denominator.selection import compare, decide, instruments
from denominator.summary import answers_table_of
from denominator.tracking import StoredRun
from denominator.types import RecordedRun
from denominator.uncertainty import paired_difference
from tests import report_runs

PLAN = replace(report_runs.PLAN, baseline=None)


def answering(name: str, values: dict[int, float], *, refused: tuple[int, ...] = (), **options: Any) -> RecordedRun:
    """A run that answers question i with token F1 and faithfulness `values[i]`, and refuses or leaves out others."""
    params = {"embedder": name, "chunker": "fixed"}
    run = report_runs.recorded(f"{name} · fixed", params, skill=0.7, seed=len(name), plan=PLAN, **options)
    made = []
    for i, o in enumerate(o for o in run.outcomes if o.state == "answerable"):
        found = {"token_f1": values[i], "exact_match": float(values[i] == 1)} if i in values else {}
        abstained = True if i in refused else False if i in values else None
        made.append(replace(o, abstained=abstained, rung="flag", answer="text" if i in values else None, quality=found))
    others = [replace(o, abstained=True, rung="flag") for o in run.outcomes if o.state != "answerable"]
    return replace(run, outcomes=tuple(sorted([*made, *others], key=lambda o: o.id)))


def measured(run: RecordedRun) -> Measured:
    return Measured(run, summarize(run.outcomes, run.plan))


GOOD = {i: 1.0 if i % 4 else 0.5 for i in range(40)}
POOR = {i: 0.25 if i % 4 else 0.5 for i in range(10, 50)}


@pytest.fixture(scope="module")
def runs() -> tuple[RecordedRun, RecordedRun]:
    return answering("hybrid", GOOD, refused=(58, 59)), answering("bm25", POOR)


def test_gate_on_answers(runs):
    good, poor = map(measured, runs)
    mean = (30 * 1 + 10 * 0.5) / 40
    rules = {
        f"token_f1 >= {mean}": "pass",
        "answer.token_f1 > 0.9": "fail",
        "exact_match == 0.75": "pass",
        "token_f1.n >= 41": "fail",
        "exact_match.ci_low >= 0.7": "fail",
        "answered == 40": "pass",
        "faithfulness >= 0": "undecided",
        "token_f1[category=a].n >= 1": "pass",
        "token_f1 >= baseline + 0.2": "pass",
        "token_f1 no-regression": "pass",
        "token_f1 non-inferior within 0.02": "pass",
    }
    found = judge([parse_rule(r) for r in rules], good, poor)
    assert {r.rule.text: r.verdict for r in found.results} == rules
    assert found.results[0].message.endswith("n = 40")
    assert "faithfulness is undefined: no_eligible (n = 0)" in found.results[6].message
    back = judge([parse_rule("token_f1 no-regression")], poor, good)
    assert back.exit_code == 1


def test_gate_without_answers_cannot_judge():
    run = report_runs.recorded("bm25 · fixed", {}, skill=0.7, seed=3, plan=PLAN)
    for name in METRICS:
        (result,) = judge([parse_rule(f"{name} >= 0")], measured(run)).results
        assert (result.verdict, result.n) == ("undecided", 0)
        assert "no_answers" in result.message
    with pytest.raises(ConfigError, match="did you mean 'token_f1'"):
        judge([parse_rule("token_f >= 0")], measured(run))
    with pytest.raises(ConfigError, match="needs a retrieval metric or one of answers"):
        judge([parse_rule("answered no-regression")], measured(run), measured(run))


def read_by(
    run: RecordedRun, rung: str, version: str = "phrases-v2", one: str | None = None, **params: str
) -> Measured:
    """The run with all of its decisions from this rung; `one`: that of u000, which then left it undecided."""
    made = [
        replace(o, abstained=None, rung=one) if one and o.id == "u000" else replace(o, rung=rung) for o in run.outcomes
    ]
    named = {f"answerer.{name}.hash": value for name, value in params.items()}
    return measured(replace(run, outcomes=tuple(made), plan=replace(PLAN, phrases=version), params=named))


@pytest.mark.parametrize(
    ("mine", "theirs", "apart"),
    [
        # Versions only add languages: what v1 read by its lists alone, v2 reads the same.
        (("phrase",), ("phrase", "phrases-v1"), None),
        (("phrase",), ("phrase", "phrases-v1", "no_patterns"), "phrases differ"),
        (("flag",), ("phrase", "phrases-v1", "no_patterns"), None),
        # What v1 has no list for went to its judge, and v2 read it by a list.
        (("phrase", "phrases-v2"), ("judge", "phrases-v1"), "phrases differ"),
        (("phrase", "phrases-v2"), ("phrase", "phrases-v2", "no_patterns"), None),
    ],
)
def test_gate_on_abstention_across_versions_of_the_lists(runs, mine, theirs, apart):
    new, old = read_by(runs[0], *mine, judge="j"), read_by(runs[0], *theirs, judge="j")
    rules = [parse_rule("uar <= baseline + 1"), parse_rule("partial.refused <= baseline + 1")]
    for one, other in ((new, old), (old, new)):
        found = judge(rules[:1], one, other)
        assert found.verdict == ("undecided" if apart else "pass")
        assert apart is None or apart in found.results[0].message
        assert judge(rules[:1], one, other, allow=("phrases",)).verdict == "pass"


def test_what_is_read_by_the_ladder_is_not_compared_across_readers(runs):
    """The share of partial questions that were refused is read as all abstention is."""

    def partly(run: Measured) -> Measured:
        made = [replace(o, state="partial") if o.id == "u001" else o for o in run.run.outcomes]
        return measured(replace(run.run, outcomes=tuple(made)))

    new, old = partly(read_by(runs[0], "phrase")), partly(read_by(runs[0], "phrase", "phrases-v1", "no_patterns"))
    for name in ("uar", "frr", "partial.refused"):
        (result,) = judge([parse_rule(f"{name} <= baseline + 1")], new, old).results
        assert (result.verdict, "phrases differ" in result.message) == ("undecided", True)


def test_only_a_judge_that_decided_something_is_an_instrument(runs):
    """A judge that failed throughout read nothing; without one, its absence is what texts were read by."""
    base = runs[0]
    failed = replace(base, outcomes=tuple(replace(o, abstained=None, rung="judge") for o in base.outcomes))
    assert instruments(replace(failed, params={"answerer.judge.hash": "j"}))["judge"] is None
    seen = {
        name: instruments(read_by(base, rung, **params).run)["judge"]
        for name, rung, params in (
            ("judged", "judge", {"judge": "j"}),
            ("not asked", "phrase", {"judge": "j"}),
            ("none there", "phrase", {}),
            ("flags", "flag", {}),
        )
    }
    assert seen == {"judged": "j", "not asked": None, "none there": "none", "flags": None}
    judged, alone = read_by(base, "judge", judge="j"), read_by(base, "phrase")
    assert "judge differ" in judge([parse_rule("uar >= baseline")], judged, alone).results[0].message
    assert judge([parse_rule("uar >= baseline")], judged, read_by(base, "phrase", judge="j")).verdict == "pass"


def test_gate_holds_answers_against_those_of_the_same_questions():
    """The baseline answers ten and has five right; the candidate answers one of them, an easy one, and refuses nine."""
    base = measured(answering("bm25", {i: float(i < 5) for i in range(10)}))
    easy = measured(answering("picky", {0: 1.0}, refused=tuple(range(1, 10))))
    rules = [parse_rule(r) for r in ("token_f1 > baseline", "token_f1 >= baseline", "token_f1.n >= baseline")]
    over, equal, counts = judge(rules, easy, base).results
    assert (over.verdict, over.found, over.bound, over.n) == ("fail", 1.0, 1.0, 1)
    assert "baseline 1, both over what both answered" in over.message
    assert (equal.verdict, counts.verdict, counts.bound) == ("pass", "fail", 10)
    two = measured(answering("static", {0: 1.0, 20: 1.0}))
    (low,) = judge([parse_rule("token_f1.ci_low >= baseline")], two, base).results
    assert (low.verdict, low.message) == ("undecided", "token_f1.ci_low: no ci_low over what both answered (n = 1)")
    other = measured(answering("static", {20: 1.0}))
    (none,) = judge(rules[1:2], other, base).results
    assert (none.verdict, none.n) == ("undecided", 0)
    assert none.message == "token_f1: no question was answered by both (n = 0)"


def test_gate_holds_answers_of_a_slice_against_the_same_questions(runs):
    good, poor = map(measured, runs)
    (result,) = judge([parse_rule("token_f1[category=a] >= baseline")], good, poor).results
    inside = {o.id for o in runs[0].outcomes if o.tags.get("category") == "a"}
    answerable = [o.id for o in runs[0].outcomes if o.state == "answerable"]
    both = [i for i in range(10, 40) if answerable[i] in inside]
    assert result.n == len(both) > 0
    assert result.found == pytest.approx(sum(GOOD[i] for i in both) / len(both))
    assert result.bound == pytest.approx(sum(POOR[i] for i in both) / len(both))


def test_compare_pairs_what_both_answered(runs):
    """30 questions in common: the difference, its interval and its test are those of these 30 alone."""
    good, poor = runs
    found = compare(good, poor, "token_f1")
    both = range(10, 40)
    expected = paired_difference([GOOD[i] for i in both], [POOR[i] for i in both], seed=0, resamples=PLAN.resamples)
    assert found.difference == expected
    assert found.candidate_estimate.value == pytest.approx(sum(GOOD[i] for i in both) / 30)
    assert (found.candidate_estimate.n, found.candidate_estimate.level, found.candidate_estimate.k) == (30, None, None)
    assert (found.verdict, len(found.gained), len(found.lost), found.same) == ("better", 23, 0, 7)
    assert found.beside.startswith("over the 30 questions that both answered and that have it, of 60 answerable ones")
    assert "hybrid · fixed 40, by bm25 · fixed 40" in found.beside
    assert compare(good, poor, "exact_match").difference.test == "mcnemar"


def test_compare_refuses_what_has_no_partner(runs):
    good, _ = runs
    other = answering("static", dict.fromkeys(range(45, 50), 1.0))
    with pytest.raises(MeasurementError, match="no_answers"):
        compare(good, other, "token_f1")
    with pytest.raises(ConfigError, match="no run has the metric 'relevance'"):
        compare(good, other, "relevance")
    prints = {m: {**p, "dataset_hash": "other"} for m, p in good.fingerprints.items()}
    with pytest.raises(MeasurementError, match="dataset_hash"):
        compare(replace(good, fingerprints=prints), answering("bm25", POOR), "token_f1")


def test_answers_do_not_rank_runs(runs):
    """Each run has its own denominator there, so there is no ranking, and the reason is said."""
    found = decide(runs, "token_f1")
    assert found.rankings == ()
    assert {e.reason for e in found.excluded} == {"not_comparable"}
    assert "compare two of them" in found.excluded[0].detail


def test_the_report_shows_answers_apart(runs, tmp_path):
    written = write(build(runs), tmp_path)
    html = written.html.read_text(encoding="utf-8")
    block = html.split('<h2 id="answers">', 1)[1].split("<h2", 1)[0]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", block))
    assert "0.875" in text
    summary = summarize(runs[0].outcomes, PLAN)
    assert summary.answer_quality is not None
    e = summary.answer_quality.metrics["token_f1"]
    assert f"{e.ci_low:.3f} – {e.ci_high:.3f} n = 40" in text
    assert "40 answered 2 refused 18 undecided" in text
    assert '<a href="#answers">' in html
    assert "token_f1" not in html.split('<h2 id="abstention">', 1)[1].split("<h2", 1)[0]
    markdown = written.markdown.read_text(encoding="utf-8")
    assert "| hybrid · fixed | 40 | 2 | 18 | 0 | 0.750" in markdown
    header, first = written.csv.read_text(encoding="utf-8").splitlines()[:2]
    row = dict(zip(header.split(","), first.split(","), strict=True))
    assert (row["token_f1"], row["token_f1 n"]) == ("0.875", "40")


def test_no_block_without_answers(tmp_path):
    run = report_runs.recorded("bm25 · fixed", {"embedder": "bm25"}, skill=0.7, seed=3, plan=PLAN)
    html = write(build([run]), tmp_path).html.read_text(encoding="utf-8")
    assert 'id="answers"' not in html
    assert "#answers" not in html


def test_an_answer_is_text_and_never_markup(runs, tmp_path):
    from denominator.deciding import Pair, comparison_html

    good, poor = (
        replace(r, outcomes=[replace(o, answer="<script>alert(1)</script>" if o.answer else None) for o in r.outcomes])
        for r in runs
    )
    page = comparison_html(compare(good, poor, "token_f1"), Pair(good, poor, {}, ()))
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page


def test_an_absent_answer_is_not_shown_as_an_empty_one(runs):
    by_name = dict(zip("ab", runs, strict=True))
    ids = [o.id for o in runs[0].outcomes if o.state == "answerable"][:1]
    (shown,) = shown_questions(ids, by_name, "token_f1", None)
    assert [a.answer for a in shown.answers] == ["text", None], "bm25 did not answer the first question"


def test_runs_lists_answers():
    metrics = {"answer.token_f1": 0.875, "answer.token_f1__n": 40.0}
    run = StoredRun("r", "hybrid", "FINISHED", metrics, {}, {}, "", 0.0, None)
    table = answers_table_of([run])
    assert table is not None
    assert [column.header for column in table.columns] == ["answers", "token\nf1"]
    assert list(table.columns[1].cells) == ["0.875\nn = 40"]
    assert answers_table_of([replace(run, metrics={})]) is None


def test_compare_of_files_takes_answers(tmp_path: Path, capsys):
    def lines(name: str, rows: list[dict[str, Any]]) -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    ids = [f"q{i}" for i in range(6)]
    gold = [{"document_id": "d"}]
    golden = lines("golden.jsonl", [{"id": q, "state": "answerable", "gold": gold, "answer": "blue car"} for q in ids])
    run = lines("run.jsonl", [{"question_id": q, "hits": [{"id": "d"}], "depth": 10} for q in ids])
    new = lines("new.jsonl", [{"question_id": q, "answer": "blue car"} for q in ids])
    old = lines("old.jsonl", [{"question_id": q, "answer": "car"} for q in ids[:5]])
    words = ["compare", run, run, "--golden", golden, "--answers", new, "--baseline-answers", old, "--json"]
    assert main([*words, "--metric", "token_f1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["candidate"], found["baseline"]) == ("new.jsonl", "old.jsonl")
    assert (found["difference"]["value"], found["difference"]["n"]) == (pytest.approx(1 / 3), 5)
    assert main(["gate", "--golden", golden, "--run", run, "--answers", old, "token_f1 >= 0.6", "answered >= 5"]) == 0
    assert main(["compare", "a", "b", "--answers", new]) == 64
    assert "--answers belongs to --golden" in capsys.readouterr().err
