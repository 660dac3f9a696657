"""Old runs of an experiment: reading what they hold, and writing what was corrected beside them, never into them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from denominator.errors import StoreError
from denominator.tracking.facts import NOTE_LIMIT, base_tags
from denominator.tracking.spelling import shortened
from denominator.tracking.store import Store, StoredRun

KIND = "audit"
LINK = "rescored_from"


def originals(store: Store) -> list[StoredRun]:
    """Every run of the experiment that measured something, oldest first: no sweeps, no audits of earlier calls."""
    runs = [r for r in store.search() if r.tags.get("kind") not in (KIND, "sweep") and LINK not in r.tags]
    return sorted(runs, key=lambda r: (r.start, r.run_id))


def audited(store: Store) -> dict[str, str]:
    """`audit_key` → run id of what earlier audits wrote whole."""
    runs = store.search(f"tags.kind = '{KIND}' and tags.recorded = 'true'")
    return {run.tags["audit_key"]: run.run_id for run in runs if "audit_key" in run.tags}


def has_file(store: Store, run: StoredRun, name: str) -> bool:
    """Whether a run holds this artifact. Raises StoreError when its artifacts cannot be listed."""
    parent = str(PurePosixPath(name).parent)
    call = partial(store.client.list_artifacts, run.run_id, None if parent == "." else parent)
    found = store.ask(call, what=f"listing the artifacts of {run.name!r} ({run.run_id})")
    return any(item.path == name and not item.is_dir for item in found)


@contextmanager
def file_of(store: Store, run: StoredRun, name: str) -> Iterator[Path]:
    """A copy (or the place) of one artifact. Raises StoreError when it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="denominator-") as folder:
        call = partial(store.client.download_artifacts, run.run_id, name, folder)
        path = Path(store.ask(call, what=f"reading {name} of {run.name!r} ({run.run_id})"))
        if not path.is_file():
            raise StoreError(f"{name} of {run.name!r} ({run.run_id}) is no file")
        yield path


def log_audit(
    store: Store,
    original: StoredRun,
    key: str,
    *,
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    note: str,
    files: Mapping[str, str],
) -> str:
    """A new run with corrected figures that links to the original, which is left as it is. `recorded` comes last."""
    from mlflow.entities import Metric

    base = base_tags(KIND, "", store.commit)
    del base["sweep_id"]
    name = shortened(f"audit of {original.name}", 250)
    run_id = store._create(name, base | {LINK: original.run_id, "audit_key": key})
    now = int(time.time() * 1000)
    store._batch(
        run_id,
        metrics=[Metric(k, float(v), now, 0) for k, v in metrics.items()],
        tags={**tags, "mlflow.note.content": shortened(note, NOTE_LIMIT)},
    )
    with tempfile.TemporaryDirectory(prefix="denominator-") as folder:
        for file, text in files.items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        store.ask(lambda: store.client.log_artifacts(run_id, folder), what="writing artifacts")
    store._close(run_id, "FINISHED")
    return run_id
