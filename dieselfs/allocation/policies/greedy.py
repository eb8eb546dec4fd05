"""SiloD's greedy rule (Algorithm 2), as the paper prints it: cache by efficiency.

The datasets of the most remote IO saved per byte come first. The rule does not ask whether a job
will read a byte again, nor whether the cache that it moves is effective already; `lasting.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from dieselfs.allocation.jobs import JobState, Resources
from dieselfs.allocation.policies.dataset_demand import demands_of, ranked_parts


class GreedyCache:
    """Algorithm 2, at dataset level the sum over a dataset's jobs."""

    def quotas(
        self, running: Sequence[JobState], waiting: Sequence[JobState], total: Resources
    ) -> dict[str, int]:
        """Fill datasets in descending order of efficiency until the cache is full."""
        left = total.cache_bytes
        quotas: dict[str, int] = {}
        for part in ranked_parts(demands_of(running).values()):
            name = part.demand.name
            held = quotas.get(name, 0)
            quotas[name] = held + min(part.end_bytes - held, left)
            left -= quotas[name] - held
        return quotas
