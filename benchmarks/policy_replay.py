"""The replay of a trace through a cache policy with a virtual clock, and Belady's optimum.

Six nodes by hash, each with a sixth of the cache and of the requests, decide as one node with all
of both: requests are spread evenly, and policies see rates and ratios. So one node is replayed.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from benchmarks.policy_workloads import Trace, bucket_of
from chunkstore.ssd.policies.jobs import JobSpecification
from chunkstore.ssd.policies.policy import REFRESH_S, CachePolicy
from chunkstore.ssd.policies.tags import Bucket

_KEYS_SEED = 18


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of one policy on one trace, in segments."""

    requests: int
    hits: int
    fills: int
    """Segments that were fetched from the slow store for the cache."""
    written: int
    reinserted: int

    @property
    def absorbed_share(self) -> float:
        """Bytes served by the tier less bytes fetched to fill it, over all bytes.

        A filled segment is served and fetched, so what is left is the hits.
        """
        return self.hits / self.requests


class RegionCache:
    """A cache of segments that is written and evicted by regions, in LRU or FIFO order."""

    def __init__(self, segments: int, region_segments: int, *, is_lru: bool) -> None:
        self.regions = max(1, segments // region_segments)
        self._region_segments = region_segments
        self._is_lru = is_lru
        self._region_of: dict[int, int] = {}
        self._regions: OrderedDict[int, list[int]] = OrderedDict({0: []})
        self._open = 0

    def hit(self, key: int) -> bool:
        """Return whether the segment is cached, and count that as a use of its region."""
        region = self._region_of.get(key)
        if region is None:
            return False
        if self._is_lru:
            self._regions.move_to_end(region)
        return True

    def insert(self, key: int) -> list[int]:
        """Add a segment; return those of the region that had to make room."""
        evicted: list[int] = []
        if len(self._regions[self._open]) >= self._region_segments:
            if len(self._regions) >= self.regions:
                _, evicted = self._regions.popitem(last=False)
                for gone in evicted:
                    del self._region_of[gone]
            self._open += 1
            self._regions[self._open] = []
        elif self._is_lru:
            self._regions.move_to_end(self._open)
        self._regions[self._open].append(key)
        self._region_of[key] = self._open
        return evicted


def replay(
    trace: Trace, policy: CachePolicy, *, is_lru: bool = True, region_segments: int = 1
) -> Replayed:
    """Feed the policy with all requests; refresh it and publish the jobs every 10 s."""
    size = trace.segment_bytes
    cache = RegionCache(
        int(trace.workload.cache_partitions * trace.segments), region_segments, is_lru=is_lru
    )
    keys = _keys(trace)
    bucket_of_key = _buckets(trace, keys)
    names = [job.name for job in trace.jobs]
    ticks = np.arange(0, trace.duration_s + REFRESH_S, REFRESH_S)
    bounds = [*np.searchsorted(trace.times_s, ticks).tolist(), len(keys)]
    numbers = trace.job_numbers.tolist()
    hits = fills = written = reinserted = 0
    requested, admits, fetches = policy.requested, policy.admits, policy.fetches_rejected

    for tick, first, last in zip(ticks.tolist(), bounds, bounds[1:], strict=False):
        _publish(trace, policy, tick)
        policy.refresh(tick)
        for key, number in zip(keys[first:last], numbers[first:last], strict=True):
            bucket = bucket_of_key[key]
            requested(names[number], bucket, key, size)
            if cache.hit(key):
                hits += 1
            elif admits(bucket, key, size):
                fills += 1
                written += 1
                policy.written(size)
                evicted = cache.insert(key)
                reinserted += _reinsert(policy, cache, evicted, bucket_of_key, size)
            elif fetches:
                fills += 1
    return Replayed(len(keys), hits, fills, written + reinserted, reinserted)


def _reinsert(
    policy: CachePolicy,
    cache: RegionCache,
    evicted: list[int],
    bucket_of_key: dict[int, Bucket],
    size: int,
) -> int:
    """Insert the evicted segments that the policy keeps; return how many there are.

    They may evict others, which are asked about as well: at most once through the cache.
    """
    count = 0
    for _ in range(cache.regions):
        kept = [key for key in evicted if policy.reinserts(bucket_of_key[key], key, size)]
        evicted = []
        for key in kept:
            policy.written(size)
            evicted += cache.insert(key)
        count += len(kept)
        if not evicted:
            break
    return count


def _publish(trace: Trace, policy: CachePolicy, now: float) -> None:
    for job in trace.jobs:
        if job.begin_s <= now < job.ends_s[-1]:
            read = zip(job.buckets, job.ends_s, strict=True)
            finished = frozenset(bucket for bucket, end_s in read if end_s <= now)
            policy.publish(JobSpecification(job.name, "table", job.buckets, finished), now)


def _keys(trace: Trace) -> list[int]:
    mixed = np.random.default_rng(_KEYS_SEED).integers(
        0, 2**64, int(trace.places.max()) + 1, dtype=np.uint64
    )
    found: list[int] = mixed[trace.places].tolist()
    return found


def _buckets(trace: Trace, keys: list[int]) -> dict[int, Bucket]:
    partitions = (trace.places // trace.segments).tolist()
    names = {partition: bucket_of(partition) for partition in set(partitions)}
    return {key: names[of] for key, of in zip(keys, partitions, strict=True)}


def optimum(trace: Trace) -> float:
    """Return the share that Belady's optimum with bypass absorbs: no policy absorbs more.

    A segment is cached if its next use is sooner than that of some cached one, which leaves.
    """
    room = int(trace.workload.cache_partitions * trace.segments)
    places = trace.places.tolist()
    never = len(places)
    cached: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    hits = 0
    for place, next_use in zip(places, _next_uses(places), strict=True):
        if cached.pop(place, None) is not None:
            hits += 1
        if next_use == never:
            continue
        while farthest and cached.get(farthest[0][1]) != -farthest[0][0]:
            heapq.heappop(farthest)  # it was used, or has left
        if len(cached) >= room:
            if -farthest[0][0] <= next_use:
                continue
            del cached[heapq.heappop(farthest)[1]]
        cached[place] = next_use
        heapq.heappush(farthest, (-next_use, place))
    return hits / len(places)


def _next_uses(places: list[int]) -> list[int]:
    """Return for each request the number of the next one of its segment, or their count."""
    found = [0] * len(places)
    coming: dict[int, int] = {}
    for at in range(len(places) - 1, -1, -1):
        found[at] = coming.get(places[at], len(places))
        coming[places[at]] = at
    return found
