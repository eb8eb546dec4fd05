"""A cache rule: how the jobs that run share the cache. Each cache system is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dieselfs.allocation.jobs import JobState, Resources


class CacheRule(Protocol):
    """Divides the cache among the datasets of the jobs that run."""

    def quotas(
        self, running: Sequence[JobState], waiting: Sequence[JobState], total: Resources
    ) -> dict[str, int] | None:
        """Return each dataset's quota; None: the cache is one LRU pool without quotas.

        Quotas are at most the dataset's size, and their sum is at most the cache.
        """
        ...
