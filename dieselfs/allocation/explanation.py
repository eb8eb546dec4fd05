"""Explanations: which term of equation 4 limits a job, and what more of a resource would bring.

They are figures and names. The command line puts them into words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dieselfs.allocation.estimator import cache_efficiency, job_rate, uniform_hits
from dieselfs.allocation.known_hits import slope
from dieselfs.allocation.plan import AllocationPlan, PlannedJob

Limit = Literal["speed", "io", "gpus"]
"""`speed`: the ideal rate f*. `io`: b / (1 - c/d). `gpus`: the job waits, or has them by turns."""
GIB: Final = float(1 << 30)
MIB: Final = float(1 << 20)
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class CacheHolder:
    """A dataset that has cache."""

    dataset: str
    cache_bytes: int
    efficiency: float
    """Remote IO that a cached byte spares, over all its jobs, 1/s."""
    reads: float
    """How often its jobs read a byte."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job has its rate, and what would change it."""

    planned: PlannedJob
    limited_by: Limit
    efficiency: float
    """The sum over all jobs that read its dataset."""
    rate_by_a_gib: float
    """The rate that the job gains with one GiB more of cache, in bytes/s."""
    io_spared_by_a_gib: float
    """The remote IO that one GiB more of cache spares for other jobs, in bytes/s."""
    rate_by_a_mib_per_s: float
    """The rate that the job gains with one MiB/s more of remote IO, in bytes/s."""
    holders: Sequence[CacheHolder]
    """Those that have cache while its dataset is not cached as a whole, the least efficient first.
    """
    other_holders: int
    """How many more there are."""
    reads: float
    """How often its jobs read a byte of the dataset; cache brings hits from the second time on."""
    most_io_bytes_per_s: float
    """The most remote IO that any job has."""
    jobs_with_most_io: int
    effective_after_s: float | None
    """When the first epoch ends and its cache is effective; None: it has none, or never ends."""


def explain(plan: AllocationPlan) -> list[Explanation]:
    """Return the explanation of each job, in the plan's order."""
    sizes, efficiencies, reads = _by_dataset(plan)
    holders = sorted(
        (
            CacheHolder(name, quota, efficiencies.get(name, 0.0), reads[name])
            for name, quota in sizes.items()
            if quota > 0
        ),
        key=lambda holder: (holder.efficiency, holder.dataset),
    )
    most_io = max((planned.io_bytes_per_s for planned in plan.jobs), default=0.0)
    jobs_with_most = sum(planned.io_bytes_per_s >= most_io * (1 - 1e-6) for planned in plan.jobs)
    found = []
    for planned in plan.jobs:
        name = planned.job.dataset
        is_whole = planned.cache_bytes >= planned.job.dataset_bytes
        others = [holder for holder in holders[: _NAMED + 1] if holder.dataset != name][:_NAMED]
        has_cache = sizes.get(name, 0) > 0
        count = len(holders) - has_cache - len(others)
        named: Sequence[CacheHolder] = () if is_whole else others
        found.append(
            Explanation(
                planned,
                limited_by(planned),
                efficiencies.get(name, 0.0),
                *_gains(planned),
                holders=named,
                other_holders=0 if is_whole else count,
                reads=reads[name],
                most_io_bytes_per_s=most_io,
                jobs_with_most_io=jobs_with_most,
                effective_after_s=_first_epoch_s(planned),
            )
        )
    return found


def limited_by(planned: PlannedJob) -> Limit:
    """Return the term of equation 4 that binds; that of the ideal rate, if both do."""
    if planned.gpus <= 0:
        return "gpus"
    share = min(1.0, planned.gpus / planned.job.gpus)
    if planned.rate_bytes_per_s < planned.job.speed_bytes_per_s * share * (1 - 1e-9):
        return "io"
    return "speed" if share > 1 - 1e-9 else "gpus"


def _gains(planned: PlannedJob) -> tuple[float, float, float]:
    """Return what one GiB brings the job, what it spares for others, and what one MiB/s brings."""
    limit, job, now = limited_by(planned), planned.job, planned.rate_bytes_per_s
    state = planned.state
    cached = state.effective_bytes if planned.hits is uniform_hits else state.held_bytes
    left = job.dataset_bytes - cached
    if planned.gpus <= 0 or left <= 0:
        return 0.0, 0.0, 0.0
    more = min(left, GIB)
    if limit != "io":
        return 0.0, now * planned.more_hits(more), 0.0
    speed = job.speed_bytes_per_s * min(1.0, planned.gpus / job.gpus)
    io, share = planned.io_bytes_per_s, planned.state.hit_share
    hits = share + planned.more_hits(more)
    by_cache = job_rate(speed, io, hits) - now
    return by_cache, 0.0, job_rate(speed, io + MIB, share) - now


def _first_epoch_s(planned: PlannedJob) -> float | None:
    if planned.cache_bytes <= 0 or planned.first_rate_bytes_per_s <= 0:
        return None
    seconds = planned.job.dataset_bytes / planned.first_rate_bytes_per_s
    return seconds if planned.job.passes > 1 and math.isfinite(seconds) else None


def _by_dataset(plan: AllocationPlan) -> tuple[dict[str, int], dict[str, float], dict[str, float]]:
    """Return the cached bytes, the efficiency of the jobs that run, and the reads of a byte."""
    cached: dict[str, int] = {}
    efficiencies: dict[str, float] = {}
    reads: dict[str, float] = {}
    for planned in plan.jobs:
        job, name = planned.job, planned.job.dataset
        cached[name] = planned.cache_bytes
        reads[name] = reads.get(name, 0.0) + job.passes
        if planned.gpus > 0:
            cached_share = planned.cache_bytes / job.dataset_bytes
            own = cache_efficiency(job.speed_bytes_per_s, job.dataset_bytes)
            own *= slope(planned.hits, cached_share)
            efficiencies[name] = efficiencies.get(name, 0.0) + own
    return cached, efficiencies, reads
