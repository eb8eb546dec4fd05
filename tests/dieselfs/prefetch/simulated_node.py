"""A node in simulated time: a store that has a rate and a latency, a reader that has a rate and a
manner, and a prefetcher between them.

It takes the prefetcher's steps itself instead of starting its threads, as often and upon the same
events as these would: thousands of chunks in a second, the same each time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.prefetch.planner import Planner
from dieselfs.prefetch.prefetcher import PrefetcherRun
from dieselfs.prefetch.progress_tracker import ClientProgress
from dieselfs.prefetch.window import Fetched, PlannedFetch
from dieselfs.shuffle.order import shuffle_order
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot, number_of
from tests.dieselfs.prefetch.scripted_memory import MadePlan

TICK_S = 0.001
STEP_S = 0.02


@dataclass(frozen=True)
class Store:
    """Of one queue, each chunk costs its latency and its bytes, one after the other; else all at a
    time."""

    bytes_per_s: float
    latency_s: float = 0.0
    one_queue: bool = True


@dataclass
class Forgotten:
    """Node memory that is told, and does nothing."""

    expected: list[Sequence[str]] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        raise AssertionError("the simulation fetches")

    def expect(self, names: Sequence[str], window_bytes: int = 0) -> None:
        self.expected.append(names)

    def progress(self, used: int) -> None:
        self.used.append(used)


@dataclass
class Course:
    """What was seen, each tick."""

    position: list[int] = field(default_factory=list)
    window_bytes: list[int] = field(default_factory=list)
    reader_waits: list[bool] = field(default_factory=list)
    store_idle: list[bool] = field(default_factory=list)

    def waited_s(self, after_file: int = 0) -> float:
        """How long the reader waited for a chunk since it was at a file."""
        waits = zip(self.position, self.reader_waits, strict=True)
        return TICK_S * sum(wait for at, wait in waits if at >= after_file)


class Node:
    """One reader of one or several epochs of a made-up dataset in chunk-wise order."""

    def __init__(
        self,
        store: Store,
        budget_chunks: int,
        *,
        chunks: int = 200,
        files: int = 40,
        file_bytes: int = 100_000,
        group_size: int = 10,
        in_memory: Callable[[int], bool] = lambda chunk: False,
    ) -> None:
        """`in_memory`: chunks that are there already, and come at once."""
        self.snapshot = MadeSnapshot.even(chunks, files, file_bytes)
        self.chunk_bytes = files * file_bytes
        self.file_bytes = file_bytes
        self.group_files = group_size * files
        self.now = 0.0
        self.position = 0
        self.memory = Forgotten()
        self._store, self._in_memory = store, in_memory
        self._order = shuffle_order(self.snapshot.chunk_first_inode, 5, 0, group_size).inodes
        planner = Planner()
        self.prefetcher = PrefetcherRun(
            planner,
            self.memory,
            ClientProgress(),
            lambda: budget_chunks * self.chunk_bytes,
            clock=lambda: self.now,
        )
        self._plan = MadePlan(self.snapshot, self._order)
        planner.add(self._plan, budget_chunks * self.chunk_bytes)
        self.prefetcher.step()
        self.prefetcher.do(self.prefetcher.tasks.get())  # type: ignore[arg-type]
        self._number = self.snapshot.columns.chunk[self._order].tolist()
        self._arriving: list[tuple[float, int, PlannedFetch]] = []
        self._free_at = 0.0
        self._there: set[int] = set()
        self._step_at = 0.0

    def run(self, wanted_bytes: Callable[[float], float], until: int | None = None) -> Course:
        """Read until a file, or the end. `wanted_bytes` says how many the reader would have read by
        a time of its own, which stands still while it waits."""
        course = Course()
        until = len(self._number) if until is None else until
        reading_s, begun_at = 0.0, self.position
        while self.position < until:
            self.now += TICK_S
            self._let_arrive()
            if self.now >= self._step_at:
                self._step()
            wanted = begun_at + int(wanted_bytes(reading_s + TICK_S) // self.file_bytes)
            waits = self._read_to(min(wanted, until))
            reading_s += 0.0 if waits else TICK_S
            course.position.append(self.position)
            course.reader_waits.append(waits)
            course.window_bytes.append(self.prefetcher.statistics().window_bytes)
            course.store_idle.append(not self._arriving)
            assert self.now < 600, "it does not get on"
        return course

    def _read_to(self, wanted: int) -> bool:
        """Whether it has to wait."""
        while self.position < wanted:
            if self._number[self.position] not in self._there:
                return True
            self.position += 1
        return False

    def _let_arrive(self) -> None:
        came = False
        while self._arriving and self._arriving[0][0] <= self.now:
            at, _, task = heapq.heappop(self._arriving)
            self._there.add(number_of(task.chunk.id))
            self.prefetcher.results.append(Fetched(task, at))
            came = True
        if came:
            self._step()

    def _step(self) -> None:
        self._plan.at = self.position
        self.prefetcher.step()
        self._step_at = self.now + STEP_S
        while not self.prefetcher.tasks.empty():
            task = self.prefetcher.tasks.get()
            assert isinstance(task, PlannedFetch)
            heapq.heappush(self._arriving, (self._arrival(task), task.use, task))

    def _arrival(self, task: PlannedFetch) -> float:
        size = task.chunk.payload_bytes
        if self._in_memory(number_of(task.chunk.id)):
            return self.now + 0.0002
        takes = self._store.latency_s + size / self._store.bytes_per_s
        if not self._store.one_queue:
            return self.now + takes
        self._free_at = max(self._free_at, self.now) + takes
        return self._free_at


def steadily(bytes_per_s: float) -> Callable[[float], float]:
    return lambda seconds: bytes_per_s * seconds


def by_batches(bytes_per_s: float, batch_bytes: float) -> Callable[[float], float]:
    """A batch as fast as it comes, then a pause in which it is trained on."""
    return lambda seconds: batch_bytes * (1 + np.floor(bytes_per_s * seconds / batch_bytes))
