"""docs/parts.md names every choice that ships, and the fields that its class has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import yaml

from denominator import config

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "parts.md").read_text(encoding="utf-8")
GROUPS = {"chunker": "Chunkers", "embedder": "Embedders", "reranker": "Rerankers", "answerer": "Answerers"}
CHOICES = [(group, p.stem) for group in GROUPS for p in sorted((ROOT / "conf" / group).glob("*.yaml"))]


def rows(group: str) -> dict[str, list[str]]:
    """Choice → the fields beside it, from the first table of the group's section."""
    section = PAGE.split(f"## {GROUPS[group]}", 1)[1].split("\n## ", 1)[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            cells = line.split("|")
            for name in re.findall(r"`([^`]+)`", cells[1]):
                found.setdefault(name, cells[2])
    return found


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_and_its_fields_are_on_the_page(group, choice):
    table = rows(group)
    assert choice in table, f"docs/parts.md does not name {group}={choice}"
    node = yaml.safe_load((ROOT / "conf" / group / f"{choice}.yaml").read_text(encoding="utf-8")) or {}
    if "_target_" not in node or "see [" in table[choice]:
        return
    fields = list(inspect.signature(config.locate(node["_target_"], choice)).parameters)
    assert re.findall(r"`([^`]+)`", table[choice]) == fields


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_on_the_page_is_made_up(group):
    known = {choice for g, choice in CHOICES if g == group}
    section = PAGE.split(f"## {GROUPS[group]}", 1)[1].split("\n## ", 1)[0]
    first = section.split("| choice |", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|")[1] for line in first.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert named == known


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).is_file(), target
