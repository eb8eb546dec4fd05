"""How fast chunks arrive and how fast readers consume them: what the window follows. No clock of its own: callers tell the time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_INTERVAL_S: Final = 0.25
"""Rates are taken over at least so long."""
_FORGETTING: Final = 0.8
"""A lower rate is believed by and by, a higher one at once: a reader that pauses (validation, a checkpoint) goes on as before."""
_SMOOTHING: Final = 0.2
_SAFETY: Final = 1.5
"""A chunk is fetched when all before it, taking half as much again as measured, would leave it no time."""
_BURST_FORGETTING: Final = 0.98
_MEMORY_BYTES_PER_S: Final = 4e9
"""A chunk that comes faster was in node memory already: no store sends, no CPU verifies, and no tmpfs takes 4 MB within a millisecond."""


class RateEstimate:
    """Measured rates. One thread at a time."""

    def __init__(self, now: float) -> None:
        self.consumption = 0.0
        """Bytes a second, while readers read; 0: not known."""
        self.arrival = 0.0
        """Bytes a second, while something is under way; 0: not known."""
        self.latency = 0.0
        """Seconds from asking the store for a chunk to having it."""
        self.burst = 0.0
        """Bytes that readers were seen to go on by at once: a batch, or a batch of each worker."""
        self._seen = 0
        self._consumed_at, self._consumed = now, 0
        self._busy_since: float | None = None
        self._busy_s = 0.0
        self._arrived = 0

    def consumed(self, total_bytes: int, now: float) -> None:
        """So many bytes have been read since the beginning."""
        if total_bytes > self._seen:
            self.burst = max(float(total_bytes - self._seen), _BURST_FORGETTING * self.burst)
            self._seen = total_bytes
        if not self._consumed:  # what was before the first read is no time in which readers read
            self._consumed_at, self._consumed = now, total_bytes
        elapsed = now - self._consumed_at
        if elapsed < _INTERVAL_S or total_bytes <= self._consumed:
            return
        rate = (total_bytes - self._consumed) / elapsed
        self.consumption = max(rate, _FORGETTING * self.consumption)
        self._consumed_at, self._consumed = now, total_bytes

    def begun(self, now: float) -> None:
        """A fetch is under way where there was none."""
        self._busy_since = now

    def arrived(self, size: int, seconds: float, now: float, still_under_way: bool) -> None:
        """A chunk of `size` bytes has come, `seconds` after it was asked for."""
        from_store = size < seconds * _MEMORY_BYTES_PER_S
        if from_store:
            self.latency += (seconds - self.latency) * (_SMOOTHING if self.latency else 1.0)
            self._arrived += size
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
            self._busy_since = now if still_under_way else None
        if self._arrived and (self._busy_s >= _INTERVAL_S or not self.arrival):
            rate = self._arrived / max(self._busy_s, 1e-6)
            self.arrival += (rate - self.arrival) * (0.5 if self.arrival else 1.0)
            self._busy_s, self._arrived = 0.0, 0

    def is_due(
        self, bytes_until_use: npt.NDArray[np.int64], bytes_to_fetch: npt.NDArray[np.int64]
    ) -> bool:
        """Whether the next chunk must be asked for now, so that none of the coming ones is late.

        For each of them, next first: the bytes that readers read until they need it, and the bytes to fetch until it is there.
        Before anything was measured all of them are due.
        """
        if not (self.consumption and self.arrival):
            return True
        time_left = (bytes_until_use - self.burst) / self.consumption
        time_needed = self.latency + bytes_to_fetch / self.arrival
        return bool((time_left <= _SAFETY * time_needed).any())
