"""Secrets never reach a file, a record or a screen: what counts as one, and how it is hidden.

A setting is secret by its name (`api_key`, `token`, `password`, …) or because it is a URI with user and password.
A secret that is typed as an override is moved into the environment before anything else sees it, and the override
becomes a reference to it: Hydra's own files then hold the reference only, and every launcher's workers inherit it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "***"
ENVIRONMENT = "DENOMINATOR_SECRET_"
_NAME = re.compile(
    r"(?:^|[._\-])(?:api[_\-]?key|access[_\-]?key|private[_\-]?key|token|password|passwd|passphrase|secret|credentials?|authorization)$",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)[^/\s@'\"]+@")
_SHORT = 4  # a shorter value is hidden where it stands, not wherever these letters occur
_known: set[str] = set()


def secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret.

    >>> [secret_name(n) for n in ("embedder.api_key", "hf_token", "embedder.tokenizer", "budget")]
    [True, True, False, False]
    """
    return _NAME.search(name) is not None


def has_userinfo(text: str) -> bool:
    """Whether a URI in the text carries a user or password."""
    return _USERINFO.search(text) is not None


def remember(value: Any) -> None:
    """From now on `mask` hides this value wherever it occurs."""
    if isinstance(value, str) and len(value) >= _SHORT:
        _known.add(value)
        for found in _USERINFO.finditer(value):
            for part in found.group()[len(found["scheme"]) : -1].split(":", 1):
                if len(part) >= _SHORT:
                    _known.add(part)


def remember_settings(settings: Any, name: str = "") -> None:
    """Remembers the secrets inside a resolved configuration (mappings and lists)."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            remember_settings(value, f"{name}.{key}" if name else str(key))
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            remember_settings(value, name)
    elif isinstance(settings, str) and (secret_name(name) or has_userinfo(settings)):
        remember(settings)


def remember_environment() -> None:
    """Remembers what `into_environment` of the launching process put there (a worker calls this)."""
    for key, value in os.environ.items():
        if key.startswith(ENVIRONMENT):
            remember(value)


def mask(text: str) -> str:
    """The text without any known secret and without users and passwords in URIs.

    >>> mask("cannot reach https://user:pa55word@tracking.invalid/api")
    'cannot reach https://***@tracking.invalid/api'
    """
    for value in sorted(_known, key=len, reverse=True):
        if value in text and not _USERINFO.fullmatch(value):
            text = text.replace(value, MASK if "://" not in value else _USERINFO.sub(rf"\g<scheme>{MASK}@", value))
    return _USERINFO.sub(rf"\g<scheme>{MASK}@", text)


def masked(settings: Any, name: str = "") -> Any:
    """A copy of a configuration with secrets replaced; references such as `${oc.env:KEY}` stay as they are."""
    if isinstance(settings, Mapping):
        return {key: masked(value, f"{name}.{key}" if name else str(key)) for key, value in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [masked(value, name) for value in settings]
    if settings is None or isinstance(settings, bool):
        return settings
    if secret_name(name) and not (isinstance(settings, str) and settings.startswith("${")):
        return MASK
    return mask(settings) if isinstance(settings, str) else settings


def into_environment(overrides: Sequence[str]) -> list[str]:
    """The same overrides with typed secrets replaced by references to environment variables that now hold them."""
    return [_moved(override) for override in overrides]


def _moved(override: str) -> str:
    key, sign, value = override.partition("=")
    name = key.lstrip("+~").split("@", 1)[0]
    if not sign or "${" in value or not value or not (secret_name(name) or has_userinfo(value)):
        return override
    plain = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    variable = ENVIRONMENT + hashlib.sha256(f"{name}={plain}".encode()).hexdigest()[:12].upper()
    os.environ[variable] = plain
    remember(plain)
    return f"{key}=${{oc.env:{variable}}}"


def shown_override(override: str) -> str:
    """An override as it may be shown: `embedder.api_key=***`.

    >>> shown_override("+embedder.api_key=abc"), shown_override("chunker.size=64")
    ('+embedder.api_key=***', 'chunker.size=64')
    """
    key, sign, value = override.partition("=")
    if sign and secret_name(key.lstrip("+~").split("@", 1)[0]) and not value.startswith("${"):
        return f"{key}={MASK}"
    return mask(override)


def forget(values: Iterable[str] = ()) -> None:
    """Forgets the given secrets, or all of them (for tests)."""
    if values:
        _known.difference_update(values)
    else:
        _known.clear()
