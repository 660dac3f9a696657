"""Runs what `composing` made of the overrides: `start` is the whole of `denominator run` and `denominator sweep`.

Running is Hydra's plain multirun, so its launchers and flags work as they always do. A job never raises: what became
of it goes into the record and into an event log, and this process says it at the end.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import re
import shlex
import shutil
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from denominator import config, masking
from denominator.cache import Cache
from denominator.composing import (
    CALL_FOLDER,
    LAUNCH,
    Application,
    Grid,
    Job,
    Mode,
    application,
    compose_jobs,
    explain,
    lines_of,
    prepare,
    root_of,
    split_override,
    without_overrides,
)
from denominator.config import listed, nearest
from denominator.corpus import ids_of, texts_of
from denominator.errors import ConfigError, DenominatorError, StoreError, is_full
from denominator.fingerprint import sha
from denominator.masking import mask
from denominator.pipeline import Cell, run_cell
from denominator.progress import Events, following
from denominator.types import Dataset, Plan

Objective = float | list[float] | None
DEFAULT = "+experiment=demo"
HOUSEKEEPING = ("out", "tracking.", "fail_fast", "force", "hydra.", "hydra/")
INTERRUPTED = 130
FULL = "the disk is full"


# ------------------------------------------------------------------ running


@dataclass(slots=True)
class Context:
    """What jobs of this process share. A worker of another process builds its own from the launch file."""

    sweep_id: str
    folder: Path
    out: Path
    events: Events
    store: Any
    cache: Cache
    grid: Grid
    jobs: dict[tuple[str, ...], Job]
    numbers: dict[tuple[str, ...], int]
    recorded: dict[str, str]
    data: dict[str, Dataset] = field(default_factory=dict)
    texts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def launch(self) -> Path:
        return self.events.path.parent

    def dataset(self, cell: Cell) -> Dataset:
        """Loaded once per process, however many cells use it."""
        key = repr(cell.dataset)
        if key not in self.data:
            self.data[key] = cell.dataset.load()
        return self.data[key]

    def texts_of(self, data: Dataset) -> Mapping[str, str]:
        key = data.corpus_hash or ""
        if key not in self.texts:
            self.texts = {key: texts_of(data.documents)}
        return self.texts[key]


_context: Context | None = None


def _launch_folder(out: Path) -> Path:
    return out / "hydra" / os.environ[LAUNCH]


def _worker_context(cfg: DictConfig) -> Context:
    """The context of a process that a launcher started."""
    from denominator.tracking import Store, resolve_uri

    masking.remember_environment()
    threads = threads_of(_plain(HydraConfig.get().launcher), os.cpu_count() or 1)
    if threads is not None:  # a worker on another machine has not inherited it
        os.environ.update(_limits(threads))
    folder = Path(os.environ[CALL_FOLDER])
    settings = config.make_settings(root_of(cfg))
    out = folder / settings.out
    events = Events(_launch_folder(out) / "events.jsonl")
    told = json.loads((events.path.parent / "launch.json").read_text(encoding="utf-8"))
    store = Store(resolve_uri(settings.tracking.uri, out, folder), settings.tracking.experiment, out)
    numbers = {tuple(job): i for i, job in enumerate(told["jobs"])}
    grid = Grid(frozenset(told["varying"]), told["chunker_varies"], told["searched"])
    return Context(told["sweep_id"], folder, out, events, store, Cache(out / "cache"), grid, {}, numbers, {})


def job(cfg: DictConfig) -> Objective:
    """What Hydra runs for each cell, in whatever process. Never raises but for an interruption.

    Returns the objective for a sweeper that searches (several values: a list). None, which Optuna takes as a failed
    trial after which the search goes on, when the cell failed or one of them is undefined; NaN would end the search.
    """
    global _context  # noqa: PLW0603  # one per process, as Hydra calls a plain function
    if _context is None:
        _context = _worker_context(cfg)
    context = _context
    hydra = HydraConfig.get()
    overrides = tuple(lines_of(hydra.overrides.task))
    with contextlib.chdir(context.folder):  # relative paths mean the folder of the call, whatever hydra.job.chdir says
        known = context.jobs.get(overrides)
        number = context.numbers.get(overrides, 0 if OmegaConf.is_missing(hydra.job, "num") else int(hydra.job.num))
        try:
            made = known or prepare(cfg, hydra.runtime.choices, overrides, number, context.grid)
        except DenominatorError as error:
            context.events.say(number, "failed", error=mask(str(error)), overrides=[mask(o) for o in overrides])
            return None
        try:
            return _run(context, made)
        except Exception as error:  # before the cell itself: its data cannot be read, a lock cannot be made
            context.events.say(number, "failed", name=made.name, error=mask(f"{type(error).__name__}: {error}"))
            return None


def _run(context: Context, made: Job) -> Objective:
    from filelock import FileLock

    say, number = context.events.say, made.number
    if context.stopped or (context.launch / "stop").exists():
        say(number, "not_started", name=made.name, error=context.stopped or "fail_fast=true")
        return None
    data = context.dataset(made.cell)
    key = made.cell.key(data.dataset_hash, data.corpus_hash)
    if key in context.recorded:
        return _reused(context, made, key)
    say(number, "started", name=made.name, cell_key=key, pid=os.getpid())
    locks = context.out / "hydra" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = locks / f"{key[:16]}.lock"
    with FileLock(lock):  # two launches of the same grid never do a cell twice
        try:
            return _recorded(context, made, data, key)
        finally:
            lock.unlink(missing_ok=True)


def _reused(context: Context, made: Job, key: str) -> Objective:
    """A cell of the record stands for itself. Its value is read only where a sweeper asks for it."""
    run_id = context.recorded[key]
    context.events.say(made.number, "reused", name=made.name, cell_key=key, run_id=run_id)
    if not context.grid.searched:
        return None
    (run,) = context.store.get([run_id])
    headline = run.tags["headline_metric"]
    return _objective(
        made.settings.objective,
        lambda name: (
            run.metrics.get(name) if name in config.COSTS else run.estimate(name.replace("headline", headline)).value
        ),
    )


def _objective(names: Sequence[str], value: Callable[[str], float | None]) -> Objective:
    found = [value(name) for name in names]
    if any(v is None or not math.isfinite(v) for v in found):
        return None
    every = [v for v in found if v is not None]
    return every[0] if len(every) == 1 else every


def _recorded(context: Context, made: Job, data: Dataset, key: str) -> Objective:
    from denominator.tracking import StoreAwayError

    say, number, store = context.events.say, made.number, context.store
    clock = time.perf_counter()
    run_id: str | None = None
    figure: dict[str, Any] = {}
    try:
        try:
            if not made.settings.force or key in context.recorded:
                found = store.recorded([key])
                if found:
                    context.recorded |= found
                    return _reused(context, made, key)
            run_id = store.start_cell(made.name, key, context.sweep_id, made.overrides)
        except StoreError:
            run_id = None  # the store is away: the outcomes will wait on disk
        result = run_cell(
            made.cell,
            context.cache,
            dataset=data,
            progress=lambda stage: say(number, "stage", name=made.name, stage=stage),
        )
        headline = result.summary.metrics[result.summary.headline]
        figure = {"metric": result.summary.headline, "value": headline.value, "n": headline.n}
        run_id = store.log_cell(
            result,
            context.sweep_id,
            run_id=run_id,
            config=made.config,
            settings={k: v for k, v in made.params.items() if k not in result.params},
            overrides=made.overrides,
            texts=context.texts_of(data),
        )
    except (KeyboardInterrupt, SystemExit):
        say(number, "killed", name=made.name, cell_key=key)
        if run_id is not None:
            store.log_killed(run_id)
        raise
    except StoreError as error:
        if is_full(error):
            context.stopped = FULL
        away = {"away": mask(error.why)} if isinstance(error, StoreAwayError) else {}
        say(number, "waiting", name=made.name, cell_key=key, error=mask(str(error)), **figure, **away)
        return None
    except Exception as error:
        if is_full(error):  # nothing more can be written, so nothing more is begun
            context.stopped = FULL
            say(number, "failed", name=made.name, cell_key=key, error=f"{FULL}; {full_advice(context.out)}")
            return None
        _failed(context, made, key, error, run_id)
        return None
    context.recorded[key] = run_id
    took = time.perf_counter() - clock
    say(number, "recorded", name=made.name, cell_key=key, run_id=run_id, **figure, seconds=took)

    def value(name: str) -> float | None:
        if name in config.COSTS:
            return result.facts.get(name)
        estimate = result.summary.metrics.get(result.summary.headline if name == "headline" else name)
        return None if estimate is None else estimate.value

    return _objective(made.settings.objective, value)


def full_advice(out: Path) -> str:
    """What is safe and how to go on when the disk of the output folder has no space left."""
    return (
        f"what is recorded in {out} is safe; make room (`denominator cache prune --max-size …` frees the cache) and "
        "give the same command again: only what is missing is computed"
    )


def _failed(context: Context, made: Job, key: str, error: Exception, run_id: str | None) -> None:
    text = str(error) if isinstance(error, DenominatorError) else f"{type(error).__name__}: {error}"
    text = mask(text)
    overrides = [mask(o) for o in made.overrides]
    context.events.say(made.number, "failed", name=made.name, cell_key=key, error=text, overrides=overrides)
    if made.settings.fail_fast:
        (context.launch / "stop").touch()
    trace = "".join(traceback.format_exception(error))
    with contextlib.suppress(StoreError):
        if run_id is None:
            run_id = context.store.start_cell(made.name, key, context.sweep_id, made.overrides)
        context.store.log_failure(
            run_id,
            made.name,
            text,
            trace=trace,
            overrides=made.overrides,
            config=made.config,
            params=made.params,
        )


# ------------------------------------------------------------------ before and after


def check_writable(out: Path) -> None:
    """Makes the output folder and proves that it can be written. Raises ConfigError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".write"  # always the same name: what a killed process left is gone with the next probe
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(f"out: {out} cannot be written ({why}); choose another folder with out=…") from error


def check_data(data: Dataset, plan: Plan) -> None:
    """What the labels themselves refuse, once and before any work: `unscorable_questions`, unknown tags."""
    from denominator.eligibility import build_ledger, classify

    ids = ids_of(data.documents) if data.documents else None
    states = classify(data.questions, ids, evaluate=data.evaluate)
    build_ledger(
        states,
        {q: "ok" if state == "answerable" else "not_scored" for q, state in states.items()},
        eligibility=plan.eligibility,
        label_source=data.label_source,
    )
    if plan.cluster is not None and not any(q.cluster for q in data.questions):
        raise ConfigError(
            f"cluster: no question of {data.name} has a cluster, so cluster={plan.cluster} would do nothing; "
            "its reader needs the setting (in its YAML: cluster: ${cluster}), or its format has no such field"
        )
    tags = sorted({tag for question in data.questions for tag in question.tags})
    for tag in plan.slices:
        if tag not in tags:
            raise ConfigError(
                f"slices: no question has the tag {tag!r}{nearest(tag, tags)} (there are: {listed(tags)})"
            )


def sweep_id_of(keys: Sequence[str], *, fresh: bool) -> str:
    """The same cells are the same sweep, so that starting it again resumes it; `force` makes another one."""
    extra = [uuid.uuid4().hex] if fresh else []
    return sha([*sorted(set(keys)), *extra])[:12]


@dataclass(slots=True)
class Outcome:
    """What a call did, for the person and the exit code. `ends` is job number → last event."""

    sweep_id: str
    jobs: list[Job]
    keys: dict[int, str]
    ends: dict[int, dict[str, Any]]
    store: Any
    out: Path
    interrupted: bool = False
    error: str | None = None
    away: str | None = None
    sent: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    data: dict[str, Dataset] = field(default_factory=dict)
    sweep_run: str | None = None
    seconds: float = 0.0
    mode: Mode = "sweep"
    command: str = ""

    def count(self, *what: str) -> int:
        return sum(e["what"] in what for e in self.ends.values())

    @property
    def lost(self) -> list[int]:
        return [job.number for job in self.jobs if job.number not in self.ends]

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        if self.count("failed", "not_started") or self.lost or self.error:
            return 1
        return StoreError.exit_code if self.away or self.count("waiting") else 0


def start(
    argv: Sequence[str], mode: Mode, *, quiet: bool = False, dry_run: bool = False, json_lines: bool = False
) -> Outcome | int:
    """Runs `denominator run` or `denominator sweep` with these arguments. An int: only shown, nothing run."""
    args = parse(argv)
    if args.multirun:
        mode = "sweep"
    elif args.run:
        mode = "run"
    command = shlex.join(["denominator", mode, *map(masking.shown_override, args.overrides)])
    overrides = masking.into_environment(args.overrides)
    shown = args.cfg is not None or args.info is not None or args.help or args.hydra_help or args.shell_completion
    if not shown and all(split_override(o)[0].startswith(HOUSEKEEPING) for o in overrides):
        overrides = [DEFAULT, *overrides]
    with application(args, overrides) as app:
        if shown:
            return _show(app, args)
        if dry_run:
            return _rehearse(app, mode)
        return _start(app, mode, command, quiet=quiet, json_lines=json_lines)


def parse(argv: Sequence[str]) -> Any:
    """Hydra's own flags and overrides. Raises ConfigError instead of leaving the process."""
    parser = get_args_parser()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser.parse_args(list(argv))
    except SystemExit as error:
        if error.code in (0, None):
            raise
        lines = said.getvalue().strip().splitlines() or ["wrong arguments"]
        raise ConfigError(lines[-1].partition("error: ")[2] or lines[-1]) from None


def _show(app: Application, args: Any) -> int:
    """`--cfg`, `--info`, `--help` and shell completion as Hydra gives them, secrets masked."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            if args.help:
                app.hydra.app_help(config_name=app.config_name, args_parser=get_args_parser(), args=args)
            elif args.hydra_help:
                app.hydra.hydra_help(config_name=app.config_name, args_parser=get_args_parser(), args=args)
            elif args.cfg:
                app.hydra.show_cfg(app.config_name, app.overrides, args.cfg, args.package, args.resolve)
            elif args.shell_completion:
                app.hydra.shell_completion(config_name=app.config_name, overrides=app.overrides)
            else:
                app.hydra.show_info(args.info, config_name=app.config_name, overrides=app.overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, app.loader, without_overrides(app), app.overrides) from error
    sys.stdout.write(mask(said.getvalue()))
    return 0


def _start(app: Application, mode: Mode, command: str, *, quiet: bool, json_lines: bool = False) -> Outcome:
    global _context  # noqa: PLW0603
    from denominator.tracking import Store, resolve_uri

    clock = time.perf_counter()
    jobs, master, grid, complete = compose_jobs(app, mode)
    settings = jobs[0].settings if jobs else config.make_settings(root_of(master))
    out = app.folder / settings.out
    check_writable(out)
    context = Context(
        "",
        app.folder,
        out,
        Events(_launch_folder(out) / "events.jsonl"),
        None,
        Cache(out / "cache"),
        grid,
        {j.overrides: j for j in jobs},
        {j.overrides: j.number for j in jobs},
        {},
    )
    keys: dict[int, str] = {}
    for made in jobs:
        data = context.dataset(made.cell)
        check_data(data, made.cell.plan)
        keys[made.number] = made.cell.key(data.dataset_hash, data.corpus_hash)
    uri = resolve_uri(settings.tracking.uri, out, app.folder)
    try:
        store = Store.open(uri, settings.tracking.experiment, out)
    except StoreError as error:
        waiting = Store(uri, settings.tracking.experiment, out).pending()
        if waiting:
            error.add_note(
                f"{waiting} finished cells are safe in {out / 'pending'}: the next start that reaches the record "
                "writes them, nothing is computed again"
            )
        raise
    context.store = store
    sent = store.send_pending()
    store.bury()
    context.sweep_id = sweep_id_of(list(keys.values()), fresh=settings.force or not complete)
    if not settings.force and keys:
        context.recorded = store.recorded(keys.values())
    result = Outcome(context.sweep_id, jobs, keys, {}, store, out, sent=sent, mode=mode, command=command)
    todo = not complete or any(key not in context.recorded for key in keys.values())
    context.events.path.parent.mkdir(parents=True, exist_ok=True)
    _tell_workers(context, jobs)
    before = store.sweep(context.sweep_id) if mode == "sweep" else None
    afresh = mode == "sweep" and (todo or before is None or not before.recorded)
    sweep_run = _start_sweep(context, sweep_name(jobs)) if afresh else None
    _context = context
    try:
        if todo:
            names = [j.name for j in jobs]
            with _terminated_as_interrupt(), following(context.events, names, quiet=quiet, json_lines=json_lines):
                _launch(app, mode, master)
        else:
            for made in jobs:
                context.events.say(made.number, "reused", name=made.name, cell_key=keys[made.number])
    except KeyboardInterrupt:
        result.interrupted = True
    except OSError as error:
        result.error = f"{FULL}; {full_advice(out)}" if is_full(error) else mask(f"{type(error).__name__}: {error}")
    except Exception as error:  # a launcher that broke down: cells that ended are recorded, the others are named
        result.error = mask(f"{type(error).__name__}: {error}")
    finally:
        _context = None
    result.ends = context.events.ends()
    result.seconds = time.perf_counter() - clock
    _finish(context, result, sweep_run)
    return result


def _start_sweep(context: Context, name: str) -> str:
    """The sweep's run. Several starts of one sweep at once must not each make one: the first makes it, under a lock."""
    from filelock import FileLock

    locks = context.out / "hydra" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = locks / f"sweep-{context.sweep_id}.lock"
    with FileLock(lock):
        made: str = context.store.start_sweep(context.sweep_id, name)
        lock.unlink(missing_ok=True)
    return made


def _rehearse(app: Application, mode: Mode) -> int:
    """`--dry-run`: the cells checked as ever, then what would be done. Reads the data, the record and the cache."""
    from denominator import rehearsal
    from denominator.progress import console
    from denominator.tracking import resolve_uri
    from denominator.tracking.reading import recorded_cells

    jobs, master, _, complete = compose_jobs(app, mode)
    if not complete:
        rehearsal.show(rehearsal.rehearse([], [], [], Cache(None)), console(), searched=_sweeper_name(master))
        return 0
    settings = jobs[0].settings
    out = app.folder / settings.out
    loaded: dict[str, Dataset] = {}
    data, keys = [], []
    for made in jobs:
        part = repr(made.cell.dataset)
        loaded[part] = loaded.get(part) or made.cell.dataset.load()
        check_data(loaded[part], made.cell.plan)
        data.append(loaded[part])
        keys.append(made.cell.key(data[-1].dataset_hash, data[-1].corpus_hash))
    uri = resolve_uri(settings.tracking.uri, out, app.folder)
    known = {} if settings.force else recorded_cells(uri, settings.tracking.experiment, out, keys)
    found = rehearsal.rehearse([j.cell for j in jobs], data, [key in known for key in keys], Cache(out / "cache"))
    rehearsal.show(found, console())
    return 0


def _sweeper_name(master: DictConfig) -> str:
    return str(master.hydra.sweeper._target_).rpartition(".")[2]


def _launch(app: Application, mode: Mode, master: DictConfig) -> None:
    if mode == "run":
        app.hydra.run(app.config_name, job, app.overrides, with_log_configuration=False)
        return
    if "optuna" in master.hydra.sweeper._target_:
        import optuna

        optuna.logging.set_verbosity(logging.WARNING)
    with _shared_cores(master.hydra.launcher), _spread(master.hydra):
        app.hydra.multirun(app.config_name, job, app.overrides, with_log_configuration=False)


def apart(lists: Sequence[list[str]]) -> list[list[str]]:
    """Override lists in an order for workers side by side: one cell of every first stage before a second of any.

    Neighbours in a grid share their first stage, so the worker of the second one would only wait for the first's.

    >>> apart([[f"embedder={e}", f"reranker={r}"] for e in "ab" for r in "xy"])[:2]
    [['embedder=a', 'reranker=x'], ['embedder=b', 'reranker=x']]
    """
    met: dict[tuple[str, ...], int] = {}
    turns = []
    for overrides in lists:
        first = tuple(o for o in overrides if split_override(o)[0].split(".")[0] in ("dataset", "chunker", "embedder"))
        turns.append(met.get(first, 0))
        met[first] = turns[-1] + 1
    return [overrides for _, overrides in sorted(zip(turns, lists, strict=True), key=lambda pair: pair[0])]


@contextlib.contextmanager
def _spread(hydra: DictConfig) -> Iterator[None]:
    """Hydra's own sweeper hands the cells to workers in the order of `apart`. One process keeps the grid's order."""
    # Plug-ins are loaded once more by Hydra itself, so the class that it uses is not the one that is imported here.
    sweeper: Any = Plugins.instance().class_name_to_class.get(hydra.sweeper._target_)
    split = getattr(sweeper, "split_arguments", None)
    if split is None or threads_of(_plain(hydra.launcher), os.cpu_count() or 1) is None:
        yield
        return

    def spread(overrides: list[Override], most: int | None) -> list[list[list[str]]]:
        (grid,) = split(overrides, None)
        return list(BasicSweeper.split_overrides_to_chunks(apart(grid), most))

    sweeper.split_arguments = staticmethod(spread)
    try:
        yield
    finally:
        sweeper.split_arguments = staticmethod(split)


def threads_of(launcher: Mapping[str, Any], cores: int) -> int | None:
    """Threads for each worker of a launcher, so that workers and threads together are as many as the cores.

    None: one process at a time, which may use them all. joblib: cores ÷ n_jobs; Ray: the CPUs of a task; submitit: the
    CPUs of a task.

    >>> threads_of({"_target_": "hydra_plugins.hydra_joblib_launcher.x", "n_jobs": 2}, 8)
    4
    >>> threads_of({"_target_": "hydra_plugins.hydra_joblib_launcher.x", "n_jobs": -1}, 8)
    1
    """
    target = str(launcher.get("_target_", ""))
    if "joblib" in target:
        jobs = int(launcher.get("n_jobs") or 1)
        return max(1, cores // (max(1, cores + 1 + jobs) if jobs < 0 else jobs))
    if "ray" in target:
        remote = (launcher.get("ray") or {}).get("remote") or {}
        return max(1, int(remote.get("num_cpus") or 1))
    if "submitit" in target:
        return max(1, int(launcher.get("cpus_per_task") or 1))
    return None


def _limits(threads: int) -> dict[str, str]:
    """What libraries read when they start, for as many threads. Values that the environment has already stay."""
    names = (
        *("DENOMINATOR_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
        *("RAYON_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
    )
    return {name: str(threads) for name in names if name not in os.environ}


@contextlib.contextmanager
def _shared_cores(launcher: DictConfig) -> Iterator[None]:
    """Workers that are started inside inherit how many threads they may use."""
    threads = threads_of(_plain(launcher), os.cpu_count() or 1)
    limits = {} if threads is None else _limits(threads)
    os.environ.update(limits)
    try:
        yield
    finally:
        for name in limits:
            os.environ.pop(name, None)


def _plain(node: DictConfig) -> dict[str, Any]:
    made = OmegaConf.to_container(node, resolve=False)
    assert isinstance(made, dict)
    return {str(k): v for k, v in made.items()}


@contextlib.contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does: the running cell is marked, what is recorded stays."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell_workers(context: Context, jobs: Sequence[Job]) -> None:
    from denominator.tracking.facts import process_tags

    told = {
        "sweep_id": context.sweep_id,
        "jobs": [list(j.overrides) for j in jobs],
        "varying": sorted(context.grid.varying),
        "chunker_varies": context.grid.chunker_varies,
        "searched": context.grid.searched,
        "owner": process_tags(),
    }
    (context.launch / "launch.json").write_text(json.dumps(told), encoding="utf-8")


def sweep_name(jobs: Sequence[Job]) -> str:
    """`sweep of 36 cells · demo`."""
    sets = list(dict.fromkeys(str(j.params.get("dataset")) for j in jobs))
    return f"sweep of {len(jobs)} cells · {', '.join(sets)}" if jobs else "sweep"


def _finish(context: Context, result: Outcome, sweep_run: str | None) -> None:
    """The sweep's own run, and no file left behind that nobody needs."""
    from denominator import summary
    from denominator.tracking import StoreAwayError

    result.data = context.data
    _catch_up(context, result)
    result.runs = {key: context.recorded[key] for key in result.keys.values() if key in context.recorded}
    result.runs |= {e["cell_key"]: e["run_id"] for e in result.ends.values() if e.get("run_id")}
    try:
        if result.lost:
            context.store.bury()
        result.sweep_run = sweep_run
        summary.keep_texts(result)
        if sweep_run is not None:
            context.store.adopt(result.runs.values(), result.sweep_id)
            summary.record(result)
    except StoreAwayError as error:
        result.away = mask(error.why)
    except StoreError as error:
        result.error = result.error or (f"{FULL}; {full_advice(context.out)}" if is_full(error) else mask(str(error)))
    _unlock(context.out / "hydra" / "locks")
    if result.exit_code == 0:  # a worker's own log and its pickled call serve only to find out what went wrong
        shutil.rmtree(context.launch / ".submitit", ignore_errors=True)
        _forget_killed(context)
        context.cache.tidy()
    if result.count("reused") == len(result.ends):
        shutil.rmtree(context.launch, ignore_errors=True)


def _catch_up(context: Context, result: Outcome) -> None:
    """Cells that could not be recorded when they ended, once more: the store may be back by now."""
    from denominator.tracking import StoreAwayError

    waiting = [e for e in result.ends.values() if e["what"] == "waiting"]
    if not waiting or result.interrupted:
        return
    try:
        context.store.look()
        context.store.send_pending({e["cell_key"] for e in waiting})
        found = context.store.recorded(e["cell_key"] for e in waiting)
    except (StoreError, OSError) as error:
        result.away = mask(error.why) if isinstance(error, StoreAwayError) else None
        return
    for event in waiting:
        if event["cell_key"] in found:
            event |= {"what": "recorded", "run_id": found[event["cell_key"]]}
        else:
            result.away = result.away or event.get("away")


def _unlock(locks: Path) -> None:
    """Removes the locks that nobody holds: a killed process leaves its own. Another launch may hold some."""
    from filelock import FileLock, Timeout

    for path in sorted(locks.glob("*.lock")):
        with contextlib.suppress(Timeout, OSError), FileLock(path, timeout=0):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # only when empty
        locks.rmdir()


def _forget_killed(context: Context) -> None:
    """Removes what starts of this sweep left that were killed: it got through now."""
    from denominator.tracking.facts import alive, owner

    for file in sorted((context.out / "hydra").glob("*/launch.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            told = json.loads(file.read_text(encoding="utf-8"))
            if told["sweep_id"] == context.sweep_id and file.parent != context.launch and not alive(told["owner"]):
                events = Events(file.parent / "events.jsonl").read()[0]
                _forget_shared({owner(told["owner"])[1], *(str(e["pid"]) for e in events if "pid" in e)})
                shutil.rmtree(file.parent, ignore_errors=True)


def _forget_shared(pids: Collection[str]) -> None:
    """Removes joblib's semaphores and folders in shared memory that carry the number of one of these processes.

    They bear the number of whoever made them; after kill -9 of the whole group nobody else takes them away.
    """
    place = Path("/dev/shm")  # noqa: S108  # not ours to write into, but joblib's
    for left in sorted(place.glob("*")):
        found = re.match(r"(?:sem\.loky-|joblib_memmapping_folder_)(\d+)[-_]", left.name)
        if found and found[1] in pids and not Path(f"/proc/{found[1]}").exists():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
