"""Hit functions of jobs that tell their orders, with an eviction that uses them (Belady).

Take draws with replacement first, or very many jobs that read a dataset in orders of their own. The
gaps between two uses of an item are then exponential. Belady keeps an item over a gap if it is
shorter than some T, so with gaps in units of their mean

    hits = P(gap < T) = 1 - exp(-T),    c/d = E[gap; gap < T] = 1 - exp(-T) (1 + T).

A single job that reads each item once an epoch hits c/d, however it evicts. For n jobs at equal
speeds the hits lie between the two, 0.6/n of the way. Replays give the same within 2 % from c/d of
0.1 on, and within 3 % at 0.05 (`simulation/known_orders.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from dieselfs.allocation.estimator import HitFunction, uniform_hits
from dieselfs.allocation.jobs import Job

_TO_UNIFORM = 0.6


def drawn_hits(cached_share: float) -> float:
    """Return the hit share of draws with replacement whose seed is known."""
    share = uniform_hits(cached_share)
    return share if share in (0.0, 1.0) else 1.0 - math.exp(-_longest_gap(share))


@lru_cache(maxsize=4096)
def _longest_gap(share: float) -> float:
    """Return T, by bisection."""
    low, high = 0.0, 64.0
    for _ in range(50):
        middle = (low + high) / 2
        if -math.expm1(-middle) - middle * math.exp(-middle) < share:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class ToldHits:
    """The hit function of jobs that share a dataset and tell their orders, each item once an epoch.

    It is the mean over all their reads. With different speeds the slow jobs hit more than it, and
    the fast ones less.
    """

    readers: float
    """The number of jobs at equal speeds; with others (sum of speeds)^2 / sum of squares."""

    def __call__(self, cached_share: float) -> float:
        uniform = uniform_hits(cached_share)
        return drawn_hits(uniform) - self._to_uniform * (drawn_hits(uniform) - uniform)

    @property
    def _to_uniform(self) -> float:
        """How far from draws to uniform caching the hits are."""
        if self.readers >= 2:
            return _TO_UNIFORM / self.readers
        return 1.0 - (1.0 - _TO_UNIFORM / 2) * (max(1.0, self.readers) - 1.0)


def hit_functions(jobs: Iterable[Job]) -> Mapping[str, HitFunction]:
    """Return the hit function of each regular job's reads, by its name.

    Jobs that tell their orders help each other if they share a dataset. A job that does not tell
    its order gains nothing from those of others.
    """
    every = [job for job in jobs if job.regular]
    told: dict[str, list[float]] = {}
    for job in every:
        if job.order == "told":
            told.setdefault(job.dataset, []).append(job.speed_bytes_per_s)
    shared = {
        name: ToldHits(sum(speeds) ** 2 / sum(speed**2 for speed in speeds))
        for name, speeds in told.items()
        if len(speeds) > 1
    }

    def hits_of(job: Job) -> HitFunction:
        if job.order == "told":
            return shared.get(job.dataset, uniform_hits)
        return drawn_hits if job.order == "draws" else uniform_hits

    return {job.name: hits_of(job) for job in every}


def slope(hits: HitFunction, cached_share: float) -> float:
    """Return how much a hit share rises with the cached share; 1 with uniform caching."""
    if hits is uniform_hits:
        return 1.0
    low, high = max(0.0, cached_share - 0.01), min(1.0, cached_share + 0.01)
    return (hits(high) - hits(low)) / (high - low)
