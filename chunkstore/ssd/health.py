"""The state that says whether an SSD may be used: pure, over a given clock.

Errors and late answers take the SSD out of service; a successful probe puts it back. An SSD that is
slower than the store behind it does not help either, so the duration of reads is measured for both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

HOLD_S: Final = 1.0
"""The shortest time in seconds that the SSD stays out of service."""
MAX_HOLD_S: Final = 60.0
"""The longest time in seconds before the next probe."""
QUIET_S: Final = 60.0
"""Seconds without a failure after which the hold is the shortest one again."""
_READS: Final = 32
"""The number of reads over which each average runs, approximately."""
_OUTLIER: Final = 4
"""The factor of the store's time at which a slower hit is cut off: one alone proves nothing."""


class TierHealth:
    """The health of one tier's SSD. Thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._up = True
        self._hold_s = HOLD_S
        self._failed_at = float("-inf")
        self._probing = False
        self.failures = 0
        self.reason = ""
        """The reason for the last failure."""
        self._ssd_s = self._store_s = 0.0
        self._ssd_reads = self._store_reads = 0

    @property
    def is_up(self) -> bool:
        """True while the SSD is in service."""
        return self._up

    def failed(self, reason: str) -> bool:
        """Take the SSD out of service; return whether it was in service until now."""
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
        """Return whether the caller may probe now; it must then call `failed` or `recovered`.

        The answer is False before the hold has passed and while another thread probes.
        """
        with self._lock:
            if self._up or self._probing or self._now() - self._failed_at < self._hold_s:
                return False
            self._probing = True
            return True

    def recovered(self) -> None:
        """Put the SSD back into service."""
        with self._lock:
            self._up, self._probing = True, False
            self._ssd_reads = 0

    def hit_took(self, seconds: float, length: int) -> bool:
        """Record a hit; return whether hits are slower than reads of the store.

        If so, the SSD should go out of service.
        """
        with self._lock:
            self._ssd_reads = min(self._ssd_reads + 1, _READS)
            took_s = seconds / _weight(length)
            if self._store_reads == _READS:
                took_s = min(took_s, _OUTLIER * self._store_s)
            self._ssd_s += (took_s - self._ssd_s) / self._ssd_reads
            compared = self._ssd_reads == self._store_reads == _READS
            return compared and self._ssd_s > 2 * self._store_s

    def store_took(self, seconds: float, length: int) -> None:
        """Record a read of the store, for comparison with hits."""
        with self._lock:
            self._store_reads = min(self._store_reads + 1, _READS)
            self._store_s += (seconds / _weight(length) - self._store_s) / self._store_reads


def _weight(length: int) -> float:
    """Return the expected time of a read relative to a small one.

    Short reads cost their latency, long ones their bytes.
    """
    return 1 + length / (1 << 20)
