from __future__ import annotations

import errno
import functools
import gc
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import denominator.cache as cache_module
from denominator.cache import Cache, CacheWarning, Payload, describe
from denominator.errors import ConfigError


def payload(n=20_000, seed=0):
    draws = np.random.default_rng(seed)
    return Payload(
        {"big": draws.random(n), "small": np.arange(3, dtype=np.int32), "none": np.empty(0, np.float32)},
        {"words": ["é", "中", "😀", 'a"b\n'], "pairs": [[1, "x"]], "nothing": []},
        {"n": n, "what": "facts"},
    )


def same(entry, made):
    for name, array in made.arrays.items():
        assert np.array_equal(entry[name], array)
        assert entry[name].dtype == array.dtype
    assert {k: list(v) for k, v in entry.lists.items()} == {k: list(v) for k, v in made.lists.items()}
    assert dict(entry.facts) == dict(made.facts)


class Counter:
    def __init__(self, seed=0):
        self.calls, self.seed = 0, seed

    def __call__(self):
        self.calls += 1
        return payload(seed=self.seed)


def test_computed_once_then_read(tmp_path):
    work, cache = Counter(), Cache(tmp_path / "cache")
    first = cache.stage("s", {"a": 1}, work, "an example")
    again = cache.stage("s", {"a": 1}, work)
    other = Cache(tmp_path / "cache").stage("s", {"a": 1}, work)
    assert work.calls == 1
    assert [e.cached for e in (first, again, other)] == [False, True, True]
    for entry in (first, again, other):
        same(entry, payload())
        assert entry.seconds_computed == first.seconds_computed
        assert entry.array_bytes == first.array_bytes
    assert isinstance(other["big"], np.memmap)
    assert not list((tmp_path / "cache/tmp").iterdir())
    assert not list((tmp_path / "cache/locks").iterdir())
    assert not list(tmp_path.rglob("*.pkl"))


def test_key_follows_content(tmp_path):
    work, cache = Counter(), Cache(tmp_path)
    for inputs in ({"a": 1}, {"a": 2}, {"a": 1, "b": 1}):
        cache.stage("s", inputs, work)
    cache.stage("other", {"a": 1}, work)
    assert work.calls == 4
    assert Cache.key("s", {"a": 1, "b": 2}) == Cache.key("s", {"b": 2, "a": 1})


# F32


@pytest.mark.parametrize("name", ["big.npy", "words.jsonl", "meta.json"])
@pytest.mark.parametrize("how", ["half", "empty", "flip", "gone"])
def test_damaged_entries_are_noticed_and_recomputed(tmp_path, name, how):
    work, cache = Counter(), Cache(tmp_path)
    key = cache.stage("s", {}, work).key
    path = cache.path(key) / name
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"half": data[:middle], "empty": b"", "flip": flipped}[how])
    fresh = Cache(tmp_path)
    with pytest.warns(CacheWarning, match="cache entry unreadable, recomputed") as seen:
        entry = fresh.stage("s", {}, work)
    assert len(seen) == 1
    assert str(cache.path(key)) in str(seen[0].message)
    assert work.calls == 2
    same(entry, payload())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(Cache(tmp_path).stage("s", {}, work), payload())
    assert work.calls == 2


def _fill(root, seed, barrier, out):
    work = Counter(seed)

    def slow():
        time.sleep(0.3)
        return work()

    barrier.wait()
    entry = Cache(root).stage("s", {}, slow)
    out.put((work.calls, float(np.sum(entry["big"]))))


def test_two_processes_one_computes_the_other_waits(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, out = context.Barrier(2), context.Queue()
    # Different seeds: a mixed entry would show.
    workers = [context.Process(target=_fill, args=(tmp_path, seed, barrier, out)) for seed in (1, 2)]
    for worker in workers:
        worker.start()
    found = [out.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(calls for calls, _ in found) == [0, 1]
    assert found[0][1] == found[1][1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(np.sum(Cache(tmp_path).stage("s", {}, Counter())["big"])) == found[0][1]
    assert not list((tmp_path / "tmp").iterdir())


def test_a_stage_that_fails_leaves_nothing(tmp_path):
    cache = Cache(tmp_path)

    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.stage("s", {}, fails)
    assert cache.entries() == []
    assert Cache(tmp_path).stage("s", {}, Counter()).cached is False


# F38


def as_nobody(work):
    """What `work` returns in a process that may write nowhere (permissions do not bind root)."""
    import filelock  # noqa: F401 - the child may not be allowed to read the library's files

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps(repr(error))
        os.write(writer, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as source:
        return json.load(source)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not write")
@pytest.mark.parametrize("warm", [True, False])
def test_read_only_folder(tmp_path, warm):
    root = tmp_path / "cache"
    root.mkdir()
    if warm:
        Cache(root).stage("warm", {}, Counter())
    before = sorted((str(p), p.stat().st_mtime_ns) for p in root.rglob("*"))
    for path in (*root.rglob("*"), root):
        path.chmod(0o555 if path.is_dir() else 0o444)
    opened = [p for p in (tmp_path, *tmp_path.parents) if p.stat().st_uid == os.geteuid() and len(p.parts) > 2]
    for parent in opened:
        parent.chmod(parent.stat().st_mode | 0o055)

    def work():
        counter = Counter()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            cache = Cache(root)
            cache.stage("warm", {}, counter)
            first = [counter.calls, len(seen)]
            for name in ("new", "newer", "new"):
                same(cache.stage(name, {}, counter), payload())
            return [os.access(root, os.W_OK), first, [counter.calls, len(seen)], str(seen[0].message)]

    may_write, first, second, message = as_nobody(work)
    assert may_write is False
    assert first == ([0, 0] if warm else [1, 1])
    assert second == ([2, 1] if warm else [3, 1])
    assert "warm entries are used" in message
    assert sorted((str(p), p.stat().st_mtime_ns) for p in root.rglob("*")) == before


def test_full_disk_is_one_warning_and_no_remains(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    cache, work = Cache(tmp_path), Counter()
    monkeypatch.setattr(np, "save", full)
    with pytest.warns(CacheWarning, match="No space left") as seen:
        found = [cache.stage(name, {}, work) for name in "st"]
    assert len(seen) == 1
    for entry in found:
        same(entry, payload())
    assert list((tmp_path / "tmp").iterdir()) == []
    assert cache.entries() == []


def test_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "cache").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        Cache(tmp_path / "cache")


def test_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    Cache(tmp_path / "link").stage("s", {}, Counter())
    assert (tmp_path / "link").is_symlink()
    assert len(Cache(tmp_path / "real").entries()) == 1


# Memory (F43), times, housekeeping


@pytest.mark.parametrize("kept", [True, False])
def test_memory_is_bounded(tmp_path, kept):
    cache = Cache(tmp_path if kept else None, memory_bytes=500_000)
    for i in range(20):
        cache.stage("s", {"i": i}, payload)
        cache.once(f"object {i}", lambda: bytearray(200_000), len)
        assert cache.held <= 500_000
    assert len(cache.entries()) == (20 if kept else 0)
    big = Cache(None, memory_bytes=10)
    assert big.stage("s", {}, payload).cached is False  # one thing is always kept
    assert big.stage("s", {}, payload).cached is True


def test_memory_mapped_arrays_do_not_push_others_out(tmp_path):
    cache = Cache(tmp_path, memory_bytes=500_000)
    for i in range(5):
        cache.stage("s", {"i": i}, lambda: payload(1_000_000))
    assert len(cache._entries) == 5
    assert cache.held < 10_000


def test_own_times_without_inner_stages(tmp_path):
    cache = Cache(tmp_path)

    def inner():
        time.sleep(0.2)
        return payload(10)

    def outer():
        cache.stage("inner", {}, inner)
        time.sleep(0.05)
        return payload(10)

    with cache.recording() as times:
        cache.stage("outer", {}, outer)
    by_name = {t.stage: t for t in times.values()}
    assert by_name["inner"].seconds_computed > 0.19
    assert 0.04 < by_name["outer"].seconds_computed < 0.19
    assert not by_name["outer"].cached
    fresh = Cache(tmp_path)
    with fresh.recording() as again:
        fresh.stage("outer", {}, outer)
    later = {t.stage: t for t in again.values()}
    # A stage that was found lists what it rests on, with the time that it took originally.
    assert set(later) == {"inner", "outer"}
    assert all(t.cached for t in later.values())
    assert later["inner"].seconds_computed == by_name["inner"].seconds_computed
    assert later["inner"].seconds_now == 0.0


def test_objects_remember_their_stages(tmp_path):
    cache = Cache(tmp_path)

    def make():
        return cache.stage("inner", {}, payload)

    cache.once("o", make, lambda e: e.bytes)
    with cache.recording() as times:
        cache.once("o", make, lambda e: e.bytes)
    assert [t.stage for t in times.values()] == ["inner"]


def test_listing_and_pruning(tmp_path):
    cache = Cache(tmp_path)
    keys = [cache.stage("s", {"i": i}, payload, f"number {i}").key for i in range(4)]
    for age, key in enumerate(reversed(keys)):
        os.utime(cache.path(key), (1_000_000 - 100 * age, 1_000_000 - 100 * age))
    listed = cache.entries()
    assert [e.key for e in listed] == sorted(keys)
    assert {e.what for e in listed} == {f"number {i}" for i in range(4)}
    assert all(e.stage == "s" and e.bytes > 160_000 and e.seconds_computed >= 0 for e in listed)
    assert [e.key for e in cache.prune(older_than=250, now=1_000_000)] == [keys[0]]
    assert [e.key for e in cache.prune(max_bytes=2 * listed[0].bytes, now=1_000_000)] == [keys[1]]
    assert {e.key for e in cache.entries()} == set(keys[2:])
    assert Cache(None).entries() == []


def test_pruning_removes_what_a_killed_process_left(tmp_path):
    cache = Cache(tmp_path)
    cache.stage("s", {}, payload)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ours = tmp_path / "tmp" / f"abc.1.{ended.pid}.{socket.gethostname()}"
    theirs = tmp_path / "tmp" / f"abc.1.{os.getpid()}.another-machine"  # it cannot be asked whether it is at work
    for left in (ours, theirs):
        left.mkdir()
        (left / "array.npy").write_bytes(b"x")
    cache.prune(now=time.time())
    assert not ours.exists()
    assert theirs.exists()
    cache.prune(now=time.time() + 25 * 3600)
    assert not theirs.exists()
    theirs.mkdir()
    (theirs / "array.npy").write_bytes(b"x")
    os.utime(theirs, (1000, 1000))  # the folder is old, what is written in it is not
    cache.prune()
    assert theirs.exists()


def test_pruning_leaves_what_a_stage_is_still_computing(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "GATHERED", 16)

    def compute():
        made = Cache(tmp_path).gather((12, 2), np.float32, _blocks)
        os.utime(made.path.parent, (1000, 1000))
        os.utime(made.path, (1000, 1000))
        Cache(tmp_path).prune()
        return Payload({"a": made})

    assert len(Cache(tmp_path).stage("s", {}, compute)["a"]) == 12


# describe: what keys are made of


@dataclass(frozen=True)
class Part:
    size: int = 3
    threads: int = 1
    code: ClassVar[int] = 1
    not_in_key: ClassVar[tuple[str, ...]] = ("threads",)


@dataclass(frozen=True)
class Part2:
    size: int = 3
    threads: int = 1


def test_parts_are_described_by_class_code_and_fields():
    assert describe(Part(3)) == describe(Part(3, threads=8))
    assert describe(Part(3)) != describe(Part(4))
    assert describe(Part2(3)) != describe(Part2(3, threads=8))
    assert describe(Part(3)) != describe(Part2(3))
    assert describe(Part)["part"].endswith("test_cache.Part")
    assert json.dumps(describe({"a": (1, None, Part(2)), "f": payload}))
    assert "source" in describe(Part(3))  # not of this package: the source stands for a code version


def test_functions_with_bound_arguments_and_methods():
    assert describe(functools.partial(payload, 3)) != describe(functools.partial(payload, 4))
    assert describe(functools.partial(payload, n=3)) == describe(functools.partial(payload, n=3))
    assert describe(Counter(1).__call__) != describe(Counter(2).__call__)


def test_what_a_killed_process_left_is_removed_at_the_next_write(tmp_path):
    code = f"""
import os
from denominator import cache
from tests.test_cache import payload
c = cache.Cache({str(tmp_path)!r})
c.stage("done", {{}}, payload)
(c.root / "locks" / (cache.Cache.key("done", {{}}) + ".lock")).touch()
cache._flush = lambda out: os.kill(os.getpid(), 9)
c.stage("killed", {{}}, payload)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).resolve().parents[1])
    assert done.returncode == -9
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    assert len(list((tmp_path / "locks").iterdir())) == 2
    cache = Cache(tmp_path)
    same(cache.stage("killed", {}, payload), payload())
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "locks").iterdir()) == []
    assert {e.stage for e in cache.entries()} == {"done", "killed"}


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).stage("s", {}, payload)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "locks").iterdir()) == []


def test_keys_do_not_depend_on_hash_seed_or_locale(tmp_path):
    code = """
from denominator.cache import Cache, describe
print(Cache.key('s', {'t': '\\xe9\\u4e2d\\U0001f600', 's': describe({'b', 'a'})}))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONUTF8": utf8},
        ).stdout
        for seed, locale, utf8 in (("1", "C", "0"), ("2", "C.UTF-8", "1"))
    }
    assert len(found) == 1


def test_pruning_by_stage_and_as_a_rehearsal(tmp_path):
    cache = Cache(tmp_path)
    keys = {s: cache.stage(s, {}, payload, f"of {s}").key for s in ("chunks", "first_stage")}
    assert {e.stage for e in cache.prune(max_bytes=0, dry_run=True)} == {"chunks", "first_stage"}
    assert len(cache.entries()) == 2
    assert [e.key for e in cache.prune(max_bytes=0, stages=["chunks"])] == [keys["chunks"]]
    assert [e.key for e in cache.entries()] == [keys["first_stage"]]
    assert cache.get(keys["chunks"]) is None  # not from memory either
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not cache.path(keys["chunks"]).parent.exists()


def test_peek_neither_uses_nor_mends(tmp_path):
    cache = Cache(tmp_path)
    key = cache.stage("s", {}, payload, "one").key
    os.utime(cache.path(key), (1000, 1000))
    assert cache.peek(key).what == "one"
    assert cache.peek(key).used == 1000
    assert cache.peek("0" * 64) is None
    (cache.path(key) / "meta.json").write_text("broken")
    assert Cache(tmp_path).peek(key).stage == "damaged"
    assert cache.path(key).is_dir()


# ------------------------------------------------------------------ arrays that are written while they are made


def _blocks():
    return (np.arange(a, a + 3, dtype=np.float32).reshape(3, 1) * [1, 2] for a in range(0, 12, 3))


def test_a_gathered_array_is_the_file_that_saving_it_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(_blocks())).astype(np.float32)
    plain = Cache(tmp_path / "plain").stage("s", {"x": 1}, lambda: Payload({"v": whole}))
    monkeypatch.setattr(cache_module, "GATHERED", 1)
    cache = Cache(tmp_path / "cache")
    entry = cache.stage("s", {"x": 1}, lambda: Payload({"v": cache.gather((12, 2), np.float32, _blocks)}))
    assert np.array_equal(entry["v"], whole)
    assert entry["v"].dtype == np.float32
    mine, other = (c.path(entry.key) / "v.npy" for c in (cache, Cache(tmp_path / "plain")))
    assert mine.read_bytes() == other.read_bytes()
    assert entry.bytes == plain.bytes
    assert np.array_equal(Cache(tmp_path / "cache").get(entry.key)["v"], whole)
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_what_was_gathered_for_nothing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "GATHERED", 1)
    cache = Cache(tmp_path)

    def fails():
        cache.gather((12, 2), np.float32, _blocks)
        raise RuntimeError("later")

    with pytest.raises(RuntimeError, match="later"):
        cache.stage("s", {}, fails)
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == []
    entry = cache.stage(
        "s", {}, lambda: Payload({"v": cache.gather((12, 2), np.float32, _blocks)}, kept=False)
    )  # not to be stored: the array lives on without its file
    gc.collect()
    assert np.array_equal(entry["v"], np.concatenate(list(_blocks())))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_gathering_goes_on_in_memory_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "GATHERED", 1)
    assert np.array_equal(Cache(None).gather((12, 2), np.float32, _blocks), np.concatenate(list(_blocks())))
    cache = Cache(tmp_path)

    def full(handle: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module, "_flush", full)
    with pytest.warns(CacheWarning, match="No space left"):
        made = cache.gather((12, 2), np.float32, _blocks)
    assert isinstance(made, np.ndarray)
    assert np.array_equal(made, np.concatenate(list(_blocks())))
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_listing_says_what_the_stages_below_took(tmp_path):
    """An estimate of a first stage needs the time of its index, which is an entry of its own."""
    cache = Cache(tmp_path)

    def inner():
        time.sleep(0.05)
        return payload()

    def outer():
        cache.stage("inner", {"a": 1}, inner)
        return payload(seed=1)

    cache.stage("outer", {"a": 1}, outer)
    found = {e.stage: e for e in cache.entries()}
    assert found["inner"].seconds_below == 0.0
    assert found["outer"].seconds_below == pytest.approx(found["inner"].seconds_computed)
    assert found["outer"].seconds_below >= 0.05
