"""The wrappers that make a store fit to be waited for, in their order:

    retrying       one operation, 60 s in all, or 150 s: it pauses outside of everything below, so it holds no place in the line while it does
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
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    limit: LimitPolicy = field(default_factory=LimitPolicy)
    hedge: HedgePolicy = field(default_factory=HedgePolicy)
    request_timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ResilienceStatistics:
    retry: RetryStatistics
    limit: LimitStatistics
    hedge: HedgeStatistics
    deadline: DeadlineStatistics


class ResilientStore:
    """Wraps `store` in all of them. Thread-safe; usable in forked children; pickled if the store can be, with counters from 0."""

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
        self._retrying.create(key, parts)

    def get(self, key: str) -> Buffer:
        return self._retrying.get(key)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        return self._retrying.get_range(key, offset, length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._retrying.list(prefix)

    def delete(self, key: str) -> None:
        self._retrying.delete(key)

    def stat(self, key: str) -> ObjectInfo:
        return self._retrying.stat(key)

    def statistics(self) -> ResilienceStatistics:
        return ResilienceStatistics(
            self._retrying.statistics(),
            self._limited.statistics(),
            self._hedging.statistics(),
            self._deadline.statistics(),
        )
