from __future__ import annotations

import re
from dataclasses import dataclass

from denominator.errors import ConfigError
from denominator.types import Chunk, Document

BREAK = re.compile(r"\n\s*\n|\Z")


@dataclass(frozen=True, slots=True)
class Paragraphs:
    """Paragraphs as the author made them; one below `least` characters goes with the next."""

    least: int = 40

    def __post_init__(self) -> None:
        if self.least < 0:
            raise ConfigError(f"chunker paragraphs: least must be at least 0, found {self.least}")

    def chunk(self, document: Document) -> list[Chunk]:
        chunks: list[Chunk] = []
        start = 0
        for found in BREAK.finditer(document.text):
            text = document.text[start : found.start()]
            if len(text.strip()) < self.least and found.end() < len(document.text):
                continue
            first = start + len(text) - len(text.lstrip())
            last = start + len(text.rstrip())
            if first < last:
                chunks.append(Chunk.of(document, first, last))
            start = found.end()
        return chunks
