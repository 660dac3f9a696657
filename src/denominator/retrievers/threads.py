"""How many cores a cell may use, so that the workers of a sweep do not fight for them; and calls side by side.

`DENOMINATOR_THREADS` says it (a launcher with as many workers as cores sets 1); without it a cell uses all cores.
No result depends on the number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

from denominator.errors import ConfigError

T = TypeVar("T")


def threads() -> int:
    """The number of threads for matrix products and models. Raises ConfigError for a value that is no number."""
    text = os.environ.get("DENOMINATOR_THREADS", "").strip()
    if not text:
        return os.cpu_count() or 1
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"DENOMINATOR_THREADS must be a whole number of at least 1, found {text!r}")
    return int(text)


@contextlib.contextmanager
def threads_limited(most: int) -> Iterator[None]:
    """Matrix products inside use at most `most` threads (through threadpoolctl, which comes with scikit-learn)."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(most, user_api="blas"):
        yield


def side_by_side(
    count: int, call: Callable[[int], T], *, concurrency: int, stop: Event, name: str
) -> Iterator[tuple[int, T]]:
    """`(i, call(i))` for all i as they are done, `concurrency` at once; one at a time in the caller's own thread.

    Whoever closes the iterator early sets `stop`, and what was not begun is not begun.
    """
    if count <= 1 or concurrency == 1:  # some clients know only the thread that made them
        yield from ((i, call(i)) for i in range(count))
        return
    pool = ThreadPoolExecutor(min(count, concurrency), name)
    try:
        waiting = {pool.submit(call, i): i for i in range(count)}
        for done in as_completed(waiting):
            yield waiting.pop(done), done.result()
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
