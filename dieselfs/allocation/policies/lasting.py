"""The cache rule of the product: Algorithm 2, but cache is given for hits that will come.

Algorithm 2 as printed ranks datasets by f*/d alone. It gives cache to jobs that end before they
read a byte twice, and takes effective cache from running jobs for one that is a little more
efficient, which then needs an epoch until it hits. This rule counts the hits of a byte instead:

- A byte that is admitted from now on is a hit in all reads that are left but the first.
- A byte that is held stays, unless another job gains more than its own lose. Moved from A to B it
  gives B the hits until A would have ended, when B could have had it anyway. A loses its hits until
  B ends, and one more until the byte is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dieselfs.allocation.jobs import JobState, Resources
from dieselfs.allocation.policies.dataset_demand import DatasetDemand, by_efficiency, demands_of


class LastingCache:
    """Cache by the hits that it will give, moved only where that pays."""

    def quotas(
        self, running: Sequence[JobState], waiting: Sequence[JobState], total: Resources
    ) -> dict[str, int]:
        """Keep what is held, fill what is free, then move what pays; nothing is left idle."""
        demands = demands_of(running)
        shares = _Shares(demands, total.cache_bytes)
        ranked = sorted(demands.values(), key=lambda demand: (-_rank_if_new(demand), demand.name))
        lasting = [demand for demand in ranked if demand.hits_if_new > 0]
        for demand in lasting:
            shares.fill(demand)
        shares.move(lasting)
        idle = demands_of(state for state in waiting if state.job.dataset not in demands)
        for demand in by_efficiency(idle.values()):
            shares.fill(demand, demand.held_bytes)
        for demand in by_efficiency(demands.values()):
            shares.fill(demand)
        return shares.quotas()


def _rank_if_new(demand: DatasetDemand) -> float:
    """Return the hits a second of a byte that is admitted now, averaged over the time left."""
    if demand.reads_left <= 0:
        return 0.0
    return demand.efficiency * demand.hits_if_new / demand.reads_left


class _Shares:
    """Bytes by dataset while they are decided."""

    def __init__(self, demands: Mapping[str, DatasetDemand], cache_bytes: int) -> None:
        self._bytes: dict[str, float] = {}
        self._free = float(cache_bytes)
        held = (demand for demand in demands.values() if demand.held_bytes > 0)
        self._held = sorted(held, key=lambda demand: (demand.hits_a_second_if_held, demand.name))
        """The least worth first."""
        for demand in reversed(self._held):
            self.fill(demand, demand.held_bytes)

    def fill(self, demand: DatasetDemand, up_to_bytes: float | None = None) -> None:
        """Give a dataset free cache, up to all of it unless said otherwise."""
        own = self._bytes.get(demand.name, 0.0)
        wanted = demand.dataset_bytes if up_to_bytes is None else up_to_bytes
        given = max(0.0, min(wanted - own, self._free))
        self._bytes[demand.name] = own + given
        self._free -= given

    def move(self, takers: Iterable[DatasetDemand]) -> None:
        """Move held cache to the datasets that gain more than its present owners lose."""
        for taker in takers:
            for owner in self._held:
                wanted = taker.dataset_bytes - self._bytes[taker.name]
                if wanted <= 0 or owner.hits_a_second_if_held >= taker.efficiency:
                    break
                if _gain(taker, owner) > _loss(taker, owner):
                    taken = min(wanted, self._bytes[owner.name])
                    self._bytes[owner.name] -= taken
                    self._bytes[taker.name] += taken

    def quotas(self) -> dict[str, int]:
        return {name: int(share) for name, share in self._bytes.items()}


def _gain(taker: DatasetDemand, owner: DatasetDemand) -> float:
    """Return the hits of a byte moved now that it would not have if it came when the owner ends."""
    return min(taker.hits_if_new, taker.efficiency * owner.left_s)


def _loss(taker: DatasetDemand, owner: DatasetDemand) -> float:
    """Return the hits of a held byte that its owner loses, if it is back after the taker's end."""
    return min(owner.hits_if_held, owner.hits_a_second_if_held * taker.left_s + 1.0)
