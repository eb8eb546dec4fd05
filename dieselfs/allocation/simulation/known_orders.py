"""Replays of jobs that tell their orders, with the eviction policies of node memory.

A job that reads each item once an epoch hits at most c/d of them: a hit is of an item that was
cached when the epoch began. So no policy does better than uniform caching, Belady's included. The
bound does not hold for jobs that share a dataset, since an item that one job has just read may be
kept for another one that reads it soon, nor for draws with replacement from a known seed.

Jobs take turns by their speeds. Each tells the rest of its present epoch and the next one, as a
prefetcher does, and how far it is. All items have the same size.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dieselfs.cache.advice.optimum import belady_hits
from dieselfs.cache.node.block_eviction import EvictionPolicy, policy_of
from dieselfs.cache.node.planned_eviction import FarthestNextUse, KnownOrder, MergedOrders

Rule = Literal["plan", "uniform", "lru"]
"""The eviction: by the orders that jobs tell, or by a policy that knows none."""
_WARM_EPOCHS = 2


@dataclass(frozen=True, slots=True)
class SharedReads:
    """Jobs that read one dataset of `items` items side by side."""

    items: int = 1000
    speeds: Sequence[float] = (1.0, 1.0)
    """A job each; only their ratios matter."""
    epochs: int = 6
    """Epochs of the slowest job; the first two are not counted."""
    draws: bool = False
    """True: each epoch draws its items with replacement."""
    tells_next: bool = True
    """True: the next epoch's order is told before the present one is over."""
    jitter: float = 0.0
    """The part by which the time of each read differs from that of its job's speed, up to 1."""
    seed: int = 1

    def orders(self) -> list[list[list[int]]]:
        """Return the items of each job and epoch."""
        chance = np.random.default_rng(self.seed)
        return [[self._epoch(chance) for _ in range(count)] for count in self._epochs_of_jobs()]

    def turns(self) -> list[int]:
        """Return which job reads next, until one of them has read everything."""
        chance = np.random.default_rng(self.seed)
        line = [(float(chance.random()) / speed, job) for job, speed in enumerate(self.speeds)]
        heapq.heapify(line)
        left = [count * self.items for count in self._epochs_of_jobs()]
        found: list[int] = []
        while left[line[0][1]]:
            at, job = line[0]
            left[job] -= 1
            found.append(job)
            gap = 1 + self.jitter * (2 * float(chance.random()) - 1)
            heapq.heapreplace(line, (at + gap / self.speeds[job], job))
        return found

    def warm(self, turns: Sequence[int]) -> int:
        """Return the turns that are not counted."""
        return len(turns) * _WARM_EPOCHS // self.epochs

    def _epochs_of_jobs(self) -> list[int]:
        return [round(self.epochs * speed / min(self.speeds)) for speed in self.speeds]

    def _epoch(self, chance: np.random.Generator) -> list[int]:
        found: list[int] = (
            chance.integers(0, self.items, self.items).tolist()
            if self.draws
            else chance.permutation(self.items).tolist()
        )
        return found


def belady_share(reads: SharedReads, memory: int) -> float:
    """Return the hit share of Belady's optimum, which knows all orders and whose turn it is."""
    orders = [_joined(epochs) for epochs in reads.orders()]
    turns = reads.turns()
    warm = reads.warm(turns)
    keys, ones = [next(orders[job]) for job in turns], [1] * len(turns)
    counted = belady_hits(keys, ones, memory) - belady_hits(keys[:warm], ones[:warm], memory)
    return counted / (len(turns) - warm)


def fetched_share(reads: SharedReads, memory: int, rule: Rule, window: int = 0) -> float:
    """Return the items that leave the store, over the items that are read.

    The memory has room for so many items. Each job's items are fetched `window` items ahead of its
    reader, and that has its room in the memory too. Takes 10 µs an item.
    """
    replayed, turns = _Replay(reads, memory, rule, window), reads.turns()
    warm = reads.warm(turns)
    for job in turns[:warm]:
        replayed.read(job)
    before = replayed.fetched
    for job in turns[warm:]:
        replayed.read(job)
    return (replayed.fetched - before) / (len(turns) - warm)


def epoch_course(reads: SharedReads, memory: int, rule: Rule, parts: int) -> list[float]:
    """Return the share of the reads that miss in each part of an epoch, for one job.

    Nothing is fetched ahead. The first two epochs are not counted.
    """
    replayed = _Replay(reads, memory, rule, window=0)
    missed = [0] * parts
    for epoch in range(reads.epochs):
        for part in range(parts):
            before = replayed.fetched
            for _ in range(reads.items // parts):
                replayed.read(0)
            missed[part] += (replayed.fetched - before) * (epoch >= _WARM_EPOCHS)
    counted = (reads.epochs - _WARM_EPOCHS) * (reads.items // parts)
    return [each / counted for each in missed]


class ItemMemory:
    """A memory of equal items with an eviction policy."""

    def __init__(self, policy: EvictionPolicy, room: int) -> None:
        self._policy, self._room = policy, room
        self._held: set[str] = set()

    def read(self, name: str) -> bool:
        """Note a use; return whether it is a hit."""
        is_hit = name in self._held
        if is_hit:
            self._policy.use(name)
        return is_hit

    def admit(self, name: str) -> bool:
        """Cache an item that was fetched; return False if there is no room for it."""
        if len(self._held) >= self._room:
            for victim in self._policy.victims(name, 1, _is_mapped, ahead=False):
                self._policy.remove(victim)
                self._held.remove(victim)
        if len(self._held) >= self._room:
            return False
        self._policy.add(name, 1, ahead=False)
        self._held.add(name)
        return True

    def change_policy(self, policy: EvictionPolicy) -> None:
        """Evict by another policy from now on."""
        self._policy = policy
        for name in self._held:
            policy.add(name, 1, ahead=False)

    def __contains__(self, name: str) -> bool:
        return name in self._held


class OrderedItems:
    """A memory whose only reader has one order."""

    def __init__(self, names: Sequence[str], rule: Rule, room: int) -> None:
        self._plan = FarthestNextUse(KnownOrder(names)) if rule == "plan" else None
        policy = policy_of("lru" if rule == "lru" else "uniform")
        self._memory = ItemMemory(self._plan or policy, room)
        self._names, self._used = names, 0

    def read_next(self) -> bool:
        """Read the next item, and cache it if it may be; return whether it was a hit."""
        name = self._names[self._used]
        self._used += 1
        is_hit = self._memory.read(name)
        if self._plan is not None:
            self._plan.progress(self._used)
        if not is_hit:
            self._memory.admit(name)
        return is_hit


class _Replay:
    """Jobs that read through one memory."""

    def __init__(self, reads: SharedReads, memory: int, rule: Rule, window: int) -> None:
        """Without orders only the room of the windows matters, and not what is in them."""
        self._reads = reads
        self._left = [iter(epochs) for epochs in reads.orders()]
        """The epochs that each job has not told yet."""
        self._coming: list[list[str]] = [[] for _ in reads.speeds]
        """The items that each job has told last: an epoch, and the next one if it tells that."""
        self._at = [reads.items for _ in reads.speeds]
        self._orders: dict[int, KnownOrder] | None = {} if rule == "plan" else None
        self._plan: FarthestNextUse | None = None
        self._window = window if rule == "plan" else 0
        room = memory if rule == "plan" else memory - window * len(reads.speeds)
        self._memory = ItemMemory(policy_of("lru" if rule == "lru" else "uniform"), room)
        self.fetched = 0

    def read(self, job: int) -> None:
        """Have a job read its next item, and fetch what comes into its window."""
        if self._at[job] == self._reads.items:
            self._begin_epoch(job)
        at, coming = self._at[job], self._coming[job]
        if self._window and at + self._window < len(coming):
            ahead = coming[at + self._window]
            self.fetched += ahead not in self._memory and self._memory.admit(ahead)
        self._at[job] = at + 1
        is_hit = self._memory.read(coming[at])
        if self._plan is not None:
            self._plan.progress(at + 1, job)
        if not is_hit:
            self.fetched += 1
            self._memory.admit(coming[at])

    def _begin_epoch(self, job: int) -> None:
        """Tell the orders that are known now."""
        items = self._reads.items
        known = self._coming[job][items:]
        for epoch in self._left[job]:
            known += map(str, epoch)
            if len(known) > items * self._reads.tells_next:
                break
        self._coming[job], self._at[job] = known, 0
        if self._orders is None:
            return
        order = KnownOrder(known)
        if job in self._orders:
            order.recent_uses = self._orders[job].recent_uses
        self._orders[job] = order
        uses = order if len(self._orders) == 1 else MergedOrders(self._orders)
        self._plan = FarthestNextUse(uses)
        self._memory.change_policy(self._plan)


def _joined(epochs: Sequence[Sequence[int]]) -> Iterator[int]:
    return (item for epoch in epochs for item in epoch)


def _is_mapped(name: str) -> bool:
    return False
