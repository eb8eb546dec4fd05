"""Points in a dataset's history as a user names them: a generation, or a time.

Times are by the clocks of the committing machines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from chunkstore.commit_log import Commit
from dieselfs.errors import UsageError
from dieselfs.recovery.history import generation_before

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)(?:\s+ago)?")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class AtTime:
    """The point just before a time: the state that had been committed earlier."""

    time_ns: int


PointInTime: TypeAlias = int | AtTime
"""A generation, or a time."""


def parse_point(text: str, now_ns: int) -> PointInTime:
    """Return the point that a user's text names.

    The forms are `12` (a generation), `2h` or `2h ago`, and an ISO date or time, in the local time
    zone if it names none. Raises `UsageError`.
    """
    text = text.strip()
    if text.isdecimal():
        return int(text)
    if found := _AGO.fullmatch(text):
        return AtTime(now_ns - int(float(found[1]) * _SECONDS[found[2]] * 10**9))
    try:
        moment = datetime.fromisoformat(text)
        return AtTime(int(moment.timestamp() * 10**6) * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{text!r} is neither a generation nor a time",
            "write a number, a time like 2026-01-31T12:00, or 2h for two hours ago",
        ) from error


def generation_at(commits: Sequence[Commit], point: PointInTime) -> int:
    """Return the generation of a point; 0 for a time before the first commit."""
    return generation_before(commits, point.time_ns) if isinstance(point, AtTime) else point
