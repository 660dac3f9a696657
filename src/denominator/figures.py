"""The figures of a cell. `Figure` without pyplot: no global state, no window, safe in threads.

Each is a function of the outcomes or of the summary, and says in words what it has nothing to show for. A cell has five
of them, so they are cheap: axes are placed by hand, ticks are few and given, and coloured words stand for a legend
(layout, tick search and legends of matplotlib each cost as much as the drawing).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from denominator.types import Estimate, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from denominator.abstention import AbstentionReport, RiskCoverage
    from denominator.evaluation import Summary

# Okabe and Ito: told apart by colour-blind readers, as in the report.
BLUE, VERMILION, GREY, FAINT, INK = "#0072B2", "#D55E00", "#64748b", "#e2e8f0", "#1a202c"
SLICE_ROWS = 16
BINS = 24
NAME_LENGTH = 28


def _canvas(title: str, height: float = 3.6, left: float = 0.1, width: float = 6.4) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100)
    FigureCanvasAgg(figure)
    bottom, top = 0.5 / height, 0.38 / height
    axes = figure.add_axes((left, bottom, 0.97 - left, 1 - bottom - top))
    figure.text(0.02, 1 - 0.26 / height, plain(title), fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=8, colors=INK)
    return figure, axes


def _key(figure: Figure, *entries: tuple[str, str]) -> None:
    """Coloured words above the axes, from the right: (colour, text)."""
    height = figure.get_figheight()
    for i, (color, text) in enumerate(entries):
        figure.text(0.98, 1 - (0.24 + 0.16 * i) / height, plain(text), fontsize=8, color=color, ha="right")


def _marks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers from `low` to `high`, at least one.

    >>> _marks(0.0, 1.0), _marks(3.2, 17.9)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [5.0, 10.0, 15.0])
    """
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(m * scale for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * scale >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    found = [round(step * i, 12) for i in range(first, first + 2 * count + 2) if step * i <= high + 1e-9 * step]
    return found or [low]


def _ticks(axes: Axes, *, x: Sequence[float] | None = None, y: Sequence[float] | None = None) -> None:
    for values, put in ((x, axes.set_xticks), (y, axes.set_yticks)):
        if values is not None:
            put(values, [f"{v:g}" for v in values])


def plain(text: str) -> str:
    """Data as text: a dollar sign must not begin mathematics."""
    return text.replace("$", r"\$")


def _empty(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def recall_curve(estimates: Mapping[int, Estimate], title: str) -> Figure:
    """Recall against K with its interval. A K whose recall is undefined is left out, and the label says why."""
    figure, axes = _canvas(title)
    ks = sorted(k for k, e in estimates.items() if e.value is not None)
    if not ks:
        reasons = sorted({e.reason or "undefined" for e in estimates.values()}) or ["nothing measured"]
        _empty(axes, "recall is undefined: " + ", ".join(reasons))
        return figure
    shown = [estimates[k] for k in ks]
    values = [e.value or 0.0 for e in shown]
    low = [values[i] if e.ci_low is None else e.ci_low for i, e in enumerate(shown)]
    high = [values[i] if e.ci_high is None else e.ci_high for i, e in enumerate(shown)]
    axes.fill_between(ks, low, high, color=BLUE, alpha=0.15, linewidth=0)
    axes.plot(ks, values, color=BLUE, marker="o", linewidth=1.5)
    _key(figure, (BLUE, f"n = {shown[0].n}, 95 % intervals"))
    for k, value in zip(ks, values, strict=True):
        axes.annotate(f"{value:.3f}", (k, value), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8)
    axes.set_ylim(0, 1.08)
    _ticks(axes, x=ks, y=_marks(0, 1))
    axes.set_xlabel("K (documents)", fontsize=8)
    return figure


def confidence_by_class(outcomes: Sequence[Outcome], title: str) -> Figure:
    """Confidences of answerable and of unanswerable questions, and where the threshold(s) lie."""
    figure, axes = _canvas(title)
    classes = {
        state: [o.confidence for o in outcomes if o.state == state and o.confidence is not None]
        for state in ("answerable", "unanswerable")
    }
    every = [c for values in classes.values() for c in values]
    if not every:
        _empty(axes, "no question has a confidence (no_confidence)")
        return figure
    low, high = min(every), max(every)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = [low + (high - low) * i / BINS for i in range(BINS + 1)]
    key, highest = [], 0.0
    for (state, values), color in zip(classes.items(), (BLUE, VERMILION), strict=True):
        if (
            values
        ):  # shares, because the classes differ in size; one outline, because a bar each costs more
            counts = [0] * BINS
            for value in values:
                counts[min(BINS - 1, int((value - low) / (high - low) * BINS))] += 1
            shares = [count / len(values) for count in counts]
            axes.fill_between(edges, [*shares, shares[-1]], step="post", color=color, alpha=0.4, linewidth=0)
            key.append((color, f"{state}, n = {len(values)}"))
            highest = max(highest, *shares)
    cuts = sorted({o.threshold for o in outcomes if o.threshold is not None})
    if cuts:
        axes.vlines(cuts, 0, 1.06 * highest, color=INK, linewidth=1, linestyle="--")
        text = f"refused below {cuts[0]:.3g}" + ("" if len(cuts) == 1 else f" to {cuts[-1]:.3g} (by fold)")
        key.append((INK, text))
    axes.set_ylim(0, 1.3 * highest)
    _ticks(axes, x=_marks(low, high), y=_marks(0, 1.2 * highest))
    _key(figure, *key)
    axes.set_xlabel("confidence of the ranking", fontsize=8)
    axes.set_ylabel("share of the class", fontsize=8)
    return figure


def confusion(report: AbstentionReport, title: str) -> Figure:
    """The abstention matrix with counts and the share of each class. Undecided: a third column."""
    figure, axes = _canvas(title, height=2.9, left=0.2, width=5.2)
    undecided = (report.undecided_answerable, report.undecided_unanswerable)
    rows: list[tuple[int, ...]] = [(report.tn, report.fp), (report.fn, report.tp)]
    if not report.n and not any(undecided):
        _empty(axes, f"nothing was decided ({report.reason or 'no_answers'})")
        return figure
    columns = ["answered", "refused"]
    if any(undecided):
        columns.append("undecided")
        rows = [(*row, left) for row, left in zip(rows, undecided, strict=True)]
    axes.set_xlim(0, len(columns))
    axes.set_ylim(2, 0)
    right = {(0, 0), (1, 1)}
    for i, row in enumerate(rows):
        total = sum(row)
        for j, count in enumerate(row):
            share = count / total if total else 0.0
            color = GREY if j == 2 else BLUE if (i, j) in right else VERMILION
            axes.axvspan(j, j + 1, 1 - (i + 1) / 2, 1 - i / 2, color=color, alpha=0.06 + 0.5 * share, linewidth=0)
            text = f"{count}" + (f"\n{share:.0%} of {total}" if total else "")
            axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=10, color=INK)
    axes.set_xticks([j + 0.5 for j in range(len(columns))], columns)
    axes.set_yticks([0.5, 1.5], ["answerable", "unanswerable"])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    return figure


def risk_coverage(curve: RiskCoverage | None, loss: str, title: str) -> Figure:
    """Mean loss of the questions that are served when only the most confident share of them is."""
    figure, axes = _canvas(title)
    if curve is None or curve.aurc.value is None:
        reason = "no_confidence" if curve is None else curve.aurc.reason
        _empty(axes, f"no curve ({reason})")
        return figure
    axes.plot(curve.coverage, curve.risk, color=BLUE, linewidth=1.5)
    axes.axhline(float(curve.risk[-1]), color=GREY, linewidth=1, linestyle=":")
    _key(figure, (BLUE, f"AURC {curve.aurc.value:.3f}, n = {curve.aurc.n}"), (GREY, "everything served"))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    _ticks(axes, x=_marks(0, 1), y=_marks(0, 1))
    axes.set_xlabel("share of questions served, most confident first", fontsize=8)
    axes.set_ylabel(f"mean of 1 − {loss} (1 if unanswerable)", fontsize=8)
    return figure


def slice_bars(summary: Summary, title: str) -> Figure:
    """The headline in each slice that holds eligible questions, with its interval; the dotted line is the whole."""
    rows = [
        (tag, value, estimates[summary.headline])
        for tag, by_value in summary.slices.items()
        for value, estimates in by_value.items()
        if estimates[summary.headline].value is not None
    ]
    shown = rows[:SLICE_ROWS]
    figure, axes = _canvas(title, height=max(2.2, 1.0 + 0.24 * len(shown)), left=0.36)
    if not shown:
        _empty(axes, "no slice holds an eligible question")
        return figure
    at = range(len(shown))
    values = [e.value or 0.0 for _, _, e in shown]
    low = [v if e.ci_low is None else e.ci_low for v, (_, _, e) in zip(values, shown, strict=True)]
    high = [v if e.ci_high is None else e.ci_high for v, (_, _, e) in zip(values, shown, strict=True)]
    axes.barh(at, values, height=0.7, color=BLUE, alpha=0.35)
    axes.hlines(at, low, high, color=BLUE, linewidth=1.6)
    whole = summary.metrics[summary.headline].value
    if whole is not None:
        axes.axvline(whole, color=INK, linewidth=1, linestyle=":")
    names = [f"{tag}: {value}" for tag, value, _ in shown]
    names = [name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…" for name in names]
    axes.set_yticks(at, [plain(f"{name} (n = {e.n})") for name, (_, _, e) in zip(names, shown, strict=True)])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    _ticks(axes, x=_marks(0, 1))
    more = "" if len(rows) == len(shown) else f"; {len(rows) - len(shown)} more in metrics_table.json"
    axes.set_xlabel(f"{summary.headline}, 95 % intervals{more}", fontsize=8)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG quickly: weak compression, no date in it, so that the same figure gives the same bytes."""
    figure.savefig(path, format="png", metadata={"Software": None}, pil_kwargs={"compress_level": 3})
