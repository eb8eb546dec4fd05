"""Multi-resource shortest job first (§5.1, equations 6 and 7).

A job's score is its share of all resources, summed, times its duration; the least score runs first.
The minimum over allocations has a closed form. Take a cached share x of the dataset. Less remote IO
than f (1 - x) makes the job slower, more is wasted. The score falls with the rate f, so f is f*, or
what all remote IO B gives, B / (1 - x). In x it is linear where f = f*, and concave below, so its
minimum is at an end of one of the two pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from dieselfs.allocation.estimator import job_rate
from dieselfs.allocation.jobs import JobState, Resources


def shortest_first(waiting: Sequence[JobState], total: Resources) -> Iterable[JobState]:
    """Sort jobs by their score with cache and remote IO (equation 7)."""
    return sorted(waiting, key=lambda state: (score(state, total), state.job.name))


def shortest_first_by_gpus(waiting: Sequence[JobState], total: Resources) -> Iterable[JobState]:
    """Sort jobs by their score as if data never made them wait: the vanilla form (equation 6)."""
    return sorted(waiting, key=lambda state: (vanilla_score(state, total), state.job.name))


def score(state: JobState, total: Resources) -> float:
    """Return the least sum of shares times the duration, in seconds (equation 7).

    A waiting job pays nothing for what is held of its dataset: cache is charged once a dataset.
    """
    job = state.job
    shared = 0.0 if state.is_running else state.held_bytes
    return state.left_bytes * _cost_of_a_byte(
        job.gpus, job.speed_bytes_per_s, job.dataset_bytes, shared, total
    )


def vanilla_score(state: JobState, total: Resources) -> float:
    """Return the GPUs' share times the duration at the ideal rate."""
    return state.left_bytes / state.job.speed_bytes_per_s * state.job.gpus / max(1, total.gpus)


@lru_cache(maxsize=65536)
def _cost_of_a_byte(
    gpus: int, speed: float, dataset_bytes: int, shared_bytes: float, total: Resources
) -> float:
    """Return the least sum of shares over the rate, 1/(bytes/s)."""
    gpu_share = gpus / max(1, total.gpus)
    shared = min(1.0, shared_bytes / dataset_bytes)
    most = max(shared, min(1.0, total.cache_bytes / dataset_bytes))
    bound = min(most, max(shared, 1.0 - total.io_bytes_per_s / speed))

    def cost(cached: float) -> float:
        rate = job_rate(speed, total.io_bytes_per_s, cached)
        if rate <= 0:
            return math.inf
        own_bytes = (cached - shared) * dataset_bytes
        cache_share = own_bytes / total.cache_bytes if own_bytes > 0 else 0.0
        needed = rate * (1.0 - cached)
        io_share = needed / total.io_bytes_per_s if needed > 0 else 0.0
        return (gpu_share + cache_share + io_share) / rate

    return min(cost(shared), cost(bound), cost(most))
