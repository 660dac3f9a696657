"""docs/score.md: its files are written, its commands are run, and every line that it shows is what they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from denominator.cli import main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "score.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_every_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    ran, rest = 0, ""
    for language, name, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if name:
            Path(name).write_text(body, encoding="utf-8")
            if language == "python":
                subprocess.run([sys.executable, name], check=True, capture_output=True, timeout=120)
            continue
        for line in body.splitlines():
            if line.startswith("$ "):
                words = shlex.split(line[2:])
                assert words[0] == "denominator"
                assert main(words[1:]) == 0, line
                rest = capsys.readouterr().out
                ran += 1
                continue
            pattern = ".*".join(map(re.escape, line.split("…")))
            match = re.search(f"^.*{pattern}.*$", rest, re.MULTILINE)
            assert match is not None, f"{line!r} is not in\n{rest}"
            rest = rest[match.end() :]  # lines stand in the order in which they are shown
    assert ran == 13
