"""What a server was asked once is not asked again: answers kept one by one, in the cache's own entries.

Answers come in batches, out of order, and cost money, so they are written as they come: a batch is one entry, and an
empty file of its name under `texts/<namespace>` says that it belongs to this model. Failures are never kept.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from threading import Event
from typing import Any

import numpy as np

from denominator.cache import Cache, Payload
from denominator.endpoints.client import Client, EndpointError
from denominator.fingerprint import sha
from denominator.retrievers.dense import Vectors

BATCH = 256
SECONDS = 2.0
STAGE = "endpoint"


class Kept:
    """Answers of one server under one model: `key` → JSON value, and a vector where the values have one.

    `namespace` names all that the answers depend on beside their key. Only one thread may use it.
    """

    def __init__(self, cache: Cache, namespace: Mapping[str, Any], what: str) -> None:
        self.cache, self.what = cache, what
        self.name = sha({"kept": 1, **namespace})
        self.places: dict[str, tuple[str, int]] = cache.once(f"kept:{self.name}", dict, lambda _: 0)
        self.entries: set[str] = cache.once(f"kept entries:{self.name}", set, lambda _: 0)
        self.folder = None if cache.root is None else cache.root / "texts" / self.name
        self.pending: dict[str, tuple[Any, Vectors | None]] = {}
        self.written = time.monotonic()
        self._look()

    def _look(self) -> None:
        """Reads which answers other processes have kept since."""
        if self.folder is None or not self.folder.is_dir():
            return
        for pointer in sorted(self.folder.iterdir()):
            if pointer.name not in self.entries:
                self._learn(pointer.name)

    def _learn(self, entry_key: str) -> None:
        entry = self.cache.get(entry_key)
        if entry is None:  # pruned, or damaged and set aside
            self.entries.discard(entry_key)
            if self.folder is not None:
                with contextlib.suppress(OSError):
                    (self.folder / entry_key).unlink(missing_ok=True)
            return
        self.entries.add(entry_key)
        for row, key in enumerate(entry.lists["keys"]):
            self.places.setdefault(key, (entry_key, row))

    def find(self, keys: Iterable[str]) -> dict[str, tuple[Any, Vectors | None]]:
        """Those that are there."""
        found: dict[str, tuple[Any, Vectors | None]] = {}
        for key in keys:
            if key in self.pending:
                found[key] = self.pending[key]
            elif key in self.places and key not in found:
                entry_key, row = self.places[key]
                entry = self.cache.get(entry_key)
                if entry is None:
                    del self.places[key]
                    continue
                vectors = entry.arrays.get("vectors")
                found[key] = (entry.lists["values"][row], None if vectors is None else np.asarray(vectors[row]))
        return found

    def complete(
        self, keys: Mapping[int, str], client: Client, ask: Callable[[int, Event], Any]
    ) -> tuple[dict[str, Any], dict[str, EndpointError]]:
        """What is kept, and `ask(i, stop)` for the first i of each other key: the values, and what failed, by key.

        Answers are kept as they come; a failure is not, so the next sweep asks again.
        """
        found: dict[str, Any] = {key: value for key, (value, _) in self.find(keys.values()).items()}
        first: dict[str, int] = {}
        for i, key in keys.items():
            if key not in found:
                first.setdefault(key, i)
        todo = list(first.items())
        wrong: dict[str, EndpointError] = {}
        asking = client.each(len(todo), lambda j, stop: ask(todo[j][1], stop))
        try:
            for j, reply in asking:
                key = todo[j][0]
                if isinstance(reply, EndpointError):
                    wrong[key] = reply
                else:
                    found[key] = reply
                    self.add(key, reply)
        finally:
            asking.close()
            self.flush()
        return found, wrong

    def add(self, key: str, value: Any, vector: Vectors | None = None) -> None:
        """One more answer; written with others after a while. Whoever adds calls `flush` in the end, come what may."""
        self.pending[key] = (value, vector)
        if len(self.pending) >= BATCH or time.monotonic() - self.written > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending. Vectors of another length go into an entry of their own."""
        groups: dict[int, list[str]] = {}
        for key in sorted(self.pending):
            vector = self.pending[key][1]
            groups.setdefault(-1 if vector is None else len(vector), []).append(key)
        for width, keys in sorted(groups.items()):
            rows = [self.pending[key] for key in keys]
            arrays = {} if width < 0 else {"vectors": np.array([v for _, v in rows], np.float32)}
            payload = Payload(arrays, {"keys": keys, "values": [value for value, _ in rows]})
            inputs = {"namespace": self.name, "keys": keys}
            entry = self.cache.keep(STAGE, inputs, payload, f"{self.what}, {len(keys)} answers")
            self.entries.add(entry.key)
            for row, key in enumerate(keys):
                self.places[key] = (entry.key, row)
            if self.folder is not None and self.cache.writable:
                with contextlib.suppress(OSError):
                    self.folder.mkdir(parents=True, exist_ok=True)
                    (self.folder / entry.key).touch()
        self.pending.clear()
        self.written = time.monotonic()
