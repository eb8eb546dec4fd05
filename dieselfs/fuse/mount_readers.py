"""Readers of a plan through a mount: a chunk that has arrived is stored into the page cache, and is dropped from it behind them.

How far they are says the fast path's clock (docs/decisions/0007-plan.md): most reads make no request, so a few files, the sentinels, spaced
evenly in the reading order, are left unstored, and their READs are what moves it. Between two sentinels nothing is known, and two readers may be
on both sides of one; so what is dropped stays a sentinel behind the clock.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from dieselfs.fuse.fast_path import MAX_STORED_FILE_BYTES
from dieselfs.plan.chunk_uses import ChunkUses
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from dieselfs.fuse.fast_path import FastPath

log = logging.getLogger(__name__)

SENTINEL_FILES: Final = 64
SENTINEL_BYTES: Final = 2 << 20
"""At least one sentinel in so many files, and in so many bytes."""
_BEHIND: Final = 1
"""Sentinels between the clock and what is dropped."""
_DROPPED_AT_ONCE: Final = 512 << 10
"""Bytes: enough for one request to the other process, little beside a chunk."""
_NOT_PLANNED: Final = 0xFFFFFFFF


class KernelPages(Protocol):
    """Touches files through the mount, in a process of its own: `dieselfs.fuse.kernel_pages`."""

    def drop(self, paths: bytes) -> bool: ...

    def look_up(self, paths: bytes) -> bool: ...


def sentinel_positions(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Where in an order of files with these lengths the sentinels are: increasing, the last file that is not empty among them.

    Empty files make no READ and are none.
    """
    filled = np.flatnonzero(lengths)
    if not len(filled):
        return np.empty(0, np.int64)
    before = np.cumsum(lengths[filled], dtype=np.int64)
    step = before // SENTINEL_BYTES + np.arange(len(filled)) // SENTINEL_FILES
    last_of_step = np.flatnonzero(np.diff(step, append=step[-1] + 1))
    return filled[last_of_step]


class MountReaders:
    """Implements `follower.Readers` for one snapshot of a mount with an active fast path."""

    def __init__(
        self,
        fast_path: FastPath,
        pages: KernelPages,
        snapshot: Snapshot,
        epoch: int,
        *,
        budget_bytes: Callable[[], int],
        set_node_memory: Callable[[int], None],
        tick: Callable[[int], None],
    ) -> None:
        """`epoch` is that of the snapshot in the mount. `budget_bytes` bounds node memory and the page cache together: `set_node_memory`
        is told what the page cache leaves of it."""
        self._fast_path, self._snapshot, self._epoch = fast_path, snapshot, epoch
        self._budget_bytes, self._set_node_memory, self._tick = budget_bytes, set_node_memory, tick
        self._node_memory = -1
        self._number_of = {
            snapshot.chunk(number).id.value: number for number in range(snapshot.chunk_count)
        }
        self._order: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self._kept: set[int] = set()
        """Chunks whose files are in the page cache for good, if all of them fit."""
        self._stored_bytes = self._dropped_bytes = self._dropped = 0
        self._foremost = 0
        self._closed = False
        self._pages = _PageWork(pages)

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        self._drop_the_rest()
        self._order, self._uses = order, uses
        self._index_of = {int(chunk): index for index, chunk in enumerate(uses.chunks)}
        self._keeps = int(uses.payload_bytes.sum()) <= self._budget_bytes()
        if not self._keeps:
            self._kept.clear()
        length = self._snapshot.columns.length[order].astype(np.int64)
        is_stored = length <= MAX_STORED_FILE_BYTES
        chunk = self._snapshot.columns.chunk[order]
        self._storable = np.concatenate([[0], np.cumsum(np.where(is_stored, length, 0))])
        self._storable_in_chunk = np.bincount(chunk, np.where(is_stored, length, 0)).astype(
            np.int64
        )
        self._has_large = set(np.unique(chunk[~is_stored]).tolist())
        self._by_last = np.argsort(uses.last)
        self._passed = 0
        self._sentinels = sentinel_positions(length)
        position_of = np.full(self._snapshot.file_count, _NOT_PLANNED, np.uint32)
        position_of[order] = np.arange(len(order), dtype=np.uint32)
        is_sentinel = np.zeros(self._snapshot.file_count, np.bool_)
        is_sentinel[order[self._sentinels]] = True
        self._fast_path.set_plan(
            self._epoch,
            np.ascontiguousarray(order).data,
            position_of.data,
            np.packbits(is_sentinel, bitorder="little").data,
        )
        self._dropped = self._dropped_bytes = self._stored_bytes = 0
        self._to_store: deque[int] = deque()
        self._stored: list[int] = [chunk for chunk in self._index_of if chunk in self._kept]
        self._tried_again: set[int] = set()
        if len(self._kept) >= len(uses):
            self._fast_path.clear_plan()  # nothing is missing, and what the kernel drops is stored again as without a plan

    def arrived(self, chunk: int) -> None:
        self._to_store.append(chunk)

    def position(self) -> int:
        self._pages.clear_wake()
        self._store()
        self._take_stored()
        low, self._foremost, _ = self._fast_path.plan_progress()
        high = self._foremost
        if low < high - 1:
            low = self._without_stragglers(low, high)
        self._pass(low)
        if not self._keeps:
            self._drop_behind(low)
        self._divide_memory()
        self._tick(low)
        return low

    def foremost(self) -> int:
        return self._foremost

    def released(self) -> Sequence[int]:
        stored, self._stored = self._stored, []
        return stored

    def outside_bytes(self) -> int:
        return max(0, self._stored_bytes - self._dropped_bytes)

    def wake_fds(self) -> Sequence[int]:
        return (self._fast_path.plan_fd(), self._pages.fd)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._fast_path.clear_plan()
            self._pages.close()

    def _id_of(self, chunk: int) -> bytes:
        return self._snapshot.chunk(chunk).id.value

    def _store(self) -> None:
        for _ in range(len(self._to_store)):
            chunk = self._to_store.popleft()
            if not self._fast_path.store(self._id_of(chunk)):
                self._to_store.append(chunk)  # the fast path has not heard of it yet

    def _take_stored(self) -> None:
        for chunk_id, known in self._fast_path.stored():
            chunk = self._number_of.get(chunk_id)
            if chunk is None or chunk not in self._index_of:
                continue
            if not known and chunk not in self._tried_again:
                self._tried_again.add(chunk)
                self._pages.look_up(self._paths_of(chunk), partial(self.arrived, chunk))
                continue
            self._stored_bytes += int(self._storable_in_chunk[chunk])
            if chunk not in self._has_large:
                self._stored.append(chunk)
            if self._keeps:
                self._kept.add(chunk)

    def _pass(self, low: int) -> None:
        """Let go of chunks whose last file has been read."""
        last = self._uses.last
        while self._passed < len(self._by_last) and last[self._by_last[self._passed]] < low:
            chunk = int(self._uses.chunks[self._by_last[self._passed]])
            self._passed += 1
            self._fast_path.drop_residue(self._id_of(chunk))
            self._stored.append(chunk)

    def _paths_of(self, chunk: int) -> bytes:
        files = self._snapshot.files_in_chunk(chunk)
        return self._snapshot.paths_text(np.arange(files.start, files.stop), b"\0")

    def _without_stragglers(self, low: int, high: int) -> int:
        """Readers may skip a sentinel (a last batch that is dropped): the clock follows half the budget behind the foremost."""
        read = self._uses.read_bytes
        behind = int(read[high] - read[low])
        if behind <= self._budget_bytes() // 2:
            return low
        forced = int(np.searchsorted(read, read[high] - self._budget_bytes() // 2, "left"))
        self._fast_path.advance(forced)
        return max(low, forced)

    def _drop_behind(self, low: int) -> None:
        passed = int(np.searchsorted(self._sentinels, low, "left")) - 1 - _BEHIND
        if passed < 0 or self._pages.is_busy:
            return
        end = int(self._sentinels[passed]) + 1
        size = int(self._storable[end] - self._storable[self._dropped])
        if size >= _DROPPED_AT_ONCE:
            self._drop(end, size)

    def _drop(self, end: int, size: int) -> None:
        text = self._snapshot.paths_text(self._order[self._dropped : end], b"\0")
        self._dropped = end

        def is_dropped() -> None:
            self._dropped_bytes += size

        self._pages.drop(text, is_dropped)

    def _drop_the_rest(self) -> None:
        """What is left of an order that is over, before the next one stores the same files."""
        if len(self._order) and not self._keeps:
            self._drop(len(self._order), 0)
            self._pages.wait()

    def _divide_memory(self) -> None:
        left = max(0, self._budget_bytes() - self.outside_bytes())
        if abs(left - self._node_memory) >= _DROPPED_AT_ONCE:
            self._node_memory = left
            self._set_node_memory(left)


class _PageWork:
    """What the other process is asked to do, one thing after the other, by a thread that waits for it."""

    def __init__(self, pages: KernelPages) -> None:
        self._kernel_pages = pages
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._tasks: queue.Queue[tuple[Callable[[bytes], bool], bytes, Callable[[], None]] | None]
        self._tasks = queue.Queue()
        self._done: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="kernel-pages", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._tasks.unfinished_tasks > 0

    def drop(self, paths: bytes, then: Callable[[], None]) -> None:
        self._tasks.put((self._kernel_pages.drop, paths, then))

    def look_up(self, paths: bytes, then: Callable[[], None]) -> None:
        self._tasks.put((self._kernel_pages.look_up, paths, then))

    def clear_wake(self) -> None:
        """Also does what was to be done after each, in the caller's thread."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        while self._done:
            self._done.popleft()()

    def wait(self) -> None:
        self._tasks.join()
        self.clear_wake()

    def close(self) -> None:
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, paths, then = task
            try:
                work(paths)
            except Exception as error:
                log.warning("the page cache is not tended: %s", error)
            self._done.append(then)
            self._tasks.task_done()
            os.eventfd_write(self.fd, 1)
