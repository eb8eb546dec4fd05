"""Node memory for processes that read a dataset without a mount.

The environment gives the settings that the caller omits (`cache.membership.peer_options`), so that
a job's script decides and training code needs no change. A process that only joins a task
whose master has peers reads from them too: all it needs lies in the task's folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dieselfs.cache.cluster.options import cluster_from_environment
from dieselfs.cache.cluster.source import with_cache_cluster
from dieselfs.cache.membership.peer_options import TASK_VARIABLE, from_environment
from dieselfs.cache.node.task_folder import TaskFolder, default_task
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.peer_settings import PeerSettings
from dieselfs.cache.ssd.settings import SsdChoice, chosen_tier, tiered_reader
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.dataset.dataset import Dataset
from dieselfs.errors import UsageError
from dieselfs.snapshots.expected_files import ExpectedFiles


def open_task_memory(
    dataset: Dataset,
    expected: ExpectedFiles,
    *,
    budget_bytes: int | None = None,
    task: str | None = None,
    peers: PeerSettings | None = None,
    join: bool = True,
    ssd: SsdChoice = "configured",
    environment: Mapping[str, str] = os.environ,
) -> NodeMemory:
    """Join the task's memory, or create it.

    Chunks are verified against `expected`. A chunk that the task lacks comes through the cache
    cluster that the environment names, if any, and from the SSD tier before the store.

    The process that creates the task sets its peers; later processes use that setting. Raises
    `UsageError` for settings that contradict each other, or variables that make no sense.
    """
    if peers is None:
        peers = from_environment(environment, task)
    elif task not in (None, peers.task):
        raise UsageError(
            f"task {task} differs from the task of the peers, {peers.task}",
            "give both the same name",
        )
    named = task if peers is None else peers.task
    folder = TaskFolder.at(named or environment.get(TASK_VARIABLE) or default_task(dataset.ref))
    tier = chosen_tier(ssd, environment)
    reader = tiered_reader(dataset.ref, dataset.store, tier, expected)
    source = PeerSource(with_cache_cluster(reader, cluster_from_environment(environment)), folder)
    return NodeMemory.open(folder, source, budget_bytes=budget_bytes, join=join, peers=peers)
