"""The store as a cache node reads it: a bounded number of reads at a time, for all datasets.

The reads are counted, also for the request that a thread works at (`fetched_bytes`). What
a hedge or a repeated request brings after the end of its read is counted for the next one. A thread
that waits here could read the SSD for another client instead. So no thread waits for a store that
returns nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from chunkstore.errors import ChunkStoreError, NotFound
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.paused_time import working_time
from chunkstore.stores.read import Read
from chunkstore.stores.read_meter import ReadMeter, of_thread
from dieselfs.cache.ports.fetched_bytes import count_fetched
from dieselfs.errors import CacheFull

log = logging.getLogger(__name__)

STORE_READS: Final = 24
"""The most reads at a time."""
WAIT_S: Final = 10.0
"""The time limit for a thread's turn.

A client would not wait longer for the answer: it has 15 s.
"""
HANGS_S: Final = 2.0
"""The time after which the store counts as hanging.

If all reads are under way and none has ended for so long, no thread waits for a turn until one
ends.
"""


class StoreReads:
    """The `ObjectReader` of a cache node. Thread-safe.

    It also raises `CacheFull`, if there are too many reads.
    """

    def __init__(self, store: ObjectStore, took: Callable[[float, int], None]) -> None:
        """`took` gets the seconds and bytes of each read."""
        self._store, self._took = store, took
        self._changed = threading.Condition()
        self._under_way = 0
        self._asked = 0
        """Reads that clients wait for."""
        self._answered = 0.0
        """The time when the store last answered, or was asked again after a pause."""
        self._is_out = self._has_missed = False
        """True once a failure (`_is_out`) or a missing object (`_has_missed`) was logged."""
        self._again_bytes = 0
        """Bytes of hedges and repeated requests that are counted for no request yet."""
        self.bytes = 0
        """The bytes that were read."""

    def get(self, key: str) -> Buffer:
        """See `ObjectReader`."""
        return self._read(lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """See `ObjectReader`."""
        return self._read(lambda: self._store.get_range(key, offset, length))

    @contextmanager
    def read_in_turn(self, read: Read, *, ahead: bool = False) -> Iterator[Buffer]:
        """Read, and keep the turn while the caller looks for a place for the data.

        So no more is fetched than there are places for. `ahead`: no client waits for the data.
        """
        with self._turn(ahead):
            yield self._counted(lambda: read.of(self._store))

    def _read(self, read: Callable[[], Buffer]) -> Buffer:
        with self._turn():
            return self._counted(read)

    def _counted(self, read: Callable[[], Buffer]) -> Buffer:
        began = working_time()
        of_thread.meter = ReadMeter(self._note_again)
        try:
            data = read()
        except NotFound as error:
            self._note_missing(error)
            raise
        except ChunkStoreError as error:
            self._note_failure(error)
            raise
        finally:
            of_thread.meter = None
            count_fetched(self._taken_again())
        count_fetched(len(data))
        self._took(working_time() - began, len(data))
        self._note_answer(len(data))
        return data

    def _note_again(self, size_bytes: int) -> None:
        """Note bytes that a hedge or a repeated request has brought."""
        with self._changed:
            self._again_bytes += size_bytes

    def _taken_again(self) -> int:
        """Return what such requests have brought that is not counted yet, and count it."""
        with self._changed:
            found, self._again_bytes = self._again_bytes, 0
        return found

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no client waits for the store; return False if one still does."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._asked, timeout_s)

    @contextmanager
    def _turn(self, ahead: bool = False) -> Iterator[None]:
        with self._changed:
            self._asked += not ahead
        try:
            with self._place():
                yield
        finally:
            with self._changed:
                self._asked -= not ahead
                self._changed.notify_all()

    @contextmanager
    def _place(self) -> Iterator[None]:
        with self._changed:
            deadline = time.monotonic() + WAIT_S
            while self._under_way >= STORE_READS:
                left_s = min(deadline, self._answered + HANGS_S) - time.monotonic()
                if left_s <= 0:
                    raise CacheFull("too many reads of the store are waiting")
                self._changed.wait(left_s)
            if not self._under_way:
                self._answered = time.monotonic()
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def _note_answer(self, length: int) -> None:
        with self._changed:
            self._answered = time.monotonic()
            self.bytes += length
            was_out, self._is_out = self._is_out, False
        if was_out:
            log.warning("the store answers again")

    def _note_failure(self, error: ChunkStoreError) -> None:
        with self._changed:
            was_out, self._is_out = self._is_out, True
        if not was_out:
            log.warning("the store fails, so clients read from it what the SSD lacks: %s", error)

    def _note_missing(self, error: NotFound) -> None:
        with self._changed:
            self._answered = time.monotonic()
            has_missed, self._has_missed = self._has_missed, True
        if not has_missed:
            log.warning(
                "a client requests an object that is missing from this node's store: %s; check "
                "that the client uses the same store and that the dataset still exists",
                error,
            )
