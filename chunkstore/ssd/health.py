"""Whether an SSD may be used just now. Pure state over a given clock; errors and late answers take it out of service, a probe brings it back.

An SSD that answers, but slower than the store behind it, does not help either: both are measured by what a read takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

HOLD_S: Final = 1.0
MAX_HOLD_S: Final = 60.0
QUIET_S: Final = 60.0
"""Without a failure, after which the hold is the shortest again."""
_READS: Final = 32
"""That are compared: an average over about so many."""
_OUTLIER: Final = 4
"""Times what the store takes, as which a slower hit counts: one alone proves nothing."""


class TierHealth:
    """Thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._up = True
        self._hold_s = HOLD_S
        self._failed_at = float("-inf")
        self._probing = False
        self.failures = 0
        self.reason = ""
        """Of the last failure."""
        self._ssd_s = self._store_s = 0.0
        self._ssd_reads = self._store_reads = 0

    @property
    def is_up(self) -> bool:
        return self._up

    def failed(self, reason: str) -> bool:
        """Out of service from now on; whether it was in service until now."""
        with self._lock:
            now, was_up = self._now(), self._up
            if not was_up and not self._probing:
                return False
            quiet = now - self._failed_at > QUIET_S + self._hold_s
            self._hold_s = HOLD_S if quiet else min(2 * self._hold_s, MAX_HOLD_S)
            self._failed_at, self._up, self._probing = now, False, False
            self.failures += 1
            self.reason = reason
            return was_up

    def may_probe(self) -> bool:
        """Whether it is time, and nobody else is at it; then `failed` or `recovered` must follow."""
        with self._lock:
            if self._up or self._probing or self._now() - self._failed_at < self._hold_s:
                return False
            self._probing = True
            return True

    def recovered(self) -> None:
        with self._lock:
            self._up, self._probing = True, False
            self._ssd_reads = 0

    def hit_took(self, seconds: float, length: int) -> bool:
        """Whether hits are slower than reads of the store, and it had better go out of service."""
        with self._lock:
            self._ssd_reads = min(self._ssd_reads + 1, _READS)
            took_s = seconds / _weight(length)
            if self._store_reads == _READS:
                took_s = min(took_s, _OUTLIER * self._store_s)
            self._ssd_s += (took_s - self._ssd_s) / self._ssd_reads
            compared = self._ssd_reads == self._store_reads == _READS
            return compared and self._ssd_s > 2 * self._store_s

    def store_took(self, seconds: float, length: int) -> None:
        with self._lock:
            self._store_reads = min(self._store_reads + 1, _READS)
            self._store_s += (seconds / _weight(length) - self._store_s) / self._store_reads


def _weight(length: int) -> float:
    """What a read of so many bytes takes, relative to a small one: short reads cost their latency, long ones their bytes."""
    return 1 + length / (1 << 20)
