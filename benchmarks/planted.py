"""Simulated sweeps whose truth is known: is the planted winner found, and do planted ties stay ties?

    python benchmarks/planted.py                             # prints the section, some 90 s of one core
    python benchmarks/planted.py --into docs/validity.md     # puts it into the page, between its two marks
    python benchmarks/planted.py --quick

A question has a difficulty that all configurations share and two pieces of evidence. On a share SAME of the questions
all configurations have the same luck (as real runs have: most questions come out the same), on the others their own. A
configuration that is better by `gain` finds each piece with a higher chance, raised by the same log odds for every
question, so that the expected mean rises by exactly `gain`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from denominator.uncertainty import best_set, holm, paired_differences, verdict

Array = npt.NDArray[np.float64]

LEVEL, SPREAD, SAME = 1.2, 2.0, 0.5
ALPHA, MARGIN = 0.05, 0.02
BEGIN, END = "<!-- planted: begin -->", "<!-- planted: end -->"
GRID = LEVEL + SPREAD * np.sqrt(2) * np.polynomial.hermite.hermgauss(60)[0]
WEIGHTS = np.polynomial.hermite.hermgauss(60)[1] / np.sqrt(np.pi)


def _odds(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@lru_cache
def shift(gain: float) -> float:
    """What to add to the log odds so that the expected value rises by `gain` (bisection over the difficulties)."""
    base = float(WEIGHTS @ _odds(GRID))
    low, high = -12.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(WEIGHTS @ _odds(GRID + middle)) - base < gain else (low, middle)
    return (low + high) / 2


def sweep(rng: np.random.Generator, n: int, gains: Sequence[float]) -> dict[str, Array]:
    """Values of n questions for one configuration a gain: c00, c01, …"""
    c = len(gains)
    difficulty = rng.normal(LEVEL, SPREAD, n)
    luck = rng.random((n, c, 2))
    same = rng.random(n) < SAME
    luck[same] = luck[same][:, :1]
    chance = _odds(difficulty[:, None] + np.array([shift(g) for g in gains]))
    values = (luck < chance[:, :, None]).mean(axis=2)
    return {f"c{j:02d}": values[:, j] for j in range(c)}


def _share(count: int, of: int) -> str:
    return f"{count / of:.3f}"


def winner(repeats: int, resamples: int, seed: int) -> list[list[str]]:
    """c05 is better than eleven others, which are tied."""
    table = []
    for gain in (0.02, 0.05, 0.10, 0.15):
        for n in (50, 100, 200, 500):
            rng = np.random.default_rng([seed, n, round(gain * 100)])
            kept = first = alone = better = wrong = 0
            sizes = []
            for r in range(repeats):
                scores = sweep(rng, n, [gain if j == 5 else 0.0 for j in range(12)])
                found = best_set(scores, alpha=ALPHA, seed=r, resamples=resamples)
                kept += "c05" in found.members
                first += found.best == "c05"
                alone += found.members == ("c05",)
                wrong += "c05" not in found.members
                sizes.append(len(found.members))
                others = [name for name in scores if name != "c00"]
                tests = paired_differences([(scores[o], scores["c00"]) for o in others], resamples=999, seed=r)
                p = holm(dict(zip(others, (t.p for t in tests), strict=True)))
                t = tests[others.index("c05")]
                better += verdict(p["c05"], t.value or 0.0, t.low, t.high, delta=MARGIN, alpha=ALPHA) == "better"
            row = [f"{gain:g}", str(n), _share(first, repeats), _share(kept, repeats), _share(wrong, repeats)]
            table.append([*row, _share(alone, repeats), f"{np.mean(sizes):.1f}", _share(better, repeats)])
    return table


def ties(repeats: int, resamples: int, seed: int) -> list[list[str]]:
    """The first `top` of twelve are tied for the best; the others are worse by `gap`."""
    table = []
    for top, gap in ((12, 0.0), (3, 0.05), (3, 0.15), (3, 0.40)):
        for n in (50, 200, 500):
            rng = np.random.default_rng([seed, n, top, round(gap * 100)])
            tied = {f"c{j:02d}" for j in range(top)}
            broken = 0
            sizes, lost = [], 0
            for r in range(repeats):
                scores = sweep(rng, n, [0.0 if j < top else -gap for j in range(12)])
                members = set(best_set(scores, alpha=ALPHA, seed=r, resamples=resamples).members)
                missing = len(tied - members)
                broken += missing > 0
                lost += missing
                sizes.append(len(members - tied))
            rest = f"{np.mean(sizes):.1f} of {12 - top}" if top < 12 else "–"
            table.append([str(top), f"{gap:g}", str(n), _share(broken, repeats), _share(lost, repeats * top), rest])
    return table


def hopeless(repeats: int, resamples: int, seed: int) -> list[list[str]]:
    """One winner among six, alone and together with six that find next to nothing."""
    table = []
    for gain in (0.10, 0.15):
        for n in (100, 300):
            row = [f"{gain:g}", str(n)]
            for poor in (0, 6):
                rng = np.random.default_rng([seed, n, round(gain * 100)])
                alone, sizes = 0, []
                for r in range(repeats):
                    scores = sweep(rng, n, [gain, *[0.0] * 5, *[-0.45] * poor])
                    members = best_set(scores, alpha=ALPHA, seed=r, resamples=resamples).members
                    alone += members == ("c00",)
                    sizes.append(len([m for m in members if m < "c06"]))
                row += [_share(alone, repeats), f"{np.mean(sizes):.1f}"]
            table.append(row)
    return table


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def section(repeats: int, resamples: int, seed: int) -> tuple[str, list[str]]:
    found, tied = winner(repeats, resamples, seed), ties(repeats, resamples, seed + 1)
    poor = hopeless(repeats, resamples, seed + 2)
    # Three standard errors above α: 28 cells are looked at.
    limit = ALPHA + 3 * (ALPHA * (1 - ALPHA) / repeats) ** 0.5
    failures = [f"gain {r[0]}, n = {r[1]}: winner excluded in {r[4]}" for r in found if float(r[4]) > limit]
    failures += [f"{r[0]} tied, gap {r[1]}, n = {r[2]}: broken in {r[3]}" for r in tied if float(r[3]) > limit]
    base = float(WEIGHTS @ _odds(GRID))
    luck = next(float(r[2]) for r in found if r[:2] == ["0.02", "100"])
    outcome = "Winners and ties are left out at most α of the time, within the noise of three standard errors."
    if failures:
        outcome = "**Left out too often:** " + "; ".join(failures)
    text = f"""{BEGIN}

## Planted winners and planted ties among twelve

```
python benchmarks/planted.py --into docs/validity.md
```

{repeats} simulated sweeps a row; 12 configurations, values 0, ½ and 1 (mean {base:.2f}), questions of very different
difficulty, half of them with the same outcome for equal configurations (randomised Tukey, B = {resamples},
α = {ALPHA:g}).

One configuration is truly better by the *gain*, eleven are tied. *First*: it has the best mean. *Kept*: it is in the
best set. *Excluded*: it is not, which is the error that α bounds. *Alone*: told apart from all eleven. *Better*: told
apart from one declared baseline by at least δ = {MARGIN:g}, p adjusted over the eleven candidates.

{markdown(["gain", "n", "first", "kept", "excluded", "alone", "mean size of the best set", "better"], found)}

With a gain of 0.02 and 100 questions the row with the best mean is the wrong one in {100 * (1 - luck):.0f} % of the
sweeps; the best set keeps the right one. Telling it apart from all others takes a large gain or many questions.

*Tied* configurations are equally good and the rest worse by the *gap*. *Broken*: at least one of the tied is left out
of the best set, at most α. *Lost*: share of tied ones left out. *Others kept*: how many of the worse are in it.

{markdown(["tied", "gap", "n", "broken", "lost", "others kept"], tied)}

The test shuffles all configurations together, and poor ones make its yardstick wide. Below: a winner among six, then
the same six with six more that are worse by 0.45. *Size* counts the six alone.

{markdown(["gain", "n", "alone", "size", "alone, with poor ones", "size, with poor ones"], poor)}

The winner is kept all the same, but fewer competitors are told apart. A comparison of two runs (`denominator compare`)
does not depend on what else is in the sweep.

{outcome}

{END}
"""
    return text, failures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, help="a page that gets the section between its two marks, or at its end")
    parser.add_argument("--seed", type=int, default=2025)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    text, failures = section(*((30, 99) if options.quick else (200, 199)), options.seed)
    if options.into is None:
        print(text)
    else:
        page = options.into.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2].lstrip("\n")
        options.into.write_text(before.rstrip("\n") + "\n\n" + text + (f"\n{after}" if after else ""), encoding="utf-8")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
