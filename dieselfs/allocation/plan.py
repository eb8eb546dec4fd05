"""A plan: what a policy gives to a list of jobs, at their start and once the cache is effective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dieselfs.allocation.estimator import HitFunction, uniform_hits
from dieselfs.allocation.fairness import rate_of
from dieselfs.allocation.jobs import Allocation, Job, JobState, Policy, Resources
from dieselfs.allocation.known_hits import hit_functions
from dieselfs.allocation.shared_lru import lru_shares

_LRU_STEPS = 40
"""Rates and hits of an LRU pool depend on each other; each step halves the difference."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job and what it gets."""

    state: JobState
    """As it is after the first epochs: its quota is held and effective."""
    gpus: float
    cache_bytes: int
    """The quota of its dataset, or what an LRU pool holds of it on average."""
    io_bytes_per_s: float
    rate_bytes_per_s: float
    """Its rate by equation 4."""
    first_rate_bytes_per_s: float
    """Its rate in the first epochs, in which nothing is a hit."""
    hits: HitFunction
    """The hits that its cache brings, by the order that the job tells."""

    @property
    def job(self) -> Job:
        return self.state.job

    def more_hits(self, more_bytes: float) -> float:
        """Return the share of its reads that would be hits besides, with so much more cache."""
        if self.hits is uniform_hits:  # also in an LRU pool, whose hits are fewer
            return more_bytes / self.job.dataset_bytes
        cached = self.state.held_bytes + more_bytes
        return self.hits(cached / self.job.dataset_bytes) - self.state.hit_share


@dataclass(frozen=True, slots=True)
class AllocationPlan:
    """The jobs in the order in which they run, then those that wait."""

    jobs: Sequence[PlannedJob]
    allocation: Allocation
    total: Resources


def make_plan(jobs: Iterable[Job], policy: Policy, total: Resources) -> AllocationPlan:
    """Ask the policy for jobs that have not begun, and again once their cache is effective."""
    states = [JobState(job, job.total_bytes) for job in jobs]
    start = policy.schedule(states, total)
    order = {name: place for place, name in enumerate(start.gpus)}
    states.sort(key=lambda state: order.get(state.job.name, len(order)))
    running = (state.job for state in states if start.gpus.get(state.job.name, 0.0) > 0)
    hits = {} if start.is_lru else hit_functions(running)
    after = [_when_effective(state, start, hits) for state in states]
    steady = policy.schedule(after, total)
    for _ in range(_LRU_STEPS if start.is_lru or start.irregular_cache_bytes else 0):
        after = _with_lru(after, steady, total)
        steady = policy.schedule(after, total)
    planned = [
        _planned(begun, state, start, steady, hits)
        for begun, state in zip(states, after, strict=True)
    ]
    return AllocationPlan(planned, steady, total)


def _when_effective(
    state: JobState, start: Allocation, hits: Mapping[str, HitFunction]
) -> JobState:
    """Return the state in which the quota is held, and the bytes that would be hit uniformly."""
    held, size = float(start.cache_bytes.get(state.job.dataset, 0)), state.job.dataset_bytes
    runs = start.gpus.get(state.job.name, 0.0) > 0
    of = hits.get(state.job.name, uniform_hits)
    effective = held if of is uniform_hits else of(held / size) * size
    effective *= runs
    return replace(state, is_running=runs, effective_bytes=effective, held_bytes=held)


def _with_lru(states: Sequence[JobState], found: Allocation, total: Resources) -> list[JobState]:
    """Return the states with what the LRU pool holds and hits at the jobs' present rates."""
    pool = total.cache_bytes if found.is_lru else found.irregular_cache_bytes
    readers = [
        state for state in states if state.is_running and (found.is_lru or not state.job.regular)
    ]
    cached, hits = lru_shares(readers, [rate_of(state, found) for state in readers], pool)
    new = {}
    for state, of_cache, of_reads in zip(readers, cached.tolist(), hits.tolist(), strict=True):
        size = state.job.dataset_bytes
        effective = (state.effective_bytes + of_reads * size) / 2
        new[state.job.name] = replace(state, effective_bytes=effective, held_bytes=of_cache * size)
    return [new.get(state.job.name, state) for state in states]


def _planned(
    begun: JobState,
    state: JobState,
    start: Allocation,
    steady: Allocation,
    hits: Mapping[str, HitFunction],
) -> PlannedJob:
    name, dataset = state.job.name, state.job.dataset
    quota = steady.cache_bytes.get(dataset)
    return PlannedJob(
        state,
        steady.gpus.get(name, 0.0),
        int(state.held_bytes) if quota is None else quota,
        steady.io_bytes_per_s.get(name, 0.0),
        rate_of(state, steady),
        rate_of(begun, start),
        hits.get(name, uniform_hits),
    )
