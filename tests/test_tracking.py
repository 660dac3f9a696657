"""The record: names, limits, one run a cell, nothing doubled or lost. Read back with sqlite, not with our code."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denominator.errors import ConfigError, StoreError
from denominator.evaluation import Summary, evaluate, summarize
from denominator.masking import forget, mask, remember
from denominator.pipeline import DatasetFacts
from denominator.records import SCHEMA_VERSION
from denominator.tracking import (
    Store,
    default_uri,
    load_sweep,
    mlflow_payload,
    resolve_uri,
    slice_key,
    slice_of,
    spell,
    to_frame,
    unspell,
)
from denominator.tracking.calls import Line, StoreAwayError, retry
from denominator.tracking.facts import alive, owner, process_tags
from denominator.tracking.reading import UPGRADES, upgraded
from denominator.tracking.spelling import METRIC_LIMIT, param_text, shortened
from denominator.tracking.views import KEPT, newest_view, save_view, state_of, sweep_state, varying
from denominator.types import (
    Estimate,
    Evidence,
    Hit,
    Outcome,
    Plan,
    Question,
    Result,
    Run,
    StageTime,
)
from tests.blank_store import blank_store
from tests.postgres import free_port

# Recalls 1, 1, .5, 1, 0, .5, 1 and one unanswerable question: 5/7 over n = 7.
SEED = {"q1": "ab", "q2": "a", "q3": "ac", "q4": "b", "q5": "z", "q6": "ac", "q7": "a"}


@dataclass(frozen=True)
class FakeResult:
    """What pipeline gives, reduced to what the record reads."""

    cell_key: str
    name: str
    params: dict[str, Any]
    plan: Plan
    dataset: DatasetFacts
    outcomes: tuple[Outcome, ...]
    summary: Summary
    timings: tuple[StageTime, ...] = (StageTime("chunk", 0.5, 0.0, True), StageTime("rank", 0.25, 0.25, False))
    facts: dict[str, float] = field(default_factory=lambda: {"n_chunks": 4.0, "broken": float("nan")})
    fingerprints: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ("a note",)


def make(key: str = "k" * 64, name: str = "fixed · bm25 · none", **changes: Any) -> FakeResult:
    questions = [
        Question(
            q, f"What is {q}?", "answerable", tuple((Evidence(d),) for d in gold), tags={"type": "how-to (v2), 50%"}
        )
        for q, gold in SEED.items()
    ]
    questions.append(Question("q8", "Who knows?", "unanswerable", tags={"type": "near miss"}))
    results = {q.id: Result((Hit("a", "a", 2.0), Hit("b", "b", 1.0)), depth=5) for q in questions}
    plan = Plan(ks=(1, 5), pool=5, threshold=0.5, slices=("type",))
    outcomes = evaluate(questions, Run.from_results(results), plan)
    made = FakeResult(
        key,
        name,
        {"chunker": "fixed", "chunker.size": 128, "long": "x" * 7000},
        plan,
        DatasetFacts("tiny", "d" * 64, "c" * 64, 5, 8, "tiny/questions.jsonl"),
        outcomes,
        summarize(outcomes, plan),
    )
    return replace(made, **changes)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    out = tmp_path_factory.mktemp("record with blank") / "out"
    blank_store(out)
    return Store.open(default_uri(out), "tests", out)


def rows(store: Store, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with sqlite3.connect(store.uri.removeprefix("sqlite:///")) as connection:
        return connection.execute(query, values).fetchall()


# ------------------------------------------------------------------ names


@given(st.sampled_from(["recall@5", "coverage@b2000", "r_precision"]), st.text(max_size=12), st.text(max_size=12))
def test_slice_names_are_reversible_and_allowed(name: str, tag: str, value: str) -> None:
    key = slice_key(name, tag, value)
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. :")
    assert slice_of(key) == (name, tag, value)
    assert "__" not in key.split("__slice.", 1)[1]  # so that `__n` after it is never part of the value


def test_long_slice_names_stay_different_and_within_the_limit() -> None:
    keys = {slice_key("recall@5", "t", "x" * 400 + end) for end in "ab"}
    assert len(keys) == 2
    assert all(len(k) + len("__ci_high") <= METRIC_LIMIT for k in keys)
    assert all(slice_of(k) is None for k in keys)


def test_spelling_goes_both_ways() -> None:
    for name in ("recall@5", "slot_recall@10", "coverage@b2000", "map@100", "r_precision", "recall@5_micro"):
        assert unspell(spell(name)) == name
        assert "@" not in spell(name)


def test_undefined_is_a_tag_and_never_a_number() -> None:
    metrics, tags = mlflow_payload("precision@5", Estimate(None, 3, "or_groups_unsupported"))
    assert metrics == {"precision_at_5__n": 3}
    assert tags == {"undefined.precision_at_5": "or_groups_unsupported"}


def test_long_values_are_marked_and_stay_different() -> None:
    one, two = (param_text("x" * 7000 + end) for end in "ab")
    assert one != two
    assert len(one) <= 500
    assert "shortened: 7001 characters, sha256" in one
    assert shortened("short", 500) == "short"
    assert param_text([1, None, True]) == "1, none, true"


# ------------------------------------------------------------------ addresses


def test_relative_addresses_are_read_from_the_folder_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_uri("sqlite:///mlflow.db", tmp_path / "out", tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_uri(None, tmp_path / "out", tmp_path) == f"sqlite:///{tmp_path}/out/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.invalid:5000")
    assert resolve_uri(None, tmp_path, tmp_path) == "http://tracking.invalid:5000"


def test_a_plain_folder_is_refused_with_the_setting_to_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri=sqlite:///mlruns\.db"):
        resolve_uri("./mlruns", tmp_path, tmp_path)


def test_a_store_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be made"):
        Store.open(f"sqlite:///{tmp_path}/file/mlflow.db", "x", tmp_path)


def test_a_file_that_is_no_store_says_so(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database, not at all, " * 50)
    with pytest.raises(StoreError):
        Store.open(f"sqlite:///{tmp_path}/mlflow.db", "x", tmp_path)


@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg"])
def test_a_server_that_is_not_there_is_refused_within_seconds(tmp_path: Path, scheme: str) -> None:
    port, begun = free_port(), time.perf_counter()
    with pytest.raises(StoreError, match=rf"127\.0\.0\.1:{port} does not answer .*refused.*tracking\.uri") as caught:
        Store.open(f"{scheme}://127.0.0.1:{port}", "x", tmp_path)
    assert caught.value.exit_code == 2
    assert time.perf_counter() - begun < 10  # 2 s of pauses and the import of mlflow


def test_a_server_that_hangs_is_refused_within_seconds_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denominator.tracking.calls.PROBE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says anything
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.perf_counter()
        with pytest.raises(StoreError, match=r"does not answer \(nothing within 1 s\)"):
            Store.open(uri, "x", tmp_path)
        assert time.perf_counter() - begun < 5


def test_a_store_that_was_found_away_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    port, calls = free_port(), []
    line = Line(f"http://127.0.0.1:{port}")

    def away() -> None:
        calls.append(1)
        raise ConnectionError("Connection refused")

    monkeypatch.setattr("denominator.tracking.calls.RETRIES", 3)
    with pytest.raises(StoreError, match=rf"^writing failed: the server at .*:{port} does not answer \(connection ref"):
        line.ask(away, what="writing")
    assert len(calls) == 3
    with pytest.raises(StoreError, match="reading was not tried: the server at"):
        line.ask(away, what="reading")
    assert len(calls) == 3
    line.until = 0.0  # later it is looked after again
    with serving_health(port):
        assert line.ask(lambda: "here", what="reading") == "here"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Changing param values is not allowed. Param with key='answerer.timeout' was already logged", None),
        ("Param with key='connection' was already logged with value='503'", None),
        ("Invalid value 'connection timed out' for parameter 'reason'", "INVALID_PARAMETER_VALUE"),
    ],
)
def test_an_error_that_names_a_timeout_is_not_a_store_that_is_away(text: str, code: str | None) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ErrorCode

    calls: list[int] = []

    def refused() -> None:
        calls.append(1)
        raise MlflowException(text) if code is None else MlflowException(text, ErrorCode.Value(code))

    with pytest.raises(StoreError) as caught:
        retry(refused, what="writing", wait=0.0)
    assert type(caught.value) is StoreError
    assert len(calls) == 1


@pytest.mark.parametrize(
    "text",
    [
        "API request to http://h/api failed with exception Max retries exceeded with url: /api (Read timed out.)",
        "API request to endpoint /api/2.0/mlflow/runs/get failed with error code 503 != 200. Response body: 'x'",
        "API request to http://h/api failed with timeout exception",
        'connection to server at "10.0.0.1", port 5432 failed: Connection refused',
        "server closed the connection unexpectedly",
        "SSL connection has been closed unexpectedly",
        "connection timeout expired",
        "terminating connection due to administrator command",
        "(2013, 'Lost connection to MySQL server during query')",
        "QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00",
    ],
)
def test_a_store_that_does_not_answer_is_away(text: str) -> None:
    from mlflow.exceptions import MlflowException

    def lost() -> None:
        raise MlflowException(text)

    with pytest.raises(StoreAwayError):
        retry(lost, what="writing", attempts=1)


def test_a_call_that_fails_where_the_server_is_there_is_no_store_that_is_away() -> None:
    port = free_port()

    def failing() -> None:
        raise ConnectionError("Connection refused")

    line = Line(f"http://127.0.0.1:{port}")
    with serving_health(port), pytest.raises(StoreError, match="writing failed: Connection refused") as caught:
        line.ask(failing, what="writing", attempts=1)
    assert type(caught.value) is StoreError
    assert line.away is None


@contextlib.contextmanager
def serving_health(port: int) -> Iterator[None]:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Health) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield
        server.shutdown()
        thread.join()


# ------------------------------------------------------------------ a cell


def test_a_cell_is_one_flat_run_with_everything(store: Store) -> None:
    result = make("1" * 64)
    started = store.start_cell(result.name, result.cell_key, "sweep1", ["chunker=fixed"])
    run_id = store.log_cell(result, "sweep1", run_id=started, config="chunker: x\n", settings={"dataset": "tiny"})  # type: ignore[arg-type]
    assert run_id == started
    metrics = dict(rows(store, "select key, value from latest_metrics where run_uuid = ?", run_id))
    assert metrics["recall_at_5"] == pytest.approx(5 / 7, abs=1e-12)
    assert metrics["recall_at_5__n"] == 7
    assert metrics["recall_at_5__ci_low"] < 5 / 7 < metrics["recall_at_5__ci_high"]
    assert metrics["eligible_n"] == 7
    assert metrics["recall_at_5__slice.type.how-to :28:v2:29::2c: 50:25:__n"] == 7
    assert "coverage_at_b2000" not in metrics
    assert "broken" not in metrics
    assert not rows(store, "select 1 from metrics where is_nan or value is null or abs(value) > 1e300")
    curve = rows(
        store, "select step, value from metrics where run_uuid = ? and key = 'recall_at_k' order by step", run_id
    )
    assert [step for step, _ in curve] == [1, 5]
    tags = dict(rows(store, "select key, value from tags where run_uuid = ?", run_id))
    assert tags["recorded"] == "true"
    assert tags["incomplete"] == "false"
    assert tags["kind"] == "cell"
    assert tags["cell_key"] == "1" * 64
    assert tags["headline_metric"] == "recall@5"
    assert tags["undefined.broken"] == "not_finite"
    assert tags["undefined.coverage_at_b2000"] == "no_spans"
    assert json.loads(tags["mlflow.loggedArtifacts"])[0]["path"] == "per_question_table.json"
    assert "undefined.recall_at_5__slice.type.near miss" not in tags  # a slice without eligible questions: in the table
    assert not [key for key in metrics if "near miss" in key]
    assert "5/7" not in tags["mlflow.note.content"]
    assert "0.714" in tags["mlflow.note.content"]
    params = dict(rows(store, "select key, value from params where run_uuid = ?", run_id))
    assert params["chunker"] == "fixed"
    assert params["ks"] == "1, 5"
    assert params["dataset"] == "tiny"
    assert "shortened: 7000 characters" in params["long"]
    assert rows(store, "select status from runs where run_uuid = ?", run_id) == [("FINISHED",)]
    name, digest = rows(store, "select name, digest from datasets")[0]
    assert name == "tiny"
    assert len(digest) <= 36
    assert not (store.out / "pending").exists()


def test_the_files_of_a_cell(store: Store) -> None:
    result = make("2" * 64)
    run_id = store.log_cell(result, "sweep2", config="a: 1\n")  # type: ignore[arg-type]
    folder = store.out / "artifacts" / run_id / "artifacts"
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == [
        "audit.json",
        "cell.json",
        "config.yaml",
        "figures/confidence.png",
        "figures/confusion.png",
        "figures/recall_at_k.png",
        "figures/risk_coverage.png",
        "figures/slices.png",
        "fingerprint.json",
        "ledger.json",
        "metrics_table.json",
        "per_question.jsonl",
        "per_question_table.json",
        "timings.jsonl",
    ]
    lines = (folder / "per_question.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 8
    recalls = [
        json.loads(line)["values"].get("recall@5") for line in lines if json.loads(line)["state"] == "answerable"
    ]
    assert sum(recalls) / len(recalls) == pytest.approx(5 / 7)
    ledger = json.loads((folder / "ledger.json").read_text(encoding="utf-8"))
    assert sum(ledger["states"].values()) == ledger["N"] == 8

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    for file in folder.glob("*.json"):
        json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    table = json.loads((folder / "per_question_table.json").read_text(encoding="utf-8"))
    assert table["columns"][:2] == ["question id", "outcome"]
    by_id = {row[0]: row[1] for row in table["data"]}
    assert by_id["q1"] == "found"
    assert by_id["q5"] == "missed"
    assert by_id["q3"] == "found in part"
    for png in folder.rglob("*.png"):
        assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_same_outcomes_same_bytes(tmp_path: Path) -> None:
    from denominator.tracking import write_cell_files

    for folder in ("one", "two"):
        write_cell_files(tmp_path / folder, make(), config="a: 1\n")  # type: ignore[arg-type]
    for file in sorted((tmp_path / "one").rglob("*")):
        if file.is_file():
            assert file.read_bytes() == (tmp_path / "two" / file.relative_to(tmp_path / "one")).read_bytes(), file


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("metrics.recall_at_5 > 0.7 and tags.recorded = 'true'", True),
        ("metrics.recall_at_5 > 0.8 and tags.recorded = 'true'", False),
        ("params.\"chunker\" = 'fixed'", True),
        ("params.\"chunker\" = 'sentences'", False),
        ("params.`chunker.size` = '128'", True),
        ("dataset.name = 'tiny'", True),
        ("dataset.context = 'evaluation' and dataset.name = 'tiny'", True),
        ("dataset.name = 'huge'", False),
        ("metrics.`recall_at_5__slice.type.how-to :28:v2:29::2c: 50:25:` > 0.7", True),
        ("metrics.coverage_at_b2000 < 2", False),  # undefined: no number that a filter could match
        ("tags.`undefined.coverage_at_b2000` = 'no_spans'", True),
        ("tags.`sweep.sweep3` = 'true'", True),
    ],
)
def test_search_words_of_mlflow_work(store: Store, query: str, found: bool) -> None:
    known = store.recorded(["3" * 64])
    run_id = known.get("3" * 64) or store.log_cell(make("3" * 64), "sweep3")  # type: ignore[arg-type]
    assert (run_id in [r.run_id for r in store.search(query)]) is found


def test_few_metrics_in_an_order_that_begins_with_the_headline(store: Store) -> None:
    result = make("31" * 32)
    run_id = store.log_cell(result, "sweep31")  # type: ignore[arg-type]
    keys = [k for (k,) in rows(store, "select key from latest_metrics where run_uuid = ? order by rowid", run_id)]
    first = ["recall_at_5", "recall_at_5__ci_low", "recall_at_5__ci_high", "recall_at_5__n"]
    assert keys[:4] == first  # what MLflow's page and its comparison plots begin with
    assert {"recall_at_1", "recall_at_1__n", "eligible_n", "mrr_at_5", "precision_at_5", "abstention_recall"} <= set(
        keys
    )
    assert not {"mrr_at_1", "precision_at_1", "hit_at_1"} & set(keys)  # one K of each family; all are in the table
    folder = store.out / "artifacts" / run_id / "artifacts"
    table = json.loads((folder / "metrics_table.json").read_text(encoding="utf-8"))
    assert table["columns"][:3] == ["metric", "value", "n"]
    values = {row[0]: row[1:3] for row in table["data"]}
    assert values["recall@5"] == [0.7143, 7]
    assert values["mrr@1"] == [0.7143, 7]
    assert values["recall@5, type = near miss"] == ["empty_slice", 0]
    assert values["coverage@b2000"] == ["no_spans", 0]
    assert set(result.summary.metrics) <= set(values)
    params = dict(rows(store, "select key, value from params where run_uuid = ?", run_id))
    assert {"ks", "budget", "pool", "eligibility"} <= set(params)
    assert not {"alpha", "seed", "margin", "baseline", "aggregation"} & set(params)  # defaults: in cell.json
    assert params["threshold"] == "0.5"  # not the default


def test_the_question_table_is_bounded_and_marks_what_holds_evidence() -> None:
    from denominator.tracking import question_table

    gold = ((Evidence("a", 10, 20),),)
    hits = (Hit("a#1", "a", 3.0, 0, 10), Hit("a#2", "a", 2.0, 15, 30), Hit("b#1", "b", 1.0, 0, 5))
    one = Outcome("q", "answerable", "answerable", "ok", "?", gold, hits, 3, {"recall@5": 1.0})
    many = [replace(one, id=f"q{i:04d}") for i in range(1_200)]
    table = question_table(many, Plan(), "recall@5", {"a": "0123456789abcdefghij" * 2, "b": "bbbbb"})
    assert len(table["data"]) == 1_000
    lines = table["data"][0][table["columns"].index("retrieved")].splitlines()
    assert [line[:4] for line in lines] == ["~ 1.", "✓ 2.", "· 3."]
    assert lines[1].endswith("fghij0123456789")
    assert table["data"][0][table["columns"].index("mrr@10")] == "not scored"


def test_read_back_gives_the_same_outcomes(store: Store) -> None:
    result = make("4" * 64)
    store.log_cell(result, "sweep4")  # type: ignore[arg-type]
    (cell,) = load_sweep("sweep4", store=store)
    assert tuple(cell.outcomes) == result.outcomes
    assert cell.plan == result.plan
    assert cell.ledger == result.summary.ledger
    assert cell.facts == {"n_chunks": 4.0}
    again = summarize(cell.outcomes, cell.plan)
    assert again.metrics["recall@5"].value == pytest.approx(cell.metrics["recall_at_5"], abs=1e-15)
    with pytest.raises(StoreError, match="no recorded cells of the sweep 'nonsense'"):
        load_sweep("nonsense", store=store)


def test_missing_files_of_a_recorded_run_are_named(store: Store) -> None:
    run_id = store.log_cell(make("5" * 64), "sweep5")  # type: ignore[arg-type]
    (store.out / "artifacts" / run_id / "artifacts" / "per_question.jsonl").unlink()
    with pytest.raises(StoreError, match="force=true"):
        load_sweep("sweep5", store=store)


# ------------------------------------------------------------------ once, and only once


def test_recorded_knows_complete_cells_only(store: Store) -> None:
    done = store.log_cell(make("6" * 64), "sweep6")  # type: ignore[arg-type]
    incomplete = make("7" * 64)
    summary = replace(incomplete.summary, ledger=replace(incomplete.summary.ledger, incomplete=True))
    store.log_cell(replace(incomplete, summary=summary), "sweep6")  # type: ignore[arg-type]
    started = store.start_cell("x", "8" * 64, "sweep6")
    keys = ["6" * 64, "7" * 64, "8" * 64]
    assert store.recorded(keys) == {"6" * 64: done}
    assert store.recorded([*keys, "a", "b", "c"]) == {"6" * 64: done}
    store.log_killed(started)


def test_a_run_of_a_dead_process_is_taken_up_not_doubled(store: Store) -> None:
    result = make("9" * 64)
    left = store.start_cell(result.name, result.cell_key, "sweep9")
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    store.client.set_tag(left, "process", f"{socket.gethostname()} {gone.stdout.strip()}")
    assert store.start_cell(result.name, result.cell_key, "sweep9") == left
    store.log_cell(result, "sweep9", run_id=left)  # type: ignore[arg-type]
    assert [r.run_id for r in store.search(f"tags.cell_key = '{result.cell_key}'")] == [left]


def test_a_run_of_a_living_process_is_left_alone(store: Store) -> None:
    left = store.start_cell("x", "a1" * 32, "sweep10")
    store.client.set_tag(left, "process", f"{socket.gethostname()} {os.getppid()}")
    other = store.start_cell("x", "a1" * 32, "sweep10")
    assert other != left
    for run in (left, other):
        store.log_killed(run)


def test_alive_tells_a_reused_pid(tmp_path: Path) -> None:
    mine = process_tags()
    assert alive(mine)
    host, pid, started = owner(mine)
    assert (host, pid) == (socket.gethostname(), str(os.getpid()))
    assert not alive({"process": f"{host} {pid} 1"}) or not started
    assert not alive({"process": f"{host} 0x"})
    assert alive({"process": "elsewhere 1 1"})
    assert alive({"host": "elsewhere", "pid": "1", "process_started": "1"})  # as schema 1 had it
    assert not alive({"host": host, "pid": "0x"})


def test_when_the_store_is_away_the_outcomes_wait_and_are_sent_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = make("b1" * 32, name="waiting")

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the tracking server is away")

    monkeypatch.setattr("denominator.tracking.store.time.sleep", lambda _: None)
    with monkeypatch.context() as broken:
        broken.setattr(store.client, "log_batch", away)
        with pytest.raises(StoreError, match=r"safe in .*pending.* next start records them"):
            store.log_cell(result, "sweep11")  # type: ignore[arg-type]
    assert not store.recorded([result.cell_key])
    assert store.send_pending() == ["waiting"]
    assert store.send_pending() == []
    assert len(store.search(f"tags.cell_key = '{result.cell_key}'")) == 1
    (cell,) = load_sweep("sweep11", store=store)
    assert tuple(cell.outcomes) == result.outcomes


@pytest.mark.parametrize("text", ["database is locked", "UNIQUE constraint failed: datasets.name", "503 Server Error"])
def test_a_busy_store_is_asked_again(text: str) -> None:
    calls: list[int] = []

    def busy() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError(f"(sqlite3.Error) {text}")
        return "done"

    assert retry(busy, what="writing", wait=0.0) == "done"
    with pytest.raises(StoreError, match="writing failed: bad value"):
        retry(lambda: (_ for _ in ()).throw(ValueError("bad value")), what="writing", wait=0.0)


def test_failures_keep_their_trace_and_never_count(store: Store) -> None:
    remember("S3CRET-9")
    run_id = store.start_cell("broken", "c1" * 32, "sweep12")
    store.log_failure(run_id, "broken", ValueError("no way S3CRET-9"), trace="Traceback … S3CRET-9", overrides=["a=b"])
    run = store.search(f"tags.cell_key = '{'c1' * 32}'")[0]
    assert run.status == "FAILED"
    assert run.tags["error"] == "no way ***"
    assert (
        (store.out / "artifacts" / run_id / "artifacts" / "traceback.txt").read_text(encoding="utf-8").endswith("***")
    )
    assert not store.recorded(["c1" * 32])
    with pytest.raises(StoreError):
        load_sweep("sweep12", store=store)
    forget(["S3CRET-9"])


def test_a_sweep_is_one_run_however_often_it_is_started(store: Store) -> None:
    one = store.start_sweep("sweep13", "two cells")
    assert store.start_sweep("sweep13", "two cells") == one
    store.log_sweep(one, note="**done**", cells=[{"name": "a"}], metrics={"cells": 2, "bad": float("nan")})
    run = store.sweep("sweep13")
    assert run is not None
    assert run.recorded
    assert run.metrics == {"cells": 2.0}
    cells = store.out / "artifacts" / one / "artifacts" / "cells.json"
    assert json.loads(cells.read_text(encoding="utf-8")) == [{"name": "a"}]


def test_cells_of_an_earlier_sweep_can_belong_to_another(store: Store) -> None:
    run_id = store.log_cell(make("d1" * 32), "sweep14")  # type: ignore[arg-type]
    store.adopt([run_id], "sweep15")
    assert [c.run_id for c in load_sweep("sweep15", store=store)] == [run_id]
    assert [c.run_id for c in load_sweep("sweep14", store=store)] == [run_id]


def test_deleted_experiments_are_named(tmp_path: Path, store: Store) -> None:
    other = Store.open(store.uri, "gone", store.out)
    other.client.delete_experiment(other.experiment_id)
    with pytest.raises(StoreError, match="mlflow experiments restore"):
        Store.open(store.uri, "gone", store.out)


def test_a_very_long_experiment_name_is_shortened(store: Store) -> None:
    other = Store.open(store.uri, "e" * 600, store.out)
    assert "shortened: 600 characters" in other.experiment


# ------------------------------------------------------------------ as a table, as a view


def test_outcomes_as_a_data_frame(store: Store) -> None:
    store.log_cell(make("f1" * 32, name="one"), "sweepf")  # type: ignore[arg-type]
    other = make("f2" * 32, name="two", params={"chunker": "sentences", "chunker.size": 128})
    store.log_cell(other, "sweepf")  # type: ignore[arg-type]
    frame = to_frame(load_sweep("sweepf", store=store))
    assert len(frame) == 16
    assert list(frame.columns[:3]) == ["run", "run_id", "param.chunker"]
    assert "param.chunker.size" not in frame  # the same everywhere
    eligible = frame[frame.state == "answerable"].groupby("run")["recall@5"].agg(["mean", "count"])
    assert eligible["mean"].tolist() == pytest.approx([5 / 7, 5 / 7])
    assert eligible["count"].tolist() == [7, 7]
    unanswerable = frame[frame.state == "unanswerable"]
    assert unanswerable["recall@5"].isna().all()  # not 0, not 1
    assert frame["tag.type"].tolist()[:1] == ["how-to (v2), 50%"]
    assert list(to_frame(load_sweep("sweepf", store=store), metrics=["recall@1"]).filter(regex="@")) == ["recall@1"]
    assert to_frame([]).empty


def test_a_sweeps_view_has_the_columns_that_tell_cells_apart(store: Store) -> None:
    for i, chunker in enumerate(("fixed", "sentences")):
        made = make(
            f"f{i + 3}" * 32, name=chunker, params={"chunker": chunker, "chunker.size": 128, "reranker": "none"}
        )
        store.log_cell(made, "sweepv")  # type: ignore[arg-type]
    runs = store.cells("sweepv")
    assert varying(runs) == ["chunker"]
    assert save_view(store, "sweepv", "two cells", runs)
    tag = store.client.get_experiment(store.experiment_id).tags["mlflow.sharedViewState.sweepv"]
    assert len(tag) <= 5_000  # what MLflow 3.10 takes
    made, state = json.loads(tag), state_of(tag)
    assert made["name"] == "two cells · sweepv"
    shared = {"selectedColumns", "columnOrder", "searchFilter", "orderByKey", "orderByAsc"}
    assert {k: made[k] for k in shared} == {k: state[k] for k in shared}  # older pages read these, newer ones the text
    assert state["orderByKey"] == "metrics.`recall_at_5`"
    assert state["selectedColumns"][:3] == ["attributes.`Dataset`", "metrics.`recall_at_5`", "metrics.`recall_at_5__n`"]
    assert state["selectedColumns"][-1] == "params.`chunker`"
    assert len(store.search(state["searchFilter"])) == 2
    assert {c["metricKey"] for c in state["compareRunCharts"] if c["type"] == "BAR"} >= {"recall_at_5"}
    assert newest_view(store.out, store.uri, store.experiment) is not None


def test_a_setting_that_only_some_choices_have_is_no_column() -> None:
    def run(**params: str) -> Any:
        return type("Run", (), {"params": params})()

    bm25, static = run(embedder="bm25", **{"embedder.k1": "1.5"}), run(embedder="static", **{"embedder.size": "256"})
    assert varying([bm25, static]) == ["embedder"]
    other = run(embedder="bm25", **{"embedder.k1": "0.9"})
    assert varying([bm25, static, other]) == ["embedder", "embedder.k1"]
    assert varying([bm25]) == []


def test_no_run_is_missing_from_the_parallel_coordinates() -> None:
    """MLflow leaves out a run without a value on one of the axes."""
    runs: list[Any] = []
    for size in ("64", "128"):
        params = {"chunker": "fixed", "chunker.size": size, "chunker.overlap": size}
        runs.append(type("Run", (), {"params": params, "metrics": {"recall_at_5": 0.5}, "tags": {}})())
    params = {"chunker": "sentences", "chunker.size": "128"}
    runs.append(type("Run", (), {"params": params, "metrics": {"recall_at_5": 0.5}, "tags": {}})())
    state = sweep_state("s", runs)
    assert "params.`chunker.overlap`" in state["selectedColumns"]
    (parallel,) = [c for c in state["compareRunCharts"] if c["type"] == "PARALLEL"]
    assert parallel["selectedParams"] == ["chunker", "chunker.size"]
    assert parallel["selectedMetrics"] == ["recall_at_5"]


def test_old_views_of_ours_go_and_a_persons_own_stay(store: Store) -> None:
    other = Store.open(store.uri, "views", store.out)
    other.client.set_experiment_tag(
        other.experiment_id, "mlflow.sharedViewState.mine", '{"name": "mine", "state": "{}"}'
    )
    other.log_cell(make("f7" * 32), "s0")  # type: ignore[arg-type]
    runs = other.cells("s0")
    for i in range(KEPT + 2):
        assert save_view(other, f"s{i}", "a sweep", runs)
        time.sleep(0.002)  # the time of creation decides, in milliseconds
    tags = other.client.get_experiment(other.experiment_id).tags
    kept = [k.removeprefix("mlflow.sharedViewState.") for k in tags if k.startswith("mlflow.sharedViewState.")]
    assert sorted(kept) == sorted(["mine", *(f"s{i}" for i in range(2, KEPT + 2))])


def test_without_a_view_everything_else_works(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(store.client, "set_experiment_tag", refused, raising=False)
    assert not save_view(store, "x", "x", store.search(limit=1))
    assert newest_view(store.out / "nowhere", None, None) is None


def test_a_new_experiment_opens_on_its_runs(store: Store) -> None:
    tags = store.client.get_experiment(store.experiment_id).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert "sweep_id" in tags["mlflow.note.content"]


def test_the_verdict_stands_above_the_description_once(store: Store) -> None:
    run_id = store.start_sweep("sweepw", "a sweep")
    store.log_sweep(run_id, note="the ledger\n\nthe table", cells=[])
    for sentence in ("nothing\ncan be told", "a is better than b"):
        run = store.sweep("sweepw")
        assert run is not None
        store.lead(run, sentence)
    run = store.sweep("sweepw")
    assert run is not None
    assert run.tags["mlflow.note.content"] == "**Verdict.** a is better than b\n\nthe ledger\n\nthe table"


# ------------------------------------------------------------------ runs of other versions and of other people

OLD = Path(__file__).parent / "data" / "run_schema_1"


def old_run(store: Store) -> str:
    """The stored run of schema 1 put into a store as it was written then."""
    from mlflow.entities import Metric, Param, RunTag

    made = json.loads((OLD / "run.json").read_text(encoding="utf-8"))
    run = store.client.create_run(store.experiment_id, run_name=made["name"])
    store.client.log_batch(
        run.info.run_id,
        [Metric(k, v, 0, 0) for k, v in made["metrics"].items()],
        [Param(k, v) for k, v in made["params"].items()],
        [RunTag(k, v) for k, v in made["tags"].items()],
    )
    for file in OLD.iterdir():
        if file.name != "run.json":
            store.client.log_artifact(run.info.run_id, str(file))
    store.client.set_terminated(run.info.run_id)
    return str(run.info.run_id)


def test_a_run_of_schema_1_is_read_verified_and_reused(store: Store) -> None:
    from denominator.deciding import verify

    other = Store.open(store.uri, "old", store.out)
    run_id = old_run(other)
    (cell,) = load_sweep("oldsweep", store=other)
    assert cell.tags["schema_version"] == "1"
    assert tuple(cell.outcomes) == make().outcomes
    assert cell.metrics["mrr_at_1"] == pytest.approx(5 / 7)  # which schema 2 no longer logs
    assert verify(cell).metrics["recall@5"].value == pytest.approx(5 / 7)
    assert other.recorded([cell.cell_key]) == {cell.cell_key: run_id}  # not computed again
    assert to_frame([cell])["recall@5"].count() == 7
    assert other.bury() == 0
    assert save_view(other, "oldsweep", "old", other.cells("oldsweep"))
    left = other.start_cell("half", "0a" * 32, "s")  # a half run that schema 1 left: three tags for its process
    other.client.delete_tag(left, "process")
    for key, value in {"host": socket.gethostname(), "pid": "999999999", "process_started": "1"}.items():
        other.client.set_tag(left, key, value)
    assert other.bury() == 1
    assert other.start_cell("half", "0a" * 32, "s") == left


def test_every_older_schema_has_a_way_up() -> None:
    assert set(UPGRADES) == set(range(1, SCHEMA_VERSION))
    cell = json.loads((OLD / "cell.json").read_text(encoding="utf-8"))
    assert upgraded(cell)["schema_version"] == SCHEMA_VERSION
    assert upgraded(upgraded(cell)) == upgraded(cell)


def test_a_run_of_a_newer_schema_is_refused_with_the_way_out(store: Store) -> None:
    run_id = store.log_cell(make("f8" * 32), "sweepn")  # type: ignore[arg-type]
    store.client.set_tag(run_id, "schema_version", str(SCHEMA_VERSION + 1))
    with pytest.raises(StoreError, match=r"newer one wrote it; pip install --upgrade denominator"):
        load_sweep("sweepn", store=store)


def test_foreign_runs_in_our_experiment_are_left_out(store: Store) -> None:
    other = Store.open(store.uri, "shared with others", store.out)
    ours = other.log_cell(make("f9" * 32, name="a name"), "s")  # type: ignore[arg-type]
    plain = other.client.create_run(other.experiment_id, run_name="a name").info.run_id  # the same name
    other.client.log_metric(plain, "recall_at_5", 0.99)
    tagged = other.client.create_run(other.experiment_id, run_name="x", tags={"kind": "cell", "recorded": "true"})
    assert [c.run_id for c in other.cells("s")] == [ours]
    assert [c.run_id for c in load_sweep("s", store=other)] == [ours]
    assert other.recorded([make("f9" * 32).cell_key, "", "x", "y", "z"]) == {"f9" * 32: ours}
    assert other.sweeps() == []
    assert other.bury() == 0
    for run_id in (plain, tagged.info.run_id):
        run = other.client.get_run(run_id)
        assert run.info.status == "RUNNING"
        assert "attempt" not in run.data.tags


def test_a_foreign_run_with_our_tags_but_without_our_files_is_named(store: Store) -> None:
    other = Store.open(store.uri, "imitated", store.out)
    tags = {"kind": "cell", "recorded": "true", "incomplete": "false", "cell_key": "k", "sweep_id": "s"}
    run = other.client.create_run(other.experiment_id, run_name="imitation", tags=tags | {"sweep.s": "true"})
    other.client.log_text(run.info.run_id, "something", "note.txt")
    with pytest.raises(StoreError, match=r"'imitation' .*cannot be read.*force=true"):
        load_sweep("s", store=other)


def test_an_experiment_of_that_name_is_used_whoever_made_it(store: Store) -> None:
    made = store.client.create_experiment("taken", tags={"team": "search"})
    other = Store.open(store.uri, "taken", store.out)
    assert other.experiment_id == made
    assert store.client.get_experiment(made).tags == {"team": "search"}  # nothing of theirs is changed


def test_an_artifact_root_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    blank_store(out)
    store = Store.open(default_uri(out), "x", out)
    (out / "artifacts").write_text("a file in place of the folder", encoding="utf-8")
    with pytest.raises(StoreError, match=r"artifact folder cannot be written.*safe in .*next start records them"):
        store.log_cell(make("ad" * 32), "s")  # type: ignore[arg-type]
    (out / "artifacts").unlink()
    assert store.send_pending() == ["fixed · bm25 · none"]
    assert len(load_sweep("s", store=store)) == 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("API request failed with error code 401 != 200", "MLFLOW_TRACKING_USERNAME"),
        ("API request failed with error code 403 != 200. Permission denied", "permissions"),
        ("HTTPConnectionPool: Max retries exceeded with url: /api", "is the server running"),
    ],
)
def test_refusals_of_a_server_say_what_to_do(text: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denominator.tracking.store.time.sleep", lambda _: None)
    with pytest.raises(StoreError, match=hint):
        retry(lambda: (_ for _ in ()).throw(RuntimeError(text)), what="opening")


# ------------------------------------------------------------------ several processes at once

WORKER = """
import sys
from pathlib import Path
from denominator.tracking import Store, default_uri
out = Path(sys.argv[1])
store = Store.open(default_uri(out), "parallel", out)
for i in range(2):
    run = store.start_cell(f"cell {sys.argv[2]}-{i}", f"{sys.argv[2]}-{i}", "s")
    store.log_failure(run, "x", "only a test")
"""


@pytest.mark.slow
def test_four_processes_on_an_empty_store(tmp_path: Path) -> None:
    out = tmp_path / "out"
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(out), str(i)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for i in range(4)
    ]
    said = [job.communicate(timeout=120)[0].decode() for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4, said
    store = Store(default_uri(out), "parallel", out)
    assert rows(store, "select count(*) from runs where experiment_id = ?", int(store.experiment_id)) == [(8,)]
    assert rows(store, "select name from experiments order by experiment_id") == [("Default",), ("parallel",)]
    assert rows(store, "pragma journal_mode") == [("wal",)]
    assert not (tmp_path / "mlruns").exists()


def test_logging_a_cell_is_quick(store: Store) -> None:
    """A guard against a regression of several times, not a benchmark: the figure for 500 questions is in benchmarks."""
    started = time.perf_counter()
    store.log_cell(make("e1" * 32), "sweep16")  # type: ignore[arg-type]
    assert time.perf_counter() - started < 3


def test_masking_hides_users_in_addresses() -> None:
    assert mask("at https://me:pw@host/x?y") == "at https://***@host/x?y"
