"""The fairness of an allocation: each job's rate over its rate with an equal part (equation 8)."""

from __future__ import annotations

from collections.abc import Sequence

from dieselfs.allocation.estimator import job_rate, uniform_hits
from dieselfs.allocation.jobs import Allocation, JobState, Resources


def fairness_ratios(
    states: Sequence[JobState], found: Allocation, total: Resources
) -> dict[str, float]:
    """Return the ratio of each job that the cluster has the GPUs for.

    The least of them is the paper's fairness ratio. Rates are by equation 4, with the bytes that
    are effective in `states`.
    """
    able = [state for state in states if state.job.gpus <= total.gpus]
    return {
        state.job.name: rate_of(state, found) / equal_rate(state, len(able), total)
        for state in able
    }


def rate_of(state: JobState, found: Allocation) -> float:
    """Return the rate of a job with what it is allocated and what is effective now."""
    job = state.job
    speed = job.speed_bytes_per_s * found.gpu_share(job)
    return job_rate(speed, found.io_bytes_per_s.get(job.name, 0.0), state.hit_share)


def equal_rate(state: JobState, jobs: int, total: Resources) -> float:
    """Return SiloDPerf(j, R_equal): the job's rate with an equal part of everything.

    A job that would not run at all with it counts as one that runs a million times too slowly.
    """
    job = state.job
    speed = job.speed_bytes_per_s * min(1.0, total.gpus / jobs / job.gpus)
    hits = uniform_hits(total.cache_bytes / jobs / job.dataset_bytes)
    return max(job_rate(speed, total.io_bytes_per_s / jobs, hits), 1e-6 * speed)
