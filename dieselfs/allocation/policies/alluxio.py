"""Alluxio's cache: one LRU pool of all jobs, without quotas (SiloD §7)."""

from __future__ import annotations

from collections.abc import Sequence

from dieselfs.allocation.jobs import JobState, Resources


class AlluxioCache:
    """One LRU pool."""

    def quotas(
        self, running: Sequence[JobState], waiting: Sequence[JobState], total: Resources
    ) -> None:
        """Return no quotas: the cache evicts whatever was used least recently."""
        return
