"""A meter of the requests that one read makes of a store, hedges and repeated requests too.

The thread that reads sets its meter, and the wrapper that starts requests (`deadline`) takes it
along. Nothing is counted for a thread without a meter.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable


class _OfThread(threading.local):
    """The meter of a thread's read, if it has one."""

    meter: ReadMeter | None = None


of_thread = _OfThread()


class ReadMeter:
    """The requests of one read that were answered. Thread-safe: each has a thread of its own.

    The read pays for one of them. The meter charges the bytes of every other one, when they come.
    """

    __slots__ = ("_charge", "_number")

    def __init__(self, charge: Callable[[int], None]) -> None:
        self._charge: Callable[[int], None] = charge
        self._number = itertools.count()
        """The number of the next request that is answered: taking it is one step."""

    def answered(self, size_bytes: int) -> None:
        """Note that a request has returned so many bytes."""
        if next(self._number):
            self._charge(size_bytes)

    def nothing_came(self) -> bool:
        """Return whether no request was answered, at the end of a read that failed.

        If so, the read pays for none, and the bytes that come later are charged.
        """
        return not next(self._number)
