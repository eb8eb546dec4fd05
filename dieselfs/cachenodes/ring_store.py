"""A store whose chunks are read through a ring: for who reads whole chunks as objects, such as those who warm an SSD of their own.

So n nodes that warm one dataset read the store once. It must be known which chunks there are, and how long: a ring is asked for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cachenodes.ring_peers import RingPeers
from dieselfs.cachenodes.ring_settings import RingSettings
from dieselfs.node_memory.piece import is_whole
from dieselfs.peercache.peer_source import PeerSource


class RingStore(ReadWrapper):
    """Implements `ObjectStore`. Reads of whole chunks of at most 16 MiB are verified; all else is the store's."""

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        chunks: Iterable[ChunkRef],
        ring: RingSettings,
    ) -> None:
        super().__init__(store)
        self._peers = RingPeers(ring, dataset)
        self._source = PeerSource(ChunkReader(store, dataset), self._peers)
        self._chunks = {
            chunk_key(dataset.name, chunk.id): chunk for chunk in chunks if is_whole(chunk)
        }

    def close(self) -> None:
        """The ring's connections end."""
        self._peers.close()

    def _read(self, read: Read) -> Buffer:
        chunk = self._chunks.get(read.key)
        if chunk is None or read.offset:
            return read.of(self._wrapped)
        if read.length not in (None, chunk.head_bytes + chunk.payload_bytes):
            return read.of(self._wrapped)
        return b"".join(self._source.whole(chunk))
