"""Every request to a store is answered in time or given up: a store that hangs costs a thread, and never its caller.

A request runs in a thread of its own (`chunkstore.call_threads`), and the caller waits for it until the request's deadline, or until the
operation's if that is sooner (`time_left`). An abandoned request goes on by itself; what it answers is dropped.

`create` alone runs in its caller's thread, unbounded here: an abandoned one would go on reading buffers that the caller believes to be its own
again. A store bounds its own writes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty
from typing import TypeVar

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.call_threads import Answer, Answers, CallThreads
from chunkstore.errors import Unavailable
from chunkstore.stores.object_store import Buffer, ObjectInfo, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.time_left import time_left_s

T = TypeVar("T")
_PAGE_ENTRIES = 1000
"""Of a listing, asked for at a time: what an S3 store answers to one request."""


@dataclass(frozen=True, slots=True)
class DeadlineStatistics:
    abandoned: int = 0
    """Requests that were not answered in time."""
    threads: int = 0
    """As of now, idle ones and those that hang too."""


class DeadlineStore:
    """Wraps a store; `request_timeout_s` bounds each request, or each 1,000 entries of a listing."""

    def __init__(self, store: ObjectStore, request_timeout_s: float = 20.0) -> None:
        self._store = store
        self._timeout_s = request_timeout_s
        self._threads = CallThreads("store-call")
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._abandoned = 0

    def __reduce__(self) -> tuple[type[DeadlineStore], tuple[ObjectStore, float]]:
        return type(self), (self._store, self._timeout_s)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        self._store.create(key, parts)

    def get(self, key: str) -> Buffer:
        return self._bounded(lambda: self._store.get(key), key)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        return self._bounded(lambda: self._store.get_range(key, offset, length), key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        entries = itertools.chain.from_iterable(
            map(self._store.list, [prefix])
        )  # called in a thread
        what = f"a listing of {prefix!r}"
        while page := self._bounded(lambda: list(itertools.islice(entries, _PAGE_ENTRIES)), what):
            yield from page

    def delete(self, key: str) -> None:
        self._bounded(lambda: self._store.delete(key), key)

    def stat(self, key: str) -> ObjectInfo:
        return self._bounded(lambda: self._store.stat(key), key)

    def begin(
        self, read: Read, answers: Answers[Buffer], call: int, then: Callable[[], None]
    ) -> None:
        """Start a read; it is answered in `answers`. `then` is called in its thread when it has succeeded, also if nobody waits any more."""

        def act() -> Buffer:
            data = read.of(self._store)
            then()
            return data

        self._threads.start(act, answers, call)

    def answer(self, answers: Answers[Buffer], timeout_s: float, what: object) -> Answer[Buffer]:
        """The next of `answers`; `Unavailable` if there is none in time."""
        try:
            return answers.get(timeout=max(0.0, timeout_s))
        except Empty:
            raise self._unanswered(what) from None

    def time_left_s(self) -> float:
        """For a request that is begun now."""
        return time_left_s(self._timeout_s)

    def statistics(self) -> DeadlineStatistics:
        return DeadlineStatistics(self._abandoned, self._threads.count)

    def _bounded(self, function: Callable[[], T], what: str) -> T:
        try:
            return self._threads.run(function, self.time_left_s())
        except TimeoutError:
            raise self._unanswered(what) from None

    def _unanswered(self, what: object) -> Unavailable:
        with self._lock:
            self._abandoned += 1
        return Unavailable(
            f"{what}: the store did not answer in time (at most {self._timeout_s:g} s a request)"
        )
