"""SIGTERM and SIGINT as a request to end, for the commands that serve.

A handler may interrupt another one in the middle of `threading.Event.set`, whose lock it would then
wait for: for ever, since both are of one thread. A queue's `put` may be interrupted by another.
"""

from __future__ import annotations

import queue
import signal
from contextlib import suppress
from typing import Final

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """The signals that tell this process to end, from now on; for the main thread alone."""

    def __init__(self) -> None:
        self._received: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.is_received = False
        """One of them has been received."""
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: self._receive())

    def _receive(self) -> None:
        self.is_received = True
        self._received.put(None)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the first of them, or for so long."""
        if not self.is_received:
            with suppress(queue.Empty):
                self._received.get(timeout=timeout_s)

    def ignore(self) -> None:
        """Ignore further ones, which would cut the end short."""
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
