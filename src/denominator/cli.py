"""The command line: one parser, late imports, and the one place that turns errors into messages and exit codes.

Exit codes: 0 fine; 1 a gate or a cell failed; 2 could not judge; 64 wrong usage or input; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from denominator import __version__
from denominator.errors import ConfigError, DenominatorError, is_full

USAGE, INTERRUPTED, FAILED = 64, 130, 1

HYDRA_COMMANDS = {
    "sweep": "a grid of cells (chunker × embedder × reranker), recorded and ranked",
    "run": "one cell",
}
SWEEP_HELP = """\
usage: denominator {command} [-q] [--dry-run] [--json-logs] [--debug] [Hydra's flags] [overrides]

{what}

  denominator sweep                                     36 cells on the bundled data
  denominator sweep +experiment=chunking_eval           a whole experiment by name
  denominator sweep chunker=fixed_128,sentences_128 embedder=bm25,static eligibility=lenient
  denominator run chunker=sentences_128 'ks=[1,5]' eligibility=lenient     one cell
  denominator sweep +experiment=demo chunker.size=64    every cell with this setting
  denominator sweep --dry-run                           what would be done, how long it would take and
                                                        what it would cost; nothing is run
  denominator run --cfg job                             the configuration, nothing is run

overrides choose a part by its group, or set a value:
{groups}
  {settings}

-q, --quiet    no progress, only the result
--json-logs    progress as one JSON object a line on stderr
--debug        the traceback of an error
--cfg job, --config-dir DIR, --multirun, hydra/launcher=joblib, --info: as Hydra has them (--hydra-help)
Cells that are recorded already are not computed again (force=true does).
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} ({self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    """The whole command line but for the arguments of `sweep` and `run`, which are Hydra's."""
    top = _Parser(
        prog="denominator",
        description="Which chunker, embedder and reranker to use for RAG, with numbers that carry their n.",
        epilog="denominator COMMAND --help tells more. Without anything: denominator sweep.",
    )
    top.add_argument("--version", action="version", version=f"denominator {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, what in HYDRA_COMMANDS.items():
        commands.add_parser(name, help=what, add_help=False)
    score = commands.add_parser("score", help="the metrics of a recorded run against a golden set")
    audit = commands.add_parser("audit", help="what other conventions would have reported")
    runs = commands.add_parser("runs", help="recorded sweeps and their cells")
    _store_arguments(runs)
    runs.add_argument("sweep", nargs="?", help="a sweep's id (default: the latest; `all`: a list of sweeps)")
    runs.add_argument("--json", action="store_true", help="one JSON object")
    runs.set_defaults(call=_runs)
    ui = commands.add_parser("ui", help="opens MLflow on the record, on this machine only")
    _store_arguments(ui)
    ui.add_argument("--port", type=int, default=5000, help="default: 5000")
    ui.add_argument("--dry-run", action="store_true", help="only print the command")
    ui.set_defaults(call=_ui)
    doctor = commands.add_parser("doctor", help="what is wrong with a data set, before any run")
    label = commands.add_parser("label", help="label questions by hand, with passages to choose from")
    schema = commands.add_parser("schema", help="JSON Schema of the native file formats")
    cache = commands.add_parser("cache", help="what lies in the cache, and how to make room")
    _delegate(cache, "denominator.housekeeping", "add_arguments", "run")
    _delegate(doctor, "denominator.doctor", "add_arguments", "run")
    _delegate(label, "denominator.label", "add_arguments", "run")
    _delegate(schema, "denominator.schema", "add_arguments", "run")
    _delegate(score, "denominator.scoring", "add_arguments", "run")
    _delegate(audit, "denominator.auditing", "add_arguments", "run_audit")
    deciding = {
        "report": "the decision as one HTML file",
        "compare": "two runs, question by question",
        "gate": "rules over a run's figures, for CI",
    }
    for name, what in deciding.items():
        _delegate(commands.add_parser(name, help=what), "denominator.deciding", f"add_{name}_arguments", f"run_{name}")
    for sub in commands.choices.values():
        if sub.add_help:
            sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return top


def _store_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--out", default="denominator-out", metavar="DIR", help="output folder (default: denominator-out)")
    sub.add_argument("--uri", metavar="URI", help="tracking store (default: MLFLOW_TRACKING_URI, or the one in --out)")
    sub.add_argument("--experiment", metavar="NAME", help="default: the one that was used last")


def _delegate(sub: argparse.ArgumentParser, module: str, arguments: str, call: str) -> None:
    sub.set_defaults(late=(module, arguments, call))


def main(argv: Sequence[str] | None = None) -> int:
    """The command `denominator`. Returns the exit code; errors become one message on stderr."""
    given = list(sys.argv[1:] if argv is None else argv)
    _safe_output()
    debug = "--debug" in given or os.environ.get("DENOMINATOR_DEBUG") == "1"
    try:
        return _dispatch(given)
    except DenominatorError as error:
        return _told(error, error.exit_code, debug)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the same command again goes on where it stopped\n")
        return INTERRUPTED
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # nobody reads any more: end quietly
        return 0
    except OSError as error:
        if is_full(error):
            error.add_note("the disk is full; what is recorded is safe: make room and give the same command again")
        return _told(error, FAILED, debug)


def _told(error: BaseException, code: int, debug: bool) -> int:
    from denominator.masking import mask

    if debug:
        sys.stderr.write(mask("".join(traceback.format_exception(error))))
    notes = [f"  {mask(n)}" for n in getattr(error, "__notes__", [])]
    sys.stderr.write("\n".join([f"denominator: {mask(str(error))}", *notes]) + "\n")
    return code


def _safe_output() -> None:
    """Under an ASCII locale a character that cannot be shown becomes `?` instead of an exception."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            with contextlib.suppress(ValueError, OSError):
                stream.reconfigure(errors="replace")


def _dispatch(given: list[str]) -> int:
    command = next((a for a in given if not a.startswith("-")), None)
    if command in HYDRA_COMMANDS:
        at = given.index(command)
        ahead = [a for a in given[:at] if a != "--debug"]
        if ahead:
            raise ConfigError(f"{ahead[0]}: options of `{command}` come after it")
        return _hydra(command, given[at + 1 :])
    top = parser()
    if command in top_commands(top):
        sub = top_commands(top)[command]
        late = sub.get_default("late")
        if late is not None:
            module, arguments, function = late
            found = importlib.import_module(module)
            getattr(found, arguments)(sub)
            sub.set_defaults(call=getattr(found, function))
    elif command is not None:
        from denominator.config import nearest

        names = list(top_commands(top))
        raise ConfigError(f"there is no command {command!r}{nearest(command, names)} (there are: {', '.join(names)})")
    args = top.parse_args(given)
    if args.command is None:
        top.print_help()
        return 0
    call: Callable[[argparse.Namespace], int] = args.call
    return call(args)


def top_commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subparsers by name."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


# ------------------------------------------------------------------ sweep and run


def _hydra(command: str, given: list[str]) -> int:
    from denominator.composing import conf_dir

    flags = ("-q", "--quiet", "--debug", "--dry-run", "--json-logs")
    rest = [a for a in given if a not in flags]
    if "--help" in rest or "-h" in rest:
        sys.stdout.write(_sweep_help(command, conf_dir()))
        return 0
    from denominator.app import start

    quiet, logs = "-q" in given or "--quiet" in given, "--json-logs" in given
    result = start(
        rest, "run" if command == "run" else "sweep", quiet=quiet, dry_run="--dry-run" in given, json_lines=logs
    )
    if isinstance(result, int):
        return result
    from denominator import summary
    from denominator.progress import console

    report = None
    if result.mode == "sweep" and result.runs and not result.interrupted:
        report = summary.write_report(result)
    summary.show(result, console(), report=report)
    return result.exit_code


def _sweep_help(command: str, folder: Any) -> str:
    from denominator.config import GROUPS, top_level_names

    groups = []
    for group in (*GROUPS, "experiment"):
        names = sorted(p.stem for p in (folder / group).glob("*.yaml"))
        groups.append(f"  {'+' if group == 'experiment' else ' '}{group + '=':12} {', '.join(names)}")
    settings = ", ".join(n for n in top_level_names() if n not in GROUPS)
    what = HYDRA_COMMANDS[command]
    return SWEEP_HELP.format(command=command, what=what, groups="\n".join(groups), settings=settings)


# ------------------------------------------------------------------ runs and ui


def _runs(args: argparse.Namespace) -> int:
    import json

    from denominator import summary
    from denominator.progress import console
    from denominator.tracking import find_store

    store = find_store(args.out, args.uri, args.experiment)
    out = console()
    if args.sweep == "all":
        rows = summary.sweep_rows(store)
        if args.json:
            sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")
        else:
            out.print(f"experiment {store.experiment}")
            out.print(summary.sweep_table(rows))
        return 0
    sweep_id = args.sweep or summary.latest(store)
    cells = store.cells(sweep_id)
    if not cells:
        raise ConfigError(f"there is no sweep {sweep_id!r} in {store.experiment!r}; `denominator runs all` lists them")
    if args.json:
        sys.stdout.write(json.dumps(summary.cells_json(sweep_id, cells), ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    good = summary.ranked([c for c in cells if c.recorded])
    out.print(f"experiment {store.experiment}, sweep {sweep_id}")
    if good:
        out.print(summary.ledger_text(good[0], store), soft_wrap=True)
        out.print(summary.table_of(good))
        if several := summary.apart(good, store):
            out.print(f"{several}.", soft_wrap=True)
        answers = summary.answers_table_of(good)
        if answers is not None:
            out.print(answers)
    for cell in cells:
        if not cell.recorded:
            reason = cell.tags.get("error", "")
            out.print(f"{cell.status.lower()}: {cell.name}{': ' + reason if reason else ''}", soft_wrap=True)
    return 0


def _ui(args: argparse.Namespace) -> int:
    import shlex
    import subprocess
    from pathlib import Path

    from denominator.masking import mask
    from denominator.tracking import newest_view, resolve_uri, server_of, ui_command

    uri = resolve_uri(args.uri, Path(args.out).absolute(), Path.cwd())
    if uri.startswith(("http://", "https://")):
        sys.stdout.write(f"the record is on a server: {mask(uri)}\n")
        view = newest_view(args.out, args.uri, args.experiment)
        if view is not None:
            sys.stdout.write(f"the latest sweep: {server_of(uri)}/{view}\n")
        return 0
    file = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:") and not file.is_file():
        raise ConfigError(f"there is no record yet at {file}; run `denominator sweep` first, or say --out")
    command = ui_command(uri, port=args.port)
    sys.stdout.write(f"{mask(shlex.join(command))}\nhttp://127.0.0.1:{args.port} (Ctrl-C ends it)\n")
    view = newest_view(args.out, args.uri, args.experiment)
    if view is not None:
        sys.stdout.write(f"the latest sweep: http://127.0.0.1:{args.port}/{view}\n")
    sys.stdout.flush()
    if args.dry_run:
        return 0
    env = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    return subprocess.run(command, env=env, check=False).returncode  # noqa: S603  # our own interpreter and arguments


if __name__ == "__main__":
    raise SystemExit(main())
