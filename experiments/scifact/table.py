"""The table of README.md, from the recorded run.

    python experiments/scifact/table.py [--out DIR] [--uri URI]

Every number is made from the run's per-question outcomes. The 188 and the 112 claims share no question, so the interval
of the difference between their means adds the squared distances to the ends of their own intervals (the rule of
Newcombe's method 10); leaving the 112 out moves the mean by 112/300 of that difference.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from denominator.tracking import load_sweep
from denominator.types import Estimate, Outcome
from denominator.uncertainty import estimate_mean

METRICS = ("ndcg@10", "recall@5", "recall@10", "recall@100")
PUBLISHED = {"ndcg@10": 0.6789, "recall@100": 0.9253}  # Anserini, BM25 flat


def mean(outcomes: Sequence[Outcome], metric: str) -> Estimate:
    return estimate_mean([o.values[metric] for o in outcomes])


def moved(outcomes: Sequence[Outcome], metric: str) -> tuple[float, float, float]:
    """How far the mean moves when claims without evidence in their gold are left out, and its interval."""
    with_, without = parts(outcomes)
    a, b = mean(with_, metric), mean(without, metric)
    share = len(without) / len(outcomes)
    d = a.value - b.value
    low = d - math.hypot(a.value - a.ci_low, b.ci_high - b.value)
    high = d + math.hypot(a.ci_high - a.value, b.value - b.ci_low)
    return share * d, share * low, share * high


def parts(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Claims whose gold holds evidence, and those whose gold was only cited."""
    lacking = [o.tags["no_evidence_in_gold"] is True for o in outcomes]
    pairs = list(zip(outcomes, lacking, strict=True))
    return [o for o, bad in pairs if not bad], [o for o, bad in pairs if bad]


def shown(e: Estimate) -> str:
    return f"{e.value:.4f} [{e.ci_low:.3f}, {e.ci_high:.3f}]"


def table(outcomes: Sequence[Outcome]) -> str:
    with_, without = parts(outcomes)
    lines = [
        f"| | published, n = {len(outcomes)} | here, n = {len(outcomes)} | gold holds evidence, n = {len(with_)} "
        f"| it does not, n = {len(without)} | leaving those out moves the mean by |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for metric in METRICS:
        published = f"{PUBLISHED[metric]:.4f}" if metric in PUBLISHED else "–"
        three = " | ".join(shown(mean(rows, metric)) for rows in (outcomes, with_, without))
        by, low, high = moved(outcomes, metric)
        lines.append(f"| {metric} | {published} | {three} | {by:+.4f} [{low:+.3f}, {high:+.3f}] |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="the table of experiments/scifact/README.md")
    parser.add_argument("--out", default="denominator-out")
    parser.add_argument("--uri")
    args = parser.parse_args()
    (run,) = load_sweep(out=args.out, uri=args.uri, experiment="scifact")
    sys.stdout.write(table([o for o in run.outcomes if o.state == "answerable"]) + "\n")


if __name__ == "__main__":
    main()
