"""A write budget: the bytes a second that an SSD may be written, on average.

Two mechanisms keep it. A PID controller moves the admit threshold, so that what is above it wants
to write about the budget (Tectonic-Shift §5.1). What jobs read changes faster than a threshold
follows. Therefore an allowance bounds the bytes themselves: it grows by the budget, each write
takes from it, and nothing is admitted while it is empty. The threshold decides what is written, and
the allowance how much.
"""

from __future__ import annotations

import math
from typing import Final

SAVED_S: Final = 300.0
"""Seconds of unused budget that may be written later, at once."""
_FIRST_S: Final = 10.0
"""Seconds of budget that may be written at the start."""
_LEAST_ERROR: Final = -1.0
_MOST_ERROR: Final = 20.0
"""An open threshold may want 50 times the budget; then it rises by 0.6 in 10 s."""


def checked_budget(bytes_per_s: float) -> float:
    """Return the budget; raise ValueError unless it is positive and finite."""
    if not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
        raise ValueError(f"a write budget of {bytes_per_s} bytes a second; it must be positive")
    return bytes_per_s


class WriteAllowance:
    """The bytes that may be written now."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = checked_budget(bytes_per_s)
        self._bytes = bytes_per_s * _FIRST_S

    def permits(self) -> bool:
        """Return whether a write may begin."""
        return self._bytes > 0

    def take(self, length: int) -> None:
        """Subtract bytes that were written."""
        self._bytes -= length

    def grow(self, seconds: float) -> None:
        """Add the budget of the time that has passed."""
        most = self._bytes_per_s * SAVED_S
        self._bytes = min(most, self._bytes + self._bytes_per_s * seconds)


class ThresholdController:
    """A PID controller that keeps the wanted bytes a second near the budget.

    The gains are for a threshold of which one step changes the wanted bytes by 10 to 30 times the
    budget: the loop's gain is 0.4 to 1.2, so it does not oscillate.

    The error is the wanted rate over the budget, less 1. It is clipped, so that one interval with
    an open threshold does not close it for minutes.
    """

    def __init__(
        self,
        bytes_per_s: float,
        minimum: float,
        *,
        proportional: float = 0.01,
        integral: float = 0.03,
        derivative: float = 0.0,
    ) -> None:
        self._bytes_per_s = checked_budget(bytes_per_s)
        self._minimum = minimum
        self._gains = proportional, integral, derivative
        self._sum = 0.0
        self._former = 0.0

    def threshold(self, wanted_bytes: int, seconds: float, highest: float) -> float:
        """Return the next threshold, between the minimum and `highest`.

        `wanted_bytes` counts what buckets above the present threshold asked to write in the last
        `seconds`, whether or not the allowance permitted it.
        """
        most = max(self._minimum, highest)
        if seconds <= 0:
            return min(most, max(self._minimum, self._minimum + self._sum))
        error = wanted_bytes / seconds / self._bytes_per_s - 1
        error = min(_MOST_ERROR, max(_LEAST_ERROR, error))
        p, i, d = self._gains
        # The sum stays within the thresholds that have an effect (no wind-up).
        self._sum = min(most - self._minimum, max(0.0, self._sum + i * error))
        found = self._minimum + self._sum + p * error + d * (error - self._former)
        self._former = error
        return min(most, max(self._minimum, found))
