"""The workloads of Table 3 as traces of `dieselfs.cache.advice`, with what their jobs publish.

Six nodes by hash, each with a sixth of the cache and of the requests, decide as one node with all
of both: requests are spread evenly, and policies see rates and ratios. So one node is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.policy_workloads import Trace, bucket_of
from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.policy import REFRESH_S
from dieselfs.cache.advice.replay import CacheSize
from dieselfs.cache.advice.request_trace import Publication, RequestTrace

_KEYS_SEED = 18
Keys: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Told:
    """The orders that jobs tell, and the errors in them."""

    tells_plans: bool = True
    rate_error: float = 0.0
    """Each job's rate is too high or too low by this share."""
    position_error: float = 0.0
    """Each job's position is wrong by this share of its plan, to one side or the other."""
    late_s: float = 0.0
    """Positions and rates are so old."""
    is_lie: bool = False
    """The orders are others than those that are read."""


TRUTH = Told()


def requests_of(trace: Trace, told: Told = TRUTH) -> RequestTrace:
    """Return the trace with its jobs' specifications, which are published every 10 s."""
    partitions, keys = trace.places // trace.segments, _keys(trace)
    return RequestTrace(
        times_s=trace.times_s,
        keys=keys,
        lengths=np.full(len(trace.places), trace.segment_bytes),
        jobs=trace.job_numbers,
        buckets=partitions,
        job_names=[job.name for job in trace.jobs],
        bucket_names=[bucket_of(partition) for partition in range(int(partitions.max()) + 1)],
        publications=list(_publications(trace, keys, told)),
    )


def size_of(trace: Trace, region_segments: int = 1) -> CacheSize:
    """Return the size of the workload's cache, in regions of some segments."""
    room = int(trace.workload.cache_partitions * trace.segments)
    return CacheSize(room * trace.segment_bytes, region_segments * trace.segment_bytes)


def _publications(trace: Trace, keys: Keys, told: Told) -> Iterator[Publication]:
    plans = [_Plan(trace, keys, number, told) for number in range(len(trace.jobs))]
    for now in np.arange(0, trace.duration_s + REFRESH_S, REFRESH_S).tolist():
        for job, plan in zip(trace.jobs, plans, strict=True):
            if job.begin_s <= now < job.ends_s[-1]:
                read = zip(job.buckets, job.ends_s, strict=True)
                finished = frozenset(bucket for bucket, end_s in read if end_s <= now)
                reads = plan.at(now) if told.tells_plans else None
                specification = JobSpecification(
                    job.name, "table", job.buckets, finished, plan=reads
                )
                yield Publication(now, specification)


class _Plan:
    """The order of one job, as it publishes it."""

    def __init__(self, trace: Trace, keys: Keys, number: int, told: Told) -> None:
        mine = trace.job_numbers == number
        self._times_s, self._begin_s = trace.times_s[mine], trace.jobs[number].begin_s
        self._name, self._told = trace.jobs[number].name, told
        # Jobs 1, 3 and 5 of `synchronized` read the same: errors of one sign would not show.
        self._side = 1 if number // 2 % 2 else -1
        order = keys[mine].astype(np.uint32)
        if told.is_lie:
            order = np.random.default_rng(number).permutation(order)
        self._keys = order

    def at(self, now: float) -> PlannedReads:
        told = self._told
        seen_s = max(self._begin_s, now - told.late_s)
        read = int(np.searchsorted(self._times_s, seen_s))
        rate = read / (seen_s - self._begin_s) if seen_s > self._begin_s else 0.0
        position = read + self._side * int(told.position_error * len(self._keys))
        rate *= 1 + self._side * told.rate_error
        position = min(max(0, position), len(self._keys))
        return PlannedReads(self._name, self._keys, position, rate, repeats=False)


def _keys(trace: Trace) -> Keys:
    """Return the requests' keys: well mixed bits in place of the segments' numbers."""
    mixed = np.random.default_rng(_KEYS_SEED).integers(
        0, 2**64, int(trace.places.max()) + 1, dtype=np.uint64
    )
    return mixed[trace.places]
