"""A plan: what a policy gives to a list of jobs, at their start and once the cache is effective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dieselfs.allocation.fairness import rate_of
from dieselfs.allocation.jobs import Allocation, Job, JobState, Policy, Resources
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

    @property
    def job(self) -> Job:
        return self.state.job


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs in the order in which they run, then those that wait."""

    jobs: Sequence[PlannedJob]
    allocation: Allocation
    total: Resources


def make_plan(jobs: Iterable[Job], policy: Policy, total: Resources) -> Plan:
    """Ask the policy for jobs that have not begun, and again once their cache is effective."""
    states = [JobState(job, job.total_bytes) for job in jobs]
    start = policy.schedule(states, total)
    order = {name: place for place, name in enumerate(start.gpus)}
    states.sort(key=lambda state: order.get(state.job.name, len(order)))
    after = [_when_effective(state, start) for state in states]
    steady = policy.schedule(after, total)
    for _ in range(_LRU_STEPS if start.is_lru or start.irregular_cache_bytes else 0):
        after = _with_lru(after, steady, total)
        steady = policy.schedule(after, total)
    planned = [
        _planned(begun, state, start, steady) for begun, state in zip(states, after, strict=True)
    ]
    return Plan(planned, steady, total)


def _when_effective(state: JobState, start: Allocation) -> JobState:
    held = float(start.cache_bytes.get(state.job.dataset, 0))
    runs = start.gpus.get(state.job.name, 0.0) > 0
    effective = held if runs else 0.0
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


def _planned(begun: JobState, state: JobState, start: Allocation, steady: Allocation) -> PlannedJob:
    name, dataset = state.job.name, state.job.dataset
    quota = steady.cache_bytes.get(dataset)
    return PlannedJob(
        state,
        steady.gpus.get(name, 0.0),
        int(state.held_bytes) if quota is None else quota,
        steady.io_bytes_per_s.get(name, 0.0),
        rate_of(state, steady),
        rate_of(begun, start),
    )
