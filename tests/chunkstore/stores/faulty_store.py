"""A store in memory whose calls can be made to fail or to hang, by a test that decides when."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.stores.memory import MemoryObjectStore
from tests.chunkstore.packed import StoreWrapper
from tests.eventually import PATIENCE_S

WAIT_S = PATIENCE_S


class FaultyStore(StoreWrapper):
    """`fault(call, key, number)` is called before the `number`-th call (from 1) of that name; it
    may raise or wait."""

    def __init__(self, fault: Callable[[str, str, int], None] = lambda *_: None) -> None:
        super().__init__(MemoryObjectStore())
        self.fault = fault
        self.calls: Counter[str] = Counter()
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        """Have a lock that no thread of a parent process holds."""
        self._lock = threading.Lock()

    def before(self, call: str, key: str) -> None:
        with self._lock:
            self.calls[call] += 1
            number = self.calls[call]
        self.fault(call, key, number)


@contextmanager
def hanging() -> Iterator[Callable[[], None]]:
    """A function that does not return before the block ends."""
    released = threading.Event()
    try:
        yield lambda: _wait(released)
    finally:
        released.set()


def _wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S)
