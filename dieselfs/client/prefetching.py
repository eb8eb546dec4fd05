"""Deep prefetch: the chunks of paths or of an epoch, into a tier, before they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.cluster.options import configured_cluster
from dieselfs.cache.cluster.store import CacheClusterStore
from dieselfs.cache.read_settings import ReadSettings
from dieselfs.cache.read_stack import below_ssd
from dieselfs.cache.ssd.settings import SsdChoice, chosen_tier
from dieselfs.cache.warmup.cluster_warmup import ClusterTarget
from dieselfs.cache.warmup.handle import WarmUpHandle
from dieselfs.cache.warmup.memory_warmup import MemoryTarget
from dieselfs.cache.warmup.ssd_warmup import ssd_warm_up
from dieselfs.cache.warmup.wanted_chunks import chunks_of_order, chunks_of_paths
from dieselfs.cache.warmup.warm_up import WarmUp
from dieselfs.client.path_arguments import DatasetPath
from dieselfs.config import Config
from dieselfs.dataset.dataset import Dataset
from dieselfs.errors import UsageError
from dieselfs.shuffle.order import ShuffledOrder, ShuffleParameters
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from dieselfs.cache.task.node_memory import NodeMemory

Tier: TypeAlias = Literal["memory", "ssd", "cluster"]
"""Node memory, this node's SSD, or the SSDs of the cache nodes."""
Wanted: TypeAlias = DatasetPath | Iterable[DatasetPath] | ShuffledOrder | ShuffleParameters
"""A path, paths (of files and directories), or the order of an epoch."""
Start: TypeAlias = Callable[[Snapshot, Sequence[ChunkRef]], WarmUpHandle]
"""A function that starts a prefetch of chunks, in their order."""


def selected_chunks(
    snapshot: Snapshot, wanted: Wanted, chunks: Iterable[ChunkId | str]
) -> list[ChunkRef]:
    """Return the chunks of what is wanted, then the named ones, each once.

    Raises `PathNotFound`, and `UsageError` for a chunk that is not in the snapshot.
    """
    if isinstance(wanted, ShuffledOrder | ShuffleParameters):
        found = chunks_of_order(snapshot, wanted)
    else:
        paths = [wanted] if isinstance(wanted, str | bytes) else list(wanted)
        found = chunks_of_paths(snapshot, paths)
    named = [_parsed(chunk) if isinstance(chunk, str) else chunk for chunk in chunks]
    return list(dict.fromkeys([*found, *_named_chunks(snapshot, named)]))


@dataclass(frozen=True, slots=True)
class Tiers:
    """The tiers that a client prefetches into."""

    dataset: Dataset
    open_memory: Callable[[], NodeMemory]
    """Returns the client's node memory, which need not be open before."""
    ssd: SsdChoice = "configured"
    config: Config | None = None

    def prefetch_into(self, tier: Tier) -> Start:
        """Return the function that starts a prefetch into a tier; raise `UsageError`."""
        starts = {"memory": self._memory, "ssd": self._ssd, "cluster": self._cluster}
        if tier not in starts:
            raise UsageError(f"into={tier!r} is not a tier", "write 'memory', 'ssd' or 'cluster'")
        return starts[tier]

    def _memory(self, snapshot: Snapshot, chunks: Sequence[ChunkRef]) -> WarmUpHandle:
        memory = self.open_memory()
        memory.join()
        node = memory.statistics().node
        # Without a master the prefetch asks for one, and says so if there is none.
        budget_bytes = (
            sum(chunk.payload_bytes for chunk in chunks) if node is None else node.budget_bytes
        )
        target = MemoryTarget(memory, memory.folder.chunks, budget_bytes, snapshot)
        return WarmUpHandle(_name(snapshot, "node memory"), WarmUp(target, chunks))

    def _ssd(self, snapshot: Snapshot, chunks: Sequence[ChunkRef]) -> WarmUpHandle:
        """Raise `UsageError` without such a tier, and `SsdUnavailable`."""
        settings = chosen_tier(self.ssd, self.config)
        if settings is None:
            raise UsageError(
                "into='ssd': no SSD tier is configured",
                "set DIESELFS_SSD to a folder, or `ssd` of a profile, or connect with "
                "ssd=SsdSettings(folder, budget_bytes)",
            )
        dataset = self.dataset
        stack = ReadSettings(ssd=settings, cache_cluster=configured_cluster(self.config))
        with ExitStack() as opened:
            filling = below_ssd(dataset.store, dataset.ref, stack, ExpectedFiles(snapshot))
            if isinstance(filling, CacheClusterStore):
                opened.enter_context(closing(filling))
            work = ssd_warm_up(filling, dataset.ref, settings, chunks)
            return WarmUpHandle(
                _name(snapshot, f"the SSD {settings.folder}"), work, opened.pop_all().close
            )

    def _cluster(self, snapshot: Snapshot, chunks: Sequence[ChunkRef]) -> WarmUpHandle:
        """Raise `UsageError` without a cache cluster."""
        settings = configured_cluster(self.config)
        if settings is None:
            raise UsageError(
                "into='cluster': no cache cluster is configured",
                "set DIESELFS_CACHE_CLUSTER and DIESELFS_CACHE_CLUSTER_SECRET_FILE, or "
                "`cache_cluster` and `cache_cluster_secret_file` of a profile",
            )
        target = ClusterTarget(self.dataset.store, snapshot, chunks, settings)
        name = _name(snapshot, f"the cache cluster {settings.name}")
        return WarmUpHandle(name, WarmUp(target, chunks), target.close)


def _parsed(chunk: str) -> ChunkId:
    try:
        return ChunkId.parse(chunk)
    except ValueError:
        raise UsageError(f"{chunk!r} is not the id of a chunk") from None


def _named_chunks(snapshot: Snapshot, named: Sequence[ChunkId]) -> list[ChunkRef]:
    if not named:
        return []
    known = {id_.tobytes(): number for number, id_ in enumerate(snapshot.columns.chunk_id)}
    for chunk in named:
        if chunk.value not in known:
            raise UsageError(f"snapshot {snapshot.id} has no chunk {chunk}")
    return [snapshot.chunk(known[chunk.value]) for chunk in named]


def _name(snapshot: Snapshot, tier: str) -> str:
    return f"{snapshot.dataset.name}@{snapshot.id} into {tier}"
