"""Recorded answers of eleven models, read in three ways, and how well each reading agrees with hand labels.

    python benchmarks/nomiracl.py [FOLDER]

FOLDER holds NoMIRACL's recorded outputs (`outputs.jsonl.gz`); by default `../shared/data/nomiracl` beside the project.
The models were asked, in English, whether any of ten passages answers a question: "Yes, answer is present" or
"I don't know". It prints the tables of docs/abstention_measured.md.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from denominator.abstention import AbstentionReport, Agreement, Row, agreement, confusion, decide
from denominator.types import Answer

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = PROJECT.parent / "shared" / "data" / "nomiracl"
LABELS = PROJECT / "tests" / "data" / "nomiracl_labels.jsonl"
YES, NO = "Yes, answer is present", "I don't know"


def exact(text: str) -> bool | None:
    """The exact-match reading: trimmed of space and one final full stop, the text is one of the two phrases."""
    return {NO: True, YES: False}.get(text.strip().removesuffix("."))


def source_parser(text: str) -> bool | None:
    """The reading of NoMIRACL's own code: the phrases anywhere in the text, lower case; both phrases are an answer
    when "yes" comes more than once, else invalid; then "answer is (not) present"; then a bare `[n]`.
    """
    flat = text.replace("\n", " ").replace("\t", " ").lower()
    yes, no = flat.count(YES.lower()), flat.count(NO.lower())
    if yes and no:
        return False if yes > 1 else None
    if yes or no:
        return bool(no)
    if "answer is present" in flat:
        return False
    if "answer is not present" in flat:
        return True
    return False if len(flat) < 10 and re.search(r"\[\d+\]", flat) else None


def ladder(text: str, lang: str = "en") -> bool | None:
    """The package's decider ladder, without a judge. The answers are written in English whatever the question is."""
    return decide(Answer(text=text), lang).abstained


def records(folder: Path = FOLDER) -> list[dict[str, Any]]:
    with gzip.open(folder / "outputs.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def groups(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Records by model and language, in the order of names."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["model"], row["language"]), []).append(row)
    for model, language in sorted(found, key=lambda key: (key[1] != "en", key[0])):
        yield model, language, found[model, language]


def matrix(rows: list[dict[str, Any]], read: Any, *, others_answered: bool) -> AbstentionReport:
    """The abstention report of one reading. What the reading cannot place is an answer, or undecided."""
    said = [read(r["output"]) for r in rows]
    if others_answered:
        said = [bool(s) for s in said]
    return confusion(Row(r["state"] == "unanswerable", s) for r, s in zip(rows, said, strict=True))


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def cells(report: AbstentionReport) -> str:
    return f"{report.tp} / {report.fp} | {number(report.precision.value)} | {number(report.recall.value)}"


def kappa(found: Agreement) -> str:
    k = found.kappa
    return "–" if k.value is None else f"{k.value:.2f} [{k.ci_low:.2f}, {k.ci_high:.2f}]"


def main_table(rows: list[dict[str, Any]]) -> list[str]:
    out = [
        "| model | lang | exact: tp / fp | prec. | UAR | source's parser: tp / fp | prec. | UAR "
        "| ladder: tp / fp | prec. | UAR | UAR bounds | undecided | κ to exact | κ to parser |",
        "| --- " * 15 + "|",
    ]
    for model, language, part in groups(rows):
        ours = matrix(part, ladder, others_answered=False)
        said = [ladder(r["output"]) for r in part]
        assert ours.recall_bounds is not None
        low, high = ours.recall_bounds
        out.append(
            f"| {model} | {language} | {cells(matrix(part, exact, others_answered=True))} "
            f"| {cells(matrix(part, source_parser, others_answered=True))} | {cells(ours)} "
            f"| {number(low)}–{number(high)} | {ours.undecided} "
            f"| {kappa(agreement(said, [bool(exact(r['output'])) for r in part]))} "
            f"| {kappa(agreement(said, [bool(source_parser(r['output'])) for r in part]))} |"
        )
    return out


def language_line(rows: list[dict[str, Any]]) -> str:
    german = [r for r in rows if r["language"] == "de"]
    en, de = ([ladder(r["output"], lang) for r in german] for lang in ("en", "de"))
    return (
        f"German questions, {len(german)} outputs: read with the English patterns {sum(s is True for s in en)} "
        f"refusals and {sum(s is None for s in en)} undecided; with the German ones {sum(s is True for s in de)} "
        f"refusals and {sum(s is None for s in de)} undecided."
    )


def cross_table(rows: list[dict[str, Any]]) -> list[str]:
    """All outputs: what the ladder says against what the source's parser says."""
    counts: dict[tuple[bool | None, bool | None], int] = {}
    for r in rows:
        key = ladder(r["output"]), source_parser(r["output"])
        counts[key] = counts.get(key, 0) + 1
    out = ["| ladder | parser: refused | parser: answered | parser: invalid |", "| --- " * 4 + "|"]
    for name, ours in (("refused", True), ("answered", False), ("undecided", None)):
        out.append(
            f"| {name} | " + " | ".join(f"{counts.get((ours, theirs), 0)}" for theirs in (True, False, None)) + " |"
        )
    return out


def hand_table(rows: list[dict[str, Any]], labels: Path = LABELS) -> list[str]:
    """The readings against labels: exact outputs need no hand, the others were sampled and read one by one."""
    text = {(r["model"], r["question_id"]): r["output"] for r in rows}
    hand = [json.loads(line) for line in labels.read_text(encoding="utf-8").splitlines()]
    out = [
        "| outputs | reading | n decided | undecided | precision | recall | κ |",
        "| --- " * 7 + "|",
    ]

    def line(name: str, reading: str, read: Any, part: list[tuple[str, bool]], *, picked: bool = False) -> None:
        """`picked`: the sample was drawn from what the reading refused, so only its precision means something."""
        found = agreement([read(t) for t, _ in part], [label for _, label in part])
        p, r = found.precision, found.recall

        def rate(e: Any) -> str:
            return "–" if e.value is None else f"{e.value:.3f} [{e.ci_low:.3f}, {e.ci_high:.3f}] (n = {e.n})"

        out.append(
            f"| {name} | {reading} | {found.kappa.n} | {found.undecided} | {rate(p)} "
            f"| {'–' if picked else rate(r)} | {'–' if picked else kappa(found)} |"
        )

    def of(sample: str, *, unclear: bool, without: str = "-") -> list[tuple[str, bool]]:
        return [
            (text[h["model"], h["question_id"]], h["label"] == "refusal")
            for h in hand
            if h["sample"] == sample and (unclear or h["label"] != "unclear") and not h["model"].startswith(without)
        ]

    plain = [(r["output"], bool(exact(r["output"]))) for r in rows if exact(r["output"]) is not None]
    line("exact phrases (label by definition)", "ladder", ladder, plain)
    for reading, read in (("ladder", ladder), ("source's parser", source_parser)):
        line("120 of the others, clear ones", reading, read, of("not_exact", unclear=False))
        line("120 of the others, unclear = no refusal", reading, read, of("not_exact", unclear=True))
    for name, without in (("60 of the others that the ladder refuses", "-"), ("the same without llama-2", "llama-2")):
        line(name, "ladder", ladder, of("refused_not_exact", unclear=True, without=without), picked=True)
    return out


def tables(folder: Path = FOLDER) -> list[str]:
    rows = records(folder)
    return [*main_table(rows), "", *cross_table(rows), "", language_line(rows), "", *hand_table(rows)]


if __name__ == "__main__":
    print("\n".join(tables(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)))
