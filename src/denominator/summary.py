"""What a sweep says at its end: who is in the denominator, the ranked cells, what failed, where everything is.

Read from the record, so that it is the same whatever launcher ran the cells and whether they ran now or before.
"""

from __future__ import annotations

import json
import tempfile
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denominator.corpus import Documents, texts_of
from denominator.errors import StoreError
from denominator.masking import mask
from denominator.progress import figure_text
from denominator.tracking import Store, StoreAwayError, StoredRun, dataset_input, save_view, spell, sweep_links
from denominator.types import Estimate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from denominator.app import Outcome


def rankings(runs: Sequence[StoredRun]) -> list[list[StoredRun]]:
    """The runs that may be ranked, one list for each fingerprint of their headline: the longest first.

    Inside a list: best headline first (rounded to 12 decimals; ties by name). Left out are incomplete runs and those
    whose headline has no value or no fingerprint. Empty case: `[]`.
    """
    lists: dict[str, list[StoredRun]] = {}
    for run in runs:
        found = run.tags.get("fingerprint")
        if found and run.tags.get("incomplete") != "true" and run.estimate(headline_of(run)).value is not None:
            lists.setdefault(found, []).append(run)

    def best_first(run: StoredRun) -> tuple[float, str]:
        return -round(run.estimate(headline_of(run)).value or 0.0, 12), run.name

    every = [sorted(of, key=best_first) for of in lists.values()]
    return sorted(every, key=lambda of: (-len(of), min(run.name for run in of)))


def ranked(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The rankings one after the other, then what has no place: runs without a value, then incomplete ones, by name."""
    placed = [run for of in rankings(runs) for run in of]
    have = {run.run_id for run in placed}
    rest = [run for run in runs if run.run_id not in have]
    return placed + sorted(rest, key=lambda run: (run.tags.get("incomplete") == "true", run.name))


def places(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Run id → its place: `1`, `2` …; with several rankings `A1`, `A2`, `B1` …; `–` for a run that has none."""
    lists = rankings(runs)
    letters = [""] if len(lists) < 2 else [_letter(i) for i in range(len(lists))]
    found = {
        run.run_id: f"{letter}{i}" for letter, of in zip(letters, lists, strict=False) for i, run in enumerate(of, 1)
    }
    return {run.run_id: found.get(run.run_id, "–") for run in runs}


def _letter(i: int) -> str:
    """A … Z, AA, AB …"""
    text = ""
    i += 1
    while i:
        i, rest = divmod(i - 1, 26)
        text = chr(65 + rest) + text
    return text


def apart(runs: Sequence[StoredRun], store: Store) -> str:
    """Why there are several rankings: the fingerprint fields in which they differ. Empty when there is one."""
    from denominator.fingerprint import FIELDS

    lists = rankings(runs)
    if len(lists) < 2:
        return ""
    prints = []
    for of in lists:
        with store.files(of[0]) as folder:
            every = json.loads((folder / "fingerprint.json").read_text(encoding="utf-8"))
        prints.append(every[headline_of(of[0])])
    fields = [f for f in FIELDS if any(p.get(f) != prints[0].get(f) for p in prints)]
    return (
        f"{len(lists)} rankings ({', '.join(_letter(i) for i in range(len(lists)))}): their values were measured "
        f"differently ({', '.join(fields)}) and do not compare"
    )


def headline_of(run: StoredRun) -> str:
    return run.tags.get("headline_metric", "recall@5")


def value_text(estimate: Estimate) -> str:
    return f"undefined: {estimate.reason}" if estimate.value is None else f"{estimate.value:.3f}"


def interval_text(estimate: Estimate) -> str:
    if estimate.ci_low is None or estimate.ci_high is None:
        return "–"
    return f"{estimate.ci_low:.3f}–{estimate.ci_high:.3f}"


def level_of(runs: Sequence[StoredRun]) -> str:
    """The level of the intervals in words, `95 %` for α = .05."""
    levels = {run.params.get("alpha", "0.05") for run in runs}
    return f"{100 * (1 - float(levels.pop())):g} %" if len(levels) == 1 else "its own"


def table_of(runs: Sequence[StoredRun]) -> Table:
    """The ranked table; every value has its n, and the naive convention stands beside the plain recall."""
    from rich import box
    from rich.table import Table

    headlines = list(dict.fromkeys(headline_of(run) for run in runs)) or ["recall@5"]
    headline = headlines[0] if len(headlines) == 1 else "headline"
    named = {run.tags["audit_metric"] for run in runs if "audit_metric" in run.tags}
    audited = min(named, key=lambda name: (int(name.partition("@")[2] or 0), name), default="recall@5")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("cell", overflow="fold", min_width=24)
    table.add_column(headline.replace("@", "\n@"), justify="right", no_wrap=True)
    table.add_column(f"{level_of(runs)}\ninterval", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    second = audited != headline
    if second:
        table.add_column(audited.replace("@", "\n@"), justify="right", no_wrap=True)
        table.add_column("n", justify="right", no_wrap=True)
    table.add_column("naive*", justify="right", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("chunks", justify="right", no_wrap=True)
    place, before = places(runs), ""
    for run in runs:
        estimate, recall = run.estimate(headline_of(run)), run.estimate(audited)
        incomplete = run.tags.get("incomplete") == "true"
        group = place[run.run_id].rstrip("0123456789")
        if before and group != before:
            table.add_section()
        before = group
        row = [place[run.run_id], run.name + (" (incomplete)" if incomplete else "")]
        row += [value_text(estimate), interval_text(estimate), str(estimate.n)]
        if second:
            row += [value_text(recall), str(recall.n)]
        row += [_plain(run.metrics.get("audit.naive_one"), 3), _plain(run.metrics.get("latency_ms_median"), 1)]
        table.add_row(*row, _plain(run.metrics.get("n_chunks"), 0))
    return table


def answers_table_of(runs: Sequence[StoredRun]) -> Table | None:
    """What the answers are worth, over the answerable questions that were answered; None where no run has answers."""
    from rich import box
    from rich.table import Table

    from denominator.quality import METRICS

    names = [m for m in METRICS if any(f"answer.{m}__n" in run.metrics for run in runs)]
    if not names:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("answers", overflow="fold", min_width=24)
    for name in names:
        table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for run in runs:
        found = [run.estimate(f"answer.{name}") for name in names]
        table.add_row(run.name, *(f"{value_text(e)}\nn = {e.n}" for e in found))
    return table


def _plain(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def ledger_text(run: StoredRun, store: Store) -> str:
    """The ledger line of a recorded cell; every cell of a sweep has the same one."""
    from denominator.records import ledger_from_json
    from denominator.tracking import ledger_line

    with store.files(run) as folder:
        return ledger_line(ledger_from_json(json.loads((folder / "ledger.json").read_text(encoding="utf-8"))))


def denominators(runs: Sequence[StoredRun]) -> list[int]:
    """The eligible n of each cell, distinct. More than one in a sweep over one data set is a fault."""
    return sorted({int(run.metrics["eligible_n"]) for run in runs if "eligible_n" in run.metrics})


def shared_n(runs: Sequence[StoredRun]) -> dict[str, float]:
    """The eligible n as a sweep's own figure: only where every cell has it and it is the same in all."""
    first = runs[0].metrics.get("eligible_n") if runs else None
    agreed = first is not None and all(run.metrics.get("eligible_n") == first for run in runs)
    return {"eligible_n": first} if agreed and first is not None else {}


def failures(result: Outcome, *, without: Collection[int] = ()) -> list[dict[str, str]]:
    """Cells that did not end well, with their overrides and the reason; `without`: not these jobs, by number."""
    found = []
    by_number = {job.number: job for job in result.jobs}
    for number in sorted({*result.ends, *result.lost}.difference(without)):
        event = result.ends.get(number, {"what": "lost"})
        if event["what"] in ("recorded", "reused"):
            continue
        job = by_number.get(number)
        overrides = [mask(o) for o in job.overrides] if job is not None else event.get("overrides", [])
        reason = {
            "lost": "its process ended without a word" if not result.interrupted else "not started",
            "killed": "interrupted",
            "not_started": f"not started: {event.get('error') or 'fail_fast=true'}",
        }.get(event["what"], event.get("error", ""))
        name = job.name if job is not None else event.get("name", f"job {number}")
        found.append({"what": event["what"], "name": name, "overrides": " ".join(overrides), "reason": mask(reason)})
    return found


def record(result: Outcome) -> None:
    """Writes the sweep's own run: description, list of its cells, a few numbers."""
    store: Store = result.store
    assert result.sweep_run is not None
    runs = ranked(store.get(dict.fromkeys(result.runs.values())))
    bad = failures(result)
    cells = []
    for job in result.jobs:
        key = result.keys.get(job.number, "")
        ended = result.ends.get(job.number, {"what": "lost"})["what"]
        cells.append(
            {
                "name": job.name,
                "cell_key": key,
                "run_id": result.runs.get(key),
                "overrides": [mask(o) for o in job.overrides],
                "status": "recorded" if key in result.runs else ended,
            }
        )
    if not result.jobs:  # a sweeper chose the cells while it ran
        cells = [{"name": e.get("name"), "cell_key": e.get("cell_key"), "run_id": e.get("run_id"), "status": e["what"]}
                 for e in result.ends.values()]  # fmt: skip
    metrics: dict[str, float] = {"cells": len(cells), "cells_recorded": len(runs), "cells_failed": len(bad)}
    tags = {"command": result.command} | ({"headline_metric": headline_of(runs[0])} if runs else {})
    dataset = None
    if runs:
        lists = rankings(runs)
        if len(lists) == 1:  # of several there is no best
            best = lists[0][0]
            metrics["best_value"] = best.metrics[spell(headline_of(best))]
            tags["best_cell"] = best.name
        metrics |= shared_n(runs)
        dataset = _dataset(result)
    plan = result.jobs[0].cell.plan if result.jobs else None
    params = {} if plan is None else {"dataset": result.jobs[0].params.get("dataset", ""), "baseline": plan.baseline}
    status = "KILLED" if result.interrupted else "FAILED" if bad else "FINISHED"
    store.log_sweep(
        result.sweep_run,
        note=f"{note(runs, bad, store)}\n\n{sweep_links(store, result.sweep_id, result.sweep_run)}",
        files=_card(result),
        cells=cells,
        params=params,
        metrics=metrics,
        tags=tags,
        dataset=dataset,
        status=status,
    )
    save_view(store, result.sweep_id, sweep_name(result), runs)


def sweep_name(result: Outcome) -> str:
    from denominator.app import sweep_name as name_of

    return name_of(result.jobs)


def _card(result: Outcome) -> dict[str, str]:
    """What `denominator doctor` says of each data set, for the sweep's run."""
    from denominator.health import examine

    plan = result.jobs[0].cell.plan if result.jobs else None
    found = {}
    for i, data in enumerate(result.data.values()):
        small = not isinstance(data.documents, Documents)  # in a large corpus the search would outlast the sweep
        health = examine(data, lenient=plan is not None and plan.eligibility == "lenient", near=small)
        name = "dataset_card.json" if len(result.data) == 1 else f"dataset_card_{i + 1}.json"
        found[name] = json.dumps(health.as_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    return found


def keep_texts(result: Outcome) -> None:
    """Where text was extracted from files, all texts as JSON lines with the sweep's run, or with the one cell's.

    Offsets refer to these texts, and a later version of the extractor may give others. The file is a native corpus.
    """
    runs = [result.sweep_run] if result.sweep_run else []
    if result.mode == "run":
        runs = [event["run_id"] for event in result.ends.values() if event["what"] == "recorded"]
    for i, data in enumerate(result.data.values()):
        if not data.extracted or not runs:
            continue
        with tempfile.TemporaryDirectory(prefix="denominator-") as folder:
            path = Path(folder) / ("documents.jsonl" if len(result.data) == 1 else f"documents_{i + 1}.jsonl")
            with path.open("w", encoding="utf-8", newline="\n") as file:
                for d in data.documents:
                    fields = {"id": d.id, "text": d.text} | ({} if d.title is None else {"title": d.title})
                    file.write(json.dumps(fields, ensure_ascii=False) + "\n")
            for run_id in runs:
                result.store.attach(run_id, path)


def _dataset(result: Outcome) -> Mapping[str, str] | None:
    from denominator.pipeline import DatasetFacts

    data = next(iter(result.data.values()), None)
    if data is None or len(result.data) > 1:
        return None
    states: dict[str, int] = {}
    for question in data.questions:
        label = question.answerability or "unlabelled"
        states[label] = states.get(label, 0) + 1
    return dataset_input(DatasetFacts.of(data), states)


def note(runs: Sequence[StoredRun], bad: Sequence[Mapping[str, str]], store: Store) -> str:
    """The description that MLflow shows above the sweep's run."""
    lines: list[str] = []
    if runs:
        headline = headline_of(runs[0])
        lines += [
            ledger_text(runs[0], store),
            "",
            f"| | cell | {headline if len({headline_of(r) for r in runs}) == 1 else 'headline'} | "
            f"{level_of(runs)} interval | n |",
            "| --- | --- | --- | --- | --- |",
        ]
        place = places(runs)
        for run in runs[:10]:
            e = run.estimate(headline_of(run))
            lines.append(f"| {place[run.run_id]} | {run.name} | {value_text(e)} | {interval_text(e)} | {e.n} |")
        if len(runs) > 10:
            lines.append(f"\n{len(runs) - 10} more cells: filter the runs table by this sweep's id.")
        if several := apart(runs, store):
            lines.append(f"\n{several}.")
        lines.append("\nThe order is by the plain value; which differences can be told from chance is in the report.")
    if bad:
        lines += ["", f"**{len(bad)} cells without a result**", ""]
        lines += [f"- {b['name']} (`{b['overrides']}`): {b['reason']}" for b in bad[:20]]
    return "\n".join(lines)


def show(result: Outcome, out: Console, *, report: Path | str | None = None) -> None:
    """Prints the end of a sweep or of a single run."""
    store: Store = result.store
    runs = [] if result.away else _read_back(result)
    out.print()
    for name in result.sent:
        out.print(f"recorded now, left over from an earlier start: {name}", soft_wrap=True)
    if runs:
        try:
            out.print(ledger_text(runs[0], store), soft_wrap=True)
        except StoreError as error:  # the table comes from the store itself and can still be shown
            result.error = result.error or mask(str(error))
        out.print(table_of(runs))
        answers = answers_table_of(runs)
        if answers is not None:
            out.print(answers)
        out.print(
            "* recall if a question without evidence counted as found: what hand-written helpers report", style="dim"
        )
        try:
            if several := apart(runs, store):
                out.print(f"{several}.", soft_wrap=True)
        except (StoreError, OSError, KeyError, ValueError) as error:
            result.error = result.error or mask(str(error))
        if len(denominators(runs)) > 1:
            out.print(
                f"The cells have different denominators ({denominators(runs)}): they measure different questions."
            )
    if result.away:
        _show_unrecorded(result, out)
    waiting = [number for number, e in result.ends.items() if e["what"] == "waiting" and "away" in e]
    bad = failures(result, without=waiting)
    if bad:
        out.print(f"{len(bad)} of {len(bad) + len(waiting) + len(result.runs)} cells have no result:", style="bold")
        idle = [f for f in bad if f["reason"].startswith("not started")]
        for failure in bad:
            if failure in idle:
                continue
            out.print(f"  {failure['name']}: {failure['reason']}", soft_wrap=True)
            if failure["overrides"]:
                out.print(f"    {failure['overrides']}", soft_wrap=True, style="dim")
        if idle:
            shown = ", ".join(f["name"] for f in idle[:5]) + (" …" if len(idle) > 5 else "")
            said = next((f["reason"].partition(": ")[2] for f in idle if ": " in f["reason"]), "")
            why = "interrupted" if result.interrupted else said or "fail_fast=true"
            out.print(f"  {len(idle)} not started ({why}): {shown}", soft_wrap=True)
    if result.error:
        out.print(f"error: {result.error}", soft_wrap=True)
    counts = [
        (result.count("recorded"), "computed"),
        (result.count("reused"), "recorded before"),
        (len(waiting), "computed and not recorded yet"),
        (len(bad), "without a result"),
    ]
    said = ", ".join(f"{n} {what}" for n, what in counts if n) or "nothing to do"
    out.print(
        f"{said} in {result.seconds:.1f} s; sweep {result.sweep_id}"
        if result.mode == "sweep"
        else f"{said} in {result.seconds:.1f} s"
    )
    if result.interrupted or bad:
        out.print("The same command again computes only what is missing.")
    if report is not None:
        out.print(f"report  {report}" if isinstance(report, Path) else f"no report: {report}", soft_wrap=True)
    out.print(f"record  {mask(store.uri)}", soft_wrap=True)
    out.print(f"open    denominator ui{_out_flag(result.out)}", soft_wrap=True)


def _read_back(result: Outcome) -> list[StoredRun]:
    """The recorded cells, best first; none when the store has just gone away."""
    try:
        return ranked(result.store.get(dict.fromkeys(result.runs.values())))
    except StoreAwayError as error:
        result.away = mask(error.why)
        return []


def _show_unrecorded(result: Outcome, out: Console) -> None:
    """What is known without the record: each cell's figure as it was said, what is safe, and how to go on."""
    ended = [result.ends[number] for number in sorted(result.ends)]
    for event in ended:
        where = {"recorded": "recorded", "reused": "recorded before", "waiting": "waits"}.get(event["what"])
        if where is not None:
            out.print(f"  {event.get('name')}: {figure_text(event)}{where}", soft_wrap=True)
    waiting = sum(e["what"] == "waiting" for e in ended)
    out.print(f"The record is away: {result.away}", soft_wrap=True)
    if waiting:
        folder = result.out / "pending"
        out.print(f"{waiting} of {len(ended)} cells wait in {folder}; their outcomes are safe.", soft_wrap=True)
        said = "records them once and computes nothing again"
    else:
        said = "completes the sweep's own run and computes nothing again"
    out.print(f"Once the server is back, the same command {said}.", soft_wrap=True)


def _out_flag(out: Path) -> str:
    return "" if out == Path.cwd() / "denominator-out" else f" --out {out}"


def as_json(result: Outcome) -> dict[str, Any]:
    """The same for programs."""
    return {
        "sweep_id": result.sweep_id,
        "recorded": result.runs,
        "failures": failures(result),
        "exit_code": result.exit_code,
    }


# ------------------------------------------------------------------ listings


def latest(store: Store) -> str:
    """The id of the newest sweep, else of the newest single run."""
    from denominator.errors import StoreError

    sweeps = store.sweeps()
    if sweeps:
        return sweeps[0].tags["sweep_id"]
    cells = store.search("tags.cell_key != ''", limit=1)
    if not cells:
        raise StoreError(f"nothing was recorded yet in the experiment {store.experiment!r}")
    return cells[0].tags["sweep_id"]


def sweep_rows(store: Store) -> list[dict[str, Any]]:
    """One row per sweep, newest first."""
    from datetime import UTC, datetime

    return [
        {
            "sweep": run.tags["sweep_id"],
            "name": run.name,
            "started": datetime.fromtimestamp(run.start, UTC).strftime("%Y-%m-%d %H:%M"),
            "status": run.status.lower(),
            "cells": int(run.metrics.get("cells", 0)),
            "failed": int(run.metrics.get("cells_failed", 0)),
            "metric": run.tags.get("headline_metric"),
            "best": run.metrics.get("best_value"),
            "n": int(run.metrics["eligible_n"]) if "eligible_n" in run.metrics else None,
            "best_cell": run.tags.get("best_cell"),
        }
        for run in store.sweeps()
    ]


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("sweep", "started (UTC)", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("cells", "failed", "best", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    table.add_column("best cell", overflow="fold", min_width=20)
    for row in rows:
        best = "–" if row["best"] is None else f"{row['best']:.3f}"
        cells = [row["sweep"], row["started"], row["status"], str(row["cells"]), str(row["failed"]), best]
        n = "–" if row["n"] is None else str(row["n"])
        table.add_row(*cells, n, row["metric"] or "–", row["best_cell"] or "–")
    return table


def cells_json(sweep_id: str, cells: Sequence[StoredRun]) -> dict[str, Any]:
    """A sweep's cells for programs: full precision, every value with its n."""
    from denominator.tracking import unspell

    rows = []
    for run in cells:
        names = sorted({k.removesuffix("__n") for k in run.metrics if k.endswith("__n") and "__slice." not in k})
        metrics = {unspell(k): run.estimate(unspell(k)) for k in names if not k.startswith("partial.")}
        rows.append(
            {
                "run_id": run.run_id,
                "name": run.name,
                "status": run.status,
                "recorded": run.recorded,
                "incomplete": run.tags.get("incomplete") == "true",
                "headline": headline_of(run),
                "params": dict(run.params),
                "metrics": {
                    name: {"value": e.value, "n": e.n, "reason": e.reason, "ci_low": e.ci_low, "ci_high": e.ci_high}
                    for name, e in metrics.items()
                },
            }
        )
    return {"sweep_id": sweep_id, "cells": rows}


def write_report(result: Outcome) -> Path | str | None:
    """The report of a sweep as `reports/<sweep_id>/report.html`, also attached to the sweep's run.

    A text says why there is none; None: there was nothing to report on.
    """
    if result.away:
        return None
    from denominator.deciding import make_report
    from denominator.errors import DenominatorError
    from denominator.report import Failure

    file = result.out / "reports" / result.sweep_id / "report.html"
    if result.sweep_run is None and file.is_file():
        return file  # nothing changed since it was written
    bad = [Failure(f["name"], f["reason"], f["overrides"]) for f in failures(result)]
    several = [texts_of(data.documents) for data in reversed(result.data.values())]  # the last of one id counts
    texts: Mapping[str, str] = ChainMap(*several)  # type: ignore[arg-type]  # nobody writes to it
    try:
        return make_report(
            result.store,
            result.sweep_id,
            failures=bad,
            texts=texts,
            meta={"command": result.command, "record": mask(result.store.uri)},
        ).html
    except DenominatorError as error:
        return mask(str(error))
