"""A `SharedSource` that counts, waits and fails on command, and says where it was on its way to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.shared_source import OwnNode
from tests.dieselfs.cache.made_up_source import MadeUpSource

Route: TypeAlias = Literal["reader", "owner"]


def head_of(chunk: ChunkRef) -> bytes:
    return bytes([255 - chunk.id.value[-1]]) * chunk.head_bytes


class MadeUpSharedSource(MadeUpSource):
    """`elsewhere`: numbers of chunks whose owner is another node."""

    def __init__(self, before: Callable[[ChunkRef], None] = lambda chunk: None) -> None:
        super().__init__(before)
        self.elsewhere: set[int] = set()
        self.reading: set[str] = set()
        """Names of pieces that are said to be read from the store just now."""
        self.routes: list[Route] = []

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        self.routes.append("reader")
        return memoryview(head_of(chunk)), self.payload(chunk)

    def whole_as_owner(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        self.routes.append("owner")
        return memoryview(head_of(chunk)), self.payload(chunk)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        self.routes.append("reader")
        return super().read(file, start, length)

    def read_as_owner(self, file: FileExtent, start: int, length: int) -> memoryview:
        self.routes.append("owner")
        return super().read(file, start, length)

    def owner_is_elsewhere(self, chunk: ChunkId) -> bool:
        return chunk.value[-1] in self.elsewhere

    def serve(self, node: OwnNode) -> None:
        pass

    def is_reading_store(self, chunk: ChunkId, block: CacheBlock | None = None) -> bool:
        return (str(chunk) if block is None else block.name) in self.reading
