"""Belady's optimum with bypass: what the best tier of a size would absorb of a trace.

At each request the segment is cached if its next use is sooner than that of some cached one; the
segments whose next uses are the farthest leave. For segments of one length no policy absorbs more.
For different lengths the optimum is hard to compute (a knapsack). Then this is the share of a very
good policy that knows the future, counted by bytes: it keeps the sooner used bytes, and a policy
that prefers small segments may do a little better.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from dieselfs.cache.advice.request_trace import RequestTrace


def optimum(trace: RequestTrace, cache_bytes: int) -> float:
    """Return the share of the bytes that the optimum absorbs with a cache of this size."""
    hits = belady_hits(trace.keys.tolist(), trace.lengths.tolist(), cache_bytes)
    return hits / max(1, trace.requested_bytes)


def belady_hits(keys: Sequence[int], lengths: Sequence[int], cache_bytes: int) -> int:
    """Return the bytes that the optimum serves from the cache. Takes about 2 µs a request."""
    never = len(keys)
    cached: dict[int, int] = {}
    farthest: list[tuple[int, int, int]] = []
    used = hits = 0
    for key, length, next_use in zip(keys, lengths, _next_uses(keys), strict=True):
        if cached.pop(key, None) is not None:
            hits += length
            used -= length
        if next_use == never or length > cache_bytes:
            continue
        leaving = []
        free = cache_bytes - used
        while free < length:
            while cached.get(farthest[0][1]) != -farthest[0][0]:
                heapq.heappop(farthest)  # it was used, or has left
            if -farthest[0][0] <= next_use:
                break
            leaving.append(heapq.heappop(farthest))
            free += leaving[-1][2]
        if free < length:
            for entry in leaving:
                heapq.heappush(farthest, entry)
            continue
        for _, gone, gone_length in leaving:
            del cached[gone]
            used -= gone_length
        cached[key] = next_use
        used += length
        heapq.heappush(farthest, (-next_use, key, length))
    return hits


def _next_uses(keys: Sequence[int]) -> Sequence[int]:
    """Return for each request the number of the next one of its segment, or their count."""
    found = [0] * len(keys)
    coming: dict[int, int] = {}
    for at in range(len(keys) - 1, -1, -1):
        found[at] = coming.get(keys[at], len(keys))
        coming[keys[at]] = at
    return found
