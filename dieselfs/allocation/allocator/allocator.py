"""The allocator's beat: see who is there, ask the policy, publish what has changed."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dieselfs.allocation.allocator.present_jobs import PresentJob, present_jobs
from dieselfs.allocation.allocator.remembered import Remembered
from dieselfs.allocation.allocator.remote_io import LentOut
from dieselfs.allocation.allocator.store_rate import StoreRate
from dieselfs.allocation.directory.decisions import Decisions
from dieselfs.allocation.directory.port import SETTLED_S, AllocationDirectory
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.allocation.jobs import Allocation, Policy, Resources

log = logging.getLogger(__name__)

BEAT_S: Final = 1.0
LEAD_S: Final = 4.0
"""The lease of the leader: another allocator takes over within 5 s."""
EVERY_S: Final = 10.0
"""The longest time between two allocations; a change of jobs or demands makes one at once."""
SMALL: Final = 0.02
"""A change of less is not published."""
_CHANGED: Final = 0.05
"""A demand that changes by this much is allocated for at once."""

Readers = Callable[[Sequence[ReaderLease], Decisions], Sequence[ReaderLease]]
"""Returns the leases of all readers: those of the directory, which it is given, and others."""


def directory_readers(leases: Sequence[ReaderLease], decisions: Decisions) -> Sequence[ReaderLease]:
    """Return the leases of the directory alone."""
    return leases


@dataclass(frozen=True, slots=True)
class Allocated:
    """The allocation of a beat."""

    jobs: Sequence[PresentJob]
    total: Resources
    cache_bytes: Mapping[str, int]
    """The quotas by the id of the dataset."""
    io_bytes_per_s: Mapping[str, float]
    """The rates by the name of the job."""


class Allocator:
    """Allocates while it leads. One thread uses it."""

    def __init__(
        self,
        policy: Policy,
        capacity: Callable[[], tuple[int, float]],
        clock: Callable[[], float] = time.monotonic,
        readers: Readers = directory_readers,
    ) -> None:
        """`capacity` returns the bytes of cache and the bytes a second of remote IO that there are.

        Raising `RegistryUnavailable`, it says that it does not know; then nothing is allocated.
        `readers` adds leases that stand for readers which publish none.
        """
        self._readers = readers
        self._policy, self._capacity, self._clock = policy, capacity, clock
        self.id = f"{os.uname().nodename}:{os.getpid()}:{os.urandom(4).hex()}"
        self._lent, self._remembered = LentOut(), Remembered()
        self._life = 0
        self._store, self._is_slow = StoreRate(), False
        self._allocated_at = -math.inf
        self._seen: tuple[object, ...] = ()
        self._demands: Mapping[str, float] = {}
        self._rising: Allocated | None = None
        """The allocation whose raises are due, once all readers have seen what was lowered."""

    def beat(self, directory: AllocationDirectory) -> Allocated | str | None:
        """Allocate if that is due. Raises `RegistryUnavailable`.

        Less is published at once, and more at the next beat, so the sum is never above the total
        whenever a reader looks. Returns the allocation if anything of it is published, None if not,
        or the id of another allocator that leads.
        """
        leader = directory.lead(self.id, LEAD_S)
        if leader != self.id:
            self._allocated_at = -math.inf
            return leader
        decisions, now = directory.decisions(), self._clock()
        if decisions.awake_s < SETTLED_S:  # readers that are not back yet would count as gone
            return None
        if decisions.life != self._life:  # nothing of what was allocated is there any more
            self._life, self._rising, self._allocated_at = decisions.life, None, -math.inf
        entries = directory.jobs()
        if self._remembered.restore(directory, decisions, entries):
            return None
        rising, self._rising = self._rising, None
        if rising is not None:
            _News.of(rising, decisions, raises=True).publish(rising, directory)
        leases = directory.leases()
        jobs = present_jobs(entries, self._readers(leases, decisions))
        total = self._total(jobs, leases, decisions, now)
        if rising is not None or not self._is_due(jobs, total, now):
            return None
        found = self._allocate(jobs, total, decisions, now)
        less, more = (_News.of(found, decisions, raises=raises) for raises in (False, True))
        less.publish(found, directory)
        self._rising = found if more else None
        return found if less or more else None

    def end(self, directory: AllocationDirectory) -> None:
        """Let another allocator lead; what was allocated stays."""
        directory.resign(self.id)

    def _total(
        self,
        jobs: Sequence[PresentJob],
        leases: Sequence[ReaderLease],
        decisions: Decisions,
        now: float,
    ) -> Resources:
        """Return what there is to divide: what was set by hand is given away already."""
        cache_bytes, promised = self._capacity()
        io_bytes_per_s = self._store.note(leases, promised, now)
        self._say(io_bytes_per_s, promised)
        caches = sum(each.size_bytes for each in decisions.caches if each.origin == "hand")
        ios = math.fsum(each.bytes_per_s for each in decisions.ios if each.origin == "hand")
        gpus = sum(job.state.job.gpus for job in jobs)
        return Resources(gpus, max(0, cache_bytes - caches), max(0.0, io_bytes_per_s - ios))

    def _say(self, given: float, promised: float) -> None:
        """Log once that the store has become slow, and once that it is so no longer."""
        is_slow = given < promised
        if is_slow and not self._is_slow:
            log.warning(
                "the store gives about %.1f MiB/s, and not the %.1f MiB/s of --remote-io: jobs "
                "wait for it below what they may use; as long as that is so, less is divided",
                *(given / (1 << 20), promised / (1 << 20)),
            )
        elif self._is_slow and not is_slow:
            log.warning("the store gives again what --remote-io says")
        self._is_slow = is_slow

    def _is_due(self, jobs: Sequence[PresentJob], total: Resources, now: float) -> bool:
        """Return whether to allocate now, since jobs, capacity or demands have changed."""
        seen = (total, *((job.name, job.dataset_id) for job in jobs))
        demands = {job.name: job.state.io_demand for job in jobs}
        waits = any(job.bound > _CHANGED for job in jobs)
        changed = (
            seen != self._seen
            or waits
            or any(
                _differs(demand, self._demands.get(name), _CHANGED)
                for name, demand in demands.items()
            )
        )
        if not changed and now - self._allocated_at < EVERY_S:
            return False
        self._seen, self._demands, self._allocated_at = seen, demands, now
        return True

    def _allocate(
        self, jobs: Sequence[PresentJob], total: Resources, decisions: Decisions, now: float
    ) -> Allocated:
        by_hand = {each.job for each in decisions.ios if each.origin == "hand"}
        fixed = {each.dataset_id for each in decisions.caches if each.origin == "hand"}
        wanted = quotas = _scheduled(self._policy, jobs, total)
        if fixed:  # what is set by hand is no part of the total, so its jobs take none of that
            others = [job for job in jobs if job.dataset_id not in fixed]
            quotas = _scheduled(self._policy, others, total)
        ids = {job.state.job.dataset: job.dataset_id for job in jobs}
        allowed = {each.job: each.bytes_per_s for each in decisions.ios}
        free = [job for job in jobs if job.name not in by_hand]
        ios = self._lent.divided(free, wanted.io_bytes_per_s, total.io_bytes_per_s, allowed, now)
        caches = {ids[dataset]: size for dataset, size in quotas.cache_bytes.items()}
        return Allocated(jobs, total, caches, ios)


def _scheduled(policy: Policy, jobs: Sequence[PresentJob], total: Resources) -> Allocation:
    """Ask the policy; jobs that have read nothing yet have an equal part of the remote IO."""
    seen = [job.state for job in jobs if job.is_seen]
    part = total.io_bytes_per_s / max(1, len(jobs))
    found = policy.schedule(seen, replace(total, io_bytes_per_s=part * len(seen)))
    new = {job.state.job.name: part for job in jobs if not job.is_seen}
    return replace(found, io_bytes_per_s={**found.io_bytes_per_s, **new})


@dataclass(frozen=True, slots=True)
class _News:
    """The decisions that differ from those of the directory; None withdraws one."""

    cache_bytes: Mapping[str, float | None]
    io_bytes_per_s: Mapping[str, float | None]

    @classmethod
    def of(cls, found: Allocated, decisions: Decisions, *, raises: bool) -> _News:
        """Return the decisions that give more, or those that give less."""
        caches = [each for each in decisions.caches if each.origin == "allocator"]
        ios = [each for each in decisions.ios if each.origin == "allocator"]
        sizes = {each.dataset_id: float(each.size_bytes) for each in caches}
        rates = {each.job: each.bytes_per_s for each in ios}
        return cls(
            _changes(sizes, found.cache_bytes, raises=raises),
            _changes(rates, found.io_bytes_per_s, raises=raises),
        )

    def __bool__(self) -> bool:
        return bool(self.cache_bytes or self.io_bytes_per_s)

    def publish(self, found: Allocated, directory: AllocationDirectory) -> None:
        """Publish them. Raises `RegistryUnavailable`."""
        names = {job.dataset_id: job.state.job.dataset for job in found.jobs}
        for id, size in self.cache_bytes.items():
            whole = None if size is None else int(size)
            directory.allocate_cache_size(names.get(id, id), id, whole, origin="allocator")
        for job, rate in self.io_bytes_per_s.items():
            directory.allocate_remote_io(job, rate, origin="allocator")


def _changes(
    former: Mapping[str, float], new: Mapping[str, float], *, raises: bool
) -> dict[str, float | None]:
    """Return the values to publish, None for what is gone.

    Small changes are none, unless what stays would be more than there is to divide.
    """
    least = SMALL if raises or _fits(former, new) else 0.0
    gone: dict[str, float | None] = {} if raises else dict.fromkeys(former.keys() - new.keys())
    return gone | {
        key: value
        for key, value in new.items()
        if _differs(value, former.get(key), least) and (value > former.get(key, 0.0)) == raises
    }


def _fits(former: Mapping[str, float], new: Mapping[str, float]) -> bool:
    """Return whether the sum stays within that of the new values without the small changes."""
    left = (
        value if _differs(value, former.get(key), SMALL) else former[key]
        for key, value in new.items()
    )
    return math.fsum(left) <= math.fsum(new.values()) * (1 + 1e-9)


def _differs(value: float, former: float | None, most: float) -> bool:
    return former is None or abs(value - former) > most * max(abs(value), abs(former))
