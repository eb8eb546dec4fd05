"""The port to the machine: a clock, threads with their locks, and a network.

Every wait in this package goes through this port and nowhere else. `os_runtime` is the operating
system. In tests a simulation takes its place, in which time is virtual, one thread runs at a time,
and a seed decides which, so that any execution can be repeated. A plain `threading.Lock` is allowed
where nothing blocks while it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from chunkstore.stores.object_store import Buffer


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address of a TCP socket. For listening, port 0 stands for any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Stream(Protocol):
    """A connection that carries bytes in order. One thread may send while another receives.

    Errors are `OSError`s; `TimeoutError` is one of them.
    """

    def send(self, buffers: Sequence[Buffer], timeout_s: float) -> None:
        """Send all bytes of all buffers, in order, without joining them.

        After an error it is unknown how much was sent: close the stream.
        """
        ...

    def receive_into(self, target: memoryview, timeout_s: float, *, at_least: int = 1) -> int:
        """Fill `target` from its beginning with at least `at_least` bytes; return their number.

        Returns fewer only at the end of the stream. After `TimeoutError` it is unknown how many
        bytes had come: close the stream, unless `at_least` was 1.
        """
        ...

    def close(self) -> None:
        """Close the stream. Any thread may call this, and call it again.

        A thread that waits for the stream gets an `OSError`, or the end.
        """
        ...


class Listener(Protocol):
    """A socket that accepts connections."""

    @property
    def address(self) -> PeerAddress:
        """The address that is listened on, with the port that was chosen."""
        ...

    def accept(self) -> Stream:
        """Wait for the next connection. Raises `OSError` once the listener is closed."""
        ...

    def close(self) -> None:
        """Close the listener, and wake the thread in `accept`."""
        ...


class Running(Protocol):
    """A thread."""

    def join(self, timeout_s: float) -> bool:
        """Wait at most so long, and return whether the thread has ended."""
        ...


class Lock(AbstractContextManager[object], Protocol):
    """A lock, also as a context manager."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock; without `blocking`, return False if it is taken."""
        ...

    def release(self) -> None:
        """Give the lock back."""
        ...


class Condition(Protocol):
    """A condition variable. Its lock must be held whenever a method is called."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a notification. Return False after the time. May return without a reason."""
        ...

    def notify_all(self) -> None:
        """Wake all threads that wait."""
        ...


class Runtime(Protocol):
    """The machine that a process runs on. Thread-safe."""

    def now(self) -> float:
        """Return the seconds of a clock that never steps back (CLOCK_MONOTONIC).

        The clock is the same for all processes of a node.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for so long."""
        ...

    def start(self, run: Callable[[], None], name: str) -> Running:
        """Run `run` in a thread of its own, which does not keep the process alive.

        `run` must not raise.
        """
        ...

    def lock(self) -> Lock:
        """Return a new lock."""
        ...

    def condition(self, lock: Lock) -> Condition:
        """Return a new condition of this lock."""
        ...

    def connect(self, address: PeerAddress, timeout_s: float) -> Stream:
        """Return a connection to this address. Raises `OSError`."""
        ...

    def listen(self, address: PeerAddress) -> Listener:
        """Listen on this address. Raises `OSError`."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Return unpredictable bytes, for nonces."""
        ...
