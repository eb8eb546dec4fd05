"""The port `Runtime` (dieselfs/cache/ports/runtime.py) on one simulated host."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from dieselfs.cache.ports.runtime import PeerAddress
from tests.simulation.network import Network, SimulatedListener, SimulatedStream
from tests.simulation.scheduler import Host, Killed, Scheduler, Task


class SimulatedRunning:
    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler, self._task = scheduler, task

    def join(self, timeout_s: float) -> bool:
        return self._scheduler.join(self._task, timeout_s)


class SimulatedLock:
    """Not reentrant. Who releases it hands it to nobody: any thread may be the next to get it, as
    with a futex."""

    __slots__ = ("_scheduler", "_waiting", "owner")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.owner: Task | None = None
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True) -> bool:
        scheduler = self._scheduler
        if scheduler.preempt:
            scheduler.pass_on()
        me = scheduler.current
        while self.owner is not None:
            if self.owner.host.dead:
                break  # after the run, when killed threads unwind
            if not blocking:
                return False
            assert me is not None
            assert self.owner is not me, f"{me} waits for a lock that it holds"
            self._waiting.append(me)
            scheduler.wait(f"lock held by {self.owner}")
        self.owner = me
        return True

    def release(self) -> None:
        assert self.owner is not None, "a lock that nobody holds is released"
        self.owner = None
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                self._scheduler.wake(task)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()


class SimulatedCondition:
    """Now and then a wait returns without a reason, which the port allows."""

    def __init__(self, scheduler: Scheduler, lock: SimulatedLock) -> None:
        self._scheduler, self._lock = scheduler, lock
        self._waiting: list[Task] = []

    def wait(self, timeout_s: float | None = None) -> bool:
        scheduler, lock = self._scheduler, self._lock
        me = scheduler.current
        assert me is not None
        assert lock.owner is me, "a condition is waited for without its lock"
        deadline = None if timeout_s is None else scheduler.now + timeout_s
        spurious = scheduler.preempt and scheduler.random.random() < scheduler.preempt / 4
        if spurious:
            early = scheduler.now + scheduler.random.random() * 0.1
            spurious = deadline is None or early < deadline
            deadline = early if spurious else deadline
        self._waiting.append(me)
        lock.release()
        try:
            notified = scheduler.wait("condition", deadline)
            if me in self._waiting:
                self._waiting.remove(me)
        finally:
            # Killed while it waited: the frames above release the lock, which they believe to hold.
            if me.host.dead:
                lock.owner = me
        lock.acquire()
        return notified or bool(spurious)

    def notify_all(self) -> None:
        assert self._lock.owner is not None, "a condition is notified without its lock"
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler.wake(task)


class SimulatedRuntime:
    """Implements `Runtime` for the threads of one process at one address of the network."""

    def __init__(self, scheduler: Scheduler, network: Network, host: Host, ip: str) -> None:
        self.scheduler, self.network, self.host, self.ip = scheduler, network, host, ip

    def now(self) -> float:
        return self.scheduler.look()

    def sleep(self, seconds: float) -> None:
        self.scheduler.sleep(seconds)

    def start(self, run: Callable[[], None], name: str) -> SimulatedRunning:
        if self.host.dead:
            raise Killed
        return SimulatedRunning(self.scheduler, self.scheduler.spawn(run, name, self.host))

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self.scheduler)

    def condition(self, lock: SimulatedLock) -> SimulatedCondition:
        return SimulatedCondition(self.scheduler, lock)

    def connect(self, address: PeerAddress, timeout_s: float) -> SimulatedStream:
        return self.network.connect(self.host, self.ip, address, timeout_s)

    def listen(self, address: PeerAddress) -> SimulatedListener:
        return self.network.listen(self.host, self.ip, address)

    def random_bytes(self, count: int) -> bytes:
        return self.scheduler.random.randbytes(count)
