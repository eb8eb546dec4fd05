"""A limit on bytes a second, shared by threads: a token bucket that is paid before reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BURST_S: Final = 0.25
"""The time whose unused bytes may be used at once; longer pauses save no more."""


class Stopped(Exception):
    """The wait was cancelled."""


@dataclass(slots=True)
class TokenBucket:
    """The arithmetic of a token bucket: it knows until when all bytes let through are paid for.

    The next bytes may pass from that time on, and are paid for after it. So bytes of any size pass
    in the end, and no rate is exceeded but by the burst and the bytes that passed last.
    """

    bytes_per_s: float
    paid_until: float

    def opens_at(self, now: float) -> float:
        """Return the time from which the next bytes may pass; up to `BURST_S` before `now`."""
        return max(self.paid_until, now - BURST_S)

    def pay(self, size_bytes: float, now: float) -> None:
        """Pay for bytes that pass when the bucket opens; a negative size is given back."""
        self.paid_until = self.opens_at(now) + size_bytes / self.bytes_per_s

    def change_rate(self, bytes_per_s: float, now: float) -> None:
        """Change the rate; the bytes that are owed or saved stay the same."""
        ahead_s = self.opens_at(now) - now
        self.paid_until = now + ahead_s * self.bytes_per_s / bytes_per_s
        self.bytes_per_s = bytes_per_s


class ByteRate:
    """A limit of `bytes_per_s` over any time longer than a moment; None means no limit.

    Thread-safe.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """`wait` sleeps for that many seconds and returns whether it was cancelled.

        It replaces the wait that `close` cancels.
        """
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ValueError(f"a rate must be more than 0 bytes a second, not {bytes_per_s}")
        self._bucket = None if bytes_per_s is None else TokenBucket(bytes_per_s, clock())
        self._clock = clock
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more may be read, in the order of the callers.

        Raises `Stopped` after `close`.
        """
        if self._stopped.is_set():
            raise Stopped
        if self._bucket is None:
            return
        with self._lock:
            now = self._clock()
            start = self._bucket.opens_at(now)
            self._bucket.pay(size_bytes, now)
        if start > now and self._wait(start - now):
            raise Stopped

    def close(self) -> None:
        """Let nothing more through, and wake the waiting threads."""
        self._stopped.set()
