"""Says again what chunks that go have said of directories and deletions, as the index has it now (docs/decisions/0008, rules 3 and 4).

What is said holds for one generation only: the index must have been caught up to it, and the commit that takes the chunks away must be the next
one, or everything is said anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from chunkstore.chunk_writer import ChunkWriter, Version
from chunkstore.paths import split
from dieselfs.purging.forgetting import without_carried_above
from dieselfs.purging.testimony import (
    Deletion,
    Named,
    Testimony,
    directories_concerned,
    standing_deletions,
)
from metadata import keys
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.records import NO_CHUNK, ChunkRecord, decode_entries, is_deletion

_MAPS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class DirectoryRecord:
    """A live directory as the index has it."""

    path: bytes
    row: np.void
    """`metadata.records.ENTRY`."""

    @property
    def generation(self) -> int:
        """The version: the last commit that put something below it, or set its attributes."""
        return int(self.row["version"]) >> 1


@dataclass(frozen=True, slots=True)
class Restatement:
    """What the commit that retires some chunks must say besides the files."""

    directories: tuple[DirectoryRecord, ...]
    deletions: tuple[Deletion, ...]
    dropped: int
    """Deletions that stand in these chunks and are forgotten with them."""

    def write(self, writer: ChunkWriter) -> None:
        for directory in self.directories:
            row = directory.row
            # The chunk that a directory's record lies in says nothing of its version: another one's entry may have brought it there.
            version = Version(directory.generation, NO_CHUNK, 0)
            writer.add_directory(directory.path, int(row["mode"]), int(row["mtime_ns"]), version)
        for deletion in self.deletions:
            writer.add_deletion(deletion.path, deletion.file_type, deletion.mtime_ns, deletion.seen)
        writer.flush()


def restatement_of(
    index: KeyValueStore,
    dataset_id: bytes,
    testimonies: Sequence[Testimony],
    records: Mapping[bytes, ChunkRecord],
    forgettable: Collection[Named] = (),
) -> Restatement:
    """What must be said again when the chunks of these testimonies go; `records` are theirs in the index.

    `forgettable` are deletions that hide nothing. Costs one look-up for each directory concerned.
    """
    standing = [
        deletion
        for testimony in testimonies
        for deletion in standing_deletions(testimony, records[testimony.id.value])
    ]
    forgotten = without_carried_above(forgettable, standing)
    carried = tuple(deletion for deletion in standing if deletion.named not in forgotten)
    leaving = {testimony.id.value for testimony in testimonies}
    generations = {testimony.added for testimony in testimonies}
    concerned = directories_concerned(testimonies)
    return Restatement(
        tuple(
            directory
            for directory in live_directories(index, dataset_id, concerned)
            if _depends_on(directory, leaving, generations)
        ),
        carried,
        len(standing) - len(carried),
    )


def _depends_on(directory: DirectoryRecord, leaving: set[bytes], generations: set[int]) -> bool:
    """Whether the record would be another one without the chunks that leave.

    One that lies in a chunk that stays was set by that chunk's entry, so only its version may come from elsewhere. One that lies in none
    has the time of the commit that made it, which is not known any more.
    """
    chunk = bytes(directory.row["chunk"])
    return chunk in leaving or chunk == NO_CHUNK or directory.generation in generations


def live_directories(
    index: KeyValueStore, dataset_id: bytes, paths: Iterable[bytes]
) -> Iterator[DirectoryRecord]:
    """The records of those of `paths` that are live directories, by path. A round trip for 2,048 parents."""
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
            for name, row, gone in zip(found, rows, is_deletion(rows).tolist(), strict=True):
                if not gone:
                    yield DirectoryRecord(parent + b"/" + name if parent else name, row)
