"""What recording one cell costs: 500 questions with all files, tables and two figures, to an embedded store.

    python benchmarks/tracking.py [--questions 500] [--cells 5]

Prints milliseconds of each step (median over the cells, the first one apart) and how many calls reach the store.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from denominator.evaluation import evaluate, summarize
from denominator.pipeline import CellResult, DatasetFacts
from denominator.tracking import Store, cell_facts, default_uri, write_cell_files
from denominator.types import Evidence, Hit, Plan, Question, Result, Run, StageTime


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
        made.append(
            Question(
                f"q{q:04d}",
                f"What is question {q} about?",
                "answerable" if answerable else "unanswerable",
                gold,
                tags=tags,
            )
        )
        found = rng.choice(ids, 100, replace=False)
        results[f"q{q:04d}"] = Result(
            tuple(Hit(str(d), str(d), 100.0 - r + float(rng.random())) for r, d in enumerate(found)), depth=100
        )
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--cells", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        clock = time.perf_counter()
        store = Store.open(default_uri(out), "benchmark", out)
        print(f"opening an empty store (mlflow's import and schema included) {time.perf_counter() - clock:6.2f} s")
        calls: Counter[str] = Counter()
        inner = store.client

        class Counting:
            def __getattr__(self, name: str) -> Any:
                calls[name] += 1
                return getattr(inner, name)

        store._client = Counting()
        steps: dict[str, list[float]] = {"files": [], "facts": [], "start + log (all of it)": []}
        for i in range(args.cells + 1):
            result, texts = result_of(args.questions, i)
            marks = [time.perf_counter()]
            write_cell_files(Path(folder) / f"files{i}", result, config="a: 1\n", texts=texts)
            marks.append(time.perf_counter())
            facts = cell_facts(result, "s")
            marks.append(time.perf_counter())
            run_id = store.start_cell(result.name, result.cell_key, "s")
            store.log_cell(result, "s", run_id=run_id, config="a: 1\n", texts=texts)
            marks.append(time.perf_counter())
            for name, a, b in zip(steps, marks, marks[1:], strict=False):
                steps[name].append((b - a) * 1000)
        size = f"{len(facts.metrics)} metrics, {len(facts.params)} params, {len(facts.tags)} tags"
        print(f"one cell of {args.questions} questions: {size}")
        for name, times in steps.items():
            print(f"  {name:26s} median {statistics.median(times[1:]):6.0f} ms, first {times[0]:6.0f} ms")
        print("  calls per cell:", {name: n / (args.cells + 1) for name, n in sorted(calls.items())})


if __name__ == "__main__":
    main()
