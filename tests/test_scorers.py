"""The core as MLflow scorers: the right mean and n in MLflow itself, rankings from outputs and from real traces."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

from denominator.errors import ConfigError, InputError, MeasurementError, StoreError
from denominator.tracking import scorers
from denominator.tracking.scorers import hits_from, question_from, retrieved_from

# Recalls 1, 1, .5, 1, 0, .5, 1 and one unanswerable question for which two documents came back: 5/7 over n = 7.
SEED: dict[str, tuple[str, list[str]]] = {
    "q1": ("answerable", ["a", "b"]),
    "q2": ("answerable", ["a"]),
    "q3": ("answerable", ["a", "c"]),
    "q4": ("answerable", ["b"]),
    "q5": ("answerable", ["z"]),
    "q6": ("answerable", ["b", "y"]),
    "q7": ("answerable", ["a"]),
    "q8": ("unanswerable", []),
}
SHOWN = ["a", "b"]


def seed_rows(outputs: Any = SHOWN) -> list[dict[str, Any]]:
    return [
        {
            "inputs": {"question": f"What is {q}?", "question_id": q},
            "outputs": outputs,
            "expectations": {"answerability": label, "gold": gold},
        }
        for q, (label, gold) in SEED.items()
    ]


def without_outputs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "outputs"} for row in rows]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real sqlite store in a folder of its own; the tests of this file share it, each with its own runs."""
    import mlflow

    folder = tmp_path_factory.mktemp("store")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = mlflow.create_experiment("scorers", artifact_location=(folder / "artifacts").as_uri())
    mlflow.set_experiment(experiment_id=experiment)
    yield folder
    mlflow.set_tracking_uri(before)


def logged(store: Path, run_id: str) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags of a run, straight from the database."""
    with sqlite3.connect(store / "mlflow.db") as db:
        metrics = dict(db.execute("select key, value from latest_metrics where run_uuid = ?", (run_id,)))
        tags = dict(db.execute("select key, value from tags where run_uuid = ?", (run_id,)))
    return metrics, tags


# ------------------------------------------------------------------ the seed example


def test_the_seed_example_is_5_7_with_n_7_in_mlflow_and_in_our_names(store: Path) -> None:
    scored = scorers.evaluate(seed_rows(), [scorers.recall_at_k(5), scorers.hit_at_k(5)])
    recall = scored.estimates["recall@5"]
    assert (recall.value, recall.n) == (pytest.approx(5 / 7), 7)
    assert (recall.ci_low, recall.ci_high) == (pytest.approx(0.33382, abs=1e-5), pytest.approx(0.99951, abs=1e-5))
    assert scored.estimates["hit@5"].ci_method == "wilson"
    assert scored.result.metrics["recall_at_5/mean"] == pytest.approx(5 / 7)
    assert scored.result.metrics["recall_at_5/n"] == 7
    metrics, tags = logged(store, scored.run_id)
    assert metrics["recall_at_5"] == pytest.approx(5 / 7)
    assert (metrics["recall_at_5__n"], metrics["eligible_n"]) == (7, 7)
    assert metrics["recall_at_5__ci_low"] == pytest.approx(0.33382, abs=1e-5)
    assert (tags["incomplete"], tags["eligibility"]) == ("false", "strict")
    assert scored.ledger.states["unanswerable"] == 1
    assert scored.ledger.N == 8
    assert str(scored).startswith("hit@5: 0.857 [")
    # The same numbers from the store alone, later, by the id of the run.
    again = scorers.aggregate(scored.run_id, log=False)
    assert (again.estimates, again.ledger) == (scored.estimates, scored.ledger)


@pytest.mark.parametrize(("shown", "own"), [(SHOWN, 0.625), ([], 0.75)], ids=["retrieved", "nothing retrieved"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflows_own_recall_on_the_same_rows_counts_the_unanswerable_question(
    store: Path, shown: list[str], own: float
) -> None:
    import mlflow
    import pandas as pd

    rows = [
        {"q": q, "gold": gold, "answerability": label, "retrieved": shown if label == "unanswerable" else SHOWN}
        for q, (label, gold) in SEED.items()
    ]
    with mlflow.start_run():
        result = mlflow.models.evaluate(
            data=pd.DataFrame(rows),
            predictions="retrieved",
            targets="gold",
            extra_metrics=[scorers.classic_metric("recall@5"), mlflow.metrics.recall_at_k(5)],
            evaluators="default",
        )
    assert result.metrics["recall_at_5/mean"] == pytest.approx(own)  # MLflow's own, over n = 8
    assert result.metrics["recall_at_5/denominator/mean"] == pytest.approx(5 / 7)
    assert result.metrics["recall_at_5/denominator/n"] == 7
    table = result.tables["eval_results_table"]
    assert table["recall_at_5/denominator/score"].isna().tolist() == [False] * 7 + [True]


@pytest.mark.parametrize(
    ("form", "mean", "count"),
    [
        ("none", 5 / 7, 7),
        ("feedback", 5 / 7, 7),
        ("text", 5 / 7, 7),
        ("zero", 0.625, 8),
        ("one", 0.75, 8),
        ("no", 0.625, 8),
    ],
)
def test_what_mlflow_does_with_each_form_of_not_applicable(store: Path, form: str, mean: float, count: int) -> None:
    """The facts that the choice of a Feedback without a value rests on (docs/scorers.md)."""
    from mlflow.genai.evaluation.utils import standardize_scorer_value
    from mlflow.genai.scorers.aggregation import compute_aggregated_metrics
    from mlflow.genai.scorers.base import scorer

    not_applicable = call(scorers.recall_at_k(5), outputs=["a"], expectations={"answerability": "unanswerable"})
    forms = {"none": None, "feedback": not_applicable, "text": "unanswerable", "zero": 0.0, "one": 1.0, "no": "no"}

    @scorer(name="recall_at_5", aggregations=["mean", scorers.n])
    def r(inputs: Any) -> Any:
        return forms[form]

    values: list[Any] = [1.0, 1.0, 0.5, 1.0, 0.0, 0.5, 1.0, forms[form]]
    results: list[Any] = [SimpleNamespace(assessments=standardize_scorer_value("recall_at_5", v)) for v in values]
    found = compute_aggregated_metrics(results, [r])
    assert (found["recall_at_5/mean"], found["recall_at_5/n"]) == (pytest.approx(mean), count)


# ------------------------------------------------------------------ labels


def test_unusable_labels_are_refused_before_the_app_is_called(store: Path) -> None:
    calls: list[str] = []

    def app(question: str, question_id: str) -> list[str]:
        calls.append(question_id)
        return SHOWN

    rows = without_outputs(seed_rows())
    del rows[1]["expectations"]["answerability"]
    with pytest.raises(MeasurementError, match="unscorable_questions") as caught:
        scorers.evaluate(rows, [scorers.recall_at_k(5)], app)
    assert caught.value.ids == ("q2",)
    rows[1]["expectations"]["answerability"] = "Answerable"
    with pytest.raises(InputError, match=r"did you mean 'answerable'"):
        scorers.evaluate(rows, [scorers.recall_at_k(5)], app)
    rows[1]["expectations"]["answerability"] = None  # MLflow would stop with "The `value` field must be specified"
    with pytest.raises(InputError, match=r"'q2': field 'answerability'.*leave the key out"):
        scorers.evaluate(rows, [scorers.recall_at_k(5)], app, eligibility="lenient")
    assert calls == []


def test_lenient_counts_missing_labels_and_guesses_none(store: Path) -> None:
    rows = seed_rows()
    del rows[0]["expectations"]["answerability"]
    rows[7]["expectations"]["gold"] = ["a"]  # unanswerable with gold: a conflict
    scored = scorers.evaluate(rows, [scorers.recall_at_k(5)], eligibility="lenient")
    recall = scored.estimates["recall@5"]
    assert (recall.value, recall.n) == (pytest.approx(4 / 6), 6)
    assert (scored.ledger.states["unlabelled"], scored.ledger.states["conflict"], scored.ledger.N) == (1, 1, 8)
    assert scored.result.metrics["recall_at_5/n"] == 6
    table = scored.result.result_df
    assert sorted(table["ledger_state/value"]) == ["answerable"] * 6 + ["conflict", "unlabelled"]
    with pytest.raises(MeasurementError, match="unscorable_questions") as caught:
        scorers.aggregate(scored.run_id, log=False)
    assert caught.value.ids == ("q1", "q8")


@pytest.mark.slow
def test_without_an_eligible_question_there_is_a_reason_and_no_number(store: Path) -> None:
    scored = scorers.evaluate(seed_rows()[7:], [scorers.recall_at_k(5)])
    assert (scored.estimates["recall@5"].value, scored.estimates["recall@5"].reason) == (None, "no_eligible")
    metrics, tags = logged(store, scored.run_id)
    assert "recall_at_5" not in metrics
    assert metrics["recall_at_5__n"] == 0
    assert tags["undefined.recall_at_5"] == "no_eligible"


def test_question_from_reads_our_form_and_mlflows() -> None:
    given = {"answerability": "answerable", "expected_retrieved_context": [{"doc_uri": "d1", "content": "x"}]}
    assert [[e.doc for e in g] for g in question_from(given).gold] == [["d1"]]
    spans = {"state": "partial", "gold": [{"document_id": "d1", "start": 2, "end": 9}]}
    question = question_from(spans, {"question_id": "q9", "id": 7})
    assert (question.id, question.answerability, question.gold[0][0].end) == ("q9", "partial", 9)
    assert question_from({"expected_facts": ["Paris"]}).gold == ()  # facts are texts, they name no document
    assert question_from(None).answerability == "unlabelled"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"answerability": True}, r"expectations of 'q': field 'answerability'.*found True"),
        ({"answerability": "answerable", "gold": [7]}, "gold"),
        ({"answerability": "answerable", "gold": [[]]}, "empty_group"),
        ({"expected_retrieved_context": [{"content": "x"}]}, "names no document"),
        ({"id": 7}, "non-empty text"),
    ],
)
def test_bad_expectations_name_question_and_field(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        question_from(given, name="q")


# ------------------------------------------------------------------ rankings


def call(made: Any, **row: Any) -> Any:
    """One row through a scorer, as MLflow calls it."""
    return made.run(**row)


def is_number(feedback: Any) -> bool:
    """Older versions of MLflow want a value, and get a text where newer ones get None."""
    assert feedback.value is None or isinstance(feedback.value, (float, str))
    return isinstance(feedback.value, float)


def fake_trace(*spans: tuple[Any, ...], state: str = "OK") -> Any:
    """Spans as (id, parent, type, outputs[, name]); the start time is the place in the list."""
    made = [
        SimpleNamespace(
            span_id=s[0],
            parent_id=s[1],
            span_type=s[2],
            outputs=s[3],
            name=s[4] if len(s) > 4 else s[0],
            start_time_ns=i,
        )
        for i, s in enumerate(spans)
    ]
    return SimpleNamespace(
        data=SimpleNamespace(spans=made[::-1]), info=SimpleNamespace(state=state, trace_id="t", assessments=[])
    )


def docs_of(found: scorers.Retrieved) -> list[str]:
    assert found.result is not None
    return [hit.doc for hit in found.result.hits]


@pytest.mark.parametrize(
    "outputs",
    [
        ["b", "a"],
        [("a", 1.0), ("b", 2.0)],
        [{"id": "a", "score": 1.0}, {"id": "b", "score": 2.0}],
        {"answer": "x", "hits": [{"id": "c1", "document_id": "b"}, {"id": "c2", "document_id": "a"}]},
        {"documents": [{"page_content": "x", "metadata": {"doc_uri": "b", "score": 9}}, {"doc_id": "a", "text": "y"}]},
        [SimpleNamespace(id="c1", page_content="x", metadata={"doc_uri": "b"}), SimpleNamespace(id="a", metadata={})],
    ],
)
def test_outputs_are_read_in_every_form(outputs: Any) -> None:
    row = {"answerability": "answerable", "gold": ["b"]}
    assert call(scorers.mrr_at_k(2), outputs=outputs, expectations=row).value == 1.0
    assert call(scorers.mrr_at_k(2), outputs=outputs, expectations=row | {"gold": ["a"]}).value == 0.5


def test_documents_that_cannot_be_told_are_an_error_not_a_miss() -> None:
    with pytest.raises(InputError, match="names no document"):
        hits_from([{"page_content": "x", "metadata": {"source": "a.txt"}}])
    hits, _ = hits_from([{"page_content": "x", "metadata": {"source": "a.txt"}}], document_key="source")
    assert hits[0].doc == "a.txt"
    with pytest.raises(InputError, match="names no document"):
        hits_from([{"id": 7}])
    with pytest.raises(InputError, match="not as long as its offsets"):
        hits_from([{"id": "a", "text": "abc", "start": 0, "end": 9}])
    with pytest.raises(InputError, match="cannot be read"):
        hits_from([object()])


DOCS = [{"page_content": "x", "metadata": {"doc_uri": d}, "id": f"n-{d}"} for d in ("a", "b", "c", "d")]


def test_retriever_spans_in_order_joined_last_or_by_name() -> None:
    trace = fake_trace(
        ("root", None, "CHAIN", "answer"),
        ("first", "root", "RETRIEVER", DOCS[:2]),
        ("inner", "first", "TOOL", None),
        ("nested", "inner", "RETRIEVER", DOCS[3:]),  # inside another retriever: its outcome is in the outer one
        ("second", "root", "RETRIEVER", DOCS[1:3]),
        ("mix", "root", "RERANKER", DOCS[2:3], "rerank"),
    )
    assert docs_of(retrieved_from("answer", trace)) == ["a", "b", "b", "c"]
    assert docs_of(retrieved_from("answer", trace, spans="last")) == ["b", "c"]
    assert docs_of(retrieved_from("answer", trace, spans="rerank")) == ["c"]
    assert docs_of(retrieved_from(["z"], trace)) == ["z"]  # what the app gives back itself comes first
    assert docs_of(retrieved_from("answer", trace, ranking=lambda o: [o])) == ["answer"]


def test_order_given_is_the_ranking_of_a_span_whatever_its_scores_mean() -> None:
    distances = [{"id": "near", "score": 0.1}, {"id": "far", "score": 0.9}]
    found = retrieved_from(None, fake_trace(("r", None, "RETRIEVER", distances)))
    assert found.result is not None
    assert [(h.doc, h.score) for h in found.result.hits] == [("near", None), ("far", None)]


def test_failed_missing_and_empty_are_told_apart() -> None:
    failed = retrieved_from(None, fake_trace(("root", None, "CHAIN", None), state="ERROR"))
    assert failed.result is not None
    assert failed.result.error == "the app raised an error"
    assert retrieved_from(None, None).result == failed.result
    missing = retrieved_from("text", fake_trace(("root", None, "CHAIN", "text")))
    assert missing.result is None
    assert "outputs are str" in missing.why
    empty = retrieved_from("text", fake_trace(("r", None, "RETRIEVER", [])))
    assert empty.result is not None
    assert (empty.result.hits, empty.result.error) == ((), None)
    assert retrieved_from({"error": "down"}).result is not None
    row = {"answerability": "answerable", "gold": ["a"]}
    bare = fake_trace(("root", None, "CHAIN", "text"))
    for outputs, status in (("text", "missing"), ({"error": "down"}, "failed"), ([], "ok")):
        scored = call(scorers.recall_at_k(5), outputs=outputs, expectations=row, trace=bare)
        assert (scored.value, scored.metadata["denominator.status"]) == (0.0, status)
        assert scored.rationale is None or scored.rationale.endswith("counted as 0")
    with pytest.raises(InputError, match="no trace and no ranking"):  # the store lost the trace: no miss of the app
        call(scorers.recall_at_k(5), outputs="text", expectations=row)
    lost = call(scorers.recall_at_k(5), outputs="text", expectations={"answerability": "unanswerable"})
    assert not is_number(lost)
    # The generator failed, retrieval did not: what was retrieved is scored.
    late = fake_trace(("root", None, "CHAIN", None), ("r", "root", "RETRIEVER", DOCS[:1]), state="ERROR")
    assert docs_of(retrieved_from(None, late)) == ["a"]


# ------------------------------------------------------------------ a person's own app, really traced


TEXT = "alpha beta gamma delta epsilon zeta"


def traced_app(question: str, question_id: str) -> dict[str, Any]:
    """Two retrievals and an answer; q5 breaks before retrieval, q6 after it."""
    import mlflow
    from mlflow.entities import Document

    @mlflow.trace(span_type="RETRIEVER")
    def first(question: str) -> list[Document]:
        if question_id == "q5":
            raise RuntimeError("index is away")
        return [Document("alpha beta", {"doc_uri": "a", "start": 0, "end": 10}, id="c1")]

    @mlflow.trace(span_type="RETRIEVER")
    def second(question: str) -> list[Document]:
        return [Document("gamma delta", {"doc_uri": "b", "start_index": 11}, id="c2")]

    first(question)
    second(question)
    if question_id == "q6":
        raise RuntimeError("model is away")
    refused = question_id in {"q8", "q2"}
    return {"answer": "NO_ANSWER" if refused else "It is alpha.", "sources": 2}


@pytest.fixture(scope="module")
def traced(store: Path) -> scorers.Scored:
    import mlflow

    spans = {
        "q1": [{"document_id": "a", "start": 0, "end": 10}, {"document_id": "b", "start": 11, "end": 22}],
        "q2": [{"document_id": "a", "start": 6, "end": 16}],
    }
    rows = without_outputs(seed_rows())
    for row in rows:
        q = row["inputs"]["question_id"]
        row["expectations"]["gold"] = spans.get(q, row["expectations"]["gold"])
    return scorers.evaluate(
        rows,
        [
            scorers.recall_at_k(5),
            scorers.recall_at_k(1),
            scorers.ndcg_at_k(5),
            scorers.coverage_at_budget(3),
            scorers.abstention(),
        ],
        mlflow.trace(traced_app),
    )


def test_spans_of_a_traced_app_are_rankings(traced: scorers.Scored, store: Path) -> None:
    recall = traced.estimates["recall@5"]
    assert (recall.value, recall.n) == (pytest.approx(5 / 7), 7)
    # Order as given: at 1 only the first document of the first span: 1/2, 1, 1/2, 0, failed, 0, 1.
    assert traced.estimates["recall@1"].value == pytest.approx(3 / 7)
    ledger = traced.ledger
    assert (ledger.ok, ledger.failed, ledger.missing, ledger.incomplete) == (6, 1, 0, True)
    metrics, tags = logged(store, traced.run_id)
    assert tags["incomplete"] == "true"
    assert metrics["recall_at_5/mean"] == pytest.approx(metrics["recall_at_5"])
    # Most gold is known as documents only: no mean over the two that have spans.
    assert traced.estimates["coverage@b3"].reason == "no_spans"
    assert tags["undefined.coverage_at_b3"] == "no_spans"


def test_refusals_become_two_rates_with_their_own_n(traced: scorers.Scored, store: Path) -> None:
    report = traced.abstention
    assert report is not None
    # q8 refused; q2 of the five answerable ones that answered; q5 and q6 raised: undecided, not refusals.
    assert report.matrix == ((4, 1), (0, 1))
    assert report.undecided_answerable == 2
    metrics, _ = logged(store, traced.run_id)
    assert (metrics["false_refusal_rate"], metrics["false_refusal_rate__n"]) == (pytest.approx(0.2), 5)
    assert (metrics["abstention_recall"], metrics["abstention_recall__n"]) == (1, 1)
    assert metrics["false_refusal_rate/mean"] == pytest.approx(0.2)
    assert (metrics["abstention_tp"], metrics["abstention_fp"]) == (1, 1)


@pytest.mark.slow
def test_recorded_traces_are_scored_again_with_expectations_from_the_trace(traced: scorers.Scored) -> None:
    import mlflow

    run = mlflow.get_run(traced.run_id)
    traces = mlflow.search_traces(locations=[run.info.experiment_id], run_id=traced.run_id, return_type="list")
    scored = scorers.evaluate(traces, [scorers.recall_at_k(5), scorers.recall_at_k(1, spans="last")])
    assert scored.run_id != traced.run_id
    assert (scored.estimates["recall@5"].value, scored.estimates["recall@5"].n) == (pytest.approx(5 / 7), 7)
    assert scored.estimates["recall@1"].value == pytest.approx(1 / 2 / 7 + 1 / 7 + 1 / 2 / 7)  # b: q1, q4, q6
    # Two runs have assessed these traces; each is summed up from its own.
    assert scorers.aggregate(traced.run_id, log=False).estimates["recall@1"].value == pytest.approx(3 / 7)


def test_coverage_by_hand() -> None:
    hits = [
        {"id": "c1", "document_id": "d", "start": 0, "end": 10, "text": TEXT[0:10]},
        {"id": "c2", "document_id": "d", "start": 11, "end": 22, "text": TEXT[11:22]},
    ]
    row = {"answerability": "answerable", "gold": [{"document_id": "d", "start": 6, "end": 22}]}  # beta gamma delta
    assert call(scorers.coverage_at_k(1), outputs=hits, expectations=row).value == pytest.approx(4 / 16)
    # Three tokens: alpha beta gamma. Without the stored text blanks count; with it they do not.
    assert call(scorers.coverage_at_budget(3), outputs=hits, expectations=row).value == pytest.approx(9 / 16)
    known = scorers.coverage_at_budget(3, documents={"d": TEXT, "other": "x"})
    assert call(known, outputs=hits, expectations=row).value == pytest.approx(9 / 14)
    bare = [{k: v for k, v in hits[0].items() if k != "text"}]
    assert call(scorers.coverage_at_k(1), outputs=bare, expectations=row).value == pytest.approx(4 / 16)
    with pytest.raises(InputError, match="without a text"):
        call(scorers.coverage_at_budget(3), outputs=bare, expectations=row)


def test_undefined_for_one_row_is_a_value_of_none_with_its_reason() -> None:
    row = {"answerability": "answerable", "gold": [["a", "b"]]}
    found = call(scorers.ndcg_at_k(5), outputs=["a"], expectations=row)
    assert (is_number(found), found.metadata["denominator.reason"]) == (False, "or_groups_unsupported")
    assert call(scorers.recall_at_k(5), outputs=["a"], expectations=row).value == 1.0
    graded = {"answerability": "answerable", "grades": {"a": 3, "b": 2, "c": 1, "z": 0}}
    assert call(scorers.ndcg_at_k(3), outputs=["c", "z", "a"], expectations=graded).value == pytest.approx(
        0.525, abs=1e-4
    )
    assert call(scorers.precision_at_k(5), outputs=["a"], expectations=graded).value == pytest.approx(0.2)
    assert call(scorers.mrr_at_k(5), outputs=["z", "a"], expectations=graded).value == 0.5


@pytest.mark.parametrize("bad", [0, -1, True, 2.0])
def test_impossible_cuts_are_refused_when_the_scorer_is_made(bad: Any) -> None:
    with pytest.raises(MeasurementError, match="bad_k"):
        scorers.recall_at_k(bad)
    with pytest.raises(MeasurementError, match="bad_budget"):
        scorers.coverage_at_budget(bad)


def test_names_that_are_no_ranked_metric_are_refused() -> None:
    for name in ("coverage@5", "map@5", "recal@5"):
        with pytest.raises(ConfigError):
            scorers.ranked_metric(name)


# ------------------------------------------------------------------ nothing is lost silently


@pytest.mark.slow
def test_a_scorer_that_failed_is_an_error_of_the_mean(store: Path) -> None:
    rows = seed_rows()
    rows[2]["outputs"] = [{"page_content": "no id"}]
    with pytest.raises(InputError, match=r"1 of 8 rows could not be scored \('q3'\).*names no document"):
        scorers.evaluate(rows, [scorers.recall_at_k(5)])


@pytest.mark.slow
def test_rows_that_the_store_lost_are_an_error_of_the_mean(traced: scorers.Scored, store: Path) -> None:
    import mlflow
    from mlflow.tracking.client import MlflowClient

    scored = scorers.evaluate(seed_rows()[:3], [scorers.recall_at_k(5)])
    run = mlflow.get_run(scored.run_id)
    gone = mlflow.search_traces(locations=[run.info.experiment_id], run_id=scored.run_id, return_type="list")[0]
    MlflowClient().delete_traces(run.info.experiment_id, trace_ids=[gone.info.trace_id])
    with pytest.raises(StoreError, match="2 whole rows of 3"):
        scorers.aggregate(scored.run_id)


def test_ids_that_come_twice_are_refused(store: Path) -> None:
    rows = seed_rows()
    rows[1]["inputs"]["question_id"] = "q1"
    with pytest.raises(MeasurementError, match="duplicate_question_ids"):
        scorers.evaluate(rows, [scorers.recall_at_k(5)])
