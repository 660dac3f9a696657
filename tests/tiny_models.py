"""Models small enough to be checked by hand, written by the tests: a tokenizer of whole words, ONNX graphs over it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORDS = ("pump", "valve", "filter", "pressure", "tank", "motor", "cable", "sensor", "paint", "refund", "late", "order")
VOCABULARY = {name: i for i, name in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))}
WIDTH = 6
TABLE = np.random.default_rng(11).standard_normal((len(VOCABULARY), WIDTH)).astype(np.float32)
WEIGHTS = np.arange(len(VOCABULARY), dtype=np.float32) / 8


def write_tokenizer(folder: Path) -> None:
    """`[CLS] a [SEP]`, `[CLS] a [SEP] b [SEP]`; type 1 for what belongs to b."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", VOCABULARY["[CLS]"]), ("[SEP]", VOCABULARY["[SEP]"])],
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def _save(path: Path, nodes, inputs, output, tables) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in tables.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))


def write_embedder(folder: Path, name: str = "model.onnx") -> Path:
    """Token vectors are rows of TABLE: batch × length × WIDTH."""
    from onnx import helper

    write_tokenizer(folder)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["hidden"])]
    _save(folder / name, nodes, ["input_ids"], "hidden", {"table": TABLE})
    return folder


def write_cross_encoder(folder: Path, logits: int = 1) -> Path:
    """Σ weight of the tokens of the second text (type 1), minus half of Σ over the first: batch × `logits`.

    With two numbers a pair the first is 1 and the second that sum; with three nobody knows what they mean.
    """
    from onnx import TensorProto, helper

    write_tokenizer(folder)
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["each"]),
        helper.make_node("Cast", ["token_type_ids"], ["kind"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["kind", "three_halves"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "half"], ["sign"]),
        helper.make_node("Mul", ["each", "sign"], ["signed"]),
        helper.make_node("ReduceSum", ["signed", "axis"], ["sum"], keepdims=1),
        helper.make_node("Concat", [*["one"] * (logits - 1), "sum"], ["logits"], axis=1),
    ]
    tables = {
        "weights": WEIGHTS,
        "three_halves": np.array(1.5, np.float32),
        "half": np.array(0.5, np.float32),
        "axis": np.array([1], np.int64),
        "one": np.array([[1.0]], np.float32),
    }
    if logits == 1:
        del tables["one"]
    _save(folder / "model.onnx", nodes, ["input_ids", "token_type_ids"], "logits", tables)
    return folder


def token_ids(text: str) -> list[int]:
    return [VOCABULARY.get(word, VOCABULARY["[UNK]"]) for word in text.split()]
