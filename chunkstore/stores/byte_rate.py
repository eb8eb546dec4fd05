"""A limit on bytes a second, shared by threads: a token bucket that is paid before reading.

The bucket is one number: the time until which all bytes let through so far are paid for. The next
bytes pass from that time on, and are paid for after it. So bytes of any size pass in the end, and
the rate is exceeded by the burst and the bytes that passed last at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 0.25
"""The time whose unused bytes may be used at once; longer pauses save no more."""


class Stopped(Exception):
    """The wait was cancelled."""


def opens_at(paid_until: float, now: float) -> float:
    """Return the time from which the next bytes may pass, `BURST_S` before `now` at the earliest.

    They pass at once if it lies before `now`; what was not used longer ago is lost.
    """
    return max(paid_until, now - BURST_S)


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
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._paid_until = clock()
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more may be read, in the order of the callers.

        Raises `Stopped` after `close`.
        """
        if self._stopped.is_set():
            raise Stopped
        if self._bytes_per_s is None:
            return
        with self._lock:
            now = self._clock()
            start = opens_at(self._paid_until, now)
            self._paid_until = start + size_bytes / self._bytes_per_s
        if start > now and self._wait(start - now):
            raise Stopped

    def close(self) -> None:
        """Let nothing more through, and wake the waiting threads."""
        self._stopped.set()
