"""What recording one cell costs: 500 questions with all files, tables and figures.

    python benchmarks/tracking.py [--questions 500] [--cells 5]            an embedded store (sqlite)
    python benchmarks/tracking.py --server                    an MLflow server on PostgreSQL, both started here

Prints milliseconds of each step (median over the cells, the first one apart; in parentheses this process's own CPU
time, which a busy machine changes less) and how many calls reach the store.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from denominator.evaluation import evaluate, summarize
from denominator.pipeline import CellResult, DatasetFacts
from denominator.tracking import Store, cell_facts, default_uri, write_cell_files
from denominator.tracking.files import write_figures
from denominator.types import Evidence, Hit, Plan, Question, Result, Run, StageTime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the servers are those of the tests


def result_of(questions: int, seed: int) -> tuple[CellResult, dict[str, str]]:
    """A cell over seeded random rankings: 100 documents found for each question, four in five answerable."""
    rng = np.random.default_rng(seed)
    texts = {f"d{i:05d}": f"Document {i}. " + "words of its text " * 20 for i in range(2000)}
    ids = np.array(list(texts))
    made, results = [], {}
    for q in range(questions):
        answerable = q % 5 != 0
        gold = tuple((Evidence(str(d)),) for d in rng.choice(ids, 2, replace=False)) if answerable else ()
        tags = {"kind": f"kind {q % 6}", "lang": ("en", "de")[q % 2]}
        state = "answerable" if answerable else "unanswerable"
        made.append(Question(f"q{q:04d}", f"What is question {q} about?", state, gold, tags=tags))
        found = [str(d) for d in rng.choice(ids, 100, replace=False)]
        for group in gold:  # found early in about two of three questions
            if rng.random() < 0.65:
                found[int(rng.integers(6))] = group[0].doc
        hits = {d: Hit(d, d, 100.0 - r + float(rng.random()) + 5 * answerable) for r, d in enumerate(found)}
        results[f"q{q:04d}"] = Result(tuple(hits.values()), depth=100)
    plan = Plan()
    outcomes = evaluate(made, Run.from_results(results), plan)
    summary = summarize(outcomes, plan)
    return (
        CellResult(
            f"{seed:064d}",
            f"cell {seed}",
            {f"part.setting_{i}": i for i in range(20)},
            plan,
            DatasetFacts("synthetic", "d" * 64, "c" * 64, len(texts), questions),
            outcomes,
            summary,
            (StageTime("chunk", 1.0, 0.0, True), StageTime("rank", 1.0, 1.0, False)),
            {"n_chunks": 2000.0, "index_bytes": 1e6},
            {name: {"metric": name, "dataset_hash": "d" * 64} for name in summary.metrics},
        ),
        texts,
    )


@contextlib.contextmanager
def place(folder: Path, server: bool) -> Iterator[str]:
    """The address of a fresh store."""
    if not server:
        yield default_uri(folder / "out")
        return
    from tests import postgres
    from tests.mlflow_server import serving

    with postgres.running() as database:
        address = database.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
        with serving(folder, address, "--workers", "2") as tracking:
            yield tracking.uri


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--cells", type=int, default=5)
    parser.add_argument("--server", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, place(Path(made), args.server) as uri:
        folder = Path(made)
        clock = time.perf_counter()
        store = Store.open(uri, "benchmark", folder / "out")
        print(f"opening an empty store (mlflow's import and schema included) {time.perf_counter() - clock:6.2f} s")
        calls: Counter[str] = Counter()
        inner = store.client

        class Counting:
            def __getattr__(self, name: str) -> Any:
                calls[name] += 1
                return getattr(inner, name)

        store._client = Counting()
        steps: dict[str, list[tuple[float, float]]] = {}
        for i in range(args.cells + 1):
            result, texts = result_of(args.questions, i)
            with timed(steps, "files without figures"):
                write_cell_files(folder / f"files{i}", result, config="a: 1\n", texts=texts, figures=False)
            with timed(steps, "five figures"):
                write_figures(folder / f"files{i}" / "figures", result)
            with timed(steps, "facts"):
                facts = cell_facts(result, "s")
            with timed(steps, "start + log, all of it"):
                run_id = store.start_cell(result.name, result.cell_key, "s")
                store.log_cell(result, "s", run_id=run_id, config="a: 1\n", texts=texts)
        size = f"{len(facts.metrics)} metrics, {len(facts.params)} params, {len(facts.tags)} tags"
        print(f"one cell of {args.questions} questions: {size}")
        for name, times in steps.items():
            wall, own = (statistics.median(t[i] for t in times[1:]) for i in (0, 1))
            least = min(t[0] for t in times[1:])
            print(f"  {name:24s} median {wall:5.0f} ms ({own:4.0f}), least {least:5.0f}, first {times[0][0]:5.0f}")
        print("  calls per cell:", {name: n / (args.cells + 1) for name, n in sorted(calls.items())})


@contextlib.contextmanager
def timed(steps: dict[str, list[tuple[float, float]]], name: str) -> Iterator[None]:
    wall, own = time.perf_counter(), time.process_time()
    yield
    steps.setdefault(name, []).append(((time.perf_counter() - wall) * 1000, (time.process_time() - own) * 1000))


if __name__ == "__main__":
    main()
