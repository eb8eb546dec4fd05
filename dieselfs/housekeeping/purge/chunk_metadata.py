"""The chunk metadata that a purge must keep: a chunk's directory entries and tombstones.

Pure functions.

They must be rewritten, or dropped, when the chunk is retired. A chunk's files are moved on their
own. But its entries also raised the directories above them to the generation of the commit that
added it, and created directories, set their attributes and deleted them. Its tombstones may hide
entries of other chunks (docs/decisions/0008, rule 3).
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import KIND_FILE, KIND_TOMBSTONE, ChunkHead, Entries
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_writer import Version
from chunkstore.paths import ancestors, split
from metadata.records import ChunkRecord

Named = tuple[bytes, int]
"""A path, and S_IFREG or S_IFDIR."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A tombstone as an entry of a chunk has it."""

    position: int
    path: bytes
    file_type: int
    """The type of what it deletes: S_IFREG or S_IFDIR."""
    mtime_ns: int
    seen: Version

    @property
    def named(self) -> Named:
        return self.path, self.file_type

    @property
    def of_directory(self) -> bool:
        """True if it deletes a directory."""
        return self.file_type == stat.S_IFDIR


@dataclass(frozen=True, slots=True)
class ChunkMetadata:
    """Everything about one chunk except its files' content. A few bytes for each directory."""

    id: ChunkId
    added: int
    """The generation of the commit that added the chunk."""
    touched: frozenset[bytes]
    """Parent directories of the entries that are new in this chunk.

    The directories above them are meant too.
    """
    directories: frozenset[bytes]
    """Directories that entries of this chunk create, describe or delete, holes included."""
    tombstones: tuple[Tombstone, ...]
    """All tombstones of the chunk, holes included."""


def chunk_metadata_of(head: ChunkHead, added: int) -> ChunkMetadata:
    """Return the metadata of a chunk from its head and the generation that added it.

    Costs about 0.2 µs for each entry that is new in the chunk.
    """
    entries = head.entries
    deleting = entries.kind == KIND_TOMBSTONE
    new = ~deleting
    if entries.versions is not None:
        new &= entries.versions["generation"] == 0
    paths = entries.paths
    of_directory = (entries.mode & 0o170000) == stat.S_IFDIR
    return ChunkMetadata(
        head.chunk_id,
        added,
        frozenset(split(paths[at])[0] for at in np.flatnonzero(new).tolist()) - {b""},
        frozenset(paths[at] for at in np.flatnonzero(of_directory).tolist()),
        tuple(_tombstone(entries, at) for at in np.flatnonzero(deleting).tolist()),
    )


def unknown_chunk_metadata(
    chunk_id: ChunkId, added: int, directories: Iterable[bytes]
) -> ChunkMetadata:
    """Return the metadata of a chunk that is unreadable and to which no record refers.

    It may have had an entry of each of `directories`, and none of its tombstones is current.
    """
    return ChunkMetadata(chunk_id, added, frozenset(), frozenset(directories), ())


def live_files(entries: Entries, record: ChunkRecord) -> npt.NDArray[np.intp]:
    """Return the positions of the files that the index refers to, by offset."""
    positions = np.flatnonzero((entries.kind == KIND_FILE) & ~holes_of(record))
    return positions[np.argsort(entries.offset[positions], kind="stable")]


def holes_of(record: ChunkRecord) -> npt.NDArray[np.bool_]:
    """Return a mask of the positions whose entry no record of the index refers to."""
    bits = np.unpackbits(np.frombuffer(record.deleted, np.uint8), bitorder="little")
    return bits[: record.entry_count].astype(bool)


def current_tombstones(chunk_metadata: ChunkMetadata, record: ChunkRecord) -> list[Tombstone]:
    """Return the tombstones that are the current record of their path."""
    holes = holes_of(record)
    return [tombstone for tombstone in chunk_metadata.tombstones if not holes[tombstone.position]]


def directories_concerned(chunks_metadata: Iterable[ChunkMetadata]) -> set[bytes]:
    """Return every directory whose record may depend on entries of these chunks.

    b'' is included only where a chunk describes the root.
    """
    named: set[bytes] = set()
    touched: set[bytes] = set()
    for chunk_metadata in chunks_metadata:
        named |= chunk_metadata.directories
        touched |= chunk_metadata.touched
    return named.union(touched, *map(ancestors, touched))


def _tombstone(entries: Entries, at: int) -> Tombstone:
    # A tombstone without a version saw nothing, and no writer makes it.
    assert entries.versions is not None
    seen = entries.versions[at]
    return Tombstone(
        at,
        entries.paths[at],
        int(entries.mode[at]) & 0o170000,
        int(entries.mtime_ns[at]),
        Version(int(seen["generation"]), bytes(seen["chunk"]), int(seen["position"])),
    )
