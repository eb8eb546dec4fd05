"""Cache blocks: the units of node memory, each kept as one file.

A block is the whole payload of a chunk, or 4 MiB of a file in a chunk above 16 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent

CACHE_BLOCK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class CacheBlock:
    """A cache block. Its name is unique over all datasets, as chunk ids are."""

    chunk: ChunkRef
    file: FileExtent | None = None
    """The large file that the block is a part of; None: the chunk's whole payload."""
    number: int = 0
    """The place of the block: bytes [number × CACHE_BLOCK_BYTES, + length) of the file."""

    @property
    def name(self) -> str:
        """The name of its file: the chunk's id, with offset and number for a large file."""
        if self.file is None:
            return str(self.chunk.id)
        return f"{self.chunk.id}.{self.file.offset}.{self.number}"

    @property
    def start(self) -> int:
        """The offset of the block in its file, or in the chunk's payload."""
        return self.number * CACHE_BLOCK_BYTES

    @property
    def length(self) -> int:
        """The bytes of the block."""
        if self.file is None:
            return self.chunk.payload_bytes
        return min(CACHE_BLOCK_BYTES, self.file.length - self.start)

    def fetch(self, source: ChunkSource) -> memoryview:
        """Return the block's bytes, verified; raise what `ChunkSource` raises."""
        if self.file is None:
            return source.payload(self.chunk)
        return source.read(self.file, self.start, self.length)


def is_whole(chunk: ChunkRef) -> bool:
    """Return whether a chunk is kept as one block."""
    return chunk.payload_bytes <= MAX_WHOLE_BYTES


def blocks_of(file: FileExtent, start: int, length: int) -> Iterator[tuple[CacheBlock, slice]]:
    """Yield the blocks that hold bytes [start, start + length) of a file, and the slice of each."""
    if is_whole(file.chunk):
        begin = file.offset + start
        yield CacheBlock(file.chunk), slice(begin, begin + length)
        return
    end = start + length
    while start < end:
        number, at = divmod(start, CACHE_BLOCK_BYTES)
        size = min(CACHE_BLOCK_BYTES - at, end - start)
        yield CacheBlock(file.chunk, file, number), slice(at, at + size)
        start += size
