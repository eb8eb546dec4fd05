"""A wrapper that bounds waits for a store: four wrappers, in this order:

    retrying       one operation, 60 s in all, or 150 s: its pauses are outside of everything below,
                   so a pausing operation holds no place in the line
    limited        one place in the line for each read that a caller waits for
    hedging        one or two requests for each read; the slower one holds no place
    deadline       one thread for each request, 20 s
    the store

A read costs one hand-over to a thread and back, and a few microseconds in each wrapper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chunkstore.stores.adaptive_limit import LimitedStore, LimitStatistics
from chunkstore.stores.aimd import LimitPolicy
from chunkstore.stores.deadline import DeadlineStatistics, DeadlineStore
from chunkstore.stores.hedging import HedgePolicy, HedgeStatistics, HedgingStore
from chunkstore.stores.object_store import Buffer, ObjectInfo, ObjectStore
from chunkstore.stores.retrying import RetryingStore, RetryPolicy, RetryStatistics


@dataclass(frozen=True, slots=True)
class ResiliencePolicy:
    """The policies of the four wrappers."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    limit: LimitPolicy = field(default_factory=LimitPolicy)
    hedge: HedgePolicy = field(default_factory=HedgePolicy)
    request_timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ResilienceStatistics:
    """The statistics of the four wrappers."""

    retry: RetryStatistics
    limit: LimitStatistics
    hedge: HedgeStatistics
    deadline: DeadlineStatistics


class ResilientStore:
    """A store inside all four wrappers.

    Thread-safe and usable in forked children. It can be pickled if the store can; its counters then
    start at 0.
    """

    def __init__(self, store: ObjectStore, policy: ResiliencePolicy | None = None) -> None:
        self.store = store
        self._policy = policy = policy or ResiliencePolicy()
        self._deadline = DeadlineStore(store, policy.request_timeout_s)
        self._hedging = HedgingStore(self._deadline, policy.hedge)
        self._limited = LimitedStore(self._hedging, policy.limit)
        self._retrying = RetryingStore(self._limited, policy.retry)

    def __reduce__(
        self,
    ) -> tuple[type[ResilientStore], tuple[ObjectStore, ResiliencePolicy], bool]:
        return type(self), (self.store, self._policy), self._retrying.has_answered

    def __setstate__(self, has_answered: bool) -> None:
        self._retrying.has_answered = has_answered

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object (`RetryingStore`)."""
        self._retrying.create(key, parts)

    def get(self, key: str) -> Buffer:
        """Return a whole object."""
        return self._retrying.get(key)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return a range of an object."""
        return self._retrying.get_range(key, offset, length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects."""
        return self._retrying.list(prefix)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._retrying.delete(key)

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of an object."""
        return self._retrying.stat(key)

    def statistics(self) -> ResilienceStatistics:
        """Return the current statistics of all wrappers."""
        return ResilienceStatistics(
            self._retrying.statistics(),
            self._limited.statistics(),
            self._hedging.statistics(),
            self._deadline.statistics(),
        )
