"""The report: bytes, planted truth, injection, files read back, and pages that have little to show."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from denominator.deciding import Pair, comparison_html
from denominator.evaluation import summarize
from denominator.report import Failure, Written, build, write
from denominator.selection import compare
from denominator.types import Evidence, Question, RecordedRun
from tests import report_runs
from tests.report_runs import PLAN, corpus, grid, questions, recorded

SECTIONS = (
    "ledger",
    "table",
    "absent",
    "cost",
    "effects",
    "curves",
    "abstention",
    "slices",
    "audit",
    "questions",
    "health",
    "certainty",
    "reproduce",
)
VOID = {"meta", "br", "link", "img", "hr", "input"}
OPEN = {"li", "p", "td", "th", "tr", "thead", "tbody", "html", "body", "head"}


@pytest.fixture(scope="module")
def runs() -> list[RecordedRun]:
    return grid()


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def one(name: str, skill: float, seed: int, **options: object) -> RecordedRun:
    params = {"chunker": "fixed", "embedder": name, "reranker": "none"}
    options.setdefault("plan", replace(PLAN, baseline=None))
    return recorded(name, params, skill=skill, seed=seed, **options)  # type: ignore[arg-type]


def contents(written: Written) -> dict[str, bytes]:
    files = (written.html, written.markdown, written.csv, written.json, *written.figures)
    return {f.name: f.read_bytes() for f in files}


class Page(HTMLParser):
    """Every tag with its attributes, all text, and whether tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.stack: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def ids(self) -> list[str]:
        return [a["id"] or "" for _, a in self.tags if a.get("id")]


def page_of(report_runs_: Sequence[RecordedRun], folder: Path, **options: object) -> tuple[Page, Written]:
    written = write(build(report_runs_, **options), folder)  # type: ignore[arg-type]
    return Page(written.html.read_text(encoding="utf-8")), written


def check_whole(page: Page) -> None:
    """Well-formed, one self-contained file, nothing that runs, nothing from elsewhere."""
    assert not page.wrong
    assert page.stack == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "iframe", "object", "embed", "link", "img", "base", "form", "foreignobject"}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href", "action"):
                assert (value or "").startswith("#"), (tag, name, value)
    assert not re.search(r"url\((?!#)", " ".join(str(a.get("style") or "") for _, a in page.tags))


# ------------------------------------------------------------------ the whole page


def test_every_section_is_there_and_the_page_is_whole(runs: list[RecordedRun], tmp_path: Path) -> None:
    texts = {d.id: d.text for d in corpus()}
    page, written = page_of(runs, tmp_path, texts=texts)
    check_whole(page)
    assert [i for i in page.ids if i in SECTIONS] == list(SECTIONS)
    targets = [a["href"] for tag, a in page.tags if tag == "a"]
    assert targets
    assert all((t or "")[1:] in page.ids for t in targets)
    assert all(f.stat().st_size > 500 for f in written.figures)
    assert "hybrid · fixed · none" in "".join(page.text)
    markdown = written.markdown.read_text(encoding="utf-8")
    for title in ("Who counts", "The ranking", "Recall against K", "Abstention", "How to reproduce"):
        assert f"## {title}" in markdown
    header = next(line for line in markdown.splitlines() if line.startswith("| # |"))
    after = markdown.splitlines()[markdown.splitlines().index(header) + 1 :]
    assert after[0].startswith("| ---:")
    assert header.count("|") == after[0].count("|") == after[1].count("|")


def test_same_runs_same_bytes(runs: list[RecordedRun], tmp_path: Path) -> None:
    first = contents(write(build(runs), tmp_path / "a"))
    assert contents(write(build(list(reversed(runs))), tmp_path / "b")) == first
    mixed = [replace(run, outcomes=tuple(reversed(run.outcomes))) for run in runs]
    assert contents(write(build(mixed), tmp_path / "c"))["results.csv"] == first["results.csv"]
    assert b"2023-11-14 22:13 UTC" in first["report.html"]


@pytest.mark.slow
def test_same_bytes_in_another_process(runs: list[RecordedRun], tmp_path: Path) -> None:
    """Another hash seed orders sets and dictionaries of another process differently."""
    code = (
        "import sys; from pathlib import Path; from tests.report_runs import grid;"
        "from denominator.report import build, write;"
        "write(build(grid()), Path(sys.argv[1]))"
    )
    env = os.environ | {"PYTHONHASHSEED": "4242", "SOURCE_DATE_EPOCH": "1700000000"}
    root = Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True, cwd=root, env=env, timeout=120)
    here = contents(write(build(runs), tmp_path / "b"))
    there = {name: next((tmp_path / "a").rglob(name)).read_bytes() for name in here}
    assert here == there


# ------------------------------------------------------------------ planted truth


def test_a_planted_winner_is_found_and_planted_ties_stay_ties(tmp_path: Path) -> None:
    """Skill .98 against .3 is a real difference; the copy differs from the winner in nothing."""
    documents = corpus()
    asked = questions(documents)
    plan = replace(PLAN, baseline="weak 0", resamples=999)
    found = [one(f"weak {i}", 0.3, 20 + i, asked=asked, documents=documents, plan=plan) for i in range(4)]
    winner = one("winner", 0.98, 7, asked=asked, documents=documents, plan=plan)
    copy = replace(
        winner, run_id="copy", name="copy", cell_key="copy", params=dict(winner.params) | {"embedder": "copy"}
    )
    made = build([*found, winner, copy], metric="recall@1")
    assert made.ranking is not None
    assert set(made.ranking.best_set) == {"winner", "copy"}
    assert [row.rank for row in made.ranking.rows[:3]] == [1, 1, 3]
    assert made.ranking.row("winner").same_as == ("copy",)
    verdicts = {row.name: row.versus.verdict for row in made.ranking.rows if row.versus is not None}
    assert verdicts["winner"] == verdicts["copy"] == "better"
    assert not {verdicts[f"weak {i}"] for i in (1, 2, 3)} & {"better", "worse"}
    page = Page(write(made, tmp_path).html.read_text(encoding="utf-8"))
    text = " ".join("".join(page.text).split())
    assert "2 of 6 configurations cannot be told apart from the best" in text
    assert text.count("coincides") == 2


# ------------------------------------------------------------------ nothing in the data runs

SCRIPT = "<script>document.title='owned'</script>"
ATTACKS = (
    SCRIPT,
    '"><img src=x onerror="document.title=\'owned\'">',
    "'><svg onload=document.title='owned'>",
    "</title></style></svg><script>document.title='owned'</script>",
    "{{ 7*7 }}{% raw %}",
    "javascript:document.title='owned'",
    "<!--",
    "]]>",
)


def attacked() -> list[RecordedRun]:
    """Every text that a person or a data set can choose holds something that would run or break the page."""
    documents = tuple(replace(d, id=d.id + SCRIPT, text=d.text.replace("Amber", "</code>" + SCRIPT)) for d in corpus())
    asked = []
    for i, q in enumerate(questions(documents)):
        bad = ATTACKS[i % len(ATTACKS)]
        tags = {"category" + SCRIPT: f"{i % 2}{bad}", "$x_1$": "a" if i % 3 else "$\\frac{"}
        asked.append(replace(q, id=q.id + bad, question=f"{bad} {q.question}", tags=tags))
    found = []
    for i, name in enumerate(
        (f"a{ATTACKS[0]}", f"b{ATTACKS[1]}", f"c{ATTACKS[3]} $x^2$ $", f"d$\\notlatex{{{ATTACKS[4]}")
    ):
        run = recorded(
            name,
            {"chunker": "fixed", "embedder" + SCRIPT: f"{i}{ATTACKS[2]}", "reranker": ATTACKS[i]},
            skill=0.3 + 0.2 * i,
            seed=i + 1,
            plan=replace(PLAN, baseline=None),
            asked=asked,
            documents=documents,
        )
        found.append(run)
    found.append(
        replace(
            found[0],
            run_id="bad" + SCRIPT,
            name="incomplete" + ATTACKS[1],
            ledger=replace(found[0].ledger, incomplete=True),
        )
    )
    return found


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Path]:
    found = attacked()
    folder = tmp_path_factory.mktemp("attack")
    made = build(
        found,
        failures=[Failure("broken" + SCRIPT, ATTACKS[1], ATTACKS[2])],
        texts={d.id: ATTACKS[3] + d.text for d in corpus()} | {d.id + SCRIPT: SCRIPT + d.text for d in corpus()},
        meta={"command": "denominator sweep " + ATTACKS[3], "dataset": ATTACKS[1], "versions": SCRIPT},
        title="Which " + ATTACKS[3],
    )
    written = write(made, folder)
    comparison = folder / "compare.html"
    pair = Pair(found[0], found[3], {}, (SCRIPT,))
    comparison.write_text(comparison_html(compare(found[0], found[3]), pair), encoding="utf-8")
    return written, comparison


def test_injected_markup_is_inert(attack: tuple[Written, Path]) -> None:
    written, comparison = attack
    for file in (written.html, comparison):
        page = Page(file.read_text(encoding="utf-8"))
        check_whole(page)
        text = " ".join(page.text)
        assert SCRIPT in text, file.name  # shown as what it is
        assert "{{ 7*7 }}{% raw %}" in text, file.name
    for figure in written.figures:
        page = Page(figure.read_text(encoding="utf-8"))
        assert not {t for t, _ in page.tags} & {"script", "img"}


def test_markdown_holds_no_markup_of_the_data(attack: tuple[Written, Path]) -> None:
    text = attack[0].markdown.read_text(encoding="utf-8")
    inside = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)  # an indented block shows its text as it is
    assert not re.search(r"<[a-zA-Z/!]", inside)
    assert html.unescape(html.unescape(inside)).count("<script>")


@pytest.mark.service
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_injected_scripts_do_not_run_in_a_browser(attack: tuple[Written, Path], tmp_path: Path) -> None:
    def title(file: Path, profile: str) -> str:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / profile}",
            "--virtual-time-budget=2000",
            "--dump-dom",
        ]
        done = subprocess.run(
            ["chromium", *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        found = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
        assert found is not None
        return html.unescape(found[1])

    control = tmp_path / "control.html"  # the browser does run scripts, or the test could not fail
    control.write_text(f"<!doctype html><title>x</title><body>{SCRIPT}</body>", encoding="utf-8")
    assert title(control, "control") == "owned"
    for i, file in enumerate((attack[0].html, attack[1])):
        said = title(file, f"page{i}")
        assert said != "owned"
        assert said.endswith("– denominator")


# ------------------------------------------------------------------ the data files


def test_csv_and_json_hold_full_precision(runs: list[RecordedRun], tmp_path: Path) -> None:
    made = build(runs)
    written = write(made, tmp_path)
    assert made.ranking is not None

    def refuse(name: str) -> float:
        raise AssertionError(name)

    data = json.loads(written.json.read_text(encoding="utf-8"), parse_constant=refuse)
    by_id = {r["run_id"]: r["summary"] for r in data["runs"]}
    assert len(by_id) == 12
    for run in runs:
        mine = summarize(run.outcomes, run.plan)
        for name, e in mine.metrics.items():
            assert by_id[run.run_id]["metrics"][name] == json.loads(json.dumps(e.as_dict()))
    table = list(csv.DictReader(io.StringIO(written.csv.read_text(encoding="utf-8"))))
    assert [row["name"] for row in table] == [row.name for row in made.ranking.rows]
    for line, row in zip(table, made.ranking.rows, strict=True):
        assert float(line[made.metric]) == row.estimate.value
        assert int(line[f"{made.metric} n"]) == row.estimate.n
        assert float(line[f"{made.metric} low"]) == row.estimate.ci_low
        if row.versus is not None:
            assert float(line["p adjusted"]) == row.versus.p_adjusted
            assert float(line["difference to baseline"]) == row.versus.difference.value
        assert line["in best set"] == str(row.in_best_set)
    recall = [float(line["recall@5"]) for line in table]
    mean = [math.fsum(o.values["recall@5"] or 0 for o in r.outcomes if o.state == "answerable") / 60 for r in runs]
    assert sorted(recall) == pytest.approx(sorted(mean), abs=1e-15)


def test_a_spreadsheet_runs_no_formula(tmp_path: Path) -> None:
    run = one('=HYPERLINK("http://x")', 0.6, 1)
    page, written = page_of([run, one("+1", 0.5, 2)], tmp_path)
    names = [line["name"] for line in csv.DictReader(io.StringIO(written.csv.read_text(encoding="utf-8")))]
    assert sorted(names) == ["'+1", '\'=HYPERLINK("http://x")']
    check_whole(page)


# ------------------------------------------------------------------ pages with little to show


def text_of(page: Page) -> str:
    return " ".join("".join(page.text).split())


def test_what_failed_or_is_incomplete_is_named(tmp_path: Path) -> None:
    whole, lost = one("whole", 0.6, 1), one("lost", 0.9, 2, failed=["q001", "q002"])
    other = one("third", 0.5, 3)
    page, written = page_of([whole, lost, other], tmp_path, failures=[Failure("gone", "out of memory", "embedder=x")])
    check_whole(page)
    said = text_of(page)
    assert "1 cell failed" in said
    assert "out of memory" in said
    assert "embedder=x" in said
    assert "2 questions failed and 0 are missing" in said
    data = json.loads(written.json.read_text(encoding="utf-8"))
    assert [r["name"] for r in data["decision"]["rankings"][0]["rows"]] == ["whole", "third"] or len(
        data["decision"]["rankings"][0]["rows"]
    ) == 2
    assert data["failures"] == [{"name": "gone", "reason": "out of memory", "overrides": "embedder=x"}]


def test_nothing_can_be_ranked(tmp_path: Path) -> None:
    page, written = page_of([one("a", 0.6, 1, failed=["q001"])], tmp_path)
    check_whole(page)
    assert "No configuration can be ranked" in text_of(page)
    assert "absent" in page.ids
    assert "reproduce" in page.ids
    assert written.figures == ()
    assert written.csv.read_text(encoding="utf-8").splitlines()[0] == "name,reason"


def test_a_single_run(tmp_path: Path) -> None:
    page, _ = page_of([one("a", 0.6, 1)], tmp_path)
    check_whole(page)
    assert "Only one configuration can be compared" in text_of(page)


def test_runs_without_spans(tmp_path: Path) -> None:
    documents = corpus()
    asked = [
        replace(q, gold=tuple(tuple(Evidence(e.doc) for e in group) for group in q.gold)) for q in questions(documents)
    ]
    found = [one(f"r{i}", 0.5, i, asked=asked, documents=documents) for i in range(2)]
    page, _ = page_of(found, tmp_path)
    check_whole(page)
    assert "recall@5" in text_of(page)
    assert "coverage@b60 (" not in text_of(page)


def test_micro_aggregation(tmp_path: Path) -> None:
    documents = corpus()
    asked = questions(documents)
    asked = (replace(asked[0], gold=(*asked[0].gold, (Evidence(documents[3].id, 0, 20),))), *asked[1:])
    plan = replace(PLAN, baseline=None, aggregation="micro")
    found = [one(f"r{i}", 0.4 + 0.2 * i, i, plan=plan, asked=asked, documents=documents) for i in range(2)]
    made = build(found, metric="recall@5")
    assert made.ranking is not None
    assert made.ranking.n == 61  # evidence groups, not questions
    page = Page(write(made, tmp_path).html.read_text(encoding="utf-8"))
    check_whole(page)
    assert "mean over n = 61 evidence groups" in text_of(page)
    assert "of 60 questions" in text_of(page)  # what differs or fails is counted in questions


def test_words_fit_the_numbers(tmp_path: Path) -> None:
    documents = corpus(6)
    asked = questions(documents, 30)
    plan = replace(PLAN, alpha=0.1, baseline="bad")
    made = [
        recorded(name, {"embedder": name}, skill=s, seed=n, asked=asked, documents=documents, plan=plan)
        for n, (name, s) in enumerate((("good", 1.0), ("bad", 0.0)), 1)
    ]
    report = build(made, metric="hit@5")
    assert report.ranking is not None
    assert report.ranking.best_set == ("good",)
    written = write(report, tmp_path)
    for file in (written.html, written.markdown):
        text = file.read_text("utf-8")
        assert "90 %" in text
        assert "95 %" not in text
        assert "exact McNemar tests" in text  # hit is 0 or 1, and nothing is clustered
        assert "by None" not in text
        assert "which can be told apart from every other" in text
    assert "paired sign flips" in write(build(made, metric="recall@5"), tmp_path).html.read_text("utf-8")


def test_without_a_baseline_there_are_no_p_values(tmp_path: Path) -> None:
    page, written = page_of([one("a", 0.6, 1), one("b", 0.5, 2)], tmp_path)
    assert "No baseline was declared, so there are no p-values." in text_of(page)
    assert "adj. p" not in text_of(page)
    rows = list(csv.DictReader(io.StringIO(written.csv.read_text(encoding="utf-8"))))
    assert all(row["p adjusted"] == "" for row in rows)


def test_names_with_dollars_are_text(tmp_path: Path) -> None:
    names = ("a $5 model", "$x_1$", "100 % _under_ ^hat", "tail$")
    page, written = page_of([one(n, 0.4 + 0.1 * i, i) for i, n in enumerate(names)], tmp_path)
    check_whole(page)
    forest = next(f for f in written.figures if f.name == "forest.svg").read_text(encoding="utf-8")
    for name in names:
        assert html.escape(name, quote=False) in forest


def test_questions_without_tags_or_unanswerable_ones(tmp_path: Path) -> None:
    documents = corpus()
    asked = [replace(q, tags={}) for q in questions(documents) if q.answerability == "answerable"]
    page, _ = page_of([one(f"r{i}", 0.5, i, asked=asked, documents=documents) for i in range(2)], tmp_path)
    check_whole(page)
    assert "The questions carry no tags to slice by." in text_of(page)
    assert "nothing can be said about abstention" in text_of(page)


def test_nothing_differs(tmp_path: Path) -> None:
    a = one("a", 0.6, 1)
    b = replace(a, run_id="b", name="b", cell_key="b", params=dict(a.params) | {"embedder": "b"})
    page, _ = page_of([a, b], tmp_path)
    check_whole(page)
    assert "No two configurations differ on any question." in text_of(page)


def test_a_question_without_text(tmp_path: Path) -> None:
    documents = corpus()
    asked = [Question(q.id, None, q.answerability, q.gold) for q in questions(documents)]
    page, _ = page_of([one(f"r{i}", 0.5, i, asked=asked, documents=documents) for i in range(2)], tmp_path)
    check_whole(page)
    assert "the question's text was not recorded" in text_of(page)


def test_the_recorded_runs_of_the_tests_are_what_they_say() -> None:
    """Figures of the page come from `summarize`; the fixtures must agree with it, or nothing here means anything."""
    run = report_runs.recorded("x", {"chunker": "fixed"}, skill=0.5, seed=1)
    assert run.ledger == summarize(run.outcomes, run.plan).ledger
