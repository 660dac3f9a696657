"""How often each gate blocks a candidate whose true loss is known: false alarms and power.

Call: python experiments/rag_ci/power.py pairs.npz    with denominator: simulates and judges
      python experiments/rag_ci/power.py pairs.npz    with rag-ci (its own environment): judges the same pairs
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

REPEATS, MARGIN, ALPHA = 1000, 0.02, 0.05


def ours(path: Path) -> None:
    from denominator.uncertainty import paired_difference, verdict

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from planted import sweep

    pairs = {}
    for n in (20, 50, 100, 300):
        for loss in (0.0, 0.05, 0.10):
            rng = np.random.default_rng([9, n, int(loss * 100)])
            made = [sweep(rng, n, [0.0, -loss]) for _ in range(REPEATS)]
            pairs[f"{n} {loss:g}"] = np.array([[s["c00"], s["c01"]] for s in made])
            blocked = []
            for alpha in (ALPHA, 2 * ALPHA):
                found = [
                    paired_difference(s["c01"], s["c00"], alpha=alpha, resamples=999, seed=r)
                    for r, s in enumerate(made)
                ]
                said = [verdict(d.p, d.value or 0.0, d.low, d.high, delta=MARGIN, alpha=alpha) for d in found]
                blocked.append(said.count("worse") / REPEATS)
            sys.stdout.write(f"denominator n={n} loss={loss:g}: {blocked[0]:.3f} (alpha .10: {blocked[1]:.3f})\n")
    np.savez(path, **pairs)


def theirs(path: Path) -> None:
    from ragci.stats import paired_bootstrap_test

    stored = np.load(path)
    for name in stored.files:
        tests = [paired_bootstrap_test(a, b, n_resamples=2000, seed=r) for r, (a, b) in enumerate(stored[name])]
        share = sum(t.p_value < ALPHA and t.delta < -MARGIN for t in tests) / len(tests)
        sys.stdout.write(f"rag-ci n={name.split()[0]} loss={name.split()[1]}: {share:.3f}\n")


if __name__ == "__main__":
    (theirs if importlib.util.find_spec("ragci") else ours)(Path(sys.argv[1]))
