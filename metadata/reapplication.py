"""Put commits again into an index that has lost or damaged records.

Stamps decide what stays, whatever the totals are; then one scan settles the rest. An index that
held everything up to a generation may have lost any of the later records in a fail-over, each
record by itself. Stamps decide between entries, so putting the commits after that generation again,
in order, restores every entry. Holes and totals are then counted in one scan of the index
(`metadata.recount`): an entry of a chunk that no record refers to is a hole.

The later commits alone do not settle some cases: a damaged record, a record in a chunk that is
unknown, an index so far behind that chunks it would need have been purged. All commits together
settle them. From the first commit on, directories are followed in memory, so that none of their
records are taken from the index, and stamps decide between files. Memory: the chunks' bitmaps and
then the directories, never the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.commit_log import Commit, CommitLog
from metadata import keys
from metadata.application import chunk_record, retired_record
from metadata.commit_records import commit_records
from metadata.commit_source import ChunkGone, ChunkHeads, commits_after, removed
from metadata.dataset_state import is_rebuilding, read_held, unmark_rebuilding
from metadata.errors import IndexBehind, RecordCorrupt
from metadata.kv.key_value_store import (
    STAMP_BYTES,
    KeyValueStore,
    MapFields,
    MapUpdate,
    read_map,
)
from metadata.kv.memory import MemoryStore
from metadata.records import ChunkRecord, DatasetState, encode_entries
from metadata.recount import Census, Undecided, recounted, take_census

log = logging.getLogger(__name__)

_ROUNDS = 8
"""The most rounds. A round repeats after the one before removed something, or for new commits."""


def reapply_later(
    index: KeyValueStore, dataset: DatasetRef, commits: CommitLog, reader: ChunkReader, after: int
) -> None:
    """Put again what was committed after `after`, and may be there in part.

    The caller has marked the index and made it correct up to `after`.
    """
    if commits_after(commits, after, read_held(index, dataset.id)):
        _reapply(index, dataset, commits, reader, after)


def reapply(
    index: KeyValueStore, dataset: DatasetRef, commits: CommitLog, reader: ChunkReader, after: int
) -> DatasetState:
    """Make the index match the commits; it once held all of generation `after`.

    It must have lost nothing older than that. The call may be repeated after a crash; readers of
    the index are served all the while. A process that applies a commit at the same time may count
    from totals that are not repaired yet. Raises `DatasetNotFound`, `IndexBehind` if writers do not
    let it finish, `NotFound` and `Corrupt` for chunks.

    The cost is the heads of the chunks added after `after`, one scan of the index, and the head of
    each older chunk that has holes which its record lacks. If that does not settle it, the heads of
    all chunks are read and the scan is made again.
    """
    if is_rebuilding(index, dataset.id):  # an interrupted rebuild: nothing is surely complete
        after = 0
    state = _reapply(index, dataset, commits, reader, after)
    unmark_rebuilding(index, dataset.id)
    return state


def _reapply(
    index: KeyValueStore, dataset: DatasetRef, commits: CommitLog, reader: ChunkReader, after: int
) -> DatasetState:
    held = read_held(index, dataset.id)
    with_retired = True
    for _ in range(_ROUNDS):
        later = commits_after(commits, after, held)
        if not later and not after:
            raise removed(commits)
        last = later[-1] if later else commits.read(after)
        history = _History(later, last, after == 0)

        def has_grown(generation: int = last.generation) -> bool:
            return bool(commits_after(commits, generation, held))

        try:
            known = _put_again(index, dataset.id, reader, history, with_retired and after > 0)
            state = _settle(index, dataset.id, reader, history, known, has_grown)
        except (ChunkGone, Undecided, RecordCorrupt) as reason:
            if not after:
                raise RecordCorrupt(
                    f"cannot repair the index: {reason}; name a new, empty index with --index"
                ) from reason
            log.warning(
                "the index of dataset %s is compared with the whole store: %s", dataset.name, reason
            )
            after = 0
        else:
            if state is not None:
                return state
            with_retired = False  # retired chunks' entries were put and removed
    raise IndexBehind(
        f"cannot settle the index of dataset {dataset.name!r}: "
        "other processes write to the dataset, or the index is ahead of the store; "
        "stop the writers and try again, or name a new, empty index with --index"
    )


@dataclass(frozen=True, slots=True)
class _History:
    """The commits that one round puts again."""

    commits: list[Commit]
    last: Commit
    is_whole: bool
    """True if the commits start with the first one."""

    @property
    def retired(self) -> dict[ChunkId, Commit]:
        return {chunk_id: commit for commit in self.commits for chunk_id in commit.retired}


@dataclass(slots=True)
class _Known:
    chunks: dict[bytes, ChunkRecord]
    """The chunks that the commits add and do not retire, without holes."""
    directories: MemoryStore | None
    """The content of the maps of directories and nothing else; None unless all commits are put."""


def _put_again(
    index: KeyValueStore,
    dataset_id: bytes,
    reader: ChunkReader,
    history: _History,
    with_retired: bool,
) -> _Known:
    known = _Known({}, MemoryStore() if history.is_whole else None)
    retired, chunks_key = history.retired, keys.chunks_of(dataset_id)
    with ChunkHeads(reader, retired.keys()) as reading:
        for commit in history.commits:
            heads = reading.added(commit) if with_retired else reading.lasting(commit)
            records = {
                head.chunk_id.value: chunk_record(commit, head)
                for head in heads
                if head.chunk_id not in retired
            }
            known.chunks |= records
            maps, _ = commit_records(known.directories or index, dataset_id, commit, heads)
            entries = [
                MapUpdate(part.key, part.names, encode_entries(part.key, part.names, part.rows))
                for part in maps
            ]
            if known.directories is not None:
                known.directories.put([[update for update in entries if update.key.endswith(b"d")]])
            index.put([[_encoded(chunks_key, records)], entries])
    return known


def _encoded(chunks_key: bytes, records: dict[bytes, ChunkRecord]) -> MapUpdate:
    values = [record.encode(chunks_key, ChunkId(chunk)) for chunk, record in records.items()]
    return MapUpdate(chunks_key, list(records), values)


def _settle(
    index: KeyValueStore,
    dataset_id: bytes,
    reader: ChunkReader,
    history: _History,
    known: _Known,
    has_grown: Callable[[], bool],
) -> DatasetState | None:
    """Put the chunk records, totals and `applied` state that are wrong; return the state.

    The result is None if something was removed, or if other processes are ahead: then the round
    starts over. A record that a later commit puts looks wrong to the earlier ones. Such a commit is
    durable before it puts anything. So if the log has not grown when everything has been scanned,
    no record that was seen belongs to a later commit, and wrong ones may be removed.
    """
    chunks_key, state_key = keys.chunks_of(dataset_id), keys.state_of(dataset_id)
    retired = {chunk_id.value: commit for chunk_id, commit in history.retired.items()}
    present = read_map(index, chunks_key)
    chunks = dict(known.chunks)
    gone = set(retired)
    if not history.is_whole:
        for chunk, value in present.items():
            if chunk in chunks or chunk in gone:
                continue
            record = ChunkRecord.decode(chunks_key, chunk, value)
            if record.retired:
                gone.add(chunk)
            else:
                chunks[chunk] = record
    census = take_census(
        index, dataset_id, chunks.keys(), None if history.is_whole else gone, known.directories
    )
    if (census.wrong and has_grown()) or _repair(index, census):
        return None
    expected = {
        chunk: recounted(chunk, record, census, reader) for chunk, record in chunks.items()
    } | {chunk: retired_record(commit) for chunk, commit in retired.items()}
    state = DatasetState(
        history.last.generation,
        history.last.time_ns,
        census.files,
        census.file_bytes,
        census.directories,
        len(chunks),
    )
    totals = MapUpdate(state_key, [keys.TOTALS], [state.encode(state_key, keys.TOTALS)])
    applied = MapUpdate(state_key, [keys.APPLIED], [state.encode(state_key, keys.APPLIED)])
    [[found_totals, found_applied]] = index.get_many(
        [MapFields(state_key, [keys.TOTALS, keys.APPLIED])]
    )
    if _generation(state_key, found_totals) > state.generation:
        return None
    chunk_records = _encoded(chunks_key, expected)
    unexpected = [c for c in present if c not in expected] if history.is_whole else []
    if (unexpected or _in_the_way(chunk_records, present)) and has_grown():
        return None
    index.remove_exactly([MapUpdate(chunks_key, unexpected, [present[c] for c in unexpected])])
    _replace(index, chunk_records, present)
    _replace(index, totals, {keys.TOTALS: found_totals})
    _replace(index, applied, {keys.APPLIED: found_applied})
    return state


def _repair(index: KeyValueStore, census: Census) -> bool:
    """Remove and put what the census found; return whether records of files were removed.

    If so, entries that those records had replaced may be current now.
    """
    index.remove_exactly(census.wrong[::-1])
    index.put([census.missing])
    return census.has_wrong_files


def _generation(state_key: bytes, totals: bytes | None) -> int:
    try:
        return (
            0 if totals is None else DatasetState.decode(state_key, keys.TOTALS, totals).generation
        )
    except RecordCorrupt:
        return 0


def _in_the_way(
    update: MapUpdate, present: Mapping[bytes, bytes | None]
) -> list[tuple[bytes, bytes]]:
    """Return the wrong values, with their fields, that a put of the right ones would not replace.

    Their stamps are not smaller than those of the right values.
    """
    return [
        (name, found)
        for name, value in zip(update.fields, update.values, strict=True)
        if (found := present.get(name)) is not None
        and found != value
        and found[:STAMP_BYTES] >= value[:STAMP_BYTES]
    ]


def _replace(
    index: KeyValueStore, update: MapUpdate, present: Mapping[bytes, bytes | None]
) -> None:
    """Put the values that differ."""
    if in_the_way := _in_the_way(update, present):
        index.remove_exactly(
            [MapUpdate(update.key, [n for n, _ in in_the_way], [v for _, v in in_the_way])]
        )
    pairs = zip(update.fields, update.values, strict=True)
    if wrong := [(name, value) for name, value in pairs if present.get(name) != value]:
        index.put([[MapUpdate(update.key, [n for n, _ in wrong], [v for _, v in wrong])]])
