"""The threads of a page filler, two that fill and one that drops, and their results.

Dropping makes room for filling, so neither waits behind the other. The threads start when there is
work. READs that they cause have their thread ids; the server must know these, or it takes them for
readers.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from dieselfs.fuse.pages.page_filler import Filled, Inodes
from dieselfs.fuse.pages.page_statistics import FillStatistics
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

_Task: TypeAlias = Callable[[], None]
_FILL: Final = "page-fill"
_DROP: Final = "page-drop"
_THREADS: Final = {_FILL: 2, _DROP: 1}
"""While one fill waits for the last bytes of its chunk, the other requests the next chunk."""


class ThreadedFiller(ABC):
    """A `PageFiller` without the work itself."""

    stages = False
    opens_files = False

    def __init__(self, snapshot: Snapshot, own_pids: set[int]) -> None:
        """Create it. The threads' ids are in `own_pids` while they live."""
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._snapshot, self._own_pids = snapshot, own_pids
        self._queues: dict[str, queue.SimpleQueue[_Task | None]] = {}
        self._threads: list[threading.Thread] = []
        self._filled: deque[Filled] = deque()
        self._dropped: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._is_closing = False
        self._fd_is_open = True
        self._fills = self._incomplete = self._filled_files = self._filled_bytes = 0
        self._unknown = self._dropped_files = self._dropped_bytes = 0

    @abstractmethod
    def _fill(self, chunk: int, files: Inodes) -> bool:
        """Fill, in one of the threads that fill; return True if it is complete."""

    @abstractmethod
    def _drop(self, files: Inodes, staged_only: bool) -> None:
        """Drop, in the thread that drops."""

    def fill(self, chunk: int, files: Inodes) -> None:
        """Queue a fill. An error is logged, and the fill is then incomplete."""

        def task() -> None:
            complete = False
            if not self._is_closing:
                try:
                    complete = self._fill(chunk, files)
                except Exception as error:
                    log.warning("chunk %d is not prefilled: %s", chunk, error)
                self._count_filled(files, complete)
            self._filled.append(Filled(chunk, complete))

        self._put(_FILL, task, lambda: self._filled.append(Filled(chunk, False)))

    def drop(
        self, files: Inodes, then: Callable[[], None] = lambda: None, *, staged_only: bool = False
    ) -> None:
        """Queue a drop. An error is logged, and the pages then stay."""

        def task() -> None:
            try:
                self._drop(files, staged_only)
            except Exception as error:
                log.warning("pages were not dropped from the page cache: %s", error)
            if not staged_only:
                self._dropped_files += len(files)
                self._dropped_bytes += int(self._snapshot.columns.length[files].sum())
            self._dropped.append(then)

        self._put(_DROP, task, lambda: self._dropped.append(then))

    def take_filled(self) -> list[Filled]:
        """Return the fills that have ended, and call the `then` of each drop that has ended."""
        with self._lock:
            if self._fd_is_open:
                try:
                    os.eventfd_read(self.wake_fd)
                except BlockingIOError:
                    pass
        while self._dropped:
            self._dropped.popleft()()
        return [self._filled.popleft() for _ in range(len(self._filled))]

    def statistics(self) -> FillStatistics:
        """Return the counters since the filler was made."""
        filled = self._fills, self._incomplete, self._filled_files, self._filled_bytes
        return FillStatistics(*filled, self._unknown, self._dropped_files, self._dropped_bytes)

    def close(self, timeout_s: float = 1.0) -> None:
        """End the threads after the queued drops; later fills count as incomplete."""
        with self._lock:
            if not self._is_closing:
                self._is_closing = True
                for name, tasks in self._queues.items():
                    for _ in range(_THREADS[name]):
                        tasks.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            if self._fd_is_open:
                self._fd_is_open = False
                os.close(self.wake_fd)

    @property
    def has_ended(self) -> bool:
        """Return True if nothing is under way any more."""
        return self._is_closing and not any(thread.is_alive() for thread in self._threads)

    def _count_filled(self, files: Inodes, complete: bool) -> None:
        size = int(self._snapshot.columns.length[files].sum())
        with self._lock:  # there are two threads that fill
            self._fills += 1
            self._incomplete += not complete
            self._filled_files += len(files)
            self._filled_bytes += size

    def _put(self, name: str, task: _Task, fail: _Task) -> None:
        """Queue a task; if no thread can do it, note by `fail` that it has ended."""
        with self._lock:
            if self._is_closing:
                return
            if name in self._queues or self._starts(name):
                self._queues[name].put(task)
            else:
                fail()
                os.eventfd_write(self.wake_fd, 1)

    def _starts(self, name: str) -> bool:
        """Start the threads of a name; False if the process may have no more."""
        tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        started = []
        try:
            for _ in range(_THREADS[name]):
                thread = threading.Thread(target=self._run, args=(tasks,), name=name, daemon=True)
                thread.start()
                started.append(thread)
        except RuntimeError as error:
            log.warning("there is no thread for the page cache now: %s", error)
            for _ in started:
                tasks.put(None)
            return False
        self._queues[name] = tasks
        self._threads += started
        return True

    def _run(self, tasks: queue.SimpleQueue[_Task | None]) -> None:
        own_id = threading.get_native_id()
        self._own_pids.add(own_id)
        try:
            while (task := tasks.get()) is not None:
                task()
                with self._lock:
                    if self._fd_is_open:
                        os.eventfd_write(self.wake_fd, 1)
        finally:
            self._own_pids.discard(own_id)
