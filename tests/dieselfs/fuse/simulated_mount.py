"""A mount without a kernel: a page cache with a filler that fills it, files that are watched, node
memory as its books alone, readers.

The prefetcher and the planned pages are the real ones. The prefetcher's steps are taken one by one,
and what it asks for comes at once.
"""

from __future__ import annotations

import os
import random
import select
from collections.abc import Callable, Sequence

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.errors import CacheFull
from dieselfs.fuse.pages.page_filler import MAX_FILLED_FILE_BYTES, Filled, Inodes
from dieselfs.fuse.pages.page_statistics import FillStatistics
from dieselfs.fuse.pages.planned_pages import PlannedPages
from dieselfs.prefetch.planner import Planner
from dieselfs.prefetch.prefetcher import PrefetcherRun
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot, number_named, number_of
from tests.dieselfs.prefetch.scripted_memory import MadePlan


class NamedSnapshot(MadeSnapshot):
    """A made-up snapshot whose files' paths are their numbers."""

    def path_of(self, inode: int) -> bytes:
        return b"%d" % inode

    def chunk_number(self, inode: int) -> int:
        return int(self.columns.chunk[inode])


class SimulatedEvents:
    """As `close_events.CloseEvents`; `closed` is what the kernel does."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.is_full = False
        self.fd = -1
        self.most = 0
        self.unwatchable: set[int] = set()
        self._position_of: dict[int, int] = {}
        self._closed: list[int] = []

    def __len__(self) -> int:
        return len(self._position_of)

    def watch(self, position: int, path: bytes) -> bool:
        self.is_full = len(self) >= self.limit
        inode = int(path)
        if self.is_full or inode in self.unwatchable or inode in self._position_of:
            return False
        self._position_of[inode] = position
        self.most = max(self.most, len(self))
        return True

    def unwatch(self, position: int) -> None:
        for inode, watched in list(self._position_of.items()):
            if watched == position:
                del self._position_of[inode]

    def take(self) -> list[int]:
        closed, self._closed = self._closed, []
        return closed

    def clear(self) -> None:
        self._position_of.clear()
        self._closed.clear()

    def close(self) -> None:
        self.clear()

    def closed(self, inode: int) -> None:
        position = self._position_of.pop(inode, None)
        if position is not None:
            self._closed.append(position)


class SimulatedCache:
    """The kernel's page cache, and a filler that fills it when it is asked for what it has
    filled."""

    def __init__(self, snapshot: NamedSnapshot, events: SimulatedEvents, kind: str) -> None:
        self.snapshot, self.events = snapshot, events
        lengths = snapshot.columns.length.tolist()
        self._filled_bytes = [each if each <= MAX_FILLED_FILE_BYTES else 0 for each in lengths]
        self.stages, self.opens_files = kind == "ranges", kind == "files"
        self.pages: set[int] = set()
        """Files that have pages of their own."""
        self.staged: set[int] = set()
        """Files in the blob's pages."""
        self.in_memory: set[int] = set()
        """Chunks in node memory."""
        self.failing: set[int] = set()
        """Files that can't be filled."""
        self.fills: list[int] = []
        self.reads: list[int] = []
        """READs that readers caused."""
        self.reads_past_memory: list[int] = []
        self.was_read: set[int] = set()
        self.dropped: list[int] = []
        self.dropped_unread: list[int] = []
        self.unstaged_unread: list[int] = []
        self.closed = 0
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._to_fill: list[tuple[int, list[int]]] = []
        self._to_drop: list[tuple[list[int], bool, Callable[[], None]]] = []

    def fill(self, chunk: int, files: Inodes) -> None:
        assert not self.closed
        for inode in files.tolist():
            assert 0 < self.snapshot.columns.length[inode] <= MAX_FILLED_FILE_BYTES
            assert self.snapshot.chunk_number(inode) == chunk
        self._to_fill.append((chunk, files.tolist()))
        os.eventfd_write(self.wake_fd, 1)

    def drop(
        self, files: Inodes, then: Callable[[], None] = lambda: None, *, staged_only: bool = False
    ) -> None:
        self._to_drop.append((files.tolist(), staged_only, then))
        os.eventfd_write(self.wake_fd, 1)

    def take_filled(self) -> list[Filled]:
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            pass
        to_drop, self._to_drop = self._to_drop, []
        for files, staged_only, then in to_drop:
            self._drop(files, staged_only)
            then()
        to_fill, self._to_fill = self._to_fill, []
        return [self._filled(chunk, files) for chunk, files in to_fill]

    def statistics(self) -> FillStatistics:
        return FillStatistics(len(self.fills))

    def close(self, timeout_s: float = 1.0) -> None:
        self.take_filled()
        self.closed += 1

    def _filled(self, chunk: int, files: list[int]) -> Filled:
        self.fills.append(chunk)
        good = [inode for inode in files if inode not in self.failing]
        (self.staged if self.stages else self.pages).update(good)
        if self.opens_files:
            for inode in good:
                self.events.closed(inode)
        return Filled(chunk, len(good) == len(files))

    def _drop(self, files: list[int], staged_only: bool) -> None:
        if self.stages:
            lost = self.staged.intersection(files) - self.was_read
            self.unstaged_unread += [inode for inode in lost if inode not in self.pages]
            self.staged.difference_update(files)
        if staged_only:
            return
        self.dropped += files
        self.dropped_unread += [inode for inode in files if inode not in self.was_read]
        self.pages.difference_update(files)
        for inode in files:  # the helper opens and closes them
            self.events.closed(inode)

    def read(self, inode: int) -> None:
        """By a reader, which makes a READ only of what the page cache lacks."""
        if self.snapshot.columns.length[inode] and inode not in self.pages:
            if inode not in self.staged:
                self.reads.append(inode)
                if self.snapshot.chunk_number(inode) not in self.in_memory:
                    self.reads_past_memory.append(inode)
                if self.stages:
                    self.staged.add(inode)
            self.pages.add(inode)
        self.was_read.add(inode)
        self.events.closed(inode)

    def lose(self, chunk: int) -> None:
        """The kernel drops the pages of a chunk's files."""
        files = self.snapshot.files_in_chunk(chunk)
        self.pages.difference_update(files)
        self.staged.difference_update(files)

    @property
    def bytes(self) -> int:
        of_file = self._filled_bytes.__getitem__
        return sum(map(of_file, self.pages)) + sum(map(of_file, self.staged))

    def release(self) -> None:
        os.close(self.wake_fd)


class SimulatedMemory:
    """Node memory that evicts what is used last, and never for what is used later than that."""

    def __init__(self, cache: SimulatedCache, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.fetched: list[int] = []
        """From the store."""
        self.failing: set[int] = set()
        self._cache = cache
        self._bytes: dict[int, int] = {}
        self._expected: list[int] = []
        self._used = 0

    @property
    def bytes(self) -> int:
        return sum(self._bytes.values())

    def set_budget(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        while self.bytes > budget_bytes:
            self._evict(max(self._bytes, key=self._next_use))

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        chunk = blocks[0].chunk
        number = number_of(chunk.id)
        if number in self._bytes:
            return
        if number in self.failing:
            raise OSError("the store does not have it")
        while self.bytes + chunk.payload_bytes > self.budget_bytes:
            last = max(self._bytes, key=self._next_use, default=number)
            if self._next_use(last) <= self._next_use(number):
                raise CacheFull("full")
            self._evict(last)
        self.fetched.append(number)
        self._bytes[number] = chunk.payload_bytes
        self._cache.in_memory.add(number)

    def expect(self, names: Sequence[str], window_bytes: int = 0) -> None:
        self._expected, self._used = [number_named(name) for name in names], 0

    def progress(self, used: int) -> None:
        assert self._used < used <= len(self._expected)
        self._used = used

    def _next_use(self, number: int) -> int:
        try:
            return self._expected.index(number, self._used)
        except ValueError:
            return 1 << 62

    def _evict(self, number: int) -> None:
        del self._bytes[number]
        self._cache.in_memory.discard(number)


class SimulatedMount:
    def __init__(
        self,
        snapshot: NamedSnapshot,
        budget_bytes: int,
        inodes: Sequence[int],
        kind: str = "stores",
        watches: int = 1 << 30,
    ) -> None:
        """`kind`: how the filler fills, by ranges of a blob, by files that it opens, or by
        stores."""
        self.snapshot, self.budget_bytes = snapshot, budget_bytes
        self.events = SimulatedEvents(watches)
        self.cache = SimulatedCache(snapshot, self.events, kind)
        self.memory = SimulatedMemory(self.cache, budget_bytes)
        self.now = 0.0
        self.pages = PlannedPages(
            self.cache,
            self.events,
            snapshot.as_snapshot(),
            budget_bytes=lambda: self.budget_bytes,
            set_node_memory=self.memory.set_budget,
        )
        self._planner = Planner()
        self.prefetcher = PrefetcherRun(
            self._planner,
            self.memory,
            self.pages,
            lambda: self.budget_bytes,
            clock=lambda: self.now,
        )
        rates = self.prefetcher._window.rates
        rates.is_due = lambda until_use, to_fetch: True  # type: ignore[method-assign]
        self._plan = MadePlan(snapshot, inodes)
        self._planner.add(self._plan, budget_bytes)
        self.prefetcher.step()
        self._do_tasks()
        self.most_bytes = 0

    def add(self, inodes: Sequence[int]) -> None:
        """The readers will read this order next."""
        self._successor = MadePlan(self.snapshot, inodes, after=self._plan.id)
        self._planner.add(self._successor, self.budget_bytes)

    def go_on(self, inodes: Sequence[int]) -> None:
        """The readers are at the next order."""
        self.add(inodes)
        self._plan.is_read, self._plan = False, self._successor
        self.settle()
        self.cache.was_read.clear()

    def settle(self) -> None:
        """Until the prefetcher has nothing more to do."""
        for _ in range(4):
            self.step()

    def step(self) -> None:
        """All that the prefetcher does until it waits for something new."""
        self.now += 0.1
        while True:
            self.prefetcher.clear_wake()
            self.prefetcher.step()
            self._do_tasks()
            if not self._is_woken():
                break
        self.most_bytes = max(self.most_bytes, self.memory.bytes + self.cache.bytes)

    @property
    def probes(self) -> list[int]:
        """The files that tell the progress of this order."""
        order = self.pages._order
        return [int(order[position]) for position in self.pages._probes.positions]

    def _is_woken(self) -> bool:
        return any(select.select([self.prefetcher._wake_fd, *self.pages.wake_fds()], [], [], 0))

    def _do_tasks(self) -> None:
        while not self.prefetcher.tasks.empty():
            self.prefetcher.do(self.prefetcher.tasks.get())  # type: ignore[arg-type]

    def read(self, inode: int) -> None:
        before = len(self.cache.reads_past_memory)
        self.cache.read(inode)
        if len(self.cache.reads_past_memory) > before:
            self.pages.note_miss(inode)

    def read_in_batches(
        self, inodes: Sequence[int], readers: int, batch: int, seed: int, steps_every: int = 8
    ) -> None:
        """As a DataLoader's workers do: batches dealt in turn, each read in order, none of them
        more than two rounds ahead of the slowest. Who reads next is chance; one of them is slow."""
        chance = random.Random(seed)
        batches = [inodes[at : at + batch] for at in range(0, len(inodes), batch)]
        at = [(reader, 0) for reader in range(readers)]
        count = 0
        while True:
            left = [r for r in range(readers) if at[r][0] < len(batches)]
            if not left:
                return
            slowest = min(at[r][0] for r in left)
            able = [r for r in left if at[r][0] < slowest + 2 * readers]
            reader = chance.choice(able if chance.random() < 0.5 else able[-1:])
            number, place = at[reader]
            self.read(batches[number][place])
            place += 1
            at[reader] = (number, place) if place < len(batches[number]) else (number + readers, 0)
            count += 1
            if count % steps_every == 0:
                self.step()

    def close(self) -> None:
        self.pages.close()
        self.prefetcher.close()
        self.cache.release()
