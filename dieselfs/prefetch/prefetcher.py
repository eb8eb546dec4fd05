"""The prefetcher: it fetches the chunks of a known order into node memory before they are read.

The design is in docs/decisions/0007-plan.md. One thread decides, a few fetch. The decisions follow
from three numbers: how far the readers are, how fast they go, and how fast chunks arrive
(`rate_estimate`). The `ProgressTracker` says what readers do with a chunk that has arrived, and
when node memory need not keep it for them.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.errors import CacheFull, MasterGone
from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.prefetch.rate_estimate import RateEstimate

log = logging.getLogger(__name__)

FETCHES: Final = 8
"""The most fetches at a time.

The store's own limit finds out how many of them the store can handle
(`chunkstore.stores.adaptive_limit`).
"""
_INTERVAL_S: Final = 0.02
"""The time between two checks of readers whose position is a word in memory.

3 MiB are read meanwhile from a disk of 150 MB/s.
"""
_GATHER_S: Final = 0.001
"""The time for which events are gathered before a step.

A step costs 0.2 ms, and chunks from memory arrive at 1,000 a second and more.
"""
_LEAST_INTERVAL_S: Final = 0.002
_LOOKS_A_WINDOW: Final = 16
"""The least checks while readers use up the whole budget.

Faster readers are checked more often: from peers' memory chunks arrive at GB/s.
"""
_LOOKAHEAD: Final = 4096
_RETRY_S: Final = 0.05
_WAITING, _UNDER_WAY, _CACHED, _RELEASED = range(4)


class PlannedMemory(Protocol):
    """The part of node memory that is needed here.

    See `dieselfs.cache.task.node_memory.NodeMemory`.
    """

    def fetch(self, chunks: Sequence[ChunkRef]) -> None:
        """Return when the chunks are in node memory."""
        ...

    def expect(self, chunks: Sequence[ChunkId]) -> None:
        """Expect the uses of these chunks, in order; [] ends it."""
        ...

    def progress(self, used: int) -> None:
        """Note that the first `used` of the expected uses are over."""
        ...


class ProgressTracker(Protocol):
    """The progress of the readers of an order.

    The prefetcher's one thread calls it, unless stated otherwise.
    """

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        """Track this order from now on."""
        ...

    def position(self) -> int:
        """Return how many files of the order have certainly been read.

        It is also the moment to do work that has become due.
        """
        ...

    def leading_position(self) -> int:
        """Return how many files of the order the fastest reader may have read.

        The value is as of the last `position`, and no less than that.
        """
        ...

    def arrived(self, chunk: int) -> None:
        """Note that a chunk of the order is in node memory."""
        ...

    def released(self) -> Sequence[int]:
        """Return the chunks that node memory need not keep for this order, since the last call."""
        ...

    def outside_bytes(self) -> int:
        """Return the bytes of the order that readers keep outside of node memory.

        They count in the same budget. Any thread may call it.
        """
        ...

    def wake_fds(self) -> Sequence[int]:
        """Return descriptors that are readable when there is something new.

        `position` reads them empty. It is called once, after `begin`.
        """
        ...

    def close(self) -> None:
        """Track no more. Any thread may call it, also again."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """One order with the chunks that it needs."""

    inodes: npt.NDArray[np.uint32]
    uses: ChunkUses


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


class Prefetcher:
    """The prefetching of one order and its successors.

    End it with `close`; its threads do not keep the process alive.
    """

    def __init__(
        self,
        memory: PlannedMemory,
        readers: ProgressTracker,
        chunk: Callable[[int], ChunkRef],
        budget_bytes: Callable[[], int],
        order: PlannedOrder,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`chunk` returns a chunk by its number.

        `budget_bytes` bounds node memory and the bytes that readers keep outside of it, together.
        """
        self._memory, self._readers, self._chunk = memory, readers, chunk
        self._budget_bytes, self._clock = budget_bytes, clock
        self._rates = RateEstimate(clock())
        self._state = np.empty(0, np.uint8)
        self._finished_uses = 0
        """The uses of orders that are over.

        A use's number counts from the first order, its index from the one that is read now.
        """
        self._lay_out([order])
        self._position = self._leading_position = self._finished_bytes = 0
        self._expected: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """The indices of the uses that node memory expects."""
        self._expected_used = 0
        self._is_expectation_current = False
        self._under_way = self._window_bytes = 0
        self._fetched = self._late = self._skipped = self._no_room = 0
        self._retry_at = 0.0
        # Other threads hand these in; each access is one step for the interpreter.
        self._new_orders: deque[PlannedOrder] = deque()
        self._results: deque[_Result] = deque()
        self._advance_requested = self._closing = self._stopped = False
        self._on_end: Callable[[], None] = lambda: None
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_lock = threading.Lock()
        # If a fetch hangs, its thread keeps this object. The last such thread closes the
        # descriptor.
        self._close_wake = weakref.finalize(self, os.close, self._wake_fd)
        self._close_wake.atexit = False
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="prefetcher", daemon=True)
        self._fetchers = [
            threading.Thread(target=self._fetch_all, name=f"prefetch-{n}", daemon=True)
            for n in range(FETCHES)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in (self._thread, *self._fetchers):
            thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """End, and close the progress tracker. It may be called again.

        A fetch that takes longer than `timeout_s` ends by itself later.
        """
        self._closing = True
        self._wake()
        for _ in self._fetchers:
            self._tasks.put(None)
        deadline = time.monotonic() + timeout_s
        threads = [thread for thread in (self._thread, *self._fetchers) if thread.is_alive()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in threads):
            self._readers.close()
            with self._wake_lock:
                self._close_wake()

    def stop(self, on_end: Callable[[], None] = lambda: None) -> None:
        """End, without waiting for it.

        At the end node memory expects nothing any more, and `on_end` is called.
        """
        self._on_end = on_end
        self._stopped = self._closing = True
        self._wake()

    @property
    def is_running(self) -> bool:
        """True until it ends or fails, or `stop` or `close` is called."""
        return self._thread.is_alive() and not self._closing

    def add_order(self, order: PlannedOrder) -> None:
        """Add an order that comes after the last known one."""
        self._new_orders.append(order)
        self._wake()

    def advance(self) -> None:
        """Note that the readers have reached the next order.

        `ProgressTracker.position` may call it.
        """
        self._advance_requested = True
        self._wake()

    @property
    def is_advancing(self) -> bool:
        """True between a call of `advance` and the change to the next order."""
        return self._advance_requested

    def statistics(self) -> PrefetchStatistics:
        """Return the counters."""
        return PrefetchStatistics(
            files=self._orders[0].uses.files,
            position=self._position,
            window_bytes=self._window_bytes + self._readers.outside_bytes(),
            under_way=self._under_way,
            fetched=self._fetched,
            late=self._late,
            skipped=self._skipped,
            no_room=self._no_room,
            consumption_bytes_per_s=self._rates.consumption,
            arrival_bytes_per_s=self._rates.arrival,
            latency_s=self._rates.latency,
        )

    # The methods below run in the thread that decides.

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        try:
            self._begin(self._orders[0])
            for fd in self._readers.wake_fds():
                poll.register(fd, select.POLLIN)
            while not self._closing:
                self._step()
                poll.poll(self._interval_s() * 1000)
                time.sleep(_GATHER_S)  # later events are handled in the same step
                self._clear_wake()
        except Exception as error:
            if not self._closing:
                log.warning("prefetching of the plan has failed: %s", error, exc_info=error)
        finally:
            self._end()

    def _interval_s(self) -> float:
        """Return the time until the readers are checked again if nothing happens before."""
        if not self._rates.consumption:
            return _INTERVAL_S
        window_s = self._budget_bytes() / self._rates.consumption
        return min(max(window_s / _LOOKS_A_WINDOW, _LEAST_INTERVAL_S), _INTERVAL_S)

    def _end(self) -> None:
        for _ in self._fetchers:
            self._tasks.put(None)
        self._readers.close()
        if self._stopped:
            try:
                self._memory.expect([])
            except MasterGone as error:
                log.debug("cannot end the expected uses, since there is no master: %s", error)
            self._on_end()

    def _step(self) -> None:
        now = self._clock()
        while self._results:
            self._handle_result(self._results.popleft(), now)
        if self._new_orders:
            self._lay_out([*self._orders, self._new_orders.popleft()])
            self._is_expectation_current = False
        self._position = min(self._readers.position(), self._orders[0].uses.files)
        if self._closing:
            return
        if self._advance_requested and self._orders[1:]:
            self._begin_next()
        files = self._orders[0].uses.files
        self._leading_position = min(max(self._readers.leading_position(), self._position), files)
        self._rates.consumed(self._finished_bytes + int(self._read_bytes[self._position]), now)
        released = self._readers.released()
        for chunk in released:
            self._release(chunk)
        if released:
            # Readers may divide memory of their own when node memory knows of it.
            self._wake()
        if (
            self._is_expectation_current
            and self._outside_exceeds_room()
            and self._expects_finished_uses()
        ):
            # The bytes are outside, and node memory is about to get less room.
            self._is_expectation_current = False
        self._report_progress(now)
        if now >= self._retry_at:
            self._request_due(now)

    def _lay_out(self, orders: list[PlannedOrder]) -> None:
        """Lay out the uses of all known orders one after the other, as columns.

        The states of the first uses are kept.
        """
        self._orders = orders
        uses = [order.uses for order in orders]
        begins = np.cumsum([0, *(use.files for use in uses)])
        self._number = np.concatenate([use.chunks for use in uses])
        self._first = np.concatenate(
            [use.first + at for use, at in zip(uses, begins[:-1], strict=True)]
        )
        self._payload = np.concatenate([use.payload_bytes for use in uses])
        self._to_fetch = np.concatenate([[0], np.cumsum(self._payload)])
        self._read_bytes = uses[0].read_bytes
        for use in uses[1:]:
            later = self._read_bytes[-1] + use.read_bytes[1:]
            self._read_bytes = np.concatenate([self._read_bytes, later])
        state = np.full(len(self._number), _WAITING, np.uint8)
        state[: len(self._state)] = self._state
        self._state = state
        self._ids = [self._chunk(number).id for number in self._number.tolist()]
        self._index_of = {chunk: index for index, chunk in enumerate(uses[0].chunks.tolist())}
        self._next = 0

    def _begin(self, order: PlannedOrder) -> None:
        self._is_expectation_current = False
        self._readers.begin(order.inodes, order.uses)

    def _begin_next(self) -> None:
        """Change to the next order: chunks that were fetched for it are handed over now."""
        over = self._orders[0].uses
        cached = self._state[: len(over)] == _CACHED
        self._window_bytes -= int(self._payload[: len(over)][cached].sum())
        self._finished_bytes += int(self._read_bytes[self._position])
        self._finished_uses += len(over)
        self._state = self._state[len(over) :]
        self._lay_out(self._orders[1:])
        self._position = 0
        self._advance_requested = False
        self._begin(self._orders[0])
        for index in np.flatnonzero(self._state[: len(self._orders[0].uses)] == _CACHED):
            self._readers.arrived(int(self._number[index]))

    def _release(self, chunk: int) -> None:
        index = self._index_of[chunk]
        if self._state[index] == _CACHED:
            self._window_bytes -= int(self._payload[index])
        self._state[index] = _RELEASED

    def _report_progress(self, now: float) -> None:
        """Report to node memory what is expected, and how much of that is over."""
        if not self._is_expectation_current and now < self._retry_at:
            return
        try:
            if not self._is_expectation_current:
                self._expected, self._expected_used = np.flatnonzero(self._state != _RELEASED), 0
                self._memory.expect([self._ids[index] for index in self._expected.tolist()])
                self._is_expectation_current = True
            used = self._expected_used + self._count_over()
            if used > self._expected_used:
                self._expected_used = used
                self._memory.progress(used)
        except MasterGone as error:
            self._lose_master(error, now)

    def _count_over(self) -> int:
        """Return how many remaining expected uses are released, up to the first that is not."""
        left = np.flatnonzero(self._state[self._expected[self._expected_used :]] != _RELEASED)
        return int(left[0]) if len(left) else len(self._expected) - self._expected_used

    def _outside_exceeds_room(self) -> bool:
        """Return whether the outside bytes leave node memory less than all known orders need."""
        outside = self._readers.outside_bytes()
        return bool(outside) and outside + int(self._to_fetch[-1]) > self._budget_bytes()

    def _expects_finished_uses(self) -> bool:
        """Return whether node memory expects uses that are over, since one before them is not.

        Only uses that node memory knows of count.
        """
        return bool((self._state[self._expected[self._expected_used :]] == _RELEASED).any())

    def _lose_master(self, error: Exception, now: float) -> None:
        """Note that the next master knows nothing of the plan."""
        log.debug("node memory has no master: %s", error)
        self._is_expectation_current = False
        self._retry_at = now + _RETRY_S

    def _request_due(self, now: float) -> None:
        while self._under_way < FETCHES:
            while self._next < len(self._state) and self._state[self._next] != _WAITING:
                self._next += 1
            if self._next == len(self._state) or not self._fits() or not self._is_due():
                return
            if not self._under_way:
                self._rates.begun(now)
            index, self._next = self._next, self._next + 1
            self._state[index] = _UNDER_WAY
            self._under_way += 1
            self._window_bytes += int(self._payload[index])
            chunk = self._chunk(int(self._number[index]))
            self._tasks.put(_Task(self._finished_uses + index, chunk, now))

    def _fits(self) -> bool:
        taken = self._window_bytes + self._readers.outside_bytes()
        return not taken or taken + int(self._payload[self._next]) <= self._budget_bytes()

    def _is_due(self) -> bool:
        coming = slice(self._next, self._next + _LOOKAHEAD)
        until_use = self._read_bytes[self._first[coming]] - self._read_bytes[self._leading_position]
        end = self._to_fetch[self._next + 1 : self._next + 1 + _LOOKAHEAD]
        return self._rates.is_due(until_use, end - self._to_fetch[self._next])

    def _handle_result(self, result: _Result, now: float) -> None:
        task = result.task
        index = task.use - self._finished_uses
        still_planned = index >= 0 and self._state[index] == _UNDER_WAY
        size = task.chunk.payload_bytes
        self._under_way -= 1
        if result.error is None:
            self._fetched += 1
            self._rates.arrived(size, result.at - task.requested_at, now, self._under_way > 0)
        if result.error is not None or not still_planned:
            self._window_bytes -= size
        if not still_planned:
            return
        if result.error is None:
            self._state[index] = _CACHED
            self._late += bool(self._first[index] < self._leading_position)
            if index < len(self._orders[0].uses):
                self._readers.arrived(int(self._number[index]))
        elif isinstance(result.error, CacheFull | MasterGone):
            self._state[index] = _WAITING
            self._next = min(self._next, index)
            self._retry_at = now + self._interval_s()
            if isinstance(result.error, MasterGone):
                self._lose_master(result.error, now)
            else:
                self._no_room += 1
                # Uses that are over, but not at the beginning of the expected ones, may take the
                # room.
                self._is_expectation_current = (
                    self._is_expectation_current and not self._expects_finished_uses()
                )
        else:
            log.warning("cannot prefetch chunk %s: %s", task.chunk.id, result.error)
            self._skipped += 1
            self._state[index] = _RELEASED

    # The methods below run in the threads that fetch, or in any thread.

    def _fetch_all(self) -> None:
        while (task := self._tasks.get()) is not None and not self._closing:
            error: Exception | None = None
            try:
                self._memory.fetch([task.chunk])
            except Exception as failure:  # the thread that decides handles every error
                error = failure
            self._results.append(_Result(task, self._clock(), error))
            self._wake()

    def _wake(self) -> None:
        with self._wake_lock:
            if self._close_wake.alive:
                os.eventfd_write(self._wake_fd, 1)

    def _clear_wake(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass


@dataclass(frozen=True, slots=True)
class _Task:
    """A chunk to fetch."""

    use: int
    """The number of its use, counted from the first order."""
    chunk: ChunkRef
    requested_at: float


@dataclass(frozen=True, slots=True)
class _Result:
    """The end of a fetch."""

    task: _Task
    at: float
    error: Exception | None
