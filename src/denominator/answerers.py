"""Who decides that a question is not answered. Everything else about abstention is measured, not decided, here.

A user's own class works by `_target_` when it has `answers() -> Mapping[str, Answer] | None`. None says that the
decision comes from retrieval confidences. One that writes answers from what was retrieved has `generate` instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from denominator import phrases
from denominator.abstention import LEAST_HAND_LABELS, RUNGS, Agreement, Judge, agreement, agreement_facts, decide
from denominator.cache import Cache, describe
from denominator.errors import ConfigError, MeasurementError, listing
from denominator.fingerprint import sha
from denominator.quality import answered
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import ChunkTable, Ranked
from denominator.types import Answer, Outcome, Plan, Question

if TYPE_CHECKING:
    from denominator.readers.runs import HandLabel


class Answerer(Protocol):
    """What the pipeline needs: recorded answers by question id, or None for a decision by confidence."""

    def answers(self) -> Mapping[str, Answer] | None: ...


@dataclass(frozen=True, slots=True)
class Written:
    """Answers by question id, an optional judge of their texts, figures and notes for the record."""

    answers: Mapping[str, Answer]
    judge: Judge | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Writer(Protocol):
    """An answerer that writes from the ranking; `questions` are the bench's questions, row by row."""

    def generate(self, bench: Bench, ranked: Ranked, questions: Sequence[Question], plan: Plan) -> Written: ...


@dataclass(frozen=True, slots=True)
class Threshold:
    """Abstains where nothing was found or the confidence is below `t`; without `t` it is cross-fitted (5 folds)."""

    t: float | None = None
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.t is not None and (isinstance(self.t, bool) or not math.isfinite(self.t)):
            raise ConfigError(f"answerer threshold: t must be a finite number or null, found {self.t!r}")

    def answers(self) -> None:
        return None


def content_hash(path: str, where: str) -> str:
    """SHA-256 of a file: its content counts, not where it lies. Raises ConfigError when it cannot be read."""
    import hashlib

    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read ({error.strerror})") from None


@dataclass(frozen=True, slots=True)
class Recorded:
    """Answers recorded elsewhere: JSONL of `{"question_id", "answer"?, "abstained"?, "answerable"?, "error"?}`.

    `lang`: the language that they are written in, where that is not the language of the questions (a line's own `lang`
    goes before). `judge`: any
    `abstention.Judge`, such as a `denominator.endpoints.chat.Judge`, for texts that nothing else decides. `grader`: a
    `denominator.endpoints.chat.Grader` of their correctness. `hand`: a file of labels by hand that all of these are
    held against.
    """

    path: str
    lang: str | None = None
    judge: Any = None
    grader: Any = None
    hand: str | None = None
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("path", "hand")

    def __post_init__(self) -> None:
        if self.judge is not None and not callable(self.judge):
            raise ConfigError(f"answerer recorded: judge must be callable, found {type(self.judge).__name__}")
        if self.grader is not None and not hasattr(self.grader, "grades"):
            raise ConfigError(f"answerer recorded: grader has no method grades(): {type(self.grader).__name__}")
        if self.lang is not None:
            phrases.check_languages([self.lang])

    def identity(self) -> str:
        files = [self.path, *([self.hand] if self.hand else [])]
        return " ".join(content_hash(path, "answerer recorded") for path in files)

    def answers(self) -> Mapping[str, Answer]:
        from denominator.readers.runs import read_answers

        found = read_answers(self.path)
        if self.lang is None:
            return found
        return {q: a if a.lang is not None else replace(a, lang=self.lang) for q, a in found.items()}


def check_languages(questions: Sequence[Question], answers: Mapping[str, Answer], version: str) -> None:
    """Refuses a `lang` of a question or of an answer that is no language tag (ConfigError)."""
    given = {answer.lang for answer in answers.values() if answer.lang is not None}
    phrases.check_languages({q.lang for q in questions} | given, version)


# ------------------------------------------------------------------ judges


def asked_judge(
    judge: Any, cache: Cache, questions: Sequence[Question], answers: Mapping[str, Answer], version: str
) -> tuple[Judge | None, dict[str, float], tuple[str, ...]]:
    """The judge, after it was asked about every text that nothing else decides where it can be asked beforehand."""
    if not hasattr(judge, "beforehand"):
        return judge, {}, ()
    items: dict[tuple[str, str, str], None] = {}

    def listed(text: str, *, question: str | None, lang: str) -> None:
        items[question or "", text, lang] = None

    for question in questions:
        answer = answers.get(question.id)
        lang = question.lang if answer is None or answer.lang is None else answer.lang
        decide(answer, lang, listed, question=question.question, version=version)
    found: tuple[Judge, dict[str, float], tuple[str, ...]] = judge.beforehand(cache, list(items))
    return found


def instruments(part: Any) -> dict[str, str]:
    """Parameters of a run that say which judge and which grader read its answers, prompts included."""
    found: dict[str, str] = {}
    for name in ("judge", "grader"):
        one = getattr(part, name, None)
        if one is not None:
            found[f"answerer.{name}.hash"] = sha(describe(one))[:12]
            found |= {f"answerer.{name}.model": one.model} if isinstance(getattr(one, "model", None), str) else {}
    return found


# ------------------------------------------------------------------ what the answers' texts are worth


@dataclass(frozen=True, slots=True)
class Worth:
    """The outcomes with the quality of their answers, and what was found out about whoever read them.

    `agreement`: hand labels against the decider as a whole (`decider`), each rung that decided something, and the
    grader; empty without labels.
    """

    outcomes: tuple[Outcome, ...]
    agreement: Mapping[str, Agreement]
    facts: Mapping[str, float]
    notes: tuple[str, ...]


def worth_of(
    part: Any,
    cache: Cache,
    outcomes: Sequence[Outcome],
    questions: Sequence[Question],
    *,
    answers: Mapping[str, Answer],
    contexts: Mapping[str, str] | None,
    plan: Plan,
) -> Worth:
    """What the texts are worth, graded where `part` has a `grader`, and held against labels where it has `hand`."""
    facts: dict[str, float] = {}
    notes = list(reading_notes(outcomes, questions, answers, plan))
    grades: Mapping[str, bool | None] | None = None
    grader, hand = getattr(part, "grader", None), getattr(part, "hand", None)
    if grader is not None:
        known = {q.id: q for q in questions}
        asked = {
            o.id: {
                "question": known[o.id].question or "",
                "text": o.answer,
                "references": references,
                "lang": answers[o.id].lang or known[o.id].lang,
            }
            for o in outcomes
            if answered(o) and (references := [r for r in known[o.id].answers if r.strip()])
        }
        grades, more, said = grader.grades(cache, asked)
        facts |= more
        notes += said
    made = judged_texts(outcomes, questions, answers, contexts, grades)
    found: dict[str, Agreement] = {}
    if hand is not None:
        from denominator.readers.runs import read_hand_labels

        asked_for = [name for name in ("judge", "grader") if getattr(part, name, None) is not None]
        found, said = held_against(
            made, read_hand_labels(hand), plan.alpha, asked=asked_for, clustered=plan.cluster is not None
        )
        notes += said
        facts |= agreement_facts(found)
    for name, count in (
        ("judge", sum(o.rung == "judge" and o.abstained is not None for o in made)),
        ("grader", sum("correctness" in o.quality for o in made)),
    ):
        if count and (name not in found or not found[name].enough):
            n = found[name].kappa.n if name in found else 0
            notes.append(
                f"the {name} decided {count} answers and was held against {n} hand labels; give at least "
                f"{LEAST_HAND_LABELS} before its figures are compared (docs/abstention.md)"
            )
    return Worth(made, found, facts, tuple(notes))


def held_against(
    outcomes: Sequence[Outcome],
    labels: Mapping[str, HandLabel],
    alpha: float,
    *,
    asked: Collection[str] = (),
    clustered: bool = False,
) -> tuple[dict[str, Agreement], tuple[str, ...]]:
    """The agreement of decisions and grades with labels by hand.

    `asked` names what the run had of `judge` and `grader`: where there are labels for one, it is in the result even if
    it decided nothing (`n_zero`). `clustered`: answers are not independent, the outcomes say which belong together.
    A label that was given to another text than the answer that is here is left out and counted. Raises
    MeasurementError `unknown_question_ids`.
    """
    by_id = {o.id: o for o in outcomes}
    unknown = [q for q in labels if q not in by_id]
    if unknown:
        raise MeasurementError("unknown_question_ids", unknown, "labels by hand of questions that are not here")
    stale = [q for q, label in labels.items() if label.answer is not None and label.answer != by_id[q].answer]
    kept = {q: label for q, label in labels.items() if q not in stale}
    pairs: dict[str, list[tuple[bool | None, bool, str | None]]] = {}
    for name in asked:
        if any((label.correct if name == "grader" else label.abstained) is not None for label in kept.values()):
            pairs[name] = []
    for q, label in kept.items():
        outcome = by_id[q]
        cluster = outcome.cluster if clustered else None
        if label.abstained is not None:
            pairs.setdefault("decider", []).append((outcome.abstained, label.abstained, cluster))
            if outcome.rung is not None:
                pairs.setdefault(outcome.rung, []).append((outcome.abstained, label.abstained, cluster))
        if label.correct is not None and answered(outcome):
            grade = outcome.quality.get("correctness")
            pairs.setdefault("grader", []).append((None if grade is None else grade == 1, label.correct, cluster))
    if "grader" not in asked and all(decided is None for decided, _, _ in pairs.get("grader", ())):
        pairs.pop("grader", None)  # nobody graded
    found = {
        name: agreement(
            [decided for decided, _, _ in pairs[name]],
            [by_hand for _, by_hand, _ in pairs[name]],
            alpha=alpha,
            clusters=[cluster for _, _, cluster in pairs[name]],
        )
        for name in ("decider", *RUNGS, "grader")
        if name in pairs
    }
    notes = [f"labels by hand left out, given to another text: {len(stale)} of {len(labels)} ({listing(stale, 5)})"]
    return found, tuple(notes) if stale else ()


LEAST_REFUSALS = 3
"""Refusals that another language's list must find beyond the own one before a wrong language is suspected."""


def reading_notes(
    outcomes: Sequence[Outcome], questions: Sequence[Question], answers: Mapping[str, Answer], plan: Plan
) -> tuple[str, ...]:
    """Texts that were read in a language without a list, and texts that look like refusals in another language."""
    known = {q.id: q.lang for q in questions}
    read: dict[str, list[Outcome]] = {}
    for o in outcomes:
        if o.rung in ("phrase", "no_patterns") and o.id in answers:
            read.setdefault(answers[o.id].lang or known[o.id], []).append(o)
    notes = []
    for lang, rows in sorted(read.items()):
        why = phrases.without_list(lang, plan.phrases)
        if why is not None:
            notes.append(
                f"{len(rows)} answers in {lang!r} are undecided: {why}; set the language of the answers, "
                "or give them a flag or a judge"
            )
        own = sum(bool(o.abstained) for o in rows)
        for other in phrases.languages(plan.phrases):
            if other == phrases.primary(lang):
                continue
            there = sum(bool(decide(Answer(text=o.answer), other, version=plan.phrases).abstained) for o in rows)
            if there >= own + LEAST_REFUSALS:
                notes.append(
                    f"{len(rows)} answers were read as {lang!r}, which finds {own} refusals; the list for {other!r} "
                    f"finds {there}: are they written in {other!r}? `lang` is the language of the answers"
                )
    return tuple(notes)


def judged_texts(
    outcomes: Sequence[Outcome],
    questions: Sequence[Question],
    answers: Mapping[str, Answer],
    contexts: Mapping[str, str] | None,
    grades: Mapping[str, bool | None] | None = None,
) -> tuple[Outcome, ...]:
    """The outcomes with exact match, token F1, faithfulness to the contexts, relevance by static vectors, grades."""
    from denominator.quality import relevance, with_quality
    from denominator.retrievers.static import DIMENSIONS, static_model

    texts = {q: a.text for q, a in answers.items() if a.error is None and a.text and a.text.strip()}
    both = [(q.id, q.question, texts[q.id]) for q in questions if q.id in texts and q.question]
    relevances: dict[str, float | None] = {}
    if both:
        model = static_model()
        asked = model.vectors(model.bags([question for _, question, _ in both]), DIMENSIONS, "question")
        said = model.vectors(model.bags([text for _, _, text in both]), DIMENSIONS, "answer")
        relevances = dict(zip([name for name, _, _ in both], relevance(asked, said), strict=True))
    return with_quality(outcomes, questions, answers, contexts=contexts, relevances=relevances, grades=grades)


def contexts_of(
    part: Any, table: ChunkTable, ranked: Ranked, questions: Sequence[Question], plan: Plan
) -> dict[str, str]:
    """What each answer was written from: what a writer says it sends (its `context`), else the first K chunks.

    K is 5 where it is measured, else the largest. Titles belong to it, as a generator gets them.
    """
    sent = getattr(part, "context", None)
    k = 5 if 5 in plan.ks else max(plan.ks)
    found = {}
    for i, question in enumerate(questions):
        units = ranked.unit[ranked.offsets[i] : ranked.offsets[i + 1]].tolist()
        if callable(sent):
            texts = [f"{chunk['title']}\n{chunk['text']}" for chunk in sent(table, units, plan)]
        else:
            texts = [table.indexed(unit) for unit in units[:k]]
        found[question.id] = "\n\n".join(texts)
    return found
