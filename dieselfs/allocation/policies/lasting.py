"""The cache rule of the product: Algorithm 2, but cache is given for hits that will come.

Algorithm 2 as printed ranks datasets by f*/d alone. It gives cache to jobs that end before they
read a byte twice, and takes effective cache from running jobs for one that is a little more
efficient, which then needs an epoch until it hits. This rule counts the hits of a byte instead:

- A byte that is admitted from now on is never a hit if its dataset is read only once more. Free
  cache goes by efficiency to the datasets that are read again.
- A byte that is held stays, unless it pays to move it from A to B. While both run, it gives B more
  hits than A: (e_B - e_A) T, with the efficiencies e and the time T until the first of the two
  ends. B's first read of it is a miss, and so is A's when it has the byte back, if it outlives B.
  So the gain must be more than 1 or 2 reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dieselfs.allocation.jobs import JobState, Resources
from dieselfs.allocation.policies.dataset_demand import (
    DatasetDemand,
    Part,
    by_efficiency,
    demands_of,
    ranked_parts,
)


class LastingCache:
    """Cache by the hits that it will give, moved only where that pays."""

    def quotas(
        self, running: Sequence[JobState], waiting: Sequence[JobState], total: Resources
    ) -> dict[str, int]:
        """Keep what is held, fill what is free, then move what pays; nothing is left idle."""
        demands = demands_of(running)
        shares = _Shares(demands, total.cache_bytes)
        ranked = ranked_parts(demands.values())
        lasting = [part for part in ranked if part.demand.hits_if_new > 0]
        for part in lasting:
            shares.fill(part.demand, part.end_bytes)
        shares.move(lasting)
        idle = demands_of(state for state in waiting if state.job.dataset not in demands)
        for demand in by_efficiency(idle.values()):
            shares.fill(demand, demand.held_bytes)
        for part in ranked:
            shares.fill(part.demand, part.end_bytes)
        return shares.quotas()


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

    def fill(self, demand: DatasetDemand, up_to_bytes: float) -> None:
        """Give a dataset free cache."""
        own = self._bytes.get(demand.name, 0.0)
        given = max(0.0, min(up_to_bytes - own, self._free))
        self._bytes[demand.name] = own + given
        self._free -= given

    def move(self, takers: Iterable[Part]) -> None:
        """Move held cache to the datasets that gain more than its present owners lose."""
        for part in takers:
            taker = part.demand.name
            for owner in self._held:
                wanted = part.end_bytes - self._bytes[taker]
                if wanted <= 0 or owner.hits_a_second_if_held >= part.efficiency:
                    break
                if _pays(part, owner):
                    taken = min(wanted, self._bytes[owner.name])
                    self._bytes[owner.name] -= taken
                    self._bytes[taker] += taken

    def quotas(self) -> dict[str, int]:
        return {name: int(share) for name, share in self._bytes.items()}


def _pays(taker: Part, owner: DatasetDemand) -> bool:
    """Return True if a held byte gives the taker enough more hits than its present owner."""
    both_s = min(taker.demand.left_s, owner.left_s)
    misses = 1.0 if owner.left_s <= taker.demand.left_s else 2.0
    return (taker.efficiency - owner.hits_a_second_if_held) * both_s > misses
