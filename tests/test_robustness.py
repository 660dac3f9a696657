"""A sweep on a full disk, without its artifacts, with a read-only cache, eight times at once, over many cells."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from denominator.progress import Events
from denominator.tracking import Store, default_uri, load_sweep
from denominator.tracking import store as store_module
from tests.test_app import GRID, ROOT, _clean, call, start, store_of, workplace, write_data  # noqa: F401  # fixtures


@pytest.mark.slow
def test_a_full_disk_stops_the_sweep_and_says_what_is_safe(
    workplace: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second of four cells finds no space: one is recorded, one failed, two are not begun; then all is made up."""
    write, calls = store_module.write_cell_files, []

    def full(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*args, **kwargs)

    with monkeypatch.context() as broken:
        broken.setattr(store_module, "write_cell_files", full)
        assert call(workplace, monkeypatch, "sweep", *GRID, "tracking.experiment=full") == 1
    said = capsys.readouterr().out
    assert "the disk is full; what is recorded in" in said
    assert "2 not started (the disk is full)" in said
    assert len(calls) == 2
    assert call(workplace, monkeypatch, "sweep", *GRID, "tracking.experiment=full") == 0
    assert "3 computed, 1 recorded before" in capsys.readouterr().out
    assert len(load_sweep(store=store_of(workplace, "full"))) == 4


def test_events_that_cannot_be_written_are_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events(tmp_path / "events.jsonl")
    events.say(0, "recorded", value=1.0)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("denominator.progress.os.write", full)
    events.say(1, "failed", error="x")
    assert {number: e["what"] for number, e in events.ends().items()} == {0: "recorded", 1: "failed"}


def test_artifacts_that_are_gone_are_named_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "data")
    assert call(tmp_path, monkeypatch, "sweep", "chunker=whole,sentences_128") == 0
    (tmp_path / "denominator-out" / "artifacts").rename(tmp_path / "elsewhere")
    capsys.readouterr()
    assert call(tmp_path, monkeypatch, "sweep", "chunker=whole,sentences_128") == 1
    said = capsys.readouterr().out
    assert "are gone" in said
    assert "force=true" in said
    assert "sentences_128 · bm25 · none" in said  # the figures of the store are still shown
    assert call(tmp_path, monkeypatch, "sweep", "chunker=whole,sentences_128", "force=true") == 0
    assert "2 computed" in capsys.readouterr().out
    assert len(load_sweep(store=Store(default_uri(tmp_path / "denominator-out"), "denominator",
                                      tmp_path / "denominator-out"))) == 2  # fmt: skip


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB. Needs root."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full(mounted: Path, tmp_path: Path) -> None:
    grid = ("dataset=demo", "eligibility=lenient", "chunker=fixed_128,sentences_128", f"out={mounted / 'out'}")
    command = [sys.executable, "-m", "denominator", "sweep", *grid]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DENOMINATOR_", "MLFLOW_"))}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "the disk is full" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    subprocess.run(["mount", "-o", "remount,size=60m", str(mounted)], check=True)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    store = Store(default_uri(mounted / "out"), "denominator", mounted / "out")
    assert sorted(c.status for c in store.search("tags.kind = 'cell' and tags.recorded = 'true'")) == ["FINISHED"] * 2
    places = [mounted / "out" / p for p in ("pending", "cache/tmp", "cache/locks", "hydra/locks")]
    assert [p for place in places if place.exists() for p in place.iterdir()] == []


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_used_as_far_as_it_is_warm(tmp_path: Path) -> None:
    """F38, for root too: the folder is mounted read-only. Two cells are warm, two are computed and not kept."""
    (tmp_path / "own").mkdir()
    write_data(tmp_path / "data")
    assert start(tmp_path, "sweep", "chunker=whole", "embedder.k1=0.9,1.5").wait(timeout=240) == 0
    cache = tmp_path / "denominator-out" / "cache"
    done = subprocess.run(["mount", "--bind", "-o", "ro", str(cache), str(cache)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        before = sorted(p for p in cache.rglob("*"))
        job = start(tmp_path, "sweep", "chunker=whole", "embedder.k1=0.9,1.5,1.7,1.8", "tracking.experiment=again")
        out, err = job.communicate(timeout=240)
        assert job.returncode == 0, err
        assert "4 computed" in out
        assert err.count("nothing can be written to the cache") == 1
        assert sorted(p for p in cache.rglob("*")) == before
    finally:
        subprocess.run(["umount", "-l", str(cache)], check=True)


@pytest.mark.slow
def test_eight_start_at_once_with_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    write_data(tmp_path / "data")
    jobs = [start(tmp_path, "run", "chunker=whole", f"embedder.k1={1 + i / 10}") for i in range(8)]
    said = [job.communicate(timeout=500) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 8, [err[-500:] for _, err in said]
    assert all("Traceback" not in err and "ERROR" not in err for _, err in said)
    out = tmp_path / "denominator-out"
    cells = Store(default_uri(out), "denominator", out).search("tags.kind = 'cell'")
    assert sorted(c.status for c in cells) == ["FINISHED"] * 8
    assert all(c.recorded for c in cells)
    assert len({c.tags["cell_key"] for c in cells}) == 8
    places = [out / p for p in ("pending", "cache/tmp", "cache/locks", "hydra/locks")]
    assert [p for place in places if place.exists() for p in place.iterdir()] == []


@pytest.mark.slow
def test_memory_does_not_grow_from_cell_to_cell(tmp_path: Path) -> None:
    """F43: 30 cells with an index of 50 MB each: after the last as much memory as after the third, and one index."""
    write_data(tmp_path / "data")
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from denominator.cache import Cache
        from denominator.chunkers import WholeDocument
        from denominator.pipeline import Cell, Latency, run_cell
        from denominator.readers.native import Native
        from denominator.rerankers import NoRerank
        from tests.stub_parts import Heavy, resident
        cache, data = Cache("cache"), Native(folder="data")
        for i in range(30):
            cell = Cell(str(i), {{}}, data, WholeDocument(), Heavy(i), NoRerank(), latency=Latency(questions=0))
            run_cell(cell, cache)
            print(resident())
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("DENOMINATOR_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    sizes = [int(line) for line in done.stdout.split()]
    assert len(sizes) == 30
    assert sizes[-1] - sizes[2] < 60e6, [s // 10**6 for s in sizes]


def test_static_vectors_have_the_same_bits_for_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from denominator.retrievers import static

    model = static.static_model()
    bags = model.bags([f"buoy {i} and the cable of depth {i * i}" for i in range(50)] + [""])
    made = []
    for size in (1, 7, 16_384):
        monkeypatch.setattr(static, "VECTORS_PER_BLOCK", size)
        made.append(model.vectors(bags, 256, "text").tobytes())
    assert made[0] == made[1] == made[2]


def test_a_store_whose_making_was_killed_is_made_again(tmp_path: Path) -> None:
    """The schema takes a second or two; a process that dies in between must not leave a store that nobody can open."""
    store, new = tmp_path / "mlflow.db", tmp_path / "mlflow.db.new"
    code = f"from denominator.tracking.store import prepare_sqlite; prepare_sqlite('sqlite:///{store}')"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while process.poll() is None and not (new.exists() and new.stat().st_size):
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert new.exists()
    assert not store.exists()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".lock") == ["mlflow.db"]
    with contextlib.closing(sqlite3.connect(store)) as connection:
        assert connection.execute("select name from experiments").fetchall() == [("Default",)]
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
