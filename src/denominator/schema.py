"""The command `schema`: the published JSON Schema (draft 2020-12) of one line of each native file.

The schemas refuse nothing that the readers accept. The readers refuse more: what JSON Schema cannot say stands in each
schema's `$comment` (order of offsets, distinct ids, spans against the corpus, misspelt names).
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.resources import files
from typing import Any

NAMES = ("documents", "questions", "run", "answers")
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def text_of(name: str) -> str:
    """The schema file as it is published. Error: KeyError for a name that is none of `NAMES`."""
    if name not in NAMES:
        raise KeyError(name)
    return (files("denominator") / "schemas" / f"{name}.json").read_text(encoding="utf-8")


def schema(name: str | None = None) -> dict[str, Any]:
    """The schema of one line of a file; without a name all of them as `$defs` of one document.

    >>> schema("answers")["required"]
    ['question_id']
    >>> sorted(schema()["$defs"])
    ['answers', 'documents', 'questions', 'run']
    """
    if name is not None:
        made: dict[str, Any] = json.loads(text_of(name))
        return made
    return {
        "$schema": DRAFT,
        "$id": "urn:denominator:schema:1",
        "title": "One line of each native file of denominator",
        "$defs": {n: schema(n) for n in NAMES},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator schema`."""
    parser.add_argument("name", nargs="?", choices=NAMES, help="documents, questions, run or answers (default: all)")


def run(args: argparse.Namespace) -> int:
    """`denominator schema`: prints the schema of one line of the file, 0."""
    sys.stdout.write(json.dumps(schema(args.name), indent=2, ensure_ascii=False) + "\n")
    return 0
