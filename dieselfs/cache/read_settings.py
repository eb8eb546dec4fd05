"""The settings of all that lies between a process's reads and the store. `read_stack` builds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkstore.ssd.policies.eligibility import Eligibility
from dieselfs.cache.node.budget import default_budget_bytes
from dieselfs.cache.node.task_folder import TaskFolder, default_task

if TYPE_CHECKING:
    from chunkstore.chunk_format import DatasetRef
    from dieselfs.allocation.readers.allocation_settings import AllocationSettings
    from dieselfs.cache.advice.recorder import TraceSettings
    from dieselfs.cache.cluster.settings import CacheClusterSettings
    from dieselfs.cache.node.block_eviction import PolicyName
    from dieselfs.cache.ports.peer_settings import PeerSettings
    from dieselfs.cache.ssd.settings import SsdSettings


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The parts through which a process reads a dataset. Picklable."""

    task: str | None = None
    """The task whose processes on this node share memory; None: the dataset's own."""
    memory_bytes: int | None = None
    """The budget of node memory; None: the task's, or a share of the free memory."""
    eviction: PolicyName = "uniform"
    peers: PeerSettings | None = None
    """The part in the task's peer cache, if this process creates the task; None: none."""
    ssd: SsdSettings | None = None
    cache_cluster: CacheClusterSettings | None = None
    cached_datasets: Eligibility = field(default_factory=Eligibility)
    """The datasets whose chunks SSDs may cache, this node's and those of the cache cluster."""
    trace: TraceSettings | None = None
    """The file to which requests are recorded; None: they are not."""
    allocation: AllocationSettings | None = None
    """The job whose share of cache and remote IO this process has; None: it takes what it gets."""

    def folder(self, dataset: DatasetRef) -> TaskFolder:
        """Return the folder of node memory for readers of a dataset."""
        return TaskFolder.at(self.task or default_task(dataset))

    def budget_bytes(self, dataset: DatasetRef) -> int:
        """Return the budget of node memory; without one, a share of the memory that is free now."""
        return self.memory_bytes or default_budget_bytes(self.folder(dataset).path)
