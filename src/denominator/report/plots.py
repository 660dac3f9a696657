"""The report's figures, as SVG text. The same data always gives the same bytes; text stays text; prints in grey too.

Colours are those of Okabe and Ito, told apart by colour-blind readers; marks differ in shape as well. Names of
configurations are data: they are never read as mathematics.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from denominator.evaluation import Summary
from denominator.report.build import Report, unit_of
from denominator.selection import Factor, Ranking
from denominator.types import Estimate, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, FAINT = "#1a202c", "#64748b", "#e2e8f0"
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKS = ("o", "s", "^", "D", "v", "P")
COST_NAMES = {
    "latency_ms_median": "median latency (ms)",
    "index_bytes": "index size (MB)",
    "context_tokens": "context (tokens)",
}
PIXELS_PER_INCH = 104  # text of 9 points is then as large as the page's small print
MOST_FOREST_ROWS = 60
MOST_LABELS = 12


def figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(fig)
    axes = fig.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=9, colors=INK)
    axes.set_axisbelow(True)
    return fig, axes


def svg(fig: Figure, title: str) -> str:
    """The figure as SVG for a page: no prolog, no date, a title for screen readers, width decided by the page."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "denominator", "svg.fonttype": "none", "font.family": ["sans-serif"]}):
        fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    width = fig.get_figwidth() * PIXELS_PER_INCH
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>',
        lambda m: (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{m[1]}" '
            f'role="img" aria-label="{label}" style="max-width:{width:.0f}px">'
        ),
        text,
        count=1,
    )


def plain(text: str) -> str:
    """Data as text: a dollar sign must not begin mathematics."""
    return text.replace("$", r"\$")


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(plain(x), fontsize=9, color=INK)
    axes.set_ylabel(plain(y), fontsize=9, color=INK)


def _value(estimate: Estimate) -> float:
    """The value of an estimate that has one; what has none is left out before anything is drawn."""
    assert estimate.value is not None
    return estimate.value


def _whisker(axes: Axes, estimate: Estimate, y: float, color: str, mark: str) -> None:
    if estimate.ci_low is not None and estimate.ci_high is not None:
        axes.plot([estimate.ci_low, estimate.ci_high], [y, y], color=color, linewidth=2.2, solid_capstyle="round")
    axes.plot([_value(estimate)], [y], marker=mark, color=color, markersize=5.5, markeredgecolor="white", linestyle="")


def level_of(alpha: float) -> str:
    """The level of intervals in words: `95 %` for α = .05."""
    return f"{100 * (1 - alpha):g} %"


def counted(ranking: Ranking) -> str:
    """What a ranking's n counts: questions, or the evidence groups of a micro average."""
    unit = ranking.rows[0].estimate.unit
    return "evidence groups" if unit == "groups" else unit


def forest(ranking: Ranking, metric: str, alpha: float = 0.05) -> Figure:
    """Every configuration's estimate with its interval, best first; the best set is filled, the baseline a square."""
    rows = ranking.rows[:MOST_FOREST_ROWS]
    fig, axes = figure(8.2, 0.9 + 0.24 * len(rows))
    for y, row in enumerate(rows):
        color = BLUE if row.in_best_set else GREY
        _whisker(axes, row.estimate, y, color, "s" if row.is_baseline else "o")
    axes.set_yticks(range(len(rows)), [plain(row.name + (" (baseline)" if row.is_baseline else "")) for row in rows])
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_fontsize(8.5)
        text.set_color(BLUE if row.in_best_set else INK)
    axes.invert_yaxis()
    axes.grid(axis="x", color=FAINT)
    best = rows[0].estimate.value or 0.0
    axes.axvline(best, color=BLUE, linewidth=0.8, linestyle=":")
    what = f"{metric}: {unit_of(metric)}, n = {ranking.n} {counted(ranking)}; bars are {level_of(alpha)} intervals"
    _label(axes, what, "")
    return fig


def pareto(ranking: Ranking, cost: str, metric: str) -> Figure:
    """Quality against one cost. Filled: on the front of quality and all costs; ring: recommended."""
    fig, axes = figure(5.6, 3.7)
    rows = [row for row in ranking.rows if row.costs.get(cost) is not None]
    scale = 1e6 if cost == "index_bytes" else 1.0
    for row in rows:
        x, y = (row.costs[cost] or 0.0) / scale, row.estimate.value or 0.0
        color = BLUE if row.on_front else GREY
        axes.plot([x], [y], "o", color=color if row.on_front else "white", markeredgecolor=color, markersize=6)
        if row.recommended:
            axes.plot(
                [x], [y], "o", markersize=12, markerfacecolor="none", markeredgecolor=VERMILION, markeredgewidth=1.6
            )
    values = [(row.costs[cost] or 0.0) / scale for row in rows]
    if values and min(values) > 0 and max(values) / min(values) > 30:
        axes.set_xscale("log")
    axes.margins(x=0.22, y=0.1)
    axes.grid(color=FAINT)
    for row, (dx, align) in zip(_worth_naming(ranking, cost), _sides(), strict=False):
        x, y = (row.costs[cost] or 0.0) / scale, row.estimate.value or 0.0
        axes.annotate(plain(row.name), (x, y), (dx, 5), textcoords="offset points", fontsize=7.5, ha=align, color=INK)
    _label(axes, COST_NAMES.get(cost, cost.replace("_", " ")), f"{metric} (n = {ranking.n})")
    return fig


def _worth_naming(ranking: Ranking, cost: str) -> list[Any]:
    rows = [
        r for r in ranking.rows if r.costs.get(cost) is not None and (r.recommended or r.is_baseline or r.rank == 1)
    ]
    return rows[:4]


def _sides() -> tuple[tuple[int, str], ...]:
    return ((6, "left"), (-6, "right"), (6, "left"), (-6, "right"))


def curves(by_name: Mapping[str, Mapping[int, Estimate]]) -> Figure:
    """Recall against K for a few configurations, with the interval of the first."""
    fig, axes = figure(6.4, 3.7)
    ks: list[int] = []
    n = ""
    for i, (name, estimates) in enumerate(by_name.items()):
        points = [(k, e) for k, e in sorted(estimates.items()) if e.value is not None]
        if not points:
            continue
        ks = [k for k, _ in points]
        first = points[0][1]
        n = f"{first.n} {'evidence groups' if first.unit == 'groups' else first.unit}"
        axes.plot(
            ks,
            [_value(e) for _, e in points],
            marker=MARKS[i % 6],
            color=CYCLE[i % 6],
            linewidth=1.6,
            markersize=5,
            label=plain(name),
        )
        if i == 0:
            low = [_value(e) if e.ci_low is None else e.ci_low for _, e in points]
            high = [_value(e) if e.ci_high is None else e.ci_high for _, e in points]
            axes.fill_between(ks, low, high, color=CYCLE[0], alpha=0.12, linewidth=0)
    axes.set_xticks(ks)
    axes.set_ylim(0, 1.02)
    axes.grid(axis="y", color=FAINT)
    if ks:
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    _label(axes, "K (distinct documents)", f"recall@K (n = {n})")
    return fig


def effects(factors: Sequence[Factor], metric: str, n: str, alpha: float = 0.05) -> Figure:
    """Each level of each factor against the mean of the others, over cells equal in everything else."""
    lines = [(factor.name, level) for factor in factors for level in factor.levels if level.value is not None]
    fig, axes = figure(8.2, 0.9 + 0.26 * (len(lines) + len(factors)))
    y, ticks, labels = 0.0, [], []
    last = ""
    for name, level in lines:
        if name != last:
            if last:
                y += 0.7
            last = name
        color = CYCLE[[f.name for f in factors].index(name) % 6]
        value = level.value or 0.0
        if level.low is not None and level.high is not None:
            axes.plot([level.low, level.high], [y, y], color=color, linewidth=2.2, solid_capstyle="round")
        axes.plot([value], [y], "o", color=color, markersize=5.5, markeredgecolor="white")
        if level.lowest is not None and level.highest is not None:
            axes.plot([level.lowest, level.highest], [y, y], linestyle="none", marker="|", color=GREY, markersize=7)
        ticks.append(y)
        labels.append(plain(f"{name}: {level.level}"))
        y += 1
    axes.axvline(0, color=GREY, linewidth=0.9)
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", labelsize=8.5)
    axes.invert_yaxis()
    axes.grid(axis="x", color=FAINT)
    what = f"difference in {metric} (n = {n}): mean and {level_of(alpha)} interval; ticks: least and largest"
    _label(axes, what, "")
    return fig


def confidence(outcomes: Sequence[Outcome], threshold: float | None) -> Figure | None:
    """Confidence of answerable and of unanswerable questions, as shares of each class, and the threshold."""
    classes = {
        state: [o.confidence for o in outcomes if o.state == state and o.confidence is not None]
        for state in ("answerable", "unanswerable")
    }
    every = [c for values in classes.values() for c in values]
    if not classes["answerable"] or not classes["unanswerable"]:
        return None
    fig, axes = figure(5.2, 3.1)
    low, high = min(every), max(every)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = [low + (high - low) * i / 24 for i in range(25)]
    for (state, values), color, style in zip(classes.items(), (BLUE, VERMILION), ("solid", "dashed"), strict=True):
        axes.hist(
            values,
            bins=edges,
            weights=[1 / len(values)] * len(values),
            histtype="stepfilled",
            alpha=0.35,
            color=color,
            edgecolor=color,
            linestyle=style,
            linewidth=1.3,
            label=f"{state} (n = {len(values)})",
        )
    if threshold is not None:
        axes.axvline(threshold, color=INK, linewidth=1, linestyle=":", label=f"threshold {threshold:.3g}")
    axes.legend(fontsize=8, frameon=False)
    _label(axes, "confidence of the ranking", "share of the class")
    return fig


def risk_coverage(by_name: Mapping[str, Summary]) -> Figure | None:
    """Mean loss among the most confident share of the questions."""
    drawn = {
        name: s.abstention.risk_coverage
        for name, s in by_name.items()
        if s.abstention.risk_coverage is not None and s.abstention.risk_coverage.aurc.value is not None
    }
    if not drawn:
        return None
    fig, axes = figure(5.2, 3.1)
    n = 0
    for i, (name, curve) in enumerate(drawn.items()):
        assert curve is not None
        n = len(curve.coverage)
        label = f"{name} (AURC {curve.aurc.value:.3f})"
        axes.plot(curve.coverage, curve.risk, color=CYCLE[i % 6], linewidth=1.5, label=plain(label))
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.grid(color=FAINT)
    axes.legend(fontsize=7.5, frameon=False)
    _label(axes, f"share of questions answered, most confident first (n = {n})", "mean loss")
    return fig


def slices(report: Report, tag: str) -> Figure | None:
    """One tag's values: the detailed configurations side by side, with intervals."""
    assert report.ranking is not None
    found = [s for s in report.ranking.slices if s.tag == tag and s.n]
    if len(found) < 2:
        return None
    names = report.shown_runs
    step = 0.8 / len(names)
    fig, axes = figure(6.4, 0.8 + 0.18 * len(names) + 0.3 * len(found) * (0.6 + 0.4 * len(names)))
    for i, name in enumerate(names):
        for y, one in enumerate(found):
            estimate = one.estimates[name]
            if estimate.value is None:
                continue
            at = y - 0.4 + step * (i + 0.5)
            _whisker(axes, estimate, at, CYCLE[i % 6], MARKS[i % 6])
        axes.plot([], [], color=CYCLE[i % 6], marker=MARKS[i % 6], linewidth=2, label=plain(name))
    axes.set_yticks(range(len(found)), [plain(f"{s.value} (n = {s.n})") for s in found])
    axes.tick_params(axis="y", labelsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(axis="x", color=FAINT)
    below = 0.45 / (fig.get_figheight() * axes.get_position().height)  # inches, so that it clears the axis' name
    axes.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -below))
    _label(axes, f"{report.metric}, {level_of(report.decision.settings.alpha)} intervals, by {tag}", "")
    return fig


def all_figures(report: Report) -> dict[str, tuple[str, Figure]]:
    """Every figure of the page: key → (caption, figure). Absent ones have nothing to show."""
    found: dict[str, tuple[str, Figure]] = {}
    ranking = report.ranking
    if ranking is None:
        return found
    metric, alpha, n = report.metric, report.decision.settings.alpha, f"{ranking.n} {counted(ranking)}"
    found["forest"] = (
        f"Every configuration's {metric} with its {level_of(alpha)} interval, n = {n}",
        forest(ranking, metric, alpha),
    )
    for cost in ranking.costs:
        known = [x for row in ranking.rows if (x := row.costs.get(cost)) is not None]
        if not known or max(known) - min(known) <= 0.01 * max(known):
            continue  # the same for all, or nearly: nothing to see
        name = COST_NAMES.get(cost, cost)
        found[f"pareto_{cost}"] = (f"{metric} against {name}", pareto(ranking, cost, metric))
    if any(f.levels for f in ranking.factors):
        found["effects"] = (f"Effect of each choice on {metric}", effects(ranking.factors, metric, n, alpha))
    found["curves"] = ("Document recall against K", curves(report.curves))
    shown = report.shown_runs[0]
    summary = report.summary_of(shown)
    threshold = summary.abstention.threshold
    drawn = confidence(report.run_of(shown).outcomes, threshold.overall if threshold else None)
    if drawn is not None:
        found["confidence"] = (f"Confidence by class: {shown}", drawn)
    risk = risk_coverage({name: report.summary_of(name) for name in report.shown_runs})
    if risk is not None:
        loss = summary.audit.metric if summary.audit else report.recall
        found["risk_coverage"] = (f"Risk and coverage, loss = 1 − {loss} (1 for unanswerable questions)", risk)
    for tag in dict.fromkeys(s.tag for s in ranking.slices):
        one = slices(report, tag)
        if one is not None:
            found[f"slice_{tag}"] = (f"{metric} by {tag}", one)
    return found
