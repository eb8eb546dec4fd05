"""A meter of the bytes that the requests of one read return, hedges and repeated requests too.

The thread that reads sets its meter, and the wrapper that starts requests (`deadline`) takes it
along. Nothing is counted for a thread without a meter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_of_thread = threading.local()


class ReadMeter:
    """The bytes of one read. Thread-safe: its requests run in threads of their own."""

    __slots__ = ("_bytes", "_late", "_lock")

    def __init__(self, late: Callable[[int], None]) -> None:
        """`late` gets the bytes of each request that is answered after the end of the read."""
        self._late: Callable[[int], None] = late
        self._lock = threading.Lock()
        self._bytes: int | None = 0
        """None after the end of the read."""

    def count(self, size_bytes: int) -> None:
        """Note the bytes that a request has returned."""
        with self._lock:
            is_late = self._bytes is None
            if self._bytes is not None:
                self._bytes += size_bytes
        if is_late:
            self._late(size_bytes)

    def end(self) -> int:
        """Return the bytes until now. Later ones go to `late`. Call it once."""
        with self._lock:
            counted, self._bytes = self._bytes, None
        assert counted is not None
        return counted


def current_meter() -> ReadMeter | None:
    """Return the meter of this thread's read, if it has one."""
    meter: ReadMeter | None = getattr(_of_thread, "meter", None)
    return meter


@contextmanager
def metered(meter: ReadMeter) -> Iterator[None]:
    """Have this thread's requests counted, within the `with` block."""
    _of_thread.meter = meter
    try:
        yield
    finally:
        _of_thread.meter = None
