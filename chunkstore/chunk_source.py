"""The interface through which every tier serves bytes of chunks.

Node memory, peers, the SSD tier and the object store implement it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, overload, runtime_checkable

from chunkstore.chunk_id import ChunkId


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk and what is needed to read it, unique over all datasets like its chunk id."""

    id: ChunkId
    head_bytes: int
    """The payload's start in the object."""
    payload_bytes: int

    @property
    def object_bytes(self) -> int:
        """The length of the whole object."""
        return self.head_bytes + self.payload_bytes


@dataclass(frozen=True, slots=True)
class FileExtent:
    """The place of one file's bytes, and the hash (xxh3_64) that they must have."""

    chunk: ChunkRef
    offset: int
    length: int
    hash: int


class FileExtents(Sequence[FileExtent]):
    """Several files, as columns of equal length; immutable.

    Making and passing one on takes a fifth of the time that as many `FileExtent`s take.
    """

    __slots__ = ("chunks", "hash", "length", "offset", "which")

    def __init__(
        self,
        chunks: Sequence[ChunkRef],
        which: Sequence[int],
        offset: Sequence[int],
        length: Sequence[int],
        hash: Sequence[int],
    ) -> None:
        """`which` has positions in `chunks`; each chunk occurs there once."""
        self.chunks, self.which = chunks, which
        self.offset, self.length, self.hash = offset, length, hash

    @classmethod
    def of(cls, files: Iterable[FileExtent]) -> Self:
        """Return `files` as columns; columns are returned as they are."""
        if isinstance(files, cls):
            return files
        numbers: dict[ChunkId, int] = {}
        chunks: list[ChunkRef] = []
        rows = []
        for file in files:
            number = numbers.setdefault(file.chunk.id, len(chunks))
            if number == len(chunks):
                chunks.append(file.chunk)
            rows.append((number, file.offset, file.length, file.hash))
        which, offset, length, hashes = map(list, zip(*rows, strict=True)) if rows else ([],) * 4
        return cls(chunks, which, offset, length, hashes)

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, at: int) -> FileExtent: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[FileExtent]: ...
    def __getitem__(self, at: int | slice) -> FileExtent | Sequence[FileExtent]:
        if isinstance(at, slice):
            return [self[position] for position in range(*at.indices(len(self)))]
        chunk = self.chunks[self.which[at]]
        return FileExtent(chunk, self.offset[at], self.length[at], self.hash[at])


class ChunkSource(Protocol):
    """A tier that serves bytes of chunks. Thread-safe; every call blocks.

    All returned bytes are verified and stay valid while they are referenced. Calls raise `Corrupt`
    (try another source), `NotFound` or `Unavailable`.
    """

    def payload(self, chunk: ChunkRef) -> memoryview:
        """Return the whole payload of `chunk`, for chunks of ordinary size (at most 16 MiB)."""
        ...

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Return all bytes [start, start + length) of `file`; the range lies inside the file."""
        ...


@runtime_checkable
class ManyFilesSource(ChunkSource, Protocol):
    """A chunk source that reads many files faster together than one after another."""

    def read_many(self, files: Sequence[FileExtent]) -> Sequence[bytes | memoryview]:
        """Return whole files of one chunk or of several, in order."""
        ...
