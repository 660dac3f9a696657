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
