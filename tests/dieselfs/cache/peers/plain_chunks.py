"""A node's memory made of plain buffers, whose fetches a test decides on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus

CHUNK_BYTES = 256 << 10
HEAD_BYTES = 300


def chunk(number: int, size: int = CHUNK_BYTES) -> ChunkRef:
    return ChunkRef(ChunkId(number.to_bytes(16, "big")), HEAD_BYTES, size)


def content(ref: ChunkRef) -> bytes:
    """Of its payload, the same in every process."""
    return random.Random(ref.id.value).randbytes(ref.payload_bytes)


def head(ref: ChunkRef) -> bytes:
    return random.Random(ref.id.value[::-1]).randbytes(ref.head_bytes)


def large_block(number: int) -> CacheBlock:
    """The second, and last, piece of a file in a large chunk."""
    ref = ChunkRef(ChunkId(number.to_bytes(16, "big")), HEAD_BYTES, 20 << 20)
    return CacheBlock(ref, FileExtent(ref, 100, CACHE_BLOCK_BYTES + 5000, 0), 1)


class PlainChunks:
    """Implements `CachedChunks`."""

    def __init__(self, chunks: Iterable[ChunkRef] = ()) -> None:
        self.payloads: dict[ChunkId, memoryview] = {}
        self.heads: dict[ChunkId, memoryview] = {}
        self.blocks: dict[str, memoryview] = {}
        self.coming: set[str] = set()
        self.loaded: list[str] = []
        self.fetch: Callable[[CacheBlock], None] = self.keep
        """What `load` does, in the thread that calls it."""
        self.state = NodeStatus(budget_bytes=1 << 30)
        self._lock = threading.Lock()
        for ref in chunks:
            self.keep(CacheBlock(ref))

    def keep(self, block: CacheBlock) -> None:
        if block.file is None:
            self.heads[block.chunk.id] = memoryview(head(block.chunk))
            self.payloads[block.chunk.id] = memoryview(content(block.chunk))
        else:
            self.blocks[block.name] = memoryview(content(block.chunk)[: block.length])

    def payload(self, chunk: ChunkId) -> memoryview | None:
        return self.payloads.get(chunk)

    def head(self, chunk: ChunkId) -> memoryview | None:
        return self.heads.get(chunk)

    def block(self, block: CacheBlock) -> memoryview | None:
        if block.file is None:
            return self.payloads.get(block.chunk.id)
        return self.blocks.get(block.name)

    def is_loading(self, block: CacheBlock) -> bool:
        return block.name in self.coming

    def load(self, block: CacheBlock) -> None:
        with self._lock:
            self.loaded.append(block.name)
        self.fetch(block)

    def status(self) -> NodeStatus:
        return self.state
