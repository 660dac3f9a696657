"""The figures of a cell, as PNG.

Each is a function of the outcomes or of the summary, and says in words what it has nothing to show for. A cell has five
of them, so they are drawn straight with matplotlib's renderer: its figures and axes, with their ticks, legends and
layout, take several times as long, and none of that is needed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denominator.types import Estimate, Outcome

if TYPE_CHECKING:
    from denominator.abstention import AbstentionReport, RiskCoverage
    from denominator.evaluation import Summary

# Okabe and Ito: told apart by colour-blind readers, as in the report.
BLUE, VERMILION, GREY, INK = "#0072B2", "#D55E00", "#64748b", "#1a202c"
SLICE_ROWS = 24
NAME_LENGTH = 28
BINS = 24
SMALL, NORMAL = 8.0, 10.0

Point = tuple[float, float]


class Sheet:
    """A plot area on white: data limits, lines, areas and words. Pixels count from the lower left corner."""

    def __init__(self, title: str, size: tuple[int, int] = (640, 360), left: int = 64, below: int = 46) -> None:
        from matplotlib.backends import backend_agg

        agg: Any = backend_agg  # not typed
        self.width, self.height = size
        self.renderer = agg.RendererAgg(self.width, self.height, 100)
        self.left, self.right, self.bottom, self.top = left, self.width - 20, below, self.height - 38
        self.x, self.y = (0.0, 1.0), (0.0, 1.0)
        self._area([(0, 0), (self.width, 0), (self.width, self.height), (0, self.height)], "white", 1.0)
        self.words(12, self.height - 24, title, NORMAL)

    def limits(self, x: Point, y: Point) -> None:
        self.x, self.y = x, y

    def at(self, x: float, y: float) -> Point:
        """Data as pixels."""
        (x0, x1), (y0, y1) = self.x, self.y
        across, up = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
        return self.left + across * (self.right - self.left), self.bottom + up * (self.top - self.bottom)

    def line(
        self, points: Sequence[Point], color: str, width: float = 1.0, dashes: Sequence[float] | None = None
    ) -> None:
        self._line([self.at(*p) for p in points], color, width, dashes)

    def area(self, points: Sequence[Point], color: str, alpha: float) -> None:
        self._area([self.at(*p) for p in points], color, alpha)

    def dot(self, x: float, y: float, color: str) -> None:
        cx, cy = self.at(x, y)
        circle = [(cx + 4 * math.cos(a), cy + 4 * math.sin(a)) for a in (math.tau * i / 16 for i in range(16))]
        self._area(circle, color, 1.0)

    def axes(self, *, x: Sequence[float] = (), y: Sequence[float] = (), name_x: str = "", name_y: str = "") -> None:
        """Two lines, ticks with their numbers, names."""
        corner = [(self.left, self.top), (self.left, self.bottom), (self.right, self.bottom)]
        self._line(corner if y or name_y else corner[1:], GREY, 0.8, None)
        for value in x:
            px, _ = self.at(value, self.y[0])
            self._line([(px, self.bottom), (px, self.bottom - 4)], GREY, 0.8, None)
            self.words(px, self.bottom - 17, f"{value:g}", SMALL, across="middle")
        for value in y:
            _, py = self.at(self.x[0], value)
            self._line([(self.left - 4, py), (self.left, py)], GREY, 0.8, None)
            self.words(self.left - 8, py - 4, f"{value:g}", SMALL, across="end")
        self.words((self.left + self.right) / 2, 8, name_x, SMALL, across="middle")
        if name_y:
            self.words(20, (self.bottom + self.top) / 2, name_y, SMALL, across="middle", up=True)

    def key(self, *entries: tuple[str, str]) -> None:
        """Coloured words in the upper right corner stand for a legend: (colour, text)."""
        for i, (color, text) in enumerate(entries):
            self.words(self.width - 12, self.height - 22 - 15 * i, text, SMALL, color=color, across="end")

    def says(self, text: str) -> Sheet:
        """Only words, where there is nothing to draw."""
        self.words(self.width / 2, self.height / 2, text, NORMAL, color=GREY, across="middle")
        return self

    def words(
        self, x: float, y: float, text: str, size: float, *, color: str = INK, across: str = "start", up: bool = False
    ) -> None:
        """One line of text with its baseline at y. Never read as mathematics."""
        if not text:
            return
        text = " ".join(text.split())
        font = _font(size)
        shift = 0.0
        if across != "start":
            width, _, _ = self.renderer.get_text_width_height_descent(text, font, False)
            shift = width / 2 if across == "middle" else width
        x, y = (x, y - shift) if up else (x - shift, y)
        self.renderer.draw_text(self._pen(color), round(x), round(self.height - y), text, font, 90 if up else 0, False)

    def save(self, path: Path) -> None:
        """Writes a PNG. The same figure gives the same bytes."""
        from PIL import Image

        image = Image.frombuffer("RGBA", (self.width, self.height), self.renderer.buffer_rgba(), "raw", "RGBA", 0, 1)
        image.convert("RGB").save(path, format="PNG", compress_level=3)

    def _pen(self, color: str, width: float = 1.0, alpha: float = 1.0) -> Any:
        pen = self.renderer.new_gc()
        pen.set_foreground(color)
        pen.set_linewidth(width)
        pen.set_alpha(alpha)
        return pen

    def _line(self, points: Sequence[Point], color: str, width: float, dashes: Sequence[float] | None) -> None:
        from matplotlib.path import Path as Shape
        from matplotlib.transforms import IdentityTransform

        pen = self._pen(color, width)
        if dashes is not None:
            pen.set_dashes(0, dashes)
        self.renderer.draw_path(pen, Shape(points), IdentityTransform())

    def _area(self, points: Sequence[Point], color: str, alpha: float) -> None:
        from matplotlib.colors import to_rgba
        from matplotlib.path import Path as Shape
        from matplotlib.transforms import IdentityTransform

        pen = self._pen(color, 0.0, alpha)
        self.renderer.draw_path(pen, Shape([*points, points[0]]), IdentityTransform(), to_rgba(color, alpha))


@cache
def _font(size: float) -> Any:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=["DejaVu Sans"], size=size)


def marks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers from `low` to `high`, at least one.

    >>> marks(0.0, 1.0), marks(3.2, 17.9)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [5.0, 10.0, 15.0])
    """
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(m * scale for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * scale >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    found = [round(step * i, 12) for i in range(first, first + 2 * count + 2) if step * i <= high + 1e-9 * step]
    return found or [low]


def recall_curve(estimates: Mapping[int, Estimate], title: str) -> Sheet:
    """Recall against K with its interval. A K whose recall is undefined is left out, and the label says why."""
    sheet = Sheet(title)
    ks = sorted(k for k, e in estimates.items() if e.value is not None)
    if not ks:
        reasons = sorted({e.reason or "not_recorded" for e in estimates.values()}) or ["not_measured"]
        return sheet.says("recall is undefined: " + ", ".join(reasons))
    shown = [estimates[k] for k in ks]
    values = [e.value or 0.0 for e in shown]
    low = [v if e.ci_low is None else e.ci_low for v, e in zip(values, shown, strict=True)]
    high = [v if e.ci_high is None else e.ci_high for v, e in zip(values, shown, strict=True)]
    spare = max(0.5, 0.04 * (ks[-1] - ks[0]))
    sheet.limits((ks[0] - spare, ks[-1] + spare), (0, 1.08))
    sheet.area([*zip(ks, high, strict=True), *zip(ks[::-1], low[::-1], strict=True)], BLUE, 0.15)
    sheet.axes(x=ks, y=marks(0, 1), name_x="K (documents)")
    if len(ks) > 1:
        sheet.line([*zip(ks, values, strict=True)], BLUE, 1.5)
    for k, value in zip(ks, values, strict=True):
        sheet.dot(k, value, BLUE)
        x, y = sheet.at(k, value)
        sheet.words(x, y + 8, f"{value:.3f}", SMALL, across="middle")
    sheet.key((BLUE, f"n = {shown[0].n}, 95 % intervals"))
    return sheet


def confidence_by_class(outcomes: Sequence[Outcome], title: str) -> Sheet:
    """Confidences of answerable and of unanswerable questions as shares of each class, and the threshold(s)."""
    sheet = Sheet(title)
    classes = {
        state: [o.confidence for o in outcomes if o.state == state and o.confidence is not None]
        for state in ("answerable", "unanswerable")
    }
    every = [c for values in classes.values() for c in values]
    if not every:
        return sheet.says("no question has a confidence (no_confidence)")
    low, high = min(every), max(every)
    if low == high:
        low, high = low - 0.5, high + 0.5
    shares = {}
    for state, values in classes.items():
        counts = [0] * BINS
        for value in values:
            counts[min(BINS - 1, int((value - low) / (high - low) * BINS))] += 1
        shares[state] = [count / len(values) for count in counts] if values else counts
    highest = max(max(s) for s in shares.values())
    sheet.limits((low, high), (0, 1.3 * highest))
    edges = [low + (high - low) * i / BINS for i in range(BINS + 1)]
    for (state, values), color in zip(classes.items(), (BLUE, VERMILION), strict=True):
        if values:
            steps = [(edges[i + j], share) for i, share in enumerate(shares[state]) for j in (0, 1)]
            sheet.area([(low, 0), *steps, (high, 0)], color, 0.4)
    key = [
        (color, f"{state}, n = {len(values)}")
        for (state, values), color in zip(classes.items(), (BLUE, VERMILION), strict=True)
        if values
    ]
    cuts = sorted({o.threshold for o in outcomes if o.threshold is not None})
    for cut in cuts:
        if low <= cut <= high:
            sheet.line([(cut, 0), (cut, 1.06 * highest)], INK, 1.0, (4, 3))
    if cuts:
        key.append((INK, f"refused below {cuts[0]:.3g}" + ("" if len(cuts) == 1 else f" to {cuts[-1]:.3g} (by fold)")))
    sheet.axes(
        x=marks(low, high), y=marks(0, 1.2 * highest), name_x="confidence of the ranking", name_y="share of the class"
    )
    sheet.key(*key)
    return sheet


def confusion(report: AbstentionReport, title: str) -> Sheet:
    """The abstention matrix with counts and the share of each class. Undecided: a third column."""
    sheet = Sheet(title, (520, 290), left=104, below=34)
    undecided = (report.undecided_answerable, report.undecided_unanswerable)
    rows: list[tuple[int, ...]] = [(report.tn, report.fp), (report.fn, report.tp)]
    if not report.n and not any(undecided):
        return sheet.says(f"nothing was decided ({report.reason or 'no_answers'})")
    columns = ["answered", "refused"]
    if any(undecided):
        columns.append("undecided")
        rows = [(*row, left) for row, left in zip(rows, undecided, strict=True)]
    sheet.limits((0, len(columns)), (2, 0))
    for i, (row, name) in enumerate(zip(rows, ("answerable", "unanswerable"), strict=True)):
        total = sum(row)
        for j, count in enumerate(row):
            share = count / total if total else 0.0
            color = GREY if j == 2 else BLUE if i == j else VERMILION
            sheet.area([(j, i), (j + 1, i), (j + 1, i + 1), (j, i + 1)], color, 0.06 + 0.5 * share)
            x, y = sheet.at(j + 0.5, i + 0.5)
            sheet.words(x, y + 4, str(count), NORMAL, across="middle")
            if total:
                sheet.words(x, y - 14, f"{share:.0%} of {total}", NORMAL, across="middle")
        sheet.words(sheet.left - 8, sheet.at(0, i + 0.5)[1] - 4, name, SMALL, across="end")
    for j, name in enumerate(columns):
        sheet.words(sheet.at(j + 0.5, 2)[0], sheet.bottom - 17, name, SMALL, across="middle")
    return sheet


def risk_coverage(curve: RiskCoverage | None, loss: str, title: str) -> Sheet:
    """Mean loss of the questions that are served when only the most confident share of them is."""
    sheet = Sheet(title)
    if curve is None or curve.aurc.value is None:
        return sheet.says(f"no curve ({'no_confidence' if curve is None else curve.aurc.reason})")
    points = [(float(c), float(r)) for c, r in zip(curve.coverage, curve.risk, strict=True)]
    sheet.limits((0, 1), (0, 1.02))
    sheet.line([(0, points[-1][1]), (1, points[-1][1])], GREY, 1.0, (1, 2))
    if len(points) > 1:
        sheet.line(points, BLUE, 1.5)
    name = f"mean of 1 − {loss} (1 if unanswerable)"
    sheet.axes(x=marks(0, 1), y=marks(0, 1), name_x="share of questions served, most confident first", name_y=name)
    sheet.key((BLUE, f"AURC {curve.aurc.value:.3f}, n = {curve.aurc.n}"), (GREY, "everything served"))
    return sheet


def slice_bars(summary: Summary, title: str) -> Sheet:
    """The headline in each slice that holds eligible questions, with its interval; the dotted line is the whole."""
    rows = [
        (tag, value, estimates[summary.headline])
        for tag, by_value in summary.slices.items()
        for value, estimates in by_value.items()
        if estimates[summary.headline].value is not None
    ]
    shown = rows[:SLICE_ROWS]
    sheet = Sheet(title, (640, max(220, 100 + 24 * len(shown))), left=230)
    if not shown:
        return sheet.says("no slice holds an eligible question")
    sheet.limits((0, 1), (len(shown) - 0.4, -0.6))
    for at, (tag, value, estimate) in enumerate(shown):
        mean = estimate.value or 0.0
        sheet.area([(0, at - 0.35), (mean, at - 0.35), (mean, at + 0.35), (0, at + 0.35)], BLUE, 0.35)
        if estimate.ci_low is not None and estimate.ci_high is not None:
            sheet.line([(estimate.ci_low, at), (estimate.ci_high, at)], BLUE, 1.6)
        name = f"{tag}: {value}"
        name = name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
        sheet.words(sheet.left - 8, sheet.at(0, at)[1] - 4, f"{name} (n = {estimate.n})", SMALL, across="end")
    whole = summary.metrics[summary.headline].value
    if whole is not None:
        sheet.line([(whole, len(shown) - 0.4), (whole, -0.6)], INK, 1.0, (1, 2))
    more = "" if len(rows) == len(shown) else f"; {len(rows) - len(shown)} more in metrics_table.json"
    sheet.axes(x=marks(0, 1), name_x=f"{summary.headline}, 95 % intervals{more}")
    return sheet
