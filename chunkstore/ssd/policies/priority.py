"""Priorities of buckets: how often each segment will likely be read soon (Tectonic-Shift §5.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, get_args

from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.request_history import RequestedBytes
from chunkstore.ssd.policies.segment_buckets import Bucket

Priority = Literal["historic", "future", "hybrid"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
Priorities = Mapping[Bucket, float]


def historic(requested: Mapping[Bucket, RequestedBytes]) -> Priorities:
    """Return how often each byte that was read in the window was read, on average."""
    return {
        bucket: found.total / found.unique
        for bucket, found in requested.items()
        if found.unique > 0
    }


def future(jobs: Iterable[JobSpecification], active: Collection[str]) -> Priorities:
    """Return how many active jobs have yet to finish each bucket.

    A job is active if it has requested something in the window, or is known to read elsewhere. It
    counts once, even if its specification names a bucket twice. One that repeats counts once more,
    for its next pass.
    """
    readers: Counter[Bucket] = Counter()
    for job in jobs:
        if job.is_reading or job.job in active:
            readers.update(set(job.buckets) - job.finished)
            if job.repeats:
                readers.update(set(job.buckets))
    return {bucket: float(count) for bucket, count in readers.items()}


def hybrid(past: Priorities, coming: Priorities) -> Priorities:
    """Return the greater of both priorities for each bucket."""
    return {
        bucket: max(past.get(bucket, 0.0), coming.get(bucket, 0.0)) for bucket in {*past, *coming}
    }
