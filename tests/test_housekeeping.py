"""`denominator cache`: the listing, its totals, and pruning, by the command."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from denominator.cache import Cache, Payload
from denominator.cli import main
from denominator.errors import ConfigError
from denominator.housekeeping import bytes_of, seconds_of


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Three entries of about 1, 2 and 3 kB, unused for 40, 20 and 0 days."""
    cache = Cache(tmp_path / "out" / "cache")
    for i, days in enumerate((40, 20, 0)):
        made = Payload({"a": np.zeros(125 * (i + 1))})
        entry = cache.stage("chunks" if i else "rerank", {"i": i}, lambda made=made: made, f"number {i}")
        moment = time.time() - days * 86400
        os.utime(cache.path(entry.key), (moment, moment))
    return tmp_path / "out"


def listed(out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["cache", "--out", str(out), "--json"]) == 0
    return sorted(e["what"] for e in json.loads(capsys.readouterr().out)["entries"])


def test_the_listing_says_what_each_entry_is_and_sums_up(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for text in ("number 0", "number 1", "number 2", "40 d", "20 d", "chunks: 2 entries", "in all 3 entries"):
        assert text in said
    assert main(["cache", "list", "--out", str(out), "--stage", "rerank"]) == 0
    said = capsys.readouterr().out
    assert "number 0" in said
    assert "number 1" not in said


def test_prune_by_age_then_by_size(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "prune", "--out", str(out), "--older-than", "30d", "--dry-run"]) == 0
    assert "1 of 3 entries would be removed" in capsys.readouterr().out
    assert len(listed(out, capsys)) == 3
    assert main(["cache", "prune", "--out", str(out), "--older-than", "30d"]) == 0
    assert "1 of 3 entries removed" in capsys.readouterr().out
    assert listed(out, capsys) == ["number 1", "number 2"]
    assert main(["cache", "prune", "--out", str(out), "--max-size", "4kB"]) == 0  # 2.1 and 3.1 kB: the older one goes
    capsys.readouterr()
    assert listed(out, capsys) == ["number 2"]
    assert main(["cache", "prune", "--out", str(out), "--max-size", "0"]) == 0
    capsys.readouterr()
    assert listed(out, capsys) == []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["prune"], "--older-than 30d"),
        (["--older-than", "1d"], "belong to `denominator cache prune`"),
        (["prune", "--older-than", "soon"], "such as 30d"),
        (["prune", "--max-size", "2 miles"], "2GB"),
        (["--stage", "chunk"], "did you mean 'chunks'"),
    ],
)
def test_wrong_use_says_what_is_right(
    out: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert main(["cache", *argv, "--out", str(out)]) == 64
    assert said in capsys.readouterr().err
    assert len(listed(out, capsys)) == 3


def test_no_cache_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--out", str(tmp_path / "none")]) == 64
    assert "there is no cache" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_units() -> None:
    assert (seconds_of("90s"), seconds_of("2W"), bytes_of("1.5gb"), bytes_of("3MiB")) == (
        90,
        1209600,
        1_500_000_000,
        3 * 2**20,
    )
    for wrong in ("", "d", "-1d", "1y"):
        with pytest.raises(ConfigError):
            seconds_of(wrong)
    for wrong in ("", "GB", "1i", "-1"):
        with pytest.raises(ConfigError):
            bytes_of(wrong)
