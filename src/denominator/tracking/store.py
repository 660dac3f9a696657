"""One MLflow store: opened once, written in few calls with retries, searched. Only here is mlflow imported."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from denominator.errors import ConfigError, StoreError
from denominator.masking import mask
from denominator.tracking.calls import Line, StoreAwayError, open_client, probe, retry
from denominator.tracking.facts import NOTE_LIMIT, Facts, alive, base_tags, cell_facts, git_commit, owner, process_tags
from denominator.tracking.files import OUTCOMES_HASH, TABLES, file_hash, plain_json, pretty, write_cell_files
from denominator.tracking.spelling import param_text, shortened, spell
from denominator.types import Estimate

if TYPE_CHECKING:
    from denominator.pipeline import CellResult

T = TypeVar("T")

TAG_LIMIT = 5_000
VERDICT = "**Verdict.**"
EXPERIMENT_LIMIT = 250
BATCH = {"metrics": 1_000, "params": 100, "tags": 100}  # what one REST call takes
EXPERIMENT_TAGS = {
    # MLflow's page then opens on the runs, not on a dashboard of traces that are not there.
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": (
        "Runs of `denominator`: one per cell (chunker × embedder × reranker) and one per sweep, flat and tied by the "
        "tag `sweep_id`. Each sweep has a saved view (**Views** above the runs): its cells, best first. The decision, "
        "its figures and its report are on the sweep's own run (`tags.kind = 'sweep'`)."
    ),
}
_LEFT = ("RUNNING", "SCHEDULED", "KILLED")


def default_uri(out: Path) -> str:
    return f"sqlite:///{out.absolute() / 'mlflow.db'}"


def resolve_uri(uri: str | None, out: Path, folder: Path) -> str:
    """The store's address: the setting, else MLFLOW_TRACKING_URI, else one sqlite file in `out`.

    Relative sqlite paths are read from the folder of the call, so that a job's working folder changes nothing.
    Raises ConfigError for stores that MLflow no longer opens (a plain folder).
    """
    text = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(out)
    if text.startswith("sqlite:"):
        path = text.removeprefix("sqlite:///")
        if path in ("", ":memory:") or text == "sqlite://":
            raise ConfigError("tracking.uri: an sqlite store needs a file, for example sqlite:///mlflow.db")
        return text if path.startswith("/") else f"sqlite:///{folder.absolute() / path}"
    if "://" not in text or text.startswith("file:"):
        name = Path(text.removeprefix("file://")).name or "mlflow"
        raise ConfigError(
            f"tracking.uri: {mask(text)!r} is a plain folder, which MLflow no longer accepts as a store; "
            f"use tracking.uri=sqlite:///{name}.db or a server's http address"
        )
    return text


def prepare_sqlite(uri: str) -> Any:
    """Makes the folder and the schema of an sqlite store once, under a lock, and switches it to write-ahead logging.

    Several processes on an empty store would otherwise run the schema migration at the same time and crash; and one
    that is killed in the middle of it would leave a store that nothing can open. So it is made beside its place, and
    gets its name when it is whole. Returns the client that it was opened with.
    """
    import sqlite3

    from filelock import FileLock

    path = Path(uri.removeprefix("sqlite:///").split("?", 1)[0])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(path) + ".lock", timeout=120):
            if not path.exists():
                _make_sqlite(path)
            client = retry(partial(open_client, uri), what=f"opening the store {path}")
            with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
                connection.execute("pragma journal_mode=wal")
        return client
    except OSError as error:
        raise StoreError(
            f"the store {path} cannot be made: {error.strerror or error}; "
            "set out=… or tracking.uri=… to a place that can be written"
        ) from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be used as an sqlite store: {error}") from error


def _make_sqlite(path: Path) -> None:
    new = path.with_name(path.name + ".new")
    for old in (new, *(new.with_name(new.name + end) for end in ("-journal", "-wal", "-shm"))):
        old.unlink(missing_ok=True)  # a process was killed while it made them
    client = retry(partial(open_client, f"sqlite:///{new}"), what=f"making the store {path}")
    client._tracking_client.store.engine.dispose()  # MLflow keeps no door for closing a store
    new.replace(path)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One row of the record: a run with its latest metrics. Times are seconds since the epoch."""

    run_id: str
    name: str
    status: str
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]
    artifact_uri: str
    start: float
    end: float | None

    @property
    def recorded(self) -> bool:
        return self.tags.get("recorded") == "true"

    def estimate(self, name: str) -> Estimate:
        """A metric with its n and interval as the record holds them."""
        key = spell(name)
        if f"{key}__n" not in self.metrics and f"{key}__micro__n" in self.metrics:
            key = f"{key}__micro"
        n = int(self.metrics.get(f"{key}__n", 0))
        if key not in self.metrics:
            return Estimate(None, n, self.tags.get(f"undefined.{key}", "not_recorded"))
        low, high = self.metrics.get(f"{key}__ci_low"), self.metrics.get(f"{key}__ci_high")
        return Estimate(self.metrics[key], n, ci_low=low, ci_high=high)


def _stored(run: Any) -> StoredRun:
    return StoredRun(
        run.info.run_id,
        run.info.run_name or "",
        run.info.status,
        dict(run.data.metrics),
        dict(run.data.params),
        dict(run.data.tags),
        run.info.artifact_uri,
        (run.info.start_time or 0) / 1000,
        None if run.info.end_time is None else run.info.end_time / 1000,
    )


class Store:
    """One experiment of one MLflow store. `Store.open` prepares it once; workers make their own with the same values.

    `out` holds `pending/` (what could not be sent yet) and, for sqlite, `artifacts/`.
    """

    def __init__(self, uri: str, experiment: str, out: Path) -> None:
        self.uri = uri
        self.experiment = shortened(experiment, EXPERIMENT_LIMIT)
        self.out = out
        self._line = Line(uri)
        self._client: Any = None
        self._experiment_id: str | None = None
        self._commit: str | None = None
        self._commit_known = False

    @classmethod
    def open(cls, uri: str, experiment: str, out: Path) -> Store:
        """Makes store, schema and experiment where they are absent.

        Raises StoreError that says what to do, within seconds when the store is away.
        """
        store = cls(uri, experiment, out)
        store.look()
        if uri.startswith("sqlite:"):
            store._client = prepare_sqlite(uri)
        _ = store.experiment_id
        return store

    def look(self) -> None:
        """A cheap first question. Raises StoreError within seconds when the store is away."""
        self._line.look()

    def ask(self, call: Callable[[], T], *, what: str, attempts: int | None = None) -> T:
        """A call to the store, made again while it is busy. Raises StoreError, at once when the store is away."""
        return self._line.ask(call, what=what, attempts=attempts)

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = open_client(self.uri)
        return self._client

    @property
    def artifact_root(self) -> str | None:
        """Where artifacts go: the `artifacts` folder beside an sqlite store's runs; a server decides itself."""
        return (self.out.absolute() / "artifacts").as_uri() if self.uri.startswith("sqlite:") else None

    @property
    def experiment_id(self) -> str:
        if self._experiment_id is None:
            self._experiment_id = self.ask(self._find_experiment, what=f"opening {mask(self.uri)}")
        return self._experiment_id

    def _find_experiment(self) -> str:
        found = self.client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                made: str = self.client.create_experiment(
                    self.experiment, artifact_location=self.artifact_root, tags=EXPERIMENT_TAGS
                )
                return made
            except Exception:  # another process may have been faster
                found = self.client.get_experiment_by_name(self.experiment)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            raise StoreError(
                f"the experiment {self.experiment!r} was deleted in this store; restore it "
                f"(mlflow experiments restore -x {found.experiment_id}) or choose another name: tracking.experiment=…"
            )
        return str(found.experiment_id)

    @property
    def commit(self) -> str | None:
        if not self._commit_known:
            self._commit, self._commit_known = git_commit(), True
        return self._commit

    # -------------------------------------------------------------- reading

    def search(self, query: str = "", *, order: Sequence[str] = (), limit: int | None = None) -> list[StoredRun]:
        """Runs of the experiment that match MLflow's own filter text, newest first unless `order` says otherwise."""
        out: list[StoredRun] = []
        token = None
        while True:
            call = partial(
                self.client.search_runs,
                [self.experiment_id],
                query,
                max_results=500 if limit is None else min(500, limit - len(out)),
                order_by=list(order) or ["attributes.start_time DESC"],
                page_token=token,
            )
            page = self.ask(call, what="reading runs")
            out += [_stored(run) for run in page]
            token = page.token
            if not token or (limit is not None and len(out) >= limit):
                return out

    def recorded(self, cell_keys: Iterable[str]) -> dict[str, str]:
        """cell_key → run id of the newest complete run of each of these cells. Incomplete ones are to be run again."""
        wanted = set(cell_keys)
        complete = "tags.cell_key != '' and tags.recorded = 'true' and tags.incomplete = 'false'"
        if len(wanted) <= 4:  # a few questions are cheaper than the whole experiment
            runs = [r for k in sorted(wanted) for r in self.search(f"{complete} and tags.cell_key = '{k}'", limit=1)]
        else:
            runs = self.search(complete)
        out: dict[str, str] = {}
        for run in runs:
            key = run.tags.get("cell_key", "")
            if key in wanted:
                out.setdefault(key, run.run_id)
        return out

    def cells(self, sweep_id: str) -> list[StoredRun]:
        """A sweep's cells, those that it ran and those that it took from earlier ones: one run each, by name.

        Of several runs of a cell the newest recorded one is taken, else the newest.
        """
        best: dict[str, StoredRun] = {}
        for run in self.search(f"tags.cell_key != '' and tags.`sweep.{sweep_id}` = 'true'"):
            key = run.tags.get("cell_key", run.run_id)
            if key not in best or (run.recorded and not best[key].recorded):
                best[key] = run
        return sorted(best.values(), key=lambda r: r.name)

    def get(self, run_ids: Iterable[str]) -> list[StoredRun]:
        """These runs, in this order."""
        return [_stored(self.ask(partial(self.client.get_run, run_id), what="reading a run")) for run_id in run_ids]

    def sweeps(self) -> list[StoredRun]:
        """Sweep runs, newest first."""
        return self.search("tags.kind = 'sweep'")

    def sweep(self, sweep_id: str) -> StoredRun | None:
        found = self.search(f"tags.kind = 'sweep' and tags.sweep_id = '{sweep_id}'", limit=1)
        return found[0] if found else None

    @contextlib.contextmanager
    def files(self, run: StoredRun) -> Iterator[Path]:
        """The folder of a run's artifacts: in place when they lie on this machine, else a copy that is removed."""
        import tempfile

        local = local_folder(run.artifact_uri)
        if local is not None and local.is_dir():
            yield local
            return
        if local is not None and run.recorded:
            raise StoreError(
                f"the artifacts of run {run.name!r} are gone: {local} is not there. The figures in the store are safe; "
                "the outcomes are computed again by the same sweep with force=true, or put the folder back"
            )
        with tempfile.TemporaryDirectory(prefix="denominator-") as folder:
            what = f"reading the artifacts of run {run.name!r} ({run.run_id})"
            try:
                self.ask(partial(self.client.download_artifacts, run.run_id, "", folder), what=what)
            except StoreAwayError:
                raise
            except StoreError as error:
                raise StoreError(f"{error}; run the sweep again with force=true") from error
            yield Path(folder)

    # -------------------------------------------------------------- writing

    def start_cell(self, name: str, cell_key: str, sweep_id: str, overrides: Sequence[str] = ()) -> str:
        """A RUNNING run for a cell. One that a dead process left half done is taken up instead of making another."""
        tags = base_tags("cell", sweep_id, self.commit) | {
            "cell_key": cell_key,
            f"sweep.{sweep_id}": "true",
            "incomplete": "false",
        }
        if overrides:
            tags["overrides"] = shortened(mask(" ".join(overrides)), TAG_LIMIT)
        for run in self.search(f"tags.cell_key = '{cell_key}' and tags.recorded = 'false'"):
            half_done = run.status in _LEFT or run.status == "FINISHED"
            if half_done and (_ours(run.tags) or not alive(run.tags)):
                self._batch(run.run_id, tags=tags)
                self._rename(run.run_id, name)
                return run.run_id
        return self._create(name, tags)

    def _create(self, name: str, tags: Mapping[str, str]) -> str:
        # A lost answer must not lead to a second run: each attempt carries a mark, and a retry looks for it first.
        mark = uuid.uuid4().hex
        tried = False

        def make() -> str:
            nonlocal tried
            if tried:
                found = self.client.search_runs([self.experiment_id], f"tags.attempt = '{mark}'", max_results=1)
                if found:
                    return str(found[0].info.run_id)
            tried = True
            every = {k: shortened(mask(v), NOTE_LIMIT) for k, v in tags.items()} | {"attempt": mark}
            return str(self.client.create_run(self.experiment_id, run_name=name, tags=every).info.run_id)

        return self.ask(make, what="creating a run")

    def _rename(self, run_id: str, name: str) -> None:
        self.ask(lambda: self.client.update_run(run_id, status="RUNNING", name=name), what="resuming a run")

    def _tag(self, run_id: str, key: str, value: str) -> None:
        self.ask(lambda: self.client.set_tag(run_id, key, value), what="marking a run")

    def _batch(
        self,
        run_id: str,
        *,
        metrics: Sequence[Any] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Param, RunTag

        every: dict[str, list[Any]] = {
            "metrics": list(metrics),
            "params": [Param(k, v) for k, v in (params or {}).items()],
            "tags": [RunTag(k, shortened(mask(v), NOTE_LIMIT)) for k, v in (tags or {}).items()],
        }
        for i in range(max(math.ceil(len(v) / BATCH[k]) for k, v in every.items())):
            part = {k: v[i * BATCH[k] : (i + 1) * BATCH[k]] for k, v in every.items()}
            self.ask(partial(self.client.log_batch, run_id, synchronous=True, **part), what="writing a run")

    def log_cell(
        self,
        result: CellResult,
        sweep_id: str,
        *,
        run_id: str | None = None,
        config: str = "",
        settings: Mapping[str, Any] | None = None,
        overrides: Sequence[str] = (),
        texts: Mapping[str, str] | None = None,
        kind: str = "cell",
    ) -> str:
        """Writes a finished cell: files to `pending/` first, then one batch, the artifacts, and `recorded` last.

        `kind` `score`: a run of another system that was scored, of the same form and read by the same commands.
        Raises StoreError when the store stays away; the outcomes are then safe in `pending/`.
        """
        facts = cell_facts(result, sweep_id, settings=settings, commit=self.commit, overrides=overrides)
        facts.tags["kind"] = kind
        folder = self.out / "pending" / f"{result.cell_key[:16]}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        write_cell_files(folder / "artifacts", result, config=config, overrides=overrides, texts=texts)
        facts.tags[OUTCOMES_HASH] = file_hash(folder / "artifacts" / "per_question.jsonl")
        _write_json(folder / "payload.json", facts.as_json() | {"owner": process_tags()})
        run_id = self._send(folder, facts, run_id)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
        return run_id

    def _send(self, folder: Path, facts: Facts, run_id: str | None) -> str:
        try:
            from mlflow.entities import Metric

            target = run_id or self._create(facts.name, facts.tags | {"recorded": "false"})
            now = int(time.time() * 1000)
            metrics = [Metric(k, v, now, 0) for k, v in facts.metrics.items()]
            metrics += [Metric(k, v, now, step) for k, v, step in facts.curve]
            tables = json.dumps([{"path": name, "type": "table"} for name in TABLES])
            tags = facts.tags | {"mlflow.loggedArtifacts": tables, "recorded": "false"}
            with self._beside(partial(self.client.log_artifacts, target, str(folder / "artifacts"))):
                self._batch(target, metrics=metrics, params=facts.params, tags=tags)
                if facts.dataset:
                    self._log_dataset(target, facts.dataset)
            self._close(target, "FINISHED")
        except StoreError as error:
            safe = f"{error}; the outcomes of {facts.name!r} are safe in {folder} and the next start records them"
            if isinstance(error, StoreAwayError):
                raise StoreAwayError(safe, error.why) from error
            raise StoreError(safe) from error
        return target

    @contextlib.contextmanager
    def _beside(self, upload: Callable[[], object]) -> Iterator[None]:
        """Uploads files while the body runs: a server waits for the network more than for anything else."""
        what = "writing artifacts"
        if not self.uri.startswith(("http://", "https://")):
            yield
            self.ask(upload, what=what)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1, thread_name_prefix="denominator-upload") as pool:
            sent = pool.submit(self.ask, upload, what=what)
            yield
            sent.result()

    def _log_dataset(self, run_id: str, data: Mapping[str, str]) -> None:
        from mlflow.entities import Dataset as Entity
        from mlflow.entities import DatasetInput, InputTag

        entity = Entity(data["name"], data["digest"], "local", data["source"], data["schema"], data["profile"])
        given = DatasetInput(entity, [InputTag("mlflow.data.context", "evaluation")])
        self.ask(lambda: self.client.log_inputs(run_id, [given]), what="writing the data set")

    def _close(self, run_id: str, status: str, *, recorded: bool = True) -> None:
        self.ask(lambda: self.client.set_terminated(run_id, status), what="closing a run")
        if recorded:  # the very last thing
            self._tag(run_id, "recorded", "true")

    def log_failure(
        self,
        run_id: str,
        name: str,
        error: BaseException | str,
        *,
        trace: str = "",
        overrides: Sequence[str] = (),
        config: str = "",
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Turns a started run into a FAILED one: the error as a tag, its traceback as an artifact. Never `recorded`."""
        text = mask(str(error)) or type(error).__name__
        note = f"**{name}** failed\n\n```\n{text[:2000]}\n```\n\n" + mask(" ".join(overrides))
        self._batch(
            run_id,
            params={k: param_text(v) for k, v in (params or {}).items()},
            tags={"error": shortened(text, TAG_LIMIT), "mlflow.note.content": note},
        )
        for file, content in (("traceback.txt", mask(trace)), ("config.yaml", config)):
            if content:
                self.ask(partial(self.client.log_text, run_id, content, file), what=f"writing {file}")
        self._close(run_id, "FAILED", recorded=False)

    def log_killed(self, run_id: str) -> None:
        """Marks an interrupted run; one attempt only, because a person is waiting for the prompt."""
        if probe(self.uri) is not None:
            return
        with contextlib.suppress(Exception):
            self.client.set_terminated(run_id, "KILLED")

    def adopt(self, run_ids: Iterable[str], sweep_id: str) -> None:
        """Marks cells that an earlier sweep recorded as belonging to this one too."""
        tag = f"sweep.{sweep_id}"
        known = {r.run_id for r in self.search(f"tags.kind = 'cell' and tags.`{tag}` = 'true'")}
        for run_id in run_ids:
            if run_id not in known:
                self._tag(run_id, tag, "true")

    def start_sweep(self, sweep_id: str, name: str) -> str:
        """The sweep's run, made or taken up again: one per sweep_id."""
        found = self.sweep(sweep_id)
        tags = base_tags("sweep", sweep_id, self.commit)
        if found is None:
            return self._create(name, tags)
        self._batch(found.run_id, tags=tags)
        self._rename(found.run_id, name)
        return found.run_id

    def log_sweep(
        self,
        run_id: str,
        *,
        note: str,
        cells: Sequence[Mapping[str, Any]],
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        dataset: Mapping[str, str] | None = None,
        status: str = "FINISHED",
    ) -> None:
        """Writes the sweep's own run: description, list of cells, figures that stand for the whole; recorded last."""
        import tempfile

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._batch(
            run_id,
            metrics=[Metric(k, float(v), now, 0) for k, v in (metrics or {}).items() if math.isfinite(v)],
            params={k: param_text(v) for k, v in (params or {}).items()},
            tags={"mlflow.note.content": shortened(mask(note), NOTE_LIMIT), **(tags or {})},
        )
        with tempfile.TemporaryDirectory(prefix="denominator-") as folder:
            for name, text in {"cells.json": pretty(list(cells)), **(files or {})}.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            self.ask(lambda: self.client.log_artifacts(run_id, folder), what="writing the sweep's files")
        if dataset:
            self._log_dataset(run_id, dataset)
        self._close(run_id, status)

    def lead(self, run: StoredRun, sentence: str) -> None:
        """Puts the verdict above a sweep's description, in place of an earlier one."""
        note = run.tags.get("mlflow.note.content", "")
        rest = note.partition("\n\n")[2] if note.startswith(VERDICT) else note
        text = shortened(f"{VERDICT} {mask(' '.join(sentence.split()))}\n\n{rest}", NOTE_LIMIT)
        self._tag(run.run_id, "mlflow.note.content", text)

    def attach(self, run_id: str, path: Path, folder: str | None = None) -> None:
        """Adds a file (the report) to a run."""
        self.ask(lambda: self.client.log_artifact(run_id, str(path), folder), what="attaching a file")

    # -------------------------------------------------------------- what an earlier start left behind

    def pending(self) -> int:
        """How many finished cells wait on disk to be recorded."""
        return len(list((self.out / "pending").glob("*/payload.json")))

    def send_pending(self, ended: Collection[str] = ()) -> list[str]:
        """Records what could not be sent when it was there, each cell once. Returns the names of the cells.

        What belongs to another process that lives is left to it, unless its cell_key is in `ended`.
        """
        root = self.out / "pending"
        sent: list[str] = []
        for folder in sorted(root.iterdir()) if root.is_dir() else []:
            file = folder / "payload.json"
            if not file.is_file():  # its process died while writing: the cell is computed again
                if not alive({"process": f"{socket.gethostname()} {folder.name.split('-')[1:2][0]}"}):
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            data = json.loads(file.read_text(encoding="utf-8"))
            facts = Facts.from_json(data)
            key = facts.tags.get("cell_key", "")
            if alive(data["owner"]) and not _ours(data["owner"]) and key not in ended:
                continue
            if not self.recorded([key]):
                self._send(folder, facts, self.start_cell(facts.name, key, facts.tags["sweep_id"]))
                sent.append(facts.name)
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            root.rmdir()
        return sent

    def bury(self) -> int:
        """Marks RUNNING runs of dead processes of this host as KILLED. Returns how many there were."""
        running = self.search("attributes.status = 'RUNNING' and tags.kind != ''")
        gone = [run for run in running if not alive(run.tags) and run.tags["kind"] == "cell"]
        for run in gone:
            self.log_killed(run.run_id)
        return len(gone)


def local_folder(uri: str) -> Path | None:
    """The folder of a `file:` URI or a plain path; None for anything else."""
    if uri.startswith("file:"):
        from urllib.parse import unquote, urlsplit

        return Path(unquote(urlsplit(uri).path))
    return Path(uri) if uri.startswith("/") else None


def _ours(tags: Mapping[str, str]) -> bool:
    return owner(tags)[:2] == (socket.gethostname(), str(os.getpid()))


def _write_json(path: Path, value: Any) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(plain_json(value), ensure_ascii=False, allow_nan=False), encoding="utf-8")
    temporary.replace(path)
