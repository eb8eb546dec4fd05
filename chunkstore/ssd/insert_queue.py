"""The bounded queue of what is fetched and not written to an SSD yet."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from chunkstore.ssd.segments import USUAL_CHUNK_BYTES

QUEUE_BYTES: Final = 64 << 20
"""The most bytes that are fetched and not written yet."""


@dataclass(frozen=True, slots=True)
class CacheInsert:
    """A run of segments to be written."""

    dataset: bytes
    chunk: bytes
    first: int
    data: memoryview
    is_end: bool


class InsertQueue:
    """Inserts in the order in which one worker writes them. An insert has its place until then.

    It shares the condition of its owner, which is notified of each change. The caller of `first`,
    `drop` and `close` holds the condition.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._inserts: deque[CacheInsert] = deque()
        self._bytes = 0
        self._closed = False

    @property
    def has_room(self) -> bool:
        """True if there is room for a chunk of the usual size now."""
        return self._bytes + USUAL_CHUNK_BYTES <= QUEUE_BYTES

    def put(self, insert: CacheInsert, patience_s: float) -> bool:
        """Append an insert; return False if there is no room in time, or the queue is closed."""
        most = QUEUE_BYTES - len(insert.data)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes <= most, patience_s)
            if self._closed or self._bytes > most:
                return False
            self._inserts.append(insert)
            self._bytes += len(insert.data)
            self._changed.notify_all()
        return True

    def first(self) -> CacheInsert | None:
        """Return the insert that is to be written next, which keeps its place."""
        return self._inserts[0] if self._inserts else None

    def drop(self) -> int:
        """Give up all inserts; return how many there were."""
        dropped = len(self._inserts)
        self._inserts.clear()
        self._bytes = 0
        self._changed.notify_all()
        return dropped

    def done(self, insert: CacheInsert) -> None:
        """Take an insert out that was written, or given up."""
        with self._changed:
            if self._inserts and self._inserts[0] is insert:
                self._inserts.popleft()
                self._bytes -= len(insert.data)
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Return whether all inserts were written or given up in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, timeout_s)

    def close(self) -> None:
        """Give up all inserts, and take no more."""
        self._closed = True
        self.drop()
