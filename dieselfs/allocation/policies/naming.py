"""Policies by name: an order of jobs, and a system that divides cache and remote IO."""

from __future__ import annotations

from typing import Final

from dieselfs.allocation.jobs import Policy
from dieselfs.allocation.policies.alluxio import AlluxioCache
from dieselfs.allocation.policies.cache_rule import CacheRule
from dieselfs.allocation.policies.coordl import CoordlCache
from dieselfs.allocation.policies.fifo import first_come
from dieselfs.allocation.policies.greedy import GreedyCache
from dieselfs.allocation.policies.lasting import LastingCache
from dieselfs.allocation.policies.max_min import MaxMinPolicy, VanillaMaxMinPolicy
from dieselfs.allocation.policies.ordered import OrderedPolicy
from dieselfs.allocation.policies.quiver import QuiverCache
from dieselfs.allocation.policies.sjf import shortest_first, shortest_first_by_gpus
from dieselfs.errors import UsageError

ORDERS: Final = ("fifo", "sjf", "max-min")
CACHES: Final[dict[str, CacheRule]] = {
    "silod": LastingCache(),
    "algorithm-2": GreedyCache(),
    "quiver": QuiverCache(),
    "coordl": CoordlCache(),
    "alluxio": AlluxioCache(),
}
SYSTEMS: Final = tuple(CACHES)
"""`algorithm-2` is SiloD with its greedy rule as printed, for comparison."""
SILOD: Final = ("silod", "algorithm-2")
"""The systems that use the orders which jobs tell (`Job.order`)."""


def policy_of(order: str, system: str) -> Policy:
    """Return the policy of an order and a system.

    The orders of the systems other than SiloD are the vanilla forms: they take it that no job waits
    for data. Raises `UsageError` for an unknown name.
    """
    cache = CACHES.get(system)
    if cache is None:
        raise UsageError(f"unknown system '{system}'", f"name one of {', '.join(SYSTEMS)}")
    knows_data = system in SILOD
    match order:
        case "fifo":
            return OrderedPolicy(first_come, cache, separates_irregular=knows_data)
        case "sjf":
            by_score = shortest_first if knows_data else shortest_first_by_gpus
            return OrderedPolicy(by_score, cache, separates_irregular=knows_data)
        case "max-min":
            return MaxMinPolicy() if knows_data else VanillaMaxMinPolicy(cache)
    raise UsageError(f"unknown order '{order}'", f"name one of {', '.join(ORDERS)}")


def named_policy(name: str, system: str | None = None) -> Policy:
    """Return the policy that `--policy` and `--system` name; without a system SiloD's.

    `greedy` is Algorithm 2 as the paper prints it, for jobs that a cluster's scheduler has ordered.
    """
    if name == "greedy":
        if system not in (None, *SILOD):
            raise UsageError(
                f"greedy is a policy of SiloD, not of {system}", "name an order: --policy fifo"
            )
        return policy_of("fifo", "algorithm-2")
    if name not in ORDERS:
        names = ", ".join(("greedy", *ORDERS))
        raise UsageError(f"unknown policy '{name}'", f"name one of {names}")
    return policy_of(name, system or "silod")
