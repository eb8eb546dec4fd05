"""A mount without a kernel: a fast path with the clock and the page cache that it would have, node memory as its books alone, readers.

The follower and the readers of the plan are the real ones. The follower's steps are taken one by one, and what it asks for
comes at once.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.errors import NoRoom
from dieselfs.fuse.mount_readers import MountReaders
from dieselfs.plan.chunk_uses import ChunkUses
from dieselfs.plan.follower import Follower, Order, _Result
from tests.dieselfs.plan.made_snapshot import MadeSnapshot, number_of

MAX_STORED = 512 << 10
NOT_PLANNED = 0xFFFFFFFF


class SimulatedFastPath:
    """As `extension/plan.c` and `storing.c` have it."""

    def __init__(self, snapshot: MadeSnapshot) -> None:
        self.snapshot = snapshot
        self.pages: set[int] = set()
        """Files in the page cache."""
        self.in_memory: set[int] = set()
        """Chunks that the fast path knows to be in node memory."""
        self.unknown: set[int] = set()
        """Files whose inodes the kernel does not know."""
        self.stored_ever: list[int] = []
        self.reads: list[int] = []
        self.reads_of_stored: list[int] = []
        self.reads_past_memory: list[int] = []
        self.stored_order: list[int] = []
        self.plans = self.cleared = 0
        self.is_set = False
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._start_over()

    def _start_over(self) -> None:
        self.was_read: set[int] = set()
        self.was_stored: set[int] = set()
        self.residue: dict[int, set[int]] = {}
        self.state: dict[int, str] = {}
        self._ended: list[tuple[bytes, bool]] = []
        self.low = self.high = self.off_plan = self._next = 0

    def set_plan(self, epoch: int, order: Any, position_of: Any, sentinels: Any) -> None:
        self.order = np.frombuffer(order, np.uint32)
        self.position_of = np.frombuffer(position_of, np.uint32)
        bits = np.unpackbits(np.frombuffer(sentinels, np.uint8), bitorder="little")
        lengths = self.snapshot.columns.length
        clocked = [
            position
            for position, inode in enumerate(self.order.tolist())
            if self.position_of[inode] == position and lengths[inode]
        ]
        self.is_sentinel = set(np.flatnonzero(bits[: len(lengths)]).tolist())
        self.is_sentinel |= {int(self.order[position]) for position in clocked[-1:]}
        self.sentinels = [p for p in clocked if int(self.order[p]) in self.is_sentinel]
        self._start_over()
        self.is_set = True
        self.plans += 1
        self._move_on()

    def clear_plan(self) -> None:
        self.is_set = False
        self.cleared += 1
        self._start_over()

    def store(self, chunk: bytes) -> bool:
        number = number_of(ChunkId(bytes(chunk)))
        if not self.is_set or number not in self.in_memory or number in self.state:
            return False
        lengths = self.snapshot.columns.length
        went_well = True
        for inode in self.snapshot.files_in_chunk(number):
            position = int(self.position_of[inode])
            to_come = position != NOT_PLANNED and position >= self.low
            if not 0 < lengths[inode] <= MAX_STORED or not to_come or inode in self.was_read:
                continue
            if inode in self.is_sentinel:
                self.residue.setdefault(number, set()).add(inode)
            elif inode not in self.was_stored and inode in self.unknown:
                went_well = False
            elif inode not in self.was_stored:
                self.was_stored.add(inode)
                self.pages.add(inode)
                self.stored_ever.append(inode)
        if went_well:
            self.state[number] = "stored"
        self.stored_order.append(number)
        self._ended.append((bytes(chunk), went_well))
        return True

    def stored(self) -> list[tuple[bytes, bool]]:
        ended, self._ended = self._ended, []
        return ended

    def drop_residue(self, chunk: bytes) -> None:
        self.residue.pop(number_of(ChunkId(bytes(chunk))), None)

    def plan_progress(self) -> tuple[int, int, int]:
        return (self.low, self.high, self.off_plan) if self.is_set else (0, 0, 0)

    def advance(self, low: int) -> None:
        assert self.is_set
        assert 0 <= low <= len(self.order)
        self.low = max(self.low, low)
        self._move_on()

    def plan_fd(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def read(self, inode: int) -> None:
        """By a reader, who makes a READ only of what the page cache lacks."""
        if inode in self.pages or not self.snapshot.columns.length[inode]:
            return
        chunk = int(self.snapshot.columns.chunk[inode])
        self.reads.append(inode)
        if chunk not in self.in_memory and inode not in self.residue.get(chunk, ()):
            self.reads_past_memory.append(inode)
        self.pages.add(inode)
        if not self.is_set:
            return
        position = int(self.position_of[inode])
        if position == NOT_PLANNED or position < self.low:
            self.off_plan += 1
            return
        if inode in self.was_stored and inode not in self.was_read:
            self.reads_of_stored.append(inode)
        self.was_read.add(inode)
        self.high = max(self.high, position + 1)
        self._move_on()

    def _move_on(self) -> None:
        while self._next < len(self.sentinels):
            position = self.sentinels[self._next]
            if position >= self.low:
                if int(self.order[position]) not in self.was_read:
                    return
                self.low = position + 1
            self._next += 1
        self.low = len(self.order)

    @property
    def bytes(self) -> int:
        """In the page cache and copies of sentinels."""
        lengths = self.snapshot.columns.length
        kept = {inode for inodes in self.residue.values() for inode in inodes}
        return sum(int(lengths[inode]) for inode in self.pages | kept)


@dataclass
class SimulatedPages:
    """Implements `KernelPages`."""

    fast_path: SimulatedFastPath
    dropped: list[int] = field(default_factory=list)
    dropped_unread: list[int] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    looked_up: list[int] = field(default_factory=list)

    def drop(self, paths: bytes) -> bool:
        inodes = [int(path) for path in paths.split(b"\0")[:-1]]
        self.dropped += inodes
        self.dropped_unread += [inode for inode in inodes if inode not in self.read]
        self.fast_path.pages.difference_update(inodes)
        return True

    def look_up(self, paths: bytes) -> bool:
        inodes = [int(path) for path in paths.split(b"\0")[:-1]]
        self.looked_up += inodes
        self.fast_path.unknown.difference_update(inodes)
        return True


class SimulatedMemory:
    """Node memory that evicts what is used last, and never for what is used later than that."""

    def __init__(self, fast_path: SimulatedFastPath, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.fetched: list[int] = []
        """From the store."""
        self.failing: set[int] = set()
        self._fast_path = fast_path
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

    def fetch(self, chunks: Sequence[ChunkRef]) -> None:
        (chunk,) = chunks
        number = number_of(chunk.id)
        if number in self._bytes:
            return
        if number in self.failing:
            raise OSError("the store does not have it")
        while self.bytes + chunk.payload_bytes > self.budget_bytes:
            last = max(self._bytes, key=self._next_use, default=number)
            if self._next_use(last) <= self._next_use(number):
                raise NoRoom("full")
            self._evict(last)
        self.fetched.append(number)
        self._bytes[number] = chunk.payload_bytes
        self._fast_path.in_memory.add(number)

    def expect(self, chunks: Sequence[ChunkId]) -> None:
        self._expected, self._used = [number_of(chunk) for chunk in chunks], 0

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
        self._fast_path.in_memory.discard(number)


class SimulatedMount:
    def __init__(self, snapshot: MadeSnapshot, budget_bytes: int, inodes: Sequence[int]) -> None:
        self.snapshot, self.budget_bytes = snapshot, budget_bytes
        self.fast_path = SimulatedFastPath(snapshot)
        self.pages = SimulatedPages(self.fast_path)
        self.memory = SimulatedMemory(self.fast_path, budget_bytes)
        self.now = 0.0
        self.ticks: list[int] = []
        self.readers = MountReaders(
            cast(Any, self.fast_path),
            self.pages,
            snapshot.as_snapshot(),
            1,
            budget_bytes=lambda: self.budget_bytes,
            set_node_memory=self.memory.set_budget,
            tick=self.ticks.append,
        )
        order = self.order(inodes)
        self.follower = Follower(
            self.memory,
            self.readers,
            snapshot.chunk,
            lambda: self.budget_bytes,
            order,
            clock=lambda: self.now,
        )
        self.follower._pace.is_due = lambda until_use, to_fetch: True  # type: ignore[method-assign]
        self.follower._begin(order)
        self.most_bytes = 0

    def order(self, inodes: Sequence[int]) -> Order:
        array = np.array(inodes, np.uint32)
        return Order(array, ChunkUses.of(self.snapshot.as_snapshot(), array))

    def go_on(self, inodes: Sequence[int]) -> None:
        """The readers are at the next order."""
        self.follower.follow_on(self.order(inodes))
        self.follower.go_on()
        self.settle()
        self.pages.read.clear()

    def settle(self) -> None:
        """Until the follower has nothing more to do."""
        for _ in range(4):
            self.step()

    def step(self) -> None:
        """All that the follower does until it waits for something new."""
        self.now += 0.1
        while True:
            self.follower._clear_wake()
            self.follower._step()
            while not self.follower._tasks.empty():
                self._fetch()
            deadline = time.monotonic() + 10
            while self.readers._pages.is_busy:
                assert time.monotonic() < deadline
                time.sleep(0)
            if not self._is_woken():
                break
        self.most_bytes = max(self.most_bytes, self.memory.bytes + self.fast_path.bytes)

    def _is_woken(self) -> bool:
        return any(select.select([self.follower._wake_fd, self.readers._pages.fd], [], [], 0))

    def _fetch(self) -> None:
        task = self.follower._tasks.get()
        assert task is not None
        error: Exception | None = None
        try:
            self.memory.fetch([task.chunk])
        except Exception as failure:
            error = failure
        self.follower._results.append(_Result(task, self.now, error))
        self.follower._wake()

    def read(self, inode: int) -> None:
        self.fast_path.read(inode)
        self.pages.read.add(inode)

    def read_in_batches(
        self, inodes: Sequence[int], readers: int, batch: int, seed: int, steps_every: int = 8
    ) -> None:
        """As a DataLoader's workers do: batches dealt in turn, each read in order, none of them more than two rounds ahead of the slowest.
        Who reads next is chance; one of them is slow."""
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
        self.readers.close()
        self.follower.close()
        self.fast_path.close()
