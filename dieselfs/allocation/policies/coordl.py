"""CoorDL's cache: each job has the same static cache a GPU, used uniformly (SiloD §7)."""

from __future__ import annotations

from collections.abc import Sequence

from dieselfs.allocation.jobs import JobState, Resources


class CoordlCache:
    """The cache of the machines, by GPU; what a job does not need stays unused.

    Jobs that share GPUs by turns share their cache. CoorDL's jobs share nothing else; here jobs of
    one dataset pool what they have, which favours it.
    """

    def quotas(
        self, running: Sequence[JobState], waiting: Sequence[JobState], total: Resources
    ) -> dict[str, int]:
        """Give each job the cache of its GPUs."""
        in_use = sum(state.job.gpus for state in running)
        a_gpu = total.cache_bytes / max(1, total.gpus, in_use)
        quotas: dict[str, int] = {}
        for state in running:
            job = state.job
            own = quotas.get(job.dataset, 0) + int(a_gpu * job.gpus)
            quotas[job.dataset] = min(job.dataset_bytes, own)
        return quotas
