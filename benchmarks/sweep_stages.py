"""How long a grid's stages take: cold, warm in the same process, warm in a new process.

    python benchmarks/sweep_stages.py [--data FOLDER] [--cells 24] [--cache FOLDER] [--keep] [--json]

The grid is chunkers × first stages × rerankers as in the shipped experiments; tracking and Hydra are not in it. `stage
work` is the sum of the distinct stages' own times, `rest` what is left of the wall time (evaluation, facts, files).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from denominator.answerers import Threshold
from denominator.cache import Cache
from denominator.chunkers import Fixed, Recursive, Sentences
from denominator.embedders import BM25, Hybrid, Static
from denominator.pipeline import Cell, Latency, run_cell
from denominator.readers.native import Native
from denominator.records import outcomes_to_lines
from denominator.rerankers import MaxSim, Mix, NoRerank
from denominator.types import Plan

CHUNKERS = {
    "fixed_128_32": Fixed(128, 32),
    "fixed_256_64": Fixed(256, 64),
    "sentences_128": Sentences(128),
    "recursive_256": Recursive(256),
}
EMBEDDERS = {"bm25": BM25(), "static": Static(), "hybrid": Hybrid()}
RERANKERS = {"none": NoRerank(), "mix": Mix(), "maxsim": MaxSim()}


def cells(data: Native, count: int, latency: Latency, eligibility: str) -> list[Cell]:
    embedders = dict(list(EMBEDDERS.items())[: 2 if count == 24 else 3])
    plan = Plan(eligibility=eligibility)
    return [
        Cell(
            f"{c} · {e} · {r}",
            {"chunker": c, "embedder": e, "reranker": r},
            data,
            chunker,
            embedder,
            reranker,
            Threshold(),
            plan,
            latency,
        )
        for c, chunker in CHUNKERS.items()
        for e, embedder in embedders.items()
        for r, reranker in RERANKERS.items()
    ][:count]


def sweep(grid: list[Cell], cache: Cache) -> dict[str, object]:
    stages: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    seen: set[str] = set()
    digest, table, each = hashlib.sha256(), [], []
    cpu = 0.0
    for cell in grid:
        started, busy = time.perf_counter(), time.process_time()
        result = run_cell(cell, cache)
        each.append(time.perf_counter() - started)
        cpu += time.process_time() - busy
        for line in outcomes_to_lines(result.outcomes):  # not part of what is timed
            digest.update(line.encode())
        for t in result.timings:
            if t.key not in seen:
                seen.add(t.key)
                sums = stages[t.stage]
                sums[0] += t.seconds_now
                sums[1] += t.seconds_computed
                sums[2] += 1
        metrics = result.summary.metrics
        head = f"coverage@b{cell.plan.budget}"
        shown = {name: metrics[name].value for name in ("recall@1", "recall@5", "coverage@5", head) if name in metrics}
        table.append([cell.name, shown, result.facts.get("latency_ms_median")])
    wall = sum(each)
    now = sum(s[0] for s in stages.values())
    return {
        "wall": wall,
        "cpu": cpu,
        "stage_work": now,
        "rest": wall - now,
        "cell_median": sorted(each)[len(each) // 2],
        "stages": {name: [round(v, 3) for v in values] for name, values in sorted(stages.items())},
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "outcomes": digest.hexdigest(),
        "table": table,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "chunking-eval"
    parser.add_argument("--data", default=str(beside))
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--cache", default="")
    parser.add_argument("--lenient", action="store_true")
    parser.add_argument("--latency", type=int, default=20, help="questions measured one at a time (0: none)")
    parser.add_argument("--keep", action="store_true", help="use the cache folder as it is, once")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    data = Native(folder=args.data)
    grid = cells(data, args.cells, Latency(questions=args.latency), "lenient" if args.lenient else "strict")
    root = Path(args.cache or tempfile.mkdtemp(prefix="denominator-bench-"))
    if args.keep:
        print(json.dumps(sweep(grid, Cache(root))))
        return
    shutil.rmtree(root, ignore_errors=True)
    cache = Cache(root)
    runs = {"cold": sweep(grid, cache), "warm": sweep(grid, cache)}
    command = [
        sys.executable,
        __file__,
        "--keep",
        "--cache",
        str(root),
        "--data",
        args.data,
        "--cells",
        str(args.cells),
    ]
    command += ["--latency", str(args.latency), *(["--lenient"] if args.lenient else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    runs["new process"] = json.loads(done.stdout)
    size = sum(entry.bytes for entry in cache.entries())
    if not args.cache:
        shutil.rmtree(root, ignore_errors=True)
    if args.json:
        print(json.dumps(runs))
        return
    for name, values, latency in runs["cold"]["table"]:
        shown = "  ".join(f"{m} {v:.3f}" if v is not None else f"{m} -" for m, v in values.items())
        print(f"{name:38} {shown}" + (f"  {latency:.2f} ms" if latency else ""))
    for name, run in runs.items():
        print(
            f"{name}: {run['wall']:.2f} s (CPU {run['cpu']:.2f}), stage work {run['stage_work']:.2f}, "
            f"rest {run['rest']:.2f}, "
            f"median cell {run['cell_median'] * 1000:.0f} ms, peak {run['peak_mb']:.0f} MB, {run['outcomes'][:12]}"
        )
    for stage, (now, _, n) in runs["cold"]["stages"].items():
        print(f"  {stage:20} {n:3} × {now:.3f} s")
    print(f"cache: {len(cache.entries()) or '-'} entries, {size / 1e6:.1f} MB; {len(grid)} cells")


if __name__ == "__main__":
    main()
