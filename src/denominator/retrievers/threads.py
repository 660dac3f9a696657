"""How many cores a cell may use, so that the workers of a sweep do not fight for them.

`DENOMINATOR_THREADS` says it (a launcher with as many workers as cores sets 1); without it a cell uses all cores.
No result depends on the number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from denominator.errors import ConfigError


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
