"""One read of a file of the dataset: exactly the bytes that exist in the range, or an error.

A short reply would silently truncate the file for its reader, and shrink `st_size` with it.

What a read ahead was refused the kernel asks for again at once, as the single page that its reader waits for. After an outage that was waited out
to the end, that would be the same wait again: such a failure is the answer for a moment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkSource, FileExtent
from chunkstore.errors import Corrupt, Unavailable
from dieselfs.node_memory.chunk_observer import ChunkObserver
from dieselfs.worker_threads import WorkerThreads

WAIT_S: Final = 1e-3
"""A READ that takes longer counts as one that its reader waited for."""
LONG_FAILURE_S: Final = 1.0
"""A read that took longer to fail is not tried anew for so long."""


class CachedSource(ChunkSource, Protocol):
    """A `ChunkSource` that can say without blocking what it has in memory."""

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        """What `read` would return if that is in memory, else None. Never blocks."""
        ...

    def observe(self, observer: ChunkObserver) -> None:
        """Tell `observer` of whole chunks that come into memory and leave it."""
        ...

    def discard(self, chunk: ChunkId) -> None:
        """Let go of a chunk in memory."""
        ...

    def statistics(self) -> Any:
        """A frozen dataclass of counters."""
        ...


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """READs that Python answered, since the mount began."""

    bytes_read: int = 0
    thread_reads: int = 0
    """READs whose bytes were not in memory."""
    waits: int = 0
    """Of those, that took longer than a millisecond."""
    waited_s: float = 0.0
    """All of those together."""
    past_end: int = 0
    """READs of no bytes."""
    refused: int = 0
    """READs that failed before node memory was asked."""


class FileReader:
    """Answers from memory on the spot, from slower tiers through a worker thread."""

    def __init__(self, source: CachedSource, threads: WorkerThreads) -> None:
        self._source, self._threads = source, threads
        self._bytes_read = self._thread_reads = self._waits = self._past_end = self._refused = 0
        self._waited_s = 0.0
        self._failed: dict[FileExtent, tuple[float, Unavailable]] = {}
        """Files whose last read took long to fail, until when that is the answer."""

    def statistics(self) -> ReaderStatistics:
        counts = self._bytes_read, self._thread_reads, self._waits, self._waited_s
        return ReaderStatistics(*counts, self._past_end, self._refused)

    async def read(self, file: FileExtent, start: int, size: int) -> bytes | memoryview:
        """Bytes [start, start + size) of `file` as far as it reaches. Raises `ChunkStoreError`."""
        length = min(size, file.length - start)
        if length <= 0:
            self._past_end += 1
            return b""
        data = self._source.peek(file, start, length)
        if data is None:
            data = await self._read_in_thread(file, start, length)
        if len(data) != length:
            raise Corrupt(f"{len(data)} bytes came for {length} of chunk {file.chunk.id}")
        self._bytes_read += length
        return data

    def note_refused(self) -> None:
        """A READ failed before it came here."""
        self._refused += 1

    async def _read_in_thread(self, file: FileExtent, start: int, length: int) -> memoryview:
        begin = time.monotonic()
        self._check_failed(file, begin)
        self._thread_reads += 1
        try:
            return await self._threads.run_abandonable(self._source.read, file, start, length)
        except Unavailable as error:
            now = time.monotonic()
            if now - begin > LONG_FAILURE_S:
                self._failed[file] = now + LONG_FAILURE_S, error
            raise
        finally:
            took_s = time.monotonic() - begin
            self._waited_s += took_s
            self._waits += took_s > WAIT_S

    def _check_failed(self, file: FileExtent, now: float) -> None:
        if self._failed:
            self._failed = {key: kept for key, kept in self._failed.items() if kept[0] > now}
            if file in self._failed:
                self._refused += 1
                raise Unavailable(str(self._failed[file][1]))
