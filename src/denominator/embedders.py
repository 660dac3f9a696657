"""First stages: each choice of the config group `embedder` builds a retriever.

A user's own class works by `_target_` when it has `open(bench) -> Retriever` (`denominator.retrievers.bench`); a user's
own function is wrapped by `Callable`.
"""

from __future__ import annotations

from denominator.retrievers.approximate import Approximate
from denominator.retrievers.bench import FirstStage, Retriever
from denominator.retrievers.hybrid import Hybrid
from denominator.retrievers.late import LateInteraction
from denominator.retrievers.lexical import BM25
from denominator.retrievers.libraries import FastEmbed, SentenceTransformer
from denominator.retrievers.onnx import Onnx
from denominator.retrievers.own import Own as Callable
from denominator.retrievers.static import Static

__all__ = [
    "BM25",
    "Approximate",
    "Callable",
    "FastEmbed",
    "FirstStage",
    "Hybrid",
    "LateInteraction",
    "Onnx",
    "Retriever",
    "SentenceTransformer",
    "Static",
]
