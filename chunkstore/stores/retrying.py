"""A wrapper that repeats operations which the store could not answer.

Pauses grow and are drawn at random (full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS
2015), so that many clients of a recovering store do not return at the same moment.

Only `Unavailable` is tried again. The policy's `operation_timeout_s` bounds the whole operation
with its tries and pauses, for every wait below it (`time_left`). A command at a terminal gives up
after four tries; training waits for the store to return (docs/decisions/0010).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from chunkstore.errors import AlreadyExists, NotFound, Unavailable
from chunkstore.stores.folder_names import folder_names
from chunkstore.stores.later_keys import later_keys
from chunkstore.stores.object_store import (
    Buffer,
    ObjectInfo,
    ObjectStore,
    check_created,
    forget_copy,
)
from chunkstore.stores.outage import Outage
from chunkstore.stores.time_left import OperationEnds, time_left_s

T = TypeVar("T")
_log = logging.getLogger(__name__)
_COMPARED_BYTES = 4 << 20
_TRIES_AT_FIRST = 4

PATIENCE_S = 150.0
"""Seconds to wait for a store that is out.

The restart of a server, the failover of a cluster or the boot of a switch takes a minute or two.
"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of tries, the pauses between them, and the bound on the whole operation."""

    tries: int | None = 4
    """The number of tries; None: as many as the time allows.

    A store that has never answered gets four tries, because its address is more likely to be wrong.
    """
    first_pause_s: float = 0.1
    """The longest pause after the first failure; it doubles with each further one.

    Four tries thus pause 0.35 s on average, and 0.7 s at most.
    """
    longest_pause_s: float = 5.0
    """The longest pause: a store that is back is asked again after this time at the latest."""
    operation_timeout_s: float = 60.0

    @classmethod
    def patient(cls, patience_s: float = PATIENCE_S) -> RetryPolicy:
        """Return a policy that waits `patience_s` for a store."""
        return cls(tries=None, operation_timeout_s=patience_s)

    def longest_pause_after(self, failures: int) -> float:
        """Return the longest pause after that many failures."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 64))


@dataclass(frozen=True, slots=True)
class RetryStatistics:
    """Counts of one `RetryingStore`."""

    retries: int = 0
    given_up: int = 0
    """Operations that finally failed with `Unavailable`."""


class RetryingStore:
    """A wrapper that tries every operation of a store again while it is `Unavailable`.

    `create` compares the content if its key is taken after an unanswered try, because that try may
    have succeeded. Parts that can be iterated only once are tried once.
    """

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy | None = None,
        *,
        has_answered: bool = False,
        seed: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self.has_answered = has_answered
        """True if the store has answered, in this process or in the one that handed it on."""
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._outage = Outage()
        self._retries = self._given_up = 0

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object; a retry succeeds if an unanswered earlier try did."""
        if iter(parts) is parts:
            self._store.create(key, parts)
            return
        unanswered = False

        def act() -> None:
            nonlocal unanswered
            try:
                self._store.create(key, parts)
            except Unavailable:
                unanswered = True
                raise
            except AlreadyExists:
                if not (unanswered and self._holds(key, parts)):
                    raise

        self._persist(act)

    def get(self, key: str) -> Buffer:
        """Return a whole object, with retries."""
        return self._persist(lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return a range of an object, with retries."""
        return self._persist(lambda: self._store.get_range(key, offset, length))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects; start an interrupted listing again, without the entries already yielded.

        The method keeps the yielded keys in memory, some 150 bytes each.
        """
        given: set[str] = set()
        failures, ends = 0, 0.0
        while True:
            try:
                for info in self._store.list(prefix):
                    if info.key not in given:
                        given.add(info.key)
                        yield info
                self._answered()
                return
            except Unavailable as error:
                now = time.monotonic()
                failures += 1
                if failures == 1:  # the time that the reader of the listing takes does not count
                    ends = now + time_left_s(self._policy.operation_timeout_s)
                pause_s = self._pause_after(failures, error, ends - now)
            self._sleep(pause_s)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names below a prefix, with retries."""
        return self._persist(lambda: folder_names(self._store, prefix))

    def later_keys(self, prefix: str, after: str) -> Sequence[str] | None:
        """Return the keys after one, with retries."""
        return self._persist(lambda: later_keys(self._store, prefix, after))

    def delete(self, key: str) -> None:
        """Delete an object, with retries."""
        self._persist(lambda: self._store.delete(key))

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of an object, with retries."""
        return self._persist(lambda: self._store.stat(key))

    def forget(self, key: str) -> bool:
        """See `KeepsCopies`; the wrapped store may keep copies."""
        return forget_copy(self._store, key)

    def check_created(self, sizes: Mapping[str, int]) -> None:
        """See `DefersChecks`, with retries."""
        self._persist(lambda: check_created(self._store, sizes))

    def statistics(self) -> RetryStatistics:
        """Return the current counts."""
        return RetryStatistics(self._retries, self._given_up)

    def _persist(self, act: Callable[[], T]) -> T:
        failures = 0
        with OperationEnds(self._policy.operation_timeout_s):
            while True:
                try:
                    result = act()
                except Unavailable as error:
                    failures += 1
                    left_s = time_left_s(self._policy.operation_timeout_s)
                    pause_s = self._pause_after(failures, error, left_s)
                except Exception:
                    self._answered()
                    raise
                else:
                    self._answered()
                    return result
                self._sleep(pause_s)

    def _answered(self) -> None:
        self.has_answered = True
        self._outage.answered()

    def _pause_after(self, failures: int, error: Unavailable, left_s: float) -> float:
        """Return the pause in seconds, or raise the error if the tries or the time are used up."""
        with self._lock:
            pause_s = self._random.uniform(0, self._policy.longest_pause_after(failures))
            if self._gives_up(failures, pause_s, left_s):
                self._given_up += 1
                raise error
            self._retries += 1
        self._outage.failed(error, self._policy.operation_timeout_s)
        _log.debug("try %s failed, the next one follows in %.2f s: %s", failures, pause_s, error)
        return pause_s

    def _gives_up(self, failures: int, pause_s: float, left_s: float) -> bool:
        tries = self._policy.tries
        if tries is None and not self.has_answered:
            tries = _TRIES_AT_FIRST
        return (tries is not None and failures >= tries) or pause_s >= left_s

    def _holds(self, key: str, parts: Iterable[Buffer]) -> bool:
        """Return whether the object is the concatenation of `parts`."""
        offset = 0
        try:
            for block in _blocks(parts):
                if self._store.get_range(key, offset, len(block)) != block:
                    return False
                offset += len(block)
            return self._store.stat(key).size_bytes == offset
        except NotFound:  # it was just deleted
            return False


def _blocks(parts: Iterable[Buffer]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of some megabytes."""
    gathered: list[Buffer] = []
    size = 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= _COMPARED_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if size:
        yield b"".join(gathered)
