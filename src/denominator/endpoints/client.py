"""The one HTTP client of the package: JSON in, JSON out; time-outs, retries, a rate limit, bounded concurrency.

What is retried: no connection, a time-out, a broken or cut body, a body that is not JSON, and the statuses 408, 425,
429 and 5xx (but 501 and 505). Waits double from `backoff` on, half of each is random; a `Retry-After` of the server, in
seconds or as a date, comes first and holds all requests to that server. What is wrong with the request itself (400,
401, 404 …) is not sent again. Redirects are not followed: they would carry a key elsewhere.

A key is sent and never shown: it is no part of a cache key, of a repr, or of an error, even where the server echoes it.
"""

from __future__ import annotations

import base64
import json
import math
import re
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import numpy as np

from denominator.errors import ConfigError, StageError
from denominator.masking import MASK, mask, remember, secret_name
from denominator.retrievers.threads import side_by_side

T = TypeVar("T")
SHOWN = 300
"""Characters of a body that an error shows."""
LARGEST_BODY = 256 * 2**20
CONTENT = (400, 413, 422)
"""Statuses that speak of what was sent: a smaller or simpler request may pass where this one did not."""
_UNREACHABLE = (401, 402, 403, 404, 405, 407, 410)
_PART = 1 << 16


class EndpointError(StageError):
    """A request that failed for good: address (user, password and query masked), status, the start of the body.

    `unreachable`: it says something about the server, not about what was sent; many in a row end the asking.
    """

    def __init__(self, message: str, *, status: int | None = None, unreachable: bool = False) -> None:
        self.status, self.unreachable = status, unreachable
        super().__init__(mask(message))


class _Transient(Exception):  # noqa: N818
    def __init__(self, message: str, *, status: int | None = None, wait: float | None = None) -> None:
        self.status, self.wait = status, wait
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What every part that asks a server can be given.

    `url`: the address. `api_key`: sent as `Authorization: Bearer …`; write `${oc.env:NAME}` in a YAML. `headers`: sent
    as they are (`api-key: …` where a server wants the key there). `timeout`: seconds for one attempt. `retries`:
    further attempts. `backoff`: seconds of the first wait, doubled each time. `max_wait`: longest wait; a server that
    asks for more makes the request fail. `concurrency`: requests at once. `requests_per_minute`: starts of requests are
    spread evenly, retries included, per process. `give_up_after`: failures in a row after which the rest is not asked.
    `jitter_seed`: of the random part of the waits. Only the address, without its secrets, enters a cache key.
    """

    url: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 60.0
    retries: int = 5
    backoff: float = 1.0
    max_wait: float = 60.0
    concurrency: int = 4
    requests_per_minute: float | None = None
    give_up_after: int = 10
    jitter_seed: int = 0
    what: ClassVar[str] = "endpoint"
    suffix: ClassVar[str] = ""
    not_in_key: ClassVar[tuple[str, ...]] = (
        "url",
        "api_key",
        "headers",
        "timeout",
        "retries",
        "backoff",
        "max_wait",
        "concurrency",
        "requests_per_minute",
        "give_up_after",
        "jitter_seed",
    )

    def __post_init__(self) -> None:
        check_address(self.url, self.what)
        for name in ("timeout", "max_wait"):
            self._at_least(name, 0, open_end=True)
        self._at_least("backoff", 0)
        if self.requests_per_minute is not None:
            self._at_least("requests_per_minute", 0, open_end=True)
        for name, least in (("retries", 0), ("concurrency", 1), ("give_up_after", 1), ("jitter_seed", 0)):
            self._whole(name, least)
        for name, value in (("api_key", self.api_key), *((f"headers.{k}", v) for k, v in self.headers.items())):
            if value is not None and not _sendable(value):
                raise ConfigError(f"{self.what}: {name} is empty, or holds line ends or characters that cannot be sent")

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{self.what}: {name} must be a whole number of at least {least}, found {value!r}")

    def _at_least(self, name: str, least: float, *, open_end: bool = False) -> None:
        value = getattr(self, name)
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not good or value < least or (open_end and value == least):
            bound = f"greater than {least}" if open_end else f"at least {least}"
            raise ConfigError(f"{self.what}: {name} must be a number {bound}, found {value!r}")

    def identity(self) -> str:
        """The address as cache keys hold it."""
        return address_in_key(with_suffix(self.url, self.suffix))

    def client(self) -> Client:
        """The client for these settings, one in a process, so that connections stay open between stages."""
        settings = {f.name: getattr(self, f.name) for f in fields(Endpoint)}
        settings |= {"url": with_suffix(self.url, self.suffix), "headers": tuple(sorted(self.headers.items()))}
        return _client(tuple(settings.items()))


def _sendable(value: object) -> bool:
    return isinstance(value, str) and value == value.strip() != "" and value.isascii() and value.isprintable()


def check_address(url: str, what: str) -> None:
    """Raises ConfigError unless it is an http or https address with a host."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{what}: url {shown_address(url)!r} is not an address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{what}: url must begin with http:// or https:// and a host, found {shown_address(url)!r}")


def with_suffix(url: str, suffix: str) -> str:
    """The address with the last part of its path, which a base address leaves out.

    >>> (
    ...     with_suffix("http://localhost:8000/v1/", "/embeddings"),
    ...     with_suffix("http://h/v1/embeddings?v=1", "/embeddings"),
    ... )
    ('http://localhost:8000/v1/embeddings', 'http://h/v1/embeddings?v=1')
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return url if not suffix or path.endswith(suffix) else urlunsplit(parts._replace(path=path + suffix))


def shown_address(url: str) -> str:
    """The address as an error may show it.

    >>> shown_address("https://me:pa55@host:81/v1/x?key=abc#f")
    'https://***@host:81/v1/x?***'
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return mask(url.partition("?")[0])
    host = parts.netloc.rpartition("@")[2]
    where = f"{MASK}@{host}" if "@" in parts.netloc else host
    return mask(urlunsplit((parts.scheme, where, parts.path, MASK if parts.query else "", "")))


def address_in_key(url: str) -> str:
    """The address without user, password and secret parameters: a new key must not make results stale.

    >>> address_in_key("https://me:pa55@host/v1/x?api-version=2&api_key=abc")
    'https://host/v1/x?api-version=2'
    """
    parts = urlsplit(url)
    query = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if not _secret_parameter(k)]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, urlencode(query), ""))


def _secret_parameter(name: str) -> bool:
    return secret_name(name) or name.lower() in ("key", "sig", "signature", "code")


class _Gate:
    """When the next request may start: rate limit, and what a server asked for with Retry-After."""

    def __init__(self, per_minute: float | None) -> None:
        self.step = 60.0 / per_minute if per_minute else 0.0
        self.lock = threading.Lock()
        self.next = self.closed_until = 0.0

    def hold(self, seconds: float) -> None:
        with self.lock:
            self.closed_until = max(self.closed_until, time.monotonic() + seconds)

    def turn(self) -> float:
        """Seconds to wait before the request may start; the place is taken."""
        with self.lock:
            now = time.monotonic()
            start = max(now, self.next, self.closed_until)
            self.next = start + self.step
            return start - now


class Client:
    """Sends requests to one server. Safe to use from several threads."""

    def __init__(self, settings: Endpoint) -> None:
        self.settings = settings
        self.gate = _Gate(settings.requests_per_minute)
        self._sessions = threading.local()
        parts = urlsplit(settings.url)
        self.host = (parts.scheme, parts.netloc)
        self.bare_url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self._authorization: str | None = None
        if settings.api_key is not None:
            self._authorization = f"Bearer {settings.api_key}"
            remember(settings.api_key)
        elif "@" in parts.netloc:
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
            self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
            remember(self._authorization.partition(" ")[2])
        for password in (parts.password or "", unquote(parts.password or "")):
            remember(password)
        for name, value in settings.headers.items():
            if secret_name(name):
                remember(value)
                remember(value.partition(" ")[2])
        for name, value in parse_qsl(parts.query):
            if _secret_parameter(name):
                remember(value)

    # ---------------------------------------------------------------- one request

    def call(
        self,
        body: Any = None,
        *,
        method: str = "POST",
        url: str | None = None,
        params: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
    ) -> Any:
        """The JSON that the server answers with. Raises EndpointError when it gives none after all attempts."""
        how = self.settings
        address = self.bare_url if url is None else url
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        waits = self._waits(address, data)
        for attempt in range(how.retries + 1):
            self._pause(self.gate.turn(), stop)
            try:
                return self._once(method, address, data, params)
            except _Transient as error:
                name = f"{method} {shown_address(address)}"
                times = f" ({attempt + 1} attempts)" if attempt else ""
                if error.wait is not None and error.wait > how.max_wait:
                    raise EndpointError(
                        f"{name}: {error}; the server asks to wait {error.wait:.0f} s, "
                        f"which is longer than max_wait={how.max_wait:g}{times}",
                        status=error.status,
                        unreachable=True,
                    ) from None
                if attempt == how.retries:
                    raise EndpointError(f"{name}: {error}{times}", status=error.status, unreachable=True) from None
                if error.wait is None:
                    self._pause(next(waits), stop)
                else:
                    self.gate.hold(error.wait)  # everybody's next turn waits for it
        raise AssertionError("the last attempt returns or raises")

    def _waits(self, address: str, data: bytes | None) -> Iterator[float]:
        """Doubling waits, half of each random. Drawn per request, so that threads do not change them."""
        how = self.settings
        draw = np.random.default_rng([how.jitter_seed, zlib.crc32(address.encode() + (data or b""))])
        wait = how.backoff
        while True:
            yield min(wait, how.max_wait) * (0.5 + 0.5 * float(draw.random()))
            wait *= 2

    def _pause(self, seconds: float, stop: threading.Event | None) -> None:
        if stop is not None and stop.is_set():
            raise EndpointError("not asked: the work was stopped")
        if seconds > 0:
            sleep(seconds, stop)
            if stop is not None and stop.is_set():
                raise EndpointError("not asked: the work was stopped")

    def _once(self, method: str, address: str, data: bytes | None, params: Mapping[str, str] | None) -> Any:
        import requests
        import urllib3

        how = self.settings
        headers = {"Accept": "application/json", **({"Content-Type": "application/json"} if data is not None else {})}
        end = time.monotonic() + how.timeout
        try:
            with self._session().request(
                method,
                address,
                params=params,
                data=data,
                headers={**headers, **how.headers},
                auth=self._sign,  # given always: a .netrc of the user must not replace the key
                timeout=how.timeout,
                allow_redirects=False,
                stream=True,
            ) as response:
                body = self._body(response, end)
        except (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
            raise _Transient(f"no answer within {how.timeout:g} s") from None
        except requests.exceptions.SSLError as error:
            raise EndpointError(
                f"{method} {shown_address(address)}: the certificate was not accepted ({_why(error)})", unreachable=True
            ) from None
        except requests.exceptions.ProxyError as error:
            raise _Transient(f"the proxy cannot be reached ({_why(error)})") from None
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            raise _Transient(f"no connection, or it broke ({_why(error)})") from None
        except urllib3.exceptions.HTTPError as error:
            raise _Transient(f"the answer broke off ({_why(error)})") from None
        except (requests.RequestException, UnicodeError, ValueError) as error:
            raise EndpointError(
                f"{method} {shown_address(address)}: the request cannot be sent ({_why(error)})"
            ) from None
        return self._judged(f"{method} {shown_address(address)}", response, body)

    def _judged(self, name: str, response: Any, body: bytes) -> Any:
        status = int(response.status_code)
        said = f"status {status} {response.reason or ''}".rstrip() + _quoted(body)
        if 200 <= status < 300:
            try:
                return json.loads(body)
            except (ValueError, RecursionError):
                raise _Transient(f"the answer is not JSON{_quoted(body)}", status=status) from None
        if 300 <= status < 400:
            to = shown_address(response.headers.get("Location", ""))
            raise EndpointError(
                f"{name}: status {status}, it redirects to {to!r}; redirects are not followed, set url to the address",
                status=status,
                unreachable=True,
            )
        transient = status in (408, 425, 429) or (status >= 500 and status not in (501, 505))
        if transient and not (status == 429 and b"insufficient_quota" in body):
            raise _Transient(said, status=status, wait=_retry_after(response.headers.get("Retry-After")))
        raise EndpointError(f"{name}: {said}", status=status, unreachable=status in _UNREACHABLE or status >= 429)

    @staticmethod
    def _body(response: Any, end: float) -> bytes:
        """The whole body. A server that drips a byte now and then runs into the time-out too."""
        parts: list[bytes] = []
        size = 0
        while part := response.raw.read1(_PART, decode_content=True):
            parts.append(part)
            size += len(part)
            if time.monotonic() > end:
                raise TimeoutError
            if size > LARGEST_BODY:
                raise EndpointError(f"an answer of more than {LARGEST_BODY >> 20} MiB was refused")
        return b"".join(parts)

    def _sign(self, request: Any) -> Any:
        if self._authorization is not None:
            request.headers["Authorization"] = self._authorization
        return request

    def _session(self) -> Any:
        """A session for each thread: nothing says that one may be shared."""
        found = getattr(self._sessions, "session", None)
        if found is None:
            import requests

            found = self._sessions.session = requests.Session()
        return found

    # ---------------------------------------------------------------- many

    def each(
        self, count: int, work: Callable[[int, threading.Event], T]
    ) -> Generator[tuple[int, T | EndpointError], None, None]:
        """`work(i, stop)` for all i, `concurrency` at once, each with its result or its error, as they are done.

        They are handed over in the caller's thread, so that only one thread writes to a cache. After `give_up_after`
        failures in a row the rest is not asked: each of them fails at once, and the error says why. A request that is
        refused for what it holds counts as long as nothing has succeeded.
        """
        stop, lock = threading.Event(), threading.Lock()
        row: list[EndpointError] = []
        good = 0

        def one(i: int) -> T | EndpointError:
            nonlocal good
            if len(row) >= self.settings.give_up_after:
                why = f"not asked, after {len(row)} failures in a row; the last: {row[-1]}"
                return EndpointError(why, unreachable=True)
            try:
                found = work(i, stop)
            except EndpointError as error:
                with lock:
                    if error.unreachable or not good:
                        row.append(error)
                return error
            with lock:
                good += 1
                if len(row) < self.settings.give_up_after:
                    row.clear()
            return found

        most = self.settings.concurrency
        yield from side_by_side(count, one, concurrency=most, stop=stop, name="denominator-endpoint")


def split_on_content(
    items: Sequence[T], ask: Callable[[Sequence[T]], None], failed: Callable[[T, EndpointError], None]
) -> None:
    """Asks for all items at once; where the server refuses what was sent, for halves, down to the ones it refuses.

    So one text that is too long, and a batch larger than the server takes, cost no other text its answer. Where three
    single items are refused before any was taken, it is not the items: the rest fails unasked.
    """
    taken = refused = 0
    waiting = [items]
    while waiting:
        part = waiting.pop()
        try:
            ask(part)
            taken += 1
        except EndpointError as error:
            if error.status not in CONTENT:
                raise
            if len(part) > 1 and (taken or refused < 3):
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
                continue
            for item in part:
                failed(item, error)
            refused += 1


def sleep(seconds: float, stop: threading.Event | None) -> None:
    """Waits; whoever stops the work ends the wait."""
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)


def _retry_after(text: str | None) -> float | None:
    """Seconds to wait; None without the header, and where it cannot be read."""
    if not text:
        return None
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return float(Retry().parse_retry_after(text))
    except (InvalidHeader, ValueError, OverflowError):
        return None


def _quoted(body: bytes) -> str:
    text = " ".join(body[: 4 * SHOWN].decode("utf-8", "replace").split())
    if not text:
        return ", with an empty body"
    return f": {text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"


def _why(error: BaseException) -> str:
    """The innermost reason, in the system's words: the outer ones repeat the address, with its secrets."""
    seen: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None and inner not in seen:
        seen.append(inner)
        reason = getattr(inner, "reason", None)
        inner = (
            reason
            if isinstance(reason, BaseException)
            else next((a for a in inner.args if isinstance(a, BaseException)), None) or inner.__cause__
        )
    for found in reversed(seen):
        if isinstance(found, OSError) and found.strerror:
            return str(found.strerror)
    return type(seen[-1]).__name__


@lru_cache(maxsize=64)
def _client(settings: tuple[tuple[str, Any], ...]) -> Client:
    given = dict(settings)
    return Client(Endpoint(**given | {"headers": dict(given["headers"])}))


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a nested template with `{name}` replaced; a text that is nothing else becomes the value itself.

    >>> filled({"q": "{question}", "size": "{depth}", "t": "about {question}"}, {"question": "a {depth}?", "depth": 5})
    {'q': 'a {depth}?', 'size': 5, 't': 'about a {depth}?'}
    """
    if isinstance(template, Mapping):
        return {str(k): filled(v, values) for k, v in template.items()}
    if isinstance(template, (list, tuple)):
        return [filled(v, values) for v in template]
    if not isinstance(template, str):
        return template
    if template[:1] == "{" and template[-1:] == "}" and template[1:-1] in values:
        return values[template[1:-1]]
    return _named(values).sub(lambda m: str(values[m.group(1)]), template)


def filled_address(template: str, values: Mapping[str, Any]) -> str:
    """The same for an address: what is put in is quoted.

    >>> filled_address("http://h/s?q={question}", {"question": "a&b c"})
    'http://h/s?q=a%26b%20c'
    """
    return _named(values).sub(lambda m: quote(str(values[m.group(1)]), safe=""), template)


def _named(values: Mapping[str, Any]) -> re.Pattern[str]:
    return re.compile(r"\{(" + "|".join(map(re.escape, sorted(values))) + r")\}")
