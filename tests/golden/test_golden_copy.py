"""The copied cases are the current ones, wherever the original lies beside the project."""

from __future__ import annotations

import json

from tests.conftest import shared_path
from tests.golden.cases import CASES_FILE


def test_golden_copy_is_current() -> None:
    original = shared_path("golden/cases.json").read_bytes()
    copy = CASES_FILE.read_bytes()
    theirs, ours = ({case["id"]: case for case in json.loads(text)} for text in (original, copy))
    changed = sorted({k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k)})
    assert not changed, f"cases that differ from ../shared/golden/cases.json: {changed[:10]} ({len(changed)} in all)"
    assert copy == original
