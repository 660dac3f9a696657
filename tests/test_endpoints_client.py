from __future__ import annotations

import email.utils
import json
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denominator import masking
from denominator.cache import describe
from denominator.endpoints import client as module
from denominator.endpoints.client import Endpoint, EndpointError, filled, filled_address, split_on_content
from denominator.errors import ConfigError
from tests.http_server import Reply, serving

REAL_SLEEP = module.sleep


@pytest.fixture
def server():
    with serving(lambda request: {"got": request.body}) as running:
        yield running


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Waits are written down, not waited."""
    waited: list[float] = []
    monkeypatch.setattr(module, "sleep", lambda seconds, stop: waited.append(seconds))
    yield waited
    masking.forget()


def endpoint(server, path="/x", **settings):
    return Endpoint(url=server.url + path, **{"backoff": 0.1, "retries": 3, "timeout": 5.0, **settings})


def fails(part, **call):
    with pytest.raises(EndpointError) as caught:
        part.client().call({"a": 1}, **call)
    return caught.value


def test_success(server):
    part = endpoint(server, api_key="sk-s3cret", headers={"X-Extra": "1"})
    assert part.client().call({"a": "é😀"}) == {"got": {"a": "é😀"}}
    sent = server.requests[0]
    assert (sent.method, sent.path) == ("POST", "/x")
    assert sent.headers["Authorization"] == "Bearer sk-s3cret"
    assert (sent.headers["X-Extra"], sent.headers["Content-Type"]) == ("1", "application/json")


def test_get_without_a_body(server):
    assert endpoint(server).client().call(method="GET", params={"q": "a b&c"}) == {"got": None}
    assert server.requests[0].query == {"q": ["a b&c"]}


def test_429_with_retry_after_in_seconds(server, waits):
    server.faults.append(Reply(429, {"error": "slow down"}, {"Retry-After": "7"}))
    assert endpoint(server).client().call(1) == {"got": 1}
    assert [round(w) for w in waits] == [7]


def test_429_with_retry_after_as_a_date(server, waits):
    server.faults.append(Reply(429, {}, {"Retry-After": email.utils.formatdate(time.time() + 30, usegmt=True)}))
    assert endpoint(server).client().call(1) == {"got": 1}
    assert 28 < waits[0] <= 30


def test_retry_after_holds_the_other_requests_too(server, waits):
    server.faults.append(Reply(503, {}, {"Retry-After": "5"}))
    client = endpoint(server).client()
    client.call(1)
    client.call(2)
    assert [round(w) for w in waits] == [5, 5]


@pytest.mark.parametrize("text", ["soon", "-3", "1e9999", "Wed, 99 Foo", "１"])
def test_a_retry_after_that_cannot_be_read_is_none(server, waits, text):
    with serving(lambda _: 1) as other:
        other.faults.append(Reply(429, {}, {"Retry-After": text.encode("ascii", "ignore").decode()}))
        assert endpoint(other).client().call(1) == 1
    assert len(waits) == 1
    assert 0.05 <= waits[0] <= 0.1


def test_a_server_that_asks_for_too_long_a_wait_fails_at_once(server, waits):
    server.always = Reply(429, {"error": "daily limit"}, {"Retry-After": "3600"})
    error = fails(endpoint(server, max_wait=60))
    assert "asks to wait 3600 s" in str(error)
    assert "max_wait=60" in str(error)
    assert (error.status, error.unreachable, waits, len(server.requests)) == (429, True, [], 1)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_a_passing_failure_and_then_success(server, waits, status):
    server.faults.append(Reply(status, {}))
    assert endpoint(server).client().call(1) == {"got": 1}
    assert len(waits) == 1


def test_500_for_ever(server, waits):
    server.always = Reply(500, {"error": "out of memory"})
    error = fails(endpoint(server))
    assert str(error) == (
        f'POST {server.url}/x: status 500 Internal Server Error: {{"error": "out of memory"}} (4 attempts)'
    )
    assert (error.status, error.exit_code, len(server.requests)) == (500, 1, 4)
    # .1, .2, .4, half of each random
    assert [low <= w <= 2 * low for w, low in zip(waits, (0.05, 0.1, 0.2), strict=True)] == [True] * 3


def test_waits_are_random_and_the_same_again(server, waits):
    def waited(**settings):
        waits.clear()
        server.faults.extend([Reply(500)] * 3)
        endpoint(server, **settings).client().call("a text")
        return list(waits)

    first = waited()
    assert waited() == first
    assert waited(jitter_seed=1) != first


@pytest.mark.parametrize(
    ("status", "unreachable"), [(400, False), (401, True), (403, True), (404, True), (422, False), (501, True)]
)
def test_what_is_wrong_with_the_request_is_not_sent_again(server, status, unreachable):
    server.always = Reply(status, {"error": "no"})
    error = fails(endpoint(server))
    assert (error.status, error.unreachable, len(server.requests)) == (status, unreachable, 1)


def test_an_empty_purse_is_not_asked_again(server):
    server.always = Reply(429, {"error": {"code": "insufficient_quota"}})
    assert fails(endpoint(server)).status == 429
    assert len(server.requests) == 1


def test_time_out(server):
    server.always = Reply(body=1, delay=0.2)
    error = fails(endpoint(server, timeout=0.05, retries=1))
    assert str(error) == f"POST {server.url}/x: no answer within 0.05 s (2 attempts)"
    assert error.unreachable


def test_time_out_of_a_body_that_drips(server):
    server.faults.append(Reply(body=b"[" + b" " * 50 + b"]", drip=0.02))
    started = time.perf_counter()
    assert endpoint(server, timeout=0.1).client().call(1) == {"got": 1}
    assert time.perf_counter() - started < 0.6


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"", b'{"a": ', b"\xff\xfe", b"[" * 100_000])
def test_malformed_json(server, body):
    server.always = Reply(body=body)
    error = fails(endpoint(server, retries=1))
    assert "the answer is not JSON" in str(error)
    assert len(server.requests) == 2
    assert len(str(error)) < 600
    server.always = None
    assert endpoint(server).client().call(1) == {"got": 1}


def test_an_answer_that_breaks_off(server):
    server.faults.append(Reply(body={"a": "b" * 1000}, cut=500))
    assert endpoint(server).client().call(1) == {"got": 1}
    server.always = Reply(body={"a": "b" * 1000}, cut=500)
    assert "broke" in str(fails(endpoint(server, retries=0)))


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    part = Endpoint(url=f"http://me:pa55word@127.0.0.1:{port}/x?api_key=q-s3cret", retries=1)
    error = fails(part)
    assert str(error) == (
        f"POST http://127.0.0.1:{port}/x?***: no connection, or it broke (Connection refused) (2 attempts)"
    )


def test_redirects_are_not_followed(server):
    with serving(lambda request: "other") as other:
        server.always = Reply(307, {}, {"Location": f"{other.url}/y?token=t0k3n"})
        error = fails(endpoint(server, api_key="sk-s3cret"))
        assert other.requests == []
    assert "redirects to" in str(error)
    assert "t0k3n" not in str(error)


def test_a_netrc_does_not_replace_the_key(server, tmp_path, monkeypatch):
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(file))
    endpoint(server, api_key="sk-s3cret").client().call(1)
    endpoint(server).client().call(1)
    assert [r.headers.get("Authorization") for r in server.requests] == ["Bearer sk-s3cret", None]


def test_user_and_password_of_the_address(server):
    Endpoint(url=f"http://me:pa%3A55@{server.host}/x").client().call(1)
    assert server.requests[0].headers["Authorization"] == "Basic bWU6cGE6NTU="


def test_secrets_are_nowhere(server):
    part = Endpoint(
        url=f"http://me:u-s3cret@{server.host}/x?sig=q-s3cret&v=2",
        api_key="k-s3cret",
        headers={"x-api-key": "h-s3cret", "Authorization": "Token a-s3cret"},
        retries=0,
    )
    server.always = Reply(401, {"error": "wrong key k-s3cret, h-s3cret, a-s3cret, q-s3cret of me:u-s3cret"})
    error = fails(part)
    assert "wrong key ***, ***, ***, *** of" in str(error)
    for text in (str(error), repr(error), repr(part), json.dumps(describe(part))):
        assert "s3cret" not in text
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    other = Endpoint(url=f"http://you:x@{server.host}/x?sig=other&v=2", api_key="another")
    assert describe(other) == describe(part)
    assert describe(Endpoint(url=f"http://{server.host}/x?v=3")) != describe(part)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "localhost:80"}, "url must begin with http"),
        ({"url": "http://h:notaport/"}, "is not an address"),
        ({"url": "ftp://h/"}, "url must begin with http"),
        ({"timeout": 0}, "timeout must be a number greater than 0, found 0"),
        ({"timeout": float("nan")}, "timeout must be a number"),
        ({"retries": -1}, "retries must be a whole number of at least 0"),
        ({"retries": True}, "retries must be a whole number"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1"),
        ({"requests_per_minute": 0}, "requests_per_minute must be a number greater than 0"),
        ({"api_key": ""}, "api_key is empty"),
        ({"api_key": "abc\n"}, "api_key is empty, or holds line ends"),
        ({"headers": {"x-key": "a\r\nb"}}, "headers.x-key is empty, or holds line ends"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Endpoint(**{"url": "http://h", **settings})
    assert "abc" not in str(caught.value)


# Many requests


def test_rate_limit_spreads_the_starts(server, waits):
    client = endpoint(server, requests_per_minute=60).client()
    for i in range(3):
        client.call(i)
    assert [round(w) for w in waits] == [1, 2]  # no time passes between them here


def test_concurrency_is_bounded_and_used(server):
    answer = server.answer
    server.answer = lambda request: (time.sleep(0.02), answer(request))[1]
    client = endpoint(server, concurrency=3).client()
    found = dict(client.each(12, lambda i, stop: client.call(i, stop=stop)))
    assert found == {i: {"got": i} for i in range(12)}
    assert server.most_at_once == 3


@pytest.mark.parametrize("concurrency", [1, 4])
def test_one_failure_is_one_failure(server, concurrency):
    server.answer = lambda request: Reply(400, {"error": "bad"}) if request.body == 5 else request.body
    client = endpoint(server, concurrency=concurrency).client()
    found = dict(client.each(9, lambda i, stop: client.call(i, stop=stop)))
    assert [i for i in found if isinstance(found[i], EndpointError)] == [5]
    assert sorted(found) == list(range(9))


@pytest.mark.parametrize("status", [500, 401, 400])
def test_a_dead_server_is_not_asked_for_ever(server, status):
    server.always = Reply(status, {"error": "dead"})
    client = endpoint(server, retries=0, give_up_after=3, concurrency=1).client()
    found = [reply for _, reply in client.each(50, lambda i, stop: client.call(i, stop=stop))]
    assert len(server.requests) == 3
    assert len(found) == 50
    assert "not asked, after 3 failures in a row; the last: POST" in str(found[-1])
    assert f"status {status}" in str(found[-1])


def test_whoever_stops_reading_stops_the_work(server):
    server.answer = lambda request: (time.sleep(0.01), 1)[1]
    client = endpoint(server, concurrency=2).client()
    asking = client.each(500, lambda i, stop: client.call(i, stop=stop))
    next(asking)
    asking.close()
    time.sleep(0.1)
    assert len(server.requests) < 20


def test_a_wait_ends_when_the_work_is_stopped():
    stop = threading.Event()
    threading.Timer(0.02, stop.set).start()
    started = time.perf_counter()
    REAL_SLEEP(30, stop)
    assert time.perf_counter() - started < 5


@given(st.lists(st.integers(0, 6), max_size=30, unique=True), st.integers(1, 9))
def test_splitting_finds_exactly_the_items_that_are_refused(bad, most):
    """At most two bad items, so that giving up (three refused, none taken) never applies."""
    bad = set(bad[:2])
    taken, failed = [], []

    def ask(items):
        if len(items) > most or bad & set(items):
            raise EndpointError("refused", status=413)
        taken.extend(items)

    split_on_content(list(range(7)), ask, lambda item, error: failed.append(item))
    assert sorted(taken) == [i for i in range(7) if i not in bad]
    assert sorted(failed) == sorted(bad)


def test_splitting_gives_up_when_nothing_is_taken():
    asked, failed = [], []

    def ask(items):
        asked.append(list(items))
        raise EndpointError("no such model", status=400)

    split_on_content(range(64), ask, lambda item, error: failed.append(item))
    assert sorted(failed) == list(range(64))
    assert len(asked) < 20


# Templates


@given(st.text())
def test_a_question_is_filled_in_as_it_is(question):
    values = {"question": question, "depth": 7}
    made = filled({"a": ["{question}"], "b": "x {question} y", "n": "{depth}", "c": {"d": None, "e": 1}}, values)
    assert made == {"a": [question], "b": f"x {question} y", "n": 7, "c": {"d": None, "e": 1}}


def test_an_address_is_quoted():
    assert (
        filled_address("http://h/{question}?k={depth}", {"question": "a/b?é", "depth": 3})
        == "http://h/a%2Fb%3F%C3%A9?k=3"
    )
