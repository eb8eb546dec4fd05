"""The port through which every tier serves bytes of chunks: node memory, peers, SSD, object store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chunkstore.chunk_id import ChunkId


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk and what is needed to read it. Unique over all datasets, as chunk ids are."""

    id: ChunkId
    head_bytes: int
    """Where the payload starts in the object."""
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class FileExtent:
    """Where one file's bytes lie, and what they must hash to (xxh3_64)."""

    chunk: ChunkRef
    offset: int
    length: int
    hash: int


class ChunkSource(Protocol):
    """Thread-safe; every call blocks. All bytes returned are verified and stay valid while they are referenced.

    Raises `Corrupt` (try another source), `NotFound` or `Unavailable`.
    """

    def payload(self, chunk: ChunkRef) -> memoryview:
        """The whole payload of `chunk`, for chunks of ordinary size (at most 16 MiB)."""
        ...

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Bytes [start, start + length) of `file`, all of them; the range lies inside the file."""
        ...
