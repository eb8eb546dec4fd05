"""Threads that are greenlets, under a clock that is a number: which one runs next is drawn by a
seeded generator.

Only one runs at a time, and another one only where one waits, or lets others go first
(`Scheduler.pass_on`). Time stands still while somebody can run, but for a microsecond a step; when
nobody can, it jumps to the next timer. So a run is a function of its seed, and takes no longer than
its own computing.
"""

from __future__ import annotations

import heapq
import itertools
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from greenlet import getcurrent, greenlet

STEP_S: Final = 1e-6
"""That one step takes: who asks again and again without waiting gets to the end of its patience."""
LOOK_S: Final = 1e-7
"""That a look at the clock takes, for the same reason."""


class SimulationFailed(AssertionError):
    """The run went wrong in itself: nobody can run, it takes too long, or a simulated thread
    raised."""


class Killed(BaseException):
    """Thrown into what is left of a killed thread after the run, so that its frames are freed at
    one place."""


@dataclass(slots=True, eq=False)
class Host:
    """What a simulated thread runs on, as far as the scheduler minds."""

    name: str
    paused: bool = False
    dead: bool = False
    lag_s: float = 0.0
    """A thread that can run does so up to this much later: a machine with too much to do."""
    stopped: list[Task] = field(default_factory=list)
    """Those that could run if it were not paused."""
    tasks: list[Task] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Task:
    """One simulated thread."""

    number: int
    name: str
    host: Host
    run: Callable[[], None]
    fiber: greenlet = field(init=False)
    waits_for: str = ""
    """While it waits, for a report."""
    turn: int = 0
    """Counts its waits, so that a timer of an earlier one is known as such."""
    waiting: bool = False
    timed_out: bool = False
    ended: bool = False
    joiners: list[Task] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.host.name}/{self.name}#{self.number}"


class Scheduler:
    def __init__(
        self,
        seed: int | str,
        *,
        max_steps: int = 2_000_000,
        max_time_s: float = 3600.0,
        preempt: float = 0.0,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        """`preempt` is the chance that a thread lets others go first where it need not."""
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 1000.0
        self.steps = 0
        self.preempt = preempt
        self.max_steps, self.max_time_s = max_steps, self.now + max_time_s
        self.tasks: list[Task] = []
        """All that have not ended, in the order of their starts."""
        self.current: Task | None = None
        self._trace = trace
        self._runnable: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._order = itertools.count()
        self._failure: BaseException | None = None
        self._killed: list[Task] = []
        """Kept, so that no frame of theirs is freed, and runs its `finally`, at a time that the
        collector chooses."""
        self._hub = getcurrent()

    # What threads call.

    def spawn(self, run: Callable[[], None], name: str, host: Host) -> Task:
        task = Task(next(self._numbers), name, host, run)
        task.fiber = greenlet(lambda: self._body(task), self._hub)
        self.tasks.append(task)
        host.tasks.append(task)
        if not host.dead:
            self._ready(task)
        return task

    def wait(self, why: str, deadline: float | None = None) -> bool:
        """Until somebody calls `wake`; False if the time came first."""
        task = self.current
        assert task is not None, "only simulated threads wait"
        if task.host.dead:
            raise Killed
        task.waiting, task.timed_out, task.waits_for = True, False, why
        task.turn += 1
        if deadline is not None:
            turn = task.turn
            self.at(deadline, lambda: self._time_out(task, turn))
        self._hub.switch()
        if task.host.dead:
            raise Killed
        return not task.timed_out

    def wake(self, task: Task) -> None:
        """Let a waiting thread go on. Of one that does not wait it is nothing."""
        if task.waiting:
            task.waiting = False
            self._ready(task)

    def sleep(self, seconds: float, why: str = "sleep") -> None:
        self.wait(why, self.now + max(0.0, seconds))

    def pass_on(self) -> None:
        """A place where any other thread may go first."""
        if self.preempt and self.random.random() < self.preempt:
            task = self.current
            assert task is not None
            if task.host.dead:
                raise Killed
            self._ready(task)
            self._hub.switch()
            if task.host.dead:
                raise Killed

    def look(self) -> float:
        """The time."""
        self.now += LOOK_S
        return self.now

    def join(self, task: Task, timeout_s: float) -> bool:
        deadline = None if timeout_s == inf else self.now + timeout_s
        while not task.ended:
            assert self.current is not None
            task.joiners.append(self.current)
            if not self.wait(f"end of {task}", deadline):
                break
        return task.ended

    def trace(self, what: str) -> None:
        if self._trace is not None:
            who = str(self.current or "-")
            self._trace(f"{self.now - 1000.0:12.6f}  {who:36}  {what}")

    @property
    def tracing(self) -> bool:
        return self._trace is not None

    # What the world does to them.

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Call `act` then, in no thread."""
        heapq.heappush(self._timers, (time, next(self._order), act))

    def kill(self, host: Host) -> None:
        """Its threads never run again."""
        host.dead = True
        self._runnable = [task for task in self._runnable if task.host is not host]
        host.stopped.clear()
        self.tasks = [task for task in self.tasks if task.host is not host]
        for task in host.tasks:
            task.waiting = False
        self._killed += host.tasks

    def pause(self, host: Host) -> None:
        host.paused = True
        host.stopped += [task for task in self._runnable if task.host is host]
        self._runnable = [task for task in self._runnable if task.host is not host]

    def resume(self, host: Host) -> None:
        host.paused = False
        self._runnable += host.stopped
        host.stopped.clear()

    # The run.

    def run(self, main: Callable[[], None], host: Host) -> None:
        """Until `main` has ended in a thread on `host`. Raises what `main` does, or
        `SimulationFailed`."""
        self._hub = getcurrent()
        main_task = self.spawn(main, "main", host)
        while not main_task.ended:
            if self._failure is not None:
                raise self._failure
            timers = self._timers
            while timers and timers[0][0] <= self.now:
                heapq.heappop(timers)[2]()
            runnable = self._runnable
            if not runnable:
                if not timers:
                    raise SimulationFailed(self._report("nobody can run, and nothing will happen"))
                self.now = max(self.now, timers[0][0])
                if self.now > self.max_time_s:
                    raise SimulationFailed(self._report("virtual time is over"))
                continue
            self.steps += 1
            if self.steps > self.max_steps:
                raise SimulationFailed(self._report(f"more than {self.max_steps} steps"))
            if len(runnable) == 1:
                task = runnable.pop()
            else:
                place = int(self.random.random() * len(runnable))
                task = runnable[place]
                runnable[place] = runnable[-1]
                runnable.pop()
            self.now += STEP_S
            self.current = task
            task.fiber.switch()
            self.current = None
        if self._failure is not None:
            raise self._failure

    def bury(self) -> None:
        """Free what has not ended, killed threads included. Afterwards nothing runs any more."""
        self._hub = getcurrent()
        for task in [*self.tasks, *self._killed]:
            task.host.dead = True
            for _ in range(100):
                if task.fiber.dead or not task.fiber:
                    break
                self.current = task
                task.fiber.throw(Killed)
        self.current = None
        self.tasks.clear()
        self._killed.clear()
        self._timers.clear()

    def left(self) -> list[str]:
        """The threads that have not ended."""
        return [f"{task} waits for {task.waits_for}" for task in self.tasks]

    def _body(self, task: Task) -> None:
        try:
            task.run()
        except Killed:
            pass
        except BaseException as error:
            if self._failure is None and not task.host.dead:
                if task.name == "main":
                    self._failure = error
                else:
                    text = "".join(traceback.format_exception(error))
                    self._failure = SimulationFailed(f"{task} raised:\n{text}")
        task.ended = True
        if not task.host.dead:
            self.tasks.remove(task)
            task.host.tasks.remove(task)
        for joiner in task.joiners:
            self.wake(joiner)

    def _ready(self, task: Task) -> None:
        host = task.host
        if host.dead:
            return
        if host.lag_s:
            turn = task.turn
            self.at(self.now + self.random.random() * host.lag_s, lambda: self._enqueue(task, turn))
        else:
            self._enqueue(task, task.turn)

    def _enqueue(self, task: Task, turn: int) -> None:
        host = task.host
        if host.dead or task.turn != turn:
            return
        (host.stopped if host.paused else self._runnable).append(task)

    def _time_out(self, task: Task, turn: int) -> None:
        if task.waiting and task.turn == turn:
            task.timed_out = True
            self.wake(task)

    def _report(self, what: str) -> str:
        waiting = "\n  ".join(self.left()) or "(nobody)"
        return f"{what}, at {self.now - 1000.0:.3f} s, after {self.steps} steps:\n  {waiting}"
