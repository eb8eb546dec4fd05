"""The files that damaged chunks hit, in the index and in snapshots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from dieselfs.checking.chunk_check import ChunkDamage, Content
from metadata import keys
from metadata.errors import RecordCorrupt
from metadata.kv.key_value_store import KeyValueStore, read_map
from metadata.records import decode_entries, is_tombstone
from metadata.snapshot import Snapshot

Damages: TypeAlias = Mapping[ChunkId, ChunkDamage]


@dataclass(slots=True)
class IndexedFiles:
    """The files in the index that damage hits, and its own damaged records."""

    by_chunk: defaultdict[ChunkId, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    by_generation: defaultdict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """The generation of the commit that placed a file -> the paths."""
    damaged_records: list[bytes] = field(default_factory=list)
    """The paths whose record is damaged."""


def indexed_files(
    index: KeyValueStore, dataset: DatasetRef, damages: Damages, generations: Collection[int] = ()
) -> IndexedFiles:
    """Return the files that damage hits; one scan of every directory.

    A damaged record hides no other: every readable record is read. `generations` are commits whose
    files are wanted as well. A directory hides a file of its name, as in every listing.
    """
    found = IndexedFiles()
    wanted = frozenset(generations)
    pending = [b""]
    while pending:
        directory = pending.pop()
        prefix = directory + b"/" if directory else b""
        key = keys.directories_of(dataset.id, directory)
        names = read_map(index, key)
        names.pop(keys.ROOT_FIELD, None)
        live, rows = _sound(key, names, prefix, found)
        hidden = {
            name
            for name, deleted in zip(live, is_tombstone(rows).tolist(), strict=True)
            if not deleted
        }
        # The directory of a damaged record probably exists: its children are scanned.
        below = hidden | (names.keys() - set(live))
        pending.extend(prefix + name for name in sorted(below, reverse=True))
        key = keys.files_of(dataset.id, directory)
        files, rows = _sound(key, read_map(index, key), prefix, found)
        columns = (rows["chunk"], rows["offset"], rows["length"], rows["hash"], rows["placed"])
        tombstones = is_tombstone(rows).tolist()
        for name, deleted, chunk, offset, length, hash_, placed in zip(
            files, tombstones, *(column.tolist() for column in columns), strict=True
        ):
            if deleted or name in hidden:
                continue
            damage = damages.get(ChunkId(chunk))
            if damage is not None and is_hit(damage, (offset, length, hash_)):
                found.by_chunk[damage.chunk.id].append(prefix + name)
            if placed in wanted:
                found.by_generation[placed].append(prefix + name)
    return found


def is_hit(damage: ChunkDamage, content: Content) -> bool:
    """Return whether the damage hits a file with this content."""
    return damage.contents is None or content in damage.contents


def snapshot_hits(snapshot: Snapshot, damages: Damages) -> dict[ChunkId, int]:
    """Return how many of the snapshot's files each damaged chunk hits.

    Chunks that hit none are left out.
    """
    counts = {
        chunk_id: int(np.count_nonzero(hit))
        for chunk_id, _, hit in _hit_in_snapshot(snapshot, damages)
    }
    return {chunk_id: count for chunk_id, count in counts.items() if count}


def snapshot_files(snapshot: Snapshot, damages: Damages) -> dict[ChunkId, list[bytes]]:
    """Return the paths of the files that `snapshot_hits` counts."""
    return {
        chunk_id: [snapshot.path_of(inode) for inode in np.asarray(inodes)[hit].tolist()]
        for chunk_id, inodes, hit in _hit_in_snapshot(snapshot, damages)
        if hit.any()
    }


def _hit_in_snapshot(
    snapshot: Snapshot, damages: Damages
) -> Iterator[tuple[ChunkId, range, npt.NDArray[np.bool_]]]:
    """Yield the damaged chunks that the snapshot names, their inodes, and a mask of hit inodes."""
    columns = snapshot.columns
    for number, value in enumerate(columns.chunk_id.tolist()):
        damage = damages.get(ChunkId(value))
        if damage is None:
            continue
        inodes = snapshot.files_in_chunk(number)
        hit = np.ones(len(inodes), bool)
        if damage.contents is not None:
            part = slice(inodes.start, inodes.stop)
            contents = zip(
                *(c[part].tolist() for c in (columns.offset, columns.length, columns.hash)),
                strict=True,
            )
            hit = np.fromiter((c in damage.contents for c in contents), bool, len(inodes))
        yield damage.chunk.id, inodes, hit


def _sound(
    key: bytes, values: Mapping[bytes, bytes], prefix: bytes, found: IndexedFiles
) -> tuple[list[bytes], npt.NDArray[np.void]]:
    """Return the sorted names whose records are sound, and the records.

    The paths of the other records go to `found`.
    """
    names = sorted(values)
    try:
        return names, decode_entries(key, names, [values[name] for name in names])
    except RecordCorrupt:
        sound = []
        for name in names:
            try:
                decode_entries(key, [name], [values[name]])
                sound.append(name)
            except RecordCorrupt:
                found.damaged_records.append(prefix + name)
        return sound, decode_entries(key, sound, [values[name] for name in sound])
