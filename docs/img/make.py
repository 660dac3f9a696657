"""Makes the pictures of docs/mlflow.md from a recorded demo sweep.

    denominator sweep && python docs/img/make.py [--out denominator-out]

Needs Chromium (`--chromium`, default: the one in the PATH), Node.js, and the package `playwright-core` where Node finds
it: `npm install --prefix ~/pw playwright-core` and NODE_PATH=~/pw/node_modules. Every picture is reduced to 64
colours and stays below 120 kB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from denominator.tracking import find_store, ui_command
from denominator.tracking.views import run_path, view_path

HERE = Path(__file__).resolve().parent
LARGEST = 120_000


def shots(base: str, out: str) -> list[dict[str, Any]]:
    """What is photographed: file, address, size, and what is clicked before."""
    store = find_store(out)
    sweep = store.sweeps()[0]
    sweep_id, experiment = sweep.tags["sweep_id"], store.experiment_id
    cells = {run.name: run for run in store.cells(sweep_id)}
    best = cells[sweep.tags["best_cell"]]
    two = quote("attributes.run_name LIKE 'sentences_128 · bm25 · m%'")
    pair = f"#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=ARTIFACT&searchFilter={two}"

    def shot(name: str, path: str, *steps: tuple[str, Any], size: tuple[int, int] = (1400, 760)) -> dict[str, Any]:
        made = {"file": str(HERE / f"{name}.png"), "url": f"{base}/{path}", "steps": list(steps)}
        return made | {"width": size[0], "height": size[1]}

    away = (("wait", 800), ("click", "Run Name"), ("wait", 3000))  # a click elsewhere closes the menu
    view, charts = view_path(experiment, sweep_id), view_path(experiment, sweep_id, "CHART")
    return [
        shot("runs", view, ("until", best.name)),
        shot("charts", charts, ("until", "Quality"), ("wait", 4000)),
        shot(
            "parallel",
            charts,
            ("until", "Quality"),
            ("wait", 3000),
            ("scroll", "Effect of the settings"),
            ("wait", 4000),
        ),
        shot("overview", run_path(experiment, best.run_id), size=(1400, 900)),
        shot("sweep", run_path(experiment, sweep.run_id), ("click", "Show more"), size=(1400, 760)),
        shot("questions", run_path(experiment, best.run_id, "per_question_table.json")),
        shot("figures", run_path(experiment, best.run_id, "figures/slices.png")),
        shot(
            "side_by_side", pair, ("until", "q001"), ("click", "Compare"), ("wait", 800), ("click", "retrieved"), *away
        ),
        shot("dataset", view, ("until", best.name), ("click", f"{_dataset(store, best.run_id)}")),
        shot("report", run_path(experiment, sweep.run_id, "report/report.html"), ("wait", 3000)),
    ]


def _dataset(store: Any, run_id: str) -> str:
    data = store.client.get_run(run_id).inputs.dataset_inputs[0].dataset
    return f"{data.name} ({data.digest})"


def serve(uri: str) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    env = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    process = subprocess.Popen(
        ui_command(uri, port=port),
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    base = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5):
                return process, base
        except OSError:
            time.sleep(0.5)
    raise SystemExit("MLflow's UI did not start")


def small(path: Path) -> int:
    """Fewer colours until the picture is small enough; its size in bytes."""
    from PIL import Image

    image = Image.open(path).convert("RGB")
    for colours in (64, 32, 16):
        image.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size < LARGEST:
            break
    return path.stat().st_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="denominator-out")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--settle", type=int, default=6000, help="milliseconds that a page gets to load")
    parser.add_argument("--only", nargs="*", help="names of pictures (default: all)")
    args = parser.parse_args()
    node = shutil.which("node")
    if not args.chromium or not node:
        raise SystemExit("needs Chromium and Node.js")
    process, base = serve(find_store(args.out).uri)
    try:
        plan = {"chromium": args.chromium, "settle": args.settle, "shots": shots(base, args.out)}
        if args.only:
            plan["shots"] = [s for s in plan["shots"] if Path(s["file"]).stem in args.only]
        done = subprocess.run([node, str(HERE / "shots.js")], input=json.dumps(plan).encode(), check=False)
    finally:
        os.killpg(process.pid, 15)
        process.wait()
    for shot in plan["shots"]:
        path = Path(shot["file"])
        if path.is_file():
            print(f"{path.name:20} {small(path) / 1000:6.0f} kB")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
