"""Writes results/tables.md from the recorded sweeps of this study; mlflow's figures are computed by mlflow as well.

Call: python experiments/naive_vs_corrected/study.py [denominator-out]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from denominator.audit import audit_outcomes
from denominator.evaluation import slice_values, summarize
from denominator.selection import compare, decide
from denominator.tracking.reading import load_sweep
from denominator.types import Estimate, Outcome, RecordedRun
from denominator.uncertainty import estimate_rate

OUT = sys.argv[1] if len(sys.argv) > 1 else "denominator-out"
METRIC = "recall@5"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def span(e: Estimate) -> str:
    return f"{e.value:.3f} [{e.ci_low:.3f}, {e.ci_high:.3f}]"


def name(run: RecordedRun) -> str:
    at = run.params.get("embedder.at") or "None"
    return f"{run.params['embedder.first']}, " + ("no cut-off" if at in ("None", "null", "") else f"≥ {at}")


def documents(o: Outcome) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(h.doc for h in o.hits)), sorted({e.doc for group in o.gold for e in group})


def by_mlflow(outcomes: Sequence[Outcome]) -> float | None:
    """What mlflow's own recall_at_k(5) says of the same hits; None where it is not installed."""
    try:
        import pandas as pd
        from mlflow.metrics import recall_at_k
    except ImportError:
        return None
    pairs = [documents(o) for o in outcomes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = recall_at_k(5).eval_fn(pd.Series([p[0] for p in pairs]), pd.Series([p[1] for p in pairs]))
    return float(found.aggregate_results["mean"])


def winner_at(u: float, runs: Sequence[RecordedRun]) -> str:
    """Which run the rewarding convention would choose if a share u of the questions had an empty gold list."""

    def score(run: RecordedRun) -> float:
        found = [o.values[METRIC] or 0.0 for o in run.outcomes if not o.empty_gold]
        refused = [not o.n_hits for o in run.outcomes if o.empty_gold]
        return (1 - u) * sum(found) / len(found) + u * sum(refused) / len(refused)

    return max(runs, key=lambda run: (round(score(run), 12), run.name)).name


def cutoff(experiment: str) -> list[str]:
    runs = load_sweep(out=OUT, experiment=experiment)
    decision = decide(runs, METRIC)
    ranking = decision.rankings[0]
    reward = next(c for c in ranking.naive if c.convention == "empty_is_one_if_nothing_retrieved")
    others = [c for c in ranking.naive if c is not reward]
    of = {run.name: run for run in runs}
    # Equal means: the one without a cut-off first, it is the simpler of the two.
    order = sorted(ranking.rows, key=lambda r: (r.rank, of[r.name].params.get("embedder.at") is not None, r.name))
    naive_order = sorted(reward.values, key=lambda n: (-reward.values[n], n))
    rows = []
    for row in order:
        run = of[row.name]
        unanswerable = [o for o in run.outcomes if o.state == "unanswerable"]
        answerable = [o for o in run.outcomes if o.state == "answerable"]
        refused = estimate_rate(sum(not o.n_hits for o in unanswerable), len(unanswerable))
        wrongly = estimate_rate(sum(not o.n_hits for o in answerable), len(answerable))
        theirs = by_mlflow(run.outcomes)
        if theirs is not None:
            assert abs(theirs - reward.values[row.name]) < 1e-9, (row.name, theirs, reward.values[row.name])
        rows.append(
            [
                name(run),
                str(row.rank),
                span(row.estimate),
                f"{reward.values[row.name]:.3f}",
                str(1 + naive_order.index(row.name)),
                span(refused),
                span(wrongly),
            ]
        )
    right, wrong = of[order[0].name], of[reward.winner]
    said = compare(wrong, right, METRIC)
    counts = ranking.rows[0].estimate.n, reward.n_most
    lines = [f"## {experiment}: n = {counts[0]} corrected, {counts[1]} rewarded", ""]
    lines += table(
        [
            "configuration",
            "rank",
            "recall@5 (corrected)",
            "rewarded",
            "rank",
            "nothing returned: unanswerable",
            "nothing returned: answerable",
        ],
        rows,
    )
    d = said.difference
    mixed = "; ".join(f"u = {u:g} → {name(of[winner_at(u, runs)])}" for u in (0.05, 0.1, 0.2, 0.3, 0.5))
    lines += [
        f"- Winner, corrected: **{name(right)}**, {span(said.baseline_estimate)}. "
        f"Winner, rewarded: **{name(wrong)}**, {reward.values[wrong.name]:.3f} "
        f"(against {reward.values[right.name]:.3f}); its recall@5 is {span(said.candidate_estimate)}.",
        f"- The rewarded winner minus the corrected one: **{d.value:+.3f}** [{d.low:+.3f}, {d.high:+.3f}], "
        f"p = {d.p:.1g}, n = {d.n}; {len(said.lost)} questions lost, {len(said.gained)} gained: {said.verdict}.",
        f"- The rewarded score is (1 − u)·found + u·refused, so the share u of empty lists decides: {mixed}.",
        "- Other conventions that change the winner: "
        + (", ".join(c.convention for c in others if c.winner_changes) or "none")
        + f" (of {len(others)}: {', '.join(c.convention for c in others)}).",
        "",
    ]
    return lines


def chunk_size() -> list[str]:
    runs = load_sweep(out=OUT, experiment="chunk-size")
    row_of = {row.name: row for row in decide(runs, "coverage@b1000").rankings[0].rows}
    rows = []
    at_five = {run.name: summarize(run.outcomes, run.plan).metrics["coverage@5"] for run in runs}
    fives = sorted(runs, key=lambda r: -(at_five[r.name].value or 0.0))
    for run in sorted(runs, key=lambda r: row_of[r.name].rank):
        row = row_of[run.name]
        rows.append(
            [
                run.name.split(" · ")[0],
                str(row.rank),
                span(row.estimate),
                "✓" if row.in_best_set else "",
                str(1 + fives.index(run)),
                span(at_five[run.name]),
                f"{5 * run.facts['chunk_tokens_mean']:,.0f}",
            ]
        )
    best = next(r for r in runs if row_of[r.name].rank == 1)
    said = compare(fives[0], best, "coverage@b1000")
    d = said.difference
    return [
        f"## chunk-size: n = {d.n}",
        "",
        *table(
            ["chunker", "rank", "coverage@b1000", "best set", "rank", "coverage@5", "mean tokens of five chunks"], rows
        ),
        f"- Five chunks choose **{fives[0].name.split(' · ')[0]}**, 1,000 tokens choose "
        f"**{best.name.split(' · ')[0]}**. The former minus the latter at 1,000 tokens: **{d.value:+.3f}** "
        f"[{d.low:+.3f}, {d.high:+.3f}], p = {d.p:.1g}: {said.verdict}.",
        "",
    ]


def domains() -> list[str]:
    rows, changes = [], 0
    runs = load_sweep(out=OUT, experiment="domains")
    values = sorted({v for o in runs[0].outcomes for v in slice_values(o, "domain")})
    parts = {v: [o for o in runs[0].outcomes if v in slice_values(o, "domain")] for v in values}
    for run in runs:
        found = {v: audit_outcomes([o for o in run.outcomes if v in slice_values(o, "domain")], METRIC) for v in values}
        right = {v: a.r for v, a in found.items() if a.r is not None}
        naive = {v: a.naive_one for v, a in found.items() if a.naive_one is not None}
        ends = [(max(x, key=x.__getitem__), min(x, key=x.__getitem__)) for x in (right, naive)]
        changes += ends[0] != ends[1]
        rows.append(
            [
                f"{run.params['embedder']}, {run.params['reranker']}",
                *(f"{right[v]:.3f} / {naive[v]:.3f}" for v in values),
                " / ".join(e[0] for e in ends),
                " / ".join(e[1] for e in ends),
            ]
        )
    sizes = [audit_outcomes(parts[v], METRIC) for v in values]
    head = [f"{v} (n = {a.n}, {a.empty} of {a.seen} empty)" for v, a in zip(values, sizes, strict=True)]
    return [
        "## domains: corrected / an empty list counts 1",
        "",
        *table(["retriever", *head, "best domain", "worst domain"], rows),
        "- Within the whole set, conventions that change the winner of the six retrievers: "
        + (", ".join(c.convention for c in decide(runs, METRIC).rankings[0].naive if c.winner_changes) or "none")
        + ".",
        f"- The best or the worst domain changes for {changes} of {len(runs)} retrievers.",
        "",
    ]


def main() -> None:
    lines = ["# Tables", "", "Made by `study.py` from the recorded sweeps; 95 % intervals in brackets.", ""]
    lines += [*cutoff("cutoff-clapnq"), *cutoff("cutoff-mtrag-un"), *domains(), *chunk_size()]
    path = Path(__file__).parent / "results" / "tables.md"
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    sys.stdout.write(f"{path.name} written\n")


if __name__ == "__main__":
    main()
