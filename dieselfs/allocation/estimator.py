"""The estimator: how fast a job reads with a cache and a remote IO (SiloD §4, equations 1 to 5).

A job reads at its ideal rate f*, or as fast as its misses arrive if that is slower. What the cache
spares depends on the share of reads that it answers, the *hit share*. A *hit function* gives it
for the share of the dataset that is cached, c/d. With uniform caching they are equal.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dieselfs.errors import UsageError

HitFunction = Callable[[float], float]
"""A function from the cached share of a dataset, 0 to 1, to the hit share."""


def uniform_hits(cached_share: float) -> float:
    """Return the hit share of uniform caching: what is cached stays, whichever items it is."""
    return min(1.0, max(0.0, cached_share))


def lru_hits(cached_share: float) -> float:
    """Return the hit share of LRU for one job that reads each item once an epoch, in random order.

    An item that was read at position x of an epoch is read next at position y of the following one.
    By then 1 - x and y of all items have been read, of which (1 - x) y are the same. It is a hit
    if the distinct ones are at most c/d. The integral over x and y is g + (1 - g) ln(1 - g).
    """
    share = uniform_hits(cached_share)
    return 1.0 if share == 1.0 else share + (1.0 - share) * math.log1p(-share)


@dataclass(frozen=True, slots=True)
class MeasuredHits:
    """A hit function from measurements, linear between them, from no cache to all of it."""

    cached_shares: Sequence[float]
    """Ascending, between 0 and 1, without 0 and 1 themselves, where hits are none and all."""
    hit_shares: Sequence[float]

    def __post_init__(self) -> None:
        points = [0.0, *self.cached_shares, 1.0]
        rises = all(low < high for low, high in itertools.pairwise(points))
        fits = len(self.cached_shares) == len(self.hit_shares)
        if not (rises and fits and all(0 <= hit <= 1 for hit in self.hit_shares)):
            raise UsageError("measured hits must be shares from 0 to 1, by ascending cached shares")

    def __call__(self, cached_share: float) -> float:
        shares, hits = [0.0, *self.cached_shares, 1.0], [0.0, *self.hit_shares, 1.0]
        share = uniform_hits(cached_share)
        after = min(len(shares) - 1, bisect.bisect_right(shares, share))
        low, high = shares[after - 1], shares[after]
        return hits[after - 1] + (hits[after] - hits[after - 1]) * (share - low) / (high - low)


def io_demand(rate_bytes_per_s: float, hit_share: float) -> float:
    """Return the remote IO that reading at a rate takes (equation 2)."""
    return rate_bytes_per_s * (1.0 - hit_share)


def loading_rate(io_bytes_per_s: float, hit_share: float) -> float:
    """Return the rate at which data arrives with a remote IO (equation 3); all hits: infinite."""
    return math.inf if hit_share >= 1.0 else io_bytes_per_s / (1.0 - hit_share)


def job_rate(speed_bytes_per_s: float, io_bytes_per_s: float, hit_share: float) -> float:
    """Return SiloDPerf, the rate of the job (equations 1 and 4).

    It is the ideal rate when everything is a hit, and 0 with misses but no remote IO.
    """
    return min(speed_bytes_per_s, loading_rate(io_bytes_per_s, hit_share))


def cache_efficiency(speed_bytes_per_s: float, dataset_bytes: float) -> float:
    """Return the remote IO that a cached byte spares, in bytes/s a byte (equation 5)."""
    return speed_bytes_per_s / dataset_bytes


@dataclass(frozen=True, slots=True)
class IdealRate:
    """The ideal rate f* of a job, as measured."""

    bytes_per_s: float
    is_lower_bound: bool
    """True if reads waited all the time, so the job may be faster than it was seen to be."""


@dataclass(frozen=True, slots=True)
class ReadInterval:
    """The bytes that a job read in some time, and how long its reads waited for them."""

    read_bytes: int
    elapsed_s: float
    waited_s: float


def measured_ideal_rate(
    intervals: Sequence[ReadInterval], most_waiting: float = 0.01
) -> IdealRate | None:
    """Return the rate of the intervals in which nothing waited, or else a lower bound.

    An interval counts as without waiting up to a share of `most_waiting` of its time. The lower
    bound is the rate of the fastest interval. Returns None if nothing was read.
    """
    spans = [span for span in intervals if span.elapsed_s > 0 and span.read_bytes > 0]
    free = [span for span in spans if span.waited_s <= most_waiting * span.elapsed_s]
    if free:
        read = sum(span.read_bytes for span in free)
        return IdealRate(read / sum(span.elapsed_s for span in free), is_lower_bound=False)
    if not spans:
        return None
    fastest = max(span.read_bytes / span.elapsed_s for span in spans)
    return IdealRate(fastest, is_lower_bound=True)
