"""The allocation of one reader: a process that reads one dataset for one job.

It has the job's byte budget in this process, renews the reader's lease every second, and obeys what
the answer says. Everything else that keeps to allocations is told from here: the SSD tier and node
memory get the quotas of datasets.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.chunk_format import DatasetRef
from chunkstore.stores.byte_budget import FLOOR_BYTES_PER_S, BudgetStatistics, ByteBudget
from dieselfs.allocation.directory.decisions import CacheDecision, Decisions, IoDecision
from dieselfs.allocation.directory.directories import allocation_directory
from dieselfs.allocation.directory.port import AllocationDirectory, Renewal
from dieselfs.allocation.directory.reader_lease import LEASE_S, NO_LIMIT, ReaderLease
from dieselfs.allocation.readers.allocation_settings import AllocationSettings
from dieselfs.allocation.readers.division import divided
from dieselfs.allocation.readers.kept_decisions import KeptDecisions
from dieselfs.allocation.readers.observed import (
    CachedDataset,
    EffectiveBytes,
    JobProgress,
    MeasuredSpeed,
    Waits,
)
from dieselfs.cache.jobs.beats import Beats
from dieselfs.errors import RegistryUnavailable

log = logging.getLogger(__name__)

BEAT_S: Final = 1.0
UNNAMED_BEAT_S: Final = 30.0
"""The time between two looks of a reader without a job, while nothing is allocated at all."""
CLOSE_S: Final = 0.5
_WINDOW_S: Final = 5.0
"""The time over which a use is measured: a chunk of 4 MiB may take seconds."""
_BOUND_BEATS: Final = 2
"""The beats over which the waiting is measured, so that a reader that begins shows soon."""
_FIRST_S: Final = 1.0
"""The longest that the first read waits for what the directory says."""

Quotas: TypeAlias = Mapping[bytes, int]
"""The bytes of cache that datasets may use, by their ids."""


@dataclass(frozen=True, slots=True)
class AllocationStatistics:
    """The allocation of a reader, and its use of it."""

    job: str
    reader: str
    job_bytes_per_s: float | None
    """The remote IO of the job; None: no limit."""
    allowed_bytes_per_s: float | None
    """This reader's part of it."""
    used_bytes_per_s: float
    used_bytes: int
    waited_s: float
    """The seconds that readers have waited for the budget, summed over threads."""
    waiting: int
    dataset_bytes: int
    epoch: int | None
    """None: no order is known."""
    observed_at_s: float | None
    """When the following two were seen, by the process's monotonic clock; None: not yet."""
    read_bytes: int
    """The bytes that the readers have read, from wherever they came."""
    read_waited_s: float
    """How long they have waited for it, summed over threads."""
    starved: float
    """The share of the last seconds in which reads waited, though not for the budget."""
    quota_bytes: int | None
    """The quota of the dataset; None: none is allocated."""
    held_bytes: int
    effective_bytes: int
    speed_bytes_per_s: float
    """The rate of the readers while nothing waited; 0: not known."""
    speed_is_bound: bool
    """True if that is only a lower bound."""
    origin: str
    """`hand`, `allocator`, or `none`."""
    age_s: float | None
    """Seconds since the directory answered last; None: never."""


class ReaderAllocation:
    """The allocation of one reader. Thread-safe; pickles to its arguments, as another reader.

    Costs nothing before `begin`, or the first read. A forked child shares the byte budget if that
    was made before; otherwise it is a reader of its own.
    """

    def __init__(
        self,
        settings: AllocationSettings,
        dataset: DatasetRef,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._dataset, self._clock = settings, dataset, clock
        self._beats: Beats[AllocationDirectory] | None = None
        self._pid = 0
        """The process that asks the directory."""
        self._budget: ByteBudget | None = None
        self.id: str
        self._lock: threading.Lock
        self._asked: threading.Event
        """Set when the directory was asked for the first time, whatever came of it."""
        renew_now_and_after_fork(self)
        self._began: float | None = None
        self._answered: float | None = None
        self._samples: deque[tuple[float, int, float]] = deque()
        """The times at which the budget was made and of the last beats, with the bytes used and the
        seconds waited until then."""
        self._waits = Waits()
        self._share = 0.0
        """The part of its job's remote IO that the reader may use once others have gone down."""
        self._kept = KeptDecisions()
        self._io: IoDecision | None = None
        self._decisions: Decisions | None = None
        self._has_any = False
        """True if anything is allocated."""
        self._speed = MeasuredSpeed()
        self._effective = EffectiveBytes(lambda: 0)
        self._progress: Callable[[], JobProgress] | None = None
        self._dataset_bytes = 0
        self._cached = CachedDataset()
        self._read = JobProgress(None, 0, 0.0)
        self._observed_at: float | None = None
        self._epoch: int | None = None
        self._epoch_began_at = 0
        """The bytes that were read before the present epoch began."""
        self._keepers: list[Callable[[Quotas], object]] = []

    def renew(self) -> None:
        """Be another reader in a forked child, unless its parent asks the directory for both."""
        self._lock, asked = threading.Lock(), threading.Event()
        if self._beats is None:
            self.id = os.urandom(8).hex()
        elif self._asked.is_set():
            asked.set()
        self._asked = asked

    def __reduce__(self) -> tuple[Any, ...]:
        return ReaderAllocation, (self._settings, self._dataset)

    # What the reader is; call these before `begin`.

    def reads(self, dataset_bytes: int, progress: Callable[[], JobProgress] | None = None) -> None:
        """Report how large the dataset is, and this progress, if it is known here."""
        self._dataset_bytes, self._progress = dataset_bytes, progress or self._progress

    def measures_fetches(self) -> None:
        """Report what is fetched as what is read, where nothing else says how far readers are."""
        self._progress = self._fetched

    def caches(self, cached: CachedDataset) -> None:
        """Report how much of the dataset is cached here."""
        self._effective, self._cached = EffectiveBytes(cached.held_bytes), cached

    def keeps(self, keep: Callable[[Quotas], object]) -> None:
        """Tell `keep` the quotas of all datasets, now if they are known, and when they change."""
        self._keepers.append(keep)
        if self._decisions is not None:
            keep(_quotas(self._decisions))

    def begin(self) -> None:
        """Ask the directory from now on. Returns at once."""
        with self._lock:
            if self._beats is not None:
                return
            if self._settings.job:
                self._budget = self._new_budget()
            self._pid = os.getpid()
            self._beats = Beats(
                partial(allocation_directory, self._settings.index_url),
                [self],
                self._interval_s,
                name="allocation",
                what="allocations",
            )
        self._beats.start()

    def payer(self) -> ByteBudget | None:
        """Return the budget that pays for what is read; None: nobody does.

        The first call waits until the directory has been asked, up to a second.
        """
        if not self._asked.is_set():
            self.begin()
            if self._settings.job and self._pid == os.getpid():
                self._asked.wait(_FIRST_S)
            self._asked.set()
        return self._budget

    def statistics(self) -> AllocationStatistics:
        """Return what is allocated now, and what was used of it."""
        now, budget, io = self._clock(), self._budget, self._io
        used = None if budget is None else budget.statistics()
        rate, speed = None if budget is None else budget.bytes_per_s, self._speed.rate
        decided = self._decision_on_cache()
        decision = io or decided
        return AllocationStatistics(
            job=self._settings.job,
            reader=self.id,
            job_bytes_per_s=None if io is None else io.bytes_per_s,
            allowed_bytes_per_s=rate,
            used_bytes_per_s=self._used()[0],
            used_bytes=0 if used is None else used.used_bytes,
            waited_s=0.0 if used is None else used.waited_s,
            waiting=0 if used is None else used.waiting,
            dataset_bytes=self._dataset_bytes,
            epoch=self._epoch,
            observed_at_s=self._observed_at,
            read_bytes=self._read.read_bytes,
            read_waited_s=self._read.waited_s,
            starved=self._waits.starved,
            quota_bytes=None if decided is None else decided.size_bytes,
            held_bytes=self._effective.held_bytes,
            effective_bytes=self._effective.effective_bytes,
            speed_bytes_per_s=0.0 if speed is None else speed.bytes_per_s,
            speed_is_bound=speed is None or speed.is_lower_bound,
            origin="none" if decision is None else decision.origin,
            age_s=None if self._answered is None else now - self._answered,
        )

    def release(self) -> None:
        """Let all reads through from now on, because the process ends: none fails for waiting."""
        self._asked.set()
        if self._budget is not None:
            self._budget.close()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Let all reads through, and give back the lease within this time."""
        self.release()
        if self._beats is not None:
            self._beats.close(timeout_s)

    # The thread of the beats calls the methods below.

    def beat(self, directory: AllocationDirectory) -> None:
        """Renew the lease, and obey. Raises `RegistryUnavailable`; then all stays as it is."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        self._observe(now)
        try:
            answer = self._kept.beat(directory.beat(self._lease(now), LEASE_S))
            self._answered, self._has_any = now, answer.has_any
            self._obey(answer)
            if self._decisions is None or answer.cache_version != self._decisions.version:
                self._learn(self._kept.decisions(directory.decisions()))
        except RegistryUnavailable as error:
            if self._settings.job:
                raise
            log.debug("nothing is known of allocations: %s", error)
        finally:
            self._asked.set()

    def end(self, directory: AllocationDirectory) -> None:
        """Give back the lease."""
        directory.withdraw(self.id)

    def _lease(self, now: float) -> ReaderLease:
        rate, speed = None if self._budget is None else self._budget.bytes_per_s, self._speed.rate
        used, bound = self._used()
        held, effective = self._effective.held_bytes, self._effective.effective_bytes
        charged = self._cached.charged(self._dataset_bytes, held, effective)
        return ReaderLease(
            reader=self.id,
            job=self._settings.job,
            host=os.uname().nodename[:255],
            pid=os.getpid(),
            dataset=self._dataset.name,
            dataset_id=self._dataset.id.hex(),
            dataset_bytes=charged.dataset_bytes,
            epoch=self._epoch or 0,
            epoch_read_bytes=max(0, self._read.read_bytes - self._epoch_began_at),
            allowed_bytes_per_s=NO_LIMIT if rate is None else rate,
            used_bytes_per_s=used,
            bound=bound,
            starved=self._waits.starved,
            held_bytes=charged.held_bytes,
            effective_bytes=charged.effective_bytes,
            region_bytes=self._cached.region_bytes(),
            speed_bytes_per_s=0.0 if speed is None else speed.bytes_per_s,
            speed_is_bound=speed is None or speed.is_lower_bound,
            age_s=now - (self._began or now),
        )

    def _decision_on_cache(self) -> CacheDecision | None:
        decisions = self._decisions
        return None if decisions is None else decisions.cache_of(self._dataset.id.hex())

    def _interval_s(self) -> float:
        is_concerned = self._settings.job or self._io is not None or self._has_any
        return BEAT_S if is_concerned else UNNAMED_BEAT_S

    def _observe(self, now: float) -> None:
        if self._progress is not None:
            progress = self._progress()
            self._speed.note(progress, now)
            if progress.epoch != self._epoch:
                self._epoch, self._epoch_began_at = progress.epoch, self._read.read_bytes
            self._read, self._observed_at = progress, now
        self._effective.note(self._epoch)
        found = None if self._budget is None else self._budget.statistics()
        self._waits.note(now, self._read.waited_s, 0.0 if found is None else found.bound_s)
        if found is not None:
            self._samples.append((now, found.used_bytes, found.waited_s))
            # A beat that is late still shows what was used since the one before.
            while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
                self._samples.popleft()

    def _fetched(self) -> JobProgress:
        found = BudgetStatistics() if self._budget is None else self._budget.statistics()
        return JobProgress(None, found.used_bytes, found.waited_s)

    def _used(self) -> tuple[float, float]:
        """Return the bytes a second that were used, and the share of the time spent waiting."""
        samples = self._samples
        if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
            return 0.0, 0.0
        (since, used, _), (now, used_now, waited_now) = samples[0], samples[-1]
        lately, _, waited = samples[max(0, len(samples) - 1 - _BOUND_BEATS)]
        rate = max(0.0, used_now - used) / (now - since)
        return rate, min(1.0, (waited_now - waited) / (now - lately))

    def _obey(self, answer: Renewal) -> None:
        """Allow what the job's remote IO and the needs of its readers give this one.

        Less counts at once, and more a beat later, when the others have gone down.
        """
        self._io = io = answer.io
        if io is None:
            if self._budget is not None:
                self._budget.set_rate(None)
            return
        total = max(float(FLOOR_BYTES_PER_S), io.bytes_per_s)
        readers = [each for each in answer.peers if not each.cache_bytes]
        share = divided(readers, total).get(self.id, total) / total
        if len(readers) <= 1:
            self._share = share
        allowed, self._share = min(share, self._share), share
        if self._budget is None:
            self._budget = self._new_budget()
        self._budget.set_rate(allowed * total)

    def _new_budget(self) -> ByteBudget:
        """Return a budget of which nothing is used; what is used until the next beat counts too."""
        self._samples.append((self._clock(), 0, 0.0))
        return ByteBudget()

    def _learn(self, decisions: Decisions) -> None:
        self._decisions = decisions
        for keep in self._keepers:
            keep(_quotas(decisions))


def _quotas(decisions: Decisions) -> Quotas:
    found = decisions.caches_in_force.values()
    return {bytes.fromhex(each.dataset_id): each.size_bytes for each in found}
