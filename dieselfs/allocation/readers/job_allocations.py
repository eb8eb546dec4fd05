"""The allocations of all jobs for which one process fetches a dataset.

A process reads for a job of its own. If it leads a task whose members are of other jobs, or serves
readers of several, it fetches for those too. Each such job has a reader of its own here, with a
byte budget and a lease, so the job's readers elsewhere divide its remote IO with this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.chunk_format import DatasetRef
from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.read_turn import Payer
from dieselfs.allocation.readers.allocation_settings import AllocationSettings
from dieselfs.allocation.readers.observed import CachedDataset
from dieselfs.allocation.readers.reader_allocation import CLOSE_S, Quotas, ReaderAllocation
from dieselfs.cache.ports.job_payers import pays_nothing


class JobAllocations:
    """The allocations. Implements `JobPayers`.

    They pickle as those of other readers of the dataset, which measure what they fetch.
    """

    def __init__(
        self, settings: AllocationSettings, dataset: DatasetRef, *, has_tier: bool = False
    ) -> None:
        """Create them for a process that has these settings itself. Costs nothing.

        With `has_tier` an SSD tier keeps the dataset's quota, and node memory none of it.
        """
        self._settings, self._dataset, self._has_tier = settings, dataset, has_tier
        self.own = ReaderAllocation(settings, dataset) if settings.is_asked else None
        """The allocation of the process's own job; None: it has none, and takes what it gets."""
        self._others: dict[str, ReaderAllocation] = {}
        self._members: dict[str, int] = {}
        self._dataset_bytes = 0
        self._serves_members = self._is_released = False
        self._cached = CachedDataset()
        self._keepers: list[Callable[[Quotas], object]] = []
        self._lock: threading.Lock
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        """Start with a free lock in a forked child."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _allocations, (self._settings, self._dataset, self._has_tier, self._dataset_bytes)

    def payer(self) -> ByteBudget | None:
        """Return the budget of the process's own job; None: it pays nothing."""
        return None if self.own is None else self.own.payer()

    def join(self, job: str | None, *, measured: bool = False) -> Payer:
        """See `JobPayers`. `measured`: what it fetches here is its speed, as nothing else says."""
        if job is None:
            return pays_nothing
        with self._lock:
            own = self.own if job == self._settings.job else None
            found = own or self._others.get(job)
            if found is None:
                found = self._others[job] = self._made(job)
            self._members[job] = self._members.get(job, 0) + 1
            if own is not None and not self._serves_members:
                return own.payer
            if measured or self._serves_members:
                found.measures_fetches()
        found.begin()
        if self._is_released:
            found.release()
        return found.payer

    def leave(self, job: str | None) -> None:
        """See `JobPayers`."""
        with self._lock:
            if job is None or job not in self._members:
                return
            self._members[job] -= 1
            if self._members[job]:
                return
            del self._members[job]
            if self.own is not None and job == self._settings.job:
                if not self._serves_members:  # it is the process's own, with members or without
                    return
                ended, self.own = self.own, self._made(job)
            else:
                ended = self._others.pop(job)
        ended.close(0.0)

    def serve_members(self) -> None:
        """See `JobPayers`."""
        with self._lock:  # members may have joined already
            self._serves_members = True
            self.measures_fetches()

    def reads(self, dataset_bytes: int) -> None:
        """Report how large the dataset is, for all jobs."""
        with self._lock:
            self._dataset_bytes = dataset_bytes
            for each in self._all():
                each.reads(dataset_bytes)

    def measures_fetches(self) -> None:
        """Report what this process fetches as what it reads, where nothing else says that."""
        if self.own is not None:
            self.own.measures_fetches()

    def caches(self, cached: CachedDataset) -> None:
        """Report how much of the dataset is cached here."""
        with self._lock:
            self._cached = cached
            for each in self._all():
                each.caches(cached)

    def keeps(self, keep: Callable[[Quotas], object]) -> None:
        """Tell `keep` the quotas of all datasets when they are known, and when they change."""
        with self._lock:
            self._keepers.append(keep)
            found = self._all()
        for each in found:
            each.keeps(keep)

    def keeps_memory(
        self, set_quota: Callable[[int | None], None], held_bytes: Callable[[], int]
    ) -> None:
        """See `JobPayers`. Behind a tier node memory has what plans need alone."""

        def keep(quotas: Quotas) -> None:
            quota = quotas.get(self._dataset.id)
            set_quota(0 if self._has_tier and quota is not None else quota)

        if not self._has_tier:
            self.caches(CachedDataset(held_bytes))
        self.keeps(keep)

    def release(self) -> None:
        """Let all reads through from now on, because the process ends."""
        self._is_released = True
        for each in self._all():
            each.release()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """See `JobPayers`."""
        for each in self._all()[1:]:
            each.close(0.0)
        for each in self._all():
            each.close(timeout_s)

    def _all(self) -> list[ReaderAllocation]:
        own = [] if self.own is None else [self.own]
        return [*own, *self._others.values()]

    def _made(self, job: str) -> ReaderAllocation:
        made = ReaderAllocation(AllocationSettings(job, self._settings.index_url), self._dataset)
        made.reads(self._dataset_bytes)
        made.caches(self._cached)
        for keep in self._keepers:
            made.keeps(keep)
        return made


def _allocations(
    settings: AllocationSettings, dataset: DatasetRef, has_tier: bool, dataset_bytes: int
) -> JobAllocations:
    made = JobAllocations(settings, dataset, has_tier=has_tier)
    made.reads(dataset_bytes)
    made.measures_fetches()
    return made
