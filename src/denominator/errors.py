"""What the package raises. Every error knows the exit code that the command line gives it.

Exit codes: 1 a gate or a cell failed, 2 could not judge, 64 wrong usage or input.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

SHOWN_IDS = 10


def listing(ids: Iterable[str], shown: int = SHOWN_IDS) -> str:
    """The first ids, sorted, and how many there are: ``'a', 'b' … (12 in all)``."""
    every = sorted(ids)
    text = ", ".join(repr(i) for i in every[:shown])
    return f"{text} … ({len(every)} in all)" if len(every) > shown else text


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is a disk without space.

    >>> is_full(OSError(errno.ENOSPC, "No space left on device")), is_full(OSError(errno.EACCES, "no"))
    (True, False)
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "disk is full" in str(error):  # sqlite's words
            return True
        error = error.__cause__ or error.__context__
    return False


class DenominatorError(Exception):
    """Base of all errors that a person can mend. The message says what to do."""

    exit_code = 64


class MeasurementError(DenominatorError):
    """A refusal to give a number; `code` is one of the error codes in docs/measurement.md.

    `ids` are what has to be mended (question ids, field names, the value that was found), sorted.
    """

    def __init__(self, code: str, ids: Iterable[str] = (), message: str = "") -> None:
        self.code = code
        self.ids = tuple(sorted(str(i) for i in ids))
        text = self.message = message or code.replace("_", " ")
        super().__init__(f"[{code}] {text}" + (f": {listing(self.ids)}" if self.ids else ""))


class InputError(DenominatorError):
    """A file that cannot be used: names file, line, field, what was found, what was expected, the fix.

    `place`: where in the file, if it has no numbered lines (the row of a table, the way in a JSON value).
    """

    def __init__(
        self,
        message: str,
        *,
        path: object = None,
        line: int | None = None,
        field: str | None = None,
        found: object = None,
        expected: str | None = None,
        fix: str | None = None,
        place: str | None = None,
    ) -> None:
        self.place = place
        self.path, self.line, self.field = path, line, field
        self.found, self.expected, self.fix = found, expected, fix
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        what = f"field {field!r}: " if field else ""
        parts = [f"{where}{what}{message}"]
        if found is not None:
            shown = found if isinstance(found, str) else repr(found)
            parts.append(f"found {shown[:200]}")
        if expected is not None:
            parts.append(f"expected {expected}")
        if fix is not None:
            parts.append(f"to mend it: {fix}")
        super().__init__("; ".join(parts))


class ConfigError(DenominatorError):
    """A setting that cannot be used, found before any work was done."""


class MissingExtraError(DenominatorError):
    """An optional library is not installed; the message is the command that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs an extra: pip install 'denominator[{extra}]'")


class StageError(DenominatorError):
    """A part of a cell failed while it worked (not a wrong setting)."""

    exit_code = 1


class StoreError(DenominatorError):
    """The tracking store cannot be used; says what is safe on disk and how to go on."""

    exit_code = 2


class JudgementError(DenominatorError):
    """Nothing can be said: what is recorded contradicts itself, or may not be compared. Names both values."""

    exit_code = 2
