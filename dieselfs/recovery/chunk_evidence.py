"""The evidence in a chunk's head about generations (docs/decisions/0008).

A head shows its own chunk's generation and, by what it deletes or carries, those of other chunks.
The evidence is small, about 150 bytes a tombstone or moved entry and 8 for each other file, so that
it fits in memory for a whole dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_format import KIND_DIRECTORY, KIND_FILE, ChunkHead, DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.paths import ancestors

FURTHEST: Final = 1_000_000
"""The most generations that a chunk may name beyond the newest one known otherwise.

A chunk that names a later one is not trusted, and the log is not filled up to there.
"""


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """A version that a tombstone hides or that a moved entry carries."""

    generation: int
    chunk: ChunkId
    """The chunk in which a tombstone's writer saw the entry.

    For a moved file it is the chunk in which the file was new, of the generation `generation`.
    """
    position: int
    by_moved_file: bool
    path: int
    """The xxh3_64 of the path."""


@dataclass(frozen=True, slots=True)
class ChunkEvidence:
    """The evidence in one sound head."""

    ref: ChunkRef
    dataset: DatasetRef
    file_count: int
    seen: Sequence[SeenVersion]
    """The versions of every tombstone and every moved entry."""
    own_files: bytes
    """A bit a position, least significant first: set for a file of the chunk's own generation.

    A moved entry has the version that it carries.
    """
    own_paths: npt.NDArray[np.uint64]
    """The xxh3_64 of the paths of these files."""
    bare_directories: bytes
    """The same bits for directories that are new in this chunk.

    Directories with a file below them in this chunk are left out.
    """
    is_of_purge: bool
    """True if files or directories were moved into the chunk.

    A chunk of tombstones alone may be a writer's or a purge's.
    """

    @classmethod
    def of(cls, head: ChunkHead) -> ChunkEvidence:
        """Return the evidence in a head."""
        entries = head.entries
        files, directories = entries.kind == KIND_FILE, entries.kind == KIND_DIRECTORY
        own_files, seen, is_of_purge = files, list[SeenVersion](), False
        if entries.versions is not None:
            carried = entries.versions["generation"] > 0
            is_of_purge = bool((carried & (files | directories)).any())
            own_files, directories = files & ~carried, directories & ~carried
            seen = [
                SeenVersion(
                    generation,
                    ChunkId(bytes(chunk)),
                    position,
                    bool(files[at]),
                    xxhash.xxh3_64_intdigest(entries.paths[at]),
                )
                for at in np.flatnonzero(carried).tolist()
                for generation, chunk, position, _ in [entries.versions[at].tolist()]
            ]
        if directories.any():
            above = {
                directory
                for number in np.flatnonzero(files).tolist()
                for directory in ancestors(entries.paths[number])
            }
            directories = directories.copy()
            for number in np.flatnonzero(directories).tolist():
                directories[number] = entries.paths[number] not in above
        return cls(
            ChunkRef(head.chunk_id, head.head_bytes, head.payload_bytes),
            head.dataset,
            int(files.sum()),
            seen,
            np.packbits(own_files, bitorder="little").tobytes(),
            np.array(
                [
                    xxhash.xxh3_64_intdigest(entries.paths[at])
                    for at in np.flatnonzero(own_files).tolist()
                ],
                np.uint64,
            ),
            np.packbits(directories, bitorder="little").tobytes(),
            is_of_purge,
        )

    @property
    def newest_seen(self) -> int:
        """The newest generation that the head names; the chunk was committed after it."""
        return max((version.generation for version in self.seen), default=0)

    def has_own_file_at(self, position: int) -> bool:
        """Return whether the entry at `position` is a file of the chunk's own generation."""
        return _bit(self.own_files, position)

    def has_bare_directory_at(self, position: int) -> bool:
        """Return whether the entry at `position` is a directory as in `bare_directories`."""
        return _bit(self.bare_directories, position)


def _bit(bitmap: bytes, position: int) -> bool:
    byte = position >> 3
    return byte < len(bitmap) and bool(bitmap[byte] & 1 << (position & 7))
