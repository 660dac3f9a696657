"""The record: MLflow runs of cells and sweeps, written in few calls and read back whole. The only importer of mlflow.

A cell is one flat run, tied to its sweep by tags. Its files are written to `out/pending/` first and then sent: when
the store is away they stay there and the next start sends them, once. `recorded=true` is the last thing written, and
readers trust nothing without it.
"""

from denominator.tracking.calls import StoreAwayError
from denominator.tracking.facts import Facts, cell_facts, dataset_input, ledger_line, number
from denominator.tracking.files import question_table, write_cell_files
from denominator.tracking.reading import experiments, find_store, load_sweep, read_cell, to_frame, ui_command
from denominator.tracking.spelling import mlflow_payload, slice_key, slice_of, spell, unspell
from denominator.tracking.store import Store, StoredRun, default_uri, resolve_uri
from denominator.tracking.views import newest_view, save_view, server_of, sweep_links

__all__ = [
    "Facts",
    "Store",
    "StoreAwayError",
    "StoredRun",
    "cell_facts",
    "dataset_input",
    "default_uri",
    "experiments",
    "find_store",
    "ledger_line",
    "load_sweep",
    "mlflow_payload",
    "newest_view",
    "number",
    "question_table",
    "read_cell",
    "resolve_uri",
    "save_view",
    "server_of",
    "slice_key",
    "slice_of",
    "spell",
    "sweep_links",
    "to_frame",
    "ui_command",
    "unspell",
    "write_cell_files",
]
