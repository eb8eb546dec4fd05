"""A store whose chunks are read through a cache cluster. A node's own SSD tier is in front of it.

So n nodes with an SSD of their own read each chunk from the store once. A cluster is asked only for
chunks whose lengths a snapshot gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.object_keys import chunk_of_key
from chunkstore.ssd.reader_tags import ReaderTags
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.cluster.peers import CacheClusterPeers
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, is_whole
from dieselfs.snapshots.expected_files import ExpectedFiles

if TYPE_CHECKING:
    from chunkstore.stores.read_turn import Payer

_REMEMBERED: Final = 1024
"""The damaged chunks that are remembered at most."""


class CacheClusterStore(ReadWrapper):
    """The `ObjectStore` in front of another one. Implements `KeepsCopies`; thread-safe.

    Whole chunks of at most 16 MiB, ranges of their payloads, and parts of a larger chunk that is
    one file go through the cluster. All other calls go to the store. Whole chunks and parts of
    large files are verified here. Ranges are not: the chunk reader in front verifies them, and
    calls `forget` for a damaged one.
    """

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        known: ExpectedFiles,
        cache_cluster: CacheClusterSettings,
        tags: ReaderTags | None = None,
        payer: Payer | None = None,
    ) -> None:
        """`known` gives the lengths of chunks; snapshots may be added to it later.

        `tags` tell the nodes' cache policies for which job this process reads. `payer` gives the
        budget that pays for what nodes fetch for it.
        """
        super().__init__(store)
        self._arguments = store, dataset, known, cache_cluster, tags, payer
        self._dataset, self._known = dataset, known
        self._peers = CacheClusterPeers(cache_cluster, dataset, tags, payer)
        self.source: Final = PeerSource(ChunkReader(store, dataset, known), self._peers)
        """The source of chunks and files through the cluster, which counts them."""
        self._damaged: set[ChunkId] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheClusterStore, self._arguments

    def cached_bytes(self) -> int:
        """See `CacheClusterPeers`."""
        return self._peers.cached_bytes()

    def close(self) -> None:
        """End the cache cluster's connections."""
        self._peers.close()

    def forget(self, key: str) -> bool:
        """Read a chunk from the store from now on; return whether the cluster was asked for it.

        The chunk's bytes were damaged, and a node of the cluster may have sent them.
        """
        id = chunk_of_key(self._dataset.name, key)
        if id is None or id in self._damaged:
            return super().forget(key)
        if len(self._damaged) >= _REMEMBERED:
            self._damaged = set()
        self._damaged.add(id)
        super().forget(key)
        return True

    def _read(self, read: Read) -> Buffer:
        id = chunk_of_key(self._dataset.name, read.key)
        chunk = None if id is None or id in self._damaged else self._known.chunk(id)
        if chunk is None:
            return read.of(self._wrapped)
        return self._small(read, chunk) if is_whole(chunk) else self._large(read, chunk)

    def _small(self, read: Read, chunk: ChunkRef) -> Buffer:
        """Read a chunk of at most 16 MiB, or a part of it."""
        size = chunk.head_bytes + chunk.payload_bytes
        end = size if read.length is None else min(read.offset + read.length, size)
        if end <= chunk.head_bytes:
            return read.of(self._wrapped)
        start, length = read.offset - chunk.head_bytes, end - read.offset
        if start >= 0 and length <= CACHE_BLOCK_BYTES:
            return self.source.range(chunk, start, length, lambda: read.of(self._wrapped))
        whole = b"".join(self.source.whole(chunk))
        return whole if length == size else memoryview(whole)[read.offset : end]

    def _large(self, read: Read, chunk: ChunkRef) -> Buffer:
        """Read a part of a larger chunk; bytes of its head come from the store."""
        file = self._known.only_file(chunk.id)
        if file is None or read.length is None:
            return read.of(self._wrapped)
        return self._part(read.key, file, read.offset, read.length)

    def _part(self, key: str, file: FileExtent, offset: int, length: int) -> Buffer:
        begin = file.chunk.head_bytes
        of_head = max(0, min(length, begin - offset))
        head = self._wrapped.get_range(key, offset, of_head) if of_head else b""
        start = max(0, offset - begin)
        data = self.source.read(file, start, min(length - of_head, file.length - start))
        return b"".join((head, data)) if of_head else data
