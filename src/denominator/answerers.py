"""Who decides that a question is not answered. Everything else about abstention is measured, not decided, here.

A user's own class works by `_target_` when it has `answers() -> Mapping[str, Answer] | None`. None says that the
decision comes from retrieval confidences. One that writes answers from what was retrieved has `generate` instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from denominator.abstention import Judge
from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import ChunkTable, Ranked
from denominator.types import Answer, Outcome, Plan, Question


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


@dataclass(frozen=True, slots=True)
class Recorded:
    """Answers recorded elsewhere: JSONL of `{"question_id", "answer"?, "abstained"?, "answerable"?, "error"?}`."""

    path: str
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("path",)

    def identity(self) -> str:
        """The content counts, not where it lies."""
        import hashlib

        try:
            return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        except OSError as error:
            raise ConfigError(f"answerer recorded: {self.path} cannot be read ({error.strerror})") from None

    def answers(self) -> Mapping[str, Answer]:
        from denominator.readers.runs import read_answers

        return read_answers(self.path)


# ------------------------------------------------------------------ what the answers' texts are worth


def judged_texts(
    outcomes: Sequence[Outcome],
    questions: Sequence[Question],
    answers: Mapping[str, Answer],
    contexts: Mapping[str, str] | None,
) -> tuple[Outcome, ...]:
    """The outcomes with exact match, token F1, faithfulness to the contexts, and relevance by static vectors."""
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
    return with_quality(outcomes, questions, answers, contexts=contexts, relevances=relevances)


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
