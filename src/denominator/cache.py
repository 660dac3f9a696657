"""Content-addressed stages on disk: what was computed once from the same content is read, not computed again.

An entry is a folder `<root>/<first two hex digits>/<key>` of `.npy` arrays (memory-mapped when read), `.jsonl` lists
and one `meta.json`. The key is a hash of what the result depends on: stage and its code version, parameters, hashes of
the inputs, library and model versions; never a path or a name. Folders appear by one rename, so an entry is whole or
absent. Checksums are verified the first time that a process reads an entry; a damaged one is reported once with its
path and computed again. One process computes, the others wait for it. A folder that cannot be written is used as far
as it is warm.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import math
import os
import shutil
import socket
import time
import uuid
import warnings
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from denominator.errors import ConfigError
from denominator.fingerprint import canonical, sha
from denominator.types import StageTime, filled

FORMAT = 1
MAPPED = 1 << 16
"""Arrays from this many bytes on are memory-mapped; an empty file cannot be mapped at all."""
GATHERED = 32 * 2**20
"""Arrays from this many bytes on are written to disk while they are made."""
LEFT_ALONE = 24 * 3600.0
"""Seconds after which unfinished work of another machine counts as given up."""
Array = npt.NDArray[Any]
T = TypeVar("T")
Use = tuple[str, float, str]
"""Stage, the seconds that it took, key."""


class CacheWarning(UserWarning):
    """Something about the cache that a person should know; results are not affected."""


def describe(part: Any) -> Any:
    """What a part is, as plain JSON: class, code version, fields. This is what keys are made of.

    A class outside this package has no code version that we keep, so the hash of its source stands for it;
    a `version` attribute is taken as well. Functions are known by name and source.
    """
    if part is None or isinstance(part, (bool, int, float, str)):
        return part
    if isinstance(part, os.PathLike):
        return str(part)
    if isinstance(part, Mapping):
        return {str(k): describe(v) for k, v in part.items()}
    if isinstance(part, (list, tuple)):
        return [describe(v) for v in part]
    if isinstance(part, (set, frozenset)):
        return sorted((describe(v) for v in part), key=canonical)
    if isinstance(part, functools.partial):
        return {"call": describe(part.func), "args": describe(part.args), "keywords": describe(part.keywords)}
    if inspect.ismethod(part):
        return {"method": part.__name__, "of": describe(part.__self__)}
    kind = part if isinstance(part, type) or (callable(part) and hasattr(part, "__qualname__")) else type(part)
    module = getattr(kind, "__module__", None) or ""  # None: a function that exec made
    known: dict[str, Any] = {"part": f"{module}.{getattr(kind, '__qualname__', kind)}"}
    for name in ("code", "version"):
        value = getattr(part, name, None)
        if isinstance(value, (int, str)):
            known[name] = value
    if not isinstance(part, type) and callable(getattr(part, "identity", None)):
        known["identity"] = part.identity()  # hashes of model files, versions of libraries
    if module.split(".")[0] != __name__.split(".")[0]:
        known["source"] = _source_hash(kind)
    if is_dataclass(part) and not isinstance(part, type):
        hidden = set(getattr(part, "not_in_key", ()))
        known["fields"] = {f.name: describe(getattr(part, f.name)) for f in fields(part) if f.name not in hidden}
    elif hasattr(part, "__dict__") and kind is not part:
        known["fields"] = {k: describe(v) for k, v in vars(part).items() if not k.startswith("_")}
    return known


def _source_hash(kind: Any) -> str | None:
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return None


class Gathered:
    """An array that a stage wrote to disk block by block (`Cache.gather`). It becomes a file of the entry as it is."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.path, self.shape, self.dtype = path, shape, np.dtype(dtype)
        self.nbytes = math.prod(shape) * self.dtype.itemsize
        # Whoever never stores it leaves nothing; after a kill the next start takes it away.
        weakref.finalize(self, shutil.rmtree, path.parent, ignore_errors=True)

    def array(self) -> Array:
        """Memory-mapped, as long as the file is there."""
        found: Array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return found


@dataclass(frozen=True, slots=True)
class Payload:
    """What a stage computes: arrays, lists of JSON values, and small facts.

    `kept = False`: not written to disk, because a part of it failed and may not fail the next time.
    """

    arrays: Mapping[str, Array | Gathered] = field(default_factory=dict)
    lists: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A stage's result with its history. `cached` says that this call did not compute it."""

    key: str
    stage: str
    arrays: Mapping[str, Array]
    lists: Mapping[str, Sequence[Any]]
    facts: Mapping[str, Any]
    seconds_computed: float
    cached: bool
    bytes: int
    uses: tuple[Use, ...] = ()
    seconds_now: float = 0.0

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def held(self) -> int:
        """Bytes that it keeps in memory; memory-mapped arrays do not count."""
        arrays = sum(array.nbytes for array in self.arrays.values() if not isinstance(array, np.memmap))
        return arrays + 64 * sum(map(len, self.lists.values()))

    @property
    def array_bytes(self) -> int:
        """Size of the arrays alone: the same whether the entry was computed or read."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One line of the cache's listing. Times are seconds since the epoch.

    `seconds_below`: what the stages took that it asked for, as recorded with it.
    """

    key: str
    stage: str
    what: str
    bytes: int
    created: float
    used: float
    seconds_computed: float
    path: Path
    seconds_below: float = 0.0


@dataclass(slots=True)
class _Frame:
    """What is being computed: seconds spent in the stages that it asked for, and which these were."""

    inner: float = 0.0
    uses: dict[str, Use] = field(default_factory=dict)


class _Damaged(Exception):  # noqa: N818
    pass


class Cache:
    """A folder of entries and a bounded memory of those that this process used. One for each process and thread.

    `memory_bytes` bounds what is kept in memory (least recently used goes first); what the cell at work has used
    stays until it ends, however large, so that nothing is loaded twice in it. `root=None`: memory only.
    """

    def __init__(self, root: str | os.PathLike[str] | None, *, memory_bytes: int = 192 * 2**20) -> None:
        self.root = None if root is None else Path(root)
        self.memory_bytes = memory_bytes
        self.writable = self.root is not None
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._objects: OrderedDict[str, tuple[Any, int, tuple[Use, ...]]] = OrderedDict()
        self._warned: set[str] = set()
        self._tidied = False
        self._frames: list[_Frame] = []
        self._times: dict[str, StageTime] = {}
        self._in_use: set[str] | None = None  # keys that the cell at work has used
        if self.root is not None and self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"the cache must be a folder, but {self.root} is a file; move it or set another `out`")

    # -------------------------------------------------------------- use

    def get(self, key: str) -> Entry | None:
        """The entry from memory or disk, None when there is none. Damage is reported and counts as none."""
        if key in self._entries:
            self._use(key)
            self._entries.move_to_end(key)
            return self._entries[key]
        entry = self._read(key)
        if entry is not None:
            self._remember(entry)
        return entry

    def stage(self, stage: str, inputs: Mapping[str, Any], compute: Callable[[], Payload], what: str = "") -> Entry:
        """The entry for these inputs, computed when it is not there. `what` is the line that a listing shows.

        The seconds recorded are the stage's own: stages that `compute` asks for are counted with themselves.
        Safe for several processes: one computes, the others wait and then read.
        """
        key = self.key(stage, inputs)
        clock = time.perf_counter()
        with self._frame() as frame:
            entry = self.get(key)
            if entry is None:
                with self._lock(key):
                    entry = self.get(key)  # another process may have been faster
                    if entry is None:
                        started, before = time.perf_counter(), frame.inner
                        payload = compute()
                        own = time.perf_counter() - started - (frame.inner - before)
                        entry = self._write(key, stage, what, payload, seconds=own, uses=frame.uses)
                        self._remember(entry)
            spent = time.perf_counter() - clock
            own_now = spent - frame.inner
        if self._frames:
            self._frames[-1].inner += spent
        self._note(StageTime(stage, entry.seconds_computed, own_now, entry.cached, key))
        for use in entry.uses:
            self._note(StageTime(use[0], use[1], 0.0, True, use[2]))
        return replace(entry, seconds_now=own_now)

    def keep(self, stage: str, inputs: Mapping[str, Any], payload: Payload, what: str = "") -> Entry:
        """The entry for these inputs, made of what was computed elsewhere, where none is there. No time is recorded."""
        key = self.key(stage, inputs)
        entry = self.get(key)
        if entry is None:
            entry = self._write(key, stage, what, payload, seconds=0.0, uses={})
            self._remember(entry)
        return entry

    def gather(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, blocks: Callable[[], Iterable[Array]]
    ) -> Array | Gathered:
        """The blocks, one after the other along the first axis, as one array of this shape.

        A large one is written to disk as it comes, so that a stage holds one block of it and not all. Without a folder
        that can be written it is an array in memory.
        """
        if self.root is not None and self.writable and math.prod(shape) * np.dtype(dtype).itemsize >= GATHERED:
            try:
                return self._gathered(shape, dtype, blocks())
            except OSError as error:  # no room: once more from the start, in memory
                self._read_only(error)
        return filled(shape, dtype, blocks)

    def _gathered(self, shape: tuple[int, ...], dtype: npt.DTypeLike, blocks: Iterable[Array]) -> Gathered:
        path = self._scratch("gathered") / "array.npy"
        path.parent.mkdir(parents=True)
        made, rows = Gathered(path, shape, dtype), 0
        self._tidy()
        with path.open("wb") as out:
            descr = np.lib.format.dtype_to_descr(made.dtype)
            np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
            for block in blocks:
                out.write(np.ascontiguousarray(block, dtype).data)
                rows += len(block)
            _flush(out)
        assert rows == shape[0]
        return made

    @contextlib.contextmanager
    def recording(self) -> Iterator[dict[str, StageTime]]:
        """Collects the time of every stage asked for inside, and of those that they rest on, by key."""
        outer, self._times = self._times, {}
        before, self._in_use = self._in_use, set()
        try:
            yield self._times
        finally:
            self._times, self._in_use = outer, before
            self._shrink()

    @contextlib.contextmanager
    def _frame(self) -> Iterator[_Frame]:
        frame = _Frame()
        self._frames.append(frame)
        try:
            yield frame
        finally:
            self._frames.pop()

    def _note(self, time_: StageTime) -> None:
        self._times.setdefault(time_.key, time_)
        if self._frames:
            self._frames[-1].uses[time_.key] = (time_.stage, time_.seconds_computed, time_.key)

    @staticmethod
    def key(stage: str, inputs: Mapping[str, Any]) -> str:
        return sha({"format": FORMAT, "stage": stage, "inputs": inputs})

    def once(self, key: str, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """An object that lives in memory only (a loaded model, an opened index). `size` says how many bytes it holds.

        Stages that `make` asks for are remembered with it, so that whoever takes it later still lists them.
        """
        known = self._objects.get(key)
        self._use(key)
        if known is None:
            with self._frame() as frame:
                made = make()
            if self._frames:
                self._frames[-1].inner += frame.inner
            known = (made, size(made), tuple(frame.uses.values()))
            self._objects[key] = known
            self._shrink()
        else:
            self._objects.move_to_end(key)
        for stage, seconds, used in known[2]:
            self._note(StageTime(stage, seconds, 0.0, True, used))
        found: T = known[0]
        return found

    def _use(self, key: str) -> None:
        if self._in_use is not None:
            self._in_use.add(key)

    def _remember(self, entry: Entry) -> None:
        self._use(entry.key)
        self._entries[entry.key] = replace(entry, cached=True)
        self._entries.move_to_end(entry.key)
        self._shrink()

    def _shrink(self) -> None:
        """Forgets the least recently used of what holds most, entries or objects, down to the bound."""
        used = self._in_use or ()
        entries = sum(entry.held for entry in self._entries.values())
        objects = sum(size for _, size, _ in self._objects.values())
        if entries + objects <= self.memory_bytes:
            return
        idle = [[k for k in kept if k not in used] for kept in (self._entries, self._objects)]
        if not used:  # the newest of each kind stays, however large
            idle = [keys[:-1] for keys in idle]
        while entries + objects > self.memory_bytes and any(idle):
            if idle[0] and (entries >= objects or not idle[1]):
                entries -= self._entries.pop(idle[0].pop(0)).held
            else:
                objects -= self._objects.pop(idle[1].pop(0))[1]

    @property
    def held(self) -> int:
        """Bytes in memory. Memory-mapped arrays are the system's to keep or drop and do not count."""
        return sum(e.held for e in self._entries.values()) + sum(size for _, size, _ in self._objects.values())

    # -------------------------------------------------------------- disk

    def path(self, key: str) -> Path:
        assert self.root is not None
        return self.root / key[:2] / key

    def _read(self, key: str) -> Entry | None:
        if self.root is None:
            return None
        folder = self.path(key)
        try:
            raw = (folder / "meta.json").read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if folder.is_dir():
                self._drop(folder, "meta.json is missing")
            return None
        except OSError as error:
            self._warn(f"cache entry {folder} cannot be read ({error}), computed again")
            return None
        try:
            entry = self._parse(folder, key, raw)
        except FileNotFoundError:
            if folder.is_dir():  # otherwise it was pruned this moment
                self._drop(folder, "a file is missing")
            return None
        except (_Damaged, ValueError, KeyError, TypeError, OSError) as error:
            self._drop(folder, str(error))
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)  # last use, for pruning
        return entry

    def _parse(self, folder: Path, key: str, raw: bytes) -> Entry:
        try:
            meta = json.loads(raw)
        except ValueError:
            raise _Damaged("meta.json is not JSON") from None
        body = {k: v for k, v in meta.items() if k != "check"}
        if meta.get("check") != sha(body) or meta["key"] != key:
            raise _Damaged("meta.json does not match its checksum")
        arrays: dict[str, Array] = {}
        lists: dict[str, list[Any]] = {}
        total = 0
        for name, expected in meta["files"].items():
            path = folder / name
            size = path.stat().st_size
            if size != expected["bytes"]:
                raise _Damaged(f"{name} has {size} bytes, {expected['bytes']} were written")
            if _crc(path) != expected["crc32"]:
                raise _Damaged(f"{name} does not match its checksum")
            total += size
            stem = name.rsplit(".", 1)[0]
            if name.endswith(".npy"):
                arrays[stem] = (
                    np.load(path, mmap_mode="r", allow_pickle=False)
                    if expected["mapped"]
                    else np.load(path, allow_pickle=False)
                )
            else:
                lines = path.read_bytes().decode("utf-8", "surrogatepass").split("\n")[:-1]
                lists[stem] = json.loads(f"[{','.join(lines)}]")
        uses = tuple((str(stage), float(seconds), str(used)) for stage, seconds, used in meta["uses"])
        return Entry(key, meta["stage"], arrays, lists, meta["facts"], float(meta["seconds"]), True, total, uses)

    def _write(
        self, key: str, stage: str, what: str, payload: Payload, *, seconds: float, uses: dict[str, Use]
    ) -> Entry:
        arrays: dict[str, Array] = {
            name: array.array() if isinstance(array, Gathered) else np.ascontiguousarray(array)
            for name, array in payload.arrays.items()
        }
        lists = {name: list(values) for name, values in payload.lists.items()}
        facts = dict(payload.facts)
        size = sum(a.nbytes for a in arrays.values()) + sum(64 * len(v) for v in lists.values())
        entry = Entry(key, stage, arrays, lists, facts, seconds, False, size, tuple(uses.values()))
        if not self.writable or self.root is None or not payload.kept:
            return entry
        scratch = self._scratch(key)
        try:
            scratch.mkdir(parents=True)
            self._tidy()
            files: dict[str, Any] = {}
            for name, array in arrays.items():
                path, source = scratch / f"{name}.npy", payload.arrays[name]
                if isinstance(source, Gathered):
                    source.path.rename(path)
                else:
                    with path.open("wb") as out:
                        np.save(out, array, allow_pickle=False)
                        _flush(out)
                files[path.name] = {
                    "bytes": path.stat().st_size,
                    "crc32": _crc(path),
                    "mapped": array.nbytes >= MAPPED,
                }
            for name, values in lists.items():
                path = scratch / f"{name}.jsonl"
                with path.open("wb") as out:
                    out.writelines((canonical(value) + "\n").encode("utf-8", "surrogatepass") for value in values)
                    _flush(out)
                files[path.name] = {"bytes": path.stat().st_size, "crc32": _crc(path)}
            meta = {
                "key": key,
                "stage": stage,
                "what": what,
                "created": time.time(),
                "seconds": seconds,
                "facts": facts,
                "uses": [list(use) for use in uses.values()],
                "files": files,
            }
            with (scratch / "meta.json").open("wb") as out:
                out.write((canonical(meta | {"check": sha(meta)}) + "\n").encode("utf-8", "surrogatepass"))
                _flush(out)
            target = self.path(key)
            target.parent.mkdir(exist_ok=True)
            try:
                scratch.rename(target)
            except OSError:
                if not (target / "meta.json").exists():
                    raise
                shutil.rmtree(scratch, ignore_errors=True)  # another process wrote the same content first
            else:
                _flush_folder(target.parent)
            # From here on the file is the array: memory is freed, and pages are shared with other processes.
            mapped = {
                name: np.load(target / f"{name}.npy", mmap_mode="r") for name, a in arrays.items() if a.nbytes >= MAPPED
            }
            entry = replace(entry, arrays={**arrays, **mapped})
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            self._read_only(error)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return entry

    def tidy(self) -> None:
        """Removes what killed processes of this machine left: half-written entries, locks of finished ones."""
        self._tidied = False
        with contextlib.suppress(OSError):
            self._tidy()

    def _tidy(self) -> None:
        if self._tidied or self.root is None:
            return
        self._tidied = True
        for left in sorted((self.root / "tmp").glob("*")):
            if _abandoned(left, time.time()):
                shutil.rmtree(left, ignore_errors=True)
        for lock in sorted((self.root / "locks").glob("*.lock")):
            if (self.path(lock.stem) / "meta.json").exists():
                with contextlib.suppress(OSError):
                    lock.unlink()

    def _drop(self, folder: Path, why: str) -> None:
        self._warn(f"cache entry unreadable, recomputed: {folder} ({why})")
        assert self.root is not None
        away = self.root / "tmp" / f"damaged.{uuid.uuid4().hex}"
        try:
            away.parent.mkdir(exist_ok=True)
            folder.rename(away)
            shutil.rmtree(away, ignore_errors=True)
        except OSError as error:
            self._warn(f"the damaged cache entry {folder} cannot be removed ({error.strerror or error})")

    @contextlib.contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        lock = None
        if self.writable and self.root is not None:
            import filelock

            path = self.root / "locks" / f"{key}.lock"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = filelock.FileLock(path)
                lock.acquire()
            except OSError as error:
                lock = None
                self._read_only(error)
        try:
            yield
        finally:
            if lock is not None:
                # Whoever waits on the removed file looks for the entry again before it computes: at worst the same
                # content is computed twice, and the rename still lets only one of them in.
                with contextlib.suppress(OSError):
                    Path(lock.lock_file).unlink()
                lock.release()

    def _read_only(self, error: OSError) -> None:
        self.writable = False
        self._warn(
            f"nothing can be written to the cache {self.root} ({error.strerror or error}); "
            "warm entries are used, new ones are computed and not kept",
            "write",
        )

    def _warn(self, text: str, once: str | None = None) -> None:
        if (once or text) not in self._warned:
            self._warned.add(once or text)
            warnings.warn(text, CacheWarning, stacklevel=4)

    # -------------------------------------------------------------- housekeeping

    def entries(self) -> list[EntryInfo]:
        """Everything that is on disk, ordered by key. Unreadable entries are listed as stage `damaged`."""
        return [info for folder in self._folders() if (info := self._info(folder)) is not None]

    def _info(self, folder: Path) -> EntryInfo | None:
        try:
            meta = json.loads((folder / "meta.json").read_bytes())
            size = sum(f["bytes"] for f in meta["files"].values())
            used = folder.stat().st_mtime
            below = sum(float(seconds) for _, seconds, _ in meta["uses"])
            return EntryInfo(
                folder.name, meta["stage"], meta["what"], size, meta["created"], used, meta["seconds"], folder, below
            )
        except (OSError, ValueError, KeyError, TypeError):
            with contextlib.suppress(OSError):
                size, used = sum(p.stat().st_size for p in folder.iterdir()), folder.stat().st_mtime
                return EntryInfo(folder.name, "damaged", "", size, used, used, 0.0, folder)
        return None

    def _folders(self) -> list[Path]:
        if self.root is None or not self.root.is_dir():
            return []
        return sorted(p for p in self.root.glob("[0-9a-f][0-9a-f]/*") if p.is_dir())

    def prune(
        self,
        *,
        older_than: float | None = None,
        max_bytes: int | None = None,
        stages: Sequence[str] | None = None,
        now: float | None = None,
        dry_run: bool = False,
    ) -> list[EntryInfo]:
        """Removes entries unused for `older_than` seconds, then the least recently used until `max_bytes` are left.

        `stages`: only entries of these. Damaged entries and what a killed process left in `tmp` go too (another
        machine's after a day). Safe beside running sweeps: an entry vanishes whole. Returns what was to be removed (a
        path that is still there could not be).
        """
        moment = time.time() if now is None else now
        known = sorted(self.entries(), key=lambda e: (e.used, e.key))
        kept = [e for e in known if stages is None or e.stage in stages]
        total = sum(e.bytes for e in kept)
        removed = []
        for entry in kept:
            old = older_than is not None and moment - entry.used > older_than
            full = max_bytes is not None and total > max_bytes
            if old or full or entry.stage == "damaged":
                total -= entry.bytes
                removed.append(entry)
                if not dry_run:
                    self._remove(entry)
        if self.root is not None and not dry_run:
            for stale in sorted((self.root / "tmp").glob("*")):
                if _abandoned(stale, moment):
                    shutil.rmtree(stale, ignore_errors=True)
            for folder in {e.path.parent for e in removed}:
                with contextlib.suppress(OSError):  # only when empty
                    folder.rmdir()
        return removed

    def _remove(self, entry: EntryInfo) -> None:
        away = self._scratch(entry.key)
        self._entries.pop(entry.key, None)
        with contextlib.suppress(OSError):
            away.parent.mkdir(exist_ok=True)
            entry.path.rename(away)
            shutil.rmtree(away, ignore_errors=True)

    def _scratch(self, key: str) -> Path:
        """A name in `tmp` that says whose it is, so that what a killed process left can be told from work."""
        assert self.root is not None
        return self.root / "tmp" / f"{key[:16]}.{uuid.uuid4().hex[:8]}.{os.getpid()}.{socket.gethostname()}"

    def peek(self, key: str) -> EntryInfo | None:
        """What is known of an entry without reading, using or mending it; None when there is none."""
        if self.root is None:
            return None
        return self._info(self.path(key))


def _abandoned(left: Path, now: float) -> bool:
    """Whether nobody works in this folder of `tmp` any more.

    Of this machine: its process has ended. Of another one, which cannot be asked: nothing in it was written for a day
    (writing into a file does not renew the folder's own time).
    """
    parts = left.name.split(".", 3)
    if len(parts) == 4 and parts[3] == socket.gethostname():
        return not _alive(parts[2])
    try:
        return all(now - path.stat().st_mtime > LEFT_ALONE for path in (left, *left.rglob("*")))
    except OSError:  # it changes this moment
        return False


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        return True
    return True


def _crc(path: Path) -> int:
    """CRC-32: the guard is against accidents (cut files, flipped bits), and it reads 2 GB/s."""
    value = 0
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _flush(out: Any) -> None:
    out.flush()
    os.fsync(out.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
