"""What node memory keeps as one file: a chunk's whole payload, or 4 MiB of a file in a chunk above 16 MiB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent

CACHE_BLOCK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class CacheBlock:
    """Unique over all datasets by its name, as chunk ids are."""

    chunk: ChunkRef
    file: FileExtent | None = None
    """The large file that it is a part of; None: the chunk's whole payload."""
    number: int = 0
    """Bytes [number × CACHE_BLOCK_BYTES, + length) of the file."""

    @property
    def name(self) -> str:
        if self.file is None:
            return str(self.chunk.id)
        return f"{self.chunk.id}.{self.file.offset}.{self.number}"

    @property
    def start(self) -> int:
        """Where it begins in its file, or in the chunk's payload."""
        return self.number * CACHE_BLOCK_BYTES

    @property
    def length(self) -> int:
        if self.file is None:
            return self.chunk.payload_bytes
        return min(CACHE_BLOCK_BYTES, self.file.length - self.start)

    def fetch(self, source: ChunkSource) -> memoryview:
        """Its bytes, verified; raises what `ChunkSource` does."""
        if self.file is None:
            return source.payload(self.chunk)
        return source.read(self.file, self.start, self.length)


def is_whole(chunk: ChunkRef) -> bool:
    """Whether a chunk is kept as one piece."""
    return chunk.payload_bytes <= MAX_WHOLE_BYTES


def blocks_of(file: FileExtent, start: int, length: int) -> Iterator[tuple[CacheBlock, slice]]:
    """The pieces that hold bytes [start, start + length) of a file, in order, and what of each."""
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
