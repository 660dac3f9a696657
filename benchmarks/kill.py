"""kill −9 at random moments of a sweep, then the same command again: nothing lost, nothing double, the same bytes.

    python benchmarks/kill.py                 # 20 kills, some minutes
    python benchmarks/kill.py --kills 4       # for a look
    python benchmarks/kill.py --workers 2     # the same with two joblib workers; the whole process group is killed

One undisturbed sweep gives the expected `per_question.jsonl` of each cell. Then, in an empty folder, the sweep is
started and killed with all its processes after a random time, again and again; when it gets through, the folder is
checked and the next round begins with an empty one, until there were as many kills as asked for. Checked each time:

- every cell has exactly one recorded run, and its outcomes have the bytes of the undisturbed sweep
- no run is left RUNNING; the store's integrity check is fine
- no temporary file: cache/tmp, cache/locks, pending, hydra/locks, the temporary folder of the system, and in shared
  memory nothing that bears the number of one of the processes that were started
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

GRID = ("dataset=demo", "eligibility=lenient", "chunker=fixed_128,sentences_128", "embedder=bm25,static",
        "reranker=none,mix,maxsim", "tracking.experiment=kill")  # fmt: skip


def start(folder: Path, workers: int) -> subprocess.Popen[bytes]:
    (folder / "temporary").mkdir(parents=True, exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DENOMINATOR_", "MLFLOW_"))}
    launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={workers}"] if workers > 1 else []
    return subprocess.Popen(
        [sys.executable, "-m", "denominator", "sweep", "-q", *GRID, f"out={folder / 'out'}", *launcher],
        cwd=folder,
        env=clean | {"TMPDIR": str(folder / "temporary"), "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("ab"),
        start_new_session=True,
    )


def cells_of(out: Path) -> tuple[dict[str, list[str]], Counter[str]]:
    """cell_key → hashes of the outcomes of its recorded runs; and how many cell runs have which status."""
    from denominator.tracking import Store, default_uri

    store = Store(default_uri(out), "kill", out)
    found: dict[str, list[str]] = {}
    states: Counter[str] = Counter()
    for run in store.search("tags.kind = 'cell'"):
        states[run.status] += 1
        if run.recorded:
            file = out / "artifacts" / run.run_id / "artifacts" / "per_question.jsonl"
            found.setdefault(run.tags["cell_key"], []).append(hashlib.sha256(file.read_bytes()).hexdigest())
    return found, states


def leftovers(folder: Path, pids: list[int]) -> list[str]:
    out = folder / "out"
    places = [out / "cache" / "tmp", out / "cache" / "locks", out / "pending", out / "hydra" / "locks"]
    left = [p for place in places if place.exists() for p in place.iterdir()]
    left += [p for p in folder.rglob("*") if p.suffix == ".new" or p.name.startswith(".write")]
    left += [p for p in (folder / "temporary").iterdir() if p.name != "joblib_memmapping_folder"]
    shared = [p for pid in pids for p in Path("/dev/shm").glob(f"*[-_]{pid}[-_]*")]
    return sorted([*(str(p.relative_to(folder)) for p in left), *map(str, shared)])


def check(folder: Path, expected: dict[str, list[str]], pids: list[int]) -> list[str]:
    """What is wrong, in words; empty when all is well."""
    found, states = cells_of(folder / "out")
    wrong = []
    lost = sorted(set(expected) - set(found))
    double = sorted(key for key, hashes in found.items() if len(hashes) > 1)
    other = sorted(key for key, hashes in found.items() if key in expected and hashes[0] != expected[key][0])
    for what, keys in (("lost", lost), ("double", double), ("with other bytes", other)):
        if keys:
            wrong.append(f"{len(keys)} cells {what}: {', '.join(k[:12] for k in keys)}")
    if states["RUNNING"]:
        wrong.append(f"{states['RUNNING']} runs are left RUNNING")
    with sqlite3.connect(folder / "out" / "mlflow.db") as connection:
        (said,) = connection.execute("pragma integrity_check").fetchone()
    if said != "ok":
        wrong.append(f"the store: {said}")
    left = leftovers(folder, pids)
    if left:
        wrong.append(f"{len(left)} files left: {', '.join(left[:8])}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folders, for a look")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    root = Path(tempfile.mkdtemp(prefix="denominator-kill-"))
    clock = time.perf_counter()
    calm = start(root / "calm", 1)
    if calm.wait() != 0:
        raise SystemExit(f"the undisturbed sweep failed: {(root / 'calm' / 'stderr').read_text()}")
    whole = time.perf_counter() - clock
    expected, _ = cells_of(root / "calm" / "out")
    print(f"undisturbed: {len(expected)} cells in {whole:.1f} s; load {os.getloadavg()[0]:.1f}", flush=True)
    kills, rounds, faults = 0, 0, []
    while kills < args.kills:
        folder, rounds, starts, hit = root / f"round-{rounds}", rounds + 1, 0, 0
        pids: list[int] = []
        while True:
            job, starts, begun = start(folder, args.workers), starts + 1, time.perf_counter()
            pids.append(job.pid)
            moment = rng.uniform(0.1, 0.9) * whole if kills < args.kills else None
            try:
                code = job.wait(timeout=moment)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
                kills, hit = kills + 1, hit + 1
                continue
            if starts == 1:  # the machine may be calmer than it was at first
                whole = min(whole, time.perf_counter() - begun)
            if code != 0:
                said = (folder / "stderr").read_text(encoding="utf-8")[-2000:]
                faults.append(f"round {rounds}: exit code {code}: {said}")
            break
        wrong = check(folder, expected, pids)
        faults += [f"round {rounds}: {text}" for text in wrong]
        said = "; ".join(wrong) or "all as in the undisturbed sweep"
        print(f"round {rounds}: {starts} starts, {hit} killed: {said}", flush=True)
    print(f"{kills} kills in {rounds} rounds, {time.perf_counter() - clock:.0f} s, load {os.getloadavg()[0]:.1f}")
    if not args.keep:
        shutil.rmtree(root, ignore_errors=True)
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
