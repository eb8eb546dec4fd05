"""Decisions by hand, which go before those of an allocator: checked, published and taken back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.region_files import region_bytes_for
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES
from dieselfs.allocation.allocator.capacity import check_feasible
from dieselfs.allocation.directory.decisions import CacheDecision, IoDecision
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.allocation.jobs import MOST_BYTES_PER_S, MOST_DATASET_BYTES
from dieselfs.cache.jobs.job_name import checked_job
from dieselfs.cache.ssd.byte_sizes import human_size
from dieselfs.errors import UsageError


@dataclass(frozen=True, slots=True)
class QuotaInForce:
    """The quota of a dataset, after a change by hand."""

    dataset: DatasetRef
    decision: CacheDecision | None
    """The decision in force; None: there is none, so the dataset has no quota."""
    was_set: bool
    """True if there was a decision by hand before."""


@dataclass(frozen=True, slots=True)
class RateInForce:
    """The remote IO of a job, after a change by hand."""

    job: str
    decision: IoDecision | None
    """The decision in force; None: there is none, so the job has no limit."""
    was_set: bool
    """True if there was a decision by hand before."""
    readers: int
    """How many readers the job has."""


def set_cache(
    directory: AllocationDirectory, dataset: DatasetRef, size_bytes: int | None
) -> QuotaInForce:
    """Set what a dataset may keep in caches; None takes the decision by hand back.

    Raises `UsageError` for a size below a region of the readers' SSDs, except 0, with which nothing
    is cached; and `RegistryUnavailable`.
    """
    id, before = dataset.id.hex(), directory.decisions()
    if size_bytes is not None:
        _check_quota(size_bytes, least_quota(directory.leases(), id))
    directory.allocate_cache_size(dataset.name, id, size_bytes, origin="hand")
    was_set = any(each.origin == "hand" and each.dataset_id == id for each in before.caches)
    return QuotaInForce(dataset, directory.decisions().cache_of(id), was_set)


def datasets_set_by_hand(directory: AllocationDirectory, name: str) -> list[DatasetRef]:
    """Return the datasets of this name that have a decision by hand, also those that are removed.

    Raises `RegistryUnavailable`.
    """
    return [
        DatasetRef(each.dataset, bytes.fromhex(each.dataset_id))
        for each in directory.decisions().caches
        if each.origin == "hand" and each.dataset == name
    ]


def least_quota(leases: Iterable[ReaderLease], dataset_id: str) -> int:
    """Return the smallest quota with which all readers of a dataset can cache something of it.

    It is the largest region of their SSDs; without an SSD among them, the smallest that there is.
    """
    regions = (lease.region_bytes for lease in leases if lease.dataset_id == dataset_id)
    return max(regions, default=0) or region_bytes_for(0, DEFAULT_SEGMENT_BYTES)


def _check_quota(size_bytes: int, least: int) -> None:
    if not 0 <= size_bytes <= MOST_DATASET_BYTES:
        raise UsageError(
            f"a quota of {size_bytes} bytes", "write for instance 200GiB, or none for no quota"
        )
    check_feasible("a quota", size_bytes, least)


def set_io(directory: AllocationDirectory, job: str, bytes_per_s: float | None) -> RateInForce:
    """Set what a job's readers may together fetch of the store; None takes that back.

    The empty name stands for the readers without a job. 0 means the floor of a reader
    (`FLOOR_BYTES_PER_S`). Raises `UsageError` for what is no rate, and `RegistryUnavailable`.
    """
    if job:
        checked_job(job, "the job")
    if bytes_per_s is not None:
        _check_rate(bytes_per_s)
    before = directory.decisions()
    directory.allocate_remote_io(job, bytes_per_s, origin="hand")
    was_set = any(each.origin == "hand" and each.job == job for each in before.ios)
    readers = sum(lease.job == job for lease in directory.leases())
    return RateInForce(job, directory.decisions().io_of(job), was_set, readers)


def _check_rate(bytes_per_s: float) -> None:
    if not math.isfinite(bytes_per_s) or bytes_per_s < 0:
        raise UsageError(
            f"a remote IO of {bytes_per_s} bytes/s: it must be 0 or more",
            "write for instance 10MB/s",
        )
    if bytes_per_s > MOST_BYTES_PER_S:
        raise UsageError(
            f"a remote IO of {human_size(bytes_per_s)}/s is a mistake of units",
            "write for instance 10MB/s, or none for no limit",
        )
