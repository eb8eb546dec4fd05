"""Warm-up of a cache cluster: load the chunks of a dataset onto the SSDs of its cache nodes.

The calling process keeps nothing: it requests each chunk from its owner, which reads it from the
store, once. For a chunk of at most 16 MiB the smallest file is requested: on a miss a node loads
the whole chunk. A large chunk is requested in blocks of 4 MiB, and a node loads the requested
blocks. A node refuses a request if its SSD does not write fast enough, and is asked again. A node
reports neither which chunks it had already nor which ones its SSD evicts for later ones. But every
node reports how much it has read from the store, and how large its SSD is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from dieselfs.cache.warmup.load_loop import PAUSE_S, LoadLoop
from metadata.snapshot import Snapshot

JOBS: Final = 8
PATIENCE_S: Final = 5.0
"""The time without any loaded chunk after which the warm-up gives up on chunks that no node gives.

It is longer than it takes to find out which nodes answer, and than a node waits for its SSD.
"""


@dataclass(frozen=True, slots=True)
class CacheClusterWarmUpReport:
    """The result of a warm-up of a cache cluster."""

    chunks: int
    """Chunks of the dataset."""
    bytes: int
    given: int
    """Chunks that their owners had cached or loaded."""
    given_bytes: int
    from_store_bytes: int
    """Bytes that the nodes read from the store meanwhile, for any client."""
    ssd_bytes: int
    """The bytes that the SSDs of the nodes that answer can hold, at the end.

    SSDs that are out of service are left out.
    """
    seconds: float


class CacheClusterWarmUp:
    """The warm-up of one dataset. One thread uses it; `run` starts others."""

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Snapshot,
        chunks: Sequence[ChunkRef],
        cache_cluster: CacheClusterSettings,
    ) -> None:
        """Prepare the warm-up; `chunks` are the snapshot's."""
        dataset = snapshot.dataset
        heads = {chunk_key(dataset.name, chunk.id): chunk.head_bytes for chunk in chunks}
        self._cache_cluster = cache_cluster
        self._peers = CacheClusterPeers(cache_cluster, dataset)
        self._source = PeerSource(ChunkReader(_HeadsOnly(store, heads), dataset), self._peers)
        numbers = {id_.tobytes(): number for number, id_ in enumerate(snapshot.columns.chunk_id)}
        self._loop = LoadLoop(
            [(chunk, _asked_for(snapshot, numbers[chunk.id.value])) for chunk in chunks]
        )
        self.chunks = len(chunks)
        self.bytes = sum(chunk.object_bytes for chunk in chunks)
        self._given = self._given_bytes = 0
        self._given_at = 0.0
        """The time of the last chunk that a node gave."""
        self._counting = threading.Lock()

    def run(
        self, advance: Advance, jobs: int = JOBS, patience_s: float = PATIENCE_S
    ) -> CacheClusterWarmUpReport:
        """Request all chunks, and repeat the requests that no node answers with bytes.

        Ends when all chunks have come, or nothing has come for `patience_s`. Raises
        `RegistryUnavailable`, and the error of a store that lacks even the heads of large chunks.
        """
        before = self._statuses()
        began = self._given_at = time.monotonic()
        try:
            self._loop.run(partial(self._load, advance, patience_s), jobs)
        finally:
            self._peers.close()
        seconds, after = time.monotonic() - began, self._statuses()
        read = {node: status.from_store_bytes for node, status in after.items()}
        read_before = {node: status.from_store_bytes for node, status in before.items()}
        return CacheClusterWarmUpReport(
            self.chunks,
            self.bytes,
            self._given,
            self._given_bytes,
            sum(max(0, total - read_before.get(node, 0)) for node, total in read.items()),
            sum(status.budget_bytes for status in after.values()),
            seconds,
        )

    def _statuses(self) -> dict[MemberId, NodeStatus]:
        """Return the statuses of the nodes that answer."""
        return {
            node.member.id: node.status
            for node in cluster_nodes(self._cache_cluster)
            if node.status is not None
        }

    def _load(
        self,
        advance: Advance,
        patience_s: float,
        wanted: tuple[ChunkRef, FileExtent | None],
        _: bool,
    ) -> bool:
        chunk, file = wanted
        try:
            self._ask(chunk, file)
        except _NotFromCluster:
            if time.monotonic() - self._given_at > patience_s:
                self._loop.stop()
            else:
                time.sleep(PAUSE_S)
            return False
        with self._counting:
            self._given += 1
            self._given_bytes += chunk.object_bytes
            self._given_at = time.monotonic()
        advance(1, chunk.object_bytes)
        return True

    def _ask(self, chunk: ChunkRef, file: FileExtent | None) -> None:
        if file is None:
            return
        unit = file.length if is_whole(chunk) else CACHE_BLOCK_BYTES
        for start in range(0, file.length, unit):
            self._source.read(file, start, min(unit, file.length - start))


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
