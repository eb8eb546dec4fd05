"""The engine of single items: real orders, a real cache, and hits that are found and not computed.

Each dataset is cut into the same number of items, and each epoch of a job reads them once, in an
order of its own. A job reads as many items in a beat as its speed and, for those that miss, its
remote IO allow; what IO it does not use is fetched ahead, up to a window. Uniform caching admits
items up to the quota and evicts at random above it; an LRU pool evicts what it evicts.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dieselfs.allocation.jobs import Job
from dieselfs.allocation.simulation.events import Event, EventKind
from dieselfs.allocation.simulation.readers import (
    BeatProgress,
    Floats,
    Grant,
    JobColumns,
    Numbers,
)

ITEMS = 1000
"""Items of a dataset: hits are then random by 1.5 % in an epoch."""
FETCHED_AHEAD = 32
"""Items for which a job's unused remote IO is kept; without it chance makes jobs wait."""


@dataclass(slots=True)
class _Reader:
    """A job on its way through an epoch."""

    job: Job
    dataset: int
    item_bytes: float
    order: list[int] = field(default_factory=list)
    """Items that are unread in this epoch, the next one last."""
    unread: bytearray = field(default_factory=lambda: bytearray(ITEMS))
    unread_held: int = 0
    effective: bytearray = field(default_factory=lambda: bytearray(ITEMS))
    """Items that are held and were so before this job read them in this epoch."""
    effective_count: int = 0
    read_in_epoch: int = 0
    speed_credit: float = 0.0
    io_credit: float = 0.0


class ItemReaders:
    """The jobs of a simulation over a cache of items."""

    def __init__(
        self, jobs: Sequence[Job], columns: JobColumns, lru_bytes: float | None, seed: int
    ) -> None:
        """`lru_bytes` is the size of one LRU pool, or None for uniform caching with quotas."""
        self.left_bytes: Floats = np.array([job.total_bytes for job in jobs], float)
        self._readers = [
            _Reader(job, int(dataset), job.dataset_bytes / ITEMS)
            for job, dataset in zip(jobs, columns.datasets, strict=True)
        ]
        self._started: dict[int, list[_Reader]] = {at: [] for at in range(len(columns.names))}
        self._held: list[OrderedDict[int, None]] = [OrderedDict() for _ in columns.names]
        self._recency: OrderedDict[tuple[int, int], float] = OrderedDict()
        """All items of the pool and their bytes, the least recently used first."""
        self._lru_bytes, self._pool_bytes = lru_bytes, 0.0
        self._quotas: Floats = np.zeros(len(columns.names))
        self._chance = random.Random(seed)

    def start(self, job: int) -> None:
        reader = self._readers[job]
        self._started[reader.dataset].append(reader)
        self._begin_epoch(reader)

    def effective_bytes(self, jobs: Numbers) -> Floats:
        return np.array([self._effective_bytes(self._readers[job]) for job in jobs], float)

    def held_bytes(self, jobs: Numbers) -> Floats:
        readers = [self._readers[job] for job in jobs]
        return np.array([len(self._held[r.dataset]) * r.item_bytes for r in readers], float)

    def advance(self, grant: Grant, at_s: float, length_s: float) -> BeatProgress:
        """Let jobs read in turn, each for the whole beat."""
        self._quotas = grant.quotas
        events: list[Event] = []
        read, missed = np.zeros(len(grant.jobs)), np.zeros(len(grant.jobs))
        if self._lru_bytes is None:
            self._obey()
        for row, job in enumerate(grant.jobs.tolist()):
            if self.left_bytes[job] > 0 and grant.speeds[row] > 0:
                speed_bytes = float(grant.speeds[row]) * length_s
                io_bytes = float(grant.ios[row]) * length_s
                turn = _Turn(job, speed_bytes, io_bytes, at_s, length_s)
                read[row], missed[row] = self._read(turn, events)
        return BeatProgress(sorted(events, key=lambda event: event.at_s), read, missed)

    def _read(self, turn: _Turn, events: list[Event]) -> tuple[float, float]:
        """Read in order until the speed or the remote IO of the beat is used up."""
        reader, left = self._readers[turn.job], float(self.left_bytes[turn.job])
        reader.speed_credit += turn.speed_bytes
        reader.io_credit += turn.io_bytes
        size, read, missed = reader.item_bytes, 0, 0
        while left > 0 and reader.speed_credit >= size:
            item = self._next(reader)
            is_hit = item in self._held[reader.dataset]
            if not is_hit and reader.io_credit < size:
                reader.speed_credit = min(reader.speed_credit, size)
                break
            self._take(reader, item, is_hit)
            reader.speed_credit -= size
            reader.io_credit -= 0.0 if is_hit else size
            read, missed, left = read + 1, missed + (not is_hit), left - size
            if left <= size / 2:
                left = 0.0
            if reader.read_in_epoch == ITEMS:
                events.append(Event(turn.at(read * size), EventKind.EPOCH, turn.job))
                self._begin_epoch(reader)
        if left == 0:
            events.append(Event(turn.at(read * size), EventKind.END, turn.job))
            self._started[reader.dataset].remove(reader)
        self.left_bytes[turn.job] = left
        reader.io_credit = min(reader.io_credit, FETCHED_AHEAD * size)
        return read * size, missed * size

    def _next(self, reader: _Reader) -> int:
        if reader.job.repeats_items and not reader.order:
            reader.order.append(self._chance.randrange(ITEMS))
        return reader.order[-1]

    def _take(self, reader: _Reader, item: int, is_hit: bool) -> None:
        reader.order.pop()
        reader.read_in_epoch += 1
        if reader.unread[item]:
            reader.unread[item] = 0
            reader.unread_held -= is_hit
        if self._lru_bytes is not None:
            self._use(reader, item)
        elif not is_hit:
            held = self._held[reader.dataset]
            if (len(held) + 1) * reader.item_bytes <= self._quotas[reader.dataset] * (1 + 1e-9):
                self._admit(reader.dataset, item)

    def _use(self, reader: _Reader, item: int) -> None:
        """Make an item the most recently used one of the pool, and evict what exceeds it."""
        key = reader.dataset, item
        if key in self._recency:
            self._recency.move_to_end(key)
            return
        self._admit(reader.dataset, item)
        self._recency[key] = reader.item_bytes
        self._pool_bytes += reader.item_bytes
        assert self._lru_bytes is not None
        while self._pool_bytes > self._lru_bytes:
            (dataset, oldest), size = self._recency.popitem(last=False)
            self._pool_bytes -= size
            self._evict(dataset, oldest)

    def _admit(self, dataset: int, item: int) -> None:
        self._held[dataset][item] = None
        for reader in self._started[dataset]:
            if reader.unread[item]:
                reader.unread_held += 1
                reader.effective_count += 1
                reader.effective[item] = 1

    def _evict(self, dataset: int, item: int) -> None:
        del self._held[dataset][item]
        for reader in self._started[dataset]:
            reader.unread_held -= reader.unread[item]
            reader.effective_count -= reader.effective[item]
            reader.effective[item] = 0

    def _obey(self) -> None:
        for dataset, held in enumerate(self._held):
            readers = self._started[dataset]
            if held and not readers and self._quotas[dataset] == 0:
                held.clear()
            elif held and readers:
                kept = int(self._quotas[dataset] / readers[0].item_bytes + 1e-6)
                excess = max(0, len(held) - kept)
                for item in self._chance.sample(list(held), excess) if excess else ():
                    self._evict(dataset, item)

    def _begin_epoch(self, reader: _Reader) -> None:
        reader.read_in_epoch = 0
        if reader.job.repeats_items:
            return
        reader.order = list(range(ITEMS))
        self._chance.shuffle(reader.order)
        reader.unread = bytearray(b"\1") * ITEMS
        held = self._held[reader.dataset]
        reader.unread_held = reader.effective_count = len(held)
        reader.effective = bytearray(ITEMS)
        for item in held:
            reader.effective[item] = 1

    def _effective_bytes(self, reader: _Reader) -> float:
        """Return the effective bytes, scaled to the dataset by what is unread if that differs.

        A job alone with its quota has read as many of them as others, so they are counted. What an
        LRU pool or other jobs have cached is hit the more often the later it is read.
        """
        held = len(self._held[reader.dataset])
        if reader.job.repeats_items:
            return held * reader.item_bytes
        if self._lru_bytes is None and len(self._started[reader.dataset]) == 1:
            return reader.effective_count * reader.item_bytes
        return reader.unread_held / max(1, len(reader.order)) * reader.job.dataset_bytes


@dataclass(frozen=True, slots=True)
class _Turn:
    """A job's part of a beat."""

    job: int
    speed_bytes: float
    io_bytes: float
    at_s: float
    length_s: float

    def at(self, read_bytes: float) -> float:
        """Return when so much was read, as if all of the beat had been read at full speed."""
        return self.at_s + self.length_s * min(1.0, read_bytes / max(1.0, self.speed_bytes))
