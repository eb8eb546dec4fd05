"""A policy of two parts: an order that says which jobs run, and a cache rule for those.

Remote IO goes max-min over what the jobs need beside their effective cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dieselfs.allocation.jobs import Allocation, JobState, Resources
from dieselfs.allocation.policies.cache_rule import CacheRule
from dieselfs.allocation.policies.fair_share import fair_io, io_demand_under
from dieselfs.allocation.policies.irregular import divided_io, irregular_io, partition

Order = Callable[[Sequence[JobState], Resources], Iterable[JobState]]
"""Sorts the jobs that wait: the first one is the next to run."""


class OrderedPolicy:
    """Jobs run in an order, without preemption, and a cache rule divides the cache."""

    def __init__(self, order: Order, cache: CacheRule, *, separates_irregular: bool = True) -> None:
        """`separates_irregular`: irregular jobs have a partition of their own, as in SiloD."""
        self._order = order
        self._cache = cache
        self._separates_irregular = separates_irregular

    def schedule(self, jobs: Sequence[JobState], total: Resources) -> Allocation:
        """Admit jobs, divide the cache, then the remote IO."""
        running, waiting = admitted(jobs, self._order, total)
        gpus = {state.job.name: float(state.job.gpus) for state in running}
        gpus |= {state.job.name: 0.0 for state in waiting}
        return allocate(self._cache, running, waiting, total, gpus, self._separates_irregular)


def admitted(
    jobs: Sequence[JobState], order: Order, total: Resources
) -> tuple[list[JobState], list[JobState]]:
    """Return the jobs that run and those that wait, these in their order if GPUs are free.

    Jobs that run go on. Others start in their order until one does not fit, which no later one
    overtakes. A job that the whole cluster has too few GPUs for is left out.
    """
    running = [state for state in jobs if state.is_running]
    waiting = [state for state in jobs if not state.is_running]
    free = total.gpus - sum(state.job.gpus for state in running)
    if free > 0:
        waiting = list(order(waiting, total))
        for state in waiting:
            if state.job.gpus > total.gpus:
                continue
            if state.job.gpus > free:
                break
            running.append(state)
            free -= state.job.gpus
    started = {state.job.name for state in running}
    return running, [state for state in waiting if state.job.name not in started]


def allocate(
    cache: CacheRule,
    running: Sequence[JobState],
    waiting: Sequence[JobState],
    total: Resources,
    gpus: dict[str, float],
    separates_irregular: bool,
) -> Allocation:
    """Divide the cache by a rule, and remote IO max-min, among jobs whose GPUs are decided."""
    if not separates_irregular:
        quotas = cache.quotas(running, waiting, total)
        shares = fair_io(running, quotas, total.io_bytes_per_s)
        return Allocation(gpus, quotas or {}, shares, is_lru=quotas is None)
    parts = partition(running, total)
    quotas = cache.quotas(parts.regular, waiting, parts.regular_total)
    demand = sum(io_demand_under(state, quotas) for state in parts.regular)
    regular, irregular = divided_io(parts, demand, total.io_bytes_per_s)
    shares = fair_io(parts.regular, quotas, regular) | irregular_io(parts, irregular)
    return Allocation(
        gpus,
        quotas or {},
        shares,
        is_lru=quotas is None,
        irregular_cache_bytes=parts.irregular_cache_bytes,
    )
