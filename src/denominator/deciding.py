"""The commands `report`, `compare` and `gate`: recorded runs or files in, a decision out.

Recorded figures are never repeated on trust: each run's summary is recomputed from its outcomes and held against what
was logged, and a difference ends the command.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denominator import gate as gating
from denominator.corpus import texts_of
from denominator.errors import ConfigError, JudgementError, MeasurementError, StoreError, listing
from denominator.evaluation import Summary, audit_metric, summarize
from denominator.gate import Gate, Measured, Rule
from denominator.records import dumps
from denominator.scoring import (
    ScoreReport,
    add_reading,
    add_scoring,
    answers_of,
    kept_in,
    options_of,
    score,
    write_atomically,
)
from denominator.types import RecordedRun

if TYPE_CHECKING:
    from denominator.report import Failure, Report, Written
    from denominator.selection import Change, Comparison
    from denominator.tracking import Store, StoredRun

TOLERANCE = 1e-9
SHOWN_FLIPS = 10
SHORTEST_ID = 8
REFUSALS = ("not_comparable", "level_not_comparable")


# ------------------------------------------------------------------ runs from the record


def _parts(text: str) -> tuple[str, ...]:
    return tuple(sorted(part.strip() for part in re.split(r"[·,|]", text) if part.strip()))


def _named(runs: Sequence[StoredRun], text: str) -> list[StoredRun]:
    """Runs that a person means: name, run id (or its start), cell key, else the same parts in any order."""
    exact = [r for r in runs if text in (r.name, r.run_id, r.tags.get("cell_key"))]
    if not exact and len(text) >= SHORTEST_ID:
        exact = [r for r in runs if r.run_id.startswith(text)]
    return exact or [r for r in runs if _parts(r.name) == _parts(text)]


def _one_each(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The newest run of each cell (runs come newest first)."""
    found: dict[str, StoredRun] = {}
    for run in runs:
        found.setdefault(run.tags.get("cell_key", run.run_id), run)
    return list(found.values())


def latest_sweep(store: Store) -> str:
    """The id of the newest sweep, else of the newest recorded cell. Raises StoreError when nothing was recorded."""
    sweeps = store.sweeps()
    if sweeps:
        return sweeps[0].tags["sweep_id"]
    cells = store.search("tags.cell_key != '' and tags.recorded = 'true'", limit=1)
    if not cells:
        raise StoreError(
            f"nothing was recorded yet in the experiment {store.experiment!r}; run `denominator sweep` first"
        )
    return cells[0].tags["sweep_id"]


def recorded_cells(store: Store, sweep_id: str) -> list[StoredRun]:
    """The recorded cells of a sweep by name. Raises StoreError when there are none, naming the newest sweeps."""
    cells = store.cells(sweep_id)
    good = [cell for cell in cells if cell.recorded]
    if not good:
        known = ", ".join(s.tags["sweep_id"] for s in store.sweeps()[:5]) or "none"
        failed = f"; {len(cells)} of its cells have no result" if cells else ""
        raise StoreError(f"there are no recorded cells of the sweep {sweep_id!r}{failed} (newest sweeps: {known})")
    return good


def pick(store: Store, cells: Sequence[StoredRun], names: Sequence[str]) -> list[StoredRun]:
    """The runs with these names: in the sweep's cells, else anywhere in the experiment.

    A text that names nothing as a whole may hold several names with commas between them. Raises ConfigError that names
    the runs there are, or those that a name could mean.
    """
    everything: list[StoredRun] = []

    def find(text: str) -> list[StoredRun]:
        found = _named(cells, text)
        if not found:
            if not everything:
                everything.extend(_one_each(store.search("tags.cell_key != '' and tags.recorded = 'true'")))
            found = _named(everything, text)
        return found

    chosen: dict[str, StoredRun] = {}
    for text in names:
        texts = [text] if find(text) or "," not in text else [part.strip() for part in text.split(",") if part.strip()]
        for one in texts:
            found = find(one)
            if len(found) != 1:
                there = listing({run.name for run in cells} or {run.name for run in everything}, 30)
                ids = listing((run.run_id for run in found), 5)
                why = (
                    f"names {len(found)} runs; give a run id: {ids}"
                    if found
                    else f"names no recorded run; there are: {there}"
                )
                raise ConfigError(f"{one!r} {why}")
            chosen.setdefault(found[0].run_id, found[0])
    return list(chosen.values())


def read(store: Store, run: StoredRun) -> RecordedRun:
    """One cell from the record, with the costs under the names that selection knows. Raises StoreError."""
    from denominator.tracking import read_cell

    try:
        cell = read_cell(store, run)
    except (TypeError, AttributeError, KeyError) as error:  # valid JSON of another form
        raise StoreError(
            f"run {run.name!r} ({run.run_id}) is marked recorded, but its files do not hold what they should "
            f"({type(error).__name__}: {error}); run the sweep again with force=true"
        ) from error
    return replace(cell, facts=_with_costs(cell.facts))


def _with_costs(facts: Mapping[str, float]) -> dict[str, float]:
    found = dict(facts)
    if "context_tokens" not in found and "context_tokens_at_budget" in found:
        found["context_tokens"] = found["context_tokens_at_budget"]
    return found


# ------------------------------------------------------------------ recomputing and verifying


def recompute(run: RecordedRun) -> Summary:
    """The run's summary from its outcomes, by the headline that it declared."""
    varies = run.tags.get("headline_metric") != audit_metric(run.plan)
    return summarize(run.outcomes, run.plan, label_source=run.ledger.label_source, chunker_varies=varies)


def verify(run: RecordedRun) -> Summary:
    """The recomputed summary of a run, after holding every logged figure against it.

    Raises JudgementError that names the run, the metric and both values when they differ by more than 1e-9.
    """
    from denominator.tracking import Facts
    from denominator.tracking.facts import add_summary

    try:
        summary = recompute(run)
    except MeasurementError as error:
        raise JudgementError(
            f"run {run.name!r} ({run.run_id}): its recorded outcomes cannot be scored: {error}"
        ) from error
    facts, every = Facts(run.name), Facts(run.name)
    add_summary(facts, summary, run.plan, schema=int(run.tags.get("schema_version", "1")))
    add_summary(every, summary, run.plan, schema=1)
    wrong: list[str] = []
    for key, value in facts.metrics.items():
        logged = run.metrics.get(key)
        if logged is None:
            wrong.append(f"{key}: not logged, recomputed {value!r}")
        elif not abs(logged - value) <= TOLERANCE:
            wrong.append(f"{key}: logged {logged!r}, recomputed {value!r}")
    for key, reason in facts.tags.items():
        name = key.removeprefix("undefined.")
        if key != name and name in run.metrics:
            wrong.append(f"{name}: logged {run.metrics[name]!r}, recomputed undefined ({reason})")
    names = {key.removeprefix("undefined.") for key in every.tags} | set(every.metrics)
    spare = [k for k in sorted(run.metrics) if (k.endswith("__n") or k in names) and k not in facts.metrics]
    wrong += [f"{key}: logged {run.metrics[key]!r}, not recomputed" for key in spare]
    if run.ledger.as_dict() != summary.ledger.as_dict():
        wrong.append(f"ledger: logged {run.ledger.as_dict()}, recomputed {summary.ledger.as_dict()}")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise JudgementError(
            f"run {run.name!r} ({run.run_id}) is not what was logged: {wrong[0]}{more}; its per_question.jsonl or its "
            "metrics were changed, or another version of denominator wrote them; run the sweep again with force=true"
        )
    return summary


# ------------------------------------------------------------------ texts of the documents


def dataset_texts(store: Store, stored: StoredRun, run: RecordedRun) -> tuple[Mapping[str, str], str | None]:
    """Document texts by id for quoting, from the data set that the run's configuration names, or why there are none.

    Only this package's own readers are called, and only a corpus with the recorded hash is used.
    """
    try:
        with store.files(stored) as folder:
            file = folder / "config.yaml"
            if not file.is_file():
                return {}, "the run holds no configuration"
            text = file.read_text(encoding="utf-8")
        data = _load_dataset(text)
    except Exception as error:  # whatever is wrong with it, the report can do without
        return {}, f"the data set cannot be read again ({str(error)[:300]})"
    expected = next((dict(p).get("corpus_hash") for p in run.fingerprints.values()), None)
    if data.corpus_hash != expected:
        return {}, "the documents have changed since the run was recorded"
    return texts_of(data.documents), None


def _load_dataset(yaml: str) -> Any:
    from omegaconf import OmegaConf

    from denominator import config

    whole = OmegaConf.create(yaml)
    raw = OmegaConf.to_container(OmegaConf.masked_copy(whole, ["dataset"]), resolve=False)  # type: ignore[arg-type]
    node = OmegaConf.to_container(whole.dataset, resolve=True, throw_on_missing=True)
    assert isinstance(node, dict)
    assert isinstance(raw, dict)
    targets = [str(value) for key, value in _items(node) if key == "_target_"]
    if not targets or not all(t.startswith("denominator.readers.") for t in targets):
        raise ConfigError(f"a record's own class is not called: {listing(targets)}")
    part = config.build({str(k): v for k, v in node.items()}, "dataset", raw["dataset"])
    return part.load()


def _items(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, dict):
        return [(str(k), v) for k, v in node.items()] + [pair for v in node.values() for pair in _items(v)]
    return [pair for v in node for pair in _items(v)] if isinstance(node, list) else []


# ------------------------------------------------------------------ the report


def failures_of(store: Store, sweep_id: str) -> list[Failure]:
    """Cells of a sweep without a recorded result, with the reason, by name."""
    import json

    from denominator.report import Failure
    from denominator.tracking.facts import alive

    words = {"KILLED": "interrupted", "FINISHED": "not completely written", "FAILED": "failed"}
    found: dict[str, Failure] = {}
    cells = store.cells(sweep_id)
    for cell in cells:
        if cell.recorded:
            continue
        going = "still running" if alive(cell.tags) else "its process ended without a word"
        reason = cell.tags.get("error") or words.get(cell.status, going)
        found[cell.tags.get("cell_key", cell.run_id)] = Failure(cell.name, reason, cell.tags.get("overrides", ""))
    known = {cell.tags.get("cell_key") for cell in cells}
    sweep = store.sweep(sweep_id)
    if sweep is not None:
        with store.files(sweep) as folder:
            file = folder / "cells.json"
            listed = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        for number, entry in enumerate(listed):  # cells that never got as far as a run; two may share a name
            key = entry.get("cell_key") or f"cell {number}"
            if entry.get("status") not in ("recorded", "reused") and key not in known:
                reason = str(entry.get("status", "no result")).replace("_", " ")
                found.setdefault(key, Failure(entry.get("name", key), reason, " ".join(entry.get("overrides", []))))
    return sorted(found.values(), key=lambda f: (f.name, f.reason))


def prepare_report(
    store: Store,
    sweep_id: str | None = None,
    *,
    names: Sequence[str] = (),
    metric: str | None = None,
    baseline: str | None = None,
    allow: Sequence[str] = (),
    failures: Sequence[Failure] | None = None,
    texts: Mapping[str, str] | None = None,
    meta: Mapping[str, str] | None = None,
) -> Report:
    """The report's content from the record, verified. `names` chooses runs, else all cells of the sweep are taken.

    Raises StoreError (nothing recorded, a file is missing), JudgementError (not what was logged, not comparable),
    ConfigError (unknown metric, run or baseline).
    """
    from denominator.report import build
    from denominator.selection import find_runs

    given = sweep_id is not None
    sweep_id = sweep_id or latest_sweep(store)
    if names and not given:
        cells = [cell for cell in store.cells(sweep_id) if cell.recorded]
    else:
        cells = recorded_cells(store, sweep_id)
    chosen = pick(store, cells, names) if names else cells
    runs = [read(store, cell) for cell in chosen]
    summaries = {run.run_id: verify(run) for run in runs}
    notes: list[str] = []
    declared = sorted({run.plan.baseline for run in runs if run.plan.baseline is not None})
    if baseline is None and len(declared) == 1 and not find_runs(runs, declared[0]):
        notes.append(f"The declared baseline {declared[0]} has no result here, so there are no p-values against it.")
        runs = [replace(run, plan=replace(run.plan, baseline=None)) for run in runs]
    if texts is None:
        texts, why = dataset_texts(store, chosen[0], runs[0])
        if why is not None:
            notes.append(f"Passages are named by their place, without text: {why}.")
    lost = failures if failures is not None else [] if names else failures_of(store, sweep_id)
    with _refusals():
        made = build(
            runs,
            metric=metric,
            baseline=baseline,
            allow=tuple(allow),
            failures=lost,
            summaries=summaries,
            texts=texts,
            meta=_meta(store, sweep_id, chosen) | dict(meta or {}),
        )
    return replace(made, health=(*notes, *made.health))


def _meta(store: Store, sweep_id: str, chosen: Sequence[StoredRun]) -> dict[str, str]:
    """What somebody needs to do it again."""
    sweep = store.sweep(sweep_id)
    first = chosen[0]
    of = {cell.tags.get("sweep_id", sweep_id) for cell in chosen}
    return {
        "command": (sweep.tags.get("command") if sweep else None) or _command(chosen),
        "dataset": ", ".join(dict.fromkeys(cell.params.get("dataset", "") for cell in chosen)),
        "experiment": store.experiment,
        "sweep": sweep_id if len(of) == 1 or sweep else ", ".join(sorted(of)),
        "git_commit": first.tags.get("mlflow.source.git.commit", ""),
        "versions": " / ".join(dict.fromkeys(cell.tags.get("versions", "") for cell in chosen)),
    }


def _command(cells: Sequence[StoredRun]) -> str:
    lines = dict.fromkeys(cell.tags.get("overrides", "") for cell in cells)
    return "\n".join(f"denominator run {line}" for line in lines if line)


def publish(made: Report, folder: Path, store: Store | None = None, sweep_id: str | None = None) -> Written:
    """Writes the report and, with a store and a sweep that has a run, attaches all of it there under `report/`."""
    from denominator.report import write

    written = write(made, folder)
    sweep = store.sweep(sweep_id) if store is not None and sweep_id is not None else None
    if store is not None and sweep is not None:
        for file in (written.html, written.markdown, written.csv, written.json):
            store.attach(sweep.run_id, file, "report")
        for file in written.figures:
            store.attach(sweep.run_id, file, "report/figures")
        for file in _pictures(made, folder):
            store.attach(sweep.run_id, file, "figures")
        store.lead(sweep, made.decision.sentence)
    return written


def _pictures(made: Report, folder: Path) -> list[Path]:
    """Forest and Pareto as PNG for the sweep's run: MLflow shows SVG without its fonts."""
    from denominator.report.plots import all_figures

    found = []
    for key, (_, figure) in all_figures(made).items():
        if key == "forest" or key.startswith("pareto"):
            found.append(folder / "figures" / f"{key}.png")
            figure.savefig(found[-1], dpi=100, metadata={"Software": None})
    return found


def make_report(
    store: Store,
    sweep_id: str | None = None,
    *,
    folder: Path | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    allow: Sequence[str] = (),
    failures: Sequence[Failure] | None = None,
    texts: Mapping[str, str] | None = None,
    meta: Mapping[str, str] | None = None,
) -> Written:
    """Builds, writes and attaches the report of a sweep (the latest unless one is named). See `prepare_report`.

    `texts` (document id → text), `failures` and `meta` spare reading what the caller knows; `folder` defaults to
    `reports/<sweep_id>` below the store's output folder.
    """
    sweep_id = sweep_id or latest_sweep(store)
    made = prepare_report(
        store,
        sweep_id,
        metric=metric,
        baseline=baseline,
        allow=allow,
        failures=failures,
        texts=texts,
        meta=meta,
    )
    return publish(made, folder or store.out / "reports" / sweep_id, store, sweep_id)


class _refusals:  # noqa: N801 - reads as a statement
    """Inside, a refusal to compare is "could not judge" (exit code 2), not wrong usage."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MeasurementError) and error.code in REFUSALS:
            hint = "; --allow FIELD compares in spite of a field" if error.code == "not_comparable" else ""
            raise JudgementError(f"{error}{hint}") from error


def _store_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="denominator-out", metavar="DIR", help="output folder (default: denominator-out)"
    )
    parser.add_argument(
        "--uri", metavar="URI", help="tracking store (default: MLFLOW_TRACKING_URI, or the one in --out)"
    )
    parser.add_argument("--experiment", metavar="NAME", help="default: the one that was used last")


def _store_of(args: argparse.Namespace) -> Store:
    from denominator.tracking import find_store

    return find_store(args.out, args.uri, args.experiment)


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator report`."""
    parser.add_argument("sweep", nargs="?", metavar="SWEEP", help="a sweep's id (default: the latest)")
    parser.add_argument(
        "--runs", nargs="+", metavar="RUN", help="only these recorded runs: names, run ids or cell keys"
    )
    parser.add_argument("--metric", metavar="M", help="rank on this metric instead of the declared one")
    parser.add_argument("--baseline", metavar="NAME", help="the run to compare with, if none was declared")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD", help="compare although this field differs (repeatable)"
    )
    parser.add_argument("--output", metavar="FOLDER", help="where to write (default: reports/SWEEP in --out)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    _store_arguments(parser)


def run_report(args: argparse.Namespace) -> int:
    """`denominator report`: writes the report, attaches it to the sweep's run, prints the verdict and the paths."""
    store = _store_of(args)
    sweep_id = args.sweep or latest_sweep(store)
    names = args.runs or []
    made = prepare_report(
        store,
        sweep_id if args.sweep or not names else None,
        names=names,
        metric=args.metric,
        baseline=args.baseline,
        allow=args.allow,
    )
    folder = (
        Path(args.output) if args.output else Path(args.out) / "reports" / (f"{sweep_id}-runs" if names else sweep_id)
    )
    # A report on a choice of runs, or on another metric, is not the sweep's own.
    own = not (names or args.metric or args.baseline or args.allow)
    written = publish(made, folder, store if own else None, sweep_id)
    if args.json:
        paths = {"html": written.html, "markdown": written.markdown, "csv": written.csv, "json": written.json}
        said = {
            "sentence": made.decision.sentence,
            "metric": made.metric,
            "best_set": list(made.ranking.best_set) if made.ranking else [],
            "recommended": made.ranking.recommendation.name if made.ranking else None,
            "excluded": [e.name for e in made.decision.excluded],
            "failures": [f.name for f in made.failures],
            "files": {name: str(path) for name, path in paths.items()},
        }
        sys.stdout.write(dumps(said) + "\n")
    else:
        lines = [made.decision.sentence]
        lines += [f"not ranked: {e.name}: {e.detail}" for e in made.decision.excluded]
        lines += [f"no result: {f.name}: {f.reason}" for f in made.failures]
        lines += ["", *(str(p) for p in (written.html, written.markdown, written.csv, written.json))]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0 if made.ranking is not None else JudgementError.exit_code


# ------------------------------------------------------------------ runs from files


def _file_arguments(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("files instead of the record")
    files.add_argument(
        "--golden", metavar="FILE", help="golden set (JSON lines or TREC qrels); runs are then files too"
    )
    add_reading(files)
    add_scoring(files)
    files.add_argument("--answers", metavar="FILE", help="recorded answers of the run: JSON lines")
    files.add_argument("--baseline-answers", metavar="FILE", help="recorded answers of the baseline")


def _scored(
    args: argparse.Namespace,
    run: str,
    *,
    ks: Sequence[int],
    budget: int | None = None,
    golden: str | None = None,
    answers: str | None = None,
) -> ScoreReport:
    plan = {} if budget is None else {"budget": budget}
    options = options_of(args, **plan) | {"cache": kept_in(args)}
    return score(golden or args.golden, run, answers_of(args, answers), ks=ks, **options)


def _only_of_files(args: argparse.Namespace, *more: str) -> None:
    """Refuses what says nothing about recorded runs."""
    for name in ("answers", "baseline_answers", "answer_lang", "judge", "grader", "hand", "corpus", *more):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} belongs to --golden")


def as_recorded(report: ScoreReport, name: str, run_id: str) -> RecordedRun:
    """A scored run of files in the form of a recorded one, so that it is compared and judged by the same code."""
    from denominator.pipeline import fingerprints_of

    return RecordedRun(
        run_id=run_id,
        name=name,
        cell_key=run_id,
        sweep_id="",
        params=report.params,
        tags={"headline_metric": report.summary.headline},
        metrics={},
        plan=report.plan,
        outcomes=report.outcomes,
        facts=report.facts,
        fingerprints=fingerprints_of(report.summary, report.plan, report.dataset),
        ledger=report.summary.ledger,
    )


def _file_names(a: str, b: str, answers: tuple[str | None, str | None]) -> tuple[str, str]:
    """Short names of two runs in files; where both are the same file, of the answers that were given with it."""
    mine, theirs = answers
    if a == b and mine and theirs and mine != theirs:
        a, b = mine, theirs
    one, two = Path(a).name, Path(b).name
    return (one, two) if one != two else (a, b)


# ------------------------------------------------------------------ the command `compare`


COMPARE_EXAMPLE = """\
two cells of the latest sweep, for example of `denominator sweep`:
  denominator compare 'sentences_128 · bm25 · none' 'fixed_128 · bm25 · none' --metric recall@5
"""


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator compare`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = COMPARE_EXAMPLE
    parser.add_argument("candidate", metavar="A", help="the candidate: a recorded run, or a file with --golden")
    parser.add_argument("baseline", metavar="B", help="what it is compared with")
    parser.add_argument("--sweep", metavar="ID", help="look for the runs in this sweep first (default: the latest)")
    parser.add_argument("--metric", metavar="M", help="default: the metric that the runs were declared to be chosen on")
    parser.add_argument(
        "--margin", type=float, metavar="D", help="smallest difference that matters (default: as declared)"
    )
    parser.add_argument("--alpha", type=float, metavar="A", help="default: as declared")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD", help="compare although this field differs (repeatable)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page")
    _file_arguments(parser)
    _store_arguments(parser)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs to compare, document texts for quoting, and what has to be known beside the result."""

    candidate: RecordedRun
    baseline: RecordedRun
    texts: Mapping[str, str]
    notes: tuple[str, ...]


def _pair(args: argparse.Namespace) -> Pair:
    if args.golden is not None:
        ks, budgets = gating.cuts([_named_metric(args.metric)] if args.metric else [])
        names = _file_names(args.candidate, args.baseline, (args.answers, args.baseline_answers))
        made = [
            _scored(args, path, ks=ks or (1, 3, 5, 10), budget=budgets[0] if budgets else None, answers=answers)
            for path, answers in ((args.candidate, args.answers), (args.baseline, args.baseline_answers))
        ]
        a, b = (as_recorded(r, name, f"{i}:{name}") for i, (r, name) in enumerate(zip(made, names, strict=True)))
        texts = texts_of(made[0].dataset.documents)
        return Pair(a, b, texts, tuple(dict.fromkeys(note for r in made for note in r.notes)))
    _only_of_files(args)
    store = _store_of(args)
    cells = [c for c in store.cells(args.sweep or latest_sweep(store)) if c.recorded]
    found = [pick(store, cells, [name]) for name in (args.candidate, args.baseline)]
    for name, several in zip((args.candidate, args.baseline), found, strict=True):
        if len(several) != 1:
            raise ConfigError(f"{name!r} names {len(several)} runs; name one")
    (one,), (two,) = found
    if one.run_id == two.run_id:
        raise ConfigError(f"{args.candidate!r} and {args.baseline!r} are the same recorded run ({one.run_id})")
    runs = [read(store, run) for run in (one, two)]
    for run in runs:
        verify(run)
    texts, why = dataset_texts(store, one, runs[0])
    return Pair(runs[0], runs[1], texts, () if why is None else (f"passages are shown without text: {why}",))


def _named_metric(name: str) -> Rule:
    return Rule(name, "bound", name)


def run_compare(args: argparse.Namespace) -> int:
    """`denominator compare`: question by question; 2 when the two may not be compared."""
    from denominator.selection import compare

    for name, value in (("--margin", args.margin), ("--alpha", args.alpha)):
        if value is not None and not 0 < value < 1:
            raise ConfigError(f"{name} is {value:g}; it lies between 0 and 1")
    _check_allowed(args.allow)
    pair = _pair(args)
    metric = args.metric
    if metric is not None:
        _check_metric(pair, metric)
    with _refusals():
        found = compare(
            pair.candidate, pair.baseline, metric, alpha=args.alpha, margin=args.margin, allow=tuple(args.allow)
        )
    if args.html is not None:
        write_atomically(args.html, comparison_html(found, pair))
    if args.json:
        questions = {o.id: o.question for o in pair.candidate.outcomes}
        changed = {c.id: questions.get(c.id) for c in (*found.gained, *found.lost)}
        said = found.as_dict() | {"questions": changed, "allowed": list(args.allow), "notes": list(pair.notes)}
        sys.stdout.write(dumps(said) + "\n")
    else:
        sys.stdout.write(comparison_text(found, pair, args.allow))
        if args.html is not None:
            sys.stdout.write(f"{args.html}\n")
    return 0


def _check_allowed(allow: Sequence[str]) -> None:
    from denominator.config import nearest
    from denominator.fingerprint import FIELDS
    from denominator.selection import INSTRUMENTS

    known = (*FIELDS, *INSTRUMENTS)
    for name in allow:
        if name not in known:
            raise ConfigError(
                f"--allow {name}: there is no such field{nearest(name, known)} (there are: {', '.join(known)})"
            )


def _check_metric(pair: Pair, metric: str) -> None:
    from denominator.config import nearest

    known = sorted({name for o in pair.candidate.outcomes for name in (*o.values, *o.quality)})
    if known and metric not in known:
        raise ConfigError(f"--metric {metric}: not measured{nearest(metric, known)} (there are: {', '.join(known)})")


def _estimate_text(e: Any) -> str:
    between = "" if e.ci_low is None else f"  [{e.ci_low:.4f}, {e.ci_high:.4f}]"
    return f"{'undefined' if e.value is None else format(e.value, '.4f')}{between}  n = {e.n}"


def comparison_text(found: Comparison, pair: Pair, allow: Sequence[str] = ()) -> str:
    """The comparison for a terminal: both estimates, the paired difference, and which questions flipped."""
    d = found.difference
    wide = max(len(found.candidate), len(found.baseline))
    level = f"{100 * (1 - found.alpha):g} %"
    between = "no interval: " + (d.reason or "") if d.low is None else f"{level} interval {d.low:+.4f} to {d.high:+.4f}"
    test = {"mcnemar": "exact McNemar"}.get(d.test, f"paired sign flip, {d.test}")
    lines = [
        f"{found.metric}, candidate minus baseline, paired by question",
        "",
        f"  candidate  {found.candidate.ljust(wide)}  {_estimate_text(found.candidate_estimate)}",
        f"  baseline   {found.baseline.ljust(wide)}  {_estimate_text(found.baseline_estimate)}",
        f"  difference {'' if d.value is None else format(d.value, '+.4f')}  {between}  p = {d.p:.4g} ({test})",
        f"  questions  {len(found.gained)} won, {len(found.lost)} lost, {found.same} the same",
        *([f"             {found.beside}"] if found.beside else []),
        f"  verdict    {found.verdict} (α = {found.alpha:g}, margin {found.margin:g})",
    ]
    if found.verdict == "inconclusive" and d.mdd:
        lines.append(f"             the least difference that these questions find with power .8 is {d.mdd:.4f}")
    questions = {o.id: o.question or "" for o in pair.candidate.outcomes}
    for what, changes in (("won", found.gained), ("lost", found.lost)):
        if not changes:
            continue
        shown = changes[:SHOWN_FLIPS]
        more = f", the first {len(shown)} of {len(changes)}" if len(changes) > len(shown) else ""
        lines += ["", f"{what} by the candidate{more}"]
        lines += _flips(shown, questions)
    if allow:
        lines += ["", f"compared by declared exception, whatever these say: {', '.join(allow)}"]
    lines += ["", *(f"note: {note}" for note in pair.notes)] if pair.notes else []
    return "\n".join(lines) + "\n"


def _flips(changes: Sequence[Change], questions: Mapping[str, str]) -> list[str]:
    wide = max(len(c.id) for c in changes)
    lines = []
    for c in changes:
        text = " ".join(questions.get(c.id, "").split())
        lines.append(
            f"  {c.id.ljust(wide)}  {c.b:.3f} → {c.a:.3f}  {text[:100]}{'…' if len(text) > 100 else ''}".rstrip()
        )
    return lines


def comparison_html(found: Comparison, pair: Pair) -> str:
    """The comparison as one self-contained page in the report's style."""
    from denominator.report.build import shown_questions, unit_of
    from denominator.report.write import render
    from denominator.selection import shared_fields

    named = {found.candidate: pair.candidate, found.baseline: pair.baseline}
    flips = {
        key: shown_questions([c.id for c in changes], named, found.metric, pair.texts, most=SHOWN_FLIPS)
        for key, changes in (("gained", found.gained), ("lost", found.lost))
    }
    mine, theirs = (run.fingerprints.get(found.metric) or shared_fields(run) for run in (pair.candidate, pair.baseline))
    context = {
        "c": found,
        "d": found.difference,
        "unit": unit_of(found.metric),
        "flips": flips,
        "fields": {k: (mine[k], theirs.get(k)) for k in mine if k != "fingerprint"},
        "notes": pair.notes,
        "figures": {},
    }
    return render("compare.html.j2", context, html=True)


# ------------------------------------------------------------------ the command `gate`


GATE_EXAMPLE = """\
a cell of the latest sweep, for example of `denominator sweep`; exit code 0: holds, 1: does not, 2: could not judge:
  denominator gate 'recall@5 >= 0.5' 'latency_ms_median <= 500' --run 'fixed_128 · bm25 · none'
"""


def add_gate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator gate`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = GATE_EXAMPLE
    parser.add_argument("rules", nargs="*", metavar="RULE", help="such as 'recall@5 >= 0.7'; all of them side by side")
    parser.add_argument("--rule", action="append", default=[], metavar="RULE", help="one rule, anywhere (repeatable)")
    parser.add_argument("--rules", dest="file", metavar="FILE", help="more rules, as YAML")
    parser.add_argument("--run", metavar="RUN", help="the run to judge: a recorded run, or a file with --golden")
    parser.add_argument(
        "--baseline-run", metavar="RUN", help="the run to hold it against (recorded: the declared baseline)"
    )
    parser.add_argument("--sweep", metavar="ID", help="look for the runs in this sweep first (default: the latest)")
    parser.add_argument(
        "--no-regression", action="store_true", help="fail when the headline metric is shown to be worse"
    )
    parser.add_argument("--non-inferior", action="store_true", help="fail unless a loss beyond the margin is ruled out")
    parser.add_argument(
        "--margin", type=float, metavar="D", help="smallest loss that matters (default: as declared, 0.02)"
    )
    parser.add_argument(
        "--alpha",
        type=float,
        metavar="A",
        help="two-sided level of intervals and paired rules (default: as declared, 0.05)",
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD", help="compare although this field differs (repeatable)"
    )
    parser.add_argument(
        "--allow-incomplete",
        action="store_true",
        help="judge a run in which questions failed or are missing; they count 0 (the baseline has to be complete)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    parser.add_argument("--markdown", metavar="FILE", help="write the same table, for a comment on a pull request")
    parser.add_argument("--github-summary", action="store_true", help="append a table to $GITHUB_STEP_SUMMARY")
    _file_arguments(parser)
    parser.add_argument("--baseline-golden", metavar="FILE", help="golden set of the baseline (default: --golden)")
    _store_arguments(parser)


def _rules_of(args: argparse.Namespace) -> list[Rule]:
    """The rules of the command line and of the file; settings of the file fill in what the command line leaves open."""
    rules: list[Rule] = []
    if args.file is not None:
        import yaml

        path = Path(args.file)
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--rules {path}: cannot be read ({error})") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"--rules {path}: not YAML: {' '.join(str(error).split())}") from error
        found, settings = gating.rules_from_data(data, str(path))
        rules += found
        for key, value in settings.items():
            if key == "allow":
                args.allow = [*value, *args.allow]
            elif getattr(args, key) is None or getattr(args, key) is False:
                setattr(args, key, value)
    rules += [gating.parse_rule(text) for text in (*args.rules, *args.rule)]
    return rules


def _rules_on_headline(args: argparse.Namespace, run: RecordedRun, summary: Summary) -> list[Rule]:
    metric = run.tags.get("headline_metric", summary.headline)
    flags = {"no-regression": args.no_regression, "non-inferior": args.non_inferior}
    return [gating.parse_rule(f"{metric} {kind}") for kind, given in flags.items() if given]


def _gate_files(args: argparse.Namespace, rules: Sequence[Rule]) -> tuple[Measured, Measured | None, tuple[str, ...]]:
    if args.run is None:
        raise ConfigError("--golden needs --run, the file with the run to judge")
    ks, budgets = gating.cuts(rules)
    if len(budgets) > 1:
        raise ConfigError(f"the rules speak of {len(budgets)} token budgets ({', '.join(map(str, budgets))}); name one")
    budget = budgets[0] if budgets else None
    ks = ks or (1, 3, 5, 10)
    sides = [_scored(args, args.run, ks=ks, budget=budget, answers=args.answers)]
    names = [Path(args.run).name]
    if args.baseline_run is not None:
        names = list(_file_names(args.run, args.baseline_run, (args.answers, args.baseline_answers)))
        golden = args.baseline_golden
        sides.append(
            _scored(args, args.baseline_run, ks=ks, budget=budget, golden=golden, answers=args.baseline_answers)
        )
    made = [
        Measured(as_recorded(report, name, f"{i}:{name}"), report.summary)
        for i, (report, name) in enumerate(zip(sides, names, strict=True))
    ]
    notes = tuple(dict.fromkeys(note for report in sides for note in report.notes))
    return made[0], made[1] if len(made) > 1 else None, notes


def _gate_recorded(
    args: argparse.Namespace, rules: Sequence[Rule]
) -> tuple[Measured, Measured | None, tuple[str, ...]]:
    _only_of_files(args, "baseline_golden")
    store = _store_of(args)
    sweep_id = args.sweep or latest_sweep(store)
    cells = [c for c in store.cells(sweep_id) if c.recorded]
    if args.run is None:
        cells = recorded_cells(store, sweep_id)
        if len(cells) != 1:
            raise ConfigError(
                f"the sweep {sweep_id} has {len(cells)} recorded runs; say which with --run: "
                f"{listing((c.name for c in cells), 30)}"
            )
        chosen = cells[0]
    else:
        chosen = _single(store, cells, args.run)
    run = read(store, chosen)
    judged = Measured(run, verify(run))
    notes: tuple[str, ...] = ()
    needed = args.no_regression or args.non_inferior or any(rule.needs_baseline for rule in rules)
    name = args.baseline_run
    if name is None and needed and run.plan.baseline is not None:
        name = run.plan.baseline
        notes = (f"held against the declared baseline {name}",)
    if name is None:
        return judged, None, notes
    against = read(store, _single(store, cells, name))
    if against.run_id == run.run_id:
        raise ConfigError(f"{run.name!r} is the baseline itself; name another one with --baseline-run")
    return judged, Measured(against, verify(against)), notes


def _single(store: Store, cells: Sequence[StoredRun], name: str) -> StoredRun:
    found = pick(store, cells, [name])
    if len(found) != 1:
        raise ConfigError(f"{name!r} names {len(found)} runs; name one")
    return found[0]


def run_gate(args: argparse.Namespace) -> int:
    """`denominator gate`: 0 passed, 1 a rule failed, 2 a rule could not be judged."""
    summary_file = os.environ.get("GITHUB_STEP_SUMMARY")
    if args.github_summary and not summary_file:
        raise ConfigError(
            "--github-summary: GITHUB_STEP_SUMMARY is not set; GitHub Actions sets it inside a job's step"
        )
    rules = _rules_of(args)
    for name, value in (("--margin", args.margin), ("--alpha", args.alpha)):
        if value is not None and not 0 < value < 1:
            raise ConfigError(f"{name} is {value:g}; it lies between 0 and 1")
    _check_allowed(args.allow)
    if not rules and not args.no_regression and not args.non_inferior:
        raise ConfigError("there is no rule; for example: denominator gate 'recall@5 >= 0.7'")
    measure: Callable[..., tuple[Measured, Measured | None, tuple[str, ...]]]
    measure = _gate_files if args.golden is not None else _gate_recorded
    run, baseline, notes = measure(args, rules)
    rules += _rules_on_headline(args, run.run, run.summary)
    found = gating.judge(
        rules,
        run,
        baseline,
        alpha=args.alpha,
        margin=args.margin,
        allow=tuple(args.allow),
        allow_incomplete=args.allow_incomplete,
        notes=notes,
    )
    _hand_out(found, args, summary_file)
    return found.exit_code


def _hand_out(found: Gate, args: argparse.Namespace, summary_file: str | None) -> None:
    if args.junit is not None:
        write_atomically(args.junit, gating.as_junit(found))
    if args.markdown is not None:
        write_atomically(args.markdown, gating.as_markdown(found))
    if args.github_summary and summary_file:
        with Path(summary_file).open("a", encoding="utf-8", newline="\n") as file:
            file.write(gating.as_markdown(found) + "\n")
    sys.stdout.write(dumps(found.as_dict()) + "\n" if args.json else gating.as_text(found))
