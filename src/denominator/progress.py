"""What a sweep says while it runs: one event log that every process appends to, one display that follows it.

Workers of any launcher write a line for each thing that happens; the launching process reads along. The same lines
say at the end what became of every cell, so that one whose process vanished is noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

ENDED = ("recorded", "reused", "failed", "waiting", "killed", "not_started")


class Events:
    """Appends one JSON line per event. A line is written by one call, so that processes do not mix theirs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unwritten: list[dict[str, Any]] = []  # the disk is full: this process at least knows what became of a cell

    def say(self, job: int, what: str, **more: Any) -> None:
        event = {"job": job, "what": what, "time": time.time(), **more}
        line = (json.dumps(event, ensure_ascii=True) + "\n").encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                written = os.write(handle, line)
                if written < len(line):  # half a line would swallow the next one
                    os.ftruncate(handle, os.fstat(handle).st_size - written)
                    self.unwritten.append(event)
            finally:
                os.close(handle)
        except OSError:
            self.unwritten.append(event)

    def read(self, start: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Whole lines from a byte offset on, and the offset after them."""
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                text = file.read()
        except OSError:
            return [], start
        end = text.rfind(b"\n") + 1
        return [json.loads(line) for line in text[:end].splitlines()], start + end

    def ends(self) -> dict[int, dict[str, Any]]:
        """Job number → how it ended. A cell that occurs twice in a grid was computed, not found, in this call."""
        found: dict[int, dict[str, Any]] = {}
        for event in [*self.read()[0], *self.unwritten]:
            if event["what"] in ENDED and not (event["what"] == "reused" and event["job"] in found):
                found[event["job"]] = event
        return found


def console(stream: Any = None, *, width: int | None = None) -> Console:
    """A console that never fails on a character: what the stream's encoding lacks is written as `?`."""
    from rich.console import Console

    stream = stream or sys.stdout
    if hasattr(stream, "reconfigure"):
        with contextlib.suppress(ValueError, OSError):
            stream.reconfigure(errors="replace")
    terminal = bool(getattr(stream, "isatty", lambda: False)())
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    columns = width or (None if terminal else 100)
    return Console(
        file=stream,
        width=columns,
        highlight=False,
        soft_wrap=False,
        emoji=False,
        markup=False,
        safe_box=not encoding.startswith("utf"),
        legacy_windows=False,
    )


@contextlib.contextmanager
def following(events: Events, names: Sequence[str], *, quiet: bool = False, json_lines: bool = False) -> Iterator[None]:
    """Shows the events while the block runs: a live line on a terminal, plain lines elsewhere, nothing when quiet.

    `json_lines`: every event as one line of JSON on stderr instead, for a log collector.
    """
    if quiet and not json_lines:
        yield
        return
    show = _Json(names) if json_lines else _Live(names) if sys.stderr.isatty() else _Lines(names)
    stop = threading.Event()

    def follow() -> None:
        at = 0
        while True:
            last = stop.is_set()  # read once more after the end, so that the last lines are shown
            found, at = events.read(at)
            for event in found:
                show.event(event)
            if last:
                return
            stop.wait(0.1)

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    with show:
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def figure_text(event: Mapping[str, Any]) -> str:
    """The headline of a cell with its n; empty when it has no value."""
    value = event.get("value")
    return "" if value is None else f"{event.get('metric')} {value:.3f}, n = {event.get('n')}, "


def outcome_text(event: Mapping[str, Any]) -> str:
    """What is said of a cell that ended."""
    what = str(event["what"])
    if what == "recorded":
        return f"{figure_text(event)}{event.get('seconds', 0.0):.1f} s"
    if what == "failed":
        return f"FAILED: {event.get('error', '')}"
    if what == "waiting":
        return f"{figure_text(event)}NOT RECORDED YET: {event.get('away') or event.get('error', '')}"
    if what == "not_started":
        return f"not started: {event['error']}" if event.get("error") else "not started"
    return {"reused": "recorded before", "killed": "interrupted"}.get(what, what)


def name_of(event: Mapping[str, Any], names: Sequence[str]) -> str:
    """The cell's name; a sweeper that chooses cells while it runs has none beforehand."""
    job = event["job"]
    return str(event.get("name") or (names[job] if job < len(names) else f"cell {job}"))


class _Json:
    """Each event as it was logged, with the cell's name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def __enter__(self) -> _Json:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def event(self, event: Mapping[str, Any]) -> None:
        line = json.dumps({**event, "name": name_of(event, self.names)}, ensure_ascii=True, allow_nan=False)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


class _Lines:
    """One line for each cell that ends."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.done = 0
        self.out = console(sys.stderr)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def event(self, event: Mapping[str, Any]) -> None:
        if event["what"] in ENDED:
            self.done += 1
            name = name_of(event, self.names)
            width = len(str(len(self.names)))
            of = f"/{len(self.names)}" if self.names else ""
            text = f"[{self.done:>{width}}{of}] {name}: {outcome_text(event)}"
            self.out.print(text, soft_wrap=True)


class _Live:
    """A bar, the counts, and what is being done; failures stay above it."""

    def __init__(self, names: Sequence[str]) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self.names = names
        self.counts: dict[str, int] = {}
        self.bar = Progress(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[counts]}", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[now]}", markup=False),
            console=console(sys.stderr),
            transient=True,
        )
        self.task = self.bar.add_task("", total=len(names) or None, counts="", rate="", now="")
        self.started = time.monotonic()

    def __enter__(self) -> _Live:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def event(self, event: Mapping[str, Any]) -> None:
        name = name_of(event, self.names)
        if event["what"] in ENDED:
            self.counts[event["what"]] = self.counts.get(event["what"], 0) + 1
            if event["what"] in ("failed", "waiting"):
                self.bar.console.print(f"{name}: {outcome_text(event)}", soft_wrap=True)
            counts = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in self.counts.items())
            computed = sum(self.counts.get(what, 0) for what in ("recorded", "failed", "waiting"))
            each = (time.monotonic() - self.started) / max(1, computed)
            rate = f"{each:.1f} s a cell" if computed else ""
            self.bar.update(self.task, advance=1, counts=counts, rate=rate)
        else:
            stage = event.get("stage", "")
            room = max(20, self.bar.console.width - 66)  # what the bar, the counts and the times leave
            text = f"{name}{': ' + stage if stage else ''}"
            self.bar.update(self.task, now=text if len(text) <= room else text[: room - 1] + "…")
