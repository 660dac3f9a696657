"""The command `doctor`: a data set in, its health as text, JSON or a page out. The checks are in `health`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from denominator.errors import ConfigError, InputError
from denominator.health import LEAST, POWER, SEVERITIES, SPREADS, Finding, Health, Power, examine, some
from denominator.readers import native
from denominator.readers.build import Evaluate
from denominator.readers.textfiles import as_path, one_of, refusals
from denominator.records import dumps
from denominator.types import Dataset, Plan

# ------------------------------------------------------------------ terminal and page


def _clip(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


_SENTENCES = frozenset({"reader", "few_eligible", "no_eligible", "class_too_small"})
_PLURAL = re.compile(r"\b(question|group|document|text|label|line|slice|id)s\b")


def headline(finding: Finding) -> str:
    """The count and what was found, as one sentence without ids."""
    if finding.count == 0 or finding.code in _SENTENCES:
        return finding.message
    share = f" of {finding.of:,}" if finding.of and finding.of != finding.count else ""
    every = "all " if finding.of == finding.count and finding.count > 1 else ""
    message = _PLURAL.sub(r"\1", finding.message, count=1) if finding.count == 1 and not share else finding.message
    return f"{every}{finding.count:,}{share} {message}"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _detected(row: Power) -> list[str]:
    return ["–" if d is None else f"{d:.3f}" for d in row.detectable]


def power_name(row: Power) -> str:
    return f"{row.metric} · {row.tag}={row.value}" if row.tag else row.metric


def verdict(health: Health) -> str:
    """How many of each severity, as one sentence."""
    parts = [f"{n} {s}{'s' if n != 1 else ''}" for s in SEVERITIES if (n := health.count(s))]
    return ", ".join(parts) if parts else "nothing to report"


def render_text(health: Health) -> str:
    """What a terminal shows: who counts, findings with ids and advice, sizes, what can be detected."""
    from denominator.scoring import columns

    states = ", ".join(f"{count:,} {state}" for state, count in health.states.items() if count)
    lines = [f"{health.name}: {health.questions:,} questions = {states or 'none'}; {health.documents:,} documents", ""]
    for f in health.findings:
        lines.append(f"{f.severity.upper():7}  {headline(f)}")
        lines += [f"         - {_clip(text, 240)}" for text in f.details]
        if f.ids and not f.details and f.code not in ("no_unanswerable", "no_eligible"):
            lines.append(f"         {_clip(some(f.ids))}")
        if f.advice:
            lines.append(f"         → {f.advice}")
    rows = [
        [f"{s.what}, {s.unit}", f"{s.n:,}", *map(_amount, (s.least, s.median, s.p95, s.most))] for s in health.sizes
    ]
    if rows:
        table = [["sizes", "n", "min", "median", "p95", "max"], *rows]
        lines += ["", *columns(table, indent="")]
    lines += [
        "",
        f"least difference between two configurations that is found with probability {POWER:g} (α = {Plan().alpha:g}),",
        f"by the standard deviation of the paired differences; slices of fewer than {LEAST} questions are not shown",
    ]
    table = [["metric", "n", *(f"sd {sd:g}" for sd in SPREADS), ""]]
    table += [
        [power_name(r), f"{r.n:,}", *_detected(r), r.reason or (r.unit if r.unit != "questions" else "")]
        for r in health.power
        if not r.tag or r.n >= LEAST
    ]
    lines += columns(table, indent="")
    return "\n".join([*lines, "", verdict(health)]) + "\n"


def render_html(health: Health) -> str:
    """The same as one self-contained page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("denominator.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(headline=headline, amount=_amount, detected=_detected, power_name=power_name)
    template = environment.get_template("health.html.j2")
    return template.render(health=health, verdict=verdict(health), spreads=SPREADS, power=POWER, alpha=Plan().alpha)


# ------------------------------------------------------------------ reading


def load_named(name: str, overrides: Sequence[str] = (), config_dir: str | None = None) -> Any:
    """The part that `conf/dataset/NAME.yaml` describes, with `dataset.key=value` overrides. Nothing is read yet.

    The same YAML, the same variables and the same checks as in a sweep, without composing the rest of it.
    Errors: `ConfigError` for unknown names, keys and values that are missing.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from denominator import config
    from denominator.composing import conf_dir

    folders = [Path(config_dir)] if config_dir else []
    folders.append(conf_dir())
    found = next((p for f in folders if (p := f / "dataset" / f"{name}.yaml").is_file()), None)
    if found is None:
        names = sorted({p.stem for f in folders for p in (f / "dataset").glob("*.yaml")})
        raise ConfigError(
            f"there is no dataset {name!r}{config.nearest(name, names)} (there are: {config.listed(names)}; "
            "or a folder that holds one; or --questions FILE)"
        )
    try:
        base = OmegaConf.load(conf_dir() / "config.yaml")
        root = OmegaConf.create({k: v for k, v in base.items() if k not in ("defaults", "hydra")})
        root.dataset = OmegaConf.load(found)
        for text in overrides:
            key = text.partition("=")[0].lstrip("+")
            if "=" not in text or not (key.startswith("dataset.") or key in root):
                raise ConfigError(f"{text!r} is no setting of a data set, such as dataset.folder=data or cluster=…")
        made = OmegaConf.merge(root, OmegaConf.from_dotlist([t.lstrip("+") for t in overrides]))
        raw = OmegaConf.to_container(OmegaConf.select(made, "dataset"), resolve=False)
        missing = sorted(OmegaConf.missing_keys(made))
        if missing:
            raise ConfigError(f"{missing[0]}: a value is needed: denominator doctor {name} {missing[0]}=…")
        node = OmegaConf.select(made, "dataset")
        assert isinstance(node, DictConfig)
        values = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"dataset {name}: {str(error).splitlines()[0]}") from error
    assert isinstance(raw, dict)
    assert isinstance(values, dict)
    plain = {str(k): v for k, v in raw.items()}
    part = config.build({str(k): v for k, v in values.items()}, "dataset", plain)
    if not callable(getattr(part, "load", None)):
        raise ConfigError(f"dataset: {type(part).__name__} has no method load(), so it cannot be a dataset")
    return part


def folder_part(folder: str, questions: str | None = None) -> Any:
    """The reader for a folder by what lies in it: native files, BEIR, or plain documents with `questions` beside."""
    from denominator.readers.beir import Beir
    from denominator.readers.folder import Folder

    path = as_path(folder)
    if not path.is_dir():
        raise InputError(
            "no such folder", path=folder, expected="a folder with questions.jsonl, a BEIR folder or texts"
        )
    if questions is not None:
        return Folder(documents=folder, questions=questions)
    if one_of(path, "questions.jsonl").is_file():
        return native.Native(folder=folder)
    if one_of(path, "queries.jsonl").is_file():
        return Beir(folder)
    raise InputError(
        "holds neither questions.jsonl nor queries.jsonl",
        path=folder,
        expected="a native or a BEIR folder",
        fix="for a folder of documents name its questions: --questions FILE",
    )


def gather(part: Any) -> tuple[Dataset, tuple[InputError, ...]]:
    """The data set, and every record that its reader refuses instead of the first one only.

    Errors: `InputError` where nothing could be read, or for a whole file (missing, not gzip, not JSON at all).
    """
    try:
        return part.load(), ()
    except InputError as first:
        try:
            with refusals() as refused:
                made = part.load()
        except InputError:
            raise first from None
        if not refused or not (made.questions or made.documents):
            raise
        return made, tuple(refused)


# ------------------------------------------------------------------ the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator doctor`."""
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="a dataset of the configuration, or a folder")
    parser.add_argument("overrides", nargs="*", metavar="dataset.key=value", help="settings of that dataset")
    parser.add_argument("--questions", "--golden", dest="questions", metavar="FILE", help="JSON lines or TREC qrels")
    parser.add_argument("--corpus", metavar="FILE", help="documents as JSON lines")
    parser.add_argument("--folder", metavar="DIR", help="native or BEIR folder; documents, with --questions")
    parser.add_argument("--config-dir", metavar="DIR", help="your own configuration, with dataset/NAME.yaml")
    parser.add_argument(
        "--assume-answerable", action="store_true", help="unlabelled questions that have gold are answerable"
    )
    parser.add_argument("--evaluate", choices=get_args(Evaluate), help="abstention: recorded answers, no corpus")
    parser.add_argument("--cluster", metavar="FIELD", help="field that says which questions belong together")
    parser.add_argument("--slice", action="append", default=[], metavar="TAG", help="only these tags (repeatable)")
    parser.add_argument("--lenient", action="store_true", help="questions that block a strict run are warnings")
    parser.add_argument("--strict", action="store_true", help="warnings make the exit code 1, too")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - instead of the text")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page")


def _part(args: argparse.Namespace) -> Any:
    name, overrides = args.dataset, list(args.overrides)
    if name is not None and "=" in name:
        raise ConfigError(f"the name of the dataset comes first, then {name}")
    if name is not None and (args.folder or args.corpus):
        raise ConfigError("give a dataset by name or its files (--folder, --corpus, --questions), not both")
    if name is not None and not overrides and ("/" in name or "\\" in name or Path(name).is_dir()):
        args.folder, name = name, None
    if name is not None:
        if args.questions:
            raise ConfigError("give a dataset by name or its files (--folder, --corpus, --questions), not both")
        return load_named(name, overrides, args.config_dir)
    if overrides:
        raise ConfigError(f"{overrides[0]}: settings belong to a dataset of the configuration, given by its name")
    if args.folder is not None:
        if args.corpus is not None:
            raise ConfigError("--folder and --corpus: one of them holds the documents, not both")
        return folder_part(args.folder, args.questions)
    if args.questions is None:
        raise ConfigError("doctor needs a dataset: its name, --folder DIR, or --questions FILE (and --corpus FILE)")
    from denominator.readers import runs, trec

    if runs.sniff(args.questions) == "trec":
        if args.corpus is not None:
            raise ConfigError("--corpus needs questions as JSON lines; TREC qrels have no texts to compare with it")
        return trec.Qrels(args.questions)
    return native.Native(questions=args.questions, corpus=args.corpus)


def _with_options(part: Any, args: argparse.Namespace) -> Any:
    """The reader with the options of the command line; one that it does not know is an error."""
    given = {
        "assume_answerable": args.assume_answerable or None,
        "evaluate": args.evaluate,
        "cluster": args.cluster,
    }
    for option, value in given.items():
        if value is None:
            continue
        if not hasattr(part, option):
            raise ConfigError(f"--{option.replace('_', '-')}: {type(part).__name__} has no such setting")
        part = replace(part, **{option: value})
    return part


def run(args: argparse.Namespace) -> int:
    """`denominator doctor`: 0 fine, 1 errors (with `--strict` also warnings); wrong input is raised."""
    from denominator.scoring import write_atomically

    data, refused = gather(_with_options(_part(args), args))
    health = examine(data, lenient=args.lenient, slices=args.slice, refused=refused)
    if args.html is not None:
        write_atomically(args.html, render_html(health))
    if args.json is not None and args.json != "-":
        write_atomically(args.json, dumps(health.as_dict()) + "\n")
    sys.stdout.write(dumps(health.as_dict()) + "\n" if args.json == "-" else render_text(health))
    return health.exit_code(strict=args.strict)
