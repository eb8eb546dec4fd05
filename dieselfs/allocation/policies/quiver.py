"""Quiver's cache: whole datasets by benefit over cost, or nothing of them (SiloD §7).

The benefit is the remote IO that a dataset's jobs save, from ideal rates. Quiver measures it, and
SiloD saw it evict effective data for noise in the measurement; this form has no noise.
"""

from __future__ import annotations

from collections.abc import Sequence

from dieselfs.allocation.jobs import JobState, Resources
from dieselfs.allocation.policies.dataset_demand import by_efficiency, demands_of


class QuiverCache:
    """Datasets that fit as a whole, the most efficient first."""

    def quotas(
        self, running: Sequence[JobState], waiting: Sequence[JobState], total: Resources
    ) -> dict[str, int]:
        """Give each dataset, in descending order of efficiency, all that it needs or nothing."""
        left, quotas = total.cache_bytes, {}
        for demand in by_efficiency(demands_of(running).values()):
            fits = demand.dataset_bytes <= left
            quotas[demand.name] = demand.dataset_bytes if fits else 0
            left -= quotas[demand.name]
        return quotas
