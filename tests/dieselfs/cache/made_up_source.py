"""A `ChunkSource` that counts, waits and fails on command. Content follows from the chunk's
number."""

from __future__ import annotations

import threading
from collections.abc import Callable

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.cache.ports.block import CacheBlock


def block_of(number: int, length: int = 1000) -> CacheBlock:
    return CacheBlock(ChunkRef(ChunkId(number.to_bytes(16, "big")), 64, length))


def content_of(block: CacheBlock) -> bytes:
    return block.chunk.id.value[-1:] * block.length


class MadeUpSource:
    """`before` is called with each piece that is asked for, in the asker's thread; what it raises,
    the fetch raises."""

    def __init__(self, before: Callable[[ChunkRef], None] = lambda chunk: None) -> None:
        self.before = before
        self.asked: list[ChunkRef] = []
        self._lock = threading.Lock()

    def payload(self, chunk: ChunkRef) -> memoryview:
        with self._lock:
            self.asked.append(chunk)
        self.before(chunk)
        return memoryview(content_of(CacheBlock(chunk)))

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        return self.payload(file.chunk)[file.offset + start :][:length]
