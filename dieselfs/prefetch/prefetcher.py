"""The prefetcher: it fetches the chunks of the plans that are read, before they are read.

The design is in docs/decisions/0007-plan.md. Calls go one way. The prefetcher asks the planner
which plans are read, the progress tracker how far the readers are, and the window which chunks to
fetch. It acts on their answers, and none of them calls it. One thread does so, and others fetch and
lay out orders for it.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.errors import CacheFull, MasterGone
from dieselfs.prefetch.planner import Planner, Readers, WantedPrefetch
from dieselfs.prefetch.plans import Plan
from dieselfs.prefetch.progress_tracker import ProgressTracker
from dieselfs.prefetch.requirement import FETCHES
from dieselfs.prefetch.window import (
    Fetched,
    FollowedOrder,
    PlannedFetch,
    PlannedOrder,
    PrefetchStatistics,
    Window,
)
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

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
_RETRY_S: Final = 0.05
BEGIN_S: Final = 5.0
"""The time for the layout of an order. After it a reader is not kept waiting any longer."""
_THREADS: Final = FETCHES + 1
"""One more than fetch at a time: an order is laid out beside them."""


class PlannedMemory(Protocol):
    """The part of node memory that is needed here.

    See `dieselfs.cache.task.node_memory.NodeMemory`.
    """

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        """Return when the blocks are in node memory."""
        ...

    def expect(self, names: Sequence[str], window_bytes: int = 0) -> None:
        """Expect the uses of the blocks with these names, in order; [] ends it.

        They need `window_bytes` of node memory at least.
        """
        ...

    def progress(self, used: int) -> None:
        """Note that the first `used` of the expected uses are over."""
        ...


class Prefetcher:
    """The prefetching for all plans of a node. Thread-safe."""

    def __init__(
        self,
        memory: PlannedMemory,
        budget_bytes: Callable[[], int],
        make_tracker: Callable[[Snapshot], ProgressTracker],
        quota_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Create it without a plan and without threads.

        `budget_bytes` bounds node memory and the bytes that readers keep outside of it, together.
        `quota_bytes` returns what is allocated of that, if anything is; see `memory_bytes`.
        `make_tracker` makes the tracker of the readers of a snapshot. It is closed when no plan is
        left.
        """
        self._memory, self._budget_bytes, self._make_tracker = memory, budget_bytes, make_tracker
        self._quota_bytes = quota_bytes
        self._planner = Planner()
        self._run: PrefetcherRun | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        """True while a plan is read. It takes no lock: each READ may ask."""
        return bool(self._planner.readers)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that are read now."""
        return tuple(reader.plan for reader in self._planner.readers)

    def memory_bytes(self) -> int:
        """Return the memory for the plans now: at most the quota, or what their windows take."""
        quota, budget = self._quota_bytes(), self._budget_bytes()
        if quota is None:
            return budget
        return min(budget, max(quota, window_bytes(self._planner.readers)))

    def followed(self) -> FollowedOrder | None:
        """Return the order that is read now; None if no plan is read, or is laid out."""
        run = self._run
        return None if run is None or not self.is_running else run.followed()

    def follow(self, plan: Plan, wait_s: float = BEGIN_S) -> None:
        """Prefetch for one more plan, now or after its predecessor.

        Raises `PlanTooLarge`, `OSError`, or what making a tracker raises. It returns when the
        plan's order is laid out, some 0.5 s for 1.28 million files, or `wait_s` after the plan was
        accepted.
        """
        if self._planner.add(plan, self._budget_bytes()):
            self._start(plan.snapshot)
        run = self._run
        if run is not None:
            run.wait_until_begun(wait_s)

    def statistics(self) -> PrefetchStatistics:
        """Return the counters; those of the present are 0 if no plan is read."""
        run = self._run
        found = PrefetchStatistics() if run is None else run.statistics()
        if self.is_running:
            return found
        return replace(found, files=0, position=0, window_bytes=0, under_way=0)

    def stop(self) -> None:
        """End prefetching without waiting. Plans can be followed again afterwards."""
        self._planner.clear()
        run = self._run
        if run is not None:
            run.wake()

    def close(self, timeout_s: float = 2.0) -> None:
        """End prefetching for good. A fetch that takes longer than `timeout_s` ends by itself."""
        with self._lock:
            run, self._run = self._run, None
            self._is_closed = True
            if run is not None:
                run.begin_close()  # a run that is left without a plan would end what is expected
            self._planner.close()
        if run is not None:
            run.close(timeout_s)

    def _start(self, snapshot: Snapshot) -> None:
        with self._lock:
            if self._is_closed:
                return  # a run without a plan would end what is expected
            if self._run is not None:
                self._run.close()  # it is about to end: it has no plan left
            with ExitStack() as undo:
                undo.callback(self._planner.retire)  # else no later plan would begin it
                tracker = self._make_tracker(snapshot)
                undo.callback(tracker.close)
                run = PrefetcherRun(
                    self._planner, self._memory, tracker, self.memory_bytes, self._budget_bytes
                )
                run.start()
                self._run = run
                undo.pop_all()


def window_bytes(readers: Readers) -> int:
    """Return the memory that the plans of all readers use together under a quota (`MemoryNeed`)."""
    return len(readers) * max((reader.plan.need.window_bytes for reader in readers), default=0)


@dataclass(frozen=True, slots=True)
class RefusedPlans:
    """Plans whose common order cannot be laid out."""

    readers: Readers
    error: Exception


class PrefetcherRun:
    """The work of a prefetcher from a first plan until no plan is left.

    Its threads do not keep the process alive.
    """

    def __init__(
        self,
        planner: Planner,
        memory: PlannedMemory,
        tracker: ProgressTracker,
        budget_bytes: Callable[[], int],
        most_bytes: Callable[[], int] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it without threads. It closes the tracker.

        A following plan may need `most_bytes`; None: the budget.
        """
        self._most_bytes = most_bytes or budget_bytes
        self._planner, self._memory, self._tracker = planner, memory, tracker
        self._budget_bytes, self._clock = budget_bytes, clock
        self._window = Window(clock())
        self._readers: Readers = ()
        """The plans whose order is read now."""
        self._successors: Readers = ()
        """The plans whose order the window knows to come next."""
        self._requested: Readers = ()
        """The plans whose order is being laid out."""
        self._laid_out: PlannedOrder | None = None
        self._retry_at = 0.0
        self._window_bytes = 0
        """The bytes of the window and outside of node memory, at the end of the last step."""
        self._is_closing = self._is_over = False
        self._begun = threading.Condition()
        self.tasks: queue.SimpleQueue[PlannedFetch | Readers | None] = queue.SimpleQueue()
        """The work for other threads: chunks to fetch, and plans whose order is to be laid out."""
        self.results: deque[Fetched | PlannedOrder | RefusedPlans] = deque()
        """The results of that. Each access is one step for the interpreter."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # If a fetch hangs, its thread keeps this object, and with it the descriptor.
        weakref.finalize(self, os.close, self._wake_fd).atexit = False
        self._thread = threading.Thread(target=self._run, name="prefetcher", daemon=True)
        self._workers = [
            threading.Thread(target=self._work, name=f"prefetch-{number}", daemon=True)
            for number in range(_THREADS)
        ]

    def start(self) -> None:
        """Start the threads. Raises `OSError` if the process may have no more, and none stays."""
        try:
            for thread in (*self._workers, self._thread):
                thread.start()
        except RuntimeError as error:
            self._end_workers()
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from error

    def wait_until_begun(self, timeout_s: float) -> None:
        """Wait until the plans that are read are prefetched, but no longer than `timeout_s`."""
        self.wake()
        with self._begun:
            self._begun.wait_for(
                lambda: self._is_over or self._readers == self._planner.readers, timeout_s
            )

    def wake(self) -> None:
        """Have the next step taken soon. Any thread may call it."""
        os.eventfd_write(self._wake_fd, 1)

    def statistics(self) -> PrefetchStatistics:
        """Return the counters. Sizes are those at the end of a step.

        Within a step, chunks that have just been filled count in node memory and outside of it.
        """
        return self._window.statistics(self._window_bytes)

    def followed(self) -> FollowedOrder | None:
        """See `Prefetcher.followed`."""
        return self._window.followed()

    def begin_close(self) -> None:
        """Leave the uses that node memory expects, whatever ends the run from now on."""
        self._is_closing = True

    def close(self, timeout_s: float = 2.0) -> None:
        """End, and leave the uses that node memory expects. It may be called again."""
        self.begin_close()
        self.wake()
        self._end_workers()
        deadline = time.monotonic() + timeout_s
        for thread in (self._thread, *self._workers):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    # The methods below run in the thread that decides.

    def _run(self) -> None:
        poll = select.poll()
        for fd in (self._wake_fd, *self._tracker.wake_fds()):
            poll.register(fd, select.POLLIN)
        try:
            while not self._is_closing and self.step():
                poll.poll(self._interval_s() * 1000)
                time.sleep(_GATHER_S)  # later events are handled in the same step
                self.clear_wake()
        except Exception as error:
            self._planner.retire()
            if not self._is_closing:
                log.warning("prefetching of the plan has failed: %s", error, exc_info=error)
        finally:
            self._end()

    def _interval_s(self) -> float:
        """Return the time until the readers are checked again if nothing happens before."""
        consumption = self._window.rates.consumption
        if not consumption:
            return _INTERVAL_S
        window_s = self._budget_bytes() / consumption
        return min(max(window_s / _LOOKS_A_WINDOW, _LEAST_INTERVAL_S), _INTERVAL_S)

    def _end(self) -> None:
        self._end_workers()
        self._tracker.close()
        if not self._is_closing:
            with suppress(MasterGone):  # the next master is told so
                self._memory.expect([])
            with suppress(MasterGone):
                self._tracker.end()
        with self._begun:
            self._is_over = True
            self._begun.notify_all()

    def _end_workers(self) -> None:
        for _ in self._workers:
            self.tasks.put(None)

    def step(self) -> bool:
        """Do all that is due now; return False if no plan is left."""
        now, window, tracker = self._clock(), self._window, self._tracker
        while self.results:
            self._handle(self.results.popleft(), now)
        position = tracker.position() if self._readers else 0
        is_at_end = self._readers and tracker.is_at_end()
        wanted = self._planner.decide(self._readers if is_at_end else ())
        if not wanted.readers:
            return False
        if self._keep_up(wanted):
            position = 0
        if self._readers != wanted.readers:
            return True  # their order is being laid out
        window.move(position, tracker.leading_position(), now)
        released = tracker.released()
        window.release(released)
        window.reclaim(tracker.lost())
        if released:
            self.wake()  # trackers divide memory of their own when node memory knows of it
        self._report(now)
        if now >= self._retry_at:
            for fetch in window.due(self._budget_bytes(), tracker.outside_bytes(), now):
                self.tasks.put(fetch)
        self._window_bytes = window.bytes + tracker.outside_bytes()
        return True

    def _handle(self, result: Fetched | PlannedOrder | RefusedPlans, now: float) -> None:
        if isinstance(result, PlannedOrder):
            if result.readers == self._requested:  # else it was overtaken by a later request
                self._laid_out = result
        elif isinstance(result, RefusedPlans):
            log.warning("an order is not prefetched: %s", result.error)
            self._planner.refuse(result.readers)
        else:
            chunk = self._window.ended(result, now)
            if chunk is not None:
                self._tracker.arrived(chunk)
            if isinstance(result.error, CacheFull):
                self._retry_at = now + self._interval_s()
                # Uses that are over, but not at the beginning of the expected ones, may take the
                # room.
                self._window.is_expectation_current &= not self._window.expects_finished_uses()
            elif isinstance(result.error, MasterGone):
                self._lose_master(result.error, now)

    def _keep_up(self, wanted: WantedPrefetch) -> bool:
        """Have the wanted orders prefetched; return True if another one begins to be read."""
        if wanted.readers != self._readers:
            if wanted.readers == self._successors:
                order = self._window.advance()
            elif (found := self._order_of(wanted.readers)) is not None:
                order = found
                self._window.begin(order)
            else:
                return False
            self._tracker.begin(order)
            for chunk in self._window.cached():
                self._tracker.arrived(chunk)
            self._successors = ()
            with self._begun:
                self._readers = wanted.readers
                self._begun.notify_all()
            return True
        if wanted.successors and not self._successors:
            following = self._order_of(wanted.successors)
            if following is not None:
                self._window.add(following)
                self._successors = wanted.successors
        return False

    def _order_of(self, readers: Readers) -> PlannedOrder | None:
        """Return the order of `readers`, or None while it is being laid out."""
        if readers != self._requested:
            self._requested, self._laid_out = readers, None
            self.tasks.put(readers)
        found = self._laid_out
        if found is None or found.readers != readers:
            return None
        self._requested, self._laid_out = (), None
        return found

    def _report(self, now: float) -> None:
        """Report to node memory what is expected, and how much of that is over."""
        window, outside = self._window, self._tracker.outside_bytes()
        if outside and window.is_expectation_current:
            # The bytes are outside, and node memory is about to get less room.
            is_short = window.exceeds(self._budget_bytes() - outside)
            window.is_expectation_current = not (is_short and window.expects_finished_uses())
        try:
            if not window.is_expectation_current:
                if now < self._retry_at:
                    return
                self._memory.expect(window.expectation(), window_bytes(self._readers))
            used = window.newly_used()
            if used:
                self._memory.progress(used)
        except MasterGone as error:
            self._lose_master(error, now)

    def _lose_master(self, error: Exception, now: float) -> None:
        """Note that the next master knows nothing of the plan."""
        log.debug("node memory has no master: %s", error)
        self._window.is_expectation_current = False
        self._retry_at = now + _RETRY_S

    def clear_wake(self) -> None:
        """Forget that it was woken."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    # The methods below run in other threads.

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None and not self._is_closing:
            self.do(task)

    def do(self, task: PlannedFetch | Readers) -> None:
        """Do one of the tasks, and hand in its result."""
        self.results.append(
            self._fetch(task) if isinstance(task, PlannedFetch) else self._lay_out(task)
        )
        self.wake()

    def _fetch(self, fetch: PlannedFetch) -> Fetched:
        try:
            self._memory.fetch_blocks(fetch.blocks)
        except Exception as error:  # the thread that decides handles every error
            return Fetched(fetch, self._clock(), error)
        return Fetched(fetch, self._clock())

    def _lay_out(self, readers: Readers) -> PlannedOrder | RefusedPlans:
        try:
            for plan in [reader.plan for reader in readers]:
                if plan.next is not None:  # no one has checked it: it follows from another plan
                    plan.need.require(self._most_bytes(), len(readers))
            return PlannedOrder.of(readers)
        except Exception as error:  # as above
            return RefusedPlans(readers, error)
