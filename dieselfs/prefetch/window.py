"""The window of the prefetcher: the chunks of known orders that are fetched and not read yet.

It decides from values what to fetch, and has no thread, no clock and no input or output. The
prefetcher passes in what has happened. The decisions follow from three numbers: how far the readers
are, how fast they go, and how fast chunks arrive (`rate_estimate`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.ports.block import CacheBlock, blocks_of, is_whole
from dieselfs.errors import CacheFull, MasterGone
from dieselfs.prefetch.chunk_uses import ChunkUses, interleaved, rest_of
from dieselfs.prefetch.planner import Readers
from dieselfs.prefetch.rate_estimate import RateEstimate
from dieselfs.prefetch.requirement import FETCHES
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

_LOOKAHEAD: Final = 4096
_LARGE_PASSED: Final = 8
"""The most large files without room behind which a chunk is fetched nevertheless."""
_WAITING, _UNDER_WAY, _CACHED, _RELEASED = range(4)


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """The common order of several readers, with the chunks that it needs."""

    readers: Readers
    inodes: npt.NDArray[np.uint32]
    group_start: npt.NDArray[np.int64]
    """The starts of the groups among the inodes, as in `ReadingPlan`."""
    uses: ChunkUses
    names: Sequence[Sequence[str]]
    """The names of the cache blocks of each of the `uses`."""
    blocks: Callable[[int], Sequence[CacheBlock]]
    """Returns the cache blocks of a chunk by its number: one, or those of its large file."""

    @classmethod
    def of(cls, readers: Readers) -> PlannedOrder:
        """Lay out the order of the readers: 0.3 s for 1.28 million files."""
        rests = [rest_of(reader.plan.order, reader.start) for reader in readers]
        snapshot, joined = readers[0].plan.snapshot, interleaved(rests)
        uses = ChunkUses.of(snapshot, joined.inodes)
        blocks = partial(blocks_of_chunk, snapshot)
        names = [[block.name for block in blocks(number)] for number in uses.chunks.tolist()]
        return cls(readers, joined.inodes, joined.group_start, uses, names, blocks)


def blocks_of_chunk(snapshot: Snapshot, number: int) -> list[CacheBlock]:
    """Return the cache blocks that hold a chunk."""
    chunk = snapshot.chunk(number)
    if is_whole(chunk):
        return [CacheBlock(chunk)]
    files = map(snapshot.extent, snapshot.files_in_chunk(number))
    return [block for file in files for block, _ in blocks_of(file, 0, file.length)]


@dataclass(frozen=True, slots=True)
class FollowedOrder:
    """An order that is read, and how far it is."""

    order: PlannedOrder
    position: int
    """Files that the slowest reader has read."""
    requested: int
    """The uses, from the first one on, whose chunks were requested or need no request."""
    bytes_per_s: float
    """The measured rate of the readers; 0: not known."""


@dataclass(frozen=True, slots=True)
class PrefetchStatistics:
    """Counters since the prefetcher began, unless stated otherwise."""

    files: int = 0
    """Files in the order that is read now."""
    position: int = 0
    """The number of these files that are read now."""
    window_bytes: int = 0
    """The current bytes of this order that are not read yet.

    They are being fetched, in node memory, or outside of it.
    """
    under_way: int = 0
    """The current number of chunks that are being fetched."""
    fetched: int = 0
    """Chunks that were prefetched, or found in node memory when their turn came."""
    late: int = 0
    """Fetched chunks that arrived when the readers had already reached their first file."""
    skipped: int = 0
    """Chunks that could not be prefetched: their readers get them, or the error."""
    no_room: int = 0
    """Times that node memory had no room for a chunk whose turn it was."""
    consumption_bytes_per_s: float = 0.0
    """The rate measured while readers read."""
    arrival_bytes_per_s: float = 0.0
    """The rate measured while a fetch was under way."""
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedFetch:
    """A chunk to fetch."""

    use: int
    """The number of its use, counted from the first order."""
    blocks: Sequence[CacheBlock]
    payload_bytes: int
    requested_at: float

    @property
    def chunk(self) -> ChunkRef:
        """The chunk, which all blocks are of."""
        return self.blocks[0].chunk


@dataclass(frozen=True, slots=True)
class Fetched:
    """The end of a fetch."""

    fetch: PlannedFetch
    at: float
    error: Exception | None = None


class Window:
    """The states of the uses of all known orders, which lie one after the other, as columns."""

    def __init__(self, now: float) -> None:
        """Create it without an order."""
        self.position = 0
        """Files of the first order that have been read."""
        self.under_way = 0
        """Chunks that are being fetched."""
        self.is_expectation_current = False
        """False if node memory must be told again which uses to expect."""
        self.rates = RateEstimate(now)
        self._finished_uses = 0
        """The uses of orders that are over.

        A use's number counts from the first order ever, its index from the one that is read now.
        """
        self.bytes = 0
        """The bytes that are under way or cached."""
        self._finished_bytes = self._leading_position = 0
        self._expected: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """The indices of the uses that node memory expects."""
        self._expected_ends: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """The number of blocks up to the end of each of them."""
        self._expected_used = 0
        self._fetched = self._late = self._skipped = self._no_room = 0
        self._state = np.empty(0, np.uint8)
        self._lay_out([])

    @property
    def files(self) -> int:
        """The files of the first order."""
        return self._orders[0].uses.files if self._orders else 0

    def statistics(self, window_bytes: int) -> PrefetchStatistics:
        """Return the counters, with the size that the caller shows."""
        return PrefetchStatistics(
            files=self.files,
            position=self.position,
            window_bytes=window_bytes,
            under_way=self.under_way,
            fetched=self._fetched,
            late=self._late,
            skipped=self._skipped,
            no_room=self._no_room,
            consumption_bytes_per_s=self.rates.consumption,
            arrival_bytes_per_s=self.rates.arrival,
            latency_s=self.rates.latency,
        )

    # The orders

    def begin(self, order: PlannedOrder) -> None:
        """Start an order in place of all known ones."""
        self._leave(len(self._state))
        self._lay_out([order])

    def add(self, order: PlannedOrder) -> None:
        """Add an order that comes after the last known one."""
        self._lay_out([*self._orders, order])

    def advance(self) -> PlannedOrder:
        """Change to the next order and return it. Its fetched chunks stay."""
        self._leave(len(self._orders[0].uses))
        self._lay_out(self._orders[1:])
        return self._orders[0]

    def followed(self) -> FollowedOrder | None:
        """Return the order that is read now, and how far it is. Any thread may call it."""
        for _ in range(2):  # another order may begin between two looks
            orders, position, next_use = self._orders, self.position, self._next
            if orders and orders is self._orders:
                requested = min(next_use, len(orders[0].uses))
                return FollowedOrder(orders[0], position, requested, self.rates.consumption)
        return None

    def cached(self) -> Iterator[int]:
        """Return the chunks of the first order that have arrived and are not released."""
        is_cached = self._state[: len(self._orders[0].uses)] == _CACHED
        return iter(self._number[np.flatnonzero(is_cached)].tolist())

    def _leave(self, uses: int) -> None:
        is_cached = self._state[:uses] == _CACHED
        self.bytes -= int(self._payload[:uses][is_cached].sum())
        self._finished_bytes += int(self._read_bytes[self.position])
        self._finished_uses += uses
        self._state = self._state[uses:]
        self.position = self._leading_position = 0

    def _lay_out(self, orders: list[PlannedOrder]) -> None:
        """Lay out the columns; the states of the first uses are kept."""
        uses = [order.uses for order in orders]
        begins = np.cumsum([0, *(use.files for use in uses)])
        self._number = _joined(use.chunks for use in uses)
        self._first = _joined(use.first + at for use, at in zip(uses, begins, strict=False))
        self._payload = _joined(use.payload_bytes for use in uses)
        self._to_fetch = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._payload)])
        lengths = _joined(np.diff(use.read_bytes) for use in uses)
        self._read_bytes = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        state = np.full(len(self._number), _WAITING, np.uint8)
        state[: len(self._state)] = self._state
        self._state = state
        self._index_of = {} if not uses else {c: i for i, c in enumerate(uses[0].chunks.tolist())}
        self._next = 0
        self._orders = orders
        self.is_expectation_current = False

    # The readers

    def move(self, position: int, leading_position: int, now: float) -> None:
        """Note how far the readers are; the leading one is no less far than the others."""
        self.position = min(position, self.files)
        self._leading_position = min(max(leading_position, self.position), self.files)
        self.rates.consumed(self._finished_bytes + int(self._read_bytes[self.position]), now)

    def release(self, chunks: Sequence[int]) -> None:
        """Note that node memory need not keep these chunks for the first order."""
        for chunk in chunks:
            index = self._index_of[chunk]
            if self._state[index] == _CACHED:
                self.bytes -= int(self._payload[index])
            self._state[index] = _RELEASED

    def reclaim(self, chunks: Sequence[int]) -> None:
        """Note that node memory needs these chunks again, which were released too early."""
        for chunk in chunks:
            index = self._index_of[chunk]
            if self._state[index] == _RELEASED:
                self._state[index] = _WAITING
                self._next = min(self._next, index)
                self.is_expectation_current = False

    # The expectations of node memory

    def expectation(self) -> list[str]:
        """Return the blocks of the uses to come, in order, which node memory is told to expect."""
        self._expected, self._expected_used = np.flatnonzero(self._state != _RELEASED), 0
        self.is_expectation_current = True
        names = [names for order in self._orders for names in order.names]
        expected = [names[index] for index in self._expected.tolist()]
        self._expected_ends = np.cumsum([len(each) for each in expected], dtype=np.int64)
        return [name for each in expected for name in each]

    def newly_used(self) -> int:
        """Return how many of the expected blocks are over, if that are more than before, else 0.

        They are those up to the first that is not released.
        """
        left = np.flatnonzero(self._state[self._expected[self._expected_used :]] != _RELEASED)
        newly = int(left[0]) if len(left) else len(self._expected) - self._expected_used
        self._expected_used += newly
        return int(self._expected_ends[self._expected_used - 1]) if newly else 0

    def expects_finished_uses(self) -> bool:
        """Return whether node memory expects uses that are over, since one before them is not."""
        return bool((self._state[self._expected[self._expected_used :]] == _RELEASED).any())

    def exceeds(self, room_bytes: int) -> bool:
        """Return whether all chunks of the known orders are more than `room_bytes`."""
        return int(self._to_fetch[-1]) > room_bytes

    # The fetches

    def due(self, budget_bytes: int, outside_bytes: int, now: float) -> Iterator[PlannedFetch]:
        """Yield the chunks to request now.

        The window and `outside_bytes` stay within the budget; a larger chunk is fetched alone. A
        large file waits until there is room for all of it; smaller chunks pass meanwhile. One that
        is larger than the budget is left to its readers.
        """
        index, passed = self._first_waiting(self._next), 0
        self._next = index
        while self.under_way < FETCHES and index < len(self._state) and self._is_due(index):
            size, taken = int(self._payload[index]), self.bytes + outside_bytes
            is_large = size > MAX_WHOLE_BYTES
            if is_large and size > budget_bytes:
                self._state[index] = _RELEASED
                self._skipped += 1
            elif (not taken or taken + size <= budget_bytes) and not (is_large and passed):
                yield self._request(index, size, now)
            elif is_large and passed < _LARGE_PASSED:
                passed += 1
            else:
                return
            index = self._first_waiting(index + 1)
            if not passed:
                self._next = index

    def _first_waiting(self, index: int) -> int:
        while index < len(self._state) and self._state[index] != _WAITING:
            index += 1
        return index

    def _request(self, index: int, size: int, now: float) -> PlannedFetch:
        if not self.under_way:
            self.rates.begun(now)
        self._state[index] = _UNDER_WAY
        self.under_way += 1
        self.bytes += size
        blocks = self._orders[0].blocks(int(self._number[index]))
        return PlannedFetch(self._finished_uses + index, blocks, size, now)

    def ended(self, fetched: Fetched, now: float) -> int | None:
        """Note the end of a fetch; return the chunk if it has arrived for the first order."""
        fetch, error = fetched.fetch, fetched.error
        index, size = fetch.use - self._finished_uses, fetch.payload_bytes
        is_planned = index >= 0 and self._state[index] == _UNDER_WAY
        self.under_way -= 1
        if error is None:
            self._fetched += 1
            self.rates.arrived(size, fetched.at - fetch.requested_at, now, self.under_way > 0)
        if error is not None or not is_planned:
            self.bytes -= size
        if not is_planned:
            return None
        if error is None:
            self._state[index] = _CACHED
            self._late += bool(self._first[index] < self._leading_position)
            return int(self._number[index]) if index < len(self._orders[0].uses) else None
        if isinstance(error, CacheFull | MasterGone):
            self._state[index] = _WAITING
            self._next = min(self._next, index)
            self._no_room += isinstance(error, CacheFull)
        else:
            log.warning("cannot prefetch chunk %s: %s", fetch.chunk.id, error)
            self._skipped += 1
            self._state[index] = _RELEASED
        return None

    def _is_due(self, index: int) -> bool:
        coming = slice(index, index + _LOOKAHEAD)
        until_use = self._read_bytes[self._first[coming]] - self._read_bytes[self._leading_position]
        end = self._to_fetch[index + 1 : index + 1 + _LOOKAHEAD]
        return self.rates.is_due(until_use, end - self._to_fetch[index])


def _joined(columns: Iterable[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *columns])
