"""Calls to a store that may be busy, or away: made again for a while, and not at all while it is known to be away."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from denominator.errors import DenominatorError, StoreError
from denominator.masking import mask

T = TypeVar("T")

RETRIES = 6
PATIENCE = 15.0
"""Seconds after whose end a failing call is not made again: a server that hangs has then cost one time-out."""
REST = 10.0
"""Seconds for which a store that was found away is not asked at all."""
PROBE = 5.0
"""Seconds in which a server must answer when it is only asked whether it is there."""
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    # We call again ourselves, 3 to 6 seconds in all. MLflow's seven retries wait minutes for a server that is gone, and
    # they send a POST again whose answer was lost: a second run of the same cell. Ours looks for the first one.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    # MLflow waits 120 s for each answer of a server that hangs. No call of ours is that large: a batch of 1,000 metrics
    # takes well under a second, and for an upload the clock runs only while nothing moves.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would show a user and password
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""MLflow's own environment settings as we need them; what the environment says already stays."""
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


class StoreAwayError(StoreError):
    """The store does not answer, or with nothing but errors. `why` is the reason without what was being done."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def open_client(uri: str) -> Any:
    """MLflow's client of a store, with our settings. Nothing is sent to a server yet."""
    _quiet()
    from mlflow.tracking.client import MlflowClient

    _quiet()  # importing mlflow sets its own levels
    return MlflowClient(tracking_uri=uri)


def _quiet() -> None:
    import logging

    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs every error that we catch and tell


def retry(call: Callable[[], T], *, what: str, attempts: int | None = None, wait: float = 0.1) -> T:
    """Calls again when the store is busy or away, with growing pauses.

    Raises StoreError after the last attempt (StoreAwayError when the store did not answer).
    """
    begun, most = time.monotonic(), attempts or RETRIES
    for attempt in itertools.count(1):
        try:
            return call()
        except (KeyboardInterrupt, DenominatorError):
            raise
        except Exception as error:
            if attempt < most and _may_pass(error) and time.monotonic() - begun < PATIENCE:
                time.sleep(wait * 2 ** (attempt - 1) * (1 + os.getpid() % 7 / 7))
                continue
            said = _brief(error)
            if _is_away(error):
                raise StoreAwayError(f"{what} failed: {said}", said) from error
            raise StoreError(f"{what} failed: {said}") from error
    raise AssertionError("unreachable")


@dataclass(slots=True)
class Line:
    """The way to one store. Once a call found it away, others fail at once until it answers again.

    Without this every call of every cell would wait for its own time-out.
    """

    uri: str
    away: str | None = None
    until: float = 0.0

    def ask(self, call: Callable[[], T], *, what: str, attempts: int | None = None) -> T:
        """`retry`, unless the store is known to be away. Raises StoreError."""
        self.check(what)
        try:
            return retry(call, what=what, attempts=attempts)
        except StoreAwayError as error:
            late = f"the server at {mask(self.uri)} does not answer in time{ADDRESS}"
            self._lost(late if _timed_out(error) else probe(self.uri))
            if self.away is None:  # it is there, and fails for this call alone
                raise StoreError(str(error)) from error
            raise StoreAwayError(f"{what} failed: {self.away}", self.away) from error

    def check(self, what: str) -> None:
        """Raises StoreAwayError while the store is known to be away; looks after it from time to time."""
        if self.away is None:
            return
        if time.monotonic() >= self.until:
            self._lost(probe(self.uri))
        if self.away is not None:
            raise StoreAwayError(f"{what} was not tried: {self.away}", self.away)

    def look(self) -> None:
        """A cheap first question before anything else. Raises StoreAwayError within seconds."""
        for pause in (0.5, 1.5, 0.0):  # it may just be starting
            begun = time.monotonic()
            self._lost(probe(self.uri))
            if self.away is None:
                return
            if time.monotonic() - begun >= PROBE - 1:
                break  # it hangs: asking again would take as long
            time.sleep(pause)
        assert self.away is not None
        raise StoreAwayError(f"opening the record failed: {self.away}", self.away)

    def _lost(self, why: str | None) -> None:
        self.away, self.until = why, time.monotonic() + REST


def probe(uri: str) -> str | None:
    """None when the store's server answers, else why not. Files and unknown schemes count as there.

    Asked with MLflow's own means, so that its accounts, certificates and proxies hold here too.
    """
    if uri.startswith(("http://", "https://")):
        return _probe_server(uri)
    scheme = urlsplit(uri).scheme.split("+")[0]
    if scheme in PORTS:  # MLflow itself tries for minutes to reach a database
        address = urlsplit(uri)
        host, port = address.hostname or "localhost", address.port or PORTS[scheme]
        if host == "localhost" and not address.hostname:
            return None  # a socket file
        try:
            socket.create_connection((host, port), timeout=PROBE).close()
        except OSError as error:
            return f"the database at {host}:{port} does not answer ({error.strerror or error}){ADDRESS}"
    return None


ADDRESS = "; is the server running there? The address comes from tracking.uri or MLFLOW_TRACKING_URI"


def _probe_server(uri: str) -> str | None:
    _quiet()
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    where = mask(uri)
    try:
        account = get_default_host_creds(uri)  # type: ignore[no-untyped-call]
        answer = http_request(  # type: ignore[no-untyped-call]
            account, "/health", "GET", timeout=PROBE, max_retries=0, raise_on_status=False
        )
    except Exception as error:
        if _timed_out(error):
            return f"the server at {where} does not answer (nothing within {PROBE:.0f} s){ADDRESS}"
        return f"the server at {where} does not answer ({_reason(error)}){ADDRESS}"
    if answer.status_code >= 500:
        return f"the server at {where} answers with the error {answer.status_code}; its own log says why"
    return None


def _reason(error: BaseException) -> str:
    """The innermost reason of a failed connection in a few words."""
    text = str(error).lower()
    known = (
        ("refused", "connection refused"),
        ("resolve", "its name cannot be resolved"),
        ("name or service", "its name cannot be resolved"),
        ("reset", "connection reset"),
        ("closed connection", "connection closed"),
        ("aborted", "connection closed"),
        ("certificate", "its certificate is not accepted"),
        ("unreachable", "no way to it"),
    )
    return next((said for sign, said in known if sign in text), _first_line(error)[:200])


def _timed_out(error: BaseException) -> bool:
    text = str(error).lower()
    return "timed out" in text or "timeout exception" in text


def _is_network(error: BaseException) -> bool:
    import requests

    return isinstance(error, (requests.exceptions.RequestException, ConnectionError, TimeoutError))


AWAY = re.compile(
    r"max retries exceeded|failed with timeout exception|too many \d+ error responses"
    r"|timed out|timeout expired|gone away|the connection is lost|connection to server at .* failed"
    r"|(?:can't|cannot|could not|unable to|failed to) (?:connect|establish)"
    r"|(?:lost|closed|terminating) (?:the )?connection"
    r"|connection (?:has been |was |is |already )?(?:refused|reset|aborted|broken|closed|lost|error)"
    r"|\b50[234] (?:!=|server error|bad gateway|service (?:temporarily )?unavailable|gateway time-?out)"
)
"""How MLflow, HTTP libraries and database drivers say that nobody answered; not a word that a setting may hold."""
ANSWERED = re.compile(r"INVALID|RESOURCE|PERMISSION|UNAUTHENTICATED")
"""Kinds of MLflow's errors that come from a store which looked at the call, whatever their text quotes."""


def _no_answer(error: BaseException) -> bool:
    if ANSWERED.match(str(getattr(error, "error_code", ""))):
        return False
    return _is_network(error) or AWAY.search(str(error).lower()) is not None


def _is_away(error: BaseException) -> bool:
    return _is_network(error) or ("sqlite" not in str(error).lower() and _no_answer(error))


def _may_pass(error: BaseException) -> bool:
    text = str(error).lower()
    busy = ("locked", "busy", "temporarily", "deadlock")
    same = (
        "unique constraint",
        "duplicate key",
        "duplicate entry",
    )  # another worker wrote the same row: it is there now
    return _no_answer(error) or any(sign in text for sign in busy + same)


def _first_line(error: BaseException) -> str:
    lines = [line for line in mask(str(error)).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _brief(error: BaseException) -> str:
    return _first_line(error)[:400] + _hint(error)


def _hint(error: BaseException) -> str:
    """What a person can do about the usual refusals of a tracking server or of its artifact folder."""
    text = str(error).lower()
    if re.search(r"\b401\b", text) or "unauthorized" in text or "not authenticated" in text:
        return "; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN) to valid values"
    if re.search(r"\b403\b", text) or ("permission denied" in text and "http" in text):
        return "; this user may not do that on the server (MLflow's permissions of the experiment)"
    if isinstance(error, OSError) and not _is_network(error):
        return "; the artifact folder cannot be written: set out=… to another place, or mend the server's artifact root"
    if "error responses" in text:
        return "; the server is there but answers with errors: its own log says why"
    if any(sign in text for sign in ("max retries", "refused", "failed to resolve", "name or service", "aborted")):
        return ADDRESS
    return ""
