"""A double of node memory for one process: maps files, fetches from a source, evicts what it is
told to."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.errors import CacheFull


class MappedFiles:
    def __init__(self, folder: Path, source: ChunkSource) -> None:
        self.folder = folder
        self.source = source
        self.full = False
        self.known_full = False
        """So that nobody tries to map."""
        self.mapped: list[str] = []
        self.prefetched: list[str] = []
        self.ranges = 0
        """Calls of `read`."""
        self.batches: list[int] = []
        """The files of each call of `read_bypassing`."""
        self.forget: list[Callable[[str], None]] = []
        folder.mkdir(exist_ok=True)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.folder, self.source)

    def map(self, piece: CacheBlock) -> memoryview:
        if self.full:
            raise CacheFull("full")
        self.mapped.append(piece.name)
        path = self.folder / piece.name
        if not path.exists():
            path.write_bytes(piece.fetch(self.source))
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        self.ranges += 1
        return self.source.read(file, start, length)

    def is_bypassed(self, chunk: ChunkRef) -> bool:
        return self.known_full

    def read_bypassing(self, files: Sequence[FileExtent]) -> list[bytes]:
        self.batches.append(len(files))
        return [bytes(self.source.read(file, 0, file.length)) for file in files]

    def unmap_evicted(self) -> None:
        """Do nothing: evictions are told at once."""

    def prefetch(self, pieces: Sequence[CacheBlock]) -> None:
        self.prefetched += [piece.name for piece in pieces]

    def on_evicted(self, forget: Callable[[str], None]) -> None:
        self.forget.append(forget)

    def evict(self, name: str) -> None:
        os.unlink(self.folder / name)
        for forget in self.forget:
            forget(name)
