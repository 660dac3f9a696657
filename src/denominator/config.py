"""Settings are checked before any work: unknown keys, wrong types, impossible values, each with the nearest valid name.

A part's YAML is a constructor call, so the constructor is the schema: names and types are read from its signature,
for this package's parts and a user's own class alike. Nothing mirrors the YAML field by field.
"""

from __future__ import annotations

import collections.abc
import difflib
import functools
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

from denominator.errors import ConfigError, DenominatorError, MeasurementError
from denominator.masking import MASK, mask, secret_name
from denominator.types import Plan

GROUPS = ("dataset", "chunker", "embedder", "reranker", "answerer")
_VARIABLE = re.compile(r"\$\{\.([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Tracking:
    """Where runs are recorded. `uri=None`: MLFLOW_TRACKING_URI if set, else one sqlite file in `out`."""

    uri: str | None = None
    experiment: str = "denominator"


@dataclass(frozen=True, slots=True)
class Settings:
    """What is not measured and not a part.

    `objective`: what a sweeper that searches gets from each cell, in this order.
    """

    out: str = "denominator-out"
    tracking: Tracking = field(default_factory=Tracking)
    fail_fast: bool = False
    force: bool = False
    objective: tuple[str, ...] = ("headline",)


COSTS = (
    "latency_ms_median", "latency_ms_p95", "index_bytes", "n_chunks", "context_tokens_at_budget", "embedder_cost",
    "reranker_cost", "answerer_cost",
)  # fmt: skip
"""Facts of a cell that a search may make small."""


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'size'?` or an empty text.

    >>> nearest("sise", ["size", "overlap"])
    "; did you mean 'size'?"
    >>> nearest("zzz", ["size"])
    ''
    """
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.55)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _shown(value: Any, where: str) -> str:
    text = repr(value)
    return MASK if secret_name(where) else mask(text if len(text) <= 80 else text[:77] + "…")


def _wanted(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(a) for a in args)
    if origin in (tuple, list) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        plural = {int: "whole numbers", float: "numbers", str: "texts"}
        return "a list" + (f" of {plural[args[0]]}" if args and args[0] in plural else "")
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping"
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "null"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))


class _Wrong(Exception):  # noqa: N818
    pass


def _convert(hint: Any, value: Any) -> Any:
    """The value as the hint wants it (lists become tuples, whole numbers floats); `_Wrong` when it does not fit."""
    if hint is Any or hint is inspect.Parameter.empty or isinstance(hint, (str, typing.TypeVar)):
        return value
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _any_of(args, value)
    if origin is typing.Annotated:
        return _convert(args[0], value)
    if origin is Literal:
        if any(value == a and type(value) is type(a) for a in args):
            return value
        raise _Wrong
    if hint is type(None):
        if value is None:
            return None
        raise _Wrong
    if hint is bool or hint is str:
        if isinstance(value, hint):
            return value
        raise _Wrong
    if hint is int or hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (hint is int and isinstance(value, float)):
            raise _Wrong
        return hint(value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _Wrong
        return {_convert(args[0], k): _convert(args[1], v) for k, v in value.items()} if args else dict(value)
    if isinstance(origin or hint, type) and issubclass(origin or hint, Sequence) and hint is not str:
        return _sequence(origin or hint, args, value)
    return value  # a part, a path, a protocol: the constructor judges


def _any_of(hints: Sequence[Any], value: Any) -> Any:
    for hint in sorted(hints, key=lambda h: type(value) is not h):  # the exact type first: 1 stays a whole number
        try:
            return _convert(hint, value)
        except _Wrong:
            continue
    raise _Wrong


def _sequence(kind: type, args: tuple[Any, ...], value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise _Wrong
    if args and kind is tuple and args[-1] is not Ellipsis:
        if len(args) != len(value):
            raise _Wrong
        items = [_convert(a, v) for a, v in zip(args, value, strict=True)]
    else:
        items = [_convert(args[0], v) if args else v for v in value]
    return items if kind is list else tuple(items)


def convert(hint: Any, value: Any, where: str) -> Any:
    """The value as the type hint wants it. Raises ConfigError with the key, what was found and what is wanted."""
    try:
        return _convert(hint, value)
    except _Wrong:
        hintful = ""
        if isinstance(value, str):
            texts = [a for h in (hint, *get_args(hint)) if get_origin(h) is Literal for a in get_args(h)]
            hintful = nearest(value, [t for t in texts if isinstance(t, str)])
        raise ConfigError(f"{where}: found {_shown(value, where)}, expected {_wanted(hint)}{hintful}") from None


def locate(target: str, where: str) -> Any:
    """The class or function that `_target_` names."""
    module, _, name = target.rpartition(".")
    parts = [name]
    while module:
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and not (module + ".").startswith(error.name + "."):
                raise ConfigError(
                    f"{where}: {target!r} needs the module {error.name!r}, which is not installed"
                ) from error
            module, _, last = module.rpartition(".")
            parts.insert(0, last)
            continue
        for i, part in enumerate(parts):
            if not hasattr(found, part):
                names = [n for n in dir(found) if not n.startswith("_")]
                raise ConfigError(f"{where}: {'.'.join([module, *parts[:i]])} has no {part!r}{nearest(part, names)}")
            found = getattr(found, part)
        return found
    raise ConfigError(f"{where}: cannot import {target!r}; it must be module.Class, importable from where you are")


def _hints(call: Any) -> dict[str, Any]:
    try:
        plain = isinstance(call, type) and not is_dataclass(call)
        return typing.get_type_hints(vars(call).get("__init__", call) if plain else call)
    except Exception:  # a foreign class may name types that cannot be resolved here: no types to check then
        return {}


def settings_of(target: str) -> dict[str, Callable[[], Any]]:
    """The settings that a class or function takes by name, each with what makes its default.

    Raises ConfigError when it cannot be imported.
    """
    call = locate(target, "_target_")
    makers = {f.name: f.default_factory for f in fields(call)} if is_dataclass(call) else {}
    try:
        parameters = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return {}
    found: dict[str, Callable[[], Any]] = {}
    for name, p in parameters.items():
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            maker = makers.get(name, MISSING)
            found[name] = functools.partial(_same, p.default) if maker is MISSING else maker
    return found


def _same(value: Any) -> Any:
    return value


def variables(raw: Mapping[str, Any]) -> set[str]:
    """Keys that other values of the same node refer to, such as `folder` in `${.folder}/corpus.jsonl`."""
    return {name for value in raw.values() if isinstance(value, str) for name in _VARIABLE.findall(value)}


def build(node: Mapping[str, Any], where: str, raw: Mapping[str, Any] | None = None) -> Any:
    """Calls what `_target_` names with the other keys, after checking names and types. Nested nodes are built first.

    `raw` is the node with its interpolations unresolved: keys that only serve as variables there are not passed on.
    """
    if "_target_" not in node:
        raise ConfigError(f"{where}: no _target_, so there is nothing to call; found the keys {listed(map(str, node))}")
    target = node["_target_"]
    if not isinstance(target, str):
        raise ConfigError(f"{where}._target_: found {target!r}, expected a text such as module.Class")
    call = locate(target, f"{where}._target_")
    given = {str(k): v for k, v in node.items() if k != "_target_"}
    name = target.rpartition(".")[2]
    partial = bool(given.pop("_partial_", False))
    for key in [k for k in given if k.startswith("_") and k.endswith("_")]:
        raise ConfigError(f"{where}.{key}: only _target_ and _partial_ are understood here")
    parameters = inspect.signature(call).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    spare = variables(raw or {}) - set(names)
    hints = _hints(call)
    values: dict[str, Any] = {}
    for key, value in given.items():
        inner = f"{where}.{key}"
        if key in spare:
            continue
        if key not in parameters and not open_ended:
            raise ConfigError(f"{inner}: {name} has no setting {key!r}{nearest(key, names)} (it has: {listed(names)})")
        if isinstance(value, Mapping) and "_target_" in value:
            below = raw.get(key) if raw else None
            values[key] = build(value, inner, below if isinstance(below, Mapping) else None)
        elif isinstance(value, str) and get_origin(hints.get(key)) is collections.abc.Callable:
            values[key] = locate(value, inner)  # a function by its name
        else:
            values[key] = convert(hints.get(key, Any), value, inner)
    missing = [n for n in names if parameters[n].default is inspect.Parameter.empty and n not in values]
    if missing and not partial:
        raise ConfigError(f"{where}: {name} needs {listed(missing)}, for example {where}.{missing[0]}=…")
    try:
        return functools.partial(call, **values) if partial else call(**values)
    except DenominatorError:
        raise  # the package's own parts name themselves and both values
    except Exception as error:
        raise ConfigError(mask(f"{where}: {name} refused its settings: {type(error).__name__}: {error}")) from error


def make_plan(root: Mapping[str, Any], *, evaluate: str = "retrieval") -> Plan:
    """The plan from the top-level keys.

    Raises ConfigError for types, MeasurementError `bad_k`, `bad_budget`, `depth_below_k` for values that cannot be.
    """
    hints = typing.get_type_hints(Plan)
    values = {f.name: convert(hints[f.name], root[f.name], f.name) for f in fields(Plan) if f.name in root}
    plan = Plan(**{"evaluate": evaluate} | values)
    check_plan(plan)
    return plan


def check_plan(plan: Plan) -> None:
    """Values that have the right type and still cannot be."""
    if not plan.ks or any(k < 1 for k in plan.ks):
        raise MeasurementError("bad_k", map(str, plan.ks), "ks needs whole numbers of at least 1")
    if len(set(plan.ks)) < len(plan.ks):
        raise MeasurementError("bad_k", map(str, plan.ks), "ks names a K twice")
    if plan.budget < 1:
        raise MeasurementError("bad_budget", [str(plan.budget)], "budget must be at least 1 token")
    if plan.pool < 1:
        raise ConfigError(f"pool: found {plan.pool}, expected at least 1 chunk")
    deep = [k for k in plan.ks if k > plan.pool]
    if deep:
        raise MeasurementError(
            "depth_below_k",
            map(str, deep),
            f"K is larger than the pool of {plan.pool}; set pool={max(deep)} or smaller ks",
        )
    for name, low, high in (("alpha", 0.0, 1.0), ("margin", 0.0, 1.0)):
        value = getattr(plan, name)
        if not low <= value < high or (name == "alpha" and value == 0):
            raise ConfigError(f"{name}: found {value}, expected a number between 0 and 1")
    if plan.resamples < 100:
        raise ConfigError(f"resamples: found {plan.resamples}, expected at least 100")
    if plan.seed < 0:
        raise ConfigError(f"seed: found {plan.seed}, expected 0 or more")
    _check_headline(plan)


def _check_headline(plan: Plan) -> None:
    if plan.headline == "auto":
        return
    from denominator.evaluation import SPAN_FAMILIES, parse_metric, ranked_names, span_names
    from denominator.metrics import FAMILIES_AT_K

    names = dict.fromkeys((*ranked_names(replace(plan, headline="auto")), *span_names(plan)))
    try:
        parsed = parse_metric(plan.headline)
    except ConfigError:
        parsed = None
    if plan.headline not in names and parsed is not None:  # slots and chunks are measured when they are asked for
        family = parsed.family.removeprefix("slot_").removeprefix("chunk_")
        if family in FAMILIES_AT_K and parsed.k in plan.ks:
            return
        if family in (*FAMILIES_AT_K, *SPAN_FAMILIES) and parsed.k is not None:
            what = f"budget={parsed.k}" if parsed.level == "L5" else f"ks=[{', '.join(map(str, [*plan.ks, parsed.k]))}]"
            raise ConfigError(f"headline: {plan.headline!r} needs {what}")
    if plan.headline not in names:
        usual = ", ".join(n for n in names if n.split("@")[0] in ("recall", "coverage", "ndcg"))
        raise ConfigError(
            f"headline: {plan.headline!r} is not measured here{nearest(plan.headline, names)} (auto, {usual}, …)"
        )


def make_settings(root: Mapping[str, Any]) -> Settings:
    """Output, tracking and behaviour from the top-level keys. Raises ConfigError."""
    tracking = root.get("tracking") or {}
    if not isinstance(tracking, Mapping):
        raise ConfigError(f"tracking: found {_shown(tracking, 'tracking')}, expected the keys uri and experiment")
    names = [f.name for f in fields(Tracking)]
    for key in tracking:
        if key not in names:
            raise ConfigError(f"tracking.{key}: there is no such setting{nearest(str(key), names)} (uri, experiment)")
    uri = convert(str | None, tracking.get("uri"), "tracking.uri")
    experiment = convert(str, tracking.get("experiment", "denominator"), "tracking.experiment")
    if not experiment.strip():
        raise ConfigError("tracking.experiment: found an empty text, expected a name")
    return Settings(
        out=convert(str, root.get("out", "denominator-out"), "out"),
        tracking=Tracking(uri, experiment),
        fail_fast=convert(bool, root.get("fail_fast", False), "fail_fast"),
        force=convert(bool, root.get("force", False), "force"),
        objective=convert(tuple[str, ...], root.get("objective", ["headline"]), "objective"),
    )


def directions_of(objective: Sequence[str], plan: Plan) -> list[str]:
    """`maximize` for metrics, `minimize` for costs. Raises ConfigError for a name that no cell has, or none at all."""
    if not objective:
        raise ConfigError("objective: found an empty list, expected headline, a metric's name or a cost")
    found = []
    for name in objective:
        if name in COSTS:
            found.append("minimize")
            continue
        if name != "headline":
            try:
                _check_headline(replace(plan, headline=name))
            except ConfigError as error:
                costs = nearest(name, COSTS)
                said = str(error).replace("headline:", "objective:", 1)
                raise ConfigError(f"{said}; costs: {listed(COSTS)}{costs}") from None
        found.append("maximize")
    return found


def top_level_names() -> list[str]:
    """Every name that may stand at the top of a configuration."""
    return [*GROUPS, *(f.name for f in fields(Plan) if f.name != "evaluate"), *(f.name for f in fields(Settings))]


def check_names(root: Mapping[str, Any]) -> None:
    """Refuses keys at the top that nothing reads (`+chunkr=…`). Keys that begin with `_` are free."""
    names = top_level_names()
    for key in root:
        if key not in names and not str(key).startswith("_"):
            raise ConfigError(f"{key}: there is no such setting{nearest(str(key), names)} (there are: {listed(names)})")


def flat(node: Any, name: str = "") -> dict[str, Any]:
    """Nested mappings as `chunker.size`; lists stay values; `_target_` only where it is not this package's.

    >>> flat({"chunker": {"_target_": "denominator.chunkers.Fixed", "size": 128}})
    {'chunker.size': 128}
    """
    if isinstance(node, Mapping):
        out: dict[str, Any] = {}
        for key, value in node.items():
            if key == "_target_" and str(value).startswith("denominator."):
                continue
            out |= flat(value, f"{name}.{key}" if name else str(key))
        return out
    return {name: node}
