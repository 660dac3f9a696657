"""The same cells by denominator, context-grid, rag-ci and AutoRAG, alternately in one run.

    python benchmarks/peers.py                            # 4, 12, 24, 48 cells; context-grid needs more than an hour
    python benchmarks/peers.py --cells 4 12 --rounds 3
    python benchmarks/peers.py --tools denominator rag-ci --venvs FOLDER      # environments are kept and used again
    python benchmarks/peers.py --cells 4 --tools denominator autorag          # AutoRAG (1.8 GB) only where it is named

One command: it makes an environment for each peer (pinned versions, the usual package index), writes the documents of
chunking-eval as plain text and the questions in each tool's own format, and runs every tool's own command in a process
of its own, with empty caches, one thread for libraries, the start of the process counted for all. All tools get the
same chunks and the same vectors from the same functions (`benchmarks/peers/`), the same pool for rerankers and the same
questions. Rows called `own` are cells of the same kinds with each tool's own parts. What differs is named at the end.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BESIDE = ROOT.parent / "shared" / "data" / "chunking-eval"
CHUNKERS = ["fixed_128", "fixed_256", "sentences_128", "recursive_256"]
FIRST = ["bm25", "static", "hybrid", "hybrid_min_max"]
RERANKERS = ["none", "mix", "maxsim"]
GRIDS = {4: (2, 2, 1), 12: (2, 2, 3), 24: (4, 2, 3), 48: (4, 4, 3)}
"""Cells: how many chunkers, first stages and rerankers."""
POOL = 50
PARTS = ["scipy", "tokenizers", "semchunk", "bm25s", "PyStemmer", "wordllama"]
INDEXES = {"bm25": "bm25", "static": "dense", "hybrid": "hybrid:rrf", "hybrid_min_max": "hybrid:weighted"}
OWN = {
    "fixed_128": "fixed:150,overlap=38",
    "fixed_256": "fixed:300,overlap=75",
    "sentences_128": "sentence:5,stride=5",
    "recursive_256": "recursive:300,overlap=0",
    "mix": "lexical",
    "maxsim": "mmr:0.3",
}
"""context-grid's own parts: windows of as much text (it counts punctuation), rescoring by terms, and MMR. Its embedder
`hash` has 256 dimensions and needs no model."""
KINDS = {"mix": "bm25_rescore", "maxsim": "mmr"}
"""Rerankers of the same kinds in denominator: MMR with weight .7 for a diversity of .3."""
PEERS = {"context-grid": "context-grid==0.9.5", "rag-ci": "rag-ci==0.7.1", "autorag": "AutoRAG==0.3.27"}
EVALUATES = {
    "denominator": """every question in every cell: coverage and full recall of the spans in 2,000 tokens, recall,
    precision, nDCG, MRR, MAP of documents at four K, by slices, abstention, latency, an interval for each; all pairs of
    cells tested and corrected, the best set; for each cell a run in MLflow with its per-question file and figures; a
    report in HTML""",
    "denominator own": """the same with its own rerankers of the kinds that context-grid has: bm25_rescore, mmr""",
    "context-grid": """every question in every cell: six metrics at five K, precision and recall by characters, latency,
    classes of failure; a question leaves the mean of a cell in which no chunk holds half of its span; no interval in
    the table; results.json and a report in Markdown""",
    "context-grid own": """the same with its own chunkers, its embedder `hash` and its rerankers none, lexical, mmr""",
    "rag-ci sweep": """successive halving, the default: most cells see few questions, the last ones all; one metric,
    recall@5 at half of a passage; the best against the other finalists by a paired bootstrap with Holm; means in one
    JSON file, a page""",
    "rag-ci sweep, all": """the same with --min-cases: every question in every cell; no intervals of cells, no
    per-question file""",
    "rag-ci run": """a command for each cell, which is how rag-ci gives eight metrics with bootstrap intervals and a
    per-question file; indexes are not shared between commands, nothing compares the cells""",
    "autorag": """only the cells of BM25 and of vectors without a reranker, as its rerankers need torch or a service:
    recall, precision, nDCG, MRR of chunk ids at 10 (questions without a chunk that holds half of a span are left out),
    a table of results a cell, no intervals; the best of each step goes on""",
}


@dataclass(slots=True)
class Measured:
    """One run of one tool: `full` cells saw all questions; `value` is the mean of the headline over them."""

    wall: float
    cpu: float
    cells: int
    full: int
    headline: str
    value: float


@dataclass(frozen=True, slots=True)
class Grid:
    chunker: list[str]
    embedder: list[str]
    reranker: list[str]

    @classmethod
    def of(cls, cells: int) -> Grid:
        a, b, c = GRIDS[cells]
        return cls(CHUNKERS[:a], FIRST[:b], RERANKERS[:c])


@dataclass(slots=True)
class Bench:
    """Where everything lies."""

    folder: Path
    data: Path
    questions: int
    threads: int
    python: dict[str, Path] = field(default_factory=dict)

    def run(self, command: list[str], where: Path, **more: str) -> tuple[float, float]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DENOMINATOR_", "MLFLOW_", "PYTHON"))}
        libraries = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "RAYON")
        limits = {f"{name}_NUM_THREADS": str(self.threads) for name in libraries}
        env = kept | limits | {"DENOMINATOR_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"} | more
        before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False, env=env)
        wall, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{' '.join(command[:3])} failed\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def fresh(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))


# ------------------------------------------------------------------ environments and inputs


def interpreters() -> list[str]:
    """One interpreter for each Python version of this machine, newest last."""
    found = subprocess.run(["bash", str(ROOT / ".ci" / "find-pythons")], capture_output=True, text=True, check=False)
    return found.stdout.split() or [sys.executable]


def environment(tool: str, folder: Path) -> Path:
    """The interpreter of the tool's own environment, made if it is not there. Raises SystemExit when it cannot be."""
    python = folder / tool / "bin" / "python"
    if (folder / tool / "ready").exists():
        return python
    clock = time.perf_counter()
    # rag-ci needs Python 3.12; of AutoRAG's dependencies some have no newer wheels than for 3.11.
    base = interpreters()[0 if tool == "autorag" else -1]
    subprocess.run([base, "-m", "venv", "--clear", str(folder / tool)], check=True)
    what = [PEERS[tool], *PARTS]
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    more = {}
    if tool == "autorag":  # pip goes back to releases that cannot be built any more; nltk refuses files that are links
        subprocess.run([str(python), "-m", "pip", "install", "-q", "uv"], check=True, capture_output=True)
        install = [str(python.parent / "uv"), "pip", "install", "--python", str(python), "matplotlib>=3.8"]
        more = {"UV_LINK_MODE": "copy"}
    env = os.environ | more
    done = subprocess.run([*install, *what], capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"{PEERS[tool]} cannot be installed with {base}:\n{done.stderr[-2000:]}")
    (folder / tool / "ready").touch()
    print(f"{PEERS[tool]} installed in {time.perf_counter() - clock:.0f} s", flush=True)
    return python


def rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def written(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def inputs(source: Path, folder: Path) -> int:
    """Documents as text files and JSON Lines, questions in every tool's format. Returns the number of questions."""
    documents, questions = rows(source / "corpus.jsonl.gz"), rows(source / "questions.jsonl.gz")
    (folder / "documents").mkdir(parents=True)
    for row in documents:
        (folder / "documents" / f"{row['id']}.txt").write_text(row["text"], encoding="utf-8", newline="")
    written(folder / "documents.jsonl", documents)
    grid, golden = [], []
    for row in questions:
        spans = [{"doc_id": f"{g['document_id']}.txt", "start": g["start"], "end": g["end"]} for g in row["gold"]]
        grid.append({"id": row["id"], "question": row["question"], "gold": spans})
        passages = [
            {"doc_id": g["document_id"], "char_start": g["start"], "char_end": g["end"], "text": g["text"]}
            for g in row["gold"]
        ]
        golden.append({"id": row["id"], "question": row["question"], "required_passages": passages})
    written(folder / "contextgrid.jsonl", grid)
    written(folder / "ragci.jsonl", golden)
    shutil.copy(source / "corpus.jsonl.gz", folder)
    shutil.copy(source / "questions.jsonl.gz", folder)
    return len(questions)


# ------------------------------------------------------------------ the tools


def denominator(bench: Bench, grid: Grid) -> Measured:
    where = bench.fresh()
    command = [sys.executable, "-m", "denominator.cli", "sweep", "-q", "dataset=chunking_eval", f"pool={POOL}"]
    command += [f"dataset.folder={bench.data}", f"chunker={','.join(grid.chunker)}"]
    command += [f"embedder={','.join(grid.embedder)}", f"reranker={','.join(grid.reranker)}", "out=out"]
    wall, cpu = bench.run(command, where, PYTHONPATH=str(ROOT / "src"))
    from denominator.tracking import Store, default_uri

    store = Store(default_uri(where / "out"), "denominator", where / "out")
    cells = store.search("tags.kind = 'cell'")
    values = [c.metrics["coverage_at_b2000"] for c in cells]
    return Measured(wall, cpu, len(cells), len(cells), "coverage@b2000", statistics.fmean(values))


def denominator_own(bench: Bench, grid: Grid) -> Measured:
    return denominator(bench, Grid(grid.chunker, grid.embedder, [KINDS.get(name, name) for name in grid.reranker]))


def context_grid(bench: Bench, grid: Grid) -> Measured:
    axes: dict[str, Any] = {
        "chunker": [f"shared:{name}" for name in grid.chunker],
        "embedder": ["static"],
        "reranker": [None if name == "none" else f"shared:{name}" for name in grid.reranker],
    }
    return context_grid_run(bench, grid, axes)


def context_grid_own(bench: Bench, grid: Grid) -> Measured:
    axes: dict[str, Any] = {
        "chunker": [OWN[name] for name in grid.chunker],
        "embedder": ["hash"],
        "reranker": [None if name == "none" else OWN[name] for name in grid.reranker],
    }
    return context_grid_run(bench, grid, axes)


def context_grid_run(bench: Bench, grid: Grid, axes: dict[str, Any]) -> Measured:
    where = bench.fresh()
    config = {
        "corpus": str(bench.data / "documents"),
        "evalset": str(bench.data / "contextgrid.jsonl"),
        "plugins": [str(HERE / "peers" / "contextgrid_plugin.py")],
        "grid": axes | {"parser": ["text"], "index": [INDEXES[e] for e in grid.embedder], "candidates": [POOL]},
        "run": {"mode": "factorial", "k": 10, "headline": "recall@5", "cache": "memory"},
        "report": {"out": str(where / "results"), "formats": ["markdown", "json"]},
    }
    (where / "grid.json").write_text(json.dumps(config), encoding="utf-8")
    command = [str(bench.python["context-grid"].parent / "contextgrid"), "run", "grid.json", "--quiet"]
    wall, cpu = bench.run(command, where, PYTHONPATH=f"{ROOT / 'src'}:{HERE / 'peers'}")
    found = json.loads((where / "results" / "results.json").read_text(encoding="utf-8"))
    values = [run["metrics"]["recall@5"] for run in found["runs"]]
    return Measured(wall, cpu, len(values), len(values), "recall@5", statistics.fmean(values))


def ragci_environment(bench: Bench, grid: Grid) -> dict[str, str]:
    chosen = {"chunker": grid.chunker, "embedder": grid.embedder, "reranker": grid.reranker}
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{HERE / 'peers'}", "PEERS_DOCUMENTS": str(bench.data / "documents.jsonl")}
    return paths | {"PEERS_GRID": json.dumps(chosen)}


def ragci_command(bench: Bench, what: str) -> list[str]:
    command = [str(bench.python["rag-ci"].parent / "rag-ci"), what, "--golden", str(bench.data / "ragci.jsonl")]
    return [*command, "--adapter", str(HERE / "peers" / "ragci_adapter.py")]


def ragci_sweep(bench: Bench, grid: Grid, *more: str) -> Measured:
    where = bench.fresh()
    command = [*ragci_command(bench, "sweep"), "--out", "sweep.json", "--report", "sweep.html", *more]
    wall, cpu = bench.run(command, where, **ragci_environment(bench, grid))
    found = json.loads((where / "sweep.json").read_text(encoding="utf-8"))
    full = [e["score"] for e in found["evaluations"] if e["n_cases"] == bench.questions]
    return Measured(wall, cpu, found["n_configs"], len(full), "recall@5", statistics.fmean(full))


def ragci_sweep_all(bench: Bench, grid: Grid) -> Measured:
    return ragci_sweep(bench, grid, "--min-cases", str(bench.questions))


def ragci_runs(bench: Bench, grid: Grid) -> Measured:
    where = bench.fresh()
    metrics = [f"recall@{k}" for k in (1, 3, 5, 10)] + ["precision@5", "ndcg@10", "mrr@10", "all_passages_recall@5"]
    command = [*ragci_command(bench, "run"), *(word for metric in metrics for word in ("--metric", metric))]
    taken: list[tuple[float, float]] = []
    values = []
    for chunker in grid.chunker:
        for first in grid.embedder:
            for reranker in grid.reranker:
                cell = json.dumps({"chunker": chunker, "first": first, "reranker": reranker})
                env = ragci_environment(bench, grid) | {"PEERS_CELL": cell}
                taken.append(bench.run([*command, "--out", f"{len(taken)}.json"], where, **env))
                record = json.loads((where / f"{len(taken) - 1}.json").read_text(encoding="utf-8"))
                values.append(record["metrics"]["recall@5"]["mean"])
    wall, cpu = (sum(t[i] for t in taken) for i in (0, 1))
    return Measured(wall, cpu, len(taken), len(taken), "recall@5", statistics.fmean(values))


def auto_rag(bench: Bench, grid: Grid) -> Measured:
    where = bench.fresh()
    command = [str(bench.python["autorag"]), str(HERE / "peers" / "autorag_run.py"), "projects", *grid.chunker]
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{HERE / 'peers'}", "PEERS_DOCUMENTS": str(bench.data / "documents.jsonl")}
    wall, cpu = bench.run(command, where, PEERS_QUESTIONS=str(bench.data / "ragci.jsonl"), **env)
    tables = (where / "projects").glob("*/project/0/retrieval/*/summary.csv")
    values = [
        float(row["retrieval_recall"])
        for path in sorted(tables)
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    ]
    return Measured(wall, cpu, len(values), len(values), "recall@10", statistics.fmean(values))


TOOLS: dict[str, Callable[[Bench, Grid], Measured]] = {
    "denominator": denominator,
    "denominator own": denominator_own,
    "context-grid": context_grid,
    "context-grid own": context_grid_own,
    "rag-ci sweep": ragci_sweep,
    "rag-ci sweep, all": ragci_sweep_all,
    "rag-ci run": ragci_runs,
    "autorag": auto_rag,
}


def table(taken: dict[int, dict[str, list[Measured]]]) -> None:
    print("cells tool                 wall s    CPU s  full cells  s a full cell  beside ours mean headline")
    for cells, tools in taken.items():
        middle = {name: sorted(runs, key=lambda run: run.wall)[len(runs) // 2] for name, runs in tools.items()}
        for name, run in middle.items():
            each = run.wall / run.full
            ours = middle.get("denominator own" if name.endswith(" own") else "denominator")
            beside = f"{each / (ours.wall / ours.full):.1f} ×" if ours and ours is not run else ""
            line = f"{cells:>5} {name:18} {run.wall:>8.1f} {run.cpu:>8.1f} {run.full:>11} {each:>14.2f} {beside:>12}"
            print(f"{line}  {run.headline} {run.value:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=BESIDE, help="the folder of chunking-eval")
    parser.add_argument("--cells", type=int, nargs="+", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--tools", nargs="+", default=[*TOOLS][:-1], choices=["rag-ci", *TOOLS])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of libraries, for all tools")
    parser.add_argument("--venvs", type=Path, help="folder for the peers' environments; without it they are temporary")
    args = parser.parse_args()
    names = [n for n in TOOLS if n in args.tools or (n.startswith("rag-ci") and "rag-ci" in args.tools)]
    folder = Path(tempfile.mkdtemp(prefix="denominator-peers-"))
    try:
        bench = Bench(folder, folder / "data", inputs(args.data, folder / "data"), args.threads)
        for tool in dict.fromkeys(name.split()[0] for name in names if not name.startswith("denominator")):
            bench.python[tool] = environment(tool, args.venvs or folder / "venvs")
        for name in names:  # libraries and files are in the page cache for everyone
            TOOLS[name](bench, Grid(["fixed_256"], ["bm25"], ["none", "mix"]))
        load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        print(f"{bench.questions} questions, pool {POOL}, {args.threads} thread(s), {load}; start counted")
        taken: dict[int, dict[str, list[Measured]]] = {cells: {name: [] for name in names} for cells in args.cells}
        for number in range(args.rounds):
            for cells in args.cells:
                for name in names if number % 2 == 0 else names[::-1]:
                    run = TOOLS[name](bench, Grid.of(cells))
                    assert run.cells == cells or name == "autorag", (name, run)
                    taken[cells][name].append(run)
                    print(f"  {cells} cells, {name}: {run.wall:.1f} s", flush=True)
        table(taken)
        for name in names:
            print(f"{name}: {' '.join(EVALUATES[name].split())}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
