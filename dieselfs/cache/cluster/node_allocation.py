"""How a cache node keeps to the quotas that are allocated to datasets.

Once a second it renews its lease in the allocation directory, and reads the quotas if they have
changed. Of each it keeps its weight's share (`quota_share`). While the directory is away, or
has lost what it had, the last quotas stay.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from dieselfs.allocation.directory.decisions import NO_ONES_ID, Decisions
from dieselfs.allocation.directory.directories import allocation_directory
from dieselfs.allocation.directory.port import SETTLED_S, AllocationDirectory
from dieselfs.allocation.directory.reader_lease import LEASE_S, ReaderLease
from dieselfs.allocation.readers.kept_decisions import KeptDecisions
from dieselfs.cache.cluster.cache_node import CacheNode
from dieselfs.cache.cluster.quota_share import SteadyShare, quota_share
from dieselfs.cache.jobs.beats import Beats
from dieselfs.cache.jobs.job_name import MAX_JOB_BYTES

BEAT_S: Final = 1.0
_OPENS_S: Final = 2.0
"""The time after which it is known what the SSD of a node that has just started holds."""


def keep_allocations(index_url: str, node: CacheNode) -> Beats[AllocationDirectory]:
    """Have a node keep to what is allocated beside an index, until the returned thread is closed.

    Returns at once.
    """
    beats = Beats(
        partial(allocation_directory, index_url),
        [NodeAllocation(node)],
        BEAT_S,
        name="node-allocation",
        what="allocations",
    )
    beats.start()
    return beats


def cluster_job(cache_cluster: str) -> str:
    """Return the name that the nodes of a cluster have in place of a job, in their leases."""
    name = f"cache cluster {cache_cluster}"
    return name.encode()[:MAX_JOB_BYTES].decode(errors="ignore")


class NodeAllocation:
    """The allocation of one cache node. One thread beats it."""

    def __init__(self, node: CacheNode, clock: Callable[[], float] = time.monotonic) -> None:
        self._node, self._clock = node, clock
        self.id = os.urandom(8).hex()
        self._began = clock()
        self._share = SteadyShare()
        self._decisions, self._kept = Decisions(), KeptDecisions()

    def beat(self, directory: AllocationDirectory) -> None:
        """Renew the lease, and obey the quotas. Raises `RegistryUnavailable`."""
        now = self._clock()
        answer = directory.beat(self._lease(now), LEASE_S)
        if answer.cache_version != self._decisions.version:
            self._decisions = self._kept.decisions(directory.decisions())
        if answer.awake_s < SETTLED_S:  # the leases of other nodes may not be back yet
            return
        share = self._computed_share(answer.peers)
        self._share.note(share, now)
        if share is None or (self._share.now is None and now - self._began < _OPENS_S):
            return
        kept = self._share.now
        quotas = self._parts(kept) if kept is not None else self._first(share)
        if quotas is not None:
            self._node.quotas.obey(quotas)

    def end(self, directory: AllocationDirectory) -> None:
        """Give back the lease; the quotas stay."""
        directory.withdraw(self.id)

    def _computed_share(self, leases: Sequence[ReaderLease]) -> float | None:
        members = self._node.members()
        if self._node.announces and not members:
            return None
        alone = len(members) == 1 and not self._node.announces
        return quota_share(self._node.member.id, self.id, () if alone else members, leases)

    def _parts(self, share: float) -> Mapping[bytes, int]:
        """Return the node's parts of all quotas."""
        found = self._decisions.caches_in_force.values()
        return {bytes.fromhex(one.dataset_id): int(share * one.size_bytes) for one in found}

    def _first(self, share: float) -> Mapping[bytes, int] | None:
        """Return the parts of a node whose share is not steady yet.

        A dataset that it does not hold waits until then. None if it has quotas of an earlier
        process, which hold on.
        """
        quotas, parts = self._node.quotas, self._parts(share)
        if any(dataset in quotas for dataset in parts):
            return None
        return {id: size if quotas.held_bytes(id) else 0 for id, size in parts.items()}

    def _lease(self, now: float) -> ReaderLease:
        node = self._node
        return ReaderLease(
            reader=self.id,
            job=cluster_job(node.cache_cluster),
            host=os.uname().nodename[:255],
            pid=os.getpid(),
            dataset="-",
            dataset_id=NO_ONES_ID,
            dataset_bytes=0,
            held_bytes=node.status().cached_bytes,
            cache_bytes=node.budget_bytes,
            age_s=now - self._began,
        )
