"""What is told of a store that stops answering: once when it does, once when it is back, however many wait for it meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

UNANSWERED = 4
"""So many failures with no answer in between are an outage: one request in a hundred that fails is a store's everyday life."""


class Outage:
    """Of one store. Thread-safe; `answered` costs nothing while the store answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._since = 0.0
        self._told = False

    def failed(self, error: Exception, patience_s: float) -> None:
        """An operation failed and is tried again, for `patience_s` in all."""
        with self._lock:
            if not self._failures:
                self._since = self._clock()
            self._failures += 1
            tell = self._failures >= UNANSWERED and not self._told
            self._told |= tell
        if tell:
            _log.warning(
                "the store does not answer; each operation asks again for %g s: %s",
                patience_s,
                error,
            )

    def answered(self) -> None:
        """The store did, with what was asked for or with another error than `Unavailable`."""
        if not self._failures:
            return
        with self._lock:
            told, self._told, self._failures = self._told, False, 0
            took_s = self._clock() - self._since
        if told:
            _log.warning("the store answers again, after %.1f s", took_s)
