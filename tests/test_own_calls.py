"""How a user's own function is called: one or many questions, plain or async, slow, failing, limited."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import numpy as np
import pytest

from denominator import masking
from denominator.embedders import Callable
from denominator.errors import ConfigError
from tests.endpoint_parts import QUESTIONS, TEXTS, bench_of, rankings

QUICK = {"backoff": 0.001}
BEST = {question: [best] for question, best in zip(QUESTIONS, ["filters", "refunds", "paints"], strict=True)}
MANY = tuple(f"question {n}" for n in range(20))


def ranked_by(function, questions=QUESTIONS, **options):
    bench = bench_of(questions=questions)
    ranked, _ = bench.ranked(Callable(function, **(QUICK | options)))
    return rankings(bench, ranked), ranked


async def slowly(question, k):
    await asyncio.sleep(0.001)
    return BEST[question]


async def all_slowly(questions, k):
    await asyncio.sleep(0.001)
    return [BEST[q] for q in questions]


class Engine:
    """A callable object, as a framework's retriever often is."""

    def __call__(self, question, k):
        return ((d, 1.0) for d in BEST[question])


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize(
    ("function", "many"),
    [
        (lambda question, k: BEST[question], False),
        (slowly, False),
        (Engine(), False),
        (lambda questions, k: [BEST[q] for q in questions], True),
        (lambda questions, k: (iter(BEST[q]) for q in questions), True),
        (all_slowly, True),
    ],
    ids=["plain", "async", "object", "many", "many lazy", "many async"],
)
def test_every_form_gives_the_same(function, many, timeout, concurrency):
    found, ranked = ranked_by(function, many=many, timeout=timeout, concurrency=concurrency, batch=2)
    assert found == [["filters"], ["refunds"], ["paints"]]
    assert ranked.exhausted.all()


def test_many_questions_come_in_batches_in_order():
    seen = []

    def retrieve(questions, k):
        seen.append(list(questions))
        return [["pumps"]] * len(questions)

    ranked_by(retrieve, MANY, many=True, batch=8)
    assert seen == [list(MANY[0:8]), list(MANY[8:16]), list(MANY[16:20])]


def test_a_batch_of_another_length_fails_its_questions():
    found, ranked = ranked_by(lambda questions, k: [["pumps"]], many=True, batch=2)
    assert ranked.errors == dict.fromkeys((0, 1), "ValueError: the function gave 1 lists of hits for 2 questions")
    assert found[2] == ["pumps"]


def test_wrong_hits_in_a_batch_fail_one_question():
    _, ranked = ranked_by(lambda questions, k: [["pumps"], ["nowhere"], ["pumps"]], many=True)
    assert list(ranked.errors) == [1]


def test_retries_until_it_works_and_says_how_often_it_did_not():
    calls = Counter()

    def retrieve(question, k):
        calls[question] += 1
        if question == QUESTIONS[1] or calls[question] < 3:
            raise ConnectionError("reset")
        return BEST[question]

    found, ranked = ranked_by(retrieve, retries=2)
    assert found == [["filters"], None, ["paints"]]
    assert ranked.errors == {1: "ConnectionError: reset (3 attempts)"}
    assert set(calls.values()) == {3}


def test_waits_double():
    starts = []

    def retrieve(question, k):
        starts.append(time.monotonic())
        raise ConnectionError("reset")

    ranked_by(retrieve, QUESTIONS[:1], retries=3, backoff=0.08)
    for place, wait in enumerate(np.diff(starts)):
        assert 0.04 * 2**place <= wait < 0.08 * 2**place + 0.3


@pytest.mark.parametrize("how", ["plain", "async", "lazy"])
def test_a_call_that_takes_too_long_fails_its_question(how):
    stuck, cancelled = threading.Event(), threading.Event()

    def plain(question, k):
        if question == QUESTIONS[1]:
            stuck.wait(20)
        return BEST[question]

    def lazy(question, k):
        if question == QUESTIONS[1]:
            stuck.wait(20)
        yield from BEST[question]

    async def coroutine(question, k):
        if question == QUESTIONS[1]:
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                cancelled.set()
                raise
        return BEST[question]

    start = time.monotonic()
    found, ranked = ranked_by({"plain": plain, "async": coroutine, "lazy": lazy}[how], timeout=0.3)
    stuck.set()
    assert time.monotonic() - start < 10
    assert ranked.errors == {1: "TimeoutError: no answer within 0.3 s"}
    assert found == [["filters"], None, ["paints"]]
    if how == "async":
        assert cancelled.wait(5)


def test_a_time_out_of_its_own_is_not_ours():
    async def retrieve(question, k):
        raise TimeoutError("the index is cold")

    _, ranked = ranked_by(retrieve, timeout=5.0)
    assert ranked.errors[0] == "TimeoutError: the index is cold"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_as_many_at_once_as_allowed_and_no_more(asynchronous):
    now, most, lock = Counter(), Counter(), threading.Lock()

    def enter(step):
        with lock:
            now["n"] += step
            most["n"] = max(most["n"], now["n"])

    def plain(question, k):
        enter(1)
        time.sleep(0.05)
        enter(-1)
        return ["pumps"]

    async def coroutine(question, k):
        enter(1)
        await asyncio.sleep(0.05)
        enter(-1)
        return ["pumps"]

    found, _ = ranked_by(coroutine if asynchronous else plain, MANY[:12], concurrency=3)
    assert most["n"] == 3
    assert found == [["pumps"]] * 12


def test_one_at_a_time_is_called_in_the_callers_thread():
    threads = set()
    ranked_by(lambda question, k: threads.add(threading.current_thread()) or ["pumps"])
    assert threads == {threading.current_thread()}


def test_coroutines_share_one_loop():
    loops = set()

    async def retrieve(question, k):
        loops.add(asyncio.get_running_loop())
        return ["pumps"]

    for concurrency in (1, 4):
        ranked_by(retrieve, MANY, concurrency=concurrency)
    assert len(loops) == 1


def test_a_function_may_be_called_while_a_loop_runs():
    """As in a notebook, where the caller's own thread has a running loop."""

    async def notebook():
        return ranked_by(slowly)[0]

    assert asyncio.run(notebook()) == [["filters"], ["refunds"], ["paints"]]


def test_a_rate_limit_spreads_the_starts():
    begun, starts = time.monotonic(), []
    ranked_by(lambda question, k: starts.append(time.monotonic()) or ["pumps"], MANY[:5], calls_per_minute=1200)
    assert len(starts) == 5
    assert all(start - begun >= 0.05 * i for i, start in enumerate(starts))  # a busy machine only makes them later


def test_after_many_failures_in_a_row_the_rest_is_not_asked():
    calls = []

    def retrieve(question, k):
        calls.append(question)
        if question == MANY[1]:
            return ["pumps"]
        raise ConnectionError("down")

    found, ranked = ranked_by(retrieve, MANY, give_up_after=4)
    assert len(calls) == 6  # one failure, one success, then four in a row
    assert len(ranked.errors) == 19
    assert found[1] == ["pumps"]
    assert ranked.errors[19] == "not asked, after 4 failures in a row; the last: ConnectionError: down"


def test_an_id_that_is_not_there_is_no_failure_of_the_call():
    calls = []
    _, ranked = ranked_by(lambda question, k: calls.append(question) or ["nowhere"], MANY, give_up_after=2, retries=3)
    assert calls == list(MANY)
    assert len(ranked.errors) == 20


def test_secrets_do_not_get_into_errors():
    def retrieve(question, k):
        raise ConnectionError("cannot reach https://me:pa55word@search.invalid/x")

    masking.remember("s3cret-key")
    try:
        _, ranked = ranked_by(retrieve)
        assert ranked.errors[0] == "ConnectionError: cannot reach https://***@search.invalid/x"
    finally:
        masking.forget()


def test_several_hits_in_one_document_count_once_and_do_not_exhaust_the_index():
    hits = [{"document_id": d, "score": s} for d, s in [("pumps", 3), ("pumps", 2), ("paints", 1)]]
    bench = bench_of(questions=QUESTIONS[:1], depth=3)
    ranked, _ = bench.ranked(Callable(lambda question, k: hits[:k]))
    assert rankings(bench, ranked) == [["pumps", "paints"]]
    assert not ranked.exhausted.any()


def test_something_that_is_no_hit_says_what_it_should_be():
    class Passage:
        pass

    _, ranked = ranked_by(lambda question, k: [Passage()])
    assert ranked.errors[0] == "TypeError: a hit is an id, an (id, score) pair or a mapping, found Passage"


def test_scores_decide_before_anything_is_cut():
    bench = bench_of(questions=QUESTIONS[:1], depth=2)
    hits = [("pumps", 0.1), ("paints", 0.9), ("pumps", 0.95), ("filters", 0.5)]
    ranked, _ = bench.ranked(Callable(lambda question, k: hits))
    assert rankings(bench, ranked) == [["pumps", "paints"]]
    assert ranked.scores.tolist() == [0.95, 0.9]


def test_blank_questions_are_not_asked():
    seen = []
    ranked_by(lambda question, k: seen.append(question) or ["pumps"], ("", "  ", "a"))
    assert seen == ["a"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": 0}, "batch"),
        ({"retries": 1.5}, "retries"),
        ({"concurrency": True}, "concurrency"),
        ({"timeout": -1}, "timeout"),
        ({"backoff": float("inf")}, "backoff"),
        ({"max_wait": 0}, "max_wait"),
        ({"calls_per_minute": 0}, "calls_per_minute"),
        ({"give_up_after": 0}, "give_up_after"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(options, says):
    with pytest.raises(ConfigError, match=says):
        Callable(lambda question, k: list(TEXTS), **options)
