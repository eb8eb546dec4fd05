"""The replay of a trace through a cache policy, with a virtual clock.

The policy is the one that tiers run, and it is asked in the tier's order: `requested` at each
request, `admits` at a miss, `reinserts` at an eviction, and a refresh every 10 s. Publications
reach it at the refresh after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from chunkstore.ssd.policies.policy import REFRESH_S, CachePolicy
from dieselfs.cache.advice.cache_model import EvictionOrder, RegionCache
from dieselfs.cache.advice.request_trace import RequestTrace


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of one policy on one trace, in bytes."""

    requested: int
    hits: int
    fills: int
    """The bytes that were fetched from the slow store for the cache."""
    written: int
    """Admitted and reinserted bytes."""
    reinserted: int

    @property
    def absorbed_share(self) -> float:
        """Bytes served by the tier less bytes fetched to fill it, over all bytes.

        What is filled is served and fetched, so what is left is the hits.
        """
        return self.hits / max(1, self.requested)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of the tier, and what it evicts at once."""

    cache_bytes: int
    region_bytes: int = 0
    """0: each segment is evicted alone."""


def replay(
    trace: RequestTrace,
    policy: CachePolicy,
    size: CacheSize,
    order: EvictionOrder = "lru",
    on_refresh: Callable[[float], None] = lambda now: None,
) -> Replayed:
    """Return what a tier of this size, policy and order would have absorbed.

    `on_refresh` is called with the time at each refresh. Takes about 3 µs a request.
    """
    cache = RegionCache(size.cache_bytes, size.region_bytes, order, policy.next_uses)
    tier = _Tier(trace, policy, cache)
    for now, first, last in _intervals(trace, policy):
        policy.refresh(now)
        cache.refresh(now)
        policy.evicts_next(cache.evicts_next())
        on_refresh(now)
        tier.serve(first, last)
    written = tier.admitted + tier.reinserted
    return Replayed(trace.requested_bytes, tier.hits, tier.fills, written, tier.reinserted)


def _intervals(trace: RequestTrace, policy: CachePolicy) -> Iterator[tuple[float, int, int]]:
    """Publish, and return the time and the requests of each interval between two refreshes."""
    ticks = np.arange(trace.begin_s, trace.end_s + REFRESH_S, REFRESH_S)
    bounds = [*np.searchsorted(trace.times_s, ticks).tolist(), len(trace.keys)]
    published = 0
    for now, first, last in zip(ticks.tolist(), bounds, bounds[1:], strict=False):
        while published < len(trace.publications):
            publication = trace.publications[published]
            if publication.time_s > now:
                break
            policy.publish(publication.specification, publication.time_s)
            published += 1
        yield now, first, last


class _Tier:
    """The tier of a replay: its cache, its policy and its counters."""

    def __init__(self, trace: RequestTrace, policy: CachePolicy, cache: RegionCache) -> None:
        self._policy = policy
        self._cache = cache
        self._keys = trace.keys.tolist()
        self._lengths = trace.lengths.tolist()
        self._jobs = [trace.job_names[number] for number in trace.jobs.tolist()]
        self._buckets = [trace.bucket_names[number] for number in trace.buckets.tolist()]
        self.hits = self.fills = self.admitted = self.reinserted = 0

    def serve(self, first: int, last: int) -> None:
        """Serve the requests from row `first` to `last` - 1."""
        requested, admits, hit = self._policy.requested, self._policy.admits, self._cache.hit
        fits, fetches = self._cache.fits, self._policy.fetches_rejected
        columns = (self._jobs, self._buckets, self._keys, self._lengths)
        parts = [column[first:last] for column in columns]
        for row, job, bucket, key, length in zip(range(first, last), *parts, strict=True):
            requested(job, bucket, key, length)
            if hit(key):
                self.hits += length
            elif fits(length) and admits(bucket, key, length):
                self.fills += length
                self._admit(row, key, length)
            elif fetches:
                self.fills += length

    def _admit(self, row: int, key: int, length: int) -> None:
        self.admitted += length
        self._policy.written(length)
        evicted = self._insert(row, key, length)
        if evicted:
            self._reinsert(evicted)

    def _insert(self, row: int, key: int, length: int) -> list[int]:
        evicted = self._cache.insert(key, length, row)
        if evicted:
            self._policy.evicts_next(self._cache.evicts_next())
        return evicted

    def _reinsert(self, evicted: list[int]) -> None:
        """Insert the evicted segments that the policy keeps.

        They may evict others, which are asked about as well: at most once through the cache.
        """
        for _ in range(len(self._cache)):
            kept = [row for row in evicted if self._keeps(row)]
            evicted = []
            for row in kept:
                length = self._lengths[row]
                self.reinserted += length
                self._policy.written(length)
                evicted += self._insert(row, self._keys[row], length)
            if not evicted:
                break

    def _keeps(self, row: int) -> bool:
        return self._policy.reinserts(self._buckets[row], self._keys[row], self._lengths[row])
