"""The columns of a snapshot that plans look at, made up: chunks of files of given lengths, without
names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

HEAD_BYTES = 100
DIRECTORIES = 2


@dataclass(frozen=True)
class MadeColumns:
    chunk: npt.NDArray[np.uint32]
    length: npt.NDArray[np.uint64]
    chunk_payload_bytes: npt.NDArray[np.uint64]
    chunk_id: npt.NDArray[np.void]
    chunk_head_bytes: npt.NDArray[np.uint32]
    parent: npt.NDArray[np.uint32]
    """The directory of a file: `DIRECTORIES` of them, chunk by chunk."""


class MadeSnapshot:
    """File i of chunk c has lengths[c][i] bytes; a chunk's payload is their sum, and `waste[c]` of
    files that were deleted."""

    def __init__(
        self, lengths: Sequence[Sequence[int]], waste: Sequence[int] = (), id: str = "1-made"
    ) -> None:
        counts = [len(files) for files in lengths]
        payloads = [sum(files) for files in lengths]
        for chunk, wasted in enumerate(waste):
            payloads[chunk] += wasted
        ids = b"".join(chunk_id(number).value for number in range(len(lengths)))
        self.columns = MadeColumns(
            np.repeat(np.arange(len(lengths), dtype=np.uint32), counts),
            np.array([size for files in lengths for size in files], np.uint64),
            np.array(payloads, np.uint64),
            np.frombuffer(ids, "V16"),
            np.full(len(lengths), HEAD_BYTES, np.uint32),
            np.repeat(np.arange(len(lengths), dtype=np.uint32) % DIRECTORIES, counts),
        )
        self.chunk_first_inode = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
        self.file_count, self.chunk_count = sum(counts), len(lengths)
        self.id = id
        self.dataset = DatasetRef("made", bytes(16))

    @classmethod
    def even(cls, chunks: int, files: int, file_bytes: int, id: str = "1-made") -> MadeSnapshot:
        return cls([[file_bytes] * files] * chunks, id=id)

    def check_unchanged(self) -> None:
        pass

    def chunk(self, number: int) -> ChunkRef:
        return ChunkRef(chunk_id(number), HEAD_BYTES, int(self.columns.chunk_payload_bytes[number]))

    def extent(self, inode: int) -> FileExtent:
        number = int(self.columns.chunk[inode])
        before = self.columns.length[int(self.chunk_first_inode[number]) : inode]
        return FileExtent(
            self.chunk(number), int(before.sum()), int(self.columns.length[inode]), inode
        )

    def files_in_chunk(self, number: int) -> range:
        first, end = self.chunk_first_inode[number : number + 2].tolist()
        return range(first, end)

    def paths_text(self, inodes: npt.NDArray[np.integer], separator: bytes = b"\n") -> bytes:
        return b"".join(b"%d%s" % (inode, separator) for inode in inodes.tolist())

    has_links = False

    def without_links(self, inodes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        return inodes

    def regular_files(self) -> None:
        return None

    def path_of(self, inode: int) -> bytes:
        return b"d%d" % (inode - DIRECTORY_BASE)

    def as_snapshot(self) -> Snapshot:
        return cast(Snapshot, self)


def chunk_id(number: int) -> ChunkId:
    return ChunkId(number.to_bytes(4, "big") + b"made" + bytes(8))


def number_of(chunk: ChunkId) -> int:
    return int.from_bytes(chunk.value[:4], "big")


def number_named(block: str) -> int:
    """The number of the chunk that a block of this name is of."""
    return number_of(ChunkId.parse(block.partition(".")[0]))
