"""Figures of a cell: the pixels are read back, so that a bar or a curve is where its value is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from denominator import figures
from denominator.abstention import Row, risk_coverage
from denominator.abstention import confusion as matrix_of
from denominator.figures import BLUE, VERMILION, Sheet
from denominator.types import Estimate, Outcome


def pixels(sheet: Sheet, path: Path) -> Any:
    from PIL import Image

    sheet.save(path)
    image = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert image.shape == (sheet.height, sheet.width, 3)
    return image


def near(image: Any, color: str, slack: int = 24) -> Any:
    """Where a colour is, as rows of (x, y) from the lower left corner."""
    rgb = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    rows, columns = np.nonzero(np.abs(image - rgb).max(axis=2) <= slack)
    return np.column_stack([columns, image.shape[0] - 1 - rows])


def outcome(i: int, state: str, confidence: float | None, threshold: float | None = None) -> Outcome:
    return Outcome(f"q{i}", state, state, "ok", confidence=confidence, threshold=threshold)  # type: ignore[arg-type]


def test_the_curve_passes_through_its_values(tmp_path: Path) -> None:
    estimates = {
        1: Estimate(0.2, 9, ci_low=0.1, ci_high=0.3),
        10: Estimate(0.9, 9),
        5: Estimate(None, 9, "depth_below_k"),
    }
    sheet = figures.recall_curve(estimates, "a cell")
    blue = near(pixels(sheet, tmp_path / "a.png"), BLUE)
    for k, value in ((1, 0.2), (10, 0.9)):
        x, y = sheet.at(k, value)
        assert np.abs(blue - (x, y)).max(axis=1).min() <= 1
    x, y = sheet.at(5, 0.2 + 0.7 * 4 / 9)  # undefined: the line goes past, no dot is there
    assert (np.abs(blue - (x, y + 3)).max(axis=1) <= 0.5).sum() == 0


def test_the_longer_bar_is_the_larger_value(tmp_path: Path) -> None:
    slices = {"lang": {"en": {"recall@5": Estimate(0.9, 5)}, "de": {"recall@5": Estimate(0.3, 5)}}}
    slices["lang"]["fr"] = {"recall@5": Estimate(None, 0, "empty_slice")}
    summary: Any = type("S", (), {"slices": slices, "headline": "recall@5", "metrics": {"recall@5": Estimate(0.6, 10)}})
    sheet = figures.slice_bars(summary, "a cell")
    image = pixels(sheet, tmp_path / "a.png")
    lengths = []
    for row in (0, 1):
        y = sheet.height - 1 - round(sheet.at(0, row)[1])
        bar = np.nonzero((image[y, sheet.left + 2 :] != 255).any(axis=1))[0]
        lengths.append((bar.max() + 2) / (sheet.right - sheet.left))
    assert lengths == pytest.approx([0.9, 0.6], abs=0.02)  # the dotted line at .6 is longer than the second bar


def test_the_fuller_cell_of_the_matrix_is_darker(tmp_path: Path) -> None:
    rows = [(False, False)] * 9 + [(False, True)] + [(True, True)] * 2 + [(True, False)] * 2
    report = matrix_of([Row(truth, said) for truth, said in rows])
    sheet = figures.confusion(report, "a cell")
    image = pixels(sheet, tmp_path / "a.png")

    def brightness(i: int, j: int) -> float:
        x, y = sheet.at(j + 0.05, i + 0.1)
        return float(image[sheet.height - 1 - round(y), round(x)].sum())

    assert brightness(0, 0) < brightness(1, 1) < 3 * 255  # 90 % before 50 %, both are blue
    assert brightness(0, 1) > brightness(1, 0)  # 10 % after 50 %
    assert len(near(image, VERMILION, 200))


def test_thresholds_stand_between_the_classes(tmp_path: Path) -> None:
    outcomes = [outcome(i, "answerable", 0.9 + i / 1000, 0.5) for i in range(20)]
    outcomes += [outcome(20 + i, "unanswerable", 0.1 + i / 1000, 0.5) for i in range(20)]
    sheet = figures.confidence_by_class(outcomes, "a cell")
    dark = near(pixels(sheet, tmp_path / "a.png"), figures.INK, 40)
    x, _ = sheet.at(0.5, 0)
    low, high = dark[:, 1] > sheet.bottom + 5, dark[:, 1] < sheet.top - 60
    inside = dark[low & high & (dark[:, 0] > sheet.left)]
    assert len(inside)
    assert np.abs(inside[:, 0] - x).max() <= 1


def test_the_risk_curve_ends_at_the_mean_loss(tmp_path: Path) -> None:
    curve = risk_coverage([0.9, 0.8, 0.7, 0.6], [0, 0, 1, 1])
    sheet = figures.risk_coverage(curve, "recall@5", "a cell")
    blue = near(pixels(sheet, tmp_path / "a.png"), BLUE)
    assert np.abs(blue - sheet.at(1.0, 0.5)).max(axis=1).min() <= 2


def test_what_cannot_be_drawn_says_why_and_is_a_picture_all_the_same(tmp_path: Path) -> None:
    empty: Any = type("S", (), {"slices": {}, "headline": "recall@5", "metrics": {}})
    nothing = [
        figures.recall_curve({5: Estimate(None, 0, "no_eligible")}, "x"),
        figures.recall_curve({}, "x"),
        figures.confidence_by_class([outcome(1, "answerable", None)], "x"),
        figures.confusion(matrix_of([]), "x"),
        figures.risk_coverage(None, "recall@5", "x"),
        figures.slice_bars(empty, "x"),
    ]
    for sheet in nothing:
        image = pixels(sheet, tmp_path / "a.png")
        assert len(near(image, figures.GREY, 60)), "the reason"
        assert not len(near(image, BLUE))


@pytest.mark.parametrize("title", ["costs $5 and $6", "100 % \\alpha _x_", "名前 · ☃", "a\nb\tc", ""])
def test_a_name_is_never_read_as_mathematics(tmp_path: Path, title: str) -> None:
    sheet = figures.recall_curve({1: Estimate(1.0, 1)}, title)  # one K alone
    assert len(near(pixels(sheet, tmp_path / "a.png"), BLUE))


@pytest.mark.parametrize("values", [(0.5, 0.5), (-3.0, 1e-9), (1e6, 1e6 + 1), (float(np.float32(0.1)), 0.1)])
def test_any_confidences_can_be_drawn(tmp_path: Path, values: tuple[float, float]) -> None:
    outcomes = [outcome(1, "answerable", values[0], values[1]), outcome(2, "unanswerable", values[1])]
    pixels(figures.confidence_by_class(outcomes, "x"), tmp_path / "a.png")


def test_same_figure_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        figures.recall_curve({1: Estimate(0.5, 4), 5: Estimate(0.75, 4)}, "x").save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
