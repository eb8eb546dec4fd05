"""Shares of a whole as people write them: 5%."""

from __future__ import annotations

import re
from functools import partial

from dieselfs.cli.values.parsed import Parsed
from dieselfs.errors import UsageError

_ZERO = re.compile(r"0(?:\.0+)?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def parse_share(text: str, *, or_none: bool = False) -> float:
    """Return a number from 0 to 1, written as 5%; only `or_none` allows 0% and 0.

    Raises `UsageError` for any other text.
    """
    if or_none and _ZERO.fullmatch(text):
        return 0.0
    match = _SHARE.fullmatch(text)
    share = float(match[1]) / 100 if match else -1.0
    if not 0 <= share <= 1 or not (share or or_none):
        raise UsageError(f"{text!r} is not a share", "write for instance 5%")
    return share


Share = partial(Parsed, "share", parse_share)
"""Returns a click type: a share above 0."""
ShareOrNone = partial(Parsed, "share", partial(parse_share, or_none=True))
"""Returns a click type: a share, or 0."""
