"""The service of an SSD: its segment store is opened, accessed under deadlines, and probed.

Every access runs under a deadline, in a thread that may hang for ever. An error or a late answer
takes the SSD out of service (`health`); opening or probing it again puts it back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

import lmdb

from chunkstore.call_threads import CallThreads, NoThread
from chunkstore.ssd.health import TierHealth
from chunkstore.ssd.segment_index import UNSOUND
from chunkstore.ssd.segment_store import SegmentStore

log = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S = 0.25
"""Seconds until an access is late, plus 20 ms a MiB (50 MB/s)."""
_DEADLINE_S_PER_BYTE: Final = 0.02 / (1 << 20)
OPEN_TIMEOUT_S: Final = 30.0
_THREADS: Final = 64
WRONG: Final = (OSError, lmdb.Error, NoThread)
"""The errors that a faulty SSD raises."""


class SsdService:
    """The segment store of one folder, as far as it can be used. Thread-safe.

    It shares the condition of its owner, which is notified when the store is opened or fails.
    """

    def __init__(
        self,
        open_segments: Callable[[], SegmentStore],
        folder: Path,
        changed: threading.Condition,
        *,
        on_open: Callable[[SegmentStore], object],
        on_failure: Callable[[], object],
    ) -> None:
        """`on_open` is called with the store before others see it.

        `on_failure` is called with the condition held, whenever an access has failed.
        """
        self._open, self._folder, self._changed = open_segments, folder, changed
        self._on_open, self._on_failure = on_open, on_failure
        self._threads = CallThreads("ssd", _THREADS)
        self._index_unsound = False
        self._closed = False
        self.health = TierHealth(time.monotonic)
        self.opened: SegmentStore | None = None
        """The segment store since it was opened, also while it is out of service."""

    @property
    def segments(self) -> SegmentStore | None:
        """The segment store while it is in service."""
        return self.opened if self.health.is_up else None

    def call(
        self, access: Callable[[], T], length: int, timeout_s: float | None = None
    ) -> T | None:
        """Return the result of an access to `length` bytes, within `DEADLINE_S` by default.

        Return None if it fails or is late, which takes the SSD out of service.
        """
        timeout_s = DEADLINE_S if timeout_s is None else timeout_s
        timeout_s += _DEADLINE_S_PER_BYTE * length
        try:
            return self._threads.run(access, timeout_s)
        except TimeoutError:
            self.out_of_service(f"no answer within {timeout_s:.2f} s")
        except WRONG as error:
            self.failed(error)
        return None

    def failed(self, error: Exception) -> None:
        """Take the SSD out of service after an error."""
        self._index_unsound |= isinstance(error, UNSOUND)
        self.out_of_service(f"{type(error).__name__}: {error}")

    def out_of_service(self, reason: str) -> None:
        """Take the SSD out of service."""
        if self.health.failed(reason):
            log.warning("the SSD tier %s is out of service: %s", self._folder, reason)
        with self._changed:
            self._on_failure()
            self._changed.notify_all()

    def restore(self) -> None:
        """Open the store, or probe it, if that is due. One thread of the owner calls it."""
        if self.opened is None:
            if self.health.is_up or self.health.may_probe():
                self._open_now()
        elif self.health.may_probe():
            self._probe(self.opened)

    def end(self) -> None:
        """Open no store from now on."""
        self._closed = True

    def close(self, timeout_s: float, *, is_idle: bool) -> None:
        """Use the store no more; if the owner's thread is idle, close it, within this time."""
        segments, self.opened = self.opened, None
        if segments is not None and is_idle:
            try:
                self._threads.run(segments.close, timeout_s)
            except (TimeoutError, *WRONG) as error:
                log.debug("the SSD tier %s was not closed cleanly: %s", self._folder, error)

    def _open_now(self) -> None:
        try:
            segments = self._threads.run(self._open, OPEN_TIMEOUT_S)
        except (TimeoutError, ValueError, *WRONG) as error:
            self.out_of_service(f"cannot open it: {error or type(error).__name__}")
            return
        self.health.recovered()
        self._on_open(segments)
        with self._changed:
            self.opened = None if self._closed else segments
            self._changed.notify_all()
        if self._closed:
            segments.close()
        else:
            self._threads.start(segments.sweep, SimpleQueue())  # no caller waits for its end

    def _probe(self, segments: SegmentStore) -> None:
        """Put the SSD back into service if it works."""
        try:
            probe = partial(segments.probe, rebuild=self._index_unsound)
            self._threads.run(probe, OPEN_TIMEOUT_S)
        except (TimeoutError, ValueError, *WRONG) as error:
            self.health.failed(f"{type(error).__name__}: {error}")
            return
        log.warning("the SSD tier %s is in service again", self._folder)
        self._index_unsound = False
        self.health.recovered()
