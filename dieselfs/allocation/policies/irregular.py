"""Irregular jobs have a part of the cache and of the remote IO to themselves (§6).

Equation 4 does not hold for a job that reads by a curriculum, or of which nothing is known. Such
jobs share an LRU pool and a fair share of the IO, by the GPUs that they have, and leave the regular
jobs' estimates alone. Remote IO that one part does not need goes to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dieselfs.allocation.jobs import JobState, Resources
from dieselfs.allocation.policies.fair_share import fair_io, fair_shares


@dataclass(frozen=True, slots=True)
class Partition:
    """The jobs that run, and the cache, in two parts."""

    regular: Sequence[JobState]
    irregular: Sequence[JobState]
    regular_total: Resources
    irregular_cache_bytes: int
    irregular_share: float
    """The share of the irregular jobs' GPUs."""


def partition(running: Sequence[JobState], total: Resources) -> Partition:
    """Divide the cache by GPUs; no dataset has more than it needs."""
    irregular = [state for state in running if not state.job.regular]
    if not irregular:
        return Partition(running, (), total, 0, 0.0)
    regular = [state for state in running if state.job.regular]
    share = sum(state.job.gpus for state in irregular) / sum(state.job.gpus for state in running)
    needed = sum({state.job.dataset: state.job.dataset_bytes for state in irregular}.values())
    cache = min(needed, int(total.cache_bytes * share))
    left = replace(total, cache_bytes=total.cache_bytes - cache)
    return Partition(regular, irregular, left, cache, share)


def divided_io(
    parts: Partition, regular_demand: float, io_bytes_per_s: float
) -> tuple[float, float]:
    """Return the remote IO of the regular and of the irregular jobs."""
    if not parts.irregular:
        return io_bytes_per_s, 0.0
    irregular_demand = sum(state.io_demand for state in parts.irregular)
    weights = [1.0 - parts.irregular_share, parts.irregular_share]
    regular, irregular = fair_shares([regular_demand, irregular_demand], io_bytes_per_s, weights)
    return regular, irregular


def irregular_io(parts: Partition, io_bytes_per_s: float) -> dict[str, float]:
    """Divide the irregular jobs' remote IO max-min over their demands."""
    return fair_io(parts.irregular, None, io_bytes_per_s)
