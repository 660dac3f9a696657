"""The two figures of a cell. `Figure` without pyplot: no global state, no window, safe in threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from denominator.types import Estimate, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"


def _canvas(title: str) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.15, 0.87, 0.73))
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


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
    axes.fill_between(ks, low, high, color=BLUE, alpha=0.15, linewidth=0, label="95 % interval")
    axes.plot(ks, values, color=BLUE, marker="o", linewidth=1.5, label=f"recall@K, n = {shown[0].n}")
    for k, value in zip(ks, values, strict=True):
        axes.annotate(f"{value:.3f}", (k, value), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8)
    axes.set_xticks(ks)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("K (documents)", fontsize=8)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
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
    edges = [low + (high - low) * i / 24 for i in range(25)]
    for (state, values), color in zip(classes.items(), (BLUE, ORANGE), strict=True):
        if values:  # shares, because the classes differ in size
            axes.hist(
                values,
                bins=edges,
                weights=[1 / len(values)] * len(values),
                color=color,
                alpha=0.55,
                label=f"{state}, n = {len(values)}",
            )
    cuts = sorted({o.threshold for o in outcomes if o.threshold is not None})
    if cuts:
        text = f"refused below {cuts[0]:.3g}" if len(cuts) == 1 else f"refused below {cuts[0]:.3g} to {cuts[-1]:.3g}"
        for i, cut in enumerate(cuts):
            axes.axvline(cut, color=GREY, linewidth=1, linestyle="--", label=text if i == 0 else None)
    axes.set_xlabel("confidence of the ranking", fontsize=8)
    axes.set_ylabel("share of the class", fontsize=8)
    axes.legend(loc="best", fontsize=8, frameon=False)
    return figure
