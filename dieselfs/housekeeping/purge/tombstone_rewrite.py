"""Tombstone rewrite: write the directory entries and tombstones of retired chunks again.

They are written as the index has them now (docs/decisions/0008, rules 3 and 4). The result holds
for one generation only: the index must have been caught up to it, and the commit that retires the
chunks must be the next one. Otherwise everything is computed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from chunkstore.chunk_writer import ChunkWriter, Version
from chunkstore.paths import split
from dieselfs.housekeeping.purge.chunk_metadata import (
    ChunkMetadata,
    Named,
    Tombstone,
    current_tombstones,
    directories_concerned,
)
from dieselfs.housekeeping.purge.tombstone_collection import without_needed_by_carried
from metadata import keys
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.records import NO_CHUNK, ChunkRecord, decode_entries, is_tombstone

_MAPS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class DirectoryRecord:
    """A live directory as the index has it."""

    path: bytes
    row: np.void
    """A row of `metadata.records.ENTRY`."""

    @property
    def generation(self) -> int:
        """The version: the last commit that put something below it, or set its attributes."""
        return int(self.row["version"]) >> 1


@dataclass(frozen=True, slots=True)
class TombstoneRewrite:
    """The entries that the commit that retires some chunks must have besides the files."""

    directories: tuple[DirectoryRecord, ...]
    tombstones: tuple[Tombstone, ...]
    dropped: int
    """Current tombstones of these chunks that are not rewritten."""

    def write(self, writer: ChunkWriter) -> None:
        """Pack the directories and the tombstones, each with the version that it has."""
        for directory in self.directories:
            row = directory.row
            # The chunk of a directory's record does not determine its version: an entry of another
            # chunk may have raised it.
            version = Version(directory.generation, NO_CHUNK, 0)
            writer.add_directory(directory.path, int(row["mode"]), int(row["mtime_ns"]), version)
        for tombstone in self.tombstones:
            writer.add_tombstone(
                tombstone.path, tombstone.file_type, tombstone.mtime_ns, tombstone.seen
            )
        writer.flush()


def tombstone_rewrite_of(
    index: KeyValueStore,
    dataset_id: bytes,
    chunks_metadata: Sequence[ChunkMetadata],
    records: Mapping[bytes, ChunkRecord],
    collectable: Collection[Named] = (),
) -> TombstoneRewrite:
    """Return what must be rewritten when these chunks are retired.

    `records` are theirs in the index. `collectable` are tombstones that hide nothing. Costs one
    look-up for each directory concerned.
    """
    current = [
        tombstone
        for chunk_metadata in chunks_metadata
        for tombstone in current_tombstones(chunk_metadata, records[chunk_metadata.id.value])
    ]
    dropped = without_needed_by_carried(collectable, current)
    carried = tuple(tombstone for tombstone in current if tombstone.named not in dropped)
    retiring = {chunk_metadata.id.value for chunk_metadata in chunks_metadata}
    generations = {chunk_metadata.added for chunk_metadata in chunks_metadata}
    concerned = directories_concerned(chunks_metadata)
    return TombstoneRewrite(
        tuple(
            directory
            for directory in live_directories(index, dataset_id, concerned)
            if _depends_on(directory, retiring, generations)
        ),
        carried,
        len(current) - len(carried),
    )


def _depends_on(directory: DirectoryRecord, retiring: set[bytes], generations: set[int]) -> bool:
    """Return True if the record would be different without the chunks that leave.

    A record that lies in a chunk that stays was set by that chunk's entry, so only its version may
    come from elsewhere. A record that lies in no chunk has the time of the commit that created it,
    which is not known any more.
    """
    chunk = bytes(directory.row["chunk"])
    return chunk in retiring or chunk == NO_CHUNK or directory.generation in generations


def live_directories(
    index: KeyValueStore, dataset_id: bytes, paths: Iterable[bytes]
) -> Iterator[DirectoryRecord]:
    """Yield the records of those of `paths` that are live directories, by path.

    Costs a round trip for 2,048 parents.
    """
    by_parent: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for path in sorted(paths):
        parent, name = split(path)
        by_parent[parent].append(name)  # the root's own record is the field without a name
    parents = iter(by_parent.items())
    while batch := list(islice(parents, _MAPS_AT_ONCE)):
        lookups = [
            MapFields(keys.directories_of(dataset_id, parent), names) for parent, names in batch
        ]
        for (parent, names), lookup, values in zip(
            batch, lookups, index.get_many(lookups), strict=True
        ):
            present = [at for at, value in enumerate(values) if value is not None]
            found = [names[at] for at in present]
            rows = decode_entries(lookup.key, found, [v for v in values if v is not None])
            for name, row, deleted in zip(found, rows, is_tombstone(rows).tolist(), strict=True):
                if not deleted:
                    yield DirectoryRecord(parent + b"/" + name if parent else name, row)
