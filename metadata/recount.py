"""A scan of the index that finds the current entries.

So holes and totals can be counted instead of followed from commit to commit.
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from metadata import keys
from metadata.errors import RecordCorrupt
from metadata.kv.key_value_store import STAMP_BYTES, KeyValueStore, MapUpdate, read_map
from metadata.records import NO_CHUNK, ChunkRecord, decode_entries, is_file, is_tombstone


class Undecided(Exception):
    """The commits that were put again do not determine a record."""


@dataclass(slots=True)
class Census:
    """The findings of a scan."""

    current: defaultdict[bytes, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    """The entries of each chunk that records refer to.

    They are bitmaps as `ChunkRecord.deleted`, perhaps shorter.
    """
    files: int = 0
    file_bytes: int = 0
    directories: int = 0
    wrong: list[MapUpdate] = field(default_factory=list)
    """The values to remove, parents before children."""
    missing: list[MapUpdate] = field(default_factory=list)
    """The values of directories to put."""
    has_wrong_files: bool = False

    def count(self, rows: npt.NDArray[np.void]) -> None:
        """Count these rows as current."""
        for chunk, position in zip(rows["chunk"].tolist(), rows["position"].tolist(), strict=True):
            if chunk != NO_CHUNK:
                bitmap = self.current[chunk]
                if position >> 3 >= len(bitmap):
                    bitmap.extend(bytes((position >> 3) + 1 - len(bitmap)))
                bitmap[position >> 3] |= 1 << (position & 7)
        files = is_file(rows)
        self.files += int(files.sum())
        self.file_bytes += int(rows["length"][files].sum())
        live = ~is_tombstone(rows) & ((rows["mode"] & 0o170000) == stat.S_IFDIR)
        self.directories += int(live.sum())


def take_census(
    index: KeyValueStore,
    dataset_id: bytes,
    chunks: Set[bytes],
    gone: Set[bytes] | None,
    directories: KeyValueStore | None,
) -> Census:
    """Scan the whole index and return the findings; one scan of each map.

    `chunks` are the chunks that records may lie in. `gone` are retired chunks that they may not lie
    in; None means all others. `directories` holds the right content of the maps of directories;
    with None those of the index are trusted. Raises `RecordCorrupt` and `Undecided` for what these
    arguments do not settle; with `directories` and without `gone` they settle everything.
    """
    census = Census()
    pending = [b""]
    while pending:
        directory = pending.pop()
        prefix = directory + b"/" if directory else b""
        key = keys.directories_of(dataset_id, directory)
        found = read_map(index, key)
        expected = found if directories is None else read_map(directories, key)
        if expected is not found:
            _compare(census, key, expected, found)
        pending += [prefix + name for name in expected.keys() | found.keys() if name]
        root = expected.pop(keys.ROOT_FIELD, None)
        if root is not None:
            census.count(_decoded(census, key, {keys.ROOT_FIELD: root}, chunks, gone))
            census.directories -= 1
        census.count(_decoded(census, key, expected, chunks, gone))
        key = keys.files_of(dataset_id, directory)
        census.count(_decoded(census, key, read_map(index, key), chunks, gone))
    return census


def _compare(
    census: Census, key: bytes, expected: Mapping[bytes, bytes], found: Mapping[bytes, bytes]
) -> None:
    wrong = [
        name
        for name, value in found.items()
        if name not in expected
        or (value != expected[name] and value[:STAMP_BYTES] >= expected[name][:STAMP_BYTES])
    ]
    missing = [name for name, value in expected.items() if found.get(name) != value]
    if wrong:
        census.wrong.append(MapUpdate(key, wrong, [found[name] for name in wrong]))
    if missing:
        census.missing.append(MapUpdate(key, missing, [expected[name] for name in missing]))


def _decoded(
    census: Census,
    key: bytes,
    values: Mapping[bytes, bytes],
    chunks: Set[bytes],
    gone: Set[bytes] | None,
) -> npt.NDArray[np.void]:
    """Return the rows of one map that may stay; the others are noted as wrong."""
    names = list(values)
    damaged: list[bytes] = []
    try:
        rows = decode_entries(key, names, [values[name] for name in names])
    except RecordCorrupt:
        if gone is not None:
            raise
        damaged = [name for name in names if _is_damaged(key, name, values[name])]
        names = sorted(set(names).difference(damaged))
        rows = decode_entries(key, names, [values[name] for name in names])
    inside = [chunk in chunks or chunk == NO_CHUNK for chunk in rows["chunk"].tolist()]
    outside = [name for name, here in zip(names, inside, strict=True) if not here]
    if gone is not None and outside:
        for chunk in rows["chunk"][~np.array(inside)].tolist():
            if chunk not in gone:
                raise Undecided("a record refers to a chunk that is not in the index")
    if wrong := damaged + outside:
        census.wrong.append(MapUpdate(key, wrong, [values[name] for name in wrong]))
        census.has_wrong_files = True
    return rows[np.array(inside, np.bool_)]


def _is_damaged(key: bytes, name: bytes, value: bytes) -> bool:
    try:
        decode_entries(key, [name], [value])
    except RecordCorrupt:
        return True
    return False


def recounted(
    chunk: bytes, record: ChunkRecord, census: Census, reader: ChunkReader
) -> ChunkRecord:
    """Return the record with the holes that the census leaves.

    It reads the chunk's head if there are holes that the record lacks. Raises `Undecided` if the
    record has holes that are current entries.
    """
    count = record.entry_count
    current, known = _bits(census.current.get(chunk, b""), count), _bits(record.deleted, count)
    if (current & known).any():
        raise Undecided("an entry is current although the record of its chunk marks it as deleted")
    holes = ~current
    if (holes == known).all():
        return record
    length = reader.head(ChunkId(chunk), record.head_bytes).entries.length
    return replace(
        record,
        deleted_count=int(holes.sum()),
        deleted_bytes=int(length[holes].sum()),
        deleted=np.packbits(holes, bitorder="little").tobytes(),
    )


def _bits(bitmap: Sequence[int] | bytes | bytearray, count: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bytes(bitmap), np.uint8), bitorder="little")
    if len(bits) > count and bits[count:].any():
        raise Undecided("a record refers to an entry that is not in its chunk")
    whole = np.zeros(count, np.bool_)
    whole[: min(count, len(bits))] = bits[:count]
    return whole
