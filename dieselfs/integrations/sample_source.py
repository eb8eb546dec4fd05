"""Where a map-style dataset's samples come from: whole files of a snapshot, by inode."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Protocol

from chunkstore.chunk_source import ChunkSource
from dieselfs.chunk_cache import ChunkCache
from metadata.snapshot import Snapshot

DEFAULT_MEMORY_BYTES: Final = 512 << 20
"""A group of 100 chunks of 4 MiB, and what is read next."""


class SampleSource(Protocol):
    """Thread-safe, and usable in a forked child. `dieselfs.sample_reader.SampleReader` is one."""

    def read(self, inode: int) -> bytes:
        """A file's bytes, verified. `IndexError` for what is no file; raises what `ChunkSource` does."""
        ...

    def read_many(self, inodes: Sequence[int]) -> list[bytes]:
        """Several files' bytes, in the order given."""
        ...


class ChunkSamples:
    """Samples through a cache of whole chunks of each process's own. Pickles without what is in the cache."""

    def __init__(
        self, snapshot: Snapshot, source: ChunkSource, memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> None:
        self._snapshot = snapshot
        self._source = source
        self._memory_bytes = memory_bytes
        self._open_cache()

    def _open_cache(self) -> None:
        self._pid = os.getpid()
        self._cache = ChunkCache(self._source, self._memory_bytes)

    def __reduce__(self) -> tuple[object, ...]:
        return ChunkSamples, (self._snapshot, self._source, self._memory_bytes)

    def read(self, inode: int) -> bytes:
        if self._pid != os.getpid():
            self._open_cache()  # a lock of the parent's may have been held when it forked
        file = self._snapshot.extent(inode)
        return bytes(self._cache.read(file, 0, file.length)) if file.length else b""

    def read_many(self, inodes: Sequence[int]) -> list[bytes]:
        return [self.read(inode) for inode in inodes]
