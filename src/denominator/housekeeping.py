"""`denominator cache`: what lies in the cache, how large and how old it is, and how to make room."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from denominator.cache import Cache, EntryInfo
from denominator.config import nearest
from denominator.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def seconds_of(text: str) -> float:
    """An age as `90s`, `15m`, `12h`, `30d`, `2w`, in seconds. Raises ConfigError.

    >>> seconds_of("30d"), seconds_of("1.5 h")
    (2592000.0, 5400.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text.lower())
    if found is None:
        raise ConfigError(f"--older-than: found {text!r}, expected a number and one of s, m, h, d, w, such as 30d")
    return float(found[1]) * _SECONDS[found[2]]


def bytes_of(text: str) -> int:
    """A size as `500MB`, `2GB`, `1GiB` or plain bytes. Raises ConfigError.

    >>> bytes_of("2GB"), bytes_of("1 KiB"), bytes_of("0")
    (2000000000, 1024, 0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if found is None or found[2] not in _BYTES:
        raise ConfigError(f"--max-size: found {text!r}, expected a number and a unit, such as 500MB or 2GB")
    return int(float(found[1]) * _BYTES[found[2]])


def size_text(size: float) -> str:
    """Bytes for a person, in powers of ten.

    >>> size_text(12), size_text(1_500), size_text(20_480_000)
    ('12 B', '1.5 kB', '20.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def age_text(seconds: float) -> str:
    """How long ago, in the largest unit that gives at least 1.

    >>> age_text(12), age_text(7200), age_text(30 * 86400)
    ('12 s', '2 h', '30 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.description = (
        "Lists the cache: what each entry is, its size, when it was last used and the seconds that it took. "
        "`prune` removes what was not used for long, or the least recently used until a size is met; "
        "what is removed is computed again when it is needed, and answers of paid endpoints are paid again."
    )
    sub.add_argument("action", nargs="?", choices=("list", "prune"), default="list", help="default: list")
    sub.add_argument("--out", default="denominator-out", metavar="DIR", help="output folder (default: denominator-out)")
    sub.add_argument("--stage", metavar="NAME", action="append", help="only entries of this stage; can be repeated")
    sub.add_argument("--older-than", metavar="AGE", help="prune: not used for this long, such as 30d or 12h")
    sub.add_argument("--max-size", metavar="SIZE", help="prune: keep at most this much, such as 2GB")
    sub.add_argument("--dry-run", action="store_true", help="prune: only say what would go")
    sub.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """The command. Raises ConfigError; exit code 1 when something could not be removed."""
    root = Path(args.out) / "cache"
    if not root.is_dir():
        raise ConfigError(f"there is no cache at {root}; it appears with the first sweep, or say --out")
    cache = Cache(root)
    entries = cache.entries()
    if args.stage:
        stages = sorted({e.stage for e in entries})
        for name in args.stage:
            if name not in stages:
                raise ConfigError(f"--stage: there is no entry of the stage {name!r}{nearest(name, stages)} ({stages})")
        entries = [e for e in entries if e.stage in args.stage]
    if args.action == "list":
        if args.older_than or args.max_size or args.dry_run:
            raise ConfigError("--older-than, --max-size and --dry-run belong to `denominator cache prune`")
        _show(entries, as_json=args.json)
        return 0
    if args.older_than is None and args.max_size is None:
        raise ConfigError("say what may go: --older-than 30d, --max-size 2GB, or both (--max-size 0 empties it)")
    gone = cache.prune(
        older_than=None if args.older_than is None else seconds_of(args.older_than),
        max_bytes=None if args.max_size is None else bytes_of(args.max_size),
        stages=args.stage,
        dry_run=args.dry_run,
    )
    failed = [] if args.dry_run else [e for e in gone if e.path.exists()]
    gone = [e for e in gone if e not in failed]
    if args.json:
        _show(gone, as_json=True)
    else:
        if args.dry_run:
            _show(gone, as_json=False)
        verb = "would be removed" if args.dry_run else "removed"
        size = sum(e.bytes for e in entries)
        freed = sum(e.bytes for e in gone)
        sys.stdout.write(
            f"{len(gone)} of {len(entries)} entries {verb}, {size_text(freed)}; {size_text(size - freed)} stay\n"
        )
    for entry in failed:
        sys.stderr.write(f"denominator: {entry.path} cannot be removed\n")
    return 1 if failed else 0


def _show(entries: Sequence[EntryInfo], *, as_json: bool) -> None:
    now = time.time()
    if as_json:
        sys.stdout.write(json.dumps(listing(entries, now), ensure_ascii=False) + "\n")
        return
    from rich import box
    from rich.table import Table

    from denominator.progress import console

    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("stage", "size", "used", "took", "key"):
        table.add_column(name, justify="left" if name in ("stage", "key") else "right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for e in sorted(entries, key=lambda e: (-e.bytes, e.key)):
        used = age_text(now - e.used)
        table.add_row(e.stage, size_text(e.bytes), used, f"{e.seconds_computed:.2f} s", e.key[:12], e.what)
    if entries:
        out.print(table)
    for stage, n, size, seconds in totals(entries):
        out.print(f"{stage}: {n} entries, {size_text(size)}, {seconds:.1f} s of work")
    n, size, seconds = len(entries), sum(e.bytes for e in entries), sum(e.seconds_computed for e in entries)
    out.print(f"in all {n} entries, {size_text(size)}, {seconds:.1f} s of work", style="bold")


def totals(entries: Sequence[EntryInfo]) -> list[tuple[str, int, int, float]]:
    """Stage, number of entries, bytes, and seconds that they took to compute; by stage name."""
    return [
        (stage, len(of), sum(e.bytes for e in of), sum(e.seconds_computed for e in of))
        for stage in sorted({e.stage for e in entries})
        for of in [[e for e in entries if e.stage == stage]]
    ]


def listing(entries: Sequence[EntryInfo], now: float) -> dict[str, Any]:
    """The listing for programs. Ages in seconds."""
    return {
        "entries": [
            {
                "key": e.key,
                "stage": e.stage,
                "what": e.what,
                "bytes": e.bytes,
                "age": now - e.created,
                "unused": now - e.used,
                "seconds_computed": e.seconds_computed,
                "path": str(e.path),
            }
            for e in entries
        ],
        "bytes": sum(e.bytes for e in entries),
        "seconds_computed": sum(e.seconds_computed for e in entries),
    }
