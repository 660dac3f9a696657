"""What a sweep costs beside its stages: cold, again, as separate runs, and on large corpora.

    python benchmarks/engine.py                       # 24 cells of chunking_eval: cold, again, an empty Hydra multirun
    python benchmarks/engine.py --experiment mtrag_un
    python benchmarks/engine.py --separate 3          # also 3 of the cells as cold runs of their own, scaled to all
    python benchmarks/engine.py --large 10000 100000  # chunks of 256 dimensions: stage times and peak memory
    python benchmarks/engine.py --million             # the same with 10,000, 100,000 and 1,000,000

Every measurement is a process of its own. `stage work` is what all cells spent in stages, `unique` what the distinct
stages took; evaluation, composition (Hydra's own included) and tracking are apart. Run from the project's folder, whose
experiments name their data.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

LARGE = """
import json, os, resource, sys, threading, time
import numpy as np
from denominator.cache import Cache
from denominator.chunkers import WholeDocument
from denominator.embedders import Static
from denominator.pipeline import Cell, Latency, run_cell
from denominator.readers.native import Native
from denominator.rerankers import NoRerank

n, out = int(sys.argv[1]), sys.argv[2]
# Words that the static model knows, drawn at random: every text is distinct.
words = np.array([w for w in open("docs/measurement.md", encoding="utf-8").read().split() if w.isalpha()])
words = np.unique(words)
rng = np.random.default_rng(0)
asked = set(np.random.default_rng(1).integers(0, n, 200).tolist())
os.makedirs(out)
with open(out + "/corpus.jsonl", "w") as corpus, open(out + "/questions.jsonl", "w") as questions:
    for start in range(0, n, 10_000):
        for i, row in enumerate(words[rng.integers(0, len(words), (min(10_000, n - start), 24))].tolist(), start):
            text = " ".join(row) + f" {i}"
            print(json.dumps({"id": f"d{i:07d}", "text": text}), file=corpus)
            if i in asked:
                print(json.dumps({"id": f"q{i:07d}", "question": text[:60], "state": "answerable",
                                  "gold": [f"d{i:07d}"]}), file=questions)
def anonymous():
    "Memory of the process's own in MB, mapped files not counted; None where the system does not say."
    try:
        status = open("/proc/self/status").read()
    except OSError:
        return None
    return int(status.split("RssAnon:")[1].split()[0]) / 1024
most, done = [anonymous()], threading.Event()
def watch():
    while not done.wait(0.05):
        most[0] = max(most[0], anonymous())
if most[0] is not None:
    threading.Thread(target=watch, daemon=True).start()
clock, busy = time.perf_counter(), time.process_time()
data = Native(folder=out).load()
reading, reading_cpu = time.perf_counter() - clock, time.process_time() - busy
before, held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, anonymous()
class Part:
    def load(self): return data
clock, busy = time.perf_counter(), time.process_time()
result = run_cell(Cell("large", {}, Part(), WholeDocument(), Static(256), NoRerank(), latency=Latency(10, 1, 1)),
                  Cache(out), dataset=data)
wall, cpu = time.perf_counter() - clock, time.process_time() - busy
done.set()
print(json.dumps({
    "n": n, "reading": reading, "reading_cpu": reading_cpu, "wall": wall, "cpu": cpu, "before_mb": before,
    "held_mb": held, "own_mb": most[0],
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "stages": {t.stage: t.seconds_now for t in result.timings},
    "recall@5": result.summary.metrics["recall@5"].value,
    "latency_ms": result.facts.get("latency_ms_median"),
}))
"""


def timed(owner: Any, name: str, into: dict[str, float], label: str) -> None:
    inner: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        clock = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            into[label] += time.perf_counter() - clock

    setattr(owner, name, call)


def child(arguments: list[str]) -> None:
    """One sweep in this process, with a watch on its parts; prints JSON."""
    clock = time.perf_counter()
    from denominator import app, cli, summary
    from denominator.tracking import Store

    spent: dict[str, float] = defaultdict(float)
    results: list[Any] = []
    timed(app, "compose_jobs", spent, "composition and checks")
    timed(Store, "start_cell", spent, "tracking")
    timed(Store, "log_cell", spent, "tracking")
    timed(Store, "log_sweep", spent, "tracking")
    timed(Store, "recorded", spent, "tracking")
    timed(summary, "write_report", spent, "report")
    inner = app.run_cell

    def run_cell(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        found = inner(*args, **kwargs)
        spent["in cells"] += time.perf_counter() - begun
        results.append(found)
        return found

    app.run_cell = run_cell  # type: ignore[assignment]
    opened = Store.open.__func__  # type: ignore[attr-defined]

    def watched(cls: Any, *args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return opened(cls, *args)
        finally:
            spent["mlflow import and store"] += time.perf_counter() - begun

    Store.open = classmethod(watched)  # type: ignore[assignment,method-assign]
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(["sweep", "-q", *arguments])
    unique: dict[str, float] = {}
    work = 0.0
    for found in results:
        for t in found.timings:
            work += t.seconds_now
            unique.setdefault(t.key, t.seconds_computed)
    print(
        json.dumps(
            {
                "code": code,
                "wall": time.perf_counter() - clock,
                "cpu": time.process_time(),
                "cells": len(results),
                "stage_work": work,
                "unique": sum(unique.values()),
                "distinct": len(unique),
                "evaluation": spent["in cells"] - work,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                **spent,
            }
        )
    )


def empty(arguments: list[str]) -> None:
    """Hydra's multirun of the same cells with a job that does nothing."""
    import hydra

    from denominator.composing import conf_dir

    os.environ.setdefault("DENOMINATOR_LAUNCH", "empty")
    sys.argv = ["empty", "--multirun", *arguments]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(lambda _: None)()


def process(*argv: str) -> tuple[float, str]:
    clock = time.perf_counter()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DENOMINATOR_", "MLFLOW_"))}
    done = subprocess.run([sys.executable, __file__, *argv], capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return time.perf_counter() - clock, done.stdout


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def shown(name: str, wall: float, found: dict[str, Any]) -> None:
    print(f"{name}: {wall:.1f} s ({found['cpu']:.1f} CPU), {found['cells']} cells computed, {load()}")
    if found["unique"]:
        ratio = found["stage_work"] / found["unique"]
        print(f"  stage work {found['stage_work']:.2f} s = {ratio:.2f} × its {found['distinct']} unique stages")
    for key in ("evaluation", "composition and checks", "mlflow import and store", "tracking", "report"):
        each = f", {found[key] / found['cells'] * 1000:.0f} ms a cell" if found["cells"] and key == "tracking" else ""
        print(f"  {key} {found.get(key, 0.0):.2f} s{each}")
    print(f"  peak {found['peak_mb']:.0f} MB")


def grid(experiment: str, separate: int, out: Path) -> None:
    name, where = f"+experiment={experiment}", f"out={out / 'sweep'}"
    wall, said = process("--child", name, where)
    cold = json.loads(said)
    shown("cold", wall, cold)
    again, said = process("--child", name, where)
    shown("again", again, json.loads(said))
    nothing, _ = process("--empty", name, f"out={out / 'empty'}")
    print(f"an empty Hydra multirun of the same cells: {nothing:.1f} s; the second run takes {again - nothing:+.1f} s")
    warm, said = process("--child", name, where, "force=true")
    shown("warm (every cell recorded anew from cached stages)", warm, json.loads(said))
    if not separate:
        return
    from denominator import app

    args = app.parse([name])
    with app.application(args, args.overrides) as application:
        jobs = app.compose_jobs(application, "sweep")[0]
    picked = jobs[:: max(1, len(jobs) // separate)][:separate]
    each = [process("--child", *job.overrides, f"out={out / f'alone-{i}'}")[0] for i, job in enumerate(picked)]
    alone = sum(each) / len(each) * len(jobs)
    print(f"{len(picked)} cells as cold runs of their own: {', '.join(f'{t:.1f}' for t in each)} s, "
          f"so {len(jobs)} take about {alone:.0f} s = {alone / wall:.1f} × the sweep")  # fmt: skip


def large(sizes: list[int], out: Path) -> None:
    """The whole cell over n chunks of 256 dimensions; each size in a process of its own.

    `peak`: everything resident, mapped files counted; `own`: without these; `before`: the peak when the data are read.
    """
    print(f"{'chunks':>9} {'wall':>8} {'CPU':>8} {'peak':>8} {'own':>8} {'before':>8}   stages ({load()})")
    for n in sizes:
        env = {k: v for k, v in os.environ.items() if not k.startswith("DENOMINATOR_")}
        folder = out / str(n)
        done = subprocess.run([sys.executable, "-c", LARGE, str(n), str(folder)], capture_output=True, text=True,
                              check=False, env=env)  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        found = json.loads(done.stdout)
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found["stages"].items() if seconds >= 0.01)
        row = f"{n:>9,} {found['wall']:>6.1f} s {found['cpu']:>6.1f} s {found['peak_mb']:>5.0f} MB"
        own, held = (found[k] or float("nan") for k in ("own_mb", "held_mb"))
        print(f"{row} {own:>5.0f} MB {found['before_mb']:>5.0f} MB   {stages}")
        reading = f"reading {found['reading']:.1f} s ({found['reading_cpu']:.1f} CPU), then {held:.0f} MB of its own"
        search = f"recall@5 {found['recall@5']:.3f}, {found['latency_ms']:.1f} ms a question"
        print(f"          {reading}; {search}; {load()}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    if sys.argv[1:2] == ["--empty"]:
        empty(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="chunking_eval")
    parser.add_argument("--separate", type=int, default=0, metavar="N")
    parser.add_argument("--large", type=int, nargs="+", metavar="N")
    parser.add_argument("--million", action="store_true")
    args = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="denominator-engine-"))
    try:
        if args.large or args.million:
            large(args.large or [10_000, 100_000, 1_000_000], out)
        else:
            grid(args.experiment, args.separate, out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    main()
