"""Recorded sweeps back as typed outcomes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denominator.errors import StoreError
from denominator.masking import mask
from denominator.records import SCHEMA_VERSION, ledger_from_json, outcomes_from_lines, plan_from_json
from denominator.tracking.calls import Line, open_client
from denominator.tracking.files import OUTCOMES_HASH, file_hash
from denominator.tracking.store import Store, StoredRun, resolve_uri
from denominator.types import RecordedRun

if TYPE_CHECKING:
    from pandas import DataFrame


def find_store(out: str | Path = "denominator-out", uri: str | None = None, experiment: str | None = None) -> Store:
    """The store of an output folder for reading. Without a name: the experiment with the newest sweep or cell.

    Raises StoreError when there is no store, no such experiment, or nothing was recorded in it.
    """
    folder = Path(out)
    address = resolve_uri(uri, folder, Path.cwd())
    if address.startswith("sqlite:") and not Path(address.removeprefix("sqlite:///")).is_file():
        raise StoreError(
            f"there is no record yet at {address.removeprefix('sqlite:///')}; run `denominator sweep` first"
        )
    if experiment is not None:
        store = Store(address, experiment, folder)
        store.look()
        if store.ask(lambda: store.client.get_experiment_by_name(store.experiment), what="reading experiments") is None:
            names = ", ".join(experiments(address)) or "none"
            raise StoreError(f"there is no experiment {experiment!r} in this store (there are: {names})")
        return store
    newest: tuple[float, str] | None = None
    for name in experiments(address):
        runs = Store(address, name, folder).search("tags.kind != ''", limit=1)
        if runs and (newest is None or runs[0].start > newest[0]):
            newest = (runs[0].start, name)
    if newest is None:
        raise StoreError(f"nothing was recorded yet in {mask(address)}; run `denominator sweep` first")
    return Store(address, newest[1], folder)


def experiments(uri: str) -> list[str]:
    """Names of the experiments of a store, newest first."""
    line, client = Line(uri), open_client(uri)
    line.look()
    return [e.name for e in line.ask(lambda: client.search_experiments(max_results=1000), what=f"opening {mask(uri)}")]


def recorded_cells(uri: str, experiment: str, out: Path, keys: Sequence[str]) -> dict[str, str]:
    """Which of these cells the store has, without making store or experiment where they are absent."""
    if uri.startswith("sqlite:") and not Path(uri.removeprefix("sqlite:///").split("?", 1)[0]).is_file():
        return {}
    store = Store(uri, experiment, out)
    store.look()
    if store.ask(lambda: store.client.get_experiment_by_name(store.experiment), what=f"opening {mask(uri)}") is None:
        return {}
    return store.recorded(keys)


def load_sweep(
    sweep_id: str | None = None,
    *,
    out: str | Path = "denominator-out",
    uri: str | None = None,
    experiment: str | None = None,
    store: Store | None = None,
) -> list[RecordedRun]:
    """The recorded cells of a sweep with their outcomes; the latest sweep unless one is named. Ordered by name.

    Only runs with `recorded=true` are read. Raises StoreError when there is no such sweep or a file is missing.
    """
    store = store or find_store(out, uri, experiment)
    if sweep_id is None:
        sweeps = store.sweeps()
        if sweeps:
            sweep_id = sweeps[0].tags["sweep_id"]
        else:
            cells = store.search("tags.cell_key != '' and tags.recorded = 'true'", limit=1)
            if not cells:
                raise StoreError(f"no sweep was recorded yet in the experiment {store.experiment!r}")
            sweep_id = cells[0].tags["sweep_id"]
    runs = [run for run in store.cells(sweep_id) if run.recorded]
    if not runs:
        known = ", ".join(s.tags["sweep_id"] for s in store.sweeps()[:5]) or "none"
        raise StoreError(f"no recorded cells of the sweep {sweep_id!r} (newest sweeps: {known})")
    return [read_cell(store, run) for run in runs]


def read_cell(store: Store, run: StoredRun) -> RecordedRun:
    """One recorded cell with its outcomes, plan, ledger and facts. Runs of older schemas are read as they are.

    Raises StoreError: written by a newer denominator, files missing, changed or unreadable.
    """
    version = run.tags.get("schema_version", "1")
    if not version.isdigit() or int(version) > SCHEMA_VERSION:
        raise StoreError(
            f"run {run.name!r} ({run.run_id}) has schema version {version}, this denominator reads up to "
            f"{SCHEMA_VERSION}: a newer one wrote it; pip install --upgrade denominator"
        )
    with store.files(run) as folder:
        try:
            known = run.tags.get(OUTCOMES_HASH)
            if known is not None and file_hash(folder / "per_question.jsonl") != known:
                raise StoreError(
                    f"run {run.name!r} ({run.run_id}): per_question.jsonl was changed since it was recorded "
                    f"(recorded {known[:12]}…, found {file_hash(folder / 'per_question.jsonl')[:12]}…); "
                    "run the sweep again with force=true"
                )
            cell = upgraded(json.loads((folder / "cell.json").read_text(encoding="utf-8")))
            ledger = ledger_from_json(json.loads((folder / "ledger.json").read_text(encoding="utf-8")))
            prints = json.loads((folder / "fingerprint.json").read_text(encoding="utf-8"))
            with (folder / "per_question.jsonl").open(encoding="utf-8", errors="surrogatepass") as lines:
                outcomes = outcomes_from_lines(lines)
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(
                f"run {run.name!r} ({run.run_id}) is marked recorded, but its files cannot be read: {error}; "
                "run the sweep again with force=true"
            ) from error
    return RecordedRun(
        run_id=run.run_id,
        name=run.name,
        cell_key=run.tags["cell_key"],
        sweep_id=run.tags["sweep_id"],
        params=run.params,
        tags=run.tags,
        metrics=run.metrics,
        plan=plan_from_json(cell["plan"]),
        outcomes=outcomes,
        facts=cell["facts"],
        fingerprints=prints,
        ledger=ledger,
    )


def _from_1(cell: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 moved figures out of MLflow's metrics; the files kept their form."""
    return cell


UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}
"""How a `cell.json` of each older schema becomes one of the next. Nothing is written: old runs stay as they were."""


def upgraded(cell: dict[str, Any]) -> dict[str, Any]:
    """A `cell.json` of any older schema in the present form."""
    for version in range(int(cell.get("schema_version", 1)), SCHEMA_VERSION):
        cell = UPGRADES[version](cell) | {"schema_version": version + 1}
    return cell


def to_frame(runs: Iterable[RecordedRun], *, metrics: Sequence[str] | None = None) -> DataFrame:
    """The outcomes of recorded runs as a pandas DataFrame: one row per run and question, in the order of the runs.

    Columns: `run`, `run_id`, `question_id`, `question`, `state`, `status`, one column per part and setting that differs
    between the runs (`param.chunker`), one per metric (`recall@5`; NaN where it does not apply, the reason beside it in
    `reason.recall@5`), `confidence`, `abstained`, and one per tag (`tag.category`). `metrics`: those that are wanted,
    else all that any question has. A mean over `state == "answerable"` is the run's value.

    >>> frame = to_frame(load_sweep())  # doctest: +SKIP
    >>> frame[frame.state == "answerable"].groupby("run")["recall@5"].agg(["mean", "count"])  # doctest: +SKIP
    """
    import pandas as pd

    runs = list(runs)
    names = sorted({k for run in runs for k in run.params})
    differing = [k for k in names if len({run.params.get(k) for run in runs}) > 1]
    wanted = list(metrics) if metrics is not None else _names(o.values for run in runs for o in run.outcomes)
    tags = _names(o.tags for run in runs for o in run.outcomes)
    rows = []
    for run in runs:
        of_run = {"run": run.name, "run_id": run.run_id} | {f"param.{k}": run.params.get(k) for k in differing}
        for outcome in run.outcomes:
            row: dict[str, Any] = of_run | {
                "question_id": outcome.id,
                "question": outcome.question,
                "state": outcome.state,
                "status": outcome.status,
            }
            for name in wanted:
                row[name] = outcome.values.get(name)
            for name in wanted:
                row[f"reason.{name}"] = outcome.reasons.get(name)
            row |= {"confidence": outcome.confidence, "abstained": outcome.abstained}
            row |= {f"tag.{k}": outcome.tags.get(k) for k in tags}
            rows.append(row)
    frame = pd.DataFrame(rows)
    for name in [*(n for n in wanted if n in frame), *(["confidence"] if rows else [])]:
        frame[name] = frame[name].astype("float64")
    empty = [k for k in frame.columns if str(k).startswith("reason.") and frame[k].isna().all()]
    return frame.drop(columns=empty)


def _names(maps: Iterable[Mapping[str, Any]]) -> list[str]:
    """Keys of all of them, in the order in which they are first seen."""
    return list(dict.fromkeys(key for one in maps for key in one))


def ui_command(uri: str, host: str = "127.0.0.1", port: int = 5000) -> list[str]:
    """The command that opens MLflow's UI on a store, on this machine only."""
    return [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", host, "--port", str(port)]
