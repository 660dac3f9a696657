"""Who decides that a question is not answered. Everything else about abstention is measured, not decided, here.

A user's own class works by `_target_` when it has `answers() -> Mapping[str, Answer] | None`. None says that the
decision comes from retrieval confidences. One that writes answers from what was retrieved has `generate` instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from denominator.abstention import Judge
from denominator.errors import ConfigError
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import Ranked
from denominator.types import Answer, Plan, Question


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
