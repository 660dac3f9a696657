"""The core over numpy: what costs half a second to import is imported by the function that needs it."""

from __future__ import annotations

import subprocess
import sys

CORE = ("metrics", "ties", "eligibility", "ranking", "abstention", "uncertainty", "audit")
HEAVY = ("scipy", "sklearn", "mlflow", "hydra", "omegaconf", "pandas", "matplotlib", "jinja2", "rich", "pyarrow")


def test_the_core_imports_nothing_heavy() -> None:
    code = (
        "import sys; import "
        + ", ".join(f"denominator.{name}" for name in CORE)
        + f"; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
