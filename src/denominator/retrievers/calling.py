"""Calls of something of the user's, a function or a database: time-outs, retries, a rate limit, several at once.

What HTTP endpoints have in `denominator.endpoints.client`, for calls that are not HTTP. A call that fails for good
fails the questions that it was for; nothing here stops the others.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np

from denominator.errors import ConfigError, DenominatorError
from denominator.masking import mask
from denominator.retrievers.threads import side_by_side

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """How something is called.

    `timeout`: seconds for one attempt, None: as long as it takes. `retries`: further attempts after an exception or a
    time-out. `backoff`: seconds of the first wait, doubled each time up to `max_wait`, half of it random.
    `concurrency`: calls at once, from as many threads. `calls_per_minute`: starts are spread evenly, retries included,
    per process. `give_up_after`: failures in a row after which the rest is not called. None of them is part of a key.
    """

    timeout: float | None = None
    retries: int = 0
    backoff: float = 1.0
    max_wait: float = 60.0
    concurrency: int = 1
    calls_per_minute: float | None = None
    give_up_after: int = 10
    what: ClassVar[str] = "embedder"
    not_in_key: ClassVar[tuple[str, ...]] = (
        "timeout",
        "retries",
        "backoff",
        "max_wait",
        "concurrency",
        "calls_per_minute",
        "give_up_after",
    )

    def __post_init__(self) -> None:
        for name, least in (("retries", 0), ("concurrency", 1), ("give_up_after", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{self.what}: {name} must be a whole number of at least {least}, found {value!r}")
        for name, open_end in (("timeout", True), ("backoff", False), ("max_wait", True), ("calls_per_minute", True)):
            value = getattr(self, name)
            if value is None and name in ("timeout", "calls_per_minute"):
                continue
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not good or value < 0 or (open_end and value == 0):
                bound = "greater than 0" if open_end else "of at least 0"
                raise ConfigError(f"{self.what}: {name} must be a number {bound}, found {value!r}")


class Failed(Exception):  # noqa: N818  # it is handed over, not raised
    """A call that failed for good; the text is what the record says."""


class Caller:
    """Makes calls as `Calls` says. One for each opened part, so that the rate limit holds for all its questions."""

    def __init__(self, how: Calls) -> None:
        self.how = how
        self._lock = threading.Lock()
        self._next = 0.0

    def each(self, count: int, call: Callable[[int], T]) -> Iterator[tuple[int, T | Failed]]:
        """`call(i)` for all i, each with its result or with what went wrong, as they are done.

        An error of our own (a wrong setting) is raised: it would be the same for every question.
        """
        how, stop, failures = self.how, threading.Event(), list[str]()

        def one(i: int) -> T | Failed:
            if len(failures) >= how.give_up_after:
                return Failed(f"not asked, after {len(failures)} failures in a row; the last: {failures[-1]}")
            found = self._attempts(i, call, stop)
            with self._lock:
                if isinstance(found, Failed):
                    failures.append(str(found))
                elif len(failures) < how.give_up_after:
                    failures.clear()
            return found

        yield from side_by_side(count, one, concurrency=how.concurrency, stop=stop, name="denominator-call")

    def _attempts(self, i: int, call: Callable[[int], T], stop: threading.Event) -> T | Failed:
        how = self.how
        draw = np.random.default_rng([i])  # drawn per question, so that threads do not change the waits
        wait, attempt = how.backoff, 1
        while True:
            stop.wait(self._turn())
            if stop.is_set():
                return Failed("not asked: the work was stopped")
            try:
                return call(i)
            except DenominatorError:
                raise
            except Exception as error:  # whatever a user's function raises fails its question alone
                if attempt > how.retries:
                    times = f" ({attempt} attempts)" if attempt > 1 else ""
                    return Failed(mask(f"{type(error).__name__}: {error}{times}"))
            stop.wait(min(wait, how.max_wait) * (0.5 + 0.5 * float(draw.random())))
            wait, attempt = 2 * wait, attempt + 1

    def _turn(self) -> float:
        """Seconds until the next call may start; the place is taken."""
        if self.how.calls_per_minute is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + 60.0 / self.how.calls_per_minute
            return start - now


def called(function: Callable[..., Any], *arguments: Any, timeout: float | None, listed: Callable[[Any], T]) -> T:
    """`listed(function(…))`, the result awaited if it can be. Raises TimeoutError after `timeout` seconds.

    All coroutines of a process run on one event loop, so that a client keeps its connections from call to call. A
    coroutine that takes too long is cancelled; a plain function cannot be, and is left behind in its thread.
    """
    end = None if timeout is None else time.monotonic() + timeout

    def call() -> tuple[Any, bool]:
        found = function(*arguments)
        return (found, True) if inspect.isawaitable(found) else (listed(found), False)

    found, waits = call() if timeout is None else _within(timeout, call)
    if not waits:
        made: T = found
        return made

    async def awaited() -> T:
        return listed(await found)

    future = asyncio.run_coroutine_threadsafe(awaited(), _loop())
    try:
        return future.result(None if end is None else max(0.0, end - time.monotonic()))
    except TimeoutError:
        if future.done():
            raise  # its own
        future.cancel()
        raise _late(timeout) from None


def _late(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"no answer within {timeout:g} s")


def _within(timeout: float, call: Callable[[], T]) -> T:
    """The call in a thread that nobody waits for longer than that, not even the end of the process."""
    made: list[T] = []
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            made.append(call())
        except BaseException as error:  # handed over to the thread that waits
            wrong.append(error)

    thread = threading.Thread(target=work, name="denominator-call-timed", daemon=True)
    thread.start()
    thread.join(timeout)
    if made:
        return made[0]
    if wrong:
        raise wrong[0]
    raise _late(timeout)


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="denominator-loop", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=_loop.cache_clear)  # a thread does not survive a fork
