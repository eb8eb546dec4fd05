"""An overview of all jobs in a directory: what each may use, what it uses, and by whose decision.

A job is listed if it has readers, is declared, or has a decision on its remote IO.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunkstore.stores.byte_budget import FLOOR_BYTES_PER_S
from dieselfs.allocation.allocator.present_jobs import PresentJob, present_jobs
from dieselfs.allocation.directory.decisions import (
    CacheDecision,
    Decisions,
    IoDecision,
    JobEntry,
)
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.allocation.estimator import IdealRate


@dataclass(frozen=True, slots=True)
class JobOverview:
    """A job, its readers, and the decisions that hold for it."""

    name: str
    """Empty for the readers without a job."""
    readers: Sequence[ReaderLease]
    """Those of all its datasets, by node."""
    entry: JobEntry | None
    """Its declaration."""
    present: PresentJob | None
    """The job as an allocator sees it; None if no reader says how large its dataset is."""
    io: IoDecision | None
    cache: CacheDecision | None
    """The decision on the dataset that it reads most."""

    @property
    def allowed_bytes_per_s(self) -> float | None:
        """The remote IO of its readers together, the floor at least; None: no limit."""
        return None if self.io is None else max(float(FLOOR_BYTES_PER_S), self.io.bytes_per_s)

    @property
    def dataset(self) -> str:
        """The name of the dataset that it reads most; empty if none is known."""
        if self.present is not None:
            return self.present.state.job.dataset
        if self.readers:
            return self.readers[0].dataset
        return "" if self.entry is None else self.entry.dataset

    @property
    def dataset_bytes(self) -> int:
        """The size of that dataset; 0 if it is not known."""
        if self.present is not None:
            return self.present.state.job.dataset_bytes
        return 0 if self.entry is None else self.entry.dataset_bytes

    @property
    def main_readers(self) -> Sequence[ReaderLease]:
        """The readers of that dataset."""
        if self.present is None:
            return self.readers
        return [each for each in self.readers if each.dataset_id == self.present.dataset_id]

    @property
    def speed(self) -> IdealRate | None:
        """The ideal rate f*: declared, or measured; None if it is not known."""
        if self.entry is not None:
            return IdealRate(self.entry.speed_bytes_per_s, is_lower_bound=False)
        seen = [each for each in self.main_readers if each.speed_bytes_per_s > 0]
        if not seen:
            return None
        rate = math.fsum(each.speed_bytes_per_s for each in seen)
        return IdealRate(rate, any(each.speed_is_bound for each in seen))

    @property
    def used_bytes_per_s(self) -> float:
        """The remote IO that its readers use."""
        return math.fsum(each.used_bytes_per_s for each in self.readers)

    @property
    def bound(self) -> float:
        """The largest share of its time that one of its readers waits for its budget."""
        return max((each.bound for each in self.readers), default=0.0)

    @property
    def starved(self) -> float:
        """The largest share of its time that one of them waits for the store."""
        return max((each.starved for each in self.readers), default=0.0)

    @property
    def held_bytes(self) -> int:
        """The cached bytes of its dataset, the mean of its readers."""
        return 0 if self.present is None else int(self.present.state.held_bytes)

    @property
    def effective_bytes(self) -> int:
        """The bytes of them that it hits in its present epoch, the mean of its readers."""
        return 0 if self.present is None else int(self.present.state.effective_bytes)

    @property
    def epoch_left_bytes(self) -> float | None:
        """The bytes that are left of its present epoch; None if that is not known."""
        if not self.dataset_bytes or not any(each.epoch_read_bytes for each in self.main_readers):
            return None
        last = max(each.epoch for each in self.main_readers)
        read = sum(each.epoch_read_bytes for each in self.main_readers if each.epoch == last)
        return float(max(0, self.dataset_bytes - read))


def overview(directory: AllocationDirectory) -> list[JobOverview]:
    """Return the overview of all jobs, by name. Raises `RegistryUnavailable`."""
    entries, decisions = directory.jobs(), directory.decisions()
    leases = [lease for lease in directory.leases() if not lease.cache_bytes]  # of no cache node
    declared = {entry.job: entry for entry in entries}
    present = {job.name: job for job in present_jobs(entries, leases)}
    names = {*declared, *(lease.job for lease in leases), *(each.job for each in decisions.ios)}
    return [_of(name, leases, declared, present, decisions) for name in sorted(names)]


def _of(
    name: str,
    leases: Sequence[ReaderLease],
    declared: Mapping[str, JobEntry],
    present: Mapping[str, PresentJob],
    decisions: Decisions,
) -> JobOverview:
    own = [lease for lease in leases if lease.job == name]
    readers = sorted(own, key=lambda lease: (lease.host, lease.pid, lease.reader))
    found = JobOverview(
        name, readers, declared.get(name), present.get(name), decisions.io_of(name), None
    )
    id = _dataset_id(found)
    cache = None if id is None else decisions.cache_of(id)
    return JobOverview(name, readers, found.entry, found.present, found.io, cache)


def _dataset_id(job: JobOverview) -> str | None:
    if job.present is not None:
        return job.present.dataset_id
    if job.readers:
        return job.readers[0].dataset_id
    return None if job.entry is None else job.entry.dataset_id


def age_s(decision: CacheDecision | IoDecision) -> float:
    """Return how old a decision is, as this machine's clock says."""
    return max(0.0, time.time() - decision.stamp / 1e6)
