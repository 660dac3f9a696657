"""How often the interval of Cohen's κ holds the true value, beside the large-sample one.

    python benchmarks/kappa.py

Two readers, a share of refusals, a decider with a sensitivity and a specificity; 20,000 samples each, a few seconds.
`carried` is what the package gives (Wilson's interval of the agreement, carried over with p_e fixed); `large-sample`
is κ ± z·se by Fleiss, Cohen and Everitt (1969).
"""

from __future__ import annotations

import numpy as np

from denominator.uncertainty import wilson

Z = 1.959963984540054
SIZES = (50, 100, 300)
SAMPLES = 20_000


def parts(share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Observed and chance agreement of cells (both refuse, hand only, decider only, neither)."""
    hand, said = share[..., 0] + share[..., 1], share[..., 0] + share[..., 2]
    return share[..., 0] + share[..., 3], hand * said + (1 - hand) * (1 - said)


def large_sample(share: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    po, pe = parts(share)
    k = (po - pe) / (1 - pe)
    a, b, c, d = np.moveaxis(share, -1, 0)
    r, s = a + b, a + c
    diagonal = a * (1 - (r + s) * (1 - k)) ** 2 + d * (1 - (2 - r - s) * (1 - k)) ** 2
    beside = (1 - k) ** 2 * (b * (s + 1 - r) ** 2 + c * (r + 1 - s) ** 2)
    variance = np.maximum(diagonal + beside - (k - pe * (1 - k)) ** 2, 0) / n / (1 - pe) ** 2
    return k - Z * np.sqrt(variance), k + Z * np.sqrt(variance)


def carried(share: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    po, pe = parts(share)
    ends = np.array([(i.low, i.high) for i in (wilson(x, n) for x in range(n + 1))], np.float64)
    low, high = ends[np.rint(po * n).astype(int)].T
    return (low - pe) / (1 - pe), (high - pe) / (1 - pe)


def main() -> None:
    rng = np.random.default_rng(0)
    print("| refusals | sensitivity / specificity | κ | " + " | ".join(f"n = {n}" for n in SIZES) + " |")
    print("| --- " * (3 + len(SIZES)) + "|")
    for base in (0.1, 0.3, 0.5):
        for sensitivity, specificity in ((0.98, 0.98), (0.9, 0.95), (0.7, 0.9)):
            cells = np.array(
                [base * sensitivity, base * (1 - sensitivity), (1 - base) * (1 - specificity), (1 - base) * specificity]
            )
            po, pe = parts(cells)
            truth = (po - pe) / (1 - pe)
            shown = []
            for n in SIZES:
                share = rng.multinomial(n, cells, SAMPLES) / n
                share = share[parts(share)[1] < 1 - 1e-9]
                held = []
                for method in (carried, large_sample):
                    low, high = method(share, n)
                    held.append(float(np.mean((low <= truth + 1e-12) & (truth <= high + 1e-12))))
                shown.append(f"{held[0]:.3f} / {held[1]:.3f}")
            print(f"| {base} | {sensitivity} / {specificity} | {truth:.2f} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
