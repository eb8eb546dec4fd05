"""From commits and chunk heads to every map of the index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from chunkstore.chunk_format import ChunkHead, DatasetRef
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit
from chunkstore.paths import ancestors
from metadata import keys
from metadata.application import apply_commit
from metadata.kv.memory import MemoryStore
from metadata.rebuild.map_sink import MapKind, MapPart, MapSink
from metadata.records import EMPTY_STATE, DatasetState


def rebuild(
    dataset: DatasetRef,
    commits: Sequence[Commit],
    read_head: Callable[[ChunkRef], ChunkHead],
    sink: MapSink,
    *,
    spill_folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> DatasetState:
    """Give `sink` the index at the last of `commits` (generations 1, 2, …, all of them) and return its state.

    `read_head` is called from several threads, once for each chunk that `commits` add and do not retire; what it raises ends the rebuild, before
    the sink has the state. `spill_folder` holds a temporary file if the dataset is large, by default among the system's temporary
    files. `progress` is told, now and then, how many entries the sink has. The dataset's name is not registered.
    """
    index = MemoryStore()
    retired = {chunk_id for commit in commits for chunk_id in commit.retired}
    directories = {b""}
    state = EMPTY_STATE
    for commit in commits:
        heads = [read_head(ref) for ref in commit.added if ref.id not in retired]
        for head in heads:
            for path in head.entries.paths:
                directories.update(ancestors(path))
            directories.update(
                path
                for path, mode in zip(head.entries.paths, head.entries.mode.tolist(), strict=True)
                if mode & 0o170000 == 0o040000
            )
        state = apply_commit(index, dataset.id, commit, heads)

    def part(kind: MapKind, directory: bytes, key: bytes) -> MapPart:
        found = sorted(pair for batch in index.scan(key) for pair in batch)
        return MapPart(
            kind, directory, key, [field for field, _ in found], [value for _, value in found]
        )

    for directory in sorted(directories, key=lambda path: keys.files_of(dataset.id, path)):
        below, files = (
            keys.directories_of(dataset.id, directory),
            keys.files_of(dataset.id, directory),
        )
        sink.put(
            [
                part(MapKind.DIRECTORIES, directory, below),
                part(MapKind.FILES, directory, files),
            ]
        )
    sink.put([part(MapKind.CHUNKS, b"", keys.chunks_of(dataset.id))])
    sink.finish(dataset.id, part(MapKind.STATE, b"", keys.state_of(dataset.id)))
    return state
