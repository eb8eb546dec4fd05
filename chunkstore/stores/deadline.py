"""A wrapper with a deadline for every request: a hanging store costs a thread, never its caller.

A request runs in a thread of its own (`chunkstore.call_threads`). The caller waits until the
request's deadline, or until the operation's if that is sooner (`time_left`). An abandoned request
continues on its own, and its answer is dropped.

Only `create` and `check_created` run in their caller's thread, without a bound here: an abandoned
`create` would continue to read buffers that the caller considers free again, and a check may take
many requests. A store bounds each of them itself.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from chunkstore.call_threads import Answer, Answers, CallThreads
from chunkstore.errors import Unavailable
from chunkstore.stores.folder_names import ListsFolders, folders_of
from chunkstore.stores.later_keys import later_keys
from chunkstore.stores.object_store import Buffer, ObjectInfo, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_meter import of_thread
from chunkstore.stores.read_wrapper import StoreWrapper
from chunkstore.stores.time_left import time_left_s

T = TypeVar("T")
_log = logging.getLogger(__name__)

NOTICE_S: Final = 5.0
"""Seconds without an answer after which a log says that the store is waited for.

A request times out after 20 s, and an operation of several requests later still.
"""
_NOTICE_EVERY_S: Final = 60.0
_PAGE_ENTRIES = 1000
"""The entries of a listing that are requested at a time: one answer of an S3 store."""


@dataclass(frozen=True, slots=True)
class DeadlineStatistics:
    """Counts of one `DeadlineStore`."""

    abandoned: int = 0
    """Requests that were not answered in time."""
    threads: int = 0
    """Threads there are now, including idle and hanging ones."""


class DeadlineStore(StoreWrapper):
    """A wrapper in which `request_timeout_s` bounds each request to a store but those of puts.

    In a listing it bounds each 1,000 entries.
    """

    def __init__(
        self, store: ObjectStore, request_timeout_s: float = 20.0, notice_after_s: float = NOTICE_S
    ) -> None:
        super().__init__(store)
        self._timeout_s = request_timeout_s
        self._notice_after_s = notice_after_s
        self._noticed_at: float | None = None
        self._threads = CallThreads("store-call")
        self._lock = threading.Lock()
        self._abandoned = 0
        self.metered_bytes = 0
        """The bytes that requests for threads with a meter have returned."""

    def get(self, key: str) -> Buffer:
        """Return a whole object; raise `Unavailable` if the answer is late."""
        return self._bounded(lambda: self._wrapped.get(key), key)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return a range of an object; raise `Unavailable` if the answer is late."""
        return self._bounded(lambda: self._wrapped.get_range(key, offset, length), key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects; raise `Unavailable` if a page of the listing is late."""
        entries = itertools.chain.from_iterable(
            map(self._wrapped.list, [prefix])
        )  # called in a thread
        what = f"the listing of {prefix!r}"
        while page := self._bounded(lambda: list(itertools.islice(entries, _PAGE_ENTRIES)), what):
            yield from page

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names below a prefix; raise `Unavailable` if the answer is late."""
        if not isinstance(self._wrapped, ListsFolders):
            return list(folders_of(self.list(prefix), prefix))
        folders = self._wrapped.folders
        return self._bounded(lambda: folders(prefix), f"the listing of {prefix!r}")

    def later_keys(self, prefix: str, after: str) -> Sequence[str] | None:
        """Return the keys after one; raise `Unavailable` if the answer is late."""
        what = f"the listing of {prefix!r}"
        return self._bounded(lambda: later_keys(self._wrapped, prefix, after), what)

    def delete(self, key: str) -> None:
        """Delete an object; raise `Unavailable` if the answer is late."""
        self._bounded(lambda: self._wrapped.delete(key), key)

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of an object; raise `Unavailable` if the answer is late."""
        return self._bounded(lambda: self._wrapped.stat(key), key)

    def begin(
        self, read: Read, answers: Answers[Buffer], call: int, then: Callable[[], None]
    ) -> None:
        """Start a read, whose outcome is put into `answers`.

        After a success, `then` is called in the read's thread, even if no caller waits any more.
        Before it, the bytes are counted by the meter of the caller's thread.
        """
        meter = of_thread.meter

        def act() -> Buffer:
            data = read.of(self._wrapped)
            if meter is not None:
                with self._lock:
                    self.metered_bytes += len(data)
                meter.answered(len(data))
            then()
            return data

        self._threads.start(act, answers, call)

    def answer(self, answers: Answers[Buffer], timeout_s: float, what: object) -> Answer[Buffer]:
        """Return the next of `answers`; raise `Unavailable` if there is none in time."""
        return self._answer(answers, timeout_s, what)

    def time_left_s(self) -> float:
        """Return the seconds that a request may take if it starts now."""
        return time_left_s(self._timeout_s)

    def statistics(self) -> DeadlineStatistics:
        """Return the current counts."""
        return DeadlineStatistics(self._abandoned, self._threads.count)

    def _bounded(self, function: Callable[[], T], what: str) -> T:
        answers: Answers[T] = SimpleQueue()
        timeout_s = self.time_left_s()
        self._threads.start(function, answers)
        return self._answer(answers, timeout_s, what).result()

    def _answer(self, answers: Answers[T], timeout_s: float, what: object) -> Answer[T]:
        first_s = min(timeout_s, self._notice_after_s)
        with suppress(Empty):
            return answers.get(timeout=max(0.0, first_s))
        try:
            if timeout_s > first_s:
                self._notice()
                return answers.get(timeout=timeout_s - first_s)
        except Empty:
            pass
        raise self._unanswered(what)

    def _notice(self) -> None:
        """Log, at most once a minute, that the store is waited for."""
        now = time.monotonic()
        with self._lock:
            if self._noticed_at is not None and now - self._noticed_at < _NOTICE_EVERY_S:
                return
            self._noticed_at = now
        left_s = time_left_s(math.inf)
        bound = "" if left_s == math.inf else f" for up to {left_s:.0f} s more"
        _log.warning("the store has not answered for %g s: waiting%s", self._notice_after_s, bound)

    def _unanswered(self, what: object) -> Unavailable:
        with self._lock:
            self._abandoned += 1
        return Unavailable(
            f"{what}: the store did not answer in time (at most {self._timeout_s:g} s a request)"
        )
