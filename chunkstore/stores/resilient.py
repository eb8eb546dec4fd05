"""A wrapper that bounds waits for a store: four wrappers, in this order:

    (budgeted      outside of this wrapper: a read waits for its job's budget before any clock runs)
    retrying       one operation, 60 s in all, or 150 s: its pauses are outside of everything below,
                   so a pausing operation holds no place in the line
    limited        one place in the line for each read or upload that a caller waits for
    hedging        one or two requests for each read; the slower one holds no place
    deadline       one thread for each request, 20 s
    the store

A read costs one hand-over to a thread and back, and a few microseconds in each wrapper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chunkstore.after_fork import renew_after_fork
from chunkstore.stores.adaptive_limit import CallLimit, LimitedStore, LimitStatistics, OwnLimit
from chunkstore.stores.aimd import UPLOADS, LimitPolicy
from chunkstore.stores.deadline import DeadlineStatistics, DeadlineStore
from chunkstore.stores.hedging import HedgePolicy, HedgeStatistics, HedgingStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.read_wrapper import StoreWrapper
from chunkstore.stores.retrying import RetryingStore, RetryPolicy, RetryStatistics


@dataclass(frozen=True, slots=True)
class ResiliencePolicy:
    """The policies of the four wrappers."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    limit: LimitPolicy = field(default_factory=LimitPolicy)
    uploads: LimitPolicy = UPLOADS
    hedge: HedgePolicy = field(default_factory=HedgePolicy)
    request_timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ResilienceStatistics:
    """The statistics of the four wrappers."""

    retry: RetryStatistics
    limit: LimitStatistics
    uploads: LimitStatistics
    hedge: HedgeStatistics
    deadline: DeadlineStatistics


class ResilientStore(StoreWrapper):
    """A store inside all four wrappers.

    Thread-safe. A forked child has wrappers of its own, whose counters start at 0. It can be
    pickled if the store can.
    """

    def __init__(
        self,
        store: ObjectStore,
        policy: ResiliencePolicy | None = None,
        has_answered: bool = False,
    ) -> None:
        """`has_answered`: another process has had an answer, so the address is right."""
        self.store = store
        self._policy = policy or ResiliencePolicy()
        self._shared_uploads: CallLimit | None = None
        self._wrap(has_answered)
        renew_after_fork(self)

    def _wrap(self, has_answered: bool) -> None:
        policy = self._policy
        self._deadline = DeadlineStore(self.store, policy.request_timeout_s)
        self._hedging = HedgingStore(self._deadline, policy.hedge)
        uploads = self._shared_uploads or OwnLimit(policy.uploads)
        self._limited = LimitedStore(self._hedging, policy.limit, uploads)
        self._retrying = RetryingStore(self._limited, policy.retry, has_answered=has_answered)
        self._wrapped = self._retrying

    def with_policy(self, policy: ResiliencePolicy) -> ResilientStore:
        """Return the same open store in wrappers of another policy, with counters at 0."""
        return ResilientStore(self.store, policy, self._retrying.has_answered)

    def share_uploads(self, limit: CallLimit) -> None:
        """Upload within the limit of several processes, of which one has had an answer.

        Call it before the store is used.
        """
        self._shared_uploads = limit
        self._wrap(has_answered=True)

    def renew(self) -> None:
        """Create the wrappers again; called in a forked child."""
        self._wrap(self._retrying.has_answered)

    @property
    def chunk_bytes_left(self) -> int:
        """The bytes of chunks that requests of this process have returned for byte budgets.

        Hedges and repeated requests count, and those that were abandoned and answered later.
        """
        return self._deadline.metered_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self._policy, self._retrying.has_answered)

    def statistics(self) -> ResilienceStatistics:
        """Return the current statistics of all wrappers."""
        return ResilienceStatistics(
            self._retrying.statistics(),
            self._limited.statistics(),
            self._limited.upload_statistics(),
            self._hedging.statistics(),
            self._deadline.statistics(),
        )
