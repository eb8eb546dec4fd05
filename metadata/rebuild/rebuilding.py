"""The rebuild: from commits and chunk heads to every map of the index.

First the heads are read, in the order of commits: entries of files are distributed by directory
into parts, directories are kept in memory and updated commit by commit. Then part after part is
sorted, its maps go to the sink, and the current entries are marked in the chunks. Last come the
chunks, whose holes are the entries that are not current, and the state, which counts the current
ones.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import ChunkHead, DatasetRef
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit
from metadata import keys
from metadata.application import retired_record
from metadata.rebuild.chunk_table import ChunkTable, chunks_to_read
from metadata.rebuild.directory_table import DirectoryTable
from metadata.rebuild.head_columns import head_columns
from metadata.rebuild.head_reading import read_heads
from metadata.rebuild.index_maps import IndexMaps, spread
from metadata.rebuild.map_sink import IndexMapPart, MapKind, MapSink
from metadata.rebuild.memory_limits import DEFAULT_LIMITS, MemoryLimits
from metadata.rebuild.spill import DealtEntries, NamedEntries
from metadata.records import DatasetState

_LEAST_ENTRY_BYTES: Final = 64
"""The least bytes of an entry in a head, with a short path.

They bound the number of entries, nearly.
"""
_MOST_PARTS: Final = 1 << 16
_FIELDS_A_PUT: Final = 30_000
"""The fields of a put: a synced transaction of LMDB, half a pipeline of Redis, 3 MB."""
_PUTS_UNDER_WAY: Final = 2

Progress = Callable[[int], None]


def rebuild(
    dataset: DatasetRef,
    commits: Sequence[Commit],
    read_head: Callable[[ChunkRef], ChunkHead],
    sink: MapSink,
    *,
    spill_folder: Path | None = None,
    progress: Progress | None = None,
    limits: MemoryLimits = DEFAULT_LIMITS,
) -> DatasetState:
    """Give `sink` the index at the last of `commits` and return its state.

    `commits` are all commits, generations 1, 2, …. `read_head` is called from several threads, once
    for each chunk that `commits` add and do not retire; an error that it raises ends the rebuild
    before the sink has the state. `spill_folder` holds a temporary file if the dataset is large, by
    default among the system's temporary files. `progress` is called from time to time with the
    number of files whose records the sink has, 0 while heads are read. The dataset's name is not
    registered. The cost is about 4 µs a file, and memory as in `MemoryLimits`.
    """
    sink.begin(dataset.id, commits[-1].generation)
    added = chunks_to_read(commits)
    chunks, directories = ChunkTable(added), DirectoryTable(dataset.id)
    entries_at_most = sum(chunk.ref.head_bytes for chunk in added) // _LEAST_ENTRY_BYTES
    parts = min(_MOST_PARTS, entries_at_most // limits.part_entries + 1)

    def route(entries: NamedEntries) -> npt.NDArray[np.int64]:
        of_directories = spread(directories.digests()[:, 0], parts)
        return of_directories[entries.rows["directory"].astype(np.int64)]

    with (
        _cycles_left_alone(),
        closing(DealtEntries(route, spill_folder, limits.waiting_bytes)) as files,
    ):
        heads = read_heads([chunk.ref for chunk in added], read_head)
        with closing(heads):
            for number, (chunk, head) in enumerate(zip(added, heads, strict=True)):
                _take(head, chunk.commit.generation, chunks, directories, files)
                if number + 1 == len(added) or added[number + 1].commit is not chunk.commit:
                    directories.commit(chunk.commit)
                if progress is not None:
                    progress(0)
        chunks.all_read()
        files.all_added()
        maps = IndexMaps(directories.records(), chunks, files, parts, spill_folder, limits)
        with ThreadPoolExecutor(1, "rebuild-put") as pool:  # its time passes mostly in the database
            putting: deque[Future[None]] = deque()
            for batch in _batches(maps):
                putting.append(pool.submit(sink.put, batch))
                if len(putting) > _PUTS_UNDER_WAY:
                    putting.popleft().result()
                if progress is not None:
                    progress(maps.entries)
            for put in putting:
                put.result()
    sink.put([_chunk_map(dataset.id, commits, chunks)])
    state = _state(commits, maps)
    key = keys.state_of(dataset.id)
    fields = sorted([keys.TOTALS, keys.APPLIED])
    values = [state.encode(key, field) for field in fields]
    sink.finish(IndexMapPart(MapKind.STATE, b"", key, fields, values))
    return state


@contextmanager
def _cycles_left_alone() -> Iterator[None]:
    """Switch off the collection of cycles.

    Python looks for cycles after every 700 new tuples. Here are millions of tuples and no cycles;
    this saves a tenth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _take(
    head: ChunkHead,
    generation: int,
    chunks: ChunkTable,
    directories: DirectoryTable,
    files: DealtEntries,
) -> None:
    """Distribute the head's files to parts, and note in the directories what it does to them."""
    columns = head_columns(head, generation, chunks.add(head))
    numbers = directories.numbers_of(columns.file_parents)
    columns.files["directory"] = numbers
    files.add(NamedEntries(columns.files, b"".join(columns.file_names)))
    directories.add(
        numbers[columns.files_add],
        columns.directory_paths,
        columns.directories,
        columns.directory_places,
        columns.directories_add,
    )


def _batches(parts: Iterable[IndexMapPart]) -> Iterator[list[IndexMapPart]]:
    """Yield some parts at a time: many small maps, or a large one."""
    batch: list[IndexMapPart] = []
    fields = 0
    for part in parts:
        batch.append(part)
        fields += len(part.fields) + 1
        if fields >= _FIELDS_A_PUT:
            yield batch
            batch, fields = [], 0
    if batch:
        yield batch


def _chunk_map(dataset_id: bytes, commits: Sequence[Commit], chunks: ChunkTable) -> IndexMapPart:
    key = keys.chunks_of(dataset_id)
    values = {chunk_id.value: record.encode(key, chunk_id) for chunk_id, record in chunks.records()}
    for commit in reversed(commits):  # of two commits that retire a chunk, the first counts
        record = retired_record(commit)
        values.update((chunk_id.value, record.encode(key, chunk_id)) for chunk_id in commit.retired)
    ids = sorted(values)
    return IndexMapPart(MapKind.CHUNKS, b"", key, ids, [values[chunk_id] for chunk_id in ids])


def _state(commits: Sequence[Commit], maps: IndexMaps) -> DatasetState:
    return DatasetState(
        commits[-1].generation,
        commits[-1].time_ns,
        maps.files,
        maps.bytes,
        maps.directories,
        sum(len(commit.added) - len(commit.retired) for commit in commits),
    )
