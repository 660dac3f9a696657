"""How long the statistics of one decision take: 24 runs × 500 questions at B = 9,999, everything that a report needs.

python benchmarks/statistics_speed.py            # prints the time; exit code 1 above 3 s
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np

from denominator.selection import decide
from denominator.types import Evidence, Ledger, Outcome, Plan, RecordedRun
from denominator.uncertainty import bca_many, estimate_mean, tukey

LIMIT = 3.0


def sweep(runs: int, questions: int, metric: str = "recall@5") -> list[RecordedRun]:
    """Runs of a full grid 4 chunkers × 3 embedders × 2 rerankers, values in quarters, a fifth more without gold."""
    rng = np.random.default_rng(5)
    hard = rng.random(questions)
    recorded = []
    for i in range(runs):
        values = np.clip(np.round((hard + rng.normal(0.1 + i * 0.004, 0.25, questions)) * 4) / 4, 0, 1)
        outcomes = tuple(
            Outcome(
                f"q{j:05d}",
                "answerable",
                "answerable",
                "ok",
                gold=((Evidence("d"),),),
                n_hits=10,
                values={metric: float(v)},
                groups=1 + j % 4,
                tags={"lang": ("en", "de", "zh")[j % 3], "hard": bool(j % 2)},
            )
            for j, v in enumerate(values)
        )
        idle = tuple(
            Outcome(f"u{j:05d}", "unanswerable", "unanswerable", "ok", n_hits=10, empty_gold=True)
            for j in range(questions // 5)
        )
        params = {"chunker": f"c{i % 4}", "embedder": f"e{i // 4 % 3}", "reranker": f"r{i // 12}"}
        recorded.append(
            RecordedRun(
                run_id=f"{i:032x}",
                name=" · ".join(params.values()),
                cell_key=f"key{i}",
                sweep_id="s",
                params=params,
                tags={"headline_metric": metric},
                metrics={},
                plan=Plan(baseline="c0 · e0 · r0"),
                outcomes=outcomes + idle,
                facts={"latency_p50_ms": 1.0 + i, "index_bytes": 1e6, "context_tokens": 900.0 + i % 4},
                fingerprints={metric: {"dataset_hash": "x", "metric": metric, "k": 5}},
                ledger=Ledger(
                    questions + len(idle), {"answerable": questions}, questions, questions, 0, 0, incomplete=False
                ),
            )
        )
    return recorded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--questions", type=int, default=500)
    options = parser.parse_args()
    runs = sweep(options.runs, options.questions)
    estimate_mean([0.0, 1.0])  # loads scipy.special, which a process does once
    start = time.perf_counter()
    decision = decide(runs)
    decided = time.perf_counter() - start
    print(decision.sentence)
    print(f"{options.runs} runs × {options.questions} questions, B = {decision.settings.resamples}")
    print(f"  whole decision             {decided:6.2f} s   (limit {LIMIT:.1f} s)")
    vectors = {r.name: [o.values["recall@5"] for o in r.outcomes if o.values] for r in runs}
    start = time.perf_counter()
    tukey(vectors)
    print(f"  randomised Tukey           {time.perf_counter() - start:6.2f} s")
    columns = np.random.default_rng(0).random((12 * options.runs, options.questions))
    start = time.perf_counter()
    bca_many(columns)
    print(f"  BCa of {len(columns)} means, shared {time.perf_counter() - start:6.2f} s")
    start = time.perf_counter()
    for _ in range(1000):
        estimate_mean(columns[0])
    print(f"  1000 single estimates      {time.perf_counter() - start:6.2f} s")
    print(f"  peak memory                {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f} MB")
    return int(decided > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
