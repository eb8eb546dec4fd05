"""Lengths of time as people write them: 90, 90s, 30min, 12h, 7d, 2w."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from dieselfs.cli.values.parsed import Parsed
from dieselfs.errors import UsageError

_DAY_S: Final = 86_400
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": _DAY_S, "w": 7 * _DAY_S}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Return the seconds of a length of time. Raises `UsageError` for any other text."""
    match = _DURATION.fullmatch(text)
    if not match or match[2].lower() not in _UNITS_S:
        raise UsageError(f"{text!r} is not a length of time", "write for instance 90s, 12h or 7d")
    return float(match[1]) * _UNITS_S[match[2].lower()]


def human_duration(seconds: float) -> str:
    """Return a length of time in the largest unit that gives at least 2, or exactly 1.

    Examples are 7 d, 36 h and 90 s.
    """
    for unit in ("d", "h", "min"):
        count = seconds / _UNITS_S[unit]
        if count >= 2 or count == 1:
            return f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"


Duration = partial(Parsed, "time", parse_duration)
"""Returns a click type: seconds, written as 90s or 7d."""
