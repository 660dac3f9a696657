"""Quality of answers, beside abstention and retrieval: exact match, token F1, faithfulness, relevance, correctness.

Text against text; only correctness is a model's verdict, where one was asked. Each number is a mean over answerable
questions that *were answered*, so that a system looks better by refusing what is hard: the counts of refused ones
stand beside it and belong to it.
Unanswerable questions have no place here; whether they were refused is abstention.

Normalisation is that of SQuAD: lower case, punctuation deleted, English articles dropped where the language is English
(that of the answer where it says one, else that of the question), split at white space. Three things differ: all
Unicode punctuation counts, not only ASCII; a CJK character is a token of its own (as in regex-v1); and a step that
would leave nothing of a text is left out, so that "A" and "?" stay what they are.
Source: Rajpurkar et al. 2016, the evaluation script of SQuAD 1.1.
"""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from denominator.phrases import primary
from denominator.tokens import CJK
from denominator.types import Answer, Estimate, Outcome, Plan, Question
from denominator.uncertainty import estimate_mean, is_rate

METRICS = ("exact_match", "token_f1", "faithfulness", "relevance", "correctness")
COUNTS = ("answered", "refused", "undecided", "no_text")
_ARTICLES = frozenset({"a", "an", "the"})
_ONE = re.compile(f"({CJK})")


@lru_cache(maxsize=1)
def _deleted() -> dict[int, None]:
    marks = (c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith("P"))
    return dict.fromkeys((*marks, *map(ord, string.punctuation)))


def normal_tokens(text: str, *, articles: bool = False) -> list[str]:
    """The tokens that answers are compared by; `articles`: English articles are kept. Blank text: none.

    >>> normal_tokens("The rate-limit is 100 (per minute).")
    ['ratelimit', 'is', '100', 'per', 'minute']
    >>> normal_tokens("RAG召回。"), normal_tokens("The A"), normal_tokens("?!"), normal_tokens("  ")
    (['rag', '召', '回'], ['the', 'a'], ['?!'], [])
    """
    lower = text.lower()
    spaced = _ONE.sub(r" \1 ", lower.translate(_deleted())).split() or lower.split()
    if articles:
        return spaced
    return [token for token in spaced if token not in _ARTICLES] or spaced


def exact_match(answer: str, references: Iterable[str], *, articles: bool = False) -> float | None:
    """1 if the answer's tokens are those of a reference, in order, else 0. None without a reference.

    >>> exact_match("The 12th of May.", ["12th of May"]), exact_match("May 12", ["12 May"]), exact_match("x", [])
    (1.0, 0.0, None)
    """
    given = normal_tokens(answer, articles=articles)
    found = [float(normal_tokens(r, articles=articles) == given) for r in references if r.strip()]
    return max(found, default=None)


def token_f1(answer: str, references: Iterable[str], *, articles: bool = False) -> float | None:
    """2·common / (tokens of the answer + tokens of the reference), repeated tokens as often as both have them.

    With several references the best counts. No common token: 0. None without a reference.

    >>> token_f1("green and blue", ["blue"]), token_f1("red", ["blue", "dark red"]), token_f1("red", [" "])
    (0.5, 0.6666666666666666, None)
    """
    given = Counter(normal_tokens(answer, articles=articles))
    found = []
    for reference in references:
        wanted = Counter(normal_tokens(reference, articles=articles))
        if wanted:
            found.append(2 * (given & wanted).total() / (given.total() + wanted.total()))
    return max(found, default=None)


def faithfulness(answer: str, context: str, *, articles: bool = False) -> float | None:
    """Share of the answer's distinct tokens that the context has, too. None for a blank answer; blank context: 0.

    It sees words, not claims: "not" costs one token, and an answer in other words than the context's looks invented.

    >>> faithfulness("It allows 100 requests.", "100 requests per minute"), faithfulness(" ", "text")
    (0.5, None)
    """
    given = set(normal_tokens(answer, articles=articles))
    if not given:
        return None
    return len(given & set(normal_tokens(context, articles=articles))) / len(given)


def relevance(questions: npt.NDArray[Any], answers: npt.NDArray[Any]) -> list[float | None]:
    """Cosine of each question's vector and its answer's, row by row; below 0 counts as 0. None for a zero vector.

    >>> relevance(np.array([[3.0, 4.0], [1, 0], [0, 1]]), np.array([[3.0, 4.0], [-1, 0], [0, 0]]))
    [1.0, 0.0, None]
    """
    left, right = np.asarray(questions, np.float64), np.asarray(answers, np.float64)
    size = np.sqrt(np.add.reduce(left * left, axis=1) * np.add.reduce(right * right, axis=1))
    dot = np.add.reduce(left * right, axis=1)
    return [
        None if s == 0 else float(np.round(min(1.0, max(0.0, d / s)), 6))
        for d, s in zip(dot.tolist(), size.tolist(), strict=True)
    ]


# ------------------------------------------------------------------ per question, and over a run


def with_quality(
    outcomes: Sequence[Outcome],
    questions: Iterable[Question],
    answers: Mapping[str, Answer],
    *,
    contexts: Mapping[str, str] | None = None,
    relevances: Mapping[str, float | None] | None = None,
    grades: Mapping[str, bool | None] | None = None,
) -> tuple[Outcome, ...]:
    """The outcomes with what each answer's text is worth; a question without a text of its own keeps none.

    `contexts`: what each answer was written from; `relevances`: see `relevance`; `grades`: whether a model found the
    answer correct (None: it gave no verdict). Without them they are not measured.
    """
    known = {q.id: q for q in questions}
    made = []
    for outcome in outcomes:
        answer, question = answers.get(outcome.id), known[outcome.id]
        text = None if answer is None or answer.error is not None else answer.text
        if answer is None or text is None or not text.strip():
            made.append(outcome)
            continue
        articles = primary(answer.lang or question.lang) != "en"
        found = {
            "exact_match": exact_match(text, question.answers, articles=articles),
            "token_f1": token_f1(text, question.answers, articles=articles),
            "faithfulness": None
            if contexts is None
            else faithfulness(text, contexts.get(outcome.id, ""), articles=articles),
            "relevance": None if relevances is None else relevances.get(outcome.id),
            "correctness": _as_number((grades or {}).get(outcome.id)),
        }
        made.append(replace(outcome, quality={k: v for k, v in found.items() if v is not None}))
    return tuple(made)


def _as_number(verdict: bool | None) -> float | None:
    return None if verdict is None else float(verdict)


def answered(outcome: Outcome) -> bool:
    """Whether this is an answerable question that got an answer with a text: what the metrics here are about."""
    text = outcome.answer
    return outcome.state == "answerable" and outcome.abstained is False and text is not None and bool(text.strip())


@dataclass(frozen=True, slots=True)
class AnswerQuality:
    """`counts` deals all answerable questions to `answered`, `refused`, `undecided` and `no_text` (none was given).

    Each metric is over the answered ones that have it: exact match, F1 and correctness need a reference answer,
    faithfulness the context, relevance a vector. Its `n` says how many these are; without any it is None:
    `no_answers` where nothing was answered, else `no_eligible`.
    """

    metrics: Mapping[str, Estimate]
    counts: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), **{name: e.as_dict() for name, e in self.metrics.items()}}


def answered_by_both(
    metric: str, one: Iterable[Outcome], other: Iterable[Outcome]
) -> tuple[list[Outcome], list[Outcome]]:
    """The outcomes of two runs for the questions that both answered and have the metric for, in the order of the ids.

    Means over different questions say nothing about each other: who answers only what is easy has the better one.
    """
    a, b = ({o.id: o for o in side if answered(o) and metric in o.quality} for side in (one, other))
    ids = sorted(a.keys() & b.keys())
    return [a[q] for q in ids], [b[q] for q in ids]


def answer_estimate(metric: str, outcomes: Sequence[Outcome], plan: Plan, reason: str) -> Estimate:
    """The mean of a metric over those of these outcomes that were answered and have it; else None with the reason."""
    having = [o for o in outcomes if answered(o) and metric in o.quality]
    return estimate_mean(
        [o.quality[metric] for o in having],
        clusters=None if plan.cluster is None else [o.cluster for o in having],
        alpha=plan.alpha,
        reason=reason,
        rate=is_rate(metric),
    )


def answer_quality(outcomes: Sequence[Outcome], plan: Plan) -> AnswerQuality | None:
    """The block of a run or of a part of it, from its outcomes alone; None where no answer has a text.

    Texts that nothing can be measured of (no reference, no context, no words of the question) are counted all the same:
    `metrics` is empty then.
    """
    if not any(o.answer is not None and o.answer.strip() for o in outcomes):
        return None
    counts = dict.fromkeys(COUNTS, 0)
    for outcome in outcomes:
        if outcome.state != "answerable":
            continue
        if outcome.abstained is None:
            counts["undecided"] += 1
        elif outcome.abstained:
            counts["refused"] += 1
        else:
            counts["answered" if answered(outcome) else "no_text"] += 1
    reason = "no_eligible" if counts["answered"] else "no_answers"
    measured = [name for name in METRICS if any(name in o.quality for o in outcomes)]
    return AnswerQuality({name: answer_estimate(name, outcomes, plan, reason) for name in measured}, counts)
