"""Simulated sweeps of known truth through the whole decision: planted winners are found, planted ties stay ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from denominator.selection import Ranking, decide
from denominator.types import Plan
from tests.conftest import script_of
from tests.test_selection import run

PLAN = Plan(resamples=199, seed=3, baseline="c00")


ROOT = Path(__file__).resolve().parents[1]


def benchmark(name: str) -> ModuleType:
    return script_of(ROOT / "benchmarks" / f"{name}.py")


@pytest.fixture(scope="module")
def planted() -> ModuleType:
    return benchmark("planted")


def test_the_page_keeps_the_section_when_its_other_part_is_written_again(planted: ModuleType) -> None:
    validity = benchmark("statistical_validity")
    assert (validity.BEGIN, validity.END) == (planted.BEGIN, planted.END)
    page = (ROOT / "docs" / "validity.md").read_text(encoding="utf-8")
    first = page.partition("\n" + planted.BEGIN)[0]
    assert validity.with_planted(first, page) == page
    again = validity.with_planted("# New\n", page)
    assert again.startswith("# New\n\n" + planted.BEGIN)
    assert "## Planted winners and planted ties" in again
    assert validity.with_planted("# New\n", "") == "# New\n"


@pytest.fixture
def ranked(planted: ModuleType) -> Callable[[int, int, Sequence[float]], Ranking]:
    def make(seed: int, n: int, gains: Sequence[float]) -> Ranking:
        values = planted.sweep(np.random.default_rng(seed), n, gains)
        return decide([run(name, list(column), plan=PLAN) for name, column in values.items()]).rankings[0]

    return make


@pytest.mark.parametrize("gain", [0.02, 0.1, 0.15, -0.15, -0.4])
def test_the_simulation_has_the_truth_that_it_claims(planted: ModuleType, gain: float) -> None:
    values = planted.sweep(np.random.default_rng(1), 200_000, [0.0, gain])
    apart = values["c01"] - values["c00"]
    assert apart.mean() == pytest.approx(gain, abs=4 * apart.std() / len(apart) ** 0.5)


def test_a_clear_winner_is_alone_in_every_sweep(ranked: Callable[[int, int, Sequence[float]], Ranking]) -> None:
    for seed in range(12):
        ranking = ranked(seed, 300, [0.0, 0.0, 0.2, 0.0, 0.0])
        assert (ranking.best, ranking.best_set) == ("c02", ("c02",)), seed
        versus = ranking.row("c02").versus
        assert versus is not None
        assert versus.verdict == "better"
        assert ranking.recommendation.name == "c02"


def test_a_winner_too_small_to_see_is_kept(ranked: Callable[[int, int, Sequence[float]], Ranking]) -> None:
    """The best mean is often another row; the best set must hold the winner all the same."""
    found = [ranked(seed, 60, [0.0, 0.0, 0.02, 0.0, 0.0]) for seed in range(20)]
    assert sum(r.best != "c02" for r in found) >= 5
    assert all("c02" in r.best_set for r in found)
    verdicts = [row.versus.verdict for r in found for row in r.rows if row.versus is not None]
    assert verdicts.count("better") + verdicts.count("worse") <= 2


def test_ties_stay_ties_and_the_worse_go(ranked: Callable[[int, int, Sequence[float]], Ranking]) -> None:
    """Three tied for the best, three worse. α bounds how often a tie is broken: at .05, seven of 40 has p < .004."""
    broken = 0
    for seed in range(40):
        best = set(ranked(seed, 150, [0.0, 0.0, 0.0, -0.3, -0.3, -0.3]).best_set)
        broken += not {"c00", "c01", "c02"} <= best
        assert not best & {"c03", "c04", "c05"}, seed
    assert broken <= 6


def test_all_tied_stay_tied(ranked: Callable[[int, int, Sequence[float]], Ranking]) -> None:
    whole = sum(len(ranked(seed, 100, [0.0] * 6).best_set) == 6 for seed in range(40))
    assert whole >= 34


def test_the_section_is_put_between_its_marks_once(
    planted: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\ntext\n", encoding="utf-8")
    monkeypatch.setattr(planted, "section", lambda *_: (f"{planted.BEGIN}\nnew\n{planted.END}\n", []))
    monkeypatch.setattr("sys.argv", ["planted.py", "--into", str(page)])
    planted.main()
    page.write_text(page.read_text(encoding="utf-8") + "\nafter\n", encoding="utf-8")
    planted.main()
    expected = f"# Page\n\ntext\n\n{planted.BEGIN}\nnew\n{planted.END}\n\nafter\n"
    assert page.read_text(encoding="utf-8") == expected
