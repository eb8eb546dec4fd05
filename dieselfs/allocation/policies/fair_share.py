"""Max-min fair shares by water filling: the baselines' "simple fair share" of remote IO (§7.2).

Everybody gets the same, but nobody more than is asked for; what one leaves goes to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from dieselfs.allocation.jobs import JobState


def fair_shares(
    demands: Sequence[float], total: float, weights: Sequence[float] | None = None
) -> list[float]:
    """Divide `total` max-min over `demands`, in their order.

    A demand that is not met in full gets the same level as others of its kind, times its weight.
    """
    scale = [1.0] * len(demands) if weights is None else weights
    by_level = sorted(
        (demand / weight, demand, weight, place)
        for place, (demand, weight) in enumerate(zip(demands, scale, strict=True))
        if weight > 0
    )
    weights_left = [*accumulate(weight for _, _, weight, _ in reversed(by_level))]
    shares, left = [0.0] * len(demands), total
    for (_, demand, weight, place), of_all in zip(by_level, reversed(weights_left), strict=True):
        shares[place] = min(demand, left * (weight / of_all))
        left = max(0.0, left - shares[place])
    return shares


def held_of(state: JobState) -> float:
    """Return the held bytes; at least as many as are effective, unless its order is known.

    With a known order a held byte may be hit more than once an epoch.
    """
    if state.job.order != "random" and state.held_bytes > 0:
        return state.held_bytes
    return max(state.held_bytes, state.effective_bytes)


def effective_after(state: JobState, quota_bytes: float) -> float:
    """Return the effective bytes that are left under a quota.

    A quota below what is held evicts at random, so effective bytes go in the same proportion.
    """
    held = held_of(state)
    return state.effective_bytes * (min(1.0, quota_bytes / held) if held > 0 else 1.0)


def io_demand_under(state: JobState, quotas: Mapping[str, int] | None) -> float:
    """Return the remote IO of the job at its ideal rate, after what its quota evicts.

    `quotas` None: the cache has none, so what is effective stays so.
    """
    job, effective = state.job, state.effective_bytes
    if quotas is not None:
        effective = effective_after(state, quotas.get(job.dataset, 0))
    return job.speed_bytes_per_s * (1.0 - min(1.0, effective / job.dataset_bytes))


def fair_io(
    running: Iterable[JobState], quotas: Mapping[str, int] | None, io_bytes_per_s: float
) -> dict[str, float]:
    """Divide remote IO max-min over the jobs' demands."""
    states = list(running)
    shares = fair_shares([io_demand_under(state, quotas) for state in states], io_bytes_per_s)
    return {state.job.name: share for state, share in zip(states, shares, strict=True)}
