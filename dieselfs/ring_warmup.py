"""The chunks of a dataset brought onto the SSDs of a cache nodes, by one who keeps nothing: each chunk is asked of its owner, which reads it from the store, once.

For a chunk of at most 16 MiB its smallest file is asked for: of what it does not hold, a node brings the whole chunk. A large one is asked for by its
pieces of 4 MiB, of which a node brings what it is asked for. A node refuses what its SSD does not write fast enough, and is asked for it again. It does not say which
chunks it had already, nor which its SSD lets go of for later ones; but all of them tell how much they have read from the store, and how large their SSDs are.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from chunkstore.call_threads import CallThreads
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import ChunkStoreError
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cachenodes.ring_peers import CacheClusterPeers
from dieselfs.cachenodes.ring_settings import CacheClusterSettings
from dieselfs.cachenodes.ring_status import cluster_nodes
from dieselfs.node_memory.piece import CACHE_BLOCK_BYTES, is_whole
from dieselfs.peercache.held_chunks import NodeStatus
from dieselfs.peercache.members import MemberId
from dieselfs.peercache.peer_source import PeerSource
from dieselfs.ssd_warmup import Advance
from metadata.snapshot import Snapshot

JOBS: Final = 8
PATIENCE_S: Final = 5.0
"""What no node gives is asked for again until nothing has come for so long: longer than it takes to find out who answers, and than a node waits for its SSD."""
_PAUSE_S: Final = 0.05
"""Of a thread that was refused: an SSD of 1 GB/s then has as good as all of its queue to write."""


@dataclass(frozen=True, slots=True)
class CacheClusterWarmUpReport:
    chunks: int
    """Wanted."""
    bytes: int
    given: int
    """Of the chunks, those that their owners had, or brought."""
    given_bytes: int
    from_store_bytes: int
    """What the nodes have read from the store meanwhile, for whomever."""
    ssd_bytes: int
    """What the SSDs of the nodes that answer can hold, those left out that are out of service; as of the end."""
    seconds: float


class CacheClusterWarmUp:
    """Of one dataset; for one thread, which `run` uses others beside."""

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Snapshot,
        chunks: Sequence[ChunkRef],
        cache_cluster: CacheClusterSettings,
    ) -> None:
        """`chunks` are the snapshot's."""
        dataset = snapshot.dataset
        heads = {chunk_key(dataset.name, chunk.id): chunk.head_bytes for chunk in chunks}
        self._cache_cluster = cache_cluster
        self._peers = CacheClusterPeers(cache_cluster, dataset)
        self._source = PeerSource(ChunkReader(_HeadsOnly(store, heads), dataset), self._peers)
        numbers = {id_.tobytes(): number for number, id_ in enumerate(snapshot.columns.chunk_id)}
        self._wanted = deque(
            (chunk, _asked_for(snapshot, numbers[chunk.id.value])) for chunk in chunks
        )
        self.chunks = len(chunks)
        self.bytes = sum(map(_size, chunks))
        self._given = self._given_bytes = 0
        self._given_at = 0.0
        """When a node has last given something."""
        self._counting = threading.Lock()
        self._stopped = False

    def run(
        self, advance: Advance, jobs: int = JOBS, patience_s: float = PATIENCE_S
    ) -> CacheClusterWarmUpReport:
        """Ask for all, and again for what no node gives, until nothing has come for `patience_s`. Raises what a store does that has not even the heads of large chunks, and `RegistryUnavailable`."""
        before = self._statuses()
        began = self._given_at = time.monotonic()
        threads = CallThreads("cluster-warm-up", jobs)
        try:
            threads.run_all([partial(self._ask_all, advance, patience_s)] * jobs, jobs)
        finally:
            self._stopped = True
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
        """Of the nodes that answer."""
        return {
            node.member.id: node.status
            for node in cluster_nodes(self._cache_cluster)
            if node.status is not None
        }

    def _ask_all(self, advance: Advance, patience_s: float) -> None:
        while not self._stopped:
            try:
                chunk, file = self._wanted.popleft()
            except IndexError:  # who is at the last ones asks for them again, too
                return
            try:
                self._ask(chunk, file)
            except _NotFromCluster:
                self._wanted.append((chunk, file))
                if time.monotonic() - self._given_at > patience_s:
                    return
                time.sleep(_PAUSE_S)
                continue
            with self._counting:
                self._given += 1
                self._given_bytes += _size(chunk)
                self._given_at = time.monotonic()
            advance(1, _size(chunk))

    def _ask(self, chunk: ChunkRef, file: FileExtent | None) -> None:
        if file is None:
            return
        unit = file.length if is_whole(chunk) else CACHE_BLOCK_BYTES
        for start in range(0, file.length, unit):
            self._source.read(file, start, min(unit, file.length - start))


class _NotFromCluster(ChunkStoreError):
    """No node gave it."""


class _HeadsOnly(ReadWrapper):
    """The store, for what is needed to verify pieces of large files, and for nothing else."""

    def __init__(self, store: ObjectStore, heads: Mapping[str, int]) -> None:
        super().__init__(store)
        self._heads = heads

    def _read(self, read: Read) -> Buffer:
        if (read.offset, read.length) != (0, self._heads.get(read.key)):
            raise _NotFromCluster(f"no node of the cache cluster gave {read}")
        return read.of(self._wrapped)


def _asked_for(snapshot: Snapshot, number: int) -> FileExtent | None:
    """The smallest file of a chunk that has bytes; None if none has."""
    files = snapshot.files_in_chunk(number)
    lengths = {inode: snapshot.size(inode) for inode in files}
    smallest = min(
        (inode for inode in files if lengths[inode]), key=lengths.__getitem__, default=None
    )
    return None if smallest is None else snapshot.extent(smallest)


def _size(chunk: ChunkRef) -> int:
    return chunk.head_bytes + chunk.payload_bytes
