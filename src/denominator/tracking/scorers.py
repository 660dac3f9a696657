"""The measurement core as MLflow scorers: for `mlflow.genai.evaluate` on a person's own app, or on recorded traces.

A scorer sees one row. It reads the label and the gold from the row's `expectations` and the ranking from the app's
outputs, or from the retriever spans of its trace, and gives a number only where the question is eligible. Where it is
not, the value is None: MLflow leaves such a row out of its mean, and `n` (beside the mean) says how many it took.
`aggregate` turns the rows of a finished evaluation into estimates with intervals and a ledger, and logs them under
the names that all runs of this package have; `evaluate` does both, and refuses unusable labels before any work.

Facts about MLflow that this rests on, and the forms it reads: docs/scorers.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denominator import tokens
from denominator.abstention import AbstentionReport, Row, confusion, decide
from denominator.eligibility import build_ledger, classify, span_groups, state_of
from denominator.errors import ConfigError, InputError, MeasurementError, StoreError, listing
from denominator.evaluation import parse_metric
from denominator.metrics import ranked
from denominator.ranking import check_k
from denominator.readers.native import question_of
from denominator.readers.textfiles import Row as Record
from denominator.spans import span_scores
from denominator.tracking.facts import Facts, ledger_line, number
from denominator.tracking.spelling import mlflow_payload, spell, unspell
from denominator.types import (
    METRIC_VERSION,
    Answer,
    Estimate,
    Hit,
    Ledger,
    Question,
    Result,
    Run,
    State,
    Status,
    chunk_id,
)
from denominator.uncertainty import estimate_mean, is_rate

DOCUMENT_KEYS = ("document_id", "doc", "doc_id", "doc_uri", "id")
"""Where a retrieved item names its document, first match wins; looked for beside the text and in its `metadata`."""
HIT_KEYS = ("hits", "retrieved", "documents")
"""Fields of an output object that may hold the ranking."""
TEXT_KEYS = ("page_content", "content", "text")
ANSWER_KEYS = ("answer", "response", "text", "content")
_LABEL_FIELDS = ("answerability", "state", "gold", "grades", "needs_review")
_ABSTENTION = ("abstention_recall", "false_refusal_rate")
_NAME = re.compile(
    r"(?:(?:slot_|chunk_)?(?:recall|complete|precision|hit|mrr|ndcg)@\d+|coverage@b?\d+)"
)  # names of ours among the assessments of a run
_MARK = "denominator."
_RUN = "mlflow.assessment.sourceRunId"

Reader = Callable[[Any], Any]
Texts = Mapping[str, str]


# ------------------------------------------------------------------ what a row holds


def question_from(
    expectations: Mapping[str, Any] | None, inputs: Mapping[str, Any] | None = None, *, name: str = "question"
) -> Question:
    """A row's label and gold as a question, by the rules of the native format. Emptiness is never read as a label.

    `answerability` (or `state`): answerable, unanswerable, partial, unlabelled; absent is unlabelled. `gold`: document
    ids, `{"document_id", "start"?, "end"?}`, or lists of these as alternatives; without it the `doc_uri`s of
    `expected_retrieved_context` (MLflow's own name) are the gold. `grades`, `needs_review` as in the native format.
    The id is `id` or `question_id` of the expectations or the inputs, else `name`.

    Errors: InputError that names the question and the field.

    >>> q = question_from({"answerability": "answerable", "gold": ["d1", ["d2", "d3"]]}, {"id": "q1"})
    >>> q.id, q.answerability, [[e.doc for e in group] for group in q.gold]
    ('q1', 'answerable', [['d1'], ['d2', 'd3']])
    >>> question_from({"gold": []}).answerability
    'unlabelled'
    """
    given = dict(expectations or {})
    # What the app takes under these names may be something else: only a text can be meant.
    beside = {k: v for k, v in inputs.items() if isinstance(v, str)} if isinstance(inputs, Mapping) else {}
    places = [p[key] for p in (given, beside) for key in ("id", "question_id") if p.get(key) is not None]
    identifier = places[0] if places else name
    gold = given.get("gold")
    if gold is None and given.get("expected_retrieved_context") is not None:
        gold = [_expected(item, identifier) for item in given["expected_retrieved_context"]]
    label = given.get("answerability")
    values = {"id": identifier, "gold": _plain(gold), "state": given.get("state") if label is None else label}
    values |= {key: given.get(key) for key in ("grades", "needs_review")}
    record = Record(values, Path(f"expectations of {identifier!r}"), None, names={"state": "answerability"})
    return question_of(record)


def _plain(gold: Any) -> Any:
    return [_plain(item) for item in gold] if isinstance(gold, (tuple, list)) else gold


def _expected(item: Any, identifier: object) -> Any:
    if isinstance(item, Mapping) and item.get("doc_uri"):
        return {"document_id": item["doc_uri"]}
    raise InputError(
        "names no document",
        path=f"expectations of {identifier!r}",
        field="expected_retrieved_context",
        found=item,
        expected='{"doc_uri": …}, or the gold under `gold`',
    )


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What came back for a row: a result (None: nothing that could be a ranking) and the texts by hit id."""

    result: Result | None
    texts: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


def hits_from(
    items: Iterable[Any], *, document_key: str | None = None, scored: bool = True
) -> tuple[tuple[Hit, ...], dict[str, str]]:
    """Hits and their texts from ids, (id, score) pairs, objects, or documents as MLflow, LangChain and LlamaIndex have.

    The document is the first of `DOCUMENT_KEYS` (or `document_key` alone), beside the text or in `metadata`. Offsets
    are `start` and `end`, or `start_index` and the length of the text. A score beside the text orders the hits; with
    `scored=False` the order given is the ranking.

    >>> hits, texts = hits_from([{"page_content": "abc", "metadata": {"doc_uri": "d1", "start_index": 4}}])
    >>> hits[0].doc, hits[0].start, hits[0].end, list(texts.values())
    ('d1', 4, 7, ['abc'])
    >>> [h.doc for h in hits_from(["d2", ("d1", 0.5)][:1])[0]]
    ['d2']
    """
    hits: list[Hit] = []
    texts: dict[str, str] = {}
    for place, item in enumerate(items):
        hit, text = _hit(item, place, document_key, scored)
        hits.append(hit)
        if text is not None:
            texts.setdefault(hit.id, text)
    return tuple(hits), texts


def _hit(item: Any, place: int, document_key: str | None, scored: bool) -> tuple[Hit, str | None]:
    if isinstance(item, str):
        return Hit(item, item), None
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return Hit(item[0], item[0], float(item[1]) if scored else None), None
    fields = _fields(item)
    keys = DOCUMENT_KEYS if document_key is None else (document_key,)
    doc = next((fields[key] for key in keys if fields.get(key) is not None), None)
    if not isinstance(doc, str) or not doc:
        raise InputError(
            f"item {place + 1} of the ranking names no document",
            found=sorted(fields) if doc is None else doc,
            expected=f"a non-empty text under {' or '.join(keys)}, beside the text or in its metadata",
            fix="say where it is with document_key=…",
        )
    text = next((fields[key] for key in TEXT_KEYS if isinstance(fields.get(key), str)), None)
    start, end = fields.get("start"), fields.get("end")
    if start is None and end is None and fields.get("start_index") is not None and text is not None:
        start = fields["start_index"]
        end = start + len(text)
    if start is None or end is None:
        start = end = None
    elif text is not None and end - start != len(text):
        raise InputError(
            f"item {place + 1} of the ranking: its text is not as long as its offsets say",
            found=f"{len(text)} characters at [{start}, {end})",
            expected="offsets in code points of the stored document, and the text that stands there",
        )
    own = fields.get("chunk_id") or fields.get("id")
    identifier = str(own) if own else doc if start is None or end is None else chunk_id(doc, start, end)
    score = fields.get("score") if scored else None
    count = tokens.count(text) if text is not None and start is None else None
    return Hit(identifier, doc, None if score is None else float(score), start, end, tokens=count), text


def _fields(item: Any) -> dict[str, Any]:
    """Fields beside the text and those of `metadata`; the first kind wins. Scores inside metadata are not read."""
    if isinstance(item, Mapping):
        beside = dict(item)
    elif hasattr(item, "metadata"):
        beside = {key: getattr(item, key, None) for key in ("id", "metadata", "score", *TEXT_KEYS)}
    else:
        raise InputError(
            "an item of the ranking cannot be read",
            found=type(item).__name__,
            expected="an id, an (id, score) pair, an object, or a document with metadata",
        )
    inner = beside.pop("metadata", None)
    inner = {k: v for k, v in inner.items() if k != "score"} if isinstance(inner, Mapping) else {}
    return inner | {key: value for key, value in beside.items() if value is not None}


def retrieved_from(
    outputs: Any,
    trace: Any = None,
    *,
    ranking: Reader | None = None,
    document_key: str | None = None,
    spans: str = "joined",
) -> Retrieved:
    """The ranking of a row, from `ranking(outputs)`, else from the outputs, else from the retriever spans of the trace.

    Outputs are a list, or an object with `hits`, `retrieved` or `documents`, or with `error`. Spans: the retriever
    spans that lie inside no other retriever span, in order of their start, `joined` one after the other; or the
    `last` of them alone; or all spans of the name that is given (a re-ranker's, for example).
    """
    if ranking is not None:
        outputs = ranking(outputs)
    if isinstance(outputs, Mapping) and outputs.get("error") is not None:
        return Retrieved(Result(error=str(outputs["error"])), why=str(outputs["error"]))
    items = _listed(outputs)
    if items is not None:
        hits, texts = hits_from(items, document_key=document_key)
        return Retrieved(Result(hits), texts)
    found = _spans(trace, spans)
    lists = [one for one in (_listed(_unpacked(span.outputs)) for span in found) if one is not None]
    if lists:
        hits, texts = hits_from([i for one in lists for i in one], document_key=document_key, scored=False)
        return Retrieved(Result(hits), texts)
    if (outputs is None and trace is None) or _state(trace) == "ERROR":
        return Retrieved(Result(error="the app raised an error"), why="the app raised an error")
    if trace is None:  # MLflow always has one, unless its store lost it: that is no miss of the app
        raise InputError("there is no trace and no ranking in the outputs", found=type(outputs).__name__)
    what = f"{len(found)} spans without a list of documents" if found else "no retriever span in the trace"
    return Retrieved(None, why=f"no ranking: outputs are {type(outputs).__name__}, and {what}")


def _listed(found: Any) -> list[Any] | None:
    if isinstance(found, Mapping):
        found = next((found[key] for key in HIT_KEYS if isinstance(found.get(key), (list, tuple))), None)
    return list(found) if isinstance(found, (list, tuple)) else None


def _unpacked(outputs: Any) -> Any:
    if not isinstance(outputs, str):
        return outputs
    try:
        return json.loads(outputs)
    except ValueError:
        return None


def _state(trace: Any) -> str | None:
    state = None if trace is None else trace.info.state
    return getattr(state, "value", state)


def _spans(trace: Any, rule: str) -> list[Any]:
    every = [] if trace is None or trace.data is None else trace.data.spans
    by_id = {span.span_id: span for span in every}

    def inside(span: Any) -> bool:
        above = by_id.get(span.parent_id)
        return above is not None and (above.span_type == "RETRIEVER" or inside(above))

    if rule in {"joined", "last"}:
        chosen = [span for span in every if span.span_type == "RETRIEVER" and not inside(span)]
    else:
        chosen = [span for span in every if span.name == rule]
    chosen.sort(key=lambda span: span.start_time_ns or 0)
    return chosen[-1:] if rule == "last" else chosen


# ------------------------------------------------------------------ scorers


def ranked_metric(
    name: str, *, ranking: Reader | None = None, document_key: str | None = None, spans: str = "joined"
) -> Any:
    """A scorer for any ranked metric by its name: `recall@5`, `complete@5`, `ndcg@10`, `slot_recall@5` ….

    Its MLflow name is the metric's (`recall_at_5`); MLflow logs `recall_at_5/mean` and `recall_at_5/n`. Value per row:
    a number for answerable questions, 0 where the app failed or gave no ranking, None for every other state and where
    the metric is undefined. `ranking` takes the outputs and gives the ranking; `document_key` and `spans` say how
    items and traces are read (`retrieved_from`).
    """
    parsed = parse_metric(name)
    if parsed.level not in {"L1", "L2", "L3"} or parsed.k is None or not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no ranked metric at a K; for characters use coverage_at_k, coverage_at_budget")
    check_k(parsed.k)

    def value(question: Question, found: Retrieved) -> tuple[float | None, str | None]:
        results = {} if found.result is None else {question.id: found.result}
        values, reasons = ranked(Run.from_results(results), [question], [name]).row(0)
        return values[name], reasons.get(name)

    return _scorer(name, value, {"ranking": ranking, "document_key": document_key, "spans": spans})


def recall_at_k(k: int, **reading: Any) -> Any:
    """Share of the evidence groups with a document among the first K. Options: those of `ranked_metric`."""
    return ranked_metric(f"recall@{check_k(k)}", **reading)


def precision_at_k(k: int, **reading: Any) -> Any:
    """Relevant documents among the first K / K, also where fewer came back. Options: those of `ranked_metric`."""
    return ranked_metric(f"precision@{check_k(k)}", **reading)


def hit_at_k(k: int, **reading: Any) -> Any:
    """1 if any relevant document is among the first K, else 0. Options: those of `ranked_metric`."""
    return ranked_metric(f"hit@{check_k(k)}", **reading)


def mrr_at_k(k: int, **reading: Any) -> Any:
    """1 / rank of the first relevant document, 0 beyond K. Options: those of `ranked_metric`."""
    return ranked_metric(f"mrr@{check_k(k)}", **reading)


def ndcg_at_k(k: int, **reading: Any) -> Any:
    """Normalised DCG with gain = grade, cut to K; None where a group has alternatives. Options: see `ranked_metric`."""
    return ranked_metric(f"ndcg@{check_k(k)}", **reading)


def coverage_at_k(k: int, *, documents: Texts | None = None, **reading: Any) -> Any:
    """Mean over evidence spans of the share that the first K chunks cover; chunks need offsets, gold needs spans.

    With `documents` (id → text) white space is left out of the counts, as everywhere in this package; without, all
    positions count. None with `no_spans` where the gold is known as documents only.
    """
    return _coverage(f"coverage@{check_k(k)}", {"k": k}, documents, reading)


def coverage_at_budget(budget: int, *, documents: Texts | None = None, **reading: Any) -> Any:
    """Coverage of the evidence within `budget` tokens (`regex-v1`) of the chunks in their order.

    Needs offsets, and the texts of the chunks or `documents`. A ranking that is shorter than the budget is taken as
    all that the app sends. See `coverage_at_k`.
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise MeasurementError("bad_budget", [str(budget)], "a token budget is a whole number of at least 1")
    return _coverage(f"coverage@b{budget}", {"budget": budget}, documents, reading)


def _coverage(name: str, cut: dict[str, Any], documents: Texts | None, reading: Mapping[str, Any]) -> Any:
    def value(question: Question, found: Retrieved) -> tuple[float | None, str | None]:
        groups = span_groups(question)
        if groups is None:
            return None, "no_spans"
        hits = () if found.result is None else found.result.hits
        texts = ends = None
        if documents is not None:
            spoken = {e.doc for group in groups for e in group} | {h.doc for h in hits}
            texts = {doc: documents[doc] for doc in sorted(spoken) if doc in documents}
        elif "budget" in cut:
            ends = _token_ends(hits, found.texts)
        scores = span_scores(groups, hits, texts=texts, token_ends=ends, **cut)
        return scores["coverage"], None if scores["coverage"] is not None else scores["reason"]

    return _scorer(name, value, reading)


def _token_ends(hits: Sequence[Hit], texts: Texts) -> dict[str, list[int]]:
    bare = [h.id for h in hits if h.start is not None and h.id not in texts]
    if bare:
        raise InputError(
            f"chunks without a text cannot be counted in tokens: {listing(bare)}",
            expected="the text of every chunk (page_content), or documents={id: text}",
        )
    return {h.id: [h.start + e for e in tokens.token_ends(texts[h.id])] for h in hits if h.start is not None}


def _scorer(
    name: str, value: Callable[[Question, Retrieved], tuple[float | None, str | None]], reading: Mapping[str, Any]
) -> Any:
    from mlflow.genai.scorers import scorer

    @scorer(name=spell(name), aggregations=["mean", n])
    def measure(inputs: Any = None, outputs: Any = None, expectations: Any = None, trace: Any = None) -> Any:
        question = question_from(expectations, inputs, name=_trace_id(trace))
        state = state_of(question)
        if state != "answerable":
            return _feedback(name, None, question, state, status="not_scored", why=f"not applicable: {_said(state)}")
        found = retrieved_from(outputs, trace, **reading)
        score, reason = value(question, found)
        status: Status = "missing" if found.result is None else "failed" if found.result.error is not None else "ok"
        why = f"undefined: {reason}" if score is None else f"{found.why}: counted as 0" if found.why else None
        return _feedback(name, score, question, state, status=status, why=why, reason=reason)

    return measure


def n(values: Sequence[float]) -> float:
    """How many rows entered MLflow's mean. It stands beside it: `recall_at_5/n`."""
    return float(len(values))


def _said(state: State) -> str:
    if state == "unlabelled":
        return "the label is missing (expectations.answerability)"
    return state.replace("_", " ")


def _trace_id(trace: Any) -> str:
    return "question" if trace is None else str(trace.info.trace_id)


def _feedback(
    name: str,
    value: float | None,
    question: Question,
    state: State,
    *,
    status: Status,
    why: str | None,
    reason: str | None = None,
    **more: str | None,
) -> Any:
    from mlflow.entities import Feedback
    from mlflow.exceptions import MlflowException

    facts = {"metric": name, "question": question.id, "state": state, "status": status, "reason": reason, **more}
    metadata = {_MARK + key: text for key, text in facts.items() if text is not None}
    try:
        return Feedback(name=spell(name), value=value, rationale=why, metadata=metadata)
    except MlflowException:  # older versions want a value; a text is not averaged either
        said = reason or (state if status == "not_scored" else "undecided")
        return Feedback(name=spell(name), value=said, rationale=why, metadata=metadata)


def state() -> Any:
    """A scorer that says each question's ledger state in words (`answerable`, `unlabelled` …).

    MLflow counts texts per value and averages nothing, so that missing labels are seen beside the numbers.
    """
    from mlflow.genai.scorers import scorer

    @scorer(name="ledger_state")
    def ledger_state(inputs: Any = None, expectations: Any = None, trace: Any = None) -> Any:
        return state_of(question_from(expectations, inputs, name=_trace_id(trace)))

    return ledger_state


def abstention(*, answer: Reader | None = None, lang: str = "en") -> Any:
    """A scorer for refusals: `abstention_recall` on unanswerable questions, `false_refusal_rate` on answerable ones.

    1 where the answer is a refusal, 0 where it is not, None where the decider ladder has no opinion (errors, empty
    text). MLflow's means are then the two rates. `answer` takes the outputs and gives the text or an object with
    `answer`, `abstained`, `answerable`, `error`; without it outputs are read so themselves.
    """
    from mlflow.genai.scorers import scorer

    @scorer(name="abstention")
    def refusals(inputs: Any = None, outputs: Any = None, expectations: Any = None, trace: Any = None) -> Any:
        question = question_from(expectations, inputs, name=_trace_id(trace))
        state = state_of(question)
        if state not in {"answerable", "unanswerable"}:
            return []
        name = _ABSTENTION[0] if state == "unanswerable" else _ABSTENTION[1]
        said = answer_from(outputs if answer is None or outputs is None else answer(outputs))
        decision = decide(said, lang, question=question.question)
        value = None if decision.abstained is None else float(decision.abstained)
        status: Status = "failed" if decision.rung == "error" else "ok"
        why = f"undecided ({decision.rung})" if value is None else f"decided by {decision.rung}"
        return [_feedback(name, value, question, state, status=status, why=why, rung=decision.rung)]

    return refusals


def answer_from(outputs: Any) -> Answer | None:
    """An answer from a text or from an object with `answer` (`response`, `text`, `content`), `abstained`, …

    >>> answer_from({"answer": "42", "abstained": False})
    Answer(text='42', flag=False, structured=None, error=None, lang=None)
    """
    if outputs is None:
        return None
    if isinstance(outputs, str):
        return Answer(text=outputs)
    if isinstance(outputs, Mapping):
        text = next((outputs[key] for key in ANSWER_KEYS if isinstance(outputs.get(key), str)), None)
        flag, structured, error = outputs.get("abstained"), outputs.get("answerable"), outputs.get("error")
        if any(one is not None for one in (text, flag, structured, error)):
            return Answer(text, flag, structured, None if error is None else str(error))
    raise InputError(
        "the outputs hold no answer",
        found=sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__,
        expected="a text, or an object with answer, abstained or answerable",
        fix="say how to read them with answer=…",
    )


# ------------------------------------------------------------------ aggregates


@dataclass(frozen=True, slots=True)
class Scored:
    """The estimates of an evaluation, by metric name, with the ledger. `result` is MLflow's own, where there is one."""

    run_id: str
    estimates: Mapping[str, Estimate]
    ledger: Ledger
    abstention: AbstentionReport | None = None
    result: Any = None

    def __str__(self) -> str:
        lines = [f"{name}: {number(estimate)}" for name, estimate in self.estimates.items()]
        if self.abstention is not None:
            lines.append(f"unanswerable refused: {number(self.abstention.recall)}")
            lines.append(f"answerable refused: {number(self.abstention.false_refusal_rate)}")
        return "\n".join([*lines, ledger_line(self.ledger)])


def evaluate(
    data: Any,
    scorers: Sequence[Any],
    predict_fn: Callable[..., Any] | None = None,
    *,
    eligibility: str = "strict",
    alpha: float = 0.05,
    **more: Any,
) -> Scored:
    """`mlflow.genai.evaluate`, then `aggregate`. Strict (the default) refuses unusable labels before any work.

    `state()` is added, so that the ledger state of each question stands beside its values. `more` goes to MLflow.
    Errors: MeasurementError `unscorable_questions` (strict), `duplicate_question_ids`; InputError for a bad label.
    """
    import mlflow.genai

    questions = []
    for at, (expectations, inputs) in enumerate(_labels(data), 1):
        questions.append(question_from(expectations, inputs, name=f"row {at}"))
        empty = sorted(key for key, value in expectations.items() if value is None)
        if empty:
            raise InputError(
                "MLflow takes no expectation of None",
                path=f"expectations of {questions[-1].id!r}",
                field=empty[0],
                fix="leave the key out; a label that is absent is counted as missing",
            )
    build_ledger(classify(questions), {}, eligibility=eligibility)
    with _few_workers(mlflow.get_tracking_uri()):
        result = mlflow.genai.evaluate(data=data, scorers=[*scorers, state()], predict_fn=predict_fn, **more)
    return aggregate(result, eligibility=eligibility, alpha=alpha, rows=len(questions))


@contextlib.contextmanager
def _few_workers(uri: str) -> Iterator[None]:
    """Four workers on sqlite unless the person says otherwise.

    With its own ten MLflow runs out of its 15 connections, waits 30 seconds and drops traces (60 of 73 in a trial); on
    one file more workers are no faster.
    """
    name = "MLFLOW_GENAI_EVAL_MAX_WORKERS"
    if not uri.startswith("sqlite") or name in os.environ:
        yield
        return
    os.environ[name] = "4"
    try:
        yield
    finally:
        del os.environ[name]


def _labels(data: Any) -> list[tuple[Mapping[str, Any], Any]]:
    """Expectations and inputs of every row of anything that MLflow takes as data."""
    if hasattr(data, "to_df"):
        data = data.to_df()
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        data = data.to_dict(orient="records")
    rows = []
    for row in data:
        if isinstance(row, Mapping):
            given, trace = row.get("expectations"), row.get("trace")
            if not isinstance(given, Mapping):
                given = _expectations(trace) if hasattr(trace, "info") else {}
            rows.append((given, row.get("inputs")))
        else:
            rows.append((_expectations(row), _root_inputs(row)))
    return rows


def _expectations(trace: Any) -> dict[str, Any]:
    return {a.name: a.expectation.value for a in trace.info.assessments or () if a.expectation is not None}


def _root_inputs(trace: Any) -> Any:
    return next((s.inputs for s in trace.data.spans if s.parent_id is None), None) if trace.data else None


def aggregate(
    result: Any, *, eligibility: str = "strict", alpha: float = 0.05, rows: int | None = None, log: bool = True
) -> Scored:
    """Estimates with n and intervals from the rows that an evaluation stored, and (with `log`) in its run.

    `result` is what `mlflow.genai.evaluate` gave, or the id of its run; `rows` is how many rows it had (known by
    itself where the run has one data set with a row count). Logged: `recall_at_5`, `recall_at_5__n`,
    `__ci_low`, `__ci_high`, tags `undefined.recall_at_5` where there is no value, `eligible_n`, the abstention
    metrics, `ledger.json`, tags `eligibility`, `incomplete`, `metric_version`. One eligible question without a value
    makes the mean undefined.

    Errors: MeasurementError `unscorable_questions` (strict), `duplicate_question_ids`; InputError where a scorer
    failed on a row; StoreError where the store holds fewer rows than the evaluation had.
    """
    import mlflow
    from mlflow.tracking.client import MlflowClient

    run_id = result if isinstance(result, str) else result.run_id
    client = MlflowClient()
    run = client.get_run(run_id)
    traces = mlflow.search_traces(locations=[run.info.experiment_id], run_id=run_id, return_type="list")
    stored = sorted((_stored(trace, run_id) for trace in traces), key=lambda row: row.question.id)
    _check_rows(stored, _row_count(run) if rows is None else rows)
    states = classify([row.question for row in stored])
    names = sorted({name for row in stored for name in row.values if _NAME.fullmatch(name)}, key=_by_name)
    statuses = {row.question.id: _status(row, names) for row in stored}
    ledger = build_ledger(states, statuses, eligibility=eligibility)
    eligible = [row for row in stored if states[row.question.id] == "answerable"]
    scored = Scored(
        run_id=run_id,
        estimates={name: _estimate(name, eligible, alpha) for name in names},
        ledger=ledger,
        abstention=_refusals(stored, states, alpha),
        result=None if isinstance(result, str) else result,
    )
    if log:
        _log(client, scored)
    return scored


@dataclass(frozen=True, slots=True)
class _Stored:
    question: Question
    values: Mapping[str, float | None]
    metadata: Mapping[str, Mapping[str, str]]
    error: str | None


def _stored(trace: Any, run_id: str) -> _Stored:
    question = question_from(_expectations(trace), _root_inputs(trace), name=str(trace.info.trace_id))
    values: dict[str, float | None] = {}
    metadata: dict[str, Mapping[str, str]] = {}
    error = None
    ours = [a for a in trace.info.assessments or () if a.feedback is not None and _of_run(a, run_id)]
    for one in sorted(ours, key=lambda a: a.create_time_ms or 0):
        name = unspell(one.name)
        if not _NAME.fullmatch(name) and name not in {*_ABSTENTION, "abstention", "ledger_state"}:
            continue
        if one.feedback.error is not None:
            error = f"{one.name}: {one.feedback.error.error_message}"
        else:
            value = one.feedback.value
            values[name] = float(value) if isinstance(value, (int, float)) else None
            metadata[name] = {k.removeprefix(_MARK): v for k, v in (one.metadata or {}).items() if k.startswith(_MARK)}
    return _Stored(question, values, metadata, error)


def _of_run(assessment: Any, run_id: str) -> bool:
    return bool((assessment.metadata or {}).get(_RUN, run_id) == run_id)


def _row_count(run: Any) -> int:
    found = run.inputs.dataset_inputs if run.inputs else []
    return int(json.loads(found[0].dataset.profile or "{}").get("num_rows", 0)) if len(found) == 1 else 0


def _check_rows(rows: Sequence[_Stored], expected: int) -> None:
    """No row may be lost on the way: not by a scorer that failed, not by a store that was busy."""
    wrong = [row for row in rows if row.error is not None]
    if wrong:
        raise InputError(
            f"{len(wrong)} of {len(rows)} rows could not be scored ({listing(r.question.id for r in wrong)}); "
            f"the first said: {wrong[0].error}"
        )
    names = {name for row in rows for name in row.values if _NAME.fullmatch(name)}
    holed = [row for row in rows if names - row.values.keys()]
    if len(rows) < expected or holed:
        raise StoreError(
            f"the store holds {len(rows) - len(holed)} whole rows of {max(expected, len(rows))} that were evaluated, "
            f"so no mean is given; evaluate again, with MLFLOW_GENAI_EVAL_MAX_WORKERS=2 if the store was busy"
        )


def _by_name(name: str) -> tuple[str, int]:
    stem, _, k = name.partition("@")
    return stem, int(k.lstrip("b"))


def _status(row: _Stored, names: Sequence[str]) -> Status:
    found = {row.metadata[name].get("status", "ok") for name in names}
    return "failed" if "failed" in found else "missing" if "missing" in found else "ok"


def _estimate(name: str, eligible: Sequence[_Stored], alpha: float) -> Estimate:
    parsed = parse_metric(name)
    values = []
    for row in eligible:
        value = row.values[name]
        if value is None:
            return Estimate(None, 0, row.metadata[name].get("reason"), k=parsed.k, level=parsed.level)
        values.append(value)
    return estimate_mean(values, alpha=alpha, k=parsed.k, level=parsed.level, rate=is_rate(name))


def _refusals(rows: Sequence[_Stored], states: Mapping[str, State], alpha: float) -> AbstentionReport | None:
    found = []
    for row in rows:
        unanswerable = states[row.question.id] == "unanswerable"
        name = _ABSTENTION[0] if unanswerable else _ABSTENTION[1]
        if name in row.values:
            value = row.values[name]
            rung: Any = row.metadata[name].get("rung")
            abstained = None if value is None else bool(value)
            found.append(Row(unanswerable, abstained, rung, row.question.id))
    return confusion(found, alpha=alpha) if found else None


def _log(client: Any, scored: Scored) -> None:
    import time

    from mlflow.entities import Metric, RunTag

    ledger, report = scored.ledger, scored.abstention
    facts = Facts("scorers", metrics={"eligible_n": float(ledger.eligible)})
    for name, estimate in scored.estimates.items():
        facts.add(mlflow_payload(name, estimate))
    if report is not None:
        for name in ("precision", "recall", "f1", "mcc"):
            facts.add(mlflow_payload(f"abstention_{name}", getattr(report, name)))
        facts.add(mlflow_payload("false_refusal_rate", report.false_refusal_rate))
        for count in ("tp", "fp", "fn", "tn"):
            facts.number(f"abstention_{count}", getattr(report, count))
    facts.tags |= {
        "eligibility": ledger.eligibility,
        "incomplete": str(ledger.incomplete).lower(),
        "metric_version": METRIC_VERSION,
    }
    now = int(time.time() * 1000)
    client.log_batch(
        scored.run_id,
        metrics=[Metric(key, float(value), now, 0) for key, value in facts.metrics.items()],
        tags=[RunTag(key, text) for key, text in facts.tags.items()],
    )
    client.log_dict(scored.run_id, ledger.as_dict(), "ledger.json")


# ------------------------------------------------------------------ classic evaluation


def classic_metric(name: str, *, eligibility: str = "strict", alpha: float = 0.05) -> Any:
    """A ranked metric for `mlflow.models.evaluate(extra_metrics=[…])` (and the deprecated `mlflow.evaluate`).

    The predictions hold lists of document ids, the targets the gold, and a column `answerability` the labels. MLflow
    logs `recall_at_5/denominator/mean`, `/n`, `/ci_low`, `/ci_high`; the version in the middle keeps it apart from
    MLflow's own `recall_at_5`. Without an eligible row there is an `n` of 0 and no mean.
    """
    from mlflow.metrics import MetricValue, make_metric

    parse_metric(name)

    def eval_fn(predictions: Any, targets: Any, metrics: Any, answerability: Any) -> Any:  # noqa: ARG001
        labels = [{"answerability": a, "gold": g} for a, g in zip(answerability, map(list, targets), strict=True)]
        questions = [question_from(e, name=f"row {at}") for at, e in enumerate(labels, 1)]
        states = classify(questions)
        results = {q.id: retrieved_from(list(p)).result for q, p in zip(questions, predictions, strict=True)}
        build_ledger(states, {}, eligibility=eligibility)
        table = ranked(Run.from_results({i: r for i, r in results.items() if r is not None}), questions, [name])
        scores = [
            table.row(at)[0].get(name) if states[q.id] == "answerable" else None for at, q in enumerate(questions)
        ]
        reasons = (table.row(at)[1].get(name) for at, q in enumerate(questions) if states[q.id] == "answerable")
        estimate = Estimate(None, 0, next(filter(None, reasons), "no_eligible"))
        eligible = [s for q, s in zip(questions, scores, strict=True) if states[q.id] == "answerable"]
        numbers = [s for s in eligible if s is not None]
        if len(numbers) == len(eligible):  # one undefined row makes the mean undefined
            estimate = estimate_mean(numbers, alpha=alpha, rate=is_rate(name))
        found = {"mean": estimate.value, "n": estimate.n, "ci_low": estimate.ci_low, "ci_high": estimate.ci_high}
        return MetricValue(
            scores=list[Any](scores), aggregate_results={k: v for k, v in found.items() if v is not None}
        )

    make: Any = make_metric
    return make(eval_fn=eval_fn, greater_is_better=True, name=spell(name), version="denominator")
