"""The allocation directory of a pod in a cluster without a Redis: what its annotations say.

An allocator writes a pod's share into the pod's annotations, and kubelet writes those into a file
(`cache.jobs.pod_info`). So readers need no access to the API server. Everything else lies in the
pod's own shared memory: the leases by which the readers of the pod divide its share, and decisions
by hand, which go before. Nothing of it is seen outside of the pod.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dieselfs.allocation.directory.decisions import CacheDecision, Decisions, IoDecision
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.directory.pod_annotations import Annotations, Given
from dieselfs.allocation.directory.port import Renewal
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.cache.jobs.pod_info import LABELS, annotation_prefix, job_of_pod, read_fields
from dieselfs.errors import RegistryUnavailable

log = logging.getLogger(__name__)


class PodDirectory(FolderDirectory):
    """The `AllocationDirectory` of one pod."""

    def __init__(
        self, path: Path, folder: Path | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """`path` is the file of annotations; `folder` is that of `FolderDirectory`."""
        self._path, self._prefix = path, annotation_prefix(environment)
        super().__init__(folder)
        self._fields: dict[str, str] | None = None
        self._job = ""
        self._dataset: str | None = None
        self._given = Given()
        self._changes = 0
        """The number of changes of the decision on the cache that were seen."""
        self._ids: dict[str, str] = {}
        """The ids of the datasets that this process reads, by name."""
        self._said: set[str] = set()
        """The faults of the annotations that are in the log."""

    def __str__(self) -> str:
        return f"the annotations of this pod in {self._path}"

    def decisions(self) -> Decisions:
        """See `AllocationDirectory`."""
        self._look()
        found = super().decisions()
        cache, io = self._cache(), self._io()
        return replace(
            found,
            caches=[*found.caches, *([cache] if cache else [])],
            ios=[*found.ios, *([io] if io else [])],
            version=found.version + self._changes,
        )

    def beat(self, lease: ReaderLease, lease_s: float) -> Renewal:
        """See `AllocationDirectory`."""
        self._look()
        self._ids[lease.dataset] = lease.dataset_id
        found, io, cache = super().beat(lease, lease_s), self._io(), self._cache()
        mine = io if io is not None and io.job == lease.job else None
        if io is not None and mine is None:
            self._say_other(lease.job)
        by_hand = found.io is not None and found.io.origin == "hand"
        return replace(
            found,
            io=found.io if by_hand or mine is None else mine,
            cache_version=found.cache_version + self._changes,
            has_any=found.has_any or io is not None or cache is not None,
        )

    def _cache(self) -> CacheDecision | None:
        size, dataset = self._given.cache_bytes, self._dataset
        id = self._ids.get(dataset or "")
        if size is None or dataset is None or id is None or self._given.cache_id not in (None, id):
            return None
        return CacheDecision(dataset=dataset, dataset_id=id, size_bytes=size, origin="allocator")

    def _io(self) -> IoDecision | None:
        rate = self._given.io_bytes_per_s
        if rate is None:
            return None
        return IoDecision(job=self._job, bytes_per_s=rate, origin="allocator")

    def _look(self) -> None:
        """Read the annotations. Raises `RegistryUnavailable`; then all stays as it is."""
        try:
            fields = read_fields(self._path)
        except OSError as error:
            raise RegistryUnavailable(f"{self}: {error.strerror or error}") from error
        if fields == self._fields:
            return
        found = Annotations(fields, self._prefix)
        former, dataset, given = self._given, found.dataset, found.given()
        for fault in found.errors:
            self._say(f"ignored: {fault}")
        if (given.cache_bytes, given.cache_id) != (former.cache_bytes, former.cache_id):
            self._changes += 1
        self._fields, self._dataset, self._given = fields, dataset, given
        self._job = job_of_pod(fields, self._labels(), self._prefix)

    def _labels(self) -> dict[str, str]:
        try:
            return read_fields(self._path.with_name(LABELS))
        except OSError:
            return {}

    def _say_other(self, job: str) -> None:
        self._say(
            f"remote IO is for job {self._job!r}, and this process reads for {job!r}: it has no "
            "limit"
        )

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("%s: %s", self, what)
