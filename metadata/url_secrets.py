"""Addresses in a form that may be shown.

Wrong addresses are shown too. So nothing here raises, and in doubt a part counts as secret.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_PATH_SCHEMES: Final = frozenset({"file", "lmdb", "memory", "dl"})
"""The schemes without a log-in; `?`, `#` and `@` belong to their names."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(\S*)")
_LOGIN = re.compile(r"([^/?#@:]*):(.*)@(.*)")
_SECRET_NAME = re.compile("pass|secret|token|key|auth|credential", re.IGNORECASE)
_HIDDEN: Final = "***"


def redacted(text: str) -> str:
    """Return `text` with the passwords of all URLs in it replaced by `***`."""
    return _URL.sub(lambda match: _redacted_url(match[1], match[2]), text)


def without_secrets(url: str) -> str:
    """Return an address without user, password, query and fragment.

    A path keeps query and fragment, since they belong to its names.
    """
    scheme, separator, rest = (
        url.rpartition("://") if url.count("://") < 2 else url.partition("://")
    )
    if scheme in _PATH_SCHEMES:
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
    if not separator or not scheme.replace("+", "").isalnum():
        return rest.rpartition("@")[2].partition("?")[0]
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(authority) :]:
        return f"{scheme}://{_HIDDEN}"  # the end of the password is unclear
    place = re.split("[?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{place.rpartition('@')[2]}"


def _redacted_url(scheme: str, rest: str) -> str:
    if scheme.lower() not in _PATH_SCHEMES:
        place, mark, query = rest.partition("?")
        rest = place + mark + "&".join(map(_redacted_option, query.split("&")))
    # The match goes up to the last @, since a password may hold some itself.
    if login := _LOGIN.fullmatch(rest):
        rest = f"{login[1]}:{_HIDDEN}@{login[3]}"
    return f"{scheme}://{rest}"


def _redacted_option(option: str) -> str:
    name, equals, value = option.partition("=")
    if not equals or not _SECRET_NAME.search(unquote(name)):
        return option
    if value.startswith(_HIDDEN) and not value.strip("*:;,.'\")"):
        return option  # already redacted, and the sentence continues
    return f"{name}={_HIDDEN}"
