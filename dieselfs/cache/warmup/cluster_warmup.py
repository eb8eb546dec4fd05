"""Warm-up of a cache cluster: load chunks onto the SSDs of its cache nodes.

The calling process keeps nothing: it requests each chunk from its owner, which reads it from the
store, once. For a chunk of at most 16 MiB the smallest file is requested: on a miss a node loads
the whole chunk. A large chunk is requested in blocks of 4 MiB, and a node loads the requested
blocks. A node refuses a request if its SSD does not write fast enough, and is asked again. A node
reports neither which chunks it had already nor which ones its SSD evicts for later ones. But every
node reports how much it has read from the store, and how large its SSD is.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import ChunkStoreError
from chunkstore.object_keys import chunk_key
from chunkstore.progress import Advance
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.cluster.peers import CacheClusterPeers
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.cluster.status import cluster_nodes
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, is_whole
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import MemberId
from dieselfs.cache.warmup.report import WarmUpReport
from dieselfs.cache.warmup.warm_up import Outcome, WarmUp, WarmUpEnds
from metadata.snapshot import Snapshot

JOBS: Final = 8
PATIENCE_S: Final = 5.0
"""The time without any loaded chunk after which the warm-up gives up on chunks that no node gives.

It is longer than it takes to find out which nodes answer, and than a node waits for its SSD.
"""


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """The cache nodes' part in a warm-up."""

    from_store_bytes: int
    """Bytes that the nodes read from the store meanwhile, for any client."""
    ssd_bytes: int
    """The bytes that the SSDs of the nodes that answer can hold, at the end.

    SSDs that are out of service are left out.
    """


class ClusterTarget:
    """A cache cluster as a `WarmUpTarget`, for the chunks of a snapshot."""

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Snapshot,
        chunks: Sequence[ChunkRef],
        cache_cluster: CacheClusterSettings,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`store` is asked for the heads of large chunks alone."""
        self.jobs = JOBS
        dataset = snapshot.dataset
        heads = {chunk_key(dataset.name, chunk.id): chunk.head_bytes for chunk in chunks}
        self._cache_cluster, self._patience_s = cache_cluster, patience_s
        self._peers = CacheClusterPeers(cache_cluster, dataset)
        self._source = PeerSource(ChunkReader(_HeadsOnly(store, heads), dataset), self._peers)
        numbers = {id_.tobytes(): number for number, id_ in enumerate(snapshot.columns.chunk_id)}
        self._asked_for = {chunk: _asked_for(snapshot, numbers[chunk.id.value]) for chunk in chunks}
        self._given_at: float | None = None
        """The time of the last chunk that a node gave, or of the first request."""

    def cached(self, chunks: Sequence[ChunkRef]) -> Container[bytes]:
        """See `WarmUpTarget`: nodes do not tell."""
        return ()

    def size(self, chunk: ChunkRef) -> int:
        """See `WarmUpTarget`."""
        return chunk.object_bytes

    def fitting(self, missing: Sequence[ChunkRef]) -> tuple[int, str]:
        """See `WarmUpTarget`: nodes do not tell."""
        return len(missing), ""

    def units(self, chunk: ChunkRef) -> Sequence[tuple[ChunkRef, int]]:
        """See `WarmUpTarget`."""
        return [(chunk, chunk.object_bytes)]

    def load(self, unit: ChunkRef) -> Outcome | None:
        """See `WarmUpTarget`. Ends when nothing has come for the patience."""
        if self._given_at is None:
            self._given_at = time.monotonic()
        try:
            self._ask(unit, self._asked_for[unit])
        except _NotFromCluster:
            if time.monotonic() - self._given_at > self._patience_s:
                raise self._nothing_comes() from None
            return None
        self._given_at = time.monotonic()
        return "loaded"

    def close(self) -> None:
        """End the connections to the nodes."""
        self._peers.close()

    def statuses(self) -> dict[MemberId, NodeStatus]:
        """Return the statuses of the nodes that answer. Raises `RegistryUnavailable`."""
        return {
            node.member.id: node.status
            for node in cluster_nodes(self._cache_cluster)
            if node.status is not None
        }

    def totals(self, before: Mapping[MemberId, NodeStatus]) -> ClusterTotals:
        """Return what the nodes have done since `before`. Raises `RegistryUnavailable`."""
        after = self.statuses()
        read_before = {node: status.from_store_bytes for node, status in before.items()}
        read = {node: status.from_store_bytes for node, status in after.items()}
        return ClusterTotals(
            sum(max(0, total - read_before.get(node, 0)) for node, total in read.items()),
            sum(status.budget_bytes for status in after.values()),
        )

    def _ask(self, chunk: ChunkRef, file: FileExtent | None) -> None:
        if file is None:
            return
        unit = file.length if is_whole(chunk) else CACHE_BLOCK_BYTES
        for start in range(0, file.length, unit):
            self._source.read(file, start, min(unit, file.length - start))

    def _nothing_comes(self) -> WarmUpEnds:
        if self.statuses():
            return WarmUpEnds(
                "not admitted",
                "the cache nodes refuse them, because their SSDs are full, out of service or too "
                "slow, or their stores fail: see `dlcmd cluster` and the logs of the nodes",
            )
        return WarmUpEnds(
            "tier unavailable",
            "no cache node answers: see `dlcmd cluster`, then run the same command again",
        )


def warm_cluster(
    target: ClusterTarget, work: WarmUp, advance: Advance, jobs: int | None = None
) -> tuple[WarmUpReport, ClusterTotals]:
    """Run a warm-up of a cluster, and close it; return its counts and those of the nodes.

    Raises `RegistryUnavailable`, and the error of a store that lacks even the heads of large
    chunks.
    """
    try:
        before = target.statuses()
        report = work.run(advance, jobs)
        return report, target.totals(before)
    finally:
        target.close()


class _NotFromCluster(ChunkStoreError):
    """No node gave the requested bytes."""


class _HeadsOnly(ReadWrapper):
    """The store, restricted to the reads that verify blocks of large files."""

    def __init__(self, store: ObjectStore, heads: Mapping[str, int]) -> None:
        super().__init__(store)
        self._heads = heads

    def _read(self, read: Read) -> Buffer:
        if (read.offset, read.length) != (0, self._heads.get(read.key)):
            raise _NotFromCluster(f"no node of the cache cluster sent {read}")
        return read.of(self._wrapped)


def _asked_for(snapshot: Snapshot, number: int) -> FileExtent | None:
    """Return the smallest file of a chunk that has bytes; None if none has."""
    files = snapshot.files_in_chunk(number)
    lengths = {inode: snapshot.size(inode) for inode in files}
    smallest = min(
        (inode for inode in files if lengths[inode]), key=lengths.__getitem__, default=None
    )
    return None if smallest is None else snapshot.extent(smallest)
