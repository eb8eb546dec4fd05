"""The byte budget of one job in one process: a token bucket whose rate may change at any time.

Bytes of chunks are taken before they are read, and a thread waits until all that passed before is
paid for. The waiting threads of a process are two lines. A read that a reader waits for goes before
a read ahead, and a read ahead changes its line when a reader comes to wait for it (`ReadTurn`).
If readers of several jobs wait for one read, it waits in the lines of all their budgets. The first
one that lets it pass pays, so nobody waits at a poorer job's pace.

Forked children share the budget, in anonymous memory, so that they never get a second one. A lock
that no killed process can keep guards it (`forked_lock`). Each process has lines of its own. Only
the first thread of a process's lines watches the budget, so a change that another process makes is
noticed within `_LOOK_S`; a change of the own process, at once.

A read that need not wait costs about 1 µs, and 2 µs in processes that have forked.
"""

from __future__ import annotations

import math
import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.stores.byte_rate import opens_at
from chunkstore.stores.forked_lock import ForkedLock
from chunkstore.stores.paused_time import paused
from chunkstore.stores.read_turn import ReadTurn, current_turn

FLOOR_BYTES_PER_S: Final = 256 << 10
"""The rate that 0 means, so that no reader waits for ever."""
_LOOK_S: Final = 0.05
_RATE, _PAID_UNTIL, _USED, _WAITED, _AHEAD_WAITED, _BOUND, _BOUND_UNTIL, _WORDS = range(8)
"""The words of the shared memory; the rate is infinite without a limit."""
Wait = Callable[[threading.Event, float | None], object]
"""A function that waits for an event, for so many seconds at most."""


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """Counts of a budget since it was made, of all its processes unless stated otherwise."""

    used_bytes: int = 0
    """Bytes that were taken or charged, less those that were given back."""
    waited_s: float = 0.0
    """Seconds that readers waited: the sum over their threads."""
    ahead_waited_s: float = 0.0
    """The same of reads ahead."""
    waiting: int = 0
    """Threads of this process that wait now."""
    bound_s: float = 0.0
    """Seconds in which at least one thread waited."""


class _Waiter:
    """A thread in the lines of its process at one budget."""

    __slots__ = ("turn", "wake")

    def __init__(self, turn: ReadTurn, wake: threading.Event) -> None:
        self.turn = turn
        self.wake = wake
        """Set when the thread must look again."""


class _Take:
    """A read that waits at its budget, and at those of others who wait for the same read."""

    __slots__ = ("_size_bytes", "_turn", "_waiters", "budget", "wake")

    def __init__(self, budget: ByteBudget, size_bytes: int, turn: ReadTurn) -> None:
        self.budget, self._size_bytes, self._turn = budget, size_bytes, turn
        self.wake = threading.Event()
        self._waiters: dict[ByteBudget, _Waiter] = {}

    def wait(self, clock: Callable[[], float], wait: Wait) -> ByteBudget | None:
        """Wait, and return the budget that has paid; None: the read is free."""
        began = clock()
        try:
            with self._turn.waiting(self):
                while True:
                    self.wake.clear()
                    self._enter()
                    if self._turn.is_free:
                        return None
                    left_s, payer = self._seconds_left()
                    if payer is not None:
                        return payer
                    wait(self.wake, None if left_s == math.inf else min(left_s, _LOOK_S))
        finally:
            for budget, waiter in self._waiters.items():
                budget.leave(waiter)
            paused(clock() - began)

    def _enter(self) -> None:
        """Enter the lines of budgets that have joined since the last look."""
        turns = {**self._turn.others, self.budget: self._turn}
        again = self._turn.others.get(self.budget)
        if again is not None and not again.ahead:  # a reader of the same job waits for it
            self._turn.ahead = False
        for budget in turns.keys() - self._waiters.keys():
            self._waiters[budget] = waiter = _Waiter(turns[budget], self.wake)
            budget.enter(waiter)

    def _seconds_left(self) -> tuple[float, ByteBudget | None]:
        """Return the seconds to wait, or the budget that has just paid."""
        least = math.inf
        for budget, waiter in self._waiters.items():
            left_s = budget.seconds_left(waiter, self._size_bytes)
            if left_s <= 0:
                return 0.0, budget
            least = min(least, left_s)
        return least, None


class ByteBudget:
    """A budget of bytes a second. Thread-safe; shared with forked children.

    In any time, the bytes that are taken exceed the rate by what `BURST_S` gives, and by the bytes
    that passed last, at most.
    """

    def __init__(
        self,
        bytes_per_s: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """Create it with a rate, or without a limit. `clock` is the same in all processes."""
        self._clock, self._wait = clock, wait
        self._shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
        self._shared[_RATE], self._shared[_PAID_UNTIL] = math.inf, clock()
        self._guard = ForkedLock()
        """It guards the shared memory of all processes, and the lines of this one."""
        self._is_closed = False
        renew_now_and_after_fork(self)
        self.set_rate(bytes_per_s)

    def renew(self) -> None:
        """Start without waiting threads; called at first and in a forked child."""
        self._waiters: list[_Waiter] = []
        self._noted_at = 0.0
        """The time until which the seconds of the waiting threads are counted."""

    @property
    def bytes_per_s(self) -> float | None:
        """The rate; None: no limit."""
        rate = self._shared[_RATE]
        return None if rate == math.inf else rate

    def set_rate(self, bytes_per_s: float | None) -> None:
        """Change the rate; None: no limit, and 0 means `FLOOR_BYTES_PER_S`.

        Waiting threads go by the new rate at once. Bytes that are owed stay the same, unless there
        is no limit any more. Raises `ValueError` for a negative rate.
        """
        if bytes_per_s is not None and not 0 <= bytes_per_s < math.inf:
            raise ValueError(f"a rate must be 0 bytes a second or more, not {bytes_per_s}")
        rate = math.inf if bytes_per_s is None else bytes_per_s or float(FLOOR_BYTES_PER_S)
        shared = self._shared
        if rate == shared[_RATE]:
            return
        with self._guard:
            now = self._clock()
            owed_s = opens_at(shared[_PAID_UNTIL], now) - now
            is_limited = math.inf not in (rate, shared[_RATE])
            shared[_PAID_UNTIL] = now + (owed_s * shared[_RATE] / rate if is_limited else 0.0)
            shared[_RATE] = rate
            self._wake_first()

    def take(self, size_bytes: int) -> ByteBudget | None:
        """Wait until `size_bytes` more may be read; return the budget that paid. Never raises.

        They pass when all that passed before is paid for, however many they are. Another budget
        than this one pays if its job waits for the same read and it lets it pass first
        (`ReadTurn.join`). None: the read is free, since one who waits pays for nothing.
        """
        if self.take_now(size_bytes):
            return self
        return _Take(self, size_bytes, current_turn()).wait(self._clock, self._wait)

    def take_now(self, size_bytes: int) -> bool:
        """Take the bytes if they pass without waiting; return whether they did."""
        with self._guard:
            return not self._waiters and self._pay_if_open(size_bytes) <= 0

    def wait_s(self, size_bytes: int) -> float:
        """Return about how long one more read would wait behind reads that are as large as it."""
        with self._guard:
            left_s = max(0.0, self._shared[_PAID_UNTIL] - self._clock())
            return left_s + len(self._waiters) * size_bytes / self._shared[_RATE]

    def charge(self, size_bytes: int) -> None:
        """Pay for bytes that have been read already, without waiting; negative gives back."""
        with self._guard:
            self._pay(size_bytes, self._clock())
            if size_bytes < 0:
                self._wake_first()

    def reorder(self) -> None:
        """Have the first waiting thread look again, after a turn has changed."""
        with self._guard:
            self._wake_first()

    def statistics(self) -> BudgetStatistics:
        """Return the current counts. The seconds of other processes may be 0.1 s old."""
        with self._guard:
            self._note_waits(self._clock())
            words = self._shared.tolist()[:_WORDS]
            waiting = len(self._waiters)
        return BudgetStatistics(
            round(words[_USED]), words[_WAITED], words[_AHEAD_WAITED], waiting, words[_BOUND]
        )

    def close(self) -> None:
        """Let all threads of this process through, now and later."""
        self._is_closed = True
        with self._guard:
            for waiter in self._waiters:
                waiter.wake.set()

    # A read that waits calls the methods below.

    def enter(self, waiter: _Waiter) -> None:
        """Take a place in the lines."""
        with self._guard:
            self._note_waits(self._clock())
            self._waiters.append(waiter)

    def leave(self, waiter: _Waiter) -> None:
        """Give the place up."""
        with self._guard:
            self._note_waits(self._clock())
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            self._wake_first()

    def seconds_left(self, waiter: _Waiter, size_bytes: int) -> float:
        """Return 0 if the bytes pass now, and pay for them; else the seconds to wait.

        They are infinite for a thread that is not the first one.
        """
        with self._guard:
            if self._first() is not waiter and not self._is_closed:
                return math.inf
            self._note_waits(self._clock())
            return self._pay_if_open(size_bytes)

    # The methods below are called with the guard held.

    def _first(self) -> _Waiter:
        """Return the first thread of the readers' line, else of the other one."""
        return min(self._waiters, key=lambda waiter: waiter.turn.ahead)

    def _wake_first(self) -> None:
        if self._waiters:
            self._first().wake.set()

    def _pay_if_open(self, size_bytes: int) -> float:
        """Pay for the bytes and return 0 if they pass now, else the seconds until they do."""
        now, shared = self._clock(), self._shared
        left_s = shared[_PAID_UNTIL] - now
        if left_s > 0 and shared[_RATE] != math.inf and not self._is_closed:
            return left_s
        self._pay(size_bytes, now)
        return 0

    def _pay(self, size_bytes: int, now: float) -> None:
        shared = self._shared
        shared[_USED] += size_bytes
        shared[_PAID_UNTIL] = opens_at(shared[_PAID_UNTIL], now) + size_bytes / shared[_RATE]

    def _note_waits(self, now: float) -> None:
        """Count the seconds until now of all threads that wait."""
        shared = self._shared
        if self._waiters:
            seconds = now - self._noted_at
            ahead = sum(waiter.turn.ahead for waiter in self._waiters)
            shared[_WAITED] += seconds * (len(self._waiters) - ahead)
            shared[_AHEAD_WAITED] += seconds * ahead
            shared[_BOUND] += max(0.0, now - max(self._noted_at, shared[_BOUND_UNTIL]))
            shared[_BOUND_UNTIL] = now
        self._noted_at = now
