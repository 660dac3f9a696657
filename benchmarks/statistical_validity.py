"""Do the intervals hold what they promise? A simulation of the package's own functions, written as Markdown.

    python benchmarks/statistical_validity.py --out docs/validity.md     # about 6 minutes of one core
    python benchmarks/statistical_validity.py --quick                    # half a minute, to the terminal

A population is a list of per-question values whose mean is known because the list is all there is. Samples of n
questions are drawn from it with replacement; an interval is right when it holds the population's mean. Populations are
mixtures made up here and, where `--data` has them, values of BM25 retrieval runs on public question sets.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from denominator.uncertainty import bca_many, best_set, gains_losses, mdd, t_plus_two, t_quantile, wilson, z_quantile

Array = npt.NDArray[np.float64]
SIZES = (20, 50, 100, 200, 500)
FLOOR = {20: 0.91, 50: 0.93, 100: 0.93, 200: 0.93, 500: 0.93}
BEGIN, END = "<!-- planted: begin -->", "<!-- planted: end -->"  # benchmarks/planted.py writes what stands between
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


class Population:
    """Values with probabilities; `mean` is the truth."""

    def __init__(self, name: str, values: Sequence[float] | Array, weights: Sequence[float] | Array | None = None):
        self.name = name
        self.values = np.asarray(values, dtype=np.float64)
        size = len(self.values)
        self.weights = np.full(size, 1 / size) if weights is None else np.asarray(weights, dtype=np.float64)
        self.weights = self.weights / self.weights.sum()
        self.mean = float(self.values @ self.weights)

    def sample(self, rng: np.random.Generator, rows: int, n: int) -> Array:
        return self.values[rng.choice(len(self.values), (rows, n), p=self.weights)]

    def tilted(self, mean: float) -> Population | None:
        """The same values with weights changed (exponentially) so that the mean is exactly this, where it can be."""
        low, high = self.values.min(), self.values.max()
        if not low < mean < high:
            return None
        a, b = -200.0, 200.0
        for _ in range(200):
            middle = (a + b) / 2
            power = middle * self.values
            weights = self.weights * np.exp(power - power.max())
            a, b = (middle, b) if self.values @ weights / weights.sum() < mean else (a, middle)
        found = Population(self.name, self.values, weights)
        return found if abs(found.mean - mean) < 1e-9 else None


# ------------------------------------------------------------------ populations


def synthetic_means() -> list[Population]:
    halves = np.linspace(0, 1, 201)
    u_shape = 1 / np.sqrt(np.maximum(halves * (1 - halves), 1e-3))
    ranks = [0, *(1 / r for r in range(1, 11))]
    return [
        *(Population(f"0/1, p = {p:g}", [0, 1], [1 - p, p]) for p in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95)),
        Population("uniform", halves),
        Population("U-shaped", halves, u_shape),
        Population("quarters, mostly 1", [0, 0.25, 0.5, 0.75, 1], [0.05, 0.02, 0.08, 0.05, 0.8]),
        Population("quarters, mostly 0", [0, 0.25, 0.5, 0.75, 1], [0.7, 0.1, 0.1, 0.05, 0.05]),
        Population("halves and ends", [0, 0.5, 1], [0.2, 0.3, 0.5]),
        Population("rarely not 1, then .5", [0.5, 1], [0.08, 0.92]),
        Population("near constant .5", [0.45, 0.5, 0.55], [0.1, 0.8, 0.1]),
        Population("reciprocal ranks", ranks, [0.2, 0.4, *([0.4 / 9] * 9)]),
        Population("thirds, two humps", [0, 1 / 3, 2 / 3, 1], [0.35, 0.1, 0.1, 0.45]),
    ]


def synthetic_differences() -> list[Population]:
    five = [-1, -0.5, 0, 0.5, 1]
    fine = [-0.3, -0.1, 0, 0.1, 0.3]
    return [
        Population("5 % gain 1", [0, 1], [0.95, 0.05]),
        Population("20 % gain .5", [0, 0.5], [0.8, 0.2]),
        Population("2 % gain, 2 % lose", [-1, 0, 1], [0.02, 0.96, 0.02]),
        Population("10 % gain, 10 % lose", [-1, 0, 1], [0.1, 0.8, 0.1]),
        Population("30 % gain, 20 % lose", [-1, 0, 1], [0.2, 0.5, 0.3]),
        Population("gain or lose 1", [-1, 1], [0.4, 0.6]),
        Population("halves both ways", five, [0.05, 0.1, 0.65, 0.15, 0.05]),
        Population("mostly small gains", fine, [0.02, 0.08, 0.6, 0.25, 0.05]),
        Population("small gains, rare big loss", [-1, 0, 0.1], [0.03, 0.57, 0.4]),
        Population("uniform", np.linspace(-1, 1, 201)),
        Population("quarters, one-sided", [0, 0.25, 0.5, 1], [0.85, 0.08, 0.04, 0.03]),
    ]


def _rows(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _measures(ranking: Sequence[str], gold: set[str]) -> dict[str, float]:
    at = [rank for rank, doc in enumerate(ranking[:10], 1) if doc in gold]
    ideal = sum(1 / np.log2(r + 1) for r in range(1, min(len(gold), 10) + 1))
    return {
        "recall@5": sum(rank <= 5 for rank in at) / len(gold),
        "ndcg@10": sum(1 / np.log2(rank + 1) for rank in at) / ideal,
        "mrr@10": 1 / at[0] if at else 0.0,
    }


def real(data: Path, names: Sequence[str]) -> tuple[list[Population], list[Population], list[str]]:
    """Means and paired differences of three BM25 variants on each question set that is there."""
    means, differences, used = [], [], []
    for name in names:
        if not (data / name / "corpus.jsonl.gz").exists():
            continue
        import bm25s
        import Stemmer

        corpus = _rows(data / name / "corpus.jsonl.gz")
        ids = [document["id"] for document in corpus]
        texts = [f"{document.get('title') or ''} {document['text']}" for document in corpus]
        # SciFact has gold but no labels; taking every question with gold is the published reading of it.
        questions = [
            q
            for q in _rows(data / name / "questions.jsonl.gz")
            if q["gold"] and q["state"] in {"answerable", "unlabelled"}
        ]
        if name == "mtrag-un":
            questions = [q for q in questions if q["state"] == "answerable"]
        asked = [q["question"] for q in questions]
        stemmer = Stemmer.Stemmer("english")
        variants = {
            "plain": ({}, {}, texts),
            "stemmed": ({"stemmer": stemmer, "stopwords": "en"}, {"k1": 0.9, "b": 0.4}, texts),
            "first 40 words": ({"stopwords": "en"}, {}, [" ".join(text.split()[:40]) for text in texts]),
        }
        scores: dict[str, dict[str, Array]] = {}
        for variant, (tokens, settings, indexed) in variants.items():
            index = bm25s.BM25(**settings)
            index.index(bm25s.tokenize(indexed, show_progress=False, **tokens), show_progress=False)
            found, _ = index.retrieve(bm25s.tokenize(asked, show_progress=False, **tokens), k=10, show_progress=False)
            rows = [
                _measures([ids[i] for i in row], {g["document_id"] for g in q["gold"]})
                for row, q in zip(found, questions, strict=True)
            ]
            scores[variant] = {metric: np.array([row[metric] for row in rows]) for metric in rows[0]}
        used.append(f"{name} ({len(questions)} questions)")
        for metric in ("recall@5", "ndcg@10", "mrr@10"):
            means += [Population(f"{name} {v} {metric}", scores[v][metric]) for v in variants]
            differences += [
                Population(f"{name} {a} − {b} {metric}", scores[a][metric] - scores[b][metric])
                for a, b in combinations(variants, 2)
            ]
    return means, differences, used


# ------------------------------------------------------------------ coverage


def _student(samples: Array, low: float, high: float) -> tuple[Array, Array]:
    n = samples.shape[1]
    middle = samples.mean(axis=1)
    half = t_quantile(0.05, n - 1) * samples.std(axis=1, ddof=1) / np.sqrt(n)
    return np.maximum(middle - half, low), np.minimum(middle + half, high)


def _covered(low: Array, high: Array, truth: float) -> tuple[float, float]:
    return float(np.mean((low <= truth + 1e-12) & (truth - 1e-12 <= high))), float(np.mean(high - low))


def coverage(
    populations: Sequence[Population],
    interval: Callable[[Array], object],
    ends: tuple[float, float],
    samples: int,
    bca_samples: int,
    seed: int,
) -> tuple[list[list[str]], list[str]]:
    """A table row for each n, and every population that falls below the floor."""
    table, below = [], []
    for n in SIZES:
        own, student, bca, widths, none = [], [], [], [], []
        for p, population in enumerate(populations):
            rng = np.random.default_rng([seed, n, p])
            drawn = population.sample(rng, samples, n)
            found = [interval(row) for row in drawn]
            got = np.array([(i.low, i.high) for i in found])  # type: ignore[attr-defined]
            share, width = _covered(got[:, 0], got[:, 1], population.mean)
            own.append((share, population.name))
            if share < FLOOR[n]:
                below.append(f"{population.name}, n = {n}: {share:.3f}")
            share_t, width_t = _covered(*_student(drawn, *ends), population.mean)
            student.append(share_t)
            tried = bca_many(drawn[:bca_samples], resamples=999, seed=n)
            pairs = []
            for row, i in zip(drawn[:bca_samples], tried, strict=True):
                if i.low is not None:
                    pairs.append((i.low, i.high))
                elif ends[0] == 0 and row.min() == row.max() and row[0] in (0, 1):
                    w = wilson(int(row.sum()), n)
                    pairs.append((w.low, w.high))
            none.append(1 - len(pairs) / len(tried))
            if pairs:
                array = np.array(pairs)
                share_b, width_b = _covered(array[:, 0], array[:, 1], population.mean)
                bca.append(share_b)
                widths.append((width, width_b, width_t))
        least, worst = min(own)
        mean = np.mean(np.array(widths), axis=0)
        table.append(
            [
                str(n),
                f"**{least:.3f}** / {np.mean([s for s, _ in own]):.3f}",
                f"{mean[0]:.3f}",
                f"{min(bca):.3f} / {np.mean(bca):.3f}",
                f"{mean[1]:.3f}",
                f"{np.mean(none):.1%}",
                f"{min(student):.3f} / {np.mean(student):.3f}",
                f"{mean[2]:.3f}",
                worst,
            ]
        )
    return table, below


def clustered(samples: int, seed: int) -> list[list[str]]:
    """Means of questions in clusters that share half of their luck: by question and by cluster."""
    table = []
    for clusters in (20, 50, 100):
        rng = np.random.default_rng([seed, clusters])
        by_question, by_cluster = [], []
        for _ in range(samples):
            sizes = rng.integers(1, 9, clusters)
            names = np.repeat(np.arange(clusters), sizes)
            shared = rng.random(clusters)[names]
            values = np.where(rng.random(len(names)) < 0.5, shared < 0.7, rng.random(len(names)) < 0.7).astype(float)
            for kind, out in ((None, by_question), ([str(c) for c in names], by_cluster)):
                i = t_plus_two(values, clusters=kind)
                out.append((i.low, i.high))
        row = [str(clusters)]
        for out in (by_question, by_cluster):
            share, width = _covered(*np.array(out).T, 0.7)
            row += [f"{share:.3f}", f"{width:.3f}"]
        table.append(row)
    return table


def equivalence(populations: Sequence[Population], samples: int, seed: int) -> list[list[str]]:
    """How often a true difference of exactly δ is called equivalent: the interval then lies inside (−δ, δ)."""
    table = []
    for delta, n in ((0.02, 50), (0.02, 200), (0.02, 500), (0.05, 50), (0.05, 100), (0.05, 200), (0.05, 500)):
        shares = []
        for p, population in enumerate(populations):
            shifted = population.tilted(delta)
            if shifted is None:
                continue
            rng = np.random.default_rng([seed, n, p, int(delta * 1000)])
            found = [gains_losses(row) for row in shifted.sample(rng, samples, n)]
            inside = [-delta < i.low and i.high < delta for i in found]
            shares.append((float(np.mean(inside)), population.name))
        most, name = max(shares)
        table.append(
            [
                f"{delta:g}",
                str(n),
                str(len(shares)),
                f"**{most:.3f}**",
                f"{np.mean([s for s, _ in shares]):.4f}",
                name if most else "–",
            ]
        )
    return table


# ------------------------------------------------------------------ best set


def _exchangeable(rng: np.random.Generator, n: int, c: int) -> Array:
    hard = rng.random(n)[:, None]
    return np.clip(np.round((hard + rng.normal(0, 0.25, (n, c))) * 4) / 4, 0, 1)


def _nearly_identical(rng: np.random.Generator, n: int, c: int) -> Array:
    base = np.repeat((rng.random(n) < 0.7).astype(float)[:, None], c, axis=1)
    return np.where(rng.random((n, c)) < 0.05, 1 - base, base)


def _zero_one(rng: np.random.Generator, n: int, c: int) -> Array:
    return (rng.random((n, c)) < rng.beta(0.5, 0.3, n)[:, None]).astype(float)


def _unequal(rng: np.random.Generator, n: int, c: int, parts: int) -> Array:
    """Equal means, but half of the configurations are all or nothing where the others find some of several parts."""
    hard = np.repeat(rng.beta(2, 2, n)[:, None], c, axis=1)
    sharp = (rng.random((n, c)) < hard).astype(float)
    return np.where(np.arange(c) % 2 == 0, sharp, rng.binomial(parts, hard) / parts)


def _some_sharper(rng: np.random.Generator, n: int, c: int) -> Array:
    return _unequal(rng, n, c, 2)


def _far_sharper(rng: np.random.Generator, n: int, c: int) -> Array:
    return _unequal(rng, n, c, 1000)


Sweep = Callable[[np.random.Generator, int, int], Array]
EQUAL: dict[str, Sweep] = {
    "quarters, same difficulty": _exchangeable,
    "0/1, same difficulty": _zero_one,
    "5 % of answers differ": _nearly_identical,
}
# Equal in the mean but not interchangeable: outside of what the test assumes, shown and not held to the limit.
UNEQUAL: dict[str, Sweep] = {
    "half all-or-nothing, half in halves": _some_sharper,
    "half all-or-nothing, half never": _far_sharper,
}


def _from_variants(vectors: Sequence[Array]) -> Sweep:
    """Each configuration answers each question like a variant of its own drawing: real values, real ties, all equal."""
    table = np.stack(vectors, axis=1)

    def make(rng: np.random.Generator, n: int, c: int) -> Array:
        rows = rng.integers(0, len(table), n)
        return table[rows[:, None], rng.integers(0, table.shape[1], (n, c))]

    return make


def _scores(matrix: Array) -> dict[str, Array]:
    return {f"c{j:02d}": matrix[:, j] for j in range(matrix.shape[1])}


def family_wise(sweeps: dict[str, Sweep], repeats: int, resamples: int, seed: int, c: int = 24) -> list[list[str]]:
    table = []
    for p, (name, make) in enumerate(sweeps.items()):
        row = [name]
        for n in (50, 100):
            rng = np.random.default_rng([seed, p, n])
            wrong = [
                len(best_set(_scores(make(rng, n, c)), resamples=resamples, seed=r).members) < c for r in range(repeats)
            ]
            row.append(f"{np.mean(wrong):.3f}")
        table.append(row)
    return table


def planted(repeats: int, resamples: int, seed: int, c: int = 24) -> list[list[str]]:
    """One configuration is better: a share of the questions that the others miss goes from 0 to 1."""
    table = []
    for gain in (0.05, 0.10, 0.15):
        for n in (100, 300):
            rng = np.random.default_rng([seed, n, int(gain * 100)])
            alone = first = inside = 0
            sizes, spread = [], []
            for r in range(repeats):
                matrix = _zero_one(rng, n, c)
                truth = matrix[:, 7]
                missed = truth == 0
                # The chance that makes the expected mean rise by exactly `gain`: E[missed] = 1 − .5/.8.
                truth[missed & (rng.random(n) < gain / 0.375)] = 1
                spread.append(np.std(matrix[:, 7] - matrix[:, 0], ddof=1))
                found = best_set(_scores(matrix), resamples=resamples, seed=r)
                alone += found.members == ("c07",)
                first += found.best == "c07"
                inside += "c07" in found.members
                sizes.append(len(found.members))
            least = mdd(float(np.mean(spread)), n).value
            table.append(
                [
                    f"{gain:g}",
                    str(n),
                    f"{inside / repeats:.3f}",
                    f"{first / repeats:.3f}",
                    f"{alone / repeats:.3f}",
                    f"{np.mean(sizes):.1f}",
                    f"{least:.3f}",
                ]
            )
    return table


# ------------------------------------------------------------------ the page


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def page(options: argparse.Namespace) -> tuple[str, list[str]]:
    quick = options.quick
    samples, bca_samples = (300, 100) if quick else (4000, 400)
    repeats, resamples = (60, 199) if quick else (1000, 499)
    means, differences, used = real(options.data, ("mtrag-un",) if quick else ("mtrag-un", "scifact", "clapnq"))
    made_means, made_differences = synthetic_means(), synthetic_differences()
    means, differences = made_means + means, made_differences + differences
    moving = [d for d in differences if np.ptp(d.values) > 0]
    seed = options.seed
    mean_table, mean_below = coverage(means, t_plus_two, (0, 1), samples, bca_samples, seed)
    diff_table, diff_below = coverage(moving, gains_losses, (-1, 1), samples, bca_samples, seed + 1)
    same_table = equivalence(moving, samples, seed + 2)
    equal = dict(EQUAL)
    by_name = {m.name: m.values for m in means}
    for metric in ("recall@5", "ndcg@10"):
        same = [values for name, values in by_name.items() if name.startswith("mtrag-un") and name.endswith(metric)]
        if same:
            equal[f"mtrag-un {metric}, a BM25 variant drawn for each answer"] = _from_variants(same)
    family = family_wise(equal, repeats, resamples, seed + 3)
    apart = family_wise(UNEQUAL, repeats, resamples, seed + 6)
    power = planted(max(repeats // 4, 20), resamples, seed + 4)
    cluster_table = clustered(samples // 4, seed + 5)
    failures = mean_below + diff_below
    failures += [f"equivalent at δ = {r[0]}, n = {r[1]}: {r[3]}" for r in same_table if float(r[3].strip("*")) > 0.05]
    failures += [f"family-wise error, {r[0]}: {x}" for r in family for x in r[1:] if float(x) > 0.06]
    covered = [
        "n",
        "{} least / average",
        "width",
        "BCa least / average",
        "width",
        "no BCa",
        "t least / average",
        "width",
    ]
    real_text = (
        "three BM25 variants (plain; stemmed, k1 = .9, b = .4; first 40 words of each document) on "
        + ", ".join(used)
        + ", with recall@5, nDCG@10 and MRR@10 and all paired differences"
        if used
        else "none: the question sets were not there"
    )
    text = f"""# Do the intervals and tests hold what they promise?

This page is written by a simulation that calls the package's own functions:

```
python benchmarks/statistical_validity.py --out docs/validity.md
```

A *population* is a list of per-question values whose true mean is known, because the list is all there is. From each
population {samples} samples of n questions are drawn with replacement, and an interval is right when it holds the true
mean. A 95 % interval should be right in 95 % of the samples **in every population**, not on average: your question set
is one population, and nobody tells you which. So the tables show the least share over the populations first. With
{samples} samples a share near .95 is known to about ± {1.96 * (0.95 * 0.05 / samples) ** 0.5:.3f}.

- Made-up populations: {len(made_means)} of values in [0, 1] (all 0 or 1 with p from .05 to .95, U-shaped, mostly 1,
  mostly 0, nearly constant, reciprocal ranks) and {len(made_differences)} of differences (rare and frequent, one-sided
  and two-sided, large and small).
- From real runs: {real_text}.
- BCa is the bootstrap with 999 resamples on {bca_samples} of the samples; where it has no interval, all 0 and all 1 get
  Wilson's, the rest is left out and counted under *no BCa*. *t* is Student's interval cut to the range. *Width* is the
  mean width of all three over the populations where BCa has an interval at all.

## Means: `t_plus_two`

{markdown([covered[0], covered[1].format("`t_plus_two`"), *covered[2:], "least in"], mean_table)}

Student's t and BCa fail where values pile up at one end: a sample of twenty that happens to be all 1 makes the t
interval a point. One more 0 and one more 1 cost little width and repair that.

## Paired differences: `gains_losses`

{markdown([covered[0], covered[1].format("`gains_losses`"), *covered[2:], "least in"], diff_table)}

Most paired differences are exactly 0, and the few others decide. While hardly anything differs the interval is too wide
on purpose: nothing seen among 50 questions does not mean that nothing is there.

## `equivalent` when the difference is exactly δ

Each difference population is tilted until its true mean is δ exactly. Saying `equivalent` is then wrong, and should
happen at most 5 % of the time.

{markdown(["δ", "n", "populations", "most often", "average", "most often in"], same_table)}

## Best set of 24 equal configurations

Share of {repeats} simulated sweeps in which the best set leaves out at least one configuration although all 24 have the
same true mean (randomised Tukey, B = {resamples}, α = .05). It should be at most .05, and .06 within the noise of
± {1.96 * (0.05 * 0.95 / repeats) ** 0.5:.3f}.

{markdown(["configurations", "n = 50", "n = 100"], family)}

What the test assumes is that equal configurations are *interchangeable*, not only equal in the mean. Where half of them
are all or nothing on each question and the other half always find a part, the means of the first half spread more than
the shuffled ones, and the best set loses members too easily. Such cases are not held to the limit; they are shown, so
that a best set of a few all-or-nothing configurations beside lukewarm ones is read with care:

{markdown(["equal means, unequal spread", "n = 50", "n = 100"], apart)}

## A planted winner among 24

One of 24 configurations is truly better; values are 0 or 1. *Kept*: it is in the best set. *First*: it has the best
mean. *Alone*: it is told apart from all 23 others. *Detectable* is what one single paired comparison at this n finds
with power .8: telling 24 apart at once needs more.

{markdown(["true gain", "n", "kept", "first", "alone", "mean size of the best set", "detectable"], power)}

## Questions that come in clusters

Each question's outcome is, half of the time, that of its cluster (1 to 8 questions). True mean .7, interval by
`t_plus_two`. Taking the questions as independent promises too much; naming the field that clusters them repairs it.

{markdown(["clusters", "by question: right", "width", "by cluster: right", "width"], cluster_table)}

## Reading it

- Asked for: means and differences right in at least 93 % from n = 50 on and 91 % at n = 20 in every population;
  `equivalent` at most 5 %; family-wise error at most 6 %.
- Result of this run: {"all of it holds." if not failures else "NOT everything holds: " + "; ".join(failures) + "."}
- Known weak sides: a rate next to 0 or 1 (p < .01) at n = 20, where even Wilson's interval is right in 84 %; and
  intervals that are too wide while hardly anything differs.
- Random draws: numpy `default_rng`, seed {seed}; z = {z_quantile(0.05):.4f}.
"""
    return text, failures


def with_planted(text: str, before: str) -> str:
    """The new page with the section of planted winners that the page before it had."""
    section = before.partition(BEGIN)[2].partition(END)[0]
    return f"{text}\n{BEGIN}{section}{END}\n" if section else text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few samples, to see that it runs")
    parser.add_argument(
        "--data", type=Path, default=DATA, help="folder with mtrag-un, scifact, clapnq; skipped if absent"
    )
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--out", type=Path, help="the Markdown file to write")
    options = parser.parse_args()
    start = time.perf_counter()
    text, failures = page(options)
    if options.out is None:
        print(text)
    else:
        before = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
        options.out.write_text(with_planted(text, before), encoding="utf-8")
    print(
        f"{time.process_time():.0f} s of one core, {time.perf_counter() - start:.0f} s",
        *failures,
        sep="\n",
        file=sys.stderr,
    )
    return int(bool(failures) and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
