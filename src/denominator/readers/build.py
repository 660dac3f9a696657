"""What every reader does at the end: labels by declared option only, hashes, notes, one `Dataset`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args
from unicodedata import normalize

from denominator.corpus import held, ids_of, in_order
from denominator.eligibility import assume_answerable as mark_answerable
from denominator.errors import ConfigError
from denominator.readers.textfiles import Row, near
from denominator.types import LABELS, Dataset, Document, Question

Evaluate = Literal["retrieval", "abstention"]


def label(row: Row, field: str, value: Any) -> str:
    """One of the four labels exactly; null is `unlabelled`; anything else names the near label, never becomes it."""
    if value is None:
        return "unlabelled"
    if isinstance(value, str) and value in LABELS:
        return value
    guess = near(value.strip().casefold(), LABELS) if isinstance(value, str) else None
    raise row.error(
        "unknown state (bad_label)",
        field,
        found=repr(value),
        expected="one of " + ", ".join(LABELS),
        fix=f"did you mean {guess!r}?" if guess else "",
    )


def default_name(path: str | Path) -> str:
    """A data set without a name is called as the folder that it lies in."""
    folder = Path(path).expanduser().absolute().parent.name
    return folder or "dataset"


def check_evaluate(evaluate: str) -> None:
    if evaluate not in get_args(Evaluate):
        guess = near(str(evaluate), get_args(Evaluate))
        hint = f" (did you mean {guess!r}?)" if guess else ""
        raise ConfigError(f"evaluate is {evaluate!r}{hint}; allowed: {', '.join(get_args(Evaluate))}")


def dataset(
    documents: Iterable[Document],
    questions: Iterable[Question],
    *,
    name: str,
    assume_answerable: bool = False,
    evaluate: Evaluate = "retrieval",
    corpus: bool = True,
    source: str = "",
    notes: Sequence[str] = (),
    extracted: Sequence[str] = (),
) -> Dataset:
    """The finished data set. With `assume_answerable`, unlabelled questions that have gold become answerable.

    Without a corpus (`corpus=False`) there is no corpus hash. Gold that is not in the corpus stays as it is and is
    counted in a note: the ledger puts such a question in `needs_review` when no alternative of a group is there.
    """
    from denominator.fingerprint import dataset_hash, ordered_corpus_hash

    docs = held(documents)
    made, said, hashed = tuple(questions), list(notes), None
    if assume_answerable:
        before = made
        made = mark_answerable(before)
        n = sum(a is not b for a, b in zip(before, made, strict=True))
        said.append(f"assume_answerable: {n} unlabelled questions with gold are taken as answerable")
    if corpus:
        ids = ids_of(docs)
        absent = {a.doc for q in made for g in q.gold for a in g if a.doc not in ids}
        absent.update(d for q in made for d, grade in (q.grades or {}).items() if grade > 0 and d not in ids)
        if absent:
            shown = ", ".join(repr(i) for i in sorted(absent)[:5])
            said.append(f"gold documents that are not in the corpus: {len(absent)} ({shown})")
            forms = {normalize("NFC", i) for i in ids if not i.isascii()} if not all(map(str.isascii, absent)) else ()
            twins = sorted(i for i in absent if normalize("NFC", i) in forms)
            if twins:  # they look alike
                shown = ", ".join(repr(i) for i in twins[:5])
                said.append(
                    f"of these, in the corpus in another Unicode form: {len(twins)} ({shown}); "
                    "write both alike, NFC is usual"
                )
        blank = 0

        def counted() -> Iterator[Document]:  # one walk over the texts for both
            nonlocal blank
            for document in in_order(docs):
                blank += not document.text.strip() and not (document.title or "").strip()
                yield document

        hashed = ordered_corpus_hash(counted())
        if blank:
            said.append(f"documents without any text: {blank}")
    return Dataset(
        name=name,
        documents=docs,
        questions=made,
        dataset_hash=dataset_hash(made),
        corpus_hash=hashed,
        label_source="assumed" if assume_answerable else "labels",
        evaluate=evaluate,
        source=source,
        notes=tuple(said),
        extracted=tuple(extracted),
    )
