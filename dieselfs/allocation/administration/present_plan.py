"""The present as a plan, so that it is explained as a plan is: what binds each job, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dieselfs.allocation.administration.overview import JobOverview
from dieselfs.allocation.allocator.present_jobs import PresentJob
from dieselfs.allocation.estimator import job_rate, uniform_hits
from dieselfs.allocation.explanation import Explanation, explain
from dieselfs.allocation.jobs import Allocation, Resources
from dieselfs.allocation.plan import AllocationPlan, PlannedJob


def explained(jobs: Sequence[JobOverview]) -> Mapping[str, Explanation]:
    """Return the explanation of each job that has readers, by its name.

    A job without a limit is taken to have the remote IO that it needs.
    """
    shown = [(job, job.present) for job in jobs if job.present is not None]
    planned = [_planned(job, present) for job, present in shown]
    total = Resources(
        sum(each.gpus for each in planned),
        sum({each.job.dataset: each.cache_bytes for each in planned}.values()),
        sum(each.io_bytes_per_s for each in planned),
    )
    found = explain(AllocationPlan(planned, Allocation(), total))
    return {job.name: each for (job, _), each in zip(shown, found, strict=True)}


def _planned(job: JobOverview, present: PresentJob) -> PlannedJob:
    state = present.state
    speed = state.job.speed_bytes_per_s
    allowed = job.allowed_bytes_per_s
    io = state.io_demand if allowed is None else allowed
    return PlannedJob(
        state,
        gpus=state.job.gpus,
        cache_bytes=int(state.held_bytes) if job.cache is None else job.cache.size_bytes,
        io_bytes_per_s=io,
        rate_bytes_per_s=job_rate(speed, io, state.hit_share),
        first_rate_bytes_per_s=job_rate(speed, io, 0.0),
        hits=uniform_hits,
    )
