"""What a number was measured on, as hashes: data set, corpus, and the fingerprint that says what may be compared.

MEASUREMENT.md section 9. Canonical JSON is sorted keys, separators `,` and `:`, UTF-8 unescaped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from denominator.errors import MeasurementError
from denominator.types import Document, Evidence, Question

FIELDS = (
    "dataset_hash",
    "corpus_hash",
    "metric",
    "metric_version",
    "level",
    "k",
    "aggregation",
    "eligibility",
    "ties",
    "tokenizer",
)
"""What must be equal before two values of a metric are compared."""

# NaN has no JSON, so it is refused rather than written as something that no other reader takes.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(obj: object) -> str:
    """Canonical JSON text.

    >>> canonical({"b": 1, "a": "é"})
    '{"a":"é","b":1}'
    """
    return _ENCODER.encode(obj)


def _bytes(text: str) -> bytes:
    # A lone surrogate is legal in a JSON file (as an escape) and must not stop a hash.
    return text.encode("utf-8", "surrogatepass")


def sha(obj: object) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(_bytes(canonical(obj))).hexdigest()


def _alternative(evidence: Evidence) -> Any:
    if evidence.start is not None:
        return {"doc": evidence.doc, "start": evidence.start, "end": evidence.end}
    return {"doc": evidence.doc, "whole": True} if evidence.whole else evidence.doc


def question_record(question: Question) -> dict[str, Any]:
    """The schema fields of a question in the form that the hash covers; what is not set is left out.

    A group of one alternative is that alternative, an alternative is an id, a span `{doc, start, end}` or
    `{doc, whole}`. Reference answers, dialogue history and language are not part of what is measured.

    >>> question_record(Question("q", answerability="answerable", gold=((Evidence("d"),),)))
    {'id': 'q', 'answerability': 'answerable', 'gold': ['d']}
    """
    record: dict[str, Any] = {"id": question.id}
    if question.question is not None:
        record["question"] = question.question
    record["answerability"] = question.answerability or "unlabelled"
    record["gold"] = [
        _alternative(group[0]) if len(group) == 1 else [_alternative(e) for e in group] for group in question.gold
    ]
    if question.grades:
        record["grades"] = dict(question.grades)
    if question.needs_review:
        record["needs_review"] = True
    if question.tags:
        record["tags"] = dict(question.tags)
    if question.cluster is not None:
        record["cluster"] = question.cluster
    return record


def dataset_hash(questions: Iterable[Question | Mapping[str, Any]]) -> str:
    """SHA-256 of the question records sorted by id. The order of the questions does not matter, a label does.

    Takes `Question` objects (see `question_record`) or records as they are.
    """
    records = [question_record(q) if isinstance(q, Question) else dict(q) for q in questions]
    return sha(sorted(records, key=lambda record: record["id"]))


class CorpusHasher:
    """Hash of a corpus that is read as a stream: holds 32 bytes and an id a document, never the texts.

    The hash is SHA-256 of the canonical JSON of `[[id, h], …]` sorted by id, with h the SHA-256 of the canonical JSON
    of `[title, text]`. Titles belong to it because they are indexed; a document without one has null.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, bytes] = {}

    def add(self, document: Document) -> None:
        """One more document, in any order. A second document of the same id is the error `bad_id`."""
        if document.id in self._seen:
            raise MeasurementError("bad_id", [document.id], "two documents have this id")
        self._seen[document.id] = _digest(document)

    def hexdigest(self) -> str:
        return _joined((name, self._seen[name]) for name in sorted(self._seen))


def _digest(document: Document) -> bytes:
    return hashlib.sha256(_bytes(canonical([document.title, document.text]))).digest()


def _joined(digests: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    digest.update(b"[")
    for i, (name, one) in enumerate(digests):
        digest.update(_bytes(("," if i else "") + canonical([name, one.hex()])))
    digest.update(b"]")
    return digest.hexdigest()


def corpus_hash(documents: Iterable[Document]) -> str:
    """Hash over the ids, titles and texts of all documents, sorted by id. Any iterable; it is read once."""
    hasher = CorpusHasher()
    for document in documents:
        hasher.add(document)
    return hasher.hexdigest()


def ordered_corpus_hash(documents: Iterable[Document]) -> str:
    """`corpus_hash` of documents that come sorted by id: nothing is held. Two of one id are the error `bad_id`."""

    def digests() -> Iterator[tuple[str, bytes]]:
        last: str | None = None
        for document in documents:
            if last is not None and document.id <= last:
                if document.id == last:
                    raise MeasurementError("bad_id", [document.id], "two documents have this id")
                raise ValueError(f"document {document.id!r} comes after {last!r}")
            last = document.id
            yield document.id, _digest(document)

    return _joined(digests())


def fingerprint(fields: Mapping[str, Any]) -> str:
    """SHA-256 over `FIELDS`; a field that is absent counts as null, other fields do not count."""
    return sha({name: fields.get(name) for name in FIELDS})


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields in which two fingerprints differ, in the order of `FIELDS`."""
    return tuple(name for name in FIELDS if a.get(name) != b.get(name))


def comparable(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """The common fingerprint of two results.

    Raises `not_comparable` with the fields that differ, and `incomplete` where a result says that it is.
    """
    fields = list(differing(a, b))
    if a.get("incomplete") or b.get("incomplete"):
        fields.append("incomplete")
    if fields:
        raise MeasurementError("not_comparable", fields, "these results cannot be compared; they differ in")
    return fingerprint(a)
