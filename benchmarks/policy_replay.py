"""The workloads of Table 3 as traces of `dieselfs.advice`, with what their jobs publish.

Six nodes by hash, each with a sixth of the cache and of the requests, decide as one node with all
of both: requests are spread evenly, and policies see rates and ratios. So one node is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.policy_workloads import Trace, bucket_of
from chunkstore.ssd.policies.jobs import JobSpecification
from chunkstore.ssd.policies.policy import REFRESH_S
from dieselfs.advice.replay import CacheSize
from dieselfs.advice.request_trace import Publication, RequestTrace

_KEYS_SEED = 18


def requests_of(trace: Trace) -> RequestTrace:
    """Return the trace with its jobs' specifications, which are published every 10 s."""
    partitions = trace.places // trace.segments
    return RequestTrace(
        times_s=trace.times_s,
        keys=_keys(trace),
        lengths=np.full(len(trace.places), trace.segment_bytes),
        jobs=trace.job_numbers,
        buckets=partitions,
        job_names=[job.name for job in trace.jobs],
        bucket_names=[bucket_of(partition) for partition in range(int(partitions.max()) + 1)],
        publications=list(_publications(trace)),
    )


def size_of(trace: Trace, region_segments: int = 1) -> CacheSize:
    """Return the size of the workload's cache, in regions of some segments."""
    room = int(trace.workload.cache_partitions * trace.segments)
    return CacheSize(room * trace.segment_bytes, region_segments * trace.segment_bytes)


def _publications(trace: Trace) -> Iterator[Publication]:
    for now in np.arange(0, trace.duration_s + REFRESH_S, REFRESH_S).tolist():
        for job in trace.jobs:
            if job.begin_s <= now < job.ends_s[-1]:
                read = zip(job.buckets, job.ends_s, strict=True)
                finished = frozenset(bucket for bucket, end_s in read if end_s <= now)
                specification = JobSpecification(job.name, "table", job.buckets, finished)
                yield Publication(now, specification)


def _keys(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the requests' keys: well mixed bits in place of the segments' numbers."""
    mixed = np.random.default_rng(_KEYS_SEED).integers(
        0, 2**64, int(trace.places.max()) + 1, dtype=np.uint64
    )
    return mixed[trace.places]
