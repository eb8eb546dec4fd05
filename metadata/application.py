"""Apply one commit to the index: read the present records, plan the puts, put them in phases.

The cost is three rounds of reads and one put, whatever the number of files, and about 3 µs of
Python an entry. Two more rounds are needed if a chunk with tombstones is retired. The specification
is docs/metadata-layout.md, "What a commit makes of the index".
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import KIND_FILE, KIND_TOMBSTONE, ChunkHead
from chunkstore.chunk_id import ChunkId
from chunkstore.commit_log import Commit
from chunkstore.paths import split
from metadata import keys
from metadata.commit_records import Holes, MapPart, commit_records
from metadata.dataset_state import read_state, read_totals
from metadata.errors import RecordsLost
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate
from metadata.records import (
    ChunkRecord,
    DatasetState,
    decode_entries,
    encode_entries,
    is_file,
    is_tombstone,
)


def apply_commit(
    index: KeyValueStore,
    dataset_id: bytes,
    commit: Commit,
    heads: Sequence[ChunkHead],
    retired_heads: Sequence[ChunkHead] = (),
) -> DatasetState:
    """Apply `commit` to an index that holds all commits before it; return the new state.

    `heads` are those of `commit.added`, in any order. `retired_heads` are those of
    `commit.retired`: the tombstones in them that the commit does not carry are dropped.

    The call is idempotent, also after a crash at any point of an earlier application, and safe
    beside other processes that apply the same commit. Raises `RecordCorrupt` for a damaged record
    and if the totals of the earlier commits are missing, `IndexBehind` for an index that is being
    rebuilt.
    """
    chunks_key, state_key = keys.chunks_of(dataset_id), keys.state_of(dataset_id)
    maps, holes = commit_records(index, dataset_id, commit, heads)
    change = _compare(index, maps, holes)
    chunk_fields, chunk_values = _chunk_records(index, chunks_key, commit, heads, holes)
    # The totals are read last: while they are older, the index held no entry of this commit that
    # could be mistaken for an older one.
    before = read_totals(index, dataset_id)
    if before.generation > commit.generation:  # another process is beyond this commit
        applied = read_state(index, dataset_id, keys.APPLIED)
        _check_applied(applied, before)
        return applied
    if before.generation < commit.generation - 1:
        raise RecordsLost(
            f"the index lost its totals of generation {commit.generation - 1}: rebuild it "
            "with `dlcmd recover`"
        )
    state = _next_state(before, commit, change)
    put_entries = [
        MapUpdate(part.key, part.names, encode_entries(part.key, part.names, part.rows))
        for part in maps
    ]
    retire = [MapUpdate(chunks_key, *_retired_records(chunks_key, commit))]
    finish = [MapUpdate(state_key, [keys.APPLIED], [state.encode(state_key, keys.APPLIED)])]
    phases = [
        [
            MapUpdate(chunks_key, chunk_fields, chunk_values),
            MapUpdate(state_key, [keys.TOTALS], [state.encode(state_key, keys.TOTALS)]),
        ],
        put_entries,
        retire,
    ]
    if any(_deletes(head) for head in retired_heads):
        index.put(phases)
        _remove_tombstones(index, dataset_id, retired_heads)
        index.put([finish])
    else:
        index.put([*phases, finish])
    _take_back(index, dataset_id, commit, heads, put_entries)
    return state


def _check_applied(applied: DatasetState, totals: DatasetState) -> None:
    if applied.generation < totals.generation - 1:
        raise RecordsLost(
            "the index lost its record of the commits applied up to generation "
            f"{totals.generation - 1}: rebuild it with `dlcmd recover`"
        )


def _deletes(head: ChunkHead) -> bool:
    return bool((head.entries.kind == KIND_TOMBSTONE).any())


def _take_back(
    index: KeyValueStore,
    dataset_id: bytes,
    commit: Commit,
    heads: Sequence[ChunkHead],
    entries: Sequence[MapUpdate],
) -> None:
    """Remove the entries just put that only retired chunks call for.

    There are some if this process was so late that chunks of the commit have been retired
    meanwhile. A process that retires a chunk puts the chunk's record before it looks for records to
    drop. A process that applies a commit puts entries before it looks at the record. So one of the
    two sees the other. Current entries have been rewritten by then, under greater stamps.
    """
    if not heads:
        return
    key = keys.chunks_of(dataset_id)
    names = [head.chunk_id.value for head in heads]
    values = index.get_many([MapFields(key, names)])[0]
    retired = {
        name
        for name, value in zip(names, values, strict=True)
        if value is not None and ChunkRecord.decode(key, name, value).retired
    }
    if not retired:
        return
    lasting = [head for head in heads if head.chunk_id.value not in retired]
    parts, _ = commit_records(index, dataset_id, commit, lasting)
    kept = {(part.key, name) for part in parts for name in part.names}
    for update in entries:
        rows = decode_entries(*update)
        late = [
            (name, value)
            for name, value, chunk in zip(
                update.fields, update.values, rows["chunk"].tolist(), strict=True
            )
            if chunk in retired or (update.key, name) not in kept
        ]
        index.remove_exactly([MapUpdate(update.key, [n for n, _ in late], [v for _, v in late])])


def _remove_tombstones(index: KeyValueStore, dataset_id: bytes, heads: Sequence[ChunkHead]) -> None:
    """Remove the tombstones whose records still lie in these retired chunks.

    Records that other processes put meanwhile stay. Live records are rewritten or replaced by later
    commits, and counted there. Two rounds.
    """
    fields: defaultdict[bytes, set[bytes]] = defaultdict(set)
    for head in heads:
        entries = head.entries
        for number in np.flatnonzero(entries.kind == KIND_TOMBSTONE).tolist():
            directory, name = split(entries.paths[number])
            is_directory = stat.S_ISDIR(int(entries.mode[number]))
            key_of = keys.directories_of if is_directory else keys.files_of
            fields[key_of(dataset_id, directory)].add(name)
    lookups = [MapFields(key, sorted(names)) for key, names in fields.items()]
    chunks = {head.chunk_id.value for head in heads}
    removals: list[MapUpdate] = []
    for (key, names), values in zip(lookups, index.get_many(lookups), strict=True):
        present = [(name, value) for name, value in zip(names, values, strict=True) if value]
        rows = decode_entries(key, [name for name, _ in present], [value for _, value in present])
        inside = np.array([chunk in chunks for chunk in rows["chunk"].tolist()], np.bool_)
        chosen = np.flatnonzero(inside & is_tombstone(rows)).tolist()
        if chosen:
            removals.append(
                MapUpdate(key, [present[at][0] for at in chosen], [present[at][1] for at in chosen])
            )
    if removals:
        index.remove_exactly(removals)


@dataclass(slots=True)
class _Change:
    """The live content that a commit adds and removes."""

    files: int = 0
    bytes: int = 0
    directories: int = 0

    def count(self, rows: npt.NDArray[np.void], sign: int) -> None:
        files = is_file(rows)
        self.files += sign * int(files.sum())
        self.bytes += sign * int(rows["length"][files].sum())
        self.directories += sign * int((~files & ~is_tombstone(rows)).sum())


def _compare(index: KeyValueStore, maps: Sequence[MapPart], holes: Holes) -> _Change:
    """Compute what the commit changes in the counts of live content.

    The old entries that it replaces are added to `holes`, and so are those of its entries that a
    newer one has already replaced.
    """
    change, uncounted = _Change(), _Change()
    present = index.get_many([MapFields(part.key, part.names) for part in maps])
    for part, values in zip(maps, present, strict=True):
        tally = uncounted if part.directory is None else change
        found = [number for number, value in enumerate(values) if value is not None]
        if not found:
            tally.count(part.rows, +1)
            continue
        old = decode_entries(
            part.key,
            [part.names[n] for n in found],
            [value for value in values if value is not None],
        )
        new = part.rows[found]
        newer = (new["version"] > old["version"]) | (
            (new["version"] == old["version"]) & (new["placed"] > old["placed"])
        )
        same = (new["version"] == old["version"]) & (new["placed"] == old["placed"])
        moved = (new["chunk"] != old["chunk"]) | (new["position"] != old["position"])
        holes.add(old[newer & moved])
        holes.add(new[~newer & ~same & moved])
        tally.count(old[newer], -1)
        tally.count(new[newer], +1)
        tally.count(np.delete(part.rows, found), +1)
    return change


def _next_state(before: DatasetState, commit: Commit, change: _Change) -> DatasetState:
    if before.generation == commit.generation:  # another application put this before any entry
        return before
    totals = (
        before.files + change.files,
        before.bytes + change.bytes,
        before.directories + change.directories,
        before.chunks + len(commit.added) - len(commit.retired),
    )
    if min(totals) < 0:
        raise RecordsLost(
            f"the index's totals of generation {before.generation} do not add up: rebuild it with "
            "`dlcmd recover`"
        )
    return DatasetState(commit.generation, commit.time_ns, *totals)


def _chunk_records(
    index: KeyValueStore, key: bytes, commit: Commit, heads: Sequence[ChunkHead], holes: Holes
) -> tuple[list[bytes], list[bytes]]:
    """Return the fields and values of the new chunks and of older chunks that got holes."""
    records = {head.chunk_id.value: chunk_record(commit, head) for head in heads}
    older = [chunk for chunk in holes.found if chunk not in records]
    for chunk, value in zip(
        older, index.get_many([MapFields(key, older)])[0] if older else [], strict=True
    ):
        if value is not None and not (record := ChunkRecord.decode(key, chunk, value)).retired:
            records[chunk] = record
    for chunk, positions in holes.found.items():
        if chunk in records:
            records[chunk] = with_holes(records[chunk], positions)
    return list(records), [record.encode(key, ChunkId(chunk)) for chunk, record in records.items()]


def chunk_record(commit: Commit, head: ChunkHead) -> ChunkRecord:
    """Return the record of a chunk without holes that `commit` adds."""
    count = len(head.entries)
    return ChunkRecord(
        commit.generation,
        commit.time_ns,
        head.head_bytes,
        head.payload_bytes,
        count,
        int((head.entries.kind == KIND_FILE).sum()),
        0,
        0,
        bytes((count + 7) // 8),
    )


def retired_record(commit: Commit) -> ChunkRecord:
    """Return the record that remains of a chunk that `commit` retires.

    It must remain: a slower process that applies an earlier commit would put a removed field back.
    """
    return ChunkRecord(commit.generation, commit.time_ns, 0, 0, 0, 0, 0, 0, b"", retired=True)


def _retired_records(key: bytes, commit: Commit) -> tuple[list[bytes], list[bytes]]:
    record = retired_record(commit)
    return [chunk_id.value for chunk_id in commit.retired], [
        record.encode(key, chunk_id) for chunk_id in commit.retired
    ]


def with_holes(record: ChunkRecord, positions: Mapping[int, int]) -> ChunkRecord:
    """Return the record with these holes added: position -> length."""
    bitmap = bytearray(record.deleted)
    fresh = [position for position in positions if not bitmap[position >> 3] & 1 << (position & 7)]
    for position in fresh:
        bitmap[position >> 3] |= 1 << (position & 7)
    return replace(
        record,
        deleted_count=record.deleted_count + len(fresh),
        deleted_bytes=record.deleted_bytes + sum(positions[position] for position in fresh),
        deleted=bytes(bitmap),
    )
