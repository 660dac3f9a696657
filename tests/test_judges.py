"""A judge of refusals and a grader of answers on a real server, held against labels by hand; and a wrong language."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from sklearn.metrics import cohen_kappa_score

from denominator import masking
from denominator.abstention import agreement_facts
from denominator.answerers import Recorded, held_against, instruments
from denominator.cache import Cache
from denominator.chunkers import WholeDocument
from denominator.cli import main
from denominator.deciding import as_recorded
from denominator.embedders import BM25
from denominator.endpoints.chat import Chat, Grader, Judge
from denominator.errors import ConfigError, InputError, MeasurementError
from denominator.evaluation import summarize
from denominator.gate import Measured, judge, parse_rule
from denominator.pipeline import Cell, run_cell
from denominator.readers.native import Native
from denominator.readers.runs import HandLabel, read_hand_labels
from denominator.rerankers import NoRerank
from denominator.scoring import render_csv, render_text, score
from denominator.selection import compare
from denominator.tracking.facts import cell_facts
from denominator.types import Answer, Outcome, Plan, RecordedRun
from denominator.uncertainty import wilson
from tests.endpoint_parts import QUICK
from tests.http_server import Reply, chat_reply, serving

PLAN = Plan(ks=(1,), pool=10, headline="recall@1")
# Finnish has no list, so every text goes to the judge. q0 and q1 answer, q2 and u0 refuse, u1 answers all the same.
TEXTS = {"q0": "Puna-maali.", "q1": "Neljä tuntia.", "q2": "En tiedä.", "u0": "En osaa sanoa.", "u1": "Kyllä."}
REFUSALS = {"q2", "u0"}


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    masking.forget()


def asked_for(request: Any) -> str:
    return request.body["response_format"]["json_schema"]["schema"]["required"][0]


def reply_of(request: Any) -> str:
    return request.body["messages"][-1]["content"].rpartition("Reply: ")[2]


def verdicts(request: Any) -> Any:
    if asked_for(request) == "declines":
        return chat_reply(json.dumps({"declines": reply_of(request).startswith("En ")}))
    reference = request.body["messages"][-1]["content"].partition("Reference: ")[2].partition("\n")[0]
    return chat_reply(json.dumps({"correct": reply_of(request).rstrip(".") == reference}))


@pytest.fixture
def server():
    with serving(verdicts) as running:
        yield running


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    lines(tmp_path / "corpus.jsonl", [{"id": "d", "title": "Maalit", "text": "Maali kuivuu. Puna-maali on punainen."}])
    gold = [{"document_id": "d"}]
    rows: list[dict[str, Any]] = [
        {"id": f"q{i}", "question": f"Mikä {i}?", "state": "answerable", "gold": gold, "answer": a, "lang": "fi"}
        for i, a in enumerate(["Puna-maali", "Viisi tuntia", "Sininen"])
    ]
    rows += [
        {"id": f"u{i}", "question": f"Kuka {i}?", "state": "unanswerable", "gold": [], "lang": "fi"} for i in (0, 1)
    ]
    lines(tmp_path / "questions.jsonl", rows)
    lines(tmp_path / "answers.jsonl", [{"question_id": q, "answer": t} for q, t in TEXTS.items()])
    lines(tmp_path / "hand.jsonl", [{"question_id": q, "abstained": q in REFUSALS} for q in TEXTS])
    return tmp_path


def part_of(server: Any, kind: Any, **settings: Any) -> Any:
    return kind(**{"url": server.url + "/v1", "model": "m", **QUICK, **settings})


def recorded(files: Path, server: Any, **settings: Any) -> Recorded:
    given = {"judge": part_of(server, Judge), "grader": part_of(server, Grader)} | settings
    return Recorded(str(files / "answers.jsonl"), **given)


def ran(files: Path, part: Recorded, cache: Cache | None = None) -> Any:
    data = Native(folder=str(files))
    return run_cell(Cell("c", {}, data, WholeDocument(), BM25(), NoRerank(), part, PLAN), cache or Cache(None))


def test_a_cell_judges_and_grades_recorded_answers(files, server, tmp_path):
    price = {"price_per_million_input": 1.0}
    part = recorded(files, server, judge=part_of(server, Judge, **price), grader=part_of(server, Grader, **price))
    made = ran(files, part, Cache(tmp_path / "cache"))
    by_id = {o.id: o for o in made.outcomes}
    assert {q for q, o in by_id.items() if o.abstained} == REFUSALS
    assert {o.rung for o in made.outcomes} == {"judge"}
    assert made.summary.abstention.matrix == ((2, 1), (1, 1))
    # Two answerable questions were answered; only the first says what its reference says. Refusals are not graded.
    block = made.summary.answer_quality
    assert (block.metrics["correctness"].value, block.metrics["correctness"].n) == (0.5, 2)
    assert block.metrics["correctness"].ci_method == "wilson"
    kinds = [asked_for(r) for r in server.requests]
    assert (kinds.count("declines"), kinds.count("correct")) == (5, 2)
    assert {k: v for k, v in made.facts.items() if k.startswith(("judge", "grader"))} == {
        "judge_asked": 5, "judge_failed": 0, "judge_unclear": 0, "judge_tokens_in": 200, "judge_tokens_out": 35,
        "judge_cost": pytest.approx(200 / 1e6),
        "grader_asked": 2, "grader_failed": 0, "grader_unclear": 0, "grader_tokens_in": 80, "grader_tokens_out": 14,
        "grader_cost": pytest.approx(80 / 1e6),
    }  # fmt: skip
    again = ran(files, part, Cache(tmp_path / "cache"))
    assert len(server.requests) == 7, "the same texts are not sent twice"
    assert (again.outcomes, again.facts["judge_cost"]) == (made.outcomes, made.facts["judge_cost"])


def test_the_record_names_judge_and_grader_with_their_prompts(files, server):
    made = ran(files, recorded(files, server))
    hashes = {k: v for k, v in made.params.items() if k.endswith(".hash")}
    assert set(hashes) == {"answerer.judge.hash", "answerer.grader.hash"}
    assert (made.params["answerer.judge.model"], made.params["answerer.grader.model"]) == ("m", "m")
    for change in ({"prompt": "{{ text }}?"}, {"model": "n"}, {"temperature": 1.0}, {"version": "2"}):
        other = recorded(files, server, judge=part_of(server, Judge, **change))
        assert instruments(other)["answerer.judge.hash"] != hashes["answerer.judge.hash"]
        assert instruments(other)["answerer.grader.hash"] == hashes["answerer.grader.hash"]
    assert (
        instruments(recorded(files, server, judge=part_of(server, Judge, api_key="k")))["answerer.judge.hash"]
        == (hashes["answerer.judge.hash"])
    )


def test_failures_are_undecided_and_counted(files, server):
    def fails(request):
        if asked_for(request) == "declines" and reply_of(request) == "En tiedä.":
            return Reply(500, {"error": "busy"})
        if asked_for(request) == "correct" and reply_of(request) == "Puna-maali.":
            return chat_reply("I would say so.")
        return verdicts(request)

    server.answer = fails
    made = ran(files, recorded(files, server))
    lost = next(o for o in made.outcomes if o.id == "q2")
    assert (lost.abstained, lost.rung) == (None, "judge")
    assert "status 500" in lost.error
    report = made.summary.abstention
    assert (report.n, report.undecided_answerable, report.undecided_unanswerable) == (4, 1, 0)
    assert report.false_refusal_rate_bounds == (0, pytest.approx(1 / 3))
    block = made.summary.answer_quality
    assert block.counts == {"answered": 2, "refused": 0, "undecided": 1, "no_text": 0}
    assert (block.metrics["correctness"].value, block.metrics["correctness"].n) == (0.0, 1)
    assert (made.facts["judge_failed"], made.facts["grader_unclear"]) == (1, 1)
    assert "judge: of 5 texts sent to m 1 failed" in made.notes
    assert "grader: of 2 texts sent to m 1 were not answered by a verdict" in made.notes


# ------------------------------------------------------------------ labels by hand


def test_agreement_with_labels_by_hand(files, server):
    """The decider is wrong on q1 alone: κ from scikit-learn, its interval from Wilson's for the raw agreement."""
    hand = {q: q in REFUSALS or q == "q1" for q in TEXTS}
    lines(files / "hand.jsonl", [{"question_id": q, "abstained": a, "correct": True} for q, a in hand.items()])
    made = ran(files, recorded(files, server, hand=str(files / "hand.jsonl")))
    said = [q in REFUSALS for q in TEXTS]
    assert made.facts["judge_kappa"] == pytest.approx(cohen_kappa_score(list(hand.values()), said))
    raw = wilson(4, 5)
    assert made.facts["judge_agreement"] == 4 / 5
    assert (made.facts["judge_agreement_ci_low"], made.facts["judge_agreement_ci_high"]) == (raw.low, raw.high)
    assert made.facts["decider_kappa"] == made.facts["judge_kappa"]
    assert made.facts["judge_kappa_n"] == 5
    assert (made.facts["grader_agreement"], made.facts["grader_agreement_n"]) == (0.5, 2)
    assert any("the judge decided 5 answers and was held against 5 hand labels" in n for n in made.notes)


def test_each_rung_has_its_agreement_and_a_label_of_another_text_is_left_out():
    made = [
        Outcome("a", "answerable", "answerable", "ok", abstained=True, rung="phrase", answer="x"),
        Outcome("b", "answerable", "answerable", "ok", abstained=False, rung="flag", answer="y"),
        Outcome("c", "unanswerable", "unanswerable", "ok", abstained=None, rung="judge", answer="z"),
        Outcome("d", "unanswerable", "unanswerable", "ok", abstained=True, rung="phrase", answer="new"),
    ]
    labels = {q: HandLabel(abstained=True) for q in "abc"} | {"d": HandLabel(abstained=True, answer="old")}
    found, notes = held_against(made, labels, 0.05)
    assert {name: (a.accuracy.value, a.accuracy.n, a.undecided) for name, a in found.items()} == {
        "decider": (0.5, 2, 1),
        "flag": (0.0, 1, 0),
        "phrase": (1.0, 1, 0),
        "judge": (None, 0, 1),
    }
    assert found["judge"].kappa.reason == "n_zero"
    assert notes == ("labels by hand left out, given to another text: 1 of 4 ('d')",)
    with pytest.raises(MeasurementError, match="unknown_question_ids"):
        held_against(made, {"e": HandLabel(abstained=True)}, 0.05)


def hand_labelled(n: int, labels: int, *, wrong: int = 0, said: int = 0, cluster: str | None = None) -> Any:
    """A run of n answers, the first ones with labels by hand: `said` of them refusals, `wrong` read wrongly."""
    made = [
        Outcome(f"q{i:03d}", "answerable", "answerable", "ok", abstained=i < said, rung="flag", cluster=cluster)
        for i in range(n)
    ]
    hand = {o.id: HandLabel(abstained=o.abstained != (i < wrong)) for i, o in enumerate(made[:labels])}
    plan = Plan(evaluate="abstention", cluster=None if cluster is None else "c")
    found, _ = held_against(made, hand, plan.alpha, clustered=cluster is not None)
    run = RecordedRun("r", "r", "r", "s", {}, {}, {}, plan, made, agreement_facts(found) | {"ms": 2.0}, {}, None)
    summary = summarize(made, plan)
    return found, Measured(replace(run, ledger=summary.ledger), summary)


def test_a_gate_holds_agreement_by_its_own_n_and_interval():
    """N = 100, four labels: the n of κ is 4, and its interval can be held."""
    found, run = hand_labelled(100, 4, wrong=1, said=2)
    rules = ["decider_kappa.n >= 50", "decider_kappa.n == 4", "decider_agreement.n >= 50", "decider_kappa.ci_low >= 0"]
    gate = judge([parse_rule(rule) for rule in rules], run)
    assert [r.verdict for r in gate.results] == ["fail", "pass", "fail", "fail"]
    assert gate.results[3].found == found["decider"].kappa.ci_low
    (plain,) = judge([parse_rule("decider_kappa >= 0.4")], run).results
    assert (plain.verdict, plain.n, ", n = 4" in plain.message) == ("pass", 4, True)
    figures = run.figures
    for name, a in found.items():
        assert (figures[f"{name}_kappa"], figures[f"{name}_agreement"]) == (a.kappa, a.accuracy)
    (other,) = judge([parse_rule("decider_kappa.ci_low >= 0")], run, alpha=0.1).results
    assert other.verdict == "undecided"
    assert "no ci_low at α = 0.1, it was recorded at 0.05" in other.message


def test_a_fact_has_no_n():
    _, run = hand_labelled(100, 4)
    (result,) = judge([parse_rule("ms <= 3")], run).results
    assert (result.verdict, result.n) == ("pass", None)
    for rule in ("ms.n >= 50", "decider_kappa_n.n >= 50", "ms.ci_low >= 1"):
        with pytest.raises(ConfigError, match="is a fact of the run, without n"):
            judge([parse_rule(rule)], run)


def test_an_undefined_kappa_keeps_its_reason():
    """All labels and all decisions are equal: κ is undefined, and the gate says why instead of not knowing it."""
    found, run = hand_labelled(10, 6)
    assert found["decider"].kappa.reason == "constant_values"
    assert run.figures["decider_kappa"] == found["decider"].kappa
    (result,) = judge([parse_rule("decider_kappa >= 0.8")], run).results
    assert result.verdict == "undecided"
    assert "constant_values (n = 6)" in result.message


def test_the_record_says_why_kappa_is_undefined(files, server):
    lines(files / "hand.jsonl", [{"question_id": "q0", "abstained": False}, {"question_id": "q1", "abstained": False}])
    made = ran(files, recorded(files, server, hand=str(files / "hand.jsonl")))
    assert "judge_kappa" not in made.facts
    tags = cell_facts(made, "s").tags
    assert (tags["undefined.judge_kappa"], tags["undefined.decider_kappa"]) == ("constant_values", "constant_values")


@pytest.mark.parametrize("failing", [("correct",), ("declines", "correct")])
def test_who_gave_no_verdict_has_an_agreement_of_nothing(files, server, failing):
    server.answer = lambda r: Reply(500, {"error": "busy"}) if asked_for(r) in failing else verdicts(r)
    lines(files / "hand.jsonl", [{"question_id": q, "abstained": False, "correct": True} for q in TEXTS])
    made = ran(files, recorded(files, server, hand=str(files / "hand.jsonl")))
    judged = 0 if "declines" in failing else 5
    assert (made.facts["grader_kappa_n"], made.facts["judge_kappa_n"]) == (0, judged)
    assert any("the judge decided" in note for note in made.notes) == bool(judged)
    tags = cell_facts(made, "s").tags
    assert tags["undefined.grader_kappa"] == tags["undefined.grader_agreement"] == "n_zero"
    assert tags.get("undefined.judge_agreement") == (None if judged else "n_zero")


def test_labels_of_answers_that_belong_together_are_no_independent_labels():
    found, run = hand_labelled(20, 10, wrong=2, said=5, cluster="one dialogue")
    assert (found["decider"].kappa.ci_low, found["decider"].accuracy.ci_low) == (None, None)
    assert run.figures["decider_kappa"] == found["decider"].kappa


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question_id": "q0"}, "says nothing"),
        ({"question_id": "q0", "abstained": "yes"}, "abstained"),
        ({"question_id": "q0", "correct": 1}, "correct"),
        ({"question_id": "q0", "label": True}, "label"),
        ({"abstained": True}, "question_id"),
    ],
)
def test_labels_that_cannot_be_read(tmp_path, row, message):
    path = lines(tmp_path / "hand.jsonl", [{"question_id": "q1", "abstained": True}, row])
    with pytest.raises(InputError, match=message) as caught:
        read_hand_labels(path)
    assert "hand.jsonl:2" in str(caught.value)


# ------------------------------------------------------------------ denominator score, gate and compare


def yaml_of(tmp_path: Path, server: Any, kind: str, **more: Any) -> str:
    path = tmp_path / f"{kind.lower()}.yaml"
    node = {"_target_": f"denominator.endpoints.chat.{kind}", "url": server.url, "model": "m", **QUICK, **more}
    path.write_text(yaml.safe_dump(node), encoding="utf-8")
    return str(path)


def test_score_takes_a_judge_a_grader_and_labels(files, server, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k-s3cret")
    parts = [
        *("--judge", yaml_of(tmp_path, server, "Judge", api_key="${oc.env:JUDGE_KEY}")),
        *("--grader", yaml_of(tmp_path, server, "Grader", api_key="${oc.env:JUDGE_KEY}")),
    ]
    words = ["score", "--golden", str(files / "questions.jsonl"), "--answers", str(files / "answers.jsonl"), *parts]
    words += ["--hand", str(files / "hand.jsonl"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "abstention (judge 5)" in text
    assert any(row.split()[:2] == ["correctness", "0.5000"] for row in text.splitlines())
    row = next(r for r in text.splitlines() if r.strip().startswith("judge "))
    assert row.split()[1] == "1.00"
    assert row.split()[-2:] == ["5", "0"]
    assert server.requests[0].headers["Authorization"] == "Bearer k-s3cret"
    sent = len(server.requests)
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    assert len(server.requests) == sent, "replies are kept in the output folder"
    found = json.loads(said.out)
    assert found["agreement"]["judge"]["kappa"]["n"] == 5
    assert found["agreement"]["judge"]["enough"] is False
    assert found["facts"]["judge_asked"] == 5
    assert "s3cret" not in text + said.out + said.err
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"k-s3cret" not in path.read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read|No such file"),
        ("- 1\n", "expected a mapping with _target_"),
        ("model: m\n", "no _target_"),
        ("_target_: denominator.endpoints.chat.Judge\nurl: http://h\nmodle: m\n", "did you mean 'model'"),
        ("_target_: denominator.types.Plan\n", "judge must be callable, found Plan"),
    ],
)
def test_a_judge_that_cannot_be_built(files, tmp_path, capsys, text, message):
    import re

    path = tmp_path / "judge.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    words = ["score", "--golden", str(files / "questions.jsonl"), "--answers", str(files / "answers.jsonl")]
    assert main([*words, "--judge", str(path)]) == 64
    assert re.search(message, capsys.readouterr().err)


def test_labels_without_answers_are_refused(files, capsys):
    assert main(["score", "--golden", str(files / "questions.jsonl"), "--run", "x", "--hand", "y"]) == 64
    assert "--hand belongs to --answers" in capsys.readouterr().err


def scored(files: Path, part: Recorded, name: str) -> Any:
    report = score(Native(folder=str(files)).load(), None, part)
    return report, as_recorded(report, name, name)


def test_gate_and_compare_know_correctness_and_who_gave_it(files, server):
    report, run = scored(files, recorded(files, server, hand=str(files / "hand.jsonl")), "a")
    assert "correctness" in render_text(report)
    assert "answers,correctness" in render_csv(report)
    assert "agreement,kappa,by,judge" in render_csv(report)
    rules = [
        "correctness >= 0.5",
        "answer.correctness.n >= 2",
        "judge_kappa >= 0.9",
        "judge_failed == 0",
        "answered == 2",
    ]
    found = judge([parse_rule(r) for r in rules], Measured(run, report.summary))
    assert [r.verdict for r in found.results] == ["pass"] * 5

    same = compare(run, replace(run, run_id="b", name="b"), "correctness")
    assert (same.difference.value, same.difference.n, same.same) == (0.0, 2, 2)
    assert "over the 2 questions that both answered" in same.beside
    other_report, other = scored(files, recorded(files, server, grader=part_of(server, Grader, model="n")), "b")
    with pytest.raises(MeasurementError, match="grader"):
        compare(run, other, "correctness")
    assert compare(run, other, "correctness", allow=("grader",)).difference.n == 2
    held = judge(
        [parse_rule("correctness >= baseline"), parse_rule("uar >= baseline"), parse_rule("token_f1 no-regression")],
        Measured(run, report.summary),
        Measured(other, other_report.summary),
    )
    assert [r.verdict for r in held.results] == ["undecided", "pass", "pass"]
    assert "grader differ" in held.results[0].message
    judged = scored(files, recorded(files, server, judge=part_of(server, Judge, prompt="{{ text }}")), "c")
    rule = [parse_rule("uar >= baseline")]
    (result,) = judge(rule, Measured(run, report.summary), Measured(judged[1], judged[0].summary)).results
    assert (result.verdict, "judge differ" in result.message) == ("undecided", True)


def test_a_grader_is_told_the_language_of_the_answer(files):
    told: dict[str, str] = {}

    class Listens:
        def grades(self, cache, asked):
            told.update({q: item["lang"] for q, item in asked.items()})
            return {}, {}, ()

    ran(files, Recorded(str(files / "answers.jsonl"), lang="en", grader=Listens()))
    assert set(told.values()) == {"en"}


def test_a_callable_of_ones_own_is_a_judge(files):
    part = Recorded(str(files / "answers.jsonl"), judge=lambda text, *, question, lang: text.startswith("En"))
    made = ran(files, part)
    assert {o.id for o in made.outcomes if o.abstained} == REFUSALS
    assert any("the judge decided 5 answers and was held against 0 hand labels" in n for n in made.notes)
    with pytest.raises(ConfigError, match="grader has no method grades"):
        Recorded("x", grader="gpt")


# ------------------------------------------------------------------ the language of answers


def test_a_language_without_a_list_is_said(files):
    report = score(Native(folder=str(files)).load(), None, files / "answers.jsonl")
    assert report.summary.abstention.undecided == 5
    note = next(n for n in report.notes if "'fi'" in n)
    assert note.startswith("5 answers in 'fi' are undecided: there is no refusal list for 'fi' (there are: ar, de, en,")


def test_answers_in_another_language_than_their_questions(tmp_path, capsys):
    """German questions that are answered in English: noticed, and set right in one line, for all or for each."""
    rows = [{"id": f"q{i}", "question": "Was?", "state": "unanswerable", "gold": [], "lang": "de"} for i in range(4)]
    golden = lines(tmp_path / "questions.jsonl", rows)
    said = [{"question_id": f"q{i}", "answer": "I do not know."} for i in range(4)]
    answers = lines(tmp_path / "answers.jsonl", said)
    report = score(golden, None, answers)
    assert report.summary.abstention.tp == 0
    assert any(
        "4 answers were read as 'de', which finds 0 refusals; the list for 'en' finds 4" in n for n in report.notes
    )
    assert score(golden, None, Recorded(str(answers), lang="en")).summary.abstention.tp == 4
    each = lines(tmp_path / "each.jsonl", [{**row, "lang": "en"} for row in said[:3]] + said[3:])
    assert score(golden, None, each).summary.abstention.tp == 3
    assert main(["score", "--golden", str(golden), "--answers", str(answers), "--answer-lang", "en"]) == 0
    assert "unanswerable refused 4" in capsys.readouterr().out


@pytest.mark.parametrize(("lang", "message"), [("german", "'de'"), ("日本語", "'en'"), ("", "'en'")])
def test_what_is_no_language(files, lang, message):
    with pytest.raises(ConfigError, match=f"lang: found .*, expected a code such as {message}"):
        Recorded(str(files / "answers.jsonl"), lang=lang)


def test_what_is_no_language_on_a_line_or_on_an_answer(files):
    rows = [{"question_id": "q0", "answer": "x", "lang": "de"}, {"question_id": "q1", "answer": "x", "lang": "german"}]
    with pytest.raises(InputError, match=r"answers.jsonl:2: field 'lang': is not a language; found german; .* 'de'"):
        Recorded(str(lines(files / "answers.jsonl", rows))).answers()
    data = Native(folder=str(files)).load()
    answers = {"q0": Answer(text="x", lang="german"), "q1": Answer(text="x", lang="deutsch"), "q2": Answer(text="x")}
    with pytest.raises(ConfigError, match="lang: found 'deutsch', expected a code such as 'de'"):
        score(data, None, answers)

    class Own:
        def answers(self):
            return answers

    with pytest.raises(ConfigError, match="lang: found 'deutsch'"):
        ran(files, Own())


def test_the_rehearsal_never_says_less_than_what_is_sent(files, server):
    """Tokens by regex-v1 of everything but the words around them in the prompt, for all answers at most."""
    from denominator.rehearsal import _chat_money
    from denominator.tokens import count

    price = {"price_per_million_input": 1e6, "system": "One two three.", "max_tokens": 1}
    part = recorded(files, server, judge=part_of(server, Judge, **price), grader=part_of(server, Grader, **price))
    data = Native(folder=str(files))
    cell = Cell("c", {}, data, WholeDocument(), BM25(), NoRerank(), part, PLAN)
    said = dict(line.split(": ", 1) for line in _chat_money([(cell, data.load())]))
    asked = sum(count(q.question) for q in data.load().questions)
    texts = asked + sum(map(count, TEXTS.values())) + 5 * 4
    assert f"about {texts:,} tokens sent, at most 5 received" in said["judge m, c"]
    assert f"at most {texts:,}" in said["judge m, c"]
    references = sum(map(count, ("Puna-maali", "Viisi tuntia", "Sininen")))
    assert f"about {texts + references:,} tokens sent" in said["grader m, c"]
    assert server.requests == []


@pytest.mark.parametrize("writes", [False, True])
def test_the_rehearsal_names_no_bound_where_there_is_none(files, server, writes):
    """Without `max_tokens` a reply may have any length, and so may what a judge of it reads."""
    from denominator.rehearsal import _chat_money

    free = {"price_per_million_input": 1.0, "price_per_million_output": 1.0, "max_tokens": None}
    part: Any = recorded(files, server, judge=part_of(server, Judge, **free), grader=None)
    if writes:
        part = part_of(server, Chat, judge=part_of(server, Judge, **{**free, "max_tokens": 8}), **free)
    data = Native(folder=str(files))
    cell = Cell("c", {}, data, WholeDocument(), BM25(), NoRerank(), part, PLAN)
    said = dict(line.split(": ", 1) for line in _chat_money([(cell, data.load())]))
    assert all(text.startswith("no upper bound; ") for text in said.values())
    unbounded = said["chat m, c" if writes else "judge m, c"]
    assert "no bound on what is received: max_tokens is null" in unbounded
    if writes:
        assert "tokens sent beside the answers, which have no bound, at most 40 received" in said["judge m, c"]
