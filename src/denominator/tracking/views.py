"""A saved view of MLflow's runs page for a sweep: its cells, best first, the useful columns, a few charts.

MLflow keeps saved views in experiment tags (`mlflow.sharedViewState.<id>`), in a form that it does not document: a view
is a convenience that nothing depends on. Looked at in MLflow 3.17; its tests pass with 3.10 too.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from denominator.errors import StoreError
from denominator.masking import mask
from denominator.tracking.spelling import spell

if TYPE_CHECKING:
    from denominator.tracking.store import Store, StoredRun

TAG = "mlflow.sharedViewState."
LIMIT = 5_000  # characters of an experiment's tag in MLflow 3.10; 20,000 since
KEPT = 20  # views of the newest sweeps; older ones are removed
PARTS = ("dataset", "chunker", "embedder", "reranker", "answerer")
MOST_SETTINGS, MOST_AXES = 10, 4
COSTS = ("latency_ms_median", "n_chunks", "index_bytes")


def column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def varying(runs: Sequence[StoredRun]) -> list[str]:
    """Parameters that tell the runs apart: parts that differ, then settings that differ under the same choice.

    That BM25 has a `k1` and a dense embedder has none is said by the part's name already.
    """
    names = sorted({name for run in runs for name in run.params})
    found = []
    for name in names:
        part = name.split(".", 1)[0] if "." in name else None
        values: dict[str | None, set[str | None]] = {}
        for run in runs:
            values.setdefault(None if part is None else run.params.get(part), set()).add(run.params.get(name))
        if any(len(of_choice) > 1 for of_choice in values.values()):
            found.append(name)
    return sorted(found, key=lambda n: (PARTS.index(n) if n in PARTS else len(PARTS), n))


def sweep_state(sweep_id: str, runs: Sequence[StoredRun], recall: str = "recall_at_5") -> dict[str, Any]:
    """What MLflow's page remembers of itself: filter, order, columns, charts."""
    headline = spell(next((r.tags["headline_metric"] for r in runs if "headline_metric" in r.tags), "recall@5"))
    there = {key for run in runs for key in run.metrics}
    wanted = (headline, f"{headline}__n", recall, "abstention_recall", "false_refusal_rate", *COSTS)
    metrics = [m for m in dict.fromkeys(wanted) if m in there]
    params = varying(runs)[:MOST_SETTINGS]
    data, name = column("attributes", "Dataset"), column("attributes", "Run Name")
    columns = [data, *(column("metrics", m) for m in metrics), *(column("params", p) for p in params)]
    widths = dict.fromkeys(columns, 96) | {name: 280, data: 200, column("metrics", headline): 130}
    # MLflow leaves a run out of the parallel coordinates when it lacks one of the axes.
    axes = [p for p in params if all(p in run.params for run in runs)][:MOST_AXES]
    charts, sections = _charts(headline, recall, metrics, axes, len(runs))
    return {
        "searchFilter": f"tags.`sweep.{sweep_id}` = 'true' and tags.recorded = 'true'",
        "orderByKey": column("metrics", headline),
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "columnOrder": [name, *columns],
        "columnWidths": widths,
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "FIRST_20_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "autoRefreshEnabled": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "compareRunCharts": charts,
        "compareRunSections": sections,
    }


def _charts(
    headline: str, recall: str, metrics: Sequence[str], axes: Sequence[str], runs: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    charts: list[dict[str, Any]] = []
    sections: list[dict[str, Any]] = []

    def section(key: str, name: str) -> None:
        made = {"uuid": key, "name": name, "display": True, "isReordered": True, "deleted": False, "isGenerated": False}
        sections.append(made)

    def chart(kind: str, of: str, name: str, **more: Any) -> None:
        made = {"uuid": f"{of}-{len(charts)}", "type": kind, "metricSectionId": of, "displayName": name}
        charts.append(made | {"runsCountToCompare": runs, "deleted": False, "isGenerated": False} | more)

    def bar(of: str, metric: str) -> None:
        if metric in metrics:
            chart("BAR", of, metric, metricKey=metric, selectedMetricKeys=[metric])

    section("quality", "Quality")
    bar("quality", headline)
    line = {"lineSmoothness": 0, "xAxisScaleType": "linear", "scaleType": "linear", "range": {}, "xAxisKey": "step"}
    line |= {"selectedXAxisMetricKey": "", "yAxisKey": "metric", "yAxisExpressions": [], "ignoreOutliers": False}
    line |= {"useGlobalXaxisKey": False, "useGlobalLineSmoothing": True, "displayPoints": True}
    chart("LINE", "quality", "recall@K (step = K)", metricKey="recall_at_k", selectedMetricKeys=["recall_at_k"], **line)
    if recall != headline:
        bar("quality", recall)
    if axes and headline in metrics:
        section("settings", "Effect of the settings")
        more = {"selectedParams": list(axes), "selectedMetrics": [headline], "showAllRuns": True}
        chart("PARALLEL", "settings", f"settings and {headline}", **more)
    section("abstention", "Abstention")
    bar("abstention", "abstention_recall")
    bar("abstention", "false_refusal_rate")
    section("costs", "Costs")
    if "latency_ms_median" in metrics and headline in metrics:
        both = {"xaxis": {"key": "latency_ms_median", "type": "METRIC"}, "yaxis": {"key": headline, "type": "METRIC"}}
        chart("SCATTER", "costs", f"{headline} against latency", **both)
    bar("costs", "latency_ms_median")
    bar("costs", "index_bytes")
    used = {c["metricSectionId"] for c in charts}
    return charts, [s for s in sections if s["uuid"] in used]


def tag_value(name: str, state: Mapping[str, Any], created: int) -> str:
    """A view as the tag holds it.

    Newer pages read `state`, a text that may be compressed. Older ones (MLflow 3.10, with 5,000 characters for a tag)
    read the fields beside it: for them filter, order and columns, without the charts.
    """
    plain = {k: v for k, v in state.items() if k not in ("compareRunCharts", "compareRunSections")}
    envelope = {"name": name, "createdAt": created, "state": _compressed(state)}
    text = json.dumps(plain | envelope, separators=(",", ":"))
    return text if len(text) <= LIMIT else json.dumps(envelope, separators=(",", ":"))


def _compressed(state: Mapping[str, Any]) -> str:
    text = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def state_of(tag: str) -> dict[str, Any]:
    """The state that a tag holds: the way back."""
    made: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(json.loads(tag)["state"].partition(";")[2])))
    return made


def save_view(store: Store, sweep_id: str, name: str, runs: Sequence[StoredRun]) -> bool:
    """Saves the view of a sweep under its id and removes the oldest of ours. False when the store would not have it."""
    import time

    recalls = {r.tags["audit_metric"] for r in runs if "audit_metric" in r.tags}
    recall = spell(min(recalls)) if recalls else "recall_at_5"
    value = tag_value(f"{name} · {sweep_id}", sweep_state(sweep_id, runs, recall), int(time.time() * 1000))
    if len(value) > LIMIT:
        return False
    try:
        call = store.client.set_experiment_tag
        store.ask(lambda: call(store.experiment_id, f"{TAG}{sweep_id}", value), what="saving a view", attempts=2)
        read = store.ask(lambda: store.client.get_experiment(store.experiment_id), what="reading views", attempts=2)
        tags = read.tags
    except StoreError:
        return False
    for key in _outdated(tags):
        with contextlib.suppress(Exception):
            store.client.delete_experiment_tag(store.experiment_id, key)
    return True


def _outdated(tags: Mapping[str, str]) -> list[str]:
    """Keys of our own oldest views beyond those that are kept; a person's own views are never among them."""
    ours = []
    for key, value in tags.items():
        if not key.startswith(TAG):
            continue
        with contextlib.suppress(ValueError, TypeError, KeyError):
            made = json.loads(value)
            if str(made["name"]).endswith(f"· {key.removeprefix(TAG)}"):
                ours.append((int(made["createdAt"]), key))
    return [key for _, key in sorted(ours, reverse=True)[KEPT:]]


def view_path(experiment_id: str, sweep_id: str, mode: str = "") -> str:
    """The view's address below the server's, from `#` on. `mode`: `CHART`, `ARTIFACT`, else the table.

    >>> view_path("1", "abc")
    '#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=abc'
    """
    page = f"#/experiments/{quote(experiment_id)}/runs?workflowType=machine_learning"
    text = f"{page}&viewStateShareKey={quote(sweep_id)}"
    return f"{text}&compareRunsMode={mode}" if mode else text


def run_path(experiment_id: str, run_id: str, artifact: str = "") -> str:
    """A run's page below the server's address, or one of its artifacts."""
    text = f"#/experiments/{quote(experiment_id)}/runs/{quote(run_id)}"
    text = f"{text}/artifacts/{quote(artifact)}" if artifact else text
    return f"{text}?workflowType=machine_learning"


def sweep_links(store: Store, sweep_id: str, run_id: str) -> str:
    """The line of a sweep's description that leads to its cells, charts, questions and report."""
    view = [
        f"[{text}]({view_path(store.experiment_id, sweep_id, mode)})"
        for text, mode in (("cells, best first", ""), ("charts", "CHART"), ("questions side by side", "ARTIFACT"))
    ]
    report = f"[report]({run_path(store.experiment_id, run_id, 'report/report.html')})"
    return " · ".join([*view, report])


def newest_view(
    out: str | Path = "denominator-out", uri: str | None = None, experiment: str | None = None
) -> str | None:
    """The path of the newest sweep's view, else of the runs; None where the store does not answer."""
    from denominator.tracking.reading import find_store

    with contextlib.suppress(Exception):  # a convenience: whatever is wrong with it, the UI can be opened without
        store = find_store(out, uri, experiment)
        tags = store.client.get_experiment(store.experiment_id).tags
        for sweep in store.sweeps():
            if f"{TAG}{sweep.tags['sweep_id']}" in tags:
                return view_path(store.experiment_id, sweep.tags["sweep_id"])
        return f"#/experiments/{quote(store.experiment_id)}/runs?workflowType=machine_learning"
    return None


def server_of(uri: str) -> str:
    """The address of a tracking server as a link's beginning, without user and password."""
    return mask(uri).replace("***@", "").rstrip("/")
