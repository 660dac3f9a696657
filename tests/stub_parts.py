"""Parts that misbehave on purpose, named by `_target_` in the tests of the sweep."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stub:
    """A reranker that does what the environment variable STUB says: nothing, raise, interrupt or kill."""

    api_key: str = ""
    cacheable = False

    def rerank(self, bench: Any, ranked: Any) -> Any:
        how = os.environ.get("STUB", "")
        if how == "raise":
            raise RuntimeError(f"the service refused the key {self.api_key} at https://me:pw-pw-pw@host.invalid/")
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return ranked


@dataclass(frozen=True)
class Threads:
    """A reranker that writes down how many threads its process may use."""

    cacheable = False

    def rerank(self, bench: Any, ranked: Any) -> Any:
        import json

        import numpy as np
        from threadpoolctl import threadpool_info

        from denominator.retrievers.threads import threads

        np.ones((64, 64)) @ np.ones((64, 64))
        blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        seen = {"threads": threads(), "blas": blas, "rayon": os.environ.get("RAYON_NUM_THREADS")}
        with open(os.environ["THREADS_SEEN"], "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps(seen) + "\n")
        return ranked


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Heavy:
    """A first stage whose index holds 50 MB."""

    number: int = 0

    def open(self, bench: Any) -> Any:
        return HeavyIndex(bench)


class HeavyIndex:
    def __init__(self, bench: Any) -> None:
        import numpy as np

        from denominator.embedders import BM25

        self.inner = BM25().open(bench)
        self.weights = np.ones(50_000_000, np.uint8)
        self.facts, self.held = self.inner.facts, self.weights.nbytes

    def search(self, bench: Any, queries: Any) -> Any:
        return self.inner.search(bench, queries)
