"""Prefill without a known order.

A READ that misses has its whole chunk filled into the page cache, once, within a budget.

In chunk-wise order all of a chunk's files are read soon after the first, and one fill saves their
requests. In a fully random order with too small a budget a fill is dropped before it is read: it
was wasted. So some files of each filled chunk, the samples, are watched (`close_events`). Wasted
fills make filling back off, to one miss in 1,024; useful ones restore it. A chunk whose samples
have been read is dropped, a little later since the rest of its files is read meanwhile; the files'
own pages stay where they are a second copy.

The kernel evicts page cache when memory is short, so the budget bounds only what was filled and not
read yet.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

import numpy as np

from chunkstore.chunk_format import are_links
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from dieselfs.cache.ports.free_memory import free_memory_bytes
from dieselfs.fuse.pages.page_filler import MAX_FILLED_FILE_BYTES, Inodes, PageFiller
from dieselfs.fuse.pages.page_statistics import FillStatistics, MissPrefillStatistics
from dieselfs.prefetch.close_events import CloseEvents
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

SHARE_OF_FREE_MEMORY: Final = 4
"""The budget is the free memory divided by this."""
MAX_FILL_EVERY: Final = 1024
"""The most misses for one fill, when fills are wasted.

A fill takes 3 ms for 4 MiB, beside 1,024 READs of some 15 µs.
"""
_RECOVERY_FACTOR: Final = 8
"""The factor by which a useful fill makes filling more frequent.

After four useful fills each miss fills again.
"""
_BUDGET_FOR_S: Final = 0.5
"""The time between two checks of the free memory, while chunks are filled."""
_LEAST_SAMPLES: Final = 4
_SAMPLE_OF: Final = 64
"""One file in this many is a sample."""
_UNREAD_SAMPLES: Final = 16
"""A chunk counts as read when all of its samples are read, except one in this many."""
_STRAY_OF: Final = 16
"""The part of a chunk's files whose misses fill it a second time.

A chunk that was read, or whose pages were lost, is not filled until one in this many of its files
has missed.
"""
_STRAYS: Final = 8
_EVENTS_PAUSE_S: Final = 0.01
"""The least time between two reads of events."""


@dataclass(slots=True)
class _Fill:
    """A chunk in the page cache, or one that is being filled."""

    chunk: int
    files: Inodes
    bytes: int
    samples: int = 0
    closed: int = 0
    begun_at: float = 0.0
    is_under_way: bool = True
    due_at: float | None = None
    """The time at which it is dropped; None until it was read."""
    misses_left: int = 0
    """Misses of its files until it is filled again: the kernel has lost its pages."""

    @property
    def was_useful(self) -> bool:
        return bool(self.samples) and self.closed * 2 >= self.samples


class MissPrefill:
    """The prefill of a mount for misses.

    Any thread may call `note_miss`; a thread of its own does the rest. `filler` and `events` are
    closed with it.
    """

    def __init__(
        self,
        filler: PageFiller,
        events: CloseEvents,
        snapshot: Snapshot,
        limit_bytes: int | None = None,
        *,
        own_pids: Container[int] = frozenset(),
        is_paused: Callable[[], bool] = lambda: False,
        discard: Callable[[ChunkId], None] = lambda chunk: None,
        free_bytes: Callable[[], int] = free_memory_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it.

        `limit_bytes` bounds the budget, a quarter of the free memory, further; 0 fills nothing.
        READs of `own_pids` are no misses. While `is_paused`, a known order is prefetched and has
        the budget. `discard` is called with the chunks that were read: node memory need not keep
        them.
        """
        self._filler, self._events, self._snapshot = filler, events, snapshot
        self._limit_bytes, self._own_pids = limit_bytes, own_pids
        self._is_paused, self._discard = is_paused, discard
        self._free_bytes, self._clock = free_bytes, clock
        self._fills: dict[int, _Fill | None] = {}
        """Fills by chunk, the oldest first; None until the thread handles it."""
        self._strays: dict[int, int] = {}
        """The misses of chunks that were read, before they are filled again."""
        self._can_fill = _can_fill(snapshot) if limit_bytes != 0 else bytes(snapshot.chunk_count)
        self._wanted: deque[int] = deque()
        self._every = self._until_fill = 1
        self._budget, self._budget_until = 0, -1.0
        self._outstanding = self._misses = self._count = self._useful = self._wasted = 0
        self._is_closed = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="prefill", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def note_miss(self, chunk: int, pid: int = 0) -> None:
        """Note that a READ was answered from a chunk that is whole in node memory.

        Takes 0.3 µs, except for one that starts the fill of its chunk.
        """
        if not self._can_fill[chunk] or pid in self._own_pids or self._is_paused():
            return
        if chunk in self._fills:
            fill = self._fills.get(chunk)
            if fill is None or fill.is_under_way:
                return
            fill.misses_left -= 1
            if fill.misses_left >= 0:
                return
        self._misses += 1
        if chunk in self._strays:
            self._strays[chunk] = left = self._strays.get(chunk, 0) - 1
            if left > 0:
                return
        self._until_fill -= 1
        if self._until_fill <= 0:
            self._until_fill = self._every
            self._fills.setdefault(chunk, None)
            self._wanted.append(chunk)
            self._wake()

    def statistics(self) -> MissPrefillStatistics:
        """Return the counters and the state of the budget."""
        return MissPrefillStatistics(
            self._budget,
            self._outstanding,
            self._misses,
            self._count,
            self._useful,
            self._wasted,
            self._every,
            len(self._events),
        )

    def filled(self) -> FillStatistics:
        """Return the counters of the filler."""
        return self._filler.statistics()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop the thread. Pages in the page cache are left to the kernel."""
        deadline = time.monotonic() + timeout_s
        self._is_closed = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._filler.close(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            self._events.close()
            with self._wake_lock:
                if self._wake_fd >= 0:
                    os.close(self._wake_fd)
                    self._wake_fd = -1

    def _wake(self) -> None:
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    # The thread

    def _run(self) -> None:
        without_events, poll = select.poll(), select.poll()
        for fd in (self._wake_fd, self._filler.wake_fd):
            without_events.register(fd, select.POLLIN)
            poll.register(fd, select.POLLIN)
        poll.register(self._events.fd, select.POLLIN)
        while not self._is_closed:
            ready = poll.poll(self._timeout_ms())
            try:
                os.eventfd_read(self._wake_fd)
            except BlockingIOError:
                pass
            try:
                self.step()
            except Exception as error:
                log.warning("the prefill after a miss failed: %s", error, exc_info=error)
            if any(fd == self._events.fd for fd, _ in ready):
                without_events.poll(_EVENTS_PAUSE_S * 1000)  # fewer wake-ups than events

    def _timeout_ms(self) -> float | None:
        due = [fill.due_at for fill in list(self._fills.values()) if fill and fill.due_at]
        return max(0.0, min(due) - self._clock()) * 1000 + 1 if due else None

    def step(self) -> None:
        """Do all work that is due. Called by the thread, or by a test in its place."""
        now = self._clock()
        self._take_filled()
        self._take_closed(now)
        if self._is_paused():
            self._drop_all()
            return
        for fill in list(self._fills.values()):
            if fill is not None and fill.due_at is not None and fill.due_at <= now:
                self._end_read(fill)
        for _ in range(len(self._wanted)):
            self._fill(self._wanted.popleft(), now)

    def _take_filled(self) -> None:
        for filled in self._filler.take_filled():
            fill = self._fills.get(filled.chunk)
            if fill is not None and fill.is_under_way:
                fill.is_under_way = False
                if self._filler.opens_files:
                    self._watch_samples(fill)

    def _take_closed(self, now: float) -> None:
        for inode in self._events.take():
            fill = self._fills.get(self._snapshot.chunk_number(inode))
            if fill is not None:
                fill.closed += 1
                if fill.closed >= fill.samples - fill.samples // _UNREAD_SAMPLES:
                    fill.due_at = fill.due_at or now + (now - fill.begun_at) / 2

    def _fill(self, chunk: int, now: float) -> None:
        fill = self._fills.get(chunk)
        if fill is not None:  # otherwise the kernel has lost it
            self._forget(fill)
        files = self._files_of(chunk)
        fill = _Fill(chunk, files, int(self._snapshot.columns.length[files].sum()))
        self._fills.pop(chunk, None)
        if not self._make_room(fill.bytes, now):
            return
        fill.begun_at, fill.misses_left = now, len(files) // _STRAY_OF + _STRAYS
        self._fills[chunk] = fill
        self._outstanding += fill.bytes
        self._count += 1
        if not self._filler.opens_files:
            self._watch_samples(fill)
        self._filler.fill(chunk, files)

    def _files_of(self, chunk: int) -> Inodes:
        found = self._snapshot.files_in_chunk(chunk)
        files = np.arange(found.start, found.stop, dtype=np.uint32)
        files = self._snapshot.without_links(files)
        length = self._snapshot.columns.length[files]
        return files[(length > 0) & (length <= MAX_FILLED_FILE_BYTES)]

    def _watch_samples(self, fill: _Fill) -> None:
        count = min(len(fill.files), max(_LEAST_SAMPLES, len(fill.files) // _SAMPLE_OF))
        # The first file is no sample: a reader in this order has closed it by now.
        spread = (np.arange(count) * 2 + 1) * len(fill.files) // (2 * count)
        for inode in fill.files[spread].tolist():
            fill.samples += self._events.watch(inode, self._snapshot.path_of(inode))

    def _make_room(self, size: int, now: float) -> bool:
        budget = self._budget_bytes(now)
        while self._outstanding + size > budget:
            fills = [fill for fill in self._fills.values() if fill and not fill.is_under_way]
            if not fills or size > budget:
                return False
            read = [fill for fill in fills if fill.due_at is not None]
            if read:
                self._end_read(read[0])
            else:
                self._end_unread(fills[0])
        return True

    def _budget_bytes(self, now: float) -> int:
        if now >= self._budget_until:
            self._budget_until = now + _BUDGET_FOR_S
            share = self._free_bytes() // SHARE_OF_FREE_MEMORY
            self._budget = share if self._limit_bytes is None else min(share, self._limit_bytes)
        return self._budget

    def _end_read(self, fill: _Fill) -> None:
        """End a fill whose files have mostly been read: they stay in the page cache, once."""
        self._strays[fill.chunk] = len(fill.files) // _STRAY_OF + _STRAYS
        self._judge(fill)
        self._forget(fill)
        if self._filler.stages:
            self._filler.drop(fill.files, staged_only=True)
        self._discard(self._snapshot.chunk(fill.chunk).id)

    def _end_unread(self, fill: _Fill) -> None:
        """Drop an unread fill, to make room."""
        self._judge(fill)
        self._forget(fill)
        self._filler.drop(fill.files, staged_only=self._filler.stages)

    def _judge(self, fill: _Fill) -> None:
        if fill.was_useful:
            self._useful += 1
            self._every = max(1, self._every // _RECOVERY_FACTOR)
            self._until_fill = min(self._until_fill, self._every)
        else:
            self._wasted += 1
            self._every = min(self._every * 2, MAX_FILL_EVERY)

    def _forget(self, fill: _Fill) -> None:
        self._fills.pop(fill.chunk, None)
        self._outstanding -= fill.bytes
        if fill.closed < fill.samples:
            for inode in fill.files.tolist():
                self._events.unwatch(inode)

    def _drop_all(self) -> None:
        self._wanted.clear()
        for fill in list(self._fills.values()):
            if fill is not None:
                self._forget(fill)
                if self._filler.stages:
                    self._filler.drop(fill.files, staged_only=True)
        self._fills.clear()
        self._strays.clear()


def _can_fill(snapshot: Snapshot) -> bytes:
    """Return a flag for each chunk: whether it is small enough and has files that are."""
    columns = snapshot.columns
    is_small = (columns.length > 0) & (columns.length <= MAX_FILLED_FILE_BYTES)
    if snapshot.has_links:
        is_small &= ~are_links(columns.mode)
    has_small = np.bincount(columns.chunk[is_small], minlength=snapshot.chunk_count) > 0
    return bytes((has_small & (columns.chunk_payload_bytes <= MAX_WHOLE_BYTES)).astype(np.uint8))
