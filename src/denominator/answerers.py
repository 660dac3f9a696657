"""Who decides that a question is not answered. Everything else about abstention is measured, not decided, here.

A user's own class works by `_target_` when it has `answers() -> Mapping[str, Answer] | None`. None says that the
decision comes from retrieval confidences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from denominator.errors import ConfigError
from denominator.types import Answer


class Answerer(Protocol):
    """What the pipeline needs: recorded answers by question id, or None for a decision by confidence."""

    def answers(self) -> Mapping[str, Answer] | None: ...


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
