"""The only place that renders and writes a report: HTML, Markdown, CSV and JSON, each replaced as a whole."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from denominator.report.build import Report, as_json, as_rows, unit_of, why_recommended
from denominator.report.plots import COST_NAMES, all_figures, counted, level_of, svg
from denominator.types import Estimate
from denominator.uncertainty import is_rate

REASONS: Mapping[str, str] = {
    "no_eligible": "no question is eligible",
    "empty_slice": "no eligible question in this slice",
    "no_spans": "the gold evidence has no character spans",
    "no_partial": "no partial questions",
    "or_groups_unsupported": "a question has alternative evidence",
    "depth_below_k": "the candidate pool was cut too short",
    "too_few_per_class": "fewer than 20 questions in a class",
    "no_confidence": "this ranking gives no confidence that compares across questions",
    "no_unanswerable": "no unanswerable questions",
    "no_answerable": "no answerable questions",
    "no_abstentions": "it never abstains",
    "all_abstained": "it always abstains",
    "all_undecided": "every answer is undecided",
    "never_abstains": "no threshold beats never abstaining",
    "abstention_only": "recorded answers only",
    "no_answers": "nothing was answered",
    "not_comparable": "it may not be compared",
    "not_measured": "not measured",
    "not_recorded": "the record holds no value",
    "no_fingerprint": "the record does not say what it was measured on",
    "one_configuration": "fewer than two comparable configurations",
    "no_differences": "no question differs",
    "n_below_2": "fewer than two questions",
}
ANSWER_TEXTS: Mapping[str, str] = {
    "exact_match": "1 where the answer is a reference answer",
    "token_f1": "words in common with the best reference answer",
    "faithfulness": "share of the answer's words that the context has",
    "relevance": "cosine of question and answer",
    "correctness": "1 where the judge finds that it says what a reference says",
}


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a report."""

    html: Path
    markdown: Path
    csv: Path
    json: Path
    figures: tuple[Path, ...]


def write(report: Report, folder: Path) -> Written:
    """Writes `report.html`, `report.md`, `results.csv`, `results.json` and `figures/*.svg` below `folder`.

    The same report always gives the same bytes; the creation time on the page comes from `SOURCE_DATE_EPOCH` if it is
    set.
    """
    drawn = {key: (caption, svg(fig, caption)) for key, (caption, fig) in all_figures(report).items()}
    folder.mkdir(parents=True, exist_ok=True)
    context = _context(report, drawn)
    return Written(
        html=put(folder / "report.html", render("report.html.j2", context, html=True)),
        markdown=put(folder / "report.md", render("report.md.j2", context, html=False)),
        csv=put(folder / "results.csv", _csv(report)),
        json=put(
            folder / "results.json", json.dumps(as_json(report), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
        ),
        figures=tuple(put(folder / "figures" / f"{_safe(key)}.svg", text) for key, (_, text) in drawn.items()),
    )


def _safe(key: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in key)[:80]


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _csv(report: Report) -> str:
    header, rows = as_rows(report)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: object) -> object:
    """Full precision; nothing for None; text that a spreadsheet would run as a formula is shown as text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    if not isinstance(value, str):
        return value
    text = value
    return "'" + text if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


# ------------------------------------------------------------------ how numbers are shown


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"


def interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.ci_low is None or estimate.ci_high is None:
        return ""
    return f"{estimate.ci_low:.3f} – {estimate.ci_high:.3f}"


def ends(bounds: tuple[float | None, float | None] | None) -> str:
    return "" if bounds is None else " – ".join(map(number, bounds))


def why(reason: str | None) -> str:
    return REASONS.get(reason or "", (reason or "not_recorded").replace("_", " "))


def shown(estimate: Estimate | None) -> str:
    """A value with its n, or the reason in words."""
    if estimate is None:
        return "–"
    if estimate.value is None:
        return f"undefined: {why(estimate.reason)}"
    return f"{estimate.value:.3f}"


def p_value(p: float | None) -> str:
    if p is None:
        return "–"
    return "< .001" if p < 0.001 else f"{p:.3f}".replace("0.", ".", 1) if p < 1 else "1"


def cost(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    if name == "index_bytes":
        return f"{value / 1e6:.2f}"
    if name == "context_tokens":
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _made() -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _context(report: Report, drawn: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    ranking = report.ranking
    by_pairs = is_rate(report.metric) and (ranking is None or ranking.clusters is None)
    return {
        "report": report,
        "decision": report.decision,
        "ranking": ranking,
        "metric": report.metric,
        "unit": unit_of(report.metric),
        "level": level_of(report.decision.settings.alpha),
        "test": "exact McNemar tests" if by_pairs else "paired sign flips",
        "counted": counted(ranking) if ranking is not None else "questions",
        "because": why_recommended(ranking, COST_NAMES) if ranking is not None else "",
        "recall": report.recall if ranking is not None else None,
        "figures": drawn,
        "cost_names": COST_NAMES,
        "made": _made(),
        "summary": report.summary_of(ranking.best) if ranking is not None else None,
        "answer_metrics": report.answer_metrics,
        "answer_texts": ANSWER_TEXTS,
        "slice_tags": list(dict.fromkeys(s.tag for s in ranking.slices)) if ranking is not None else [],
    }


def render(template: str, context: Mapping[str, Any], *, html: bool) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("denominator.report", "templates"),
        autoescape=html,  # noqa: S701 - Markdown escapes through its own filter
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        number=number, signed=signed, interval=interval, ends=ends, shown=shown, why=why, p=p_value, md=_markdown
    )
    environment.globals.update(cost=cost, drawing=lambda key: Markup(context["figures"][key][1]))  # noqa: S704 - our SVG
    return environment.get_template(template).render(**context)


_MARKUP = {ord(char): f"&#{ord(char)};" for char in "&\\`*_[]<>|#"}


def _markdown(text: object) -> str:
    """Data inside a Markdown table or paragraph: nothing in it may become markup."""
    return " ".join(str(text).split()).translate(_MARKUP)
