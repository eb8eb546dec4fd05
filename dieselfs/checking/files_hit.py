"""Which files damaged chunks hit: those of the present state by the index or, where that is no help, by heads and snapshots; and how many of a snapshot."""

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
from metadata.kv.key_value_store import KeyValueStore
from metadata.records import decode_entries, is_tombstone
from metadata.snapshot import Snapshot

Damages: TypeAlias = Mapping[ChunkId, ChunkDamage]


@dataclass(slots=True)
class IndexedFiles:
    """What the index says of the files that damage hits, and which of its records are damaged themselves."""

    by_chunk: defaultdict[ChunkId, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    by_generation: defaultdict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """The commit that put a file where it lies -> the paths."""
    damaged_records: list[bytes] = field(default_factory=list)
    """The paths that have one."""


def indexed_files(
    index: KeyValueStore, dataset: DatasetRef, damages: Damages, generations: Collection[int] = ()
) -> IndexedFiles:
    """One scan of every directory. A damaged record hides no other: what can be read is.

    `generations`: commits whose files are asked for as well. A directory hides a file of its name, as in every listing.
    """
    found = IndexedFiles()
    wanted = frozenset(generations)
    pending = [b""]
    while pending:
        directory = pending.pop()
        prefix = directory + b"/" if directory else b""
        key = keys.directories_of(dataset.id, directory)
        names = _scan(index, key)
        names.pop(keys.ROOT_FIELD, None)
        live, rows = _sound(key, names, prefix, found)
        hidden = {
            name for name, gone in zip(live, is_tombstone(rows).tolist(), strict=True) if not gone
        }
        # What a damaged record is of is likely there: its children are looked at.
        below = hidden | (names.keys() - set(live))
        pending.extend(prefix + name for name in sorted(below, reverse=True))
        key = keys.files_of(dataset.id, directory)
        files, rows = _sound(key, _scan(index, key), prefix, found)
        columns = (rows["chunk"], rows["offset"], rows["length"], rows["hash"], rows["placed"])
        gone = is_tombstone(rows).tolist()
        for name, dead, chunk, offset, length, hash_, placed in zip(
            files, gone, *(column.tolist() for column in columns), strict=True
        ):
            if dead or name in hidden:
                continue
            damage = damages.get(ChunkId(chunk))
            if damage is not None and is_hit(damage, (offset, length, hash_)):
                found.by_chunk[damage.chunk.id].append(prefix + name)
            if placed in wanted:
                found.by_generation[placed].append(prefix + name)
    return found


def is_hit(damage: ChunkDamage, content: Content) -> bool:
    return damage.contents is None or content in damage.contents


def snapshot_hits(snapshot: Snapshot, damages: Damages) -> dict[ChunkId, int]:
    """How many of the snapshot's files each damaged chunk hits; without those that hit none."""
    counts = {
        chunk_id: int(np.count_nonzero(hit))
        for chunk_id, _, hit in _hit_in_snapshot(snapshot, damages)
    }
    return {chunk_id: count for chunk_id, count in counts.items() if count}


def snapshot_files(snapshot: Snapshot, damages: Damages) -> dict[ChunkId, list[bytes]]:
    """The paths of the same files."""
    return {
        chunk_id: [snapshot.path_of(inode) for inode in np.asarray(inodes)[hit].tolist()]
        for chunk_id, inodes, hit in _hit_in_snapshot(snapshot, damages)
        if hit.any()
    }


def _hit_in_snapshot(
    snapshot: Snapshot, damages: Damages
) -> Iterator[tuple[ChunkId, range, npt.NDArray[np.bool_]]]:
    """Damaged chunks that the snapshot names, their inodes in it, and which of those are hit."""
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


def _scan(index: KeyValueStore, key: bytes) -> dict[bytes, bytes]:
    return {name: value for batch in index.scan(key) for name, value in batch}


def _sound(
    key: bytes, values: Mapping[bytes, bytes], prefix: bytes, found: IndexedFiles
) -> tuple[list[bytes], npt.NDArray[np.void]]:
    """The names in order whose records are sound, and those; the others' paths go to `found`."""
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
