"""The port through which every tier serves bytes of chunks: node memory, peers, SSD, object store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, overload, runtime_checkable

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


class FileExtents(Sequence[FileExtent]):
    """Several files, as columns of equal length: made, and passed on, in a fifth of the time that as many `FileExtent`s take. Not to be changed."""

    __slots__ = ("chunks", "hash", "length", "offset", "which")

    def __init__(
        self,
        chunks: Sequence[ChunkRef],
        which: Sequence[int],
        offset: Sequence[int],
        length: Sequence[int],
        hash: Sequence[int],
    ) -> None:
        """`which` of `chunks`, each of which occurs once there."""
        self.chunks, self.which = chunks, which
        self.offset, self.length, self.hash = offset, length, hash

    @classmethod
    def of(cls, files: Iterable[FileExtent]) -> Self:
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
    """Thread-safe; every call blocks. All bytes returned are verified and stay valid while they are referenced.

    Raises `Corrupt` (try another source), `NotFound` or `Unavailable`.
    """

    def payload(self, chunk: ChunkRef) -> memoryview:
        """The whole payload of `chunk`, for chunks of ordinary size (at most 16 MiB)."""
        ...

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Bytes [start, start + length) of `file`, all of them; the range lies inside the file."""
        ...


@runtime_checkable
class ManyFilesSource(ChunkSource, Protocol):
    """One that reads many files in less time than one after another."""

    def read_many(self, files: Sequence[FileExtent]) -> Sequence[bytes | memoryview]:
        """Whole files of one chunk or of several, in order."""
        ...
