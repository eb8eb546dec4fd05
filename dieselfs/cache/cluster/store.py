"""A store whose chunks are read through a cache cluster, for readers of whole chunks as objects.

Such readers warm an SSD of their own. So n nodes that warm one dataset read the store once. The
list of chunks and their lengths must be known: a cache cluster is asked for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.cluster.peers import CacheClusterPeers
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.block import is_whole


class CacheClusterStore(ReadWrapper):
    """The `ObjectStore` in front of another one.

    Reads of whole chunks of at most 16 MiB, and of parts of the files of larger ones, go through
    the cluster and are verified. All other calls go to the store.
    """

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        chunks: Iterable[ChunkRef],
        cache_cluster: CacheClusterSettings,
        large_files: Mapping[ChunkId, FileExtent] = MappingProxyType({}),
    ) -> None:
        """`large_files` are the files of chunks above 16 MiB that hold one file each."""
        super().__init__(store)
        self._peers = CacheClusterPeers(cache_cluster, dataset)
        self._source = PeerSource(ChunkReader(store, dataset), self._peers)
        self._chunks = {
            chunk_key(dataset.name, chunk.id): chunk for chunk in chunks if is_whole(chunk)
        }
        self._large_files = {
            chunk_key(dataset.name, chunk): file for chunk, file in large_files.items()
        }

    def close(self) -> None:
        """End the cache cluster's connections."""
        self._peers.close()

    def _read(self, read: Read) -> Buffer:
        if read.length is not None and (file := self._large_files.get(read.key)) is not None:
            return self._part(read.key, file, read.offset, read.length)
        chunk = self._chunks.get(read.key)
        if chunk is None or read.offset:
            return read.of(self._wrapped)
        if read.length not in (None, chunk.head_bytes + chunk.payload_bytes):
            return read.of(self._wrapped)
        return b"".join(self._source.whole(chunk))

    def _part(self, key: str, file: FileExtent, offset: int, length: int) -> Buffer:
        """Return a range of an object that is a head and one file.

        Bytes of the head come from the store.
        """
        begin = file.chunk.head_bytes
        of_head = max(0, min(length, begin - offset))
        head = self._wrapped.get_range(key, offset, of_head) if of_head else b""
        start = max(0, offset - begin)
        data = self._source.read(file, start, min(length - of_head, file.length - start))
        return b"".join((head, data)) if of_head else data
