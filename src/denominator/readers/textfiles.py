"""Lines and JSON values of text files, with errors that name the line. Nothing here knows a format.

Files are UTF-8 (a byte-order mark and CRLF line ends are tolerated), plain or gzip; which of the two is decided by
the content. Lines end at LF only: U+2028 and the like are ordinary characters inside a text.
"""

from __future__ import annotations

import difflib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from denominator.errors import InputError, listing

UTF8 = "UTF-8 text"
RESAVE = "save the file as UTF-8"
_WIDE_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_BOM = b"\xef\xbb\xbf"


_refused: ContextVar[list[InputError] | None] = ContextVar("refused", default=None)


class _OneRecord:
    """Around the work on one record. See `refusals`."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        noted = _refused.get()
        if noted is None or not isinstance(error, InputError):
            return False
        noted.append(error)
        return True


one_record = _OneRecord()


@contextmanager
def refusals() -> Iterator[list[InputError]]:
    """Inside, a reader leaves out each record that it refuses and notes the error here, where it would stop at it.

    What concerns a whole file (missing, not gzip, no rows at all) is raised as ever.
    """
    noted: list[InputError] = []
    token = _refused.set(noted)
    try:
        yield noted
    finally:
        _refused.reset(token)


def as_path(path: str | Path) -> Path:
    """The path as given, `~` expanded; a relative one is read from the folder of the call."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no home folder for that user
        return Path(path)


def near(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice that looks most like `word`, or None."""
    return _near(word, tuple(sorted(choices)), cutoff)


@lru_cache(maxsize=1024)  # an unknown field comes back on every line
def _near(word: str, choices: tuple[str, ...], cutoff: float) -> str | None:
    found = difflib.get_close_matches(word, choices, n=1, cutoff=cutoff)
    return found[0] if found else None


def one_of(folder: Path, name: str) -> Path:
    """The file, or the same with `.gz`; if neither is there, the plain name, so that reading it says so."""
    plain, packed = folder / name, folder / f"{name}.gz"
    return packed if packed.is_file() and not plain.is_file() else plain


def _absent(path: Path) -> InputError:
    folder = path.parent
    if not folder.is_dir():
        above = next((p for p in folder.parents if p.is_dir()), Path())
        return InputError("no such file", path=path, expected=f"a folder {folder} (of it only {above} exists)")
    try:
        names = [p.name for p in folder.iterdir()]
    except OSError:
        names = []
    guess = near(path.name, names, 0.75)
    return InputError(
        "no such file", path=path, expected="an existing file", fix=f"did you mean {folder / guess}?" if guess else None
    )


def open_bytes(path: str | Path) -> io.BufferedIOBase:
    """The file's bytes, unpacked if they are gzip. A missing file's error names the nearest existing one."""
    path = as_path(path)
    try:
        if path.is_dir():
            raise InputError("is a folder", path=path, expected="a file")
        raw = path.open("rb")
    except FileNotFoundError:
        raise _absent(path) from None
    except (OSError, ValueError) as error:
        raise InputError("cannot be read", path=path, found=str(error)) from None
    try:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
    except OSError as error:
        raw.close()
        raise InputError("cannot be read", path=path, found=str(error)) from None
    if packed:
        raw.close()
        return gzip.open(path, "rb")
    if path.suffix == ".gz":
        raw.close()
        raise InputError("is not gzip", path=path, expected="gzip data", fix="drop .gz from its name or pack it")
    return raw


def byte_lines(path: str | Path, *, ends: bool = False) -> Iterator[tuple[int, bytes]]:
    """Numbered lines (from 1) without a byte-order mark and, unless `ends`, without their ends; empty is an error."""
    path = as_path(path)
    number, empty = 0, True
    with open_bytes(path) as file:
        try:
            for raw in file:
                number += 1
                line = raw
                if number == 1:
                    for mark, name in _WIDE_MARKS.items():
                        if line.startswith(mark):
                            raise InputError(f"is {name}", path=path, expected=UTF8, fix=RESAVE)
                    if line.startswith(_BOM):
                        line = line[len(_BOM) :]
                    if b"\0" in line[:200]:
                        raise InputError("holds NUL bytes", path=path, line=1, expected=UTF8, fix=RESAVE)
                if not ends:
                    line = line.removesuffix(b"\n").removesuffix(b"\r")
                empty = empty and not line.strip()
                yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError("broken gzip data", path=path, line=number + 1, found=str(error)) from None
        except OSError as error:
            raise InputError("cannot be read", path=path, line=number + 1, found=str(error)) from None
    if empty:
        raise InputError("is empty", path=path, expected="at least one line")


def decode(raw: bytes, path: Path, line: int | None) -> str:
    """UTF-8, strictly: a byte that is none is an error with its place."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start + 1} of the line is not UTF-8" if line else f"byte {error.start + 1} is not UTF-8",
            path=path,
            line=line,
            found=f"0x{raw[error.start]:02x}",
            expected=UTF8,
            fix=RESAVE,
        ) from None


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the field {twice!r} is there twice")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant)


def parse_json(text: str, path: Path, line: int | None) -> Any:
    """One JSON value. Refused: NaN and Infinity, a field that is there twice, half a surrogate pair."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        at = error.lineno if line is None else line
        raise InputError(
            f"malformed JSON: {error.msg.removesuffix(' at')} at column {error.colno}",
            path=path,
            line=at,
            found=repr(text[max(0, error.pos - 20) : error.pos + 40]),
            expected="one JSON value" if line is None else "one JSON object a line",
        ) from None
    except RecursionError:
        raise InputError("JSON nested too deeply", path=path, line=line) from None
    except ValueError as error:
        raise InputError(f"malformed JSON: {error}", path=path, line=line, expected="strict JSON") from None
    if "\\u" in text:
        try:  # half a surrogate pair cannot be stored or hashed
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(
                "half a surrogate pair",
                path=path,
                line=line,
                expected="whole characters",
                fix="write the character itself",
            ) from None
    return value


def json_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered JSON objects, one a line; blank lines are passed over, anything else is an error with its line."""
    path = as_path(path)
    seen = False
    for number, raw in byte_lines(path):
        if not raw.strip():
            continue
        seen = True
        with one_record:
            value = parse_json(decode(raw, path, number), path, number)
            if not isinstance(value, dict):
                fix = "one object a line (JSON lines), not a list over the file" if isinstance(value, list) else None
                raise InputError(
                    "is not an object", path=path, line=number, found=kind(value), expected="a JSON object", fix=fix
                )
            yield number, value
    if not seen:
        raise InputError("is empty", path=path, expected="at least one JSON object")


def json_file(path: str | Path) -> Any:
    """The one JSON value of a whole file."""
    path = as_path(path)
    raw = b"\n".join(line for _, line in byte_lines(path))
    return parse_json(decode(raw, path, None), path, None)


def kind(value: Any) -> str:
    """A value as an error shows it: what it is, and its JSON."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true/false",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return f"{names.get(type(value), type(value).__name__)} {shown[:80]}" if value is not None else "null"


class Row:
    """One record with its place, so that every check can name file, line and field.

    `where` is the way to a record inside another (`gold[0].`), `nth` the row of a table (from 1, without the
    header), `names` what a field of ours is called in the file.
    """

    __slots__ = ("line", "names", "nth", "path", "values", "where")

    def __init__(
        self,
        values: Mapping[str, Any],
        path: Path,
        line: int | None,
        *,
        where: str = "",
        nth: int | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.values, self.path, self.line, self.where = values, path, line, where
        self.nth, self.names = nth, names or {}

    def error(
        self, message: str, field: str | None = None, found: object = None, expected: str | None = None, fix: str = ""
    ) -> InputError:
        if field is not None:
            field = self.where + field
        elif self.where:
            field = self.where.rstrip(".")
        if field is not None and self.names:
            first = re.split(r"[.\[]", field, maxsplit=1)[0]
            field = self.names.get(first, first) + field[len(first) :]
        return InputError(
            message if self.nth is None else f"{message} (row {self.nth})",
            path=self.path,
            line=self.line,
            field=field,
            found=found,
            expected=expected,
            fix=fix or None,
            place=f"row {self.nth}" if self.nth is not None else self.where.rstrip(".") or None,
        )

    def at(self, values: Mapping[str, Any], where: str) -> Row:
        """A record inside this one."""
        return Row(values, self.path, self.line, where=f"{self.where}{where}.", nth=self.nth, names=self.names)

    def inside(self, values: Mapping[str, Any]) -> Row:
        """Other values at the same place."""
        return Row(values, self.path, self.line, where=self.where, nth=self.nth, names=self.names)

    def known(self, fields: Iterable[str], renamed: Mapping[str, str] | None = None) -> list[str]:
        """Fields that nobody reads. One that looks like a misspelt name of ours is an error."""
        names = set(fields)
        other = []
        for key in self.values:
            if key in names:
                continue
            meant = (renamed or {}).get(key) or near(key, names, 0.85)
            if meant is not None and meant not in self.values:
                raise self.error("unknown field", key, expected=f"{meant!r}", fix=f"rename {key!r} to {meant!r}")
            other.append(key)
        return other

    def identifier(self, field: str) -> str:
        """A non-empty text, exactly as written; a number is refused, because "7" and 7 would never match."""
        if field not in self.values:
            raise self.error("is missing", field, expected="a non-empty text")
        value = self.values[field]
        if isinstance(value, str):
            if not value:
                raise self.error("is empty", field, expected="a non-empty text")
            return value
        fix = f'write it in quotes: "{value}"' if isinstance(value, int) and not isinstance(value, bool) else ""
        raise self.error("is not a text", field, found=kind(value), expected="a non-empty text", fix=fix)

    def text(self, field: str, *, required: bool = False, empty: bool = True) -> str | None:
        value = self.values.get(field)
        if value is None:
            if required:
                raise self.error(
                    "is null" if field in self.values else "is missing",
                    field,
                    expected="a text" if empty else "a non-empty text",
                )
            return None
        if not isinstance(value, str):
            raise self.error("is not a text", field, found=kind(value), expected="a text")
        if not empty and not value.strip():
            raise self.error("is empty", field, expected="a non-empty text")
        return value

    def flag(self, field: str) -> bool | None:
        value = self.values.get(field)
        if value is None or isinstance(value, bool):
            return value
        raise self.error("is not true or false", field, found=kind(value), expected="true or false, without quotes")

    def integer(self, field: str) -> int | None:
        value = self.values.get(field)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.error("is not a whole number", field, found=kind(value), expected="a whole number")

    def number(self, field: str) -> float | None:
        value = self.values.get(field)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                made = float(value)
            except OverflowError:
                made = float("inf")
            if made - made == 0.0:
                return made
        raise self.error("is not a finite number", field, found=kind(value), expected="a finite number")

    def items(self, field: str) -> list[Any]:
        value = self.values.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error("is not a list", field, found=kind(value), expected="a list")
        return value

    def mapping(self, field: str) -> dict[str, Any]:
        value = self.values.get(field)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error("is not an object", field, found=kind(value), expected="an object")
        return value


class Seen:
    """Ids and the line of their first appearance; the second one is an error that names both.

    With `collect` the error waits for `finish`, so that it names all such ids and not only the first.
    """

    def __init__(self, what: str, *, collect: bool = False) -> None:
        self.what = what
        self.collect = collect
        self.lines: dict[str, int | str] = {}
        self.twice: dict[str, tuple[Row, str, str]] = {}

    def add(self, identifier: str, row: Row, field: str = "id", place: int | str | None = None) -> None:
        here = place if place is not None else row.line or (f"row {row.nth}" if row.nth else row.where)
        if identifier in self.lines:
            first = self.lines[identifier]
            at = f"line {first}" if isinstance(first, int) else first
            message = f"duplicate {self.what} id, first in {at}"
            if not self.collect or _refused.get() is not None:
                raise row.error(message, field, found=repr(identifier), expected="each id once")
            self.twice.setdefault(identifier, (row, field, message))
            return
        self.lines[identifier] = here

    def finish(self) -> None:
        """Raises for ids that were there more than once: the place of the first, the ids of all."""
        if not self.twice:
            return
        identifier, (row, field, message) = next(iter(self.twice.items()))
        if len(self.twice) > 1:
            message += f", and so are others ({len(self.twice)} ids: {listing(self.twice)})"
        raise row.error(message, field, found=repr(identifier), expected="each id once")
