"""What a chunk has said of directories and deletions, which must be said again, or be forgotten, when the chunk goes. Pure.

A chunk's files are moved by themselves. But its entries also brought the directories above them to the generation of the commit that added
it, made directories, set their attributes, ended them; and its deletions may hide what other chunks hold (docs/decisions/0008, rule 3).
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
    """A deletion as an entry of a chunk says it."""

    position: int
    path: bytes
    file_type: int
    """S_IFREG or S_IFDIR: of what it deletes."""
    mtime_ns: int
    seen: Version

    @property
    def named(self) -> Named:
        return self.path, self.file_type

    @property
    def of_directory(self) -> bool:
        return self.file_type == stat.S_IFDIR


@dataclass(frozen=True, slots=True)
class ChunkMetadata:
    """What one chunk has said but for its files' content. A few bytes for each directory."""

    id: ChunkId
    added: int
    """Generation of the commit that added the chunk."""
    touched: frozenset[bytes]
    """Directories that entries new in this chunk lie in; those above them are meant too."""
    directories: frozenset[bytes]
    """Directories that entries of this chunk make, describe or delete, holes included."""
    tombstones: tuple[Tombstone, ...]
    """Holes included."""


def chunk_metadata_of(head: ChunkHead, added: int) -> ChunkMetadata:
    """From a chunk's head and the generation that added it. About 0.2 µs for each entry that is new in the chunk."""
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
    """Of a chunk that nobody can read and no record refers to: it may have spoken of each of `directories`, and none of its deletions stands."""
    return ChunkMetadata(chunk_id, added, frozenset(), frozenset(directories), ())


def live_files(entries: Entries, record: ChunkRecord) -> npt.NDArray[np.intp]:
    """The positions of the files that the index refers to, by offset."""
    positions = np.flatnonzero((entries.kind == KIND_FILE) & ~holes_of(record))
    return positions[np.argsort(entries.offset[positions], kind="stable")]


def holes_of(record: ChunkRecord) -> npt.NDArray[np.bool_]:
    """Whether the entry at each position is one that no record of the index refers to."""
    bits = np.unpackbits(np.frombuffer(record.deleted, np.uint8), bitorder="little")
    return bits[: record.entry_count].astype(bool)


def current_tombstones(chunk_metadata: ChunkMetadata, record: ChunkRecord) -> list[Tombstone]:
    """The deletions that are the present record of their path."""
    holes = holes_of(record)
    return [tombstone for tombstone in chunk_metadata.tombstones if not holes[tombstone.position]]


def directories_concerned(chunks_metadata: Iterable[ChunkMetadata]) -> set[bytes]:
    """Every directory whose record may depend on what these chunks said; b'' only where one of them describes the root."""
    named: set[bytes] = set()
    touched: set[bytes] = set()
    for chunk_metadata in chunks_metadata:
        named |= chunk_metadata.directories
        touched |= chunk_metadata.touched
    return named.union(touched, *map(ancestors, touched))


def _tombstone(entries: Entries, at: int) -> Tombstone:
    assert (
        entries.versions is not None
    )  # a deletion without one saw nothing, and no writer makes it
    seen = entries.versions[at]
    return Tombstone(
        at,
        entries.paths[at],
        int(entries.mode[at]) & 0o170000,
        int(entries.mtime_ns[at]),
        Version(int(seen["generation"]), bytes(seen["chunk"]), int(seen["position"])),
    )
