"""One read of a file of the dataset: exactly the bytes that exist in the range, or an error.

A short reply would silently truncate the file for its reader, and shrink `st_size` with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkSource, FileExtent
from chunkstore.errors import Corrupt
from dieselfs.chunk_cache import CacheObserver
from dieselfs.worker_threads import WorkerThreads


class CachedSource(ChunkSource, Protocol):
    """A `ChunkSource` that can say without blocking what it has in memory."""

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        """What `read` would return if that is in memory, else None. Never blocks."""
        ...

    def observe(self, observer: CacheObserver) -> None:
        """Tell `observer` of whole chunks that come into memory and leave it."""
        ...

    def discard(self, chunk: ChunkId) -> None:
        """Let go of a chunk in memory."""
        ...

    def statistics(self) -> Any:
        """A frozen dataclass of counters."""
        ...


@dataclass(slots=True)
class FileReader:
    """Answers from memory on the spot, from slower tiers through a worker thread."""

    source: CachedSource
    threads: WorkerThreads
    bytes_read: int = 0
    thread_reads: int = 0

    async def read(self, file: FileExtent, start: int, size: int) -> bytes | memoryview:
        """Bytes [start, start + size) of `file` as far as it reaches. Raises `ChunkStoreError`."""
        length = min(size, file.length - start)
        if length <= 0:
            return b""
        data = self.source.peek(file, start, length)
        if data is None:
            self.thread_reads += 1
            data = await self.threads.run_abandonable(self.source.read, file, start, length)
        if len(data) != length:
            raise Corrupt(f"{len(data)} bytes came for {length} of chunk {file.chunk.id}")
        self.bytes_read += length
        return data
