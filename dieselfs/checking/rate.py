"""A limit on bytes a second, shared by threads: a token bucket that is paid before reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.25
"""What was not used of the last quarter of a second may be used at once; longer pauses save nothing up."""


class Stopped(Exception):
    """The wait was called off."""


class ByteRate:
    """At most `bytes_per_s` over any time longer than a moment; None: no limit. Thread-safe."""

    def __init__(
        self,
        bytes_per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """`wait` sleeps for so many seconds and tells whether it was called off, in place of `stop`'s own way."""
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ValueError(f"a rate is more than 0 bytes a second, not {bytes_per_s}")
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._lock = threading.Lock()
        self._paid_until = clock()
        """When all that was let through so far will be paid for."""

    def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more may be read; raises `Stopped` after `stop`. In the order of the callers."""
        if self._stopped.is_set():
            raise Stopped
        if self._bytes_per_s is None:
            return
        with self._lock:
            now = self._clock()
            start = max(self._paid_until, now - _BURST_S)
            self._paid_until = start + size_bytes / self._bytes_per_s
        if start > now and self._wait(start - now):
            raise Stopped

    def stop(self) -> None:
        """Let nothing through any more, and wake who waits."""
        self._stopped.set()
