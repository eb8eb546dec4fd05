"""Small policies, so that the simulator is tested apart from those of the product."""

from __future__ import annotations

from collections.abc import Sequence

from dieselfs.allocation.jobs import Allocation, JobState, Resources


class Quotas:
    """All jobs that fit run, in their order; datasets with the most f*/d are cached first.

    Remote IO is divided max-min over demands, and what is left equally.
    """

    def __init__(self, *, is_lru: bool = False) -> None:
        self.is_lru = is_lru

    def schedule(self, jobs: Sequence[JobState], total: Resources) -> Allocation:
        running, gpus = [], total.gpus
        for state in jobs:
            if state.job.gpus > gpus:
                break
            gpus -= state.job.gpus
            running.append(state)
        return Allocation(
            {state.job.name: state.job.gpus for state in running},
            {} if self.is_lru else self.quotas(running, total),
            fair_shares(running, total.io_bytes_per_s),
            self.is_lru,
        )

    def quotas(self, running: Sequence[JobState], total: Resources) -> dict[str, int]:
        quotas: dict[str, int] = {}
        left = total.cache_bytes
        for state in sorted(
            running, key=lambda state: -state.job.speed_bytes_per_s / state.job.dataset_bytes
        ):
            if state.job.dataset not in quotas:
                quotas[state.job.dataset] = min(state.job.dataset_bytes, left)
                left -= quotas[state.job.dataset]
        return quotas


def fair_shares(running: Sequence[JobState], total: float) -> dict[str, float]:
    shares: dict[str, float] = {}
    left = total
    ordered = sorted(running, key=lambda state: state.io_demand)
    for at, state in enumerate(ordered):
        shares[state.job.name] = min(state.io_demand, left / (len(ordered) - at))
        left -= shares[state.job.name]
    return {name: share + left / len(shares) for name, share in shares.items()}
