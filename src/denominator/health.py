"""What is wrong with a data set, before anything is run on it: the checks behind `denominator doctor`.

`examine` is pure: a `Dataset` in, a `Health` out, the same one for the same data. Every finding has a severity, a
count, ids and what to do. *error*: a strict run would refuse the data, or its numbers would be about something else.
*warning*: numbers can be made, and something pulls at them. *note*: good to know when reading them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from denominator import duplicates, tokens
from denominator.corpus import Column, names_of, texts_of
from denominator.eligibility import LENIENT, document_groups, groups_of, lost_evidence, span_groups, state_of
from denominator.errors import ConfigError, InputError, MeasurementError
from denominator.evaluation import MOST_SLICE_VALUES, tag_values
from denominator.types import STATES, Dataset, Document, Group, Ints, Plan, Question, State

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

LEAST = 20
"""Fewer questions in a class have no cross-fitted threshold, fewer in a slice say little."""
SPREADS = (0.2, 0.3, 0.4)
"""Usual standard deviations of paired differences in recall and coverage; for 0/1 values √(share that differs)."""
POWER = 0.8
EMBEDDER_LIMITS: Mapping[int, str] = {
    512: "the most that a classic embedder reads (many stop at 256)",
    8192: "the most that a long-context embedder reads",
}
NEAR_DOCUMENTS, DOCUMENT_WINDOW = 0.8, 9
NEAR_QUESTIONS, QUESTION_WINDOW = 0.6, 5
COPIED_SHARE, COPIED_WORDS, COPIED_QUESTIONS = 0.5, 6, 0.1
REFUSED = 10
"""Refused records that are shown with their errors; all are counted and their places listed."""
SHOWN = 3

# ------------------------------------------------------------------ what is said


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: how bad, how many of how many, which, and what to do about it.

    `ids` are all of them in the order of the files; ids of one group are joined by ` = `. `details` says more of the
    first few, where there is more to say.
    """

    code: str
    severity: Severity
    message: str
    count: int
    of: int | None
    ids: tuple[str, ...]
    advice: str
    details: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        lists = {"ids": list(self.ids), "details": list(self.details)}
        return {name: getattr(self, name) for name in self.__slots__} | lists


@dataclass(frozen=True, slots=True)
class Sizes:
    """Least, median, 95th percentile and most of some lengths (the percentile is one that occurs: the lower one)."""

    what: str
    unit: str
    n: int
    least: int
    median: float
    p95: int
    most: int

    @classmethod
    def of(cls, what: str, unit: str, values: Sequence[int] | Ints) -> Sizes:
        array = np.asarray(values, np.int64)
        p95 = int(np.percentile(array, 95, method="lower"))
        return cls(what, unit, array.size, int(array.min()), float(np.median(array)), p95, int(array.max()))

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Power:
    """What differences a set of `n` units can detect: one value for each of `SPREADS`, or the reason why none."""

    metric: str
    tag: str
    value: str
    n: int
    unit: str
    detectable: tuple[float | None, ...]
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"detectable": list(self.detectable)}


@dataclass(frozen=True, slots=True)
class Health:
    """Everything that `doctor` says about a data set. `findings` are sorted: errors, warnings, notes."""

    name: str
    source: str
    dataset_hash: str
    corpus_hash: str | None
    label_source: str
    evaluate: str
    documents: int
    questions: int
    states: Mapping[str, int]
    findings: tuple[Finding, ...]
    sizes: tuple[Sizes, ...]
    power: tuple[Power, ...]

    def count(self, severity: Severity) -> int:
        return sum(f.severity == severity for f in self.findings)

    def exit_code(self, *, strict: bool = False) -> int:
        """1 with an error, or under `strict` with a warning; else 0."""
        return int(bool(self.count("error") or (strict and self.count("warning"))))

    def as_dict(self) -> dict[str, Any]:
        """One JSON object: `dataset`, `states`, `counts`, `findings`, `sizes`, `power`."""
        names = ("name", "source", "dataset_hash", "corpus_hash", "label_source", "evaluate", "documents", "questions")
        return {
            "dataset": {name: getattr(self, name) for name in names},
            "states": dict(self.states),
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [f.as_dict() for f in self.findings],
            "sizes": [s.as_dict() for s in self.sizes],
            "power": {
                "alpha": Plan().alpha,
                "power": POWER,
                "sd": list(SPREADS),
                "rows": [p.as_dict() for p in self.power],
            },
        }


# ------------------------------------------------------------------ what the checks look at


@dataclass(frozen=True, slots=True)
class _Facts:
    """A data set with what several checks need, made once. `states` has only questions whose labels can be read."""

    data: Dataset
    lenient: bool
    slices: tuple[str, ...]
    texts: Mapping[str, str]
    states: Mapping[str, State]
    broken: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, tuple[Group, ...]]
    has_corpus: bool
    near: bool
    lengths: Ints
    tokens: Ints  # of each document, as the length
    empty: tuple[str, ...]

    def within(self, *states: State) -> list[Question]:
        return [q for q in self.data.questions if self.states.get(q.id) in states]

    @property
    def n(self) -> int:
        return len(self.data.questions)


def _facts(data: Dataset, lenient: bool, slices: Sequence[str], near: bool) -> _Facts:
    has_corpus = data.corpus_hash is not None
    texts = texts_of(data.documents)
    states: dict[str, State] = {}
    groups: dict[str, tuple[Group, ...]] = {}
    broken: dict[str, list[str]] = {}
    seen: set[str] = set()
    for question in data.questions:
        if question.id in seen:
            broken.setdefault("duplicate_question_ids", []).append(question.id)
            continue
        seen.add(question.id)
        try:
            groups[question.id] = groups_of(question)
            states[question.id] = state_of(question, texts.keys() if has_corpus else None, evaluate=data.evaluate)
        except MeasurementError as error:
            broken.setdefault(error.code, []).append(question.id)
    lengths, counts = np.zeros((2, len(data.documents)), np.int64)
    empty: list[str] = []
    for i, document in enumerate(data.documents):
        lengths[i], counts[i] = len(document.text), tokens.count(document.text)
        if not document.text.strip():
            empty.append(document.id)
    return _Facts(
        data, lenient, tuple(slices), texts, states, {k: tuple(v) for k, v in broken.items()}, groups, has_corpus,
        near, lengths, counts, tuple(empty),
    )  # fmt: skip


def some(ids: Sequence[str], shown: int = SHOWN) -> str:
    return ", ".join(ids[:shown]) + (", …" if len(ids) > shown else "")


def _ids(items: Iterable[Question | Document]) -> tuple[str, ...]:
    return tuple(item.id for item in items)


def _finding(
    code: str, severity: Severity, message: str, ids: Sequence[str], advice: str, *, of: int | None = None
) -> Iterator[Finding]:
    """The finding, if there is anything in it."""
    if ids:
        yield Finding(code, severity, message, len(ids), of, tuple(ids), advice)


# ------------------------------------------------------------------ labels and gold


_BLOCKED: Mapping[State, tuple[str, str]] = {
    "unlabelled": ("questions without a label of answerability", "give each one a state"),
    "conflict": ("unanswerable questions with gold", "take the gold away, or label them answerable or partial"),
    "answerable_no_gold": (
        "answerable questions without gold evidence",
        "add the evidence, or label them unanswerable; recorded answers without a corpus need evaluate=abstention",
    ),
    "partial_no_gold": (
        "partial questions without gold evidence",
        "add the evidence for the part that the corpus answers, or label them unanswerable",
    ),
    "needs_review": ("questions marked needs_review", "look at them, then take the mark away"),
}
_UNREADABLE = {
    "bad_label": ("labels other than the four", "write answerable, unanswerable, partial or unlabelled"),
    "empty_group": ("questions with an evidence group without alternatives", "fill the group or take it away"),
    "gold_grade_mismatch": (
        "questions whose grades contradict their gold",
        "a positive grade needs its document in gold, a gold document a grade above 0",
    ),
    "duplicate_question_ids": ("question ids used more than once", "give each question its own id"),
    "bad_id": ("questions with an id or a gold id that is no text", "write ids as non-empty texts"),
}


def _labels(facts: _Facts) -> Iterator[Finding]:
    n = facts.n
    for code, ids in facts.broken.items():
        what, advice = _UNREADABLE.get(code, (code.replace("_", " "), "mend the labels"))
        yield from _finding(code, "error", what, ids, advice, of=n)
    severity: Severity = "warning" if facts.lenient else "error"
    way_out = f"; or leave them out and count them: {LENIENT}"
    lost = lost_evidence(_readable(facts), facts.texts.keys()) if facts.has_corpus else {}
    for state, (what, advice) in _BLOCKED.items():
        here, way = facts.within(state), way_out
        if state == "needs_review":
            gone = [q.id for q in here if q.id in lost]
            documents = tuple(dict.fromkeys(d for i in gone for d in lost[i]))
            yield from _finding(
                "gold_not_in_corpus",
                severity,
                f"questions whose gold is not in the corpus (absent: {some(documents)})",
                gone,
                "add these documents to the corpus, or mend the gold: recall 1 is out of reach" + way_out,
                of=n,
            )
            here = [q for q in here if q.needs_review]
        if state == "unlabelled":
            held = sum(bool(facts.groups[q.id]) for q in here)
            if held:
                way = f"; assume_answerable=true takes those with gold ({held}) as answerable, on the record{way_out}"
        yield from _finding(state, severity, what, _ids(here), advice + way, of=n)
    eligible = facts.within("answerable")
    if not eligible and facts.data.evaluate == "retrieval":
        yield from _finding(
            "no_eligible",
            "error",
            "no question is eligible: no retrieval metric has a value",
            _ids(facts.data.questions[:1]) or ("–",),
            "a question is eligible when it is labelled answerable and has gold",
        )
    if facts.data.label_source == "assumed":
        yield from _finding(
            "labels_assumed",
            "note",
            "questions with answerability assumed from the presence of gold; nothing is unanswerable by it",
            _ids(eligible),
            "the record says label_source = assumed; label some questions to measure abstention",
            of=n,
        )


def _readable(facts: _Facts) -> list[Question]:
    return [q for q in facts.data.questions if q.id in facts.states]


def _gold(facts: _Facts) -> Iterator[Finding]:
    scored = facts.within("answerable", "partial")
    if facts.has_corpus:
        part = [q.id for q in scored if any(e.doc not in facts.texts for g in facts.groups[q.id] for e in g)]
        yield from _finding(
            "alternative_not_in_corpus",
            "warning",
            "questions of which some alternative evidence is not in the corpus (another one is)",
            part,
            "add these documents or take the alternatives away",
            of=len(scored),
        )
        out: list[str] = []
        blank: list[str] = []
        for q in facts.data.questions:
            spans = [(facts.texts[e.doc], e) for g in q.gold for e in g if e.doc in facts.texts]
            if any(e.start is not None and e.end is not None and not 0 <= e.start < e.end <= len(t) for t, e in spans):
                out.append(q.id)
            elif any(not t[e.start : e.end].strip() for t, e in spans if e.start is not None or e.whole):
                blank.append(q.id)
        yield from _finding(
            "span_out_of_range", "error", "questions with a gold span outside of its document", out,
            "offsets are code points of the stored text, end exclusive", of=facts.n,
        )  # fmt: skip
        yield from _finding(
            "empty_span", "error", "questions with a gold span that holds nothing but white space", blank,
            "coverage counts no white space, so such a span can never be covered: mend its offsets", of=facts.n,
        )  # fmt: skip
    eligible = facts.within("answerable")
    either = [q.id for q in eligible if any(len(g) > 1 for g in document_groups(q))]
    yield from _finding(
        "or_groups",
        "note",
        "eligible questions with alternative evidence: nDCG, map and R-precision are undefined for the whole run",
        either,
        "nothing to do; recall, complete, hit and mrr are defined, and coverage too",
        of=len(eligible),
    )
    without = [q.id for q in eligible if span_groups(q) is None]
    with_some = len(without) < len(eligible)
    if facts.data.evaluate == "retrieval":
        yield from _finding(
            "no_spans",
            "warning" if with_some else "note",
            "eligible questions without character spans: coverage is undefined for the whole run"
            if with_some
            else "eligible questions without character spans: coverage is undefined, and the headline is recall@5",
            without,
            "add start and end, or whole: true where the whole document is the evidence",
            of=len(eligible),
        )
    repeated = [q.id for q in scored if len(facts.groups[q.id]) < len(q.gold)]
    yield from _finding(
        "repeated_gold", "note", "questions with the same evidence twice; it counts once", repeated,
        "nothing to do, or take the copies away", of=len(scored),
    )  # fmt: skip


# ------------------------------------------------------------------ texts


_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u2060\ufeff]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ue000-\uf8ff]")
_UPPER = "\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122"
_EARLY, _BYTE = (
    f"[\x80-\x9f{_UPPER}]",
    f"[\x80-\xbf{_UPPER}]",
)  # continuation bytes as Latin-1 or Windows-1252 show them
_MISREAD = re.compile(
    f"[\u00c2\u00c3]{_BYTE}|\u00c5[\u201c\x93\xa1\xbe]|[\u00d0\u00d1]{_BYTE}(?=[\u00d0\u00d1])"  # accents, Cyrillic
    f"|\u00e2{_EARLY}{_BYTE}|\u00ef\u00bb\u00bf|\u00ef\u00bf\u00bd|\u00e3[\x81-\x83\u201a\u0192]{_BYTE}"  # marks, kana
)


def mojibake(text: str) -> str | None:
    """The first piece that is UTF-8 read as Windows-1252 or Latin-1, or None.

    Only combinations that correct text does not hold: `ß“` closes a German quotation, `é »` a French one.

    >>> mojibake("The cafÃ© is open"), mojibake("café, „Spaß“, fiancée")
    ('Ã©', None)
    """
    for found in _MISREAD.finditer(text):
        for wrong in ("cp1252", "latin-1"):
            try:
                found[0].encode(wrong).decode("utf-8")
            except UnicodeError:
                continue
            return found[0]
    return None


def _encodings(facts: _Facts) -> Iterator[Finding]:
    checks: tuple[tuple[str, Severity, str, Callable[[str], object], str], ...] = (
        ("replacement_characters", "warning", "texts with the replacement character U+FFFD: letters were lost",
         lambda t: "\ufffd" in t, "read the source again in its own encoding"),
        ("mojibake", "warning", "texts with UTF-8 that was read as Latin-1 (such as Ã© for é)", mojibake,
         "repair the text (ftfy does), then look at the offsets again"),
        ("control_characters", "warning", "texts with control or private-use characters", _CONTROL.search,
         "take them out before the offsets are made"),
        ("invisible_characters", "note", "texts with invisible characters (zero width, soft hyphen, byte-order mark)",
         _INVISIBLE.search, "a word with one in it does not match the same word without"),
        ("mixed_normalisation", "warning", "texts not in Unicode normal form NFC",
         lambda t: not unicodedata.is_normalized("NFC", t),
         "é as one or as two characters are different words to BM25: use one form in questions and documents"),
    )  # fmt: skip
    found: dict[str, list[str]] = {code: [] for code, *_ in checks}
    asked: Counter[str] = Counter()
    questions = [(q.id, q.question) for q in facts.data.questions if q.question]
    documents = ((d.id, f"{d.title or ''}\n{d.text}") for d in facts.data.documents)
    for is_asked, texts in ((False, documents), (True, questions)):
        for name, text in texts:
            plain = text.isascii()
            for code, _, _, wrong, _ in checks:
                if (not plain or code == "control_characters") and wrong(text):
                    found[code].append(name)
                    asked[code] += is_asked
    n = len(facts.data.documents) + len(questions)
    for code, severity, message, _, advice in checks:
        at, some = found[code], asked[code]
        where = f" (documents: {len(at) - some}, questions: {some})" if some else ""
        yield from _finding(code, severity, message + where, at, advice, of=n)


def _documents(facts: _Facts) -> Iterator[Finding]:
    documents = facts.data.documents
    empty = facts.empty
    gold = {e.doc for groups in facts.groups.values() for g in groups for e in g}
    named = sum(i in gold for i in empty)
    yield from _finding(
        "empty_documents", "warning", f"documents without text ({named} of them are gold)", empty,
        "fill them or take them away", of=len(documents),
    )  # fmt: skip
    names = names_of(documents)
    for limit, who in EMBEDDER_LIMITS.items():
        yield from _finding(
            "oversized_documents",
            "note",
            f"documents of more than {limit:,} tokens, {who}",
            [names[i] for i in np.flatnonzero(facts.tokens > limit).tolist()],
            "retrieve chunks (any chunker but none and whole), or the rest of such a text is never seen",
            of=len(documents),
        )
    yield from _twins(facts)


def _twins(facts: _Facts) -> Iterator[Finding]:
    documents = facts.data.documents
    equal = duplicates.equal_texts(d.text for d in documents)
    copies = {i for group in equal for i in group[1:]}
    single = [i for i in range(len(documents)) if i not in copies]
    near: Sequence[duplicates.Alike] = ()
    if facts.near:
        near = duplicates.near_texts(Column(documents, single), least=NEAR_DOCUMENTS, width=DOCUMENT_WINDOW)
    else:
        yield Finding(
            "near_not_looked_for", "note", "nearly equal documents were not looked for: the corpus is large", 0,
            len(documents), (), "denominator doctor looks for them, which takes minutes",
        )  # fmt: skip
    alike = [tuple(single[i] for i in a.members) for a in near]
    for code, groups, what in (
        ("equal_documents", equal, "groups of documents with equal text under different ids"),
        ("near_documents", alike, f"groups of documents with nearly equal text (similarity from {NEAR_DOCUMENTS:g})"),
    ):
        twin = {documents[i].id: {documents[j].id for j in group} for group in groups for i in group}
        hurt = [q.id for q in facts.within("answerable", "partial") if _misses_twin(q, twin)]
        pulled = (
            f"; one is gold and the other not in {len(hurt)} of the questions ({some(hurt)})"
            if hurt
            else "; no question has only some of a group as gold"
        )
        yield from _finding(
            code,
            "warning" if hurt else "note",
            what + pulled,
            [" = ".join(documents[i].id for i in group) for group in groups],
            "finding the other copy counts as a miss: keep one, or make them alternatives of one gold group"
            if hurt
            else "scores of such documents tie, and ids decide; keep one of each if you can",
        )


def _misses_twin(question: Question, twin: Mapping[str, Collection[str]]) -> bool:
    return any(any(set(twin[d]) - set(group) - _alone(question) for d in group if d in twin)
               for group in document_groups(question))  # fmt: skip


def _alone(question: Question) -> set[str]:
    """Documents that are gold by themselves: finding them counts already."""
    return {d for group in document_groups(question) for d in group}


# ------------------------------------------------------------------ questions


def _questions(facts: _Facts) -> Iterator[Finding]:
    asked = [q for q in facts.data.questions if q.question]
    if facts.has_corpus or facts.data.evaluate == "abstention":
        silent = _ids(q for q in facts.data.questions if not (q.question or "").strip())
        yield from _finding(
            "no_question_text", "warning", "questions without a text", silent,
            "a retriever has nothing to search with: write the question", of=facts.n,
        )  # fmt: skip
    same: dict[tuple[str, tuple[tuple[str, str], ...]], list[Question]] = {}
    for q in asked:
        same.setdefault((duplicates.plain(q.question or ""), q.history), []).append(q)
    clashing, mixed, again = [], [], []
    for group in same.values():
        if len(group) < 2:
            continue
        states = {facts.states.get(q.id) for q in group}
        joined = " = ".join(q.id for q in group)
        if {"answerable", "unanswerable"} <= states:
            clashing.append(joined)
        elif len(states) > 1:
            mixed.append(joined)
        else:
            again.append(joined)
    yield from _finding(
        "contradicting_questions", "error", "groups of equal questions, answerable and unanswerable at once", clashing,
        "no system can be right on both: mend the labels, or make the question say what differs",
    )  # fmt: skip
    yield from _finding(
        "equal_questions_other_state", "warning", "groups of equal questions in different states", mixed,
        "one label is probably wrong",
    )  # fmt: skip
    yield from _finding(
        "repeated_questions", "warning", "groups of equal questions", again,
        "each counts in n as if it were independent: keep one, or name a field that joins them with cluster=…",
    )  # fmt: skip
    yield from _lookalikes(facts, asked)


def _lookalikes(facts: _Facts, asked: Sequence[Question]) -> Iterator[Finding]:
    scored = [q for q in asked if facts.states.get(q.id) in ("answerable", "unanswerable")]
    likes = duplicates.near_texts([q.question or "" for q in scored], least=NEAR_QUESTIONS, width=QUESTION_WINDOW)
    found = []
    for like in likes:
        group = [scored[i] for i in like.members]
        plain = {(duplicates.plain(q.question or ""), q.history) for q in group}
        if len({facts.states[q.id] for q in group}) > 1 and len(plain) > 1:
            found.append(" = ".join(q.id for q in group))
    yield from _finding(
        "lookalike_questions", "note",
        f"groups of nearly equal questions (similarity from {NEAR_QUESTIONS:g}), answerable and unanswerable", found,
        "look whether the difference is meant; a confidence threshold can hardly tell them apart",
    )  # fmt: skip


def copied_share(words: Sequence[str], gold: Iterable[str]) -> float:
    """The longest run of the question's words that stands in one gold text, over all its words; no words, 0.

    >>> copied_share(["what", "is", "the", "refund", "period"], [duplicates.line_of("The refund period: 30 days.")])
    0.6
    """
    return max((duplicates.longest_run(words, line) for line in gold), default=0) / len(words) if words else 0.0


def _shares(facts: _Facts) -> dict[str, float]:
    """`copied_share` of every scored question with enough words and gold whose text is known."""
    lines: dict[tuple[str, int | None, int | None], str] = {}
    shares = {}
    for q in facts.within("answerable", "partial"):
        words = duplicates.words_of(q.question or "")
        spans = [e for g in facts.groups[q.id] for e in g if e.doc in facts.texts]
        if len(words) < COPIED_WORDS or not spans:
            continue
        for e in spans:
            key = (e.doc, e.start, e.end)
            if key not in lines:
                lines[key] = duplicates.line_of(facts.texts[e.doc][e.start : e.end])
        shares[q.id] = copied_share(words, (lines[e.doc, e.start, e.end] for e in spans))
    return shares


def _copied(shares: Mapping[str, float]) -> Iterator[Finding]:
    found = [i for i, share in shares.items() if share >= COPIED_SHARE]
    yield from _finding(
        "copied_questions",
        "warning" if len(found) > COPIED_QUESTIONS * len(shares) else "note",
        f"questions of which at least {COPIED_SHARE:.0%} is one run of words of the gold text",
        found,
        "they are easy for word matching (BM25) and say little about it: put them in other words",
        of=len(shares),
    )


# ------------------------------------------------------------------ what can be detected


def _slices(facts: _Facts) -> dict[tuple[str, str], list[Question]]:
    """Eligible questions by tag and value: the tags that were named, else every tag with 2 to 20 values."""
    tags = sorted({tag for q in facts.data.questions for tag in q.tags})
    for tag in facts.slices:
        if tag not in tags:
            raise ConfigError(f"no question has the tag {tag!r} (there are: {', '.join(tags) or 'none'})")
    found: dict[tuple[str, str], list[Question]] = {}
    eligible = facts.within("answerable")
    for tag in facts.slices or tags:
        values = sorted({v for q in facts.data.questions for v in tag_values(q.tags, tag)})
        if facts.slices or 2 <= len(values) <= MOST_SLICE_VALUES:
            found |= {(tag, v): [q for q in eligible if v in tag_values(q.tags, tag)] for v in values}
    return found


def _power_row(metric: str, questions: Sequence[Question], name: tuple[str, str] = ("", ""), reason: str = "") -> Power:
    from denominator.uncertainty import mdd

    clustered = bool(questions) and all(q.cluster is not None for q in questions)
    n = len({q.cluster for q in questions}) if clustered else len(questions)
    found = [mdd(sd, n, alpha=Plan().alpha, power=POWER) for sd in SPREADS]
    given = reason or found[0].reason
    unit = "clusters" if clustered else "questions"
    return Power(metric, *name, n, unit, tuple(None if given else m.value for m in found), given)


def _power(facts: _Facts) -> list[Power]:
    eligible, negative = facts.within("answerable"), facts.within("unanswerable")
    rows = []
    if facts.data.evaluate == "retrieval":
        none = "" if eligible else "no_eligible"
        no_spans = "no_spans" if any(span_groups(q) is None for q in eligible) else none
        rows.append(_power_row("recall@5", eligible, reason=none))
        rows.append(_power_row("coverage@b2000", eligible, reason=no_spans))
    rows.append(_power_row("abstention_recall", negative, reason="" if negative else "no_unanswerable"))
    rows.append(_power_row("false_refusal_rate", eligible, reason="" if eligible else "no_answerable"))
    if facts.data.evaluate == "retrieval":
        rows += [_power_row("recall@5", qs, name, "" if qs else "empty_slice") for name, qs in _slices(facts).items()]
    return rows


def _strength(facts: _Facts) -> Iterator[Finding]:
    from denominator.uncertainty import min_p

    eligible, negative = facts.within("answerable"), facts.within("unanswerable")
    units = _power_row("recall@5", eligible).n
    if 0 < units < LEAST:
        cannot = f"; even if all differ, p is at least {min_p(units):.2g}" if min_p(units) > Plan().alpha else ""
        yield Finding(
            "few_eligible", "warning", f"only {units} independent eligible units: intervals are wide{cannot}", units,
            facts.n, _ids(eligible), f"label more questions; below {LEAST} hardly any difference shows",
        )  # fmt: skip
    for name, questions in (("answerable", eligible), ("unanswerable", negative)):
        if 0 < len(questions) < LEAST and negative:
            yield Finding(
                "class_too_small", "warning",
                f"{name} questions: only {len(questions)}, so no cross-fitted threshold (too_few_per_class)",
                len(questions), facts.n, _ids(questions), f"label at least {LEAST}, or give a fixed threshold",
            )  # fmt: skip
    if not negative:
        yield Finding(
            "no_unanswerable", "note", "no unanswerable questions: abstention cannot be measured", 0, facts.n, (),
            "add questions whose answer is not in the corpus, labelled unanswerable",
        )  # fmt: skip
    sliced = {f"{tag}={value}": len(qs) for (tag, value), qs in _slices(facts).items() if qs}
    small = [f"{name} ({n})" for name, n in sliced.items() if n < LEAST]
    yield from _finding(
        "small_slices", "note", f"slices with fewer than {LEAST} eligible questions", small,
        "read their values as anecdotes", of=len(sliced),
    )  # fmt: skip


# ------------------------------------------------------------------ all of it


def examine(
    data: Dataset,
    *,
    lenient: bool = False,
    slices: Sequence[str] = (),
    refused: Sequence[InputError] = (),
    near: bool = True,
) -> Health:
    """The health of a data set. With `lenient`, questions that block a strict run are warnings instead of errors.

    `refused` are errors of records that could not be read; the rest is about those that could. `near=False` leaves out
    the search for nearly equal documents, and says so.
    Errors: `ConfigError` for a slice that no question has.
    """
    facts = _facts(data, lenient, slices, near)
    shares = _shares(facts)
    found: list[Finding] = [
        *_refused(refused),
        *_labels(facts), *_gold(facts), *_encodings(facts), *_documents(facts), *_questions(facts), *_copied(shares),
        *(_strength(facts) if data.evaluate == "retrieval" else _classes_only(facts)),
        *(Finding("reader", "note", note, 1, None, (), "") for note in data.notes
          if not note.startswith(("gold documents that", "documents without any", "assume_answerable"))),
    ]  # fmt: skip
    found.sort(key=lambda f: SEVERITIES.index(f.severity))  # stable: the order of the checks stays
    counts: dict[str, int] = dict.fromkeys(STATES, 0)
    for state in facts.states.values():
        counts[state] += 1
    if facts.broken:
        counts["unreadable"] = sum(map(len, facts.broken.values()))
    return Health(
        data.name, data.source, data.dataset_hash, data.corpus_hash, data.label_source, data.evaluate,
        len(data.documents), facts.n, counts, tuple(found), tuple(_sizes(facts, shares)), tuple(_power(facts)),
    )  # fmt: skip


def _classes_only(facts: _Facts) -> Iterator[Finding]:
    """For recorded answers: classes that are too small for a threshold do not matter, absent ones do."""
    for state, reason in (("answerable", "no_answerable"), ("unanswerable", "no_unanswerable")):
        if not facts.within(state):  # type: ignore[arg-type]  # both are states
            yield Finding(reason, "warning", f"no {state} questions", 0, facts.n, (), "abstention needs both classes")


def _refused(errors: Sequence[InputError]) -> Iterator[Finding]:
    if errors:
        more = f"; the first {REFUSED} of them" if len(errors) > REFUSED else ""
        whole = any(e.line is None and e.place is None for e in errors)  # a document of a folder
        yield Finding(
            "refused_lines", "error", f"records{' or files' if whole else ''} refused by the reader{more}", len(errors),
            None, tuple(map(_place, errors)), "mend them; what follows is about the others",
            tuple(map(str, errors[:REFUSED])),
        )  # fmt: skip


def _place(error: InputError) -> str:
    where = error.line if error.line is not None else error.place
    return Path(str(error.path)).name + (f":{where}" if where is not None else "")


def _sizes(facts: _Facts, shares: Mapping[str, float]) -> Iterator[Sizes]:
    if facts.data.documents:
        yield Sizes.of("documents", "tokens", facts.tokens)
        yield Sizes.of("documents", "characters", facts.lengths)
    asked = [tokens.count(q.question) for q in facts.data.questions if q.question]
    if asked:
        yield Sizes.of("questions", "tokens", asked)
    gold = [facts.groups[q.id] for q in facts.within("answerable", "partial")]
    if gold and any(gold):
        yield Sizes.of("evidence of a question", "groups", [len(groups) for groups in gold])
    spans = [
        tokens.count(facts.texts[e.doc][e.start : e.end])
        for groups in gold for g in groups for e in g if e.start is not None and e.doc in facts.texts
    ]  # fmt: skip
    if spans:
        yield Sizes.of("gold spans", "tokens", spans)
    if shares:
        yield Sizes.of("longest copied run", "% of the question", [round(100 * s) for s in shares.values()])
