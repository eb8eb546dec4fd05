"""The entries that people have put into a directory, as the allocator saw them last.

A Redis without persistence loses it when it is restarted. Leases come back by themselves, and an
allocation is computed from them again. Decisions by hand and declared jobs would be gone, so the
allocator that led puts them back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dieselfs.allocation.directory.decisions import Decisions, JobEntry
from dieselfs.allocation.directory.port import AllocationDirectory

log = logging.getLogger(__name__)


class Remembered:
    """The decisions by hand and declared jobs of a directory. One thread uses it."""

    def __init__(self) -> None:
        self._decisions: Decisions | None = None
        self._jobs: Sequence[JobEntry] = ()

    def restore(
        self, directory: AllocationDirectory, decisions: Decisions, jobs: Sequence[JobEntry]
    ) -> bool:
        """Put back what the former life of the directory had and the present one lacks.

        Returns whether that was anything; otherwise what the directory has is remembered. Raises
        `RegistryUnavailable`; then the next call puts back the rest.
        """
        former = self._decisions
        is_lost = former is not None and former.life != decisions.life
        if former is not None and is_lost and self._put_back(directory, former, decisions, jobs):
            return True
        self._decisions, self._jobs = decisions, jobs
        return False

    def _put_back(
        self,
        directory: AllocationDirectory,
        former: Decisions,
        found: Decisions,
        jobs: Sequence[JobEntry],
    ) -> bool:
        keys = {each.key for each in found.caches}
        caches = [c for c in former.caches if c.origin == "hand" and c.key not in keys]
        keys = {each.key for each in found.ios}
        ios = [io for io in former.ios if io.origin == "hand" and io.key not in keys]
        keys = {each.key for each in jobs}
        entries = [entry for entry in self._jobs if entry.key not in keys]
        for cache in caches:
            directory.allocate_cache_size(
                cache.dataset, cache.dataset_id, cache.size_bytes, origin="hand"
            )
        for io in ios:
            directory.allocate_remote_io(io.job, io.bytes_per_s, origin="hand")
        for entry in entries:
            directory.put_job(entry)
        count = len(caches) + len(ios) + len(entries)
        if count:
            log.warning("%s has lost its content; put back %d records", directory, count)
        return count > 0
