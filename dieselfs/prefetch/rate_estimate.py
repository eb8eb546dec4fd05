"""The rate estimate: how fast chunks arrive and how fast readers consume them.

The prefetcher's window follows from it. It has no clock: callers pass the time. Waits for a byte
budget count like those for the store, since chunks arrive no faster.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_INTERVAL_S: Final = 0.25
"""The shortest time over which a rate is measured."""
_CONSUMPTION_DECAY: Final = 0.8
"""The factor by which a consumption rate may fall at a measurement.

A lower rate is trusted gradually, a higher one at once: a reader that pauses (validation, a
checkpoint) goes on as before.
"""
_SMOOTHING: Final = 0.2
_SAFETY: Final = 1.5
"""The safety factor of the time needed.

A chunk is fetched when all chunks before it would leave it no time if they took half as much again
as measured.
"""
_BURST_DECAY: Final = 0.98
_MEMORY_BYTES_PER_S: Final = 4e9
"""The rate above which a chunk was in node memory already.

No store sends, no CPU verifies, and no tmpfs takes 4 MB within a millisecond.
"""


class RateEstimate:
    """The measured rates. One thread at a time may use it."""

    def __init__(self, now: float) -> None:
        self.consumption = 0.0
        """Bytes a second while readers read; 0: not known."""
        self.arrival = 0.0
        """Bytes a second while a fetch is under way; 0: not known."""
        self.latency = 0.0
        """Seconds from the request for a chunk to the store until its arrival."""
        self.burst = 0.0
        """The bytes by which readers advanced at once: a batch, or a batch of each worker."""
        self._seen = 0
        self._consumed_at, self._consumed = now, 0
        self._busy_since: float | None = None
        self._busy_s = 0.0
        self._arrived = 0

    def consumed(self, total_bytes: int, now: float) -> None:
        """Note that `total_bytes` have been read since the beginning."""
        if total_bytes > self._seen:
            self.burst = max(float(total_bytes - self._seen), _BURST_DECAY * self.burst)
            self._seen = total_bytes
        if not self._consumed:  # the time before the first read does not count
            self._consumed_at, self._consumed = now, total_bytes
        elapsed = now - self._consumed_at
        if elapsed < _INTERVAL_S or total_bytes <= self._consumed:
            return
        rate = (total_bytes - self._consumed) / elapsed
        self.consumption = max(rate, _CONSUMPTION_DECAY * self.consumption)
        self._consumed_at, self._consumed = now, total_bytes

    def begun(self, now: float) -> None:
        """Note that a fetch is under way where there was none."""
        self._busy_since = now

    def arrived(self, size: int, seconds: float, now: float, still_under_way: bool) -> None:
        """Note that a chunk of `size` bytes has arrived, `seconds` after the request for it."""
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
        """Return whether the next chunk must be requested now, lest one of the coming ones is late.

        Each array has one item for each of these chunks, next first: the bytes that readers read
        until they need it, and the bytes to fetch until it is there. Before anything was measured,
        all chunks are due.
        """
        if not (self.consumption and self.arrival):
            return True
        time_left = (bytes_until_use - self.burst) / self.consumption
        time_needed = self.latency + bytes_to_fetch / self.arrival
        return bool((time_left <= _SAFETY * time_needed).any())
