"""How names and values must be spelled so that MLflow takes them, and the way back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from denominator.masking import mask
from denominator.records import dumps
from denominator.types import Estimate

PARAM_LIMIT = 500  # MLflow cuts at 6,000 with a warning only; a table column is readable to about here
METRIC_LIMIT = 250


def spell(name: str) -> str:
    """A metric's name as MLflow allows it.

    >>> spell("recall@5"), spell("coverage@b2000"), spell("recall@5_micro")
    ('recall_at_5', 'coverage_at_b2000', 'recall_at_5__micro')
    """
    text = name.replace("@", "_at_")
    return text.removesuffix("_micro") + "__micro" if text.endswith("_micro") else text


def unspell(key: str) -> str:
    """The way back.

    >>> unspell("coverage_at_b2000"), unspell("r_precision")
    ('coverage@b2000', 'r_precision')
    """
    return re.sub(r"_at_(b?\d+)", r"@\1", key.replace("__micro", "_micro"))


_PLAIN = re.compile(r"[A-Za-z0-9 -]|_(?!_)")
_ESCAPED = re.compile(r":([0-9a-f]+):")


def _escape(text: str) -> str:
    # One by one: `%` is not allowed in a key, `.`, `/` and `__` separate its parts, so they are written `:hex:`.
    out = []
    for i, char in enumerate(text):
        doubled = char == "_" and (text[i + 1 : i + 2] == "_" or i == len(text) - 1)
        edge = char == " " and (i in (0, len(text) - 1))
        plain = (char.isascii() and char.isalnum()) or char in " -_"
        out.append(char if plain and not doubled and not edge else f":{ord(char):x}:")
    return "".join(out)


def slice_key(name: str, tag: str, value: str) -> str:
    """The metric key of a slice; `slice_of` gives the three parts back. Two slices never share a key.

    >>> slice_key("recall@5", "lang", "en")
    'recall_at_5__slice.lang.en'
    >>> slice_key("recall@5", "type", "how-to (v2), 50%")
    'recall_at_5__slice.type.how-to :28:v2:29::2c: 50:25:'
    """
    key = f"{spell(name)}__slice.{_escape(tag)}.{_escape(value)}"
    if len(key) + len("__ci_high") > METRIC_LIMIT:  # the full name is in cell.json then
        digest = hashlib.sha256(key.encode()).hexdigest()[:12]
        key = key[: METRIC_LIMIT - len("__ci_high") - 16].rstrip(": ") + f":~{digest}"
    return key


def slice_of(key: str) -> tuple[str, str, str] | None:
    """Metric, tag and value of a slice's key; None for a key that is no slice or was too long to keep whole.

    >>> slice_of("recall_at_5__slice.type.how-to :28:v2:29::2c: 50:25:")
    ('recall@5', 'type', 'how-to (v2), 50%')
    """
    name, sign, rest = key.partition("__slice.")
    if not sign or ":~" in rest:
        return None
    tag, _, value = rest.partition(".")
    back = [_ESCAPED.sub(lambda m: chr(int(m[1], 16)), part) for part in (tag, value)]
    return unspell(name), back[0], back[1]


def payload_of(key: str, estimate: Estimate) -> tuple[dict[str, float], dict[str, str]]:
    """What an aggregate becomes under a key that is already spelled: metrics and tags."""
    if estimate.value is None:
        return {f"{key}__n": estimate.n}, {f"undefined.{key}": estimate.reason or "not_recorded"}
    metrics: dict[str, float] = {key: estimate.value}  # first: MLflow's plots begin with the first metric
    if estimate.ci_low is not None and estimate.ci_high is not None:
        metrics |= {f"{key}__ci_low": estimate.ci_low, f"{key}__ci_high": estimate.ci_high}
    return metrics | {f"{key}__n": estimate.n}, {}


def mlflow_payload(name: str, estimate: Estimate) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags of one aggregate, as MEASUREMENT.md section 9 spells them. Undefined: a tag, never a number.

    >>> mlflow_payload("recall@5", Estimate(5 / 7, 7))
    ({'recall_at_5': 0.7142857142857143, 'recall_at_5__n': 7}, {})
    >>> mlflow_payload("recall@5", Estimate(None, 0, "no_eligible"))
    ({'recall_at_5__n': 0}, {'undefined.recall_at_5': 'no_eligible'})
    """
    return payload_of(key_of(name, estimate), estimate)


def key_of(name: str, estimate: Estimate) -> str:
    """The key of an aggregate: a name means the same in every run, so a micro average has one of its own.

    >>> key_of("recall@5", Estimate(0.5, 9, aggregation="micro"))
    'recall_at_5__micro'
    """
    return spell(f"{name}_micro" if estimate.aggregation == "micro" else name)


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning with a visible mark, its length and a hash, so that two long values stay different."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    mark = f" … [shortened: {len(text)} characters, sha256 {digest}]"
    return text[: limit - len(mark)] + mark


def param_text(value: Any) -> str:
    """A setting as a parameter: `none`, `true`, `1, 3, 5`; long ones shortened with a mark."""
    if value is None:
        text = "none"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, (list, tuple)):
        text = ", ".join(param_text(v) for v in value)
    elif isinstance(value, Mapping):
        text = dumps(value)
    else:
        text = str(value)
    return shortened(mask(text), PARAM_LIMIT)
