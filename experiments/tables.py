"""The tables of clapnq/README.md and mtrag_un/README.md, from recorded sweeps.

    python experiments/tables.py clapnq [--out DIR] [--uri URI] [--write]

Prints them, or with --write puts each between its marks in the study's README. Everything is made from the recorded
per-question outcomes by the functions that the runs called. Beside them there are two differences of rates over the two
classes, which share no question: UAR − FRR, and how much two deciders differ in it; their intervals add the squared
distances to the ends of both intervals (the rule of Newcombe's method 10).
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from denominator.abstention import pick_threshold, report, scored
from denominator.evaluation import Summary, summarize
from denominator.selection import Decision, LevelEffect, Ranking, decide
from denominator.tracking import load_sweep
from denominator.types import Estimate, Outcome, RecordedRun
from denominator.uncertainty import Difference, paired_difference

HERE = Path(__file__).resolve().parent
STUDIES = {"clapnq": ("denominator-clapnq",), "mtrag_un": ("denominator-mtrag-un", "mtrag-un-confidence")}
OTHER = {"denominator-clapnq": "recall@5", "denominator-mtrag-un": "ndcg@10"}  # the second metric of the ranking
PREVALENCE = 0.1  # a share of unanswerable questions that is more like what a running system sees
TABLES = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
Interval = tuple[float, float, float]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    marks = [" --- " if i < left else " ---: " for i in range(len(head))]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(marks) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def shown(e: Estimate, *, n: bool = False) -> str:
    if e.value is None:
        return f"– ({e.reason})"
    span = "" if e.ci_low is None else f" [{e.ci_low:.3f}, {e.ci_high:.3f}]"
    return f"{e.value:.3f}{span}" + (f", n = {e.n}" if n else "")


def signed(value: Interval) -> str:
    return f"{value[0]:+.3f} [{value[1]:+.3f}, {value[2]:+.3f}]"


def minus(a: Interval, b: Interval) -> Interval:
    """The difference of two estimates over different questions."""
    d = a[0] - b[0]
    return d, d - math.hypot(a[0] - a[1], b[2] - b[0]), d + math.hypot(a[2] - a[0], b[0] - b[1])


def of(e: Estimate) -> Interval:
    return known(e.value, e.ci_low, e.ci_high)


def span(d: Difference | LevelEffect) -> Interval:
    return known(d.value, d.low, d.high)


def known(value: float | None, low: float | None, high: float | None) -> Interval:
    assert value is not None
    assert low is not None
    assert high is not None
    return value, low, high


# ------------------------------------------------------------------ retrieval


def ledger(run: RecordedRun) -> str:
    known = run.ledger
    scored_in = {"answerable": "retrieval and abstention", "unanswerable": "abstention", "partial": "a line of its own"}
    rows = [[state, str(n), scored_in.get(state, "nothing")] for state, n in known.states.items() if n]
    rows.append(["**all**", f"**{known.N}**", f"of {known.eligible} eligible: {known.ok} ok, {known.failed} failed"])
    return table(["state", "questions", "scored in"], rows)


def ranked(ranking: Ranking, summaries: dict[str, Summary], metric: str, other: str) -> str:
    rows = []
    for row in ranking.rows:
        line = [str(row.rank), row.name + (" (baseline)" if row.is_baseline else ""), shown(row.estimate)]
        line += [shown(summaries[row.name].metrics[other]), "✓" if row.in_best_set else ""]
        if row.versus is None:
            rows.append([*line, "", "", ""])
            continue
        rows.append([*line, signed(span(row.versus.difference)), f"{row.versus.p_adjusted:.3f}", row.versus.verdict])
    n = ranking.rows[0].estimate.n
    head = ["", "chunker · embedder · reranker", f"{metric}, n = {n}", f"{other}, n = {n}", "best set"]
    return table([*head, "minus the baseline", "p (Holm)", "verdict"], rows, left=2)


def factors(ranking: Ranking) -> str:
    rows = []
    for factor in ranking.factors:
        for i, e in enumerate(factor.levels):
            line = [factor.name if i == 0 else "", e.level, signed(span(e)), str(e.matched)]
            rows.append([*line, f"{e.lowest:+.3f}", f"{e.highest:+.3f}"])
    return table(["part", "choice", "against the others", "matched sets", "least", "largest"], rows, left=2)


def conventions(ranking: Ranking, best: str) -> str:
    right = ranking.row(best).estimate
    rows = [["**corrected**", str(right.n), f"**{right.value:.3f}**", f"{best}", ""]]
    for c in ranking.naive:
        n = str(c.n_most) if c.n_least == c.n_most else f"{c.n_least}–{c.n_most}"
        changed = f"{c.winner} ({c.values[c.winner]:.3f})" if c.winner_changes else "the same"
        order = "yes" if c.order_changes else "no"
        rows.append([c.convention.replace("_", " "), n, f"{c.values[best]:.3f}", changed, order])
    return table(["convention", "n", f"it reports for {best}", "its winner", "another order"], rows)


# ------------------------------------------------------------------ abstention


@dataclass(frozen=True)
class Decider:
    """Cells whose decisions are the same question by question, and what these are worth."""

    names: tuple[str, ...]
    run: RecordedRun
    summary: Summary

    @property
    def youden(self) -> Interval:
        """UAR − FRR: 0 for whoever refuses without looking, 1 for no mistake at all."""
        return minus(of(self.summary.abstention.recall), of(self.summary.abstention.false_refusal_rate))

    def decisions(self, state: str) -> list[bool]:
        return [bool(o.abstained) for o in sorted(self.run.outcomes, key=lambda o: o.id) if o.state == state]

    def beyond(self, other: Decider) -> Interval:
        """By how much its UAR − FRR exceeds another's, over the same questions."""

        def paired(state: str) -> Interval:
            return span(paired_difference(self.decisions(state), other.decisions(state), binary=True))

        return minus(paired("unanswerable"), paired("answerable"))

    @property
    def seen(self) -> float:
        """UAR − FRR of a threshold that is fitted and judged on the same questions: what a naive report would say."""
        rows = scored(self.run.outcomes)
        sides = [[r for r in rows if r.unanswerable is c] for c in (True, False)]
        values = [[r.confidence for r in side if r.hits and r.confidence is not None] for side in sides]
        return pick_threshold(values[1], values[0], sizes=(len(sides[1]), len(sides[0]))).youden


def deciders(runs: Sequence[RecordedRun], summaries: dict[str, Summary]) -> list[Decider]:
    """One for each set of decisions, best first."""
    found: dict[tuple[tuple[str, bool | None], ...], list[RecordedRun]] = {}
    for run in sorted(runs, key=lambda r: r.name):
        key = tuple(sorted((o.id, o.abstained) for o in run.outcomes if o.state in {"answerable", "unanswerable"}))
        found.setdefault(key, []).append(run)
    made = [Decider(tuple(r.name for r in same), same[0], summaries[same[0].name]) for same in found.values()]
    return sorted(made, key=lambda d: (-round(d.youden[0], 12), d.names))


def abstention(made: Sequence[Decider], baseline: str | None) -> str:
    base = next((d for d in made if baseline in d.names), None)
    one = made[0].summary.abstention
    rows = []
    for d in made:
        a = d.summary.abstention
        few = report(d.run.outcomes, d.run.plan, prevalence=PREVALENCE).precision_at_prevalence
        assert a.auroc is not None
        assert few is not None
        rows.append(
            [
                "<br>".join(d.names),
                shown(a.recall),
                shown(a.false_refusal_rate),
                signed(d.youden),
                f"{d.seen:+.3f}",
                "–" if few.value is None else f"{few.value:.3f}",
                f"{a.auroc.value:.3f}",
                "" if base is None or d is base else signed(d.beyond(base)),
            ]
        )
    head = [
        "cells with these decisions",
        f"refused of the unanswerable (UAR), n = {one.tp + one.fn}",
        f"refused of the answerable (FRR), n = {one.tn + one.fp}",
        "UAR − FRR",
        "fitted and judged on the same",
        f"precision where {PREVALENCE:.0%} are unanswerable",
        f"AUROC, n = {one.n}",
    ]
    return table([*head, "beyond the baseline's UAR − FRR"], rows)


def joint(names: Sequence[str], summaries: dict[str, Summary]) -> str:
    rows = []
    for name in names:
        found = summaries[name].joint
        if found is None:
            rows.append([name, f"– ({summaries[name].joint_reason})", *[""] * 7])
            continue
        c = found.counts
        rows.append(
            [
                name,
                *(str(c[k]) for k in ("answered_with_evidence", "false_refusal", "answered_without_evidence")),
                *(str(c[k]) for k in ("refused_evidence_missed", "hallucinated_answer", "correct_refusal")),
                shown(found.unsupported_answer_rate, n=True),
            ]
        )
    head = ["cell", "answered, evidence there", "refused, evidence there", "answered, evidence missing"]
    head += ["refused, evidence missing", "unanswerable, answered", "unanswerable, refused"]
    return table([*head, "answers without evidence"], rows)


def by_slice(made: Sequence[Decider], tag: str) -> str:
    """UAR and FRR of the first decider by a tag of the questions."""
    groups: dict[str, list[Outcome]] = {}
    for o in made[0].run.outcomes:
        if o.state in {"answerable", "unanswerable"}:
            groups.setdefault(str(o.tags.get(tag, "–")), []).append(o)
    rows = []
    for value, outcomes in sorted(groups.items()):
        a = summarize(outcomes, made[0].run.plan).abstention
        rows.append([value, shown(a.recall, n=True), shown(a.false_refusal_rate, n=True)])
    return table([tag, "UAR", "FRR"], rows)


# ------------------------------------------------------------------ a study


def tables(study: str, out: str, uri: str | None) -> dict[str, str]:
    first, *more = STUDIES[study]
    runs = load_sweep(out=out, uri=uri, experiment=first)
    decision: Decision = decide(runs)
    ranking, metric, other = decision.rankings[0], decision.settings.metric, OTHER[first]
    summaries = {r.name: summarize(r.outcomes, r.plan, label_source=r.ledger.label_source) for r in runs}
    made = deciders(runs, summaries)
    best, chosen = ranking.best, ranking.recommendation.name
    named = [name for name in (best, chosen, made[0].names[0], ranking.baseline) if name is not None]
    found = {
        "ledger": ledger(runs[0]),
        "sentence": f"> {decision.sentence}\n",
        "ranking": ranked(ranking, summaries, metric, other),
        "factors": factors(ranking),
        "conventions": conventions(ranking, best),
        "abstention": abstention(made, ranking.baseline),
        "joint": joint(list(dict.fromkeys(named)), summaries),
    }
    if more:
        extra = load_sweep(out=out, uri=uri, experiment=more[0])
        kinds = deciders(extra, {r.name: summarize(r.outcomes, r.plan) for r in extra})
        found["confidence"] = abstention(kinds, ranking.baseline)
        found["domains"] = by_slice(kinds, "domain")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="the tables of a study's README.md")
    parser.add_argument("study", choices=sorted(STUDIES))
    parser.add_argument("--out", default="denominator-out")
    parser.add_argument("--uri")
    parser.add_argument("--write", action="store_true", help="into the README")
    args = parser.parse_args()
    found = tables(args.study, args.out, args.uri)
    if not args.write:
        sys.stdout.write("\n".join(f"{name}\n\n{text}" for name, text in found.items()))
        return
    page = HERE / args.study / "README.md"
    text = page.read_text(encoding="utf-8")
    marked = {name for _, name, _ in TABLES.findall(text)}
    if unknown := sorted(marked - set(found)):
        sys.exit(f"{page.name} has marks for tables that are not made: {', '.join(unknown)}")
    page.write_text(TABLES.sub(lambda m: m[1] + found[m[2]] + m[3], text), encoding="utf-8")
    sys.stdout.write(f"{page.name}: {', '.join(name for name in found if name in marked)}\n")


if __name__ == "__main__":
    main()
