"""The page cache along a known order.

A chunk that has arrived in node memory is filled, and its pages are dropped behind the readers.

Probes report progress (`progress_probes`). Nothing is known between two probes, and two readers may
be on both sides of one; so the drop stays a probe behind what is surely read (`reader_progress`).

A filler that stages (`PageFiller.stages`) puts bytes into the page cache that readers copy: both
copies count in the budget. Its copy is dropped behind the readers in any case, the files' own pages
only if the order does not fit into the budget as a whole.

The kernel may drop pages before they are read: memory is short, or a control group's is. A READ of
a chunk that was filled, and that node memory need not keep since then, shows that. Its readers
would get the rest file by file from the store, so the chunk is fetched and filled again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from dieselfs.fuse.pages.order_bytes import OrderBytes, bytes_in_use
from dieselfs.fuse.pages.page_filler import MAX_FILLED_FILE_BYTES, Inodes, PageFiller
from dieselfs.fuse.pages.page_statistics import PlannedPagesStatistics
from dieselfs.prefetch.chunk_uses import ChunkUses, LastUses
from dieselfs.prefetch.close_events import CloseEvents
from dieselfs.prefetch.progress_probes import PROBE_BYTES
from dieselfs.prefetch.progress_tracker import ProgressTracker
from dieselfs.prefetch.reader_progress import ReaderProgress
from dieselfs.prefetch.window import PlannedOrder
from dieselfs.shuffle.group_memory import UNDER_WAY
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

_BEHIND: Final = 1
"""Probes between the low progress and the drop."""
_HELD_BACK: Final = 4
"""The part of the budget that may be held back for readers that are apart: a quarter.

It is also no more than the order can spare.
"""
_STRETCHES_BEHIND: Final = 4
"""Stretches that a single reader has read and that are not dropped yet.

Two lie before the low progress, two more between it and the drop.
"""
_BEHIND_BYTES: Final = _STRETCHES_BEHIND * PROBE_BYTES
"""The most bytes of so many stretches."""
_DROPPED_AT_ONCE: Final = 512 << 10
"""Bytes of a drop: enough for one request to the filler, little beside a chunk."""
_DROPPED_PART: Final = 16
"""A drop has at most this part of the budget."""
_NOT_PLANNED: Final = 0xFFFFFFFF
_MISSES: Final = 1024
_LOST_AFTER: Final = 2
"""The READs of a filled chunk after which its pages count as lost."""


class PlannedPages(ProgressTracker):
    """The page cache of one snapshot's orders.

    `filler` and `events` are closed with it.
    """

    def __init__(
        self,
        filler: PageFiller,
        events: CloseEvents,
        snapshot: Snapshot,
        *,
        budget_bytes: Callable[[], int],
        set_node_memory: Callable[[int], None],
        read_names_ahead: Callable[[], None] = lambda: None,
        most_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Create it. `read_names_ahead` is called where an order fits as a whole.

        `budget_bytes` bounds node memory and the page cache together: `set_node_memory` is called
        with what the page cache leaves of it, and with `most_bytes` at the end; None: all of it.
        """
        self._most_bytes = most_bytes or budget_bytes
        self._filler, self._events, self._snapshot = filler, events, snapshot
        self._budget_bytes, self._set_node_memory = budget_bytes, set_node_memory
        self._read_names_ahead = read_names_ahead
        self._at = ReaderProgress(events, snapshot)
        self._probes = self._at.probes
        self._node_memory = -1
        self._all_payload = int(snapshot.columns.chunk_payload_bytes.sum())
        self._kept: set[int] = set()
        """Chunks whose files' own pages stay in the page cache, if all of them fit."""
        self._staged: set[int] = set()
        """Chunks that a staging filler has filled and that were not dropped behind the readers."""
        self._complete: set[int] = set()
        """Chunks of this order that were filled."""
        self._missed: deque[int] = deque(maxlen=_MISSES)
        """Files that were neither in the page cache nor in node memory, since the last look."""
        self._misses: dict[int, int] = {}
        """The number of them in each chunk that is filled."""
        self._lost: list[int] = []
        self._lost_chunks = 0
        self._has_pages = np.zeros(snapshot.chunk_count, np.bool_)
        """Chunks that were filled or read, and have pages that were not dropped."""
        self._uses = ChunkUses(*(np.zeros(size, np.int64) for size in (0, 0, 0, 0, 1)))
        self._order: Inodes = np.empty(0, np.uint32)
        self._bytes = OrderBytes.of(snapshot, self._order)
        self._filled_bytes = self._dropped_bytes = self._dropped = 0
        self._former_bytes = 0
        """Bytes of earlier orders that are not dropped yet."""
        self._drops = 0
        """Drops under way."""
        self._behind_bytes = 0
        """The most bytes of this order that a single reader has read and that have pages."""
        self._held_back = self._reserved = 0
        self._keeps = True
        self.is_closed = False

    def begin(self, planned: PlannedOrder) -> None:
        """Start an order; drop the pages of the former one unless both fit as a whole."""
        order, uses = planned.inodes, planned.uses
        keeps = self._all_fit(uses)
        in_drop = self._end_order(keeps=self._keeps and keeps)
        self._keeps = keeps
        if keeps:
            self._read_names_ahead()
        self._order, self._uses = order, uses
        self._index_of = {chunk: index for index, chunk in enumerate(uses.chunks.tolist())}
        self._at.begin(order, uses.read_bytes)
        left_out = self._kept if self._filler.stages else ()
        self._bytes = OrderBytes.of(self._snapshot, order, left_out)
        self._last_uses, self._last_staged = LastUses(uses), LastUses(uses)
        self._position_of = np.full(self._snapshot.file_count, _NOT_PLANNED, np.uint32)
        self._position_of[order] = np.arange(len(order), dtype=np.uint32)
        self._behind_bytes = _BEHIND_BYTES if keeps else self._most_bytes_behind()
        for chunk in in_drop:
            self._probes.pause(chunk)
        self._dropped = self._dropped_bytes = self._filled_bytes = 0
        needed = int(uses.payload_bytes.sum()) if keeps else bytes_in_use(uses)
        spare = self._budget_bytes() - needed
        self._reserved = max(0, spare)
        """The most bytes that are kept free for the second copies of what is read."""
        copies = 1 if self._keeps else self._copies  # of what is read
        held_back = min(self._budget_bytes() // _HELD_BACK, spare - copies * _BEHIND_BYTES)
        self._held_back = max(0, held_back) // copies
        self._to_fill: dict[int, None] = {}
        self._under_way: set[int] = set()
        self._complete = set()
        self._released: list[int] = []
        self._counted: set[int] = set()
        """Chunks whose files are counted as filled."""
        self._lost = []
        self._misses = {}
        for chunk in self._kept.intersection(self._index_of):
            if not self._filler.stages:
                self._count(chunk)
            self._released.append(chunk)

    def arrived(self, chunk: int) -> None:
        """Queue a chunk that is in node memory for its fill."""
        if chunk not in self._kept:
            self._to_fill[chunk] = None

    def note_miss(self, inode: int) -> None:
        """Note that a READ has found a file neither in the page cache nor in node memory.

        Any thread may call it.
        """
        self._missed.append(inode)

    def position(self) -> int:
        """Return the low progress, after filling and dropping what has become due."""
        self._divide_memory()  # node memory has handled the releases
        self._take_filled()
        self._take_missed()
        at, budget = self._at, self._budget_bytes()
        at.look(budget, budget // (2 * self._copies))
        self._fill()  # before the watches, each of which costs microseconds
        at.watch()
        surely_read = at.surely_read(at.read_bytes, self._held_back)
        self._pass(surely_read)
        if self._filler.stages or not self._keeps:
            self._drop_behind(surely_read)
        if self._node_memory_budget() > self._node_memory:
            self._divide_memory()
        return at.low

    def leading_position(self) -> int:
        """Return the position of the leading reader."""
        return self._at.leading_position

    def is_at_end(self) -> bool:
        """Return whether all readers have read the order."""
        return self._at.is_at_end

    def released(self) -> Sequence[int]:
        """Return the chunks that were released since the last call."""
        released, self._released = self._released, []
        return released

    def lost(self) -> Sequence[int]:
        """Return the chunks whose pages were lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def outside_bytes(self) -> int:
        """Bytes of filled pages and, if the filler stages, of those that readers made from them."""
        outside = self._former_bytes + max(0, self._filled_bytes - self._dropped_bytes)
        return outside + self._copied_bytes() if self._filler.stages else outside

    def wake_fds(self) -> Sequence[int]:
        """Descriptors that wake the prefetcher, without that of the probes.

        The prefetcher checks them often enough, and each probe would wake it.
        """
        return (self._filler.wake_fd,)

    def statistics(self) -> PlannedPagesStatistics:
        """Return the counters and the present sizes."""
        return PlannedPagesStatistics(
            self.outside_bytes(),
            len(self._events),
            self._probes.closed,
            self._probes.left_out,
            self._lost_chunks,
        )

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._events.close()
            if self._filler.stages:
                self._filler.drop(self._staged_files(), staged_only=True)
            self._filler.close(0.0)

    def end(self) -> None:
        """Close, and leave the whole budget to node memory."""
        self.close()
        self._set_node_memory(self._most_bytes())

    @property
    def _copies(self) -> int:
        return 2 if self._filler.stages else 1

    def _copied_bytes(self) -> int:
        """Return the bytes of pages that readers have made from staged ones.

        It is at least as many as they will have made before these are dropped. The readers of the
        next order make as many, unless the pages of this one stay.
        """
        own, at = self._bytes, self._at
        read, dropped = own.upto(at.leading_position), own.upto(self._dropped)
        apart = at.apart * own.total // len(own.before)
        to_come = min(self._reserved, self._behind_bytes + 2 * min(self._held_back, apart))
        to_come = min(to_come, own.total - (dropped if self._keeps else 0)) - (read - dropped)
        return own.left_out + read - (0 if self._keeps else dropped) + max(0, to_come)

    def _most_bytes_behind(self) -> int:
        """Return the most bytes that are read and not dropped.

        Small files make short stretches: a probe comes after 64 of them. One stretch is for the
        time that a drop takes.
        """
        at = self._bytes.before[np.concatenate([[0], self._probes.positions + 1])]
        stretches = _STRETCHES_BEHIND + 1
        if len(at) <= stretches:
            return self._bytes.total
        return min(_BEHIND_BYTES, int((at[stretches:] - at[:-stretches]).max()))

    def _all_fit(self, uses: ChunkUses) -> bool:
        needed = int(uses.payload_bytes.sum())
        if self._filler.stages and len(uses):
            needed += _BEHIND_BYTES + UNDER_WAY * int(uses.payload_bytes.max())
        return needed <= self._budget_bytes()

    # Filling

    def _fill(self) -> None:
        if self._former_bytes:
            return  # or new pages would be dropped with those of the former order
        to_fill, self._to_fill = self._to_fill, {}
        for chunk in to_fill:
            files = self._files_to_come(chunk)
            if self._filler.opens_files:
                self._probes.pause(chunk)
            self._under_way.add(chunk)
            self._filler.fill(chunk, files)

    def _files_to_come(self, chunk: int) -> Inodes:
        inodes = self._files_of(chunk)
        length = self._snapshot.columns.length[inodes]
        position = self._position_of[inodes]
        is_to_come = (position != _NOT_PLANNED) & (position >= self._at.low)
        found: Inodes = inodes[is_to_come & (length > 0) & (length <= MAX_FILLED_FILE_BYTES)]
        return found

    def _take_filled(self) -> None:
        for filled in self._filler.take_filled():
            chunk = filled.chunk
            if chunk not in self._under_way:
                continue  # of the former order
            self._under_way.discard(chunk)
            if self._filler.opens_files:
                self._probes.resume(chunk, self._at.leading_position)
            self._has_pages[chunk] = True
            self._staged.add(chunk)
            if filled.complete and chunk not in self._bytes.with_large:
                self._count(chunk)  # otherwise it counts in node memory until it is passed
                self._released.append(chunk)
            if filled.complete:
                self._complete.add(chunk)

    def _count(self, chunk: int) -> None:
        if chunk not in self._counted:
            self._counted.add(chunk)
            self._has_pages[chunk] = True
            self._filled_bytes += int(self._bytes.in_chunk[chunk])

    def _take_missed(self) -> None:
        """Find the chunks whose pages the kernel has dropped before they were read."""
        while self._missed:
            chunk = int(self._snapshot.columns.chunk[self._missed.popleft()])
            if chunk not in self._complete and chunk not in self._kept:
                continue  # it was not filled, or not as a whole
            misses = self._misses[chunk] = self._misses.get(chunk, 0) + 1
            index = self._index_of.get(chunk)
            if misses < _LOST_AFTER or index is None or self._uses.last[index] < self._at.low:
                continue
            del self._misses[chunk]
            self._complete.discard(chunk)
            self._kept.discard(chunk)
            if chunk in self._counted:
                self._counted.discard(chunk)
                self._filled_bytes -= int(self._bytes.in_chunk[chunk])
            self._lost.append(chunk)
            self._lost_chunks += 1

    # Behind the readers

    def _pass(self, low: int) -> None:
        """Release chunks whose last file has been read."""
        for chunk in self._last_uses.before(low):
            self._to_fill.pop(chunk, None)
            self._count(chunk)  # its readers have put it into the page cache
            self._released.append(chunk)

    def _files_of(self, chunk: int) -> Inodes:
        found = self._snapshot.files_in_chunk(chunk)
        return np.arange(found.start, found.stop, dtype=np.uint32)

    def _drop_behind(self, surely_read: int) -> None:
        passed = int(np.searchsorted(self._probes.positions, surely_read, "left")) - 1 - _BEHIND
        if passed < 0 or self._drops or self._is_filling_with_ample_memory():
            return
        end = int(self._probes.positions[passed]) + 1
        size = int(self._bytes.before[end] - self._bytes.before[self._dropped])
        if size >= min(_DROPPED_AT_ONCE, self._budget_bytes() // _DROPPED_PART):
            self._drop(end, size)

    def _is_filling_with_ample_memory(self) -> bool:
        """Return True if readers wait for fills rather than for room."""
        return bool(
            self._keeps and self._under_way and 2 * self.outside_bytes() < self._budget_bytes()
        )

    def _drop(self, end: int, size: int) -> None:
        """Drop what the readers have passed; staged ranges chunk by chunk where memory is ample."""
        if self._keeps:
            self._dropped, self._dropped_bytes = end, self._dropped_bytes + size
            self._unstage(end)
            return
        order = self._order
        files = order[self._dropped : end]

        def is_dropped() -> None:
            self._drops -= 1
            if order is self._order:
                self._dropped_bytes += size
                self._dropped = end

        self._drops += 1
        self._filler.drop(files, is_dropped)
        if self._filler.stages:
            self._unstage(end)

    def _unstage(self, end: int) -> None:
        """Drop the ranges of chunks that have no files from `end` on.

        They include files that were filled along, and files that readers read by themselves.
        """
        for chunk in self._last_staged.before(end):
            self._staged.discard(chunk)
            self._filler.drop(self._files_of(chunk), staged_only=True)

    def _end_order(self, *, keeps: bool) -> set[int]:
        """Drop pages of the former order, before the next one fills the same files.

        Returns the chunks under way. With `keeps`, both orders fit as a whole, so the files' own
        pages stay.
        """
        if self._keeps:
            self._kept |= self._read_of(self._complete) if self._filler.stages else self._complete
        if keeps:
            files = self._staged_files()
            size = max(0, self._filled_bytes - self._dropped_bytes)
        else:
            files = self._files_with_pages()
            size = self.outside_bytes() - self._former_bytes
            self._kept.clear()
            self._has_pages[:] = False
        if not size or not len(files):
            return set()
        self._staged.clear()
        chunks = set(self._snapshot.columns.chunk[files].tolist())

        def is_dropped() -> None:
            self._former_bytes -= size
            if not self._former_bytes:
                for chunk in chunks:
                    self._probes.resume(chunk, self._at.leading_position)

        self._former_bytes += size
        self._filler.drop(files, is_dropped, staged_only=keeps)
        return chunks

    def _read_of(self, chunks: set[int]) -> set[int]:
        last = self._uses.last
        return {chunk for chunk in chunks if last[self._index_of[chunk]] < self._at.low}

    def _files_with_pages(self) -> Inodes:
        """Return the files of the order that have pages of their own, or may have."""
        start = 0 if self._keeps else self._dropped
        rest = self._order[start:]
        has_pages = self._has_pages[self._snapshot.columns.chunk[rest]]
        has_pages[: max(0, self._at.leading_position - start)] = True
        return rest[has_pages]

    def _staged_files(self) -> Inodes:
        """Return the files of chunks that are filled and not dropped behind the readers yet."""
        if not self._filler.stages:
            return np.empty(0, np.uint32)
        return np.concatenate(
            [np.empty(0, np.uint32), *map(self._files_of, sorted(self._staged.copy()))]
        )

    # The budget

    def _node_memory_budget(self) -> int:
        return max(0, self._budget_bytes() - self.outside_bytes())

    def _divide_memory(self) -> None:
        budget = self._node_memory_budget()
        if min(budget, self._node_memory) >= self._all_payload:
            return  # more than it can use, and a change costs a message a chunk
        if budget > self._node_memory or self._node_memory - budget >= _DROPPED_AT_ONCE:
            self._node_memory = budget
            self._set_node_memory(budget)
