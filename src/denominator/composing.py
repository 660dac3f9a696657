"""Overrides in, validated cells out.

A grid is expanded with Hydra's own override parser and every cell is composed, instantiated and checked before any
work. With `app`, which runs the cells, the only importer of hydra.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal, cast

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.version import setbase
from omegaconf import AnyNode, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from denominator import config, masking
from denominator.config import GROUPS, Settings, listed, nearest
from denominator.errors import ConfigError, DenominatorError
from denominator.evaluation import parse_metric
from denominator.masking import mask
from denominator.pipeline import Cell
from denominator.ranking import level_guard
from denominator.types import Level

Mode = Literal["run", "sweep"]
LAUNCH, CALL_FOLDER = "DENOMINATOR_LAUNCH", "DENOMINATOR_CALL_FOLDER"
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
        self._asked: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"kept": {}}

    def load_configuration(self, *args: Any, **kwargs: Any) -> DictConfig:
        self._asked = [split_override(o)[0] for o in kwargs.get("overrides", args[1] if len(args) > 1 else [])
                       if not o.startswith(("+", "~"))]  # fmt: skip
        made = super().load_configuration(*args, **kwargs)
        mode = kwargs.get("run_mode", args[2] if len(args) > 2 else None)
        if mode == RunMode.MULTIRUN:  # cells are composed anew from files; this one is saved as multirun.yaml
            _hide_literals(made)
        return made

    def _compose_config_from_defaults_list(self, *args: Any, **kwargs: Any) -> DictConfig:
        """Makes room for settings that a part has and its YAML does not list, before Hydra closes the configuration."""
        made = super()._compose_config_from_defaults_list(*args, **kwargs)
        for key in self._asked:
            group, _, setting = key.partition(".")
            if setting and group in GROUPS and isinstance(made.get(group), DictConfig):
                _make_room(made[group], setting.split("."))
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


def _make_room(node: DictConfig, path: Sequence[str]) -> None:
    """Adds the setting that `path` names, where the part's constructor has it: without a value until it gets its own.

    `embedder.lexical.k1` of a hybrid: the part that `lexical` is by default is written out. A name that nothing has is
    left for Hydra to refuse.
    """
    first, *rest = path
    if node._get_node(first) is None:
        known = _settings_of(node)
        if first not in known:
            return
        default = known[first]() if rest else None
        if rest and not is_dataclass(default):
            return
        node[first] = {"_target_": f"{type(default).__module__}.{type(default).__qualname__}"} if rest else None
    below = node._get_node(first)
    if rest and isinstance(below, DictConfig) and not below._is_none():
        _make_room(below, rest)


def _settings_of(node: Any) -> Mapping[str, Callable[[], Any]]:
    """The settings of the class that a node names; none where it cannot be had."""
    if not isinstance(node, DictConfig) or not isinstance(target := node._get_node("_target_"), AnyNode):
        return {}
    with contextlib.suppress(ConfigError):
        return config.settings_of(str(target._value()))
    return {}


def lines_of(node: Any) -> list[str]:
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
    group, _, setting = key.partition(".")
    if setting and group in GROUPS and known is not None and isinstance(known.get(group), DictConfig):
        with open_dict(known):
            _make_room(known[group], setting.split("."))
    node = known if not parent else (OmegaConf.select(known, parent) if known is not None else None)
    names = [str(k) for k in node if k not in ("hydra", "_target_")] if isinstance(node, DictConfig) else []
    names = list(dict.fromkeys([*names, *(_settings_of(node) if parent.split(".")[0] in GROUPS else ())]))
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
        raise explain(error, app.loader, without_overrides(app), app.overrides) from error


def without_overrides(app: Application) -> DictConfig | None:
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
    lines = ["=".join((str(k), str(v))) for k, v in params.items()] + lines_of(master.hydra.overrides.task)
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
        overrides = lines_of(cfg.hydra.overrides.task)
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
    lines = [f"{key}={value}" for key, value in params.items()] + lines_of(master.hydra.overrides.task)
    parsed: list[Override] = OverridesParser.create().parse_overrides(lines)
    return frozenset(o.get_key_element().lstrip("+~") for o in parsed if o.is_sweep_override())


def _check_search(master: DictConfig) -> None:
    """A search must go the right way: quality up, costs down. Optuna's own default is to make its value small."""
    settings = config.make_settings(root_of(master))
    wanted = config.directions_of(settings.objective, config.make_plan(root_of(master)))
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


def root_of(cfg: DictConfig) -> dict[str, Any]:
    """The settings outside of the parts, resolved."""
    made = OmegaConf.to_container(
        OmegaConf.masked_copy(cfg, [str(k) for k in cfg if k not in ("hydra", *GROUPS)]), resolve=True
    )
    assert isinstance(made, dict)
    return {str(k): v for k, v in made.items()}
