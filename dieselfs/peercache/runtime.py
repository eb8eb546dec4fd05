"""What the peer cache needs of the machine that it runs on: a clock, threads with their locks, and a network.

Everything in this package that waits does so through this port and nowhere else. `os_runtime` is the operating system; in tests a
simulation takes its place, in which time is virtual, one thread runs at a time, and a seed decides which, so that any run can be had again.
Plain `threading.Lock` is allowed where nothing blocks while it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from chunkstore.stores.object_store import Buffer


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Of a TCP socket. Port 0, to listen: any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Stream(Protocol):
    """A connection: bytes in order. One thread may send while another receives. Errors are `OSError`s; `TimeoutError` is one of them."""

    def send(self, buffers: Sequence[Buffer], timeout_s: float) -> None:
        """All bytes of all buffers, in order, without joining them. After an error nothing is known of what was sent: close it."""
        ...

    def receive_into(self, target: memoryview, timeout_s: float, *, at_least: int = 1) -> int:
        """Fill `target` from its beginning with what has come, with `at_least` so many bytes; how many. Fewer only at the end of the stream.

        After `TimeoutError` nothing is known of how many had come: close it, unless `at_least` was 1.
        """
        ...

    def close(self) -> None:
        """From any thread; who waits for it gets an `OSError`, or the end. May be called again."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> PeerAddress:
        """With the port that was chosen."""
        ...

    def accept(self) -> Stream:
        """Wait for the next connection. `OSError` once it is closed."""
        ...

    def close(self) -> None: ...


class Running(Protocol):
    """A thread."""

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended."""
        ...


class Lock(AbstractContextManager[object], Protocol):
    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...


class Condition(Protocol):
    """Made of a lock, which is held whenever one of these is called."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """False after the time. May return without a reason."""
        ...

    def notify_all(self) -> None: ...


class Runtime(Protocol):
    """Thread-safe."""

    def now(self) -> float:
        """Seconds of a clock that never steps back, the same for all processes of a node (CLOCK_MONOTONIC)."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def start(self, run: Callable[[], None], name: str) -> Running:
        """In a thread of its own, which does not keep the process alive. `run` must not raise."""
        ...

    def lock(self) -> Lock: ...

    def condition(self, lock: Lock) -> Condition: ...

    def connect(self, address: PeerAddress, timeout_s: float) -> Stream:
        """`OSError`."""
        ...

    def listen(self, address: PeerAddress) -> Listener:
        """`OSError`."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Unpredictable, for nonces."""
        ...
