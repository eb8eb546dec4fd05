"""Gavel's max-min fairness: jobs share the GPUs by turns (§5.2).

`MaxMinPolicy` is SiloD's, over GPUs, cache and remote IO together. `VanillaMaxMinPolicy` is Gavel's
own, over GPUs as if data never made a job wait, with the cache rule of some other system beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dieselfs.allocation.jobs import Allocation, JobState, Resources
from dieselfs.allocation.policies.cache_rule import CacheRule
from dieselfs.allocation.policies.fair_share import effective_after, fair_shares
from dieselfs.allocation.policies.irregular import divided_io, irregular_io, partition
from dieselfs.allocation.policies.max_min_problem import (
    Floats,
    MaxMinProblem,
    best_cache,
    best_level,
    largest,
    problem_of,
)
from dieselfs.allocation.policies.ordered import allocate


class MaxMinPolicy:
    """The least ratio of a job's rate to its rate with an equal part is as large as possible.

    All jobs that fit into the cluster run, each for a part of the time. Ratios are for the time
    when the cache is effective; until then, remote IO is divided by the same ratios.
    """

    def schedule(self, jobs: Sequence[JobState], total: Resources) -> Allocation:
        """Find rates by progressive filling, then the GPUs, the cache and the IO for them."""
        states = [state for state in jobs if state.job.gpus <= total.gpus]
        if not states:
            return Allocation()
        parts = partition(states, total)
        gpus = {
            state.job.name: own
            for state, own in zip(states, gavel_gpus(states, total.gpus), strict=True)
            if not state.job.regular
        }
        if not parts.regular:
            io = irregular_io(parts, total.io_bytes_per_s)
            return Allocation(gpus, {}, io, irregular_cache_bytes=parts.irregular_cache_bytes)
        left = _without(parts.regular_total, sum(gpus.values()), parts.irregular_share)
        problem = problem_of(parts.regular, left)
        rates = fair_rates(problem)
        quotas = _quotas(parts.regular, best_cache(problem, rates))
        shares_of_time = _gpu_shares(problem, rates)
        gpus |= {
            state.job.name: float(share * state.job.gpus)
            for state, share in zip(parts.regular, shares_of_time, strict=True)
        }
        misses = _miss_shares(parts.regular, quotas)
        demands = problem.speeds * shares_of_time * misses
        regular, irregular = divided_io(parts, float(demands.sum()), total.io_bytes_per_s)
        weights = problem.equal_rates * misses
        shares = fair_shares(demands.tolist(), regular, weights.tolist())
        io = {state.job.name: share for state, share in zip(parts.regular, shares, strict=True)}
        return Allocation(
            gpus,
            quotas,
            io | irregular_io(parts, irregular),
            irregular_cache_bytes=parts.irregular_cache_bytes,
        )


def fair_rates(problem: MaxMinProblem) -> Floats:
    """Return the rates of progressive filling: no job's can grow without that of a poorer one.

    All ratios rise together until a resource is exhausted. If it is the remote IO, jobs whose
    dataset is cached as a whole need none and go on, until the GPUs are exhausted too.
    """
    level = best_level(problem)
    rates = problem.rates(level)
    cached = best_cache(problem, rates)
    is_whole = (cached >= problem.dataset_bytes)[problem.dataset_of]

    def raised(level: float) -> Floats:
        return np.where(is_whole, problem.rates(level), rates)

    def is_possible(level: float) -> bool:
        return problem.gpus_needed(raised(level)) <= problem.total.gpus * (1 + 1e-12)

    most = float((problem.speeds / problem.equal_rates).max())
    return np.maximum(rates, raised(max(level, largest(is_possible, most))))


def _without(total: Resources, gpus: float, irregular_share: float) -> Resources:
    """Return what is left beside the irregular jobs; the cache is theirs already."""
    io = total.io_bytes_per_s * (1.0 - irregular_share)
    return replace(total, gpus=max(0.0, total.gpus - gpus), io_bytes_per_s=io)


def _quotas(states: Sequence[JobState], cached: Floats) -> dict[str, int]:
    names = {state.job.dataset: 0 for state in states}
    return {name: int(share) for name, share in zip(names, cached, strict=True)}


def _gpu_shares(problem: MaxMinProblem, rates: Floats) -> Floats:
    """Return the share of the time that each job has its GPUs, those that would be idle too."""
    shares = np.minimum(1.0, rates / problem.speeds)
    idle = problem.total.gpus - float((shares * problem.gpus).sum())
    unused = (problem.gpus * (1.0 - shares)).tolist()
    return np.minimum(1.0, shares + np.array(fair_shares(unused, max(0.0, idle))) / problem.gpus)


def _miss_shares(states: Sequence[JobState], quotas: dict[str, int]) -> Floats:
    def miss_share(state: JobState) -> float:
        effective = effective_after(state, quotas[state.job.dataset])
        return 1.0 - min(1.0, effective / state.job.dataset_bytes)

    return np.array([miss_share(state) for state in states])


class VanillaMaxMinPolicy:
    """Gavel without SiloD: GPUs are fair as if nothing waited for data."""

    def __init__(self, cache: CacheRule) -> None:
        self._cache = cache

    def schedule(self, jobs: Sequence[JobState], total: Resources) -> Allocation:
        """Divide the GPUs max-min, then the cache by its rule and the remote IO max-min."""
        states = [state for state in jobs if state.job.gpus <= total.gpus]
        shares = gavel_gpus(states, total.gpus)
        gpus = {state.job.name: share for state, share in zip(states, shares, strict=True)}
        running = [
            _slowed(state, gpus[state.job.name]) for state in states if gpus[state.job.name] > 0
        ]
        return allocate(self._cache, running, (), total, gpus, separates_irregular=False)


def gavel_gpus(states: Sequence[JobState], gpus: float) -> list[float]:
    """Return each job's GPUs, max-min over f* X / (f* X_equal): equation 8 with perf = f*."""
    equal = gpus / max(1, len(states))
    demands = [float(state.job.gpus) for state in states]
    return fair_shares(demands, gpus, [min(demand, equal) for demand in demands])


def _slowed(state: JobState, gpus: float) -> JobState:
    """Return the job as it runs when it has its GPUs for a part of the time."""
    job = state.job
    if gpus >= job.gpus:
        return state
    slowed = replace(job, speed_bytes_per_s=job.speed_bytes_per_s * gpus / job.gpus)
    return replace(state, job=slowed)
