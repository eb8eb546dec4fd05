"""Log messages about an outage of a store: one when it begins and one when it ends.

The number of operations that wait for the store does not matter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

UNANSWERED = 4
"""Failures in a row, without an answer in between, that count as an outage.

A single failure in a hundred requests is normal for a store.
"""


class Outage:
    """The outage state of one store. Thread-safe; `answered` is free while the store answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._since = 0.0
        self._logged = False

    def failed(self, error: Exception, patience_s: float) -> None:
        """Record that an operation failed and is tried again, for `patience_s` in all."""
        with self._lock:
            if not self._failures:
                self._since = self._clock()
            self._failures += 1
            logs = self._failures >= UNANSWERED and not self._logged
            self._logged |= logs
        if logs:
            _log.warning(
                "the store does not answer; each operation is tried again for %g s: %s",
                patience_s,
                error,
            )

    def answered(self) -> None:
        """Record an answer of the store: the result, or an error other than `Unavailable`."""
        if not self._failures:
            return
        with self._lock:
            logged, self._logged, self._failures = self._logged, False, 0
            took_s = self._clock() - self._since
        if logged:
            _log.warning("the store answers again after %.1f s", took_s)
