"""The source of a master's blocks: a store, or the nodes of its task before the store."""

from __future__ import annotations

from chunkstore.chunk_source import ChunkSource
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.shared_source import SharedSource


class BlockSource:
    """A `ChunkSource` as a master asks it. Thread-safe."""

    def __init__(self, source: ChunkSource, asks_peers: bool) -> None:
        """With `asks_peers`, a `SharedSource` asks other nodes, which ask this one."""
        self._source = source
        self._shared = source if asks_peers and isinstance(source, SharedSource) else None

    @property
    def has_heads(self) -> bool:
        """True if chunks come with their heads: peers verify chunks by them."""
        return self._shared is not None

    def head_bytes(self, block: CacheBlock) -> int:
        """Return the bytes of the head that comes with the block."""
        return block.chunk.head_bytes if self.has_heads and block.file is None else 0

    def is_elsewhere(self, block: CacheBlock) -> bool:
        """Return whether another node is asked for the block."""
        return self._shared is not None and self._shared.owner_is_elsewhere(block.chunk.id)

    def is_reading_store(self, block: CacheBlock) -> bool:
        """Return whether a fetch of the block waits for no other node now."""
        part = None if block.file is None else block
        return self._shared is None or self._shared.is_reading_store(block.chunk.id, part)

    def fetch(self, block: CacheBlock, as_owner: bool) -> tuple[memoryview | None, memoryview]:
        """Return (the head or None, the bytes of the block). Raises what `ChunkSource` raises."""
        shared = self._shared
        if shared is None:
            return None, block.fetch(self._source)
        if block.file is None:
            return (shared.whole_as_owner if as_owner else shared.whole)(block.chunk)
        if as_owner:
            return None, shared.read_as_owner(block.file, block.start, block.length)
        return None, block.fetch(shared)
