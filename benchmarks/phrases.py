"""Precision and recall of the refusal lists on what can be measured: a set written by hand, and real text.

    python benchmarks/phrases.py [DATA]

By hand: `tests/data/refusals_by_hand.jsonl`, refusals and answers with traps ("I cannot recommend enough"), made up for
this purpose beside the lists. The three newest lists (ja, he, ar) were adjusted on every other line of theirs (`tuned`)
and on no other (`held`).
Real text: sentences of documents and reference answers of the shared data (by default `../shared/data` beside the
project), none of which is a refusal. Half a minute. It prints the tables of docs/abstention_measured.md.
"""

from __future__ import annotations

import gzip
import json
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from denominator import phrases
from denominator.abstention import decide
from denominator.types import Answer
from denominator.uncertainty import wilson

PROJECT = Path(__file__).resolve().parents[1]
DATA = PROJECT.parent / "shared" / "data"
BY_HAND = PROJECT / "tests" / "data" / "refusals_by_hand.jsonl"
LANGUAGES = ("en", "de", "fr", "es", "zh", "ja", "he", "ar")
REAL = {"ja": ("jaquad",), "en": ("clapnq", "mtrag-un", "scifact")}
SHOWN = 12


def rate(hits: int, n: int, digits: int = 3) -> str:
    if not n:
        return "–"
    found = wilson(hits, n)
    return f"{hits}/{n} = {hits / n:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def by_hand() -> list[str]:
    rows = [json.loads(line) for line in BY_HAND.read_text(encoding="utf-8").splitlines()]
    out = ["| list | part | refusals | answers | precision | recall | undecided |", "| --- " * 7 + "|"]
    for lang in LANGUAGES:
        for part in ("tuned", "held"):
            here = [r for r in rows if r["lang"] == lang and r["part"] == part]
            if not here:
                continue
            said = [decide(Answer(text=r["text"]), lang).abstained for r in here]
            truth = [r["label"] == "refusal" for r in here]
            tp = sum(s is True and t for s, t in zip(said, truth, strict=True))
            refused = sum(s is True for s in said)
            out.append(
                f"| {lang} | {part} | {sum(truth)} | {len(truth) - sum(truth)} | {rate(tp, refused)} "
                f"| {rate(tp, sum(truth))} | {sum(s is None for s in said)} |"
            )
    return out


def lines_of(path: Path) -> Iterator[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def matches(text: str, lang: str) -> list[str]:
    """The sentences of a text that a pattern matches."""
    normal = unicodedata.normalize("NFKC", text).replace("\u2019", "'").casefold()
    return [s for s in phrases.sentences(normal, lang) if any(p.search(s) for p in phrases.patterns(lang))]


def real(data: Path) -> tuple[list[str], list[str]]:
    out = ["| list | text | n | matched | share |", "| --- " * 5 + "|"]
    shown = []
    for lang, names in REAL.items():
        for name in names:
            hits: list[str] = []
            n = 0
            for document in lines_of(data / name / "corpus.jsonl.gz"):
                text = str(document["text"])
                n += len(phrases.sentences(unicodedata.normalize("NFKC", text), lang))
                hits += matches(text, lang)
            out.append(f"| {lang} | sentences of {name} | {n} | {len(hits)} | {rate(len(hits), n, 5)} |")
            shown += [f"- {name}: {hit[:110]}" for hit in hits[:SHOWN]]
        answers = [a for name in names for a in references(data / name / "questions.jsonl.gz")]
        if answers:
            refused = sum(decide(Answer(text=a), lang).abstained is True for a in answers)
            out.append(
                f"| {lang} | reference answers of {', '.join(names)} | {len(answers)} | {refused} "
                f"| {rate(refused, len(answers), 5)} |"
            )
    return out, shown


def references(path: Path) -> Iterator[str]:
    """Reference answers to answerable questions; the text of the gold span where that is the answer."""
    for row in lines_of(path):
        if row["state"] != "answerable":
            continue
        given = row.get("answer") or row.get("answers")
        texts = given if isinstance(given, list) else [given] if given else []
        if not texts and isinstance(row["gold"], list):
            texts = [g["text"] for g in row["gold"] if isinstance(g, dict) and g.get("text")]
        yield from (str(text) for text in texts)


def tables(data: Path = DATA) -> list[str]:
    table, shown = real(data)
    return [*by_hand(), "", *table, "", "Matched, the first of each:", *shown]


if __name__ == "__main__":
    print("\n".join(tables(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)))
