"""Cache events: observers learn which blocks are inserted and evicted, in that order.

Each observer has a thread of its own, so a slow one delays no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TypeAlias

from dieselfs.cache.ports.master_port import CacheObserver

log = logging.getLogger(__name__)

_Call: TypeAlias = Callable[[], None]


class CacheEvents:
    """The subscribers to the events of one node memory.

    One thread at a time calls `listen`, `arrived` and `evicted`; they never block.
    """

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []

    def listen(self, observer: CacheObserver, there: Iterable[str]) -> None:
        """Tell `observer` of the blocks `there`, then of all later events."""
        listener = _Listener(observer)
        for name in there:
            listener.arrived(name)
        self._listeners = [*self._listeners, listener]

    def forget(self, observer: CacheObserver) -> _Call:
        """Unsubscribe the observer.

        Call the returned function to wait until the observer is not called any more.
        """
        ended = [each for each in self._listeners if each.observer is observer]
        self._listeners = [each for each in self._listeners if each.observer is not observer]
        for listener in ended:
            listener.end()

        def wait() -> None:
            for listener in ended:
                listener.wait()

        return wait

    def arrived(self, name: str) -> None:
        """Publish that the block was inserted."""
        for listener in self._listeners:
            listener.arrived(name)

    def evicted(self, name: str) -> None:
        """Publish that the block was evicted."""
        for listener in self._listeners:
            listener.evicted(name)

    def close(self, timeout_s: float) -> None:
        """Unsubscribe all observers.

        No observer is called any more, except one that is busy for longer than `timeout_s`: it ends
        its call.
        """
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.end()
        deadline = time.monotonic() + timeout_s
        for listener in listeners:
            listener.wait(max(0.0, deadline - time.monotonic()))


class _Listener:
    """One observer with its queue and its thread."""

    def __init__(self, observer: CacheObserver) -> None:
        self.observer = observer
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="cache-events", daemon=True)
        self._thread.start()

    def arrived(self, name: str) -> None:
        self._calls.put(lambda: self.observer.arrived(name))

    def evicted(self, name: str) -> None:
        self._calls.put(lambda: self.observer.evicted(name))

    def end(self) -> None:
        """Call the observer no more, except for a call that is under way."""
        self._ended = True
        self._calls.put(None)

    def wait(self, timeout_s: float | None = None) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None and not self._ended:
            try:
                call()
            except Exception:
                log.exception("an observer of node memory failed")
