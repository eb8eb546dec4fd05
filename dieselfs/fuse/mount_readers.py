"""Readers of a plan through a mount: a chunk that has arrived is stored into the page cache, and is dropped from it behind them.

How far they are says the fast path's clock (docs/decisions/0007-plan.md): most reads make no request, so a few files, the sentinels, one
in each stretch of the reading order, are left unstored, and their READs are what moves it. Between two sentinels nothing is known, and two readers may be
on both sides of one; so what is dropped stays a sentinel behind the clock, and as far as readers were seen apart: several read batches side by
side, and the last files of a batch, behind its last sentinel, may be read long after the clock has passed them.
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
from dieselfs.plan.requirement import UNDER_WAY
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from dieselfs.fuse.fast_path import FastPath

log = logging.getLogger(__name__)

SENTINEL_FILES: Final = 64
SENTINEL_BYTES: Final = 2 << 20
"""One sentinel in each stretch of so many files, or so many bytes if that is less."""
_GOLDEN: Final = 2654435769
"""2^32 / φ: its multiples fall into all parts of a stretch evenly (Knuth, TAOCP 3, §6.4)."""
_BEHIND: Final = 1
"""Sentinels between the clock and what is dropped."""
_HELD_BACK: Final = 4
"""Of the budget at most so much (a quarter) is held back for readers that are apart, and no more than the order can do without."""
_CLOCK_BYTES: Final = 4 * SENTINEL_BYTES
"""What a single reader has read and has not dropped yet: up to two stretches to the clock, two more between it and what is dropped."""
_APART_AT_FIRST: Final = 512
"""Files, until something is known of the readers."""
_APART_FOR: Final = 8
"""Readers are taken to be as far apart as they were, less an eighth of what they have read since."""
_DROPPED_AT_ONCE: Final = 512 << 10
"""Bytes: enough for one request to the other process, little beside a chunk."""
_NOT_PLANNED: Final = 0xFFFFFFFF


class KernelPages(Protocol):
    """Touches files through the mount, in a process of its own: `dieselfs.fuse.kernel_pages`."""

    def drop(self, paths: bytes) -> bool: ...

    def look_up(self, paths: bytes) -> bool: ...


def sentinel_positions(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Where in an order of files with these lengths the sentinels are: increasing, the last file that is not empty among them.

    Empty files make no READ and are none. In its stretch a sentinel is anywhere: at even distances all of them could be in the batches of
    one reader out of two, and say nothing of the other.
    """
    filled = np.flatnonzero(lengths)
    if not len(filled):
        return np.empty(0, np.int64)
    weight = np.maximum(lengths[filled].astype(np.int64), SENTINEL_BYTES // SENTINEL_FILES)
    stretch = (np.cumsum(weight) - 1) // SENTINEL_BYTES
    last = np.flatnonzero(np.diff(stretch, append=stretch[-1] + 1))
    files = np.diff(last, prepend=-1)
    before_last = (np.arange(len(last)) * _GOLDEN % (1 << 32)) * files >> 32
    before_last[-1] = 0
    return filled[last - before_last]


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
        self._has_pages = np.zeros(snapshot.chunk_count, np.bool_)
        """Chunks of which the page cache has files."""
        self._stored_bytes = self._dropped_bytes = self._dropped = 0
        self._left_bytes = 0
        """Of orders that are over, and not dropped yet."""
        self._low = self._high = self._foremost = 0
        self._apart = _APART_AT_FIRST
        self._keeps = True
        self._closed = False
        self._pages = _PageWork(pages)

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        kept, self._keeps = self._keeps, int(uses.payload_bytes.sum()) <= self._budget_bytes()
        if not (kept and self._keeps):
            self._drop_the_rest()
            self._kept.clear()
        self._order, self._uses = order, uses
        self._index_of = {chunk: index for index, chunk in enumerate(uses.chunks.tolist())}
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
        # What is kept makes no READ, and is no sign of anything.
        in_cache = np.isin(chunk, np.fromiter(self._kept, np.uint32, len(self._kept)))
        self._sentinels = sentinel_positions(np.where(in_cache, 0, length))
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
        self._low = self._high = self._foremost = 0
        self._held_back = self._spare_bytes(uses)
        self._to_store: dict[int, None] = {}
        self._stored: list[int] = []
        self._counted: set[int] = set()
        """Chunks whose files are counted as stored."""
        for held in self._kept.intersection(self._index_of):
            self._count(held)
            self._stored.append(held)
        self._tried_again: set[int] = set()
        if len(self._stored) == len(uses):
            self._fast_path.clear_plan()  # nothing is missing, and what the kernel drops is stored again as without a plan

    def arrived(self, chunk: int) -> None:
        self._to_store[chunk] = None

    def position(self) -> int:
        self._divide_memory()  # as of the last time: of what was released since, node memory has heard by now
        self._pages.clear_wake()
        low, high, _ = self._fast_path.plan_progress()
        self._store()
        self._take_stored()
        low = self._follow_clock(low, high)
        surely_read = self._surely_read(low)
        self._pass(surely_read)
        if not self._keeps:
            self._drop_behind(surely_read)
        if self._left_for_node_memory() > self._node_memory:
            self._divide_memory()
        self._tick(low)
        return low

    def foremost(self) -> int:
        return self._foremost

    def released(self) -> Sequence[int]:
        stored, self._stored = self._stored, []
        return stored

    def outside_bytes(self) -> int:
        return self._left_bytes + max(0, self._stored_bytes - self._dropped_bytes)

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
        if self._left_bytes:
            return  # or pages that are stored now would be dropped with those of the order before
        for chunk in list(self._to_store):
            if self._fast_path.store(self._id_of(chunk)):
                del self._to_store[chunk]  # else the fast path has not heard of it yet

    def _count(self, chunk: int) -> None:
        if chunk not in self._counted:
            self._counted.add(chunk)
            self._has_pages[chunk] = True
            self._stored_bytes += int(self._storable_in_chunk[chunk])

    def _take_stored(self) -> None:
        for chunk_id, known in self._fast_path.stored():
            chunk = self._number_of.get(chunk_id)
            if chunk is None or chunk not in self._index_of:
                continue
            if not known and chunk not in self._tried_again:
                self._tried_again.add(chunk)
                self._pages.look_up(self._paths_of(chunk), partial(self._retry, chunk, self._order))
                continue
            self._has_pages[chunk] = True
            if chunk not in self._has_large:  # else it counts in node memory until it is passed
                self._count(chunk)
                self._stored.append(chunk)
            if self._keeps and known:
                self._kept.add(chunk)

    def _retry(self, chunk: int, order: npt.NDArray[np.uint32]) -> None:
        if order is self._order:
            self.arrived(chunk)

    def _pass(self, low: int) -> None:
        """Let go of chunks whose last file has been read."""
        last = self._uses.last
        while self._passed < len(self._by_last) and last[self._by_last[self._passed]] < low:
            chunk = int(self._uses.chunks[self._by_last[self._passed]])
            self._passed += 1
            self._to_store.pop(chunk, None)
            self._count(chunk)  # whoever read it has put it into the page cache
            self._fast_path.drop_residue(self._id_of(chunk))
            self._stored.append(chunk)

    def _paths_of(self, chunk: int) -> bytes:
        files = self._snapshot.files_in_chunk(chunk)
        return self._snapshot.paths_text(np.arange(files.start, files.stop), b"\0")

    def _follow_clock(self, low: int, high: int) -> int:
        """How far all readers are, by the clock or by the foremost of them."""
        read, budget = self._uses.read_bytes, self._budget_bytes()
        if high != self._high and read[high] - read[self._foremost] <= budget:
            self._foremost = max(self._foremost, high)  # else a stray read: no reader comes so far
        self._high = high
        self._foremost = max(self._foremost, low)
        self._apart = max(self._foremost - low, self._apart - (low - self._low) // _APART_FOR)
        if read[self._foremost] - read[low] > budget // 2:
            low = self._without_stragglers(low)
            self._apart = 0  # they were not apart: nobody reads what is between
        self._low = low
        return low

    def _without_stragglers(self, low: int) -> int:
        """Readers may skip a sentinel (a last batch that is dropped): the clock follows half the budget behind the foremost."""
        read = self._uses.read_bytes
        reached = read[self._foremost] - self._budget_bytes() // 2
        forced = int(np.searchsorted(read, reached, "left"))
        self._fast_path.advance(forced)
        return max(low, forced)

    def _surely_read(self, low: int) -> int:
        """What is behind the clock, as far as readers that are apart are behind it too."""
        limit = int(np.searchsorted(self._storable, self._storable[low] - self._held_back, "left"))
        return max(0, low - self._apart, limit)

    def _spare_bytes(self, uses: ChunkUses) -> int:
        if not len(uses):
            return 0
        change = np.zeros(uses.files + 1, np.int64)
        np.add.at(change, uses.first, uses.payload_bytes)
        np.add.at(change, uses.last + 1, -uses.payload_bytes)
        in_use = int(np.cumsum(change).max()) + UNDER_WAY * int(uses.payload_bytes.max())
        in_use += _CLOCK_BYTES
        budget = self._budget_bytes()
        return max(0, min(budget // _HELD_BACK, budget - in_use))

    def _drop_behind(self, surely_read: int) -> None:
        passed = int(np.searchsorted(self._sentinels, surely_read, "left")) - 1 - _BEHIND
        if passed < 0 or self._pages.is_busy:
            return
        end = int(self._sentinels[passed]) + 1
        size = int(self._storable[end] - self._storable[self._dropped])
        if size >= _DROPPED_AT_ONCE:
            self._drop(end, size)

    def _drop(self, end: int, size: int) -> None:
        order = self._order
        text = self._snapshot.paths_text(order[self._dropped : end], b"\0")
        self._dropped = end

        def is_dropped() -> None:
            if order is self._order:
                self._dropped_bytes += size

        self._pages.drop(text, is_dropped)

    def _drop_the_rest(self) -> None:
        """What the page cache has of an order that is over, before the next one stores the same files."""
        rest = self._order[self._dropped :]
        has_pages = self._has_pages[self._snapshot.columns.chunk[rest]]
        has_pages[: max(0, self._foremost - self._dropped)] = True
        self._has_pages[:] = False
        size = self.outside_bytes() - self._left_bytes

        def is_dropped() -> None:
            self._left_bytes -= size

        if size and has_pages.any():
            self._left_bytes += size
            self._pages.drop(self._snapshot.paths_text(rest[has_pages], b"\0"), is_dropped)

    def _left_for_node_memory(self) -> int:
        return max(0, self._budget_bytes() - self.outside_bytes())

    def _divide_memory(self) -> None:
        left = self._left_for_node_memory()
        if left > self._node_memory or self._node_memory - left >= _DROPPED_AT_ONCE:
            self._node_memory = left
            self._set_node_memory(left)


class _PageWork:
    """What the other process is asked to do, one thing after the other, by a thread that waits for it."""

    def __init__(self, pages: KernelPages) -> None:
        self._kernel_pages = pages
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fd_lock = threading.Lock()
        self._is_open = True
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
        with self._fd_lock:
            if self._is_open:
                try:
                    os.eventfd_read(self.fd)
                except BlockingIOError:
                    pass
        while self._done:
            self._done.popleft()()

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
        with self._fd_lock:
            self._is_open = False
            os.close(self.fd)
