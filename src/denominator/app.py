"""Overrides in, validated cells out, and run: the only importer of hydra.

A grid is expanded with Hydra's own override parser and every cell is composed, instantiated and checked before any
work. Running is Hydra's plain multirun, so its launchers and flags work as they always do. A job never raises: what
became of it goes into the record and into an event log, and this process says it at the end.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from denominator import config, masking
from denominator.cache import Cache
from denominator.config import GROUPS, Settings, listed, nearest
from denominator.corpus import ids_of, texts_of
from denominator.errors import ConfigError, DenominatorError, StoreError, is_full
from denominator.evaluation import parse_metric
from denominator.fingerprint import sha
from denominator.masking import mask
from denominator.pipeline import Cell, run_cell
from denominator.progress import Events, following
from denominator.ranking import level_guard
from denominator.types import Dataset, Level, Plan

Mode = Literal["run", "sweep"]
Objective = float | list[float] | None
LAUNCH, CALL_FOLDER = "DENOMINATOR_LAUNCH", "DENOMINATOR_CALL_FOLDER"
DEFAULT = "+experiment=demo"
HOUSEKEEPING = ("out", "tracking.", "fail_fast", "force", "hydra.", "hydra/")
INTERRUPTED = 130
FULL = "the disk is full"
PLUGINS = {
    ("hydra/sweeper", "optuna"): "optuna",
    ("hydra/launcher", "joblib"): "joblib",
    ("hydra/launcher", "ray"): "ray",
    ("hydra/launcher", "submitit_local"): "submitit",
    ("hydra/launcher", "submitit_slurm"): "submitit",
}
"""Hydra's choices that come with a plug-in, and the extra that brings it."""


# ------------------------------------------------------------------ where the configuration lies


def conf_dir() -> Path:
    """The folder of the YAML files: inside the installed package, else the source tree's `conf`. Raises ConfigError."""
    from importlib.resources import files

    inside = Path(str(files("denominator"))) / "conf"
    beside = Path(__file__).resolve().parents[2] / "conf"
    for folder in (inside, beside):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(
        f"the configuration files are missing; looked in {inside} and {beside}; install denominator again"
    )


class _Loader(ConfigLoaderImpl):
    """Composes each cell of a grid once, and keeps literal secrets out of what Hydra writes to disk.

    We compose a cell to check it, Hydra composes it again to validate it and once more to run it (which then changes
    it). A configuration is a function of its overrides, so the first one is kept for these two; whoever asks for more,
    and workers of other processes, get a new one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: dict[tuple[str, ...], tuple[DictConfig, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"kept": {}}

    def load_configuration(self, *args: Any, **kwargs: Any) -> DictConfig:
        made = super().load_configuration(*args, **kwargs)
        mode = kwargs.get("run_mode", args[2] if len(args) > 2 else None)
        if mode == RunMode.MULTIRUN:  # cells are composed anew from files; this one is saved as multirun.yaml
            _hide_literals(made)
        return made

    def keep(self, master: DictConfig, overrides: list[str]) -> DictConfig:
        """Composes a cell and keeps it for Hydra's two uses."""
        made = super().load_sweep_config(master, overrides)
        self.kept[tuple(overrides)] = (made, 2)
        return made

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        made, uses = self.kept.pop(tuple(sweep_overrides), (None, 0))
        if made is None:
            return super().load_sweep_config(master_config, sweep_overrides)
        if uses > 1:
            self.kept[tuple(sweep_overrides)] = (made, uses - 1)
        return made


def _lines(node: Any) -> list[str]:
    """Overrides as they were typed: reading them one by one would resolve the references in them."""
    made = OmegaConf.to_container(node, resolve=False)
    assert isinstance(made, list)
    return [str(line) for line in made]


def _hide_literals(node: Any, name: str = "") -> None:
    for key in list(node):
        if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key):
            continue
        full = f"{name}.{key}" if name else str(key)
        value = node[key]
        if isinstance(value, DictConfig):
            if key != "hydra":
                _hide_literals(value, full)
        elif isinstance(value, str) and (masking.secret_name(full) or masking.has_userinfo(value)):
            masking.remember(value)
            with open_dict(node):
                node[key] = masking.MASK if masking.secret_name(full) else mask(value)


# ------------------------------------------------------------------ one cell from one configuration


@dataclass(frozen=True, slots=True)
class Job:
    """A composed and checked cell. `config` is its YAML with secrets masked and references unresolved."""

    number: int
    overrides: tuple[str, ...]
    cell: Cell
    settings: Settings
    config: str
    params: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.cell.name


@dataclass(slots=True)
class Grid:
    """What is known of the whole grid: what varies in it decides names and the headline."""

    varying: frozenset[str] = frozenset()
    chunker_varies: bool = True
    searched: bool = False  # a sweeper chooses the cells while it runs


def split_override(text: str) -> tuple[str, str]:
    """Key and value of an override, without Hydra's signs.

    >>> split_override("+chunker.size=64")
    ('chunker.size', '64')
    """
    key, _, value = text.partition("=")
    return key.lstrip("+~"), value


def kind_of(choice: str) -> str:
    """A choice without its numbers, which stand in its settings: `fixed_128_overlap_32` is of the kind `fixed`.

    >>> kind_of("fixed_128_overlap_32"), kind_of("fixed_tokens_256"), kind_of("bm25"), kind_of("none")
    ('fixed', 'fixed_tokens', 'bm25', 'none')
    """
    return re.sub(r"_\d+(_[a-z]+_\d+)*$", "", choice)


def cell_name(choices: Mapping[str, Any], overrides: Sequence[str], varying: frozenset[str]) -> str:
    """`sentences_128 · static · maxsim`, with changed settings behind their part and anything else that varies last."""
    values = [split_override(o) for o in overrides if "=" in o]
    parts = []
    for group in ("dataset", "chunker", "embedder", "reranker", "answerer"):
        if group in ("dataset", "answerer") and group not in varying:
            continue
        changed = [
            f"{key.split('.', 1)[1]}={value}"
            for key, value in values
            if key.startswith(f"{group}.") and not masking.secret_name(key)
        ]
        parts.append(" ".join([str(choices.get(group) or "none"), *changed]))
    rest = [f"{k}={v}" for k, v in values if k in varying and k.split(".")[0] not in GROUPS and k != "experiment"]
    return mask(" · ".join([*parts, *rest]))


def baseline_name(text: str | None) -> str | None:
    """`fixed_128/bm25/none` and `fixed_128 · bm25 · none` are the same cell."""
    if text is None:
        return None
    return " · ".join(part.strip() for part in re.split(r"\s*[·/|]\s*", text.strip()))


def prepare(cfg: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str], number: int, grid: Grid) -> Job:
    """Instantiates and checks one configuration. Raises ConfigError, MeasurementError: nothing has been done yet."""
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    raw = OmegaConf.to_container(own, resolve=False)
    try:
        made = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_omegaconf_text(error)) from error
    assert isinstance(raw, dict)
    assert isinstance(made, dict)
    root = {str(k): v for k, v in made.items()}
    masking.remember_settings(root)
    config.check_names(root)
    root["baseline"] = baseline_name(config.convert(str | None, root.get("baseline"), "baseline"))
    plan = config.make_plan(root)
    parts: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for group in GROUPS:
        node, below = root.get(group), raw.get(group)
        choice = str(choices.get(group) or "none")
        params[group] = kind_of(choice)
        if not node:  # an empty file is the choice of nothing
            if group != "answerer":
                raise ConfigError(f"{group}: nothing is chosen, for example {group}=…")
            parts[group] = None
            continue
        if not isinstance(node, Mapping):
            raise ConfigError(
                f"{group}: found {node!r}, expected one of the choices of this group or a constructor call"
            )
        parts[group] = config.build(node, group, below if isinstance(below, Mapping) else None)
        spare = config.variables(below) if isinstance(below, Mapping) else set()
        params |= {
            key: value
            for key, value in config.flat(masking.masked(node, group), group).items()
            if value not in (None, "") and key.split(".", 1)[1] not in spare and not _a_place(group, key, value)
        }
    for group, method in (("dataset", "load"), ("chunker", "chunk"), ("embedder", "open"), ("reranker", "rerank")):
        if not callable(getattr(parts[group], method, None)):
            raise ConfigError(
                f"{group}: {type(parts[group]).__name__} has no method {method}(), so it cannot be a {group}"
            )
    name = cell_name(choices, overrides, grid.varying)
    plain = {k: v for k, v in params.items() if isinstance(v, (str, int, float, bool))}
    cell = Cell(
        name,
        plain,
        parts["dataset"],
        parts["chunker"],
        parts["embedder"],
        parts["reranker"],
        parts["answerer"],
        plan,
        chunker_varies=grid.chunker_varies,
    )
    cell.check()
    yaml = OmegaConf.to_yaml(OmegaConf.create(masking.masked(raw)), resolve=False)
    return Job(number, tuple(overrides), cell, config.make_settings(root), yaml, params)


def _a_place(group: str, key: str, value: Any) -> bool:
    """A path of this machine says nothing about a result; the data set is known by its hashes."""
    return group == "dataset" and (
        key.split(".", 1)[1] in ("cluster", "name") or (isinstance(value, str) and "/" in value)
    )


def _omegaconf_text(error: OmegaConfBaseException) -> str:
    lines = [line.strip() for line in mask(str(error)).splitlines() if line.strip()]
    key = getattr(error, "full_key", None)
    if key and lines and lines[0].startswith("Missing mandatory value"):
        return f"{key}: a value is needed, set {key}=…"
    return f"{key}: {lines[0]}" if key and lines else (lines or [type(error).__name__])[0]


# ------------------------------------------------------------------ errors that Hydra reports


def explain(
    error: Exception, loader: ConfigLoaderImpl, known: DictConfig | None, overrides: Sequence[str]
) -> ConfigError:
    """Hydra's refusal as one clear sentence with the nearest valid name."""
    text = mask(str(error))
    found = re.search(r"Could not find '([^']*?)/?([^'/]+)'", text)
    if found:
        group, option = found.groups()
        options = _options(loader, group)
        if (group, option) in PLUGINS:
            extra = PLUGINS[group, option]
            return ConfigError(f"{group}={option} needs an extra: pip install 'denominator[{extra}]'")
        if options:
            return ConfigError(
                f"{group}: there is no choice {option!r}{nearest(option, options)} (there are: {listed(options)})"
            )
    found = re.search(r"Could not (?:override|delete from config\.) '([^']+)'", text)
    if found:
        return ConfigError(_unknown_key(found[1], loader, known))
    cause = error.__cause__
    first = [line.strip() for line in text.splitlines() if line.strip() and "hydra.cc" not in line]
    if isinstance(cause, OmegaConfBaseException):
        return ConfigError(". ".join([*first[:1], _omegaconf_text(cause)]))
    bad = next((o for o in overrides if o in text), "") or _unparsable(overrides)
    said = " ".join(first[:3]) or type(error).__name__
    return ConfigError(f"{mask(bad)}: {said}" if bad and bad not in said else said)


def _unparsable(overrides: Sequence[str]) -> str:
    for override in overrides:
        try:
            OverridesParser.create().parse_overrides([override])
        except HydraException:
            return override
    return ""


def _options(loader: ConfigLoaderImpl, group: str) -> list[str]:
    with contextlib.suppress(Exception):
        return sorted(loader.get_group_options(group))
    return []


def _unknown_key(key: str, loader: ConfigLoaderImpl, known: DictConfig | None) -> str:
    groups = [*GROUPS, "experiment"]
    if key == "experiment" or key.startswith("experiment@"):
        return f"{key}: write +experiment=… with a plus (there are: {listed(_options(loader, 'experiment'))})"
    parent, _, last = key.rpartition(".")
    node = known if not parent else (OmegaConf.select(known, parent) if known is not None else None)
    names = [str(k) for k in node if k not in ("hydra", "_target_")] if isinstance(node, DictConfig) else []
    if not parent:
        names = list(dict.fromkeys([*names, *groups]))
        close = nearest(last, names)
        return f"{key}: there is no such setting{close} (there are: {listed(names)})"
    if not names and known is not None:
        return (
            _unknown_key(parent, loader, known)
            if OmegaConf.select(known, parent) is None
            else f"{key}: {parent} has no settings"
        )
    return f"{key}: {parent} has no setting {last!r}{nearest(last, names)} (it has: {listed(names)})"


# ------------------------------------------------------------------ from overrides to jobs


@dataclass(slots=True)
class Application:
    """One call: Hydra with our loader, the overrides with secrets moved out, and where it was called."""

    hydra: Hydra
    loader: _Loader
    overrides: list[str]
    config_name: str
    folder: Path
    jobs: list[Job] = field(default_factory=list)


@contextlib.contextmanager
def application(args: Any, overrides: Sequence[str]) -> Iterator[Application]:
    """Hydra, ready to compose. Its global state is gone afterwards, so that a process can do this again."""
    setbase("1.3")
    folder = Path.cwd()
    os.environ[LAUNCH] = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    os.environ[CALL_FOLDER] = str(folder)
    search = create_config_search_path(args.config_path or str(conf_dir()))
    if args.config_dir is not None:
        extra = Path(args.config_dir).absolute()
        if not extra.is_dir():
            raise ConfigError(f"--config-dir: {extra} is not a folder")
        from hydra.core.config_search_path import SearchPathQuery

        search.prepend(provider="command-line", path=f"file://{extra}", anchor=SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    loader = _Loader(config_search_path=search)
    hydra = Hydra(task_name="denominator", config_loader=loader)
    GlobalHydra.instance().initialize(hydra)
    try:
        yield Application(hydra, loader, list(overrides), args.config_name or "config", folder)
    finally:
        GlobalHydra.instance().clear()


def compose_master(app: Application, mode: RunMode) -> DictConfig:
    try:
        return app.hydra.compose_config(
            app.config_name, app.overrides, run_mode=mode, with_log_configuration=False, from_shell=False
        )
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, app.loader, _without_overrides(app), app.overrides) from error


def _without_overrides(app: Application) -> DictConfig | None:
    """The configuration with group choices only, to know which settings there are."""
    for kept in ([o for o in app.overrides if "." not in split_override(o)[0] and _is_choice(o)], []):
        with contextlib.suppress(Exception):
            return app.hydra.compose_config(
                app.config_name, kept, run_mode=RunMode.MULTIRUN, with_log_configuration=False, from_shell=False
            )
    return None


def _is_choice(override: str) -> bool:
    return split_override(override)[0] in (*GROUPS, "experiment")


def expand(app: Application, master: DictConfig) -> list[list[str]] | None:
    """The override lists of all cells, by Hydra's own parser; None when a sweeper chooses them while it runs."""
    if master.hydra.sweeper._target_ != f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}":
        return None
    params = OmegaConf.to_container(master.hydra.sweeper.params) if master.hydra.sweeper.params else {}
    assert isinstance(params, dict)
    lines = ["=".join((str(k), str(v))) for k, v in params.items()] + _lines(master.hydra.overrides.task)
    try:
        parsed: list[Override] = OverridesParser.create(config_loader=app.loader).parse_overrides(lines)
        batches = BasicSweeper.split_arguments(parsed, None)
    except (HydraException, AssertionError) as error:
        raise explain(error, app.loader, master, lines) from error
    return [list(job) for batch in batches for job in batch]


def grid_of(lists: Sequence[Sequence[str]], mode: Mode) -> Grid:
    """What varies between the cells."""
    values: dict[str, set[str]] = {}
    for overrides in lists:
        for text in overrides:
            key, value = split_override(text)
            values.setdefault(key, set()).add(value)
    varying = frozenset(key for key, found in values.items() if len(found) > 1)
    chunker = any(key == "chunker" or key.startswith("chunker.") or key == "experiment" for key in varying)
    return Grid(varying, chunker or mode == "run")


def compose_jobs(app: Application, mode: Mode) -> tuple[list[Job], DictConfig, Grid, bool]:
    """Every cell of the call, composed and checked, before any work. The last value: whether the list is complete."""
    if mode == "run":
        cfg = compose_master(app, RunMode.RUN)
        overrides = _lines(cfg.hydra.overrides.task)
        grid = grid_of([overrides], mode)
        return [_prepared(cfg, overrides, 0, grid)], cfg, grid, True
    master = compose_master(app, RunMode.MULTIRUN)
    lists = expand(app, master)
    if lists is None:
        _check_search(master)
        return [], master, Grid(_searched_keys(master), searched=True), False
    grid = grid_of(lists, mode)
    jobs = []
    distinct = list(dict.fromkeys(tuple(job) for job in lists))
    for number, overrides in enumerate(map(list, distinct)):
        try:
            cfg = app.loader.keep(master, overrides)
        except (HydraException, OmegaConfBaseException) as error:
            raise explain(error, app.loader, _known_for(app, overrides), overrides) from error
        jobs.append(_prepared(cfg, overrides, number, grid))
        if cfg.hydra.launcher._target_ != master.hydra.launcher._target_:
            raise ConfigError(
                "hydra/launcher: set inside a swept configuration it has no effect; give it on the command line"
            )
    if grid.chunker_varies and mode == "sweep":
        for job in jobs:
            if job.cell.plan.headline != "auto":
                level_guard(grid.varying, cast("Level", parse_metric(job.cell.plan.headline).level))
    _check_baseline(app, jobs)
    first = jobs[0].settings
    for job in jobs:
        if (job.settings.out, job.settings.tracking) != (first.out, first.tracking):
            raise ConfigError("out and tracking must be the same for all cells of a sweep")
    return jobs, master, grid, True


def _searched_keys(master: DictConfig) -> frozenset[str]:
    """What a search may vary: it names cells by these, as a grid does."""
    params = master.hydra.sweeper.get("params") or {}
    lines = [f"{key}={value}" for key, value in params.items()] + _lines(master.hydra.overrides.task)
    parsed: list[Override] = OverridesParser.create().parse_overrides(lines)
    return frozenset(o.get_key_element().lstrip("+~") for o in parsed if o.is_sweep_override())


def _check_search(master: DictConfig) -> None:
    """A search must go the right way: quality up, costs down. Optuna's own default is to make its value small."""
    settings = config.make_settings(_root(master))
    wanted = config.directions_of(settings.objective, config.make_plan(_root(master)))
    sweeper = master.hydra.sweeper
    if "direction" not in sweeper:
        return
    found = sweeper.direction
    given = [getattr(d, "name", str(d)) for d in (found if OmegaConf.is_list(found) else [found])]
    if given != wanted:
        shown = f"[{','.join(wanted)}]" if len(wanted) > 1 else wanted[0]
        raise ConfigError(
            f"hydra.sweeper.direction: found {', '.join(given)}, but objective={','.join(settings.objective)} "
            f"wants hydra.sweeper.direction={shown}"
        )


def _check_baseline(app: Application, jobs: Sequence[Job]) -> None:
    """A baseline that is no cell of this grid may be one of another; a part of it that does not exist is a slip."""
    names = [job.name for job in jobs]
    for baseline in dict.fromkeys(job.cell.plan.baseline for job in jobs):
        parts = (baseline or "").split(" · ")
        if baseline is None or baseline in names or len(parts) != 3:
            continue
        for group, part in zip(("chunker", "embedder", "reranker"), parts, strict=True):
            options = _options(app.loader, group)
            if part.split(" ")[0] not in options:
                raise ConfigError(f"baseline: there is no {group} {part!r}{nearest(part, options)} ({baseline})")


def _known_for(app: Application, overrides: Sequence[str]) -> DictConfig | None:
    with contextlib.suppress(Exception):
        choices = [o for o in overrides if _is_choice(o)]
        return app.hydra.compose_config(
            app.config_name, choices, run_mode=RunMode.RUN, with_log_configuration=False, from_shell=False
        )
    return None


def _prepared(cfg: DictConfig, overrides: Sequence[str], number: int, grid: Grid) -> Job:
    try:
        return prepare(cfg, cfg.hydra.runtime.choices, overrides, number, grid)
    except DenominatorError as error:
        if grid.varying and not getattr(error, "__notes__", None):
            shown = " ".join(o for o in overrides if split_override(o)[0] in grid.varying)
            error.add_note(f"in the cell {mask(shown)}")
        raise


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
    settings = config.make_settings(_root(cfg))
    out = folder / settings.out
    events = Events(_launch_folder(out) / "events.jsonl")
    told = json.loads((events.path.parent / "launch.json").read_text(encoding="utf-8"))
    store = Store(resolve_uri(settings.tracking.uri, out, folder), settings.tracking.experiment, out)
    numbers = {tuple(job): i for i, job in enumerate(told["jobs"])}
    grid = Grid(frozenset(told["varying"]), told["chunker_varies"], told["searched"])
    return Context(told["sweep_id"], folder, out, events, store, Cache(out / "cache"), grid, {}, numbers, {})


def _root(cfg: DictConfig) -> dict[str, Any]:
    """The settings outside of the parts, resolved."""
    made = OmegaConf.to_container(
        OmegaConf.masked_copy(cfg, [str(k) for k in cfg if k not in ("hydra", *GROUPS)]), resolve=True
    )
    assert isinstance(made, dict)
    return {str(k): v for k, v in made.items()}


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
    overrides = tuple(_lines(hydra.overrides.task))
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
    say(number, "started", name=made.name, cell_key=key)
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
        raise explain(error, app.loader, _without_overrides(app), app.overrides) from error
    sys.stdout.write(mask(said.getvalue()))
    return 0


def _start(app: Application, mode: Mode, command: str, *, quiet: bool, json_lines: bool = False) -> Outcome:
    global _context  # noqa: PLW0603
    from denominator.tracking import Store, resolve_uri

    clock = time.perf_counter()
    jobs, master, grid, complete = compose_jobs(app, mode)
    settings = jobs[0].settings if jobs else config.make_settings(_root(master))
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
    sweep_run = store.start_sweep(context.sweep_id, sweep_name(jobs)) if afresh else None
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
    """Removes the logs of starts of this sweep that were killed: it got through now."""
    from denominator.tracking.facts import alive

    for file in sorted((context.out / "hydra").glob("*/launch.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            told = json.loads(file.read_text(encoding="utf-8"))
            if told["sweep_id"] == context.sweep_id and file.parent != context.launch and not alive(told["owner"]):
                shutil.rmtree(file.parent, ignore_errors=True)
