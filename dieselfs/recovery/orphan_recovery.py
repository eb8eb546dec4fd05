"""Orphan recovery: whole chunks that no commit names are committed on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import xxhash

from chunkstore.chunk_format import KIND_FILE, DatasetRef
from chunkstore.chunk_reader import MAX_WHOLE_BYTES, ChunkReader
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import CommitLog
from chunkstore.errors import Corrupt, NotFound
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import ObjectStore
from dieselfs.recovery.history import History
from dieselfs.recovery.parallel_reads import read_in_parallel

_CHUNKS_A_COMMIT: Final = 1024


def orphans(
    store: ObjectStore, history: History, progress: Callable[[int], None] | None = None
) -> list[ChunkRef]:
    """Return the uncommitted chunks that are whole, by id; every byte of their files is verified.

    All of them are read; `progress` is called with the bytes of each. Chunks of an interrupted
    purge are left out: their content lies where it was, or has been deleted since.
    """
    assert history.dataset is not None
    dataset = history.dataset
    whole = [
        chunk.evidence.ref
        for chunk in history.uncommitted
        if chunk.is_whole and chunk.evidence and not chunk.evidence.is_of_purge
    ]

    def is_sound(ref: ChunkRef) -> bool:
        try:
            _verify(store, dataset, ref)
        except (Corrupt, NotFound):
            return False
        if progress is not None:
            progress(ref.payload_bytes)
        return True

    return [ref for ref, sound in read_in_parallel(is_sound, whole) if sound]


def commit_orphans(
    store: ObjectStore, dataset: DatasetRef, after: int, refs: Sequence[ChunkRef]
) -> int:
    """Commit the chunks, in the given order; return the last generation.

    After a crash, a repeated recovery commits those that are left. `after` is any generation known
    to exist. No other process may be about to commit these chunks: a put under way would commit
    them again. Raises `NotFound` if gc has deleted one of the next chunks to commit.
    """
    log, generation = CommitLog(store, dataset), after
    for start in range(0, len(refs), _CHUNKS_A_COMMIT):
        some = refs[start : start + _CHUNKS_A_COMMIT]
        for _ in read_in_parallel(lambda ref: log.check_late([ref]), some):
            pass
        generation = log.append(generation, some).generation
    return generation


def _verify(store: ObjectStore, dataset: DatasetRef, ref: ChunkRef) -> None:
    """Raise `Corrupt` unless every file in the chunk has its hash. Memory: 16 MiB."""
    reader = ChunkReader(store, dataset)
    if ref.payload_bytes <= MAX_WHOLE_BYTES:
        reader.payload(ref)
        return
    entries = reader.head(ref.id, ref.head_bytes).entries
    for kind, offset, length, expected in zip(
        entries.kind.tolist(),
        entries.offset.tolist(),
        entries.length.tolist(),
        entries.hash.tolist(),
        strict=True,
    ):
        if kind != KIND_FILE:
            continue
        digest = xxhash.xxh3_64()
        start, end = ref.head_bytes + offset, ref.head_bytes + offset + length
        for at in range(start, end, MAX_WHOLE_BYTES):
            digest.update(
                store.get_range(chunk_key(dataset.name, ref.id), at, min(MAX_WHOLE_BYTES, end - at))
            )
        if digest.intdigest() != expected:
            raise Corrupt(f"the checksum of a file in chunk {ref.id} is wrong")
