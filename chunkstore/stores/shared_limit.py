"""A limit of uploads that forked processes share, so that they back off together.

The process that forks them creates it before. Two parts are shared, and a process that is killed
leaves neither behind:

- A *place* is a byte of an unlinked file that an upload locks (`fcntl`). Uploads may lock the bytes
  below the limit. The kernel unlocks the bytes of a process that ends in any way.
- The rule (`aimd`) lies in anonymous memory, twice. A report changes the copy that is not current
  and then makes it current, under a lock of the same kind (`forked_lock`).

An upload of 4 MB thus costs a system call for each place that it looks at and three more, 20 µs in
all. If all places are taken, one thread of each process asks again every few milliseconds, at
random times, so that no process is preferred.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import random
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.stores.adaptive_limit import LimitStatistics, statistics_of
from chunkstore.stores.aimd import Aimd, LimitPolicy
from chunkstore.stores.forked_lock import ForkedLock, unlinked_file

_POLL_S: Final = (0.001, 0.005)
_COPY_BYTES: Final = 128 << 10
_HEAD: Final = struct.Struct("=qqdd")
"""Which copy is current, the limit, the time of the last answer and that of the next upload."""
_SIZE: Final = struct.Struct("=q")


class SharedLimit:
    """The `CallLimit` of the process that creates it and of all that are forked from it."""

    def __init__(self, policy: LimitPolicy) -> None:
        self._file = unlinked_file()
        weakref.finalize(self, os.close, self._file)
        self._rule_lock = ForkedLock()
        self._memory = mmap.mmap(-1, _HEAD.size + 2 * _COPY_BYTES)
        renew_now_and_after_fork(self)
        self._write(Aimd(policy))

    def renew(self) -> None:
        """Start without places and waiting threads; called at first and in a forked child."""
        self._lock = threading.Lock()
        self._line = threading.Lock()
        self._places: set[int] = set()
        self._waiting = self._waited = 0
        self._random = random.Random(os.getpid())

    def take(self, timeout_s: float) -> bool:
        """Wait for a place; callers of one process are served one after the other."""
        if not self._line.locked() and self._took_place():
            return True
        end = time.monotonic() + timeout_s
        with self._counted_as_waiting():
            if not self._line.acquire(timeout=timeout_s):
                return False
            try:
                while not self._took_place():
                    if time.monotonic() >= end:
                        return False
                    time.sleep(self._random.uniform(*_POLL_S))
                return True
            finally:
                self._line.release()

    def give_back(self) -> None:
        """Unlock a place: the last one, which may be above a limit that was cut."""
        with self._lock:
            place = max(self._places)
            self._places.remove(place)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def report(self, tell: Callable[[Aimd], None]) -> None:
        """Call `tell` with the rule of all processes."""
        with self._lock, self._rule_lock:
            aimd = self._read()
            if self._waiting or len(self._places) >= aimd.limit:
                aimd.reached()
            tell(aimd)
            self._write(aimd)

    def times(self) -> tuple[float, float]:
        """Return the time of the last answer, and that before which no upload begins."""
        _, _, answered_at, not_before = _HEAD.unpack_from(self._memory)
        return answered_at, not_before

    def statistics(self) -> LimitStatistics:
        """Return the rule's statistics of all processes, and the queue of this one."""
        with self._lock:
            with self._rule_lock:
                aimd = self._read()
            return statistics_of(aimd, len(self._places), self._waiting, self._waited)

    @contextmanager
    def _counted_as_waiting(self) -> Iterator[None]:
        with self._lock:
            self._waiting += 1
            self._waited += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _took_place(self) -> bool:
        """Lock the first free byte below the limit, if there is one."""
        with self._lock:
            for place in range(_HEAD.unpack_from(self._memory)[1]):
                if place in self._places:  # a process may lock its own bytes again
                    continue
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                except (BlockingIOError, PermissionError):
                    continue
                self._places.add(place)
                return True
        return False

    def _read(self) -> Aimd:
        at = self._copy_at(_HEAD.unpack_from(self._memory)[0])
        (size,) = _SIZE.unpack_from(self._memory, at)
        aimd = pickle.loads(self._memory[at + _SIZE.size : at + _SIZE.size + size])
        assert isinstance(aimd, Aimd)
        return aimd

    def _write(self, aimd: Aimd) -> None:
        copy = 1 - _HEAD.unpack_from(self._memory)[0]
        data = pickle.dumps(aimd, pickle.HIGHEST_PROTOCOL)
        at = self._copy_at(copy)
        assert _SIZE.size + len(data) <= _COPY_BYTES
        _SIZE.pack_into(self._memory, at, len(data))
        self._memory[at + _SIZE.size : at + _SIZE.size + len(data)] = data
        _HEAD.pack_into(self._memory, 0, copy, aimd.limit, aimd.answered_at, aimd.not_before)

    @staticmethod
    def _copy_at(copy: int) -> int:
        return _HEAD.size + copy * _COPY_BYTES
