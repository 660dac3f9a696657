"""The rates behind `denominator sweep … --dry-run`, measured, and its estimates against the sweeps themselves.

    python benchmarks/rates.py                          # demo, chunking_eval and mtrag_un: some minutes
    python benchmarks/rates.py --experiments demo

For each experiment: the estimate with an empty cache, then the sweep itself, cold, as a process of its own. From the
cache that it leaves come the seconds of each part for each unit of its size (the units of `rehearsal.RATES`), pooled
over the experiments; what the sweep took beyond its stages, divided by its cells, is what a cell costs beside them.

Other work on the machine makes wall time longer than it would be. Recorded times are therefore multiplied by the
sweep's processor time ÷ its wall time where that is below 1; the factor and the load stand beside every figure. Run it
when the machine is calm.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from denominator import rehearsal
from denominator.cache import Cache

EXPERIMENTS = ("demo", "chunking_eval", "mtrag_un")
ROOT = Path(__file__).resolve().parents[1]


def estimated(experiment: str, out: Path) -> tuple[float, int, float]:
    """Seconds that the rehearsal says, its cells, and the characters of its documents."""
    from denominator import app

    found: list[rehearsal.Rehearsal] = []
    characters: list[int] = []
    inner = rehearsal.rehearse

    def watched(cells, data, *rest):  # type: ignore[no-untyped-def]
        characters.append(sum(len(d.text) for d in data[0].documents))
        found.append(inner(cells, data, *rest))
        return found[-1]

    rehearsal.rehearse = watched
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            app.start([f"+experiment={experiment}", f"out={out}"], "sweep", dry_run=True)
    finally:
        rehearsal.rehearse = inner
    return found[0].seconds, len(found[0].cells), characters[0]


def swept(experiment: str, out: Path) -> tuple[float, float]:
    """Wall and processor seconds of the cold sweep."""
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "denominator", "sweep", "-q", f"+experiment={experiment}", f"out={out}"],
        check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - clock
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def started(out: Path) -> float:
    """Processor seconds of a start that has nothing to do: everything is recorded."""
    return swept("demo", out)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", nargs="+", default=EXPERIMENTS)
    args = parser.parse_args()
    os.chdir(ROOT)
    seconds: dict[str, float] = defaultdict(float)
    units: dict[str, float] = defaultdict(float)
    beside: list[float] = []
    rows = []
    with tempfile.TemporaryDirectory(prefix="denominator-rates-") as made:
        for experiment in args.experiments:
            out = Path(made) / experiment
            said, cells, characters = estimated(experiment, out)
            wall, busy = swept(experiment, out)
            calm = min(1.0, busy / wall)
            work = 0.0
            for entry in Cache(out / "cache").entries():
                took = entry.seconds_computed
                work += took
                if entry.stage not in ("chunks", "first_stage", "rerank"):
                    continue
                name = re.split(r",| over ", entry.what)[0]
                size = characters / 1000 if entry.stage == "chunks" else rehearsal._told(entry.stage, entry.what)
                if size:
                    seconds[name] += (took + entry.seconds_below) * calm
                    units[name] += size
            beside.append((wall - work) * calm / cells)
            rows.append((experiment, cells, said, wall, busy, os.getloadavg()[0]))
            print(f"{experiment}: {cells} cells, estimate {said:.0f} s, wall {wall:.0f} s, CPU {busy:.0f} s, "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
        begin = started(Path(made) / args.experiments[0]) if args.experiments[0] == "demo" else None
    print("\n| part | seconds a unit | built in | factor |\n| --- | --- | --- | --- |")
    for name in sorted(seconds):
        rate, known = seconds[name] / units[name], rehearsal.RATES.get(name)
        print(f"| {name} | {rate:.6f} | {known or '–'} | {f'{known / rate:.2f}' if known and rate else '–'} |")
    if begin is not None:
        print(f"| a start | {begin:.1f} | {rehearsal.START_SECONDS} | |")
        beside = [b - begin / row[1] for b, row in zip(beside, rows, strict=True)]
    shown = ", ".join(f"{b:.2f}" for b in beside)
    print(f"| a cell beside its stages | {shown} | {rehearsal.CELL_SECONDS} | |")
    print("\n| sweep | cells | estimate | wall (load) | CPU | estimate ÷ CPU |\n| --- | --- | --- | --- | --- | --- |")
    for experiment, cells, said, wall, busy, load in rows:
        print(
            f"| {experiment} | {cells} | {said:.0f} s | {wall:.0f} s ({load:.1f}) | {busy:.0f} s | {said / busy:.2f} |"
        )


if __name__ == "__main__":
    main()
