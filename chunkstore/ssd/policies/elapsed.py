"""Time that never runs backwards, made of the times that callers give."""

from __future__ import annotations

import math


class Elapsed:
    """Seconds since the first time that was given. A clock that is set back stands still once."""

    def __init__(self, begun_s: float = 0.0) -> None:
        """`begun_s` have passed before."""
        self._last: float | None = None
        self._elapsed_s = begun_s

    def at(self, now: float) -> float:
        """Return the seconds that have passed until `now`, given in the caller's seconds."""
        if not math.isfinite(now):
            raise ValueError(f"{now} is no time")
        if self._last is not None:
            self._elapsed_s += max(0.0, now - self._last)
        self._last = now
        return self._elapsed_s
