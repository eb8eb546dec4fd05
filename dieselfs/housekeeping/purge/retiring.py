"""The commit that retires chunks: it adds the moved files and the tombstone rewrite.

It holds for one generation alone. A writer that commits first costs a second look-up of directories
and tombstones, but no second reading of files: a file that was replaced meanwhile is a hole in its
new chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.chunk_writer import ChunkWriter, SealedChunk
from chunkstore.commit_log import Commit
from chunkstore.errors import AlreadyExists, ChunkStoreError, Unavailable
from chunkstore.object_keys import chunk_key
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.dataset_writer import CHUNK_IDS
from dieselfs.errors import Conflict
from dieselfs.housekeeping.purge.chunk_metadata import ChunkMetadata
from dieselfs.housekeeping.purge.tombstone_collection import TombstoneCollection
from dieselfs.housekeeping.purge.tombstone_rewrite import TombstoneRewrite, tombstone_rewrite_of
from metadata import keys
from metadata.kv.key_value_store import MapFields
from metadata.records import ChunkRecord

log = logging.getLogger(__name__)

_TRIES: Final = 64
"""The tries against writers that commit all the time.

One try takes some ten milliseconds, and writers commit once a second.
"""
_REPETITIONS: Final = 3
"""The repetitions of a commit that was not answered."""


def retire(
    dataset: Dataset,
    chunks_metadata: Sequence[ChunkMetadata],
    moved: Sequence[SealedChunk] = (),
    collection: TombstoneCollection | None = None,
) -> tuple[Commit, int]:
    """Retire `chunks_metadata` and add `moved`; return the commit, and the tombstones dropped.

    `moved` are stored already and hold all live files. Tombstones are dropped as far as
    `collection` allows; without it all are rewritten. Raises `Conflict` if another purge was
    faster, or writers never paused; then `moved` is deleted from the store again. Raises `NotFound`
    if gc has deleted moved chunks: the purge took too long.
    """
    retiring = tuple(chunk_metadata.id for chunk_metadata in chunks_metadata)
    for _ in range(_TRIES):
        generation = dataset.catch_up().generation
        records = chunk_records(dataset, retiring)
        if len(records) < len(retiring):
            discard(dataset, moved)
            raise Conflict(
                f"another purge of dataset {dataset.ref.name} has retired the same chunks",
                "wait until it is done, and run this one again if holes are left",
            )
        rewrite = _planned_rewrite(dataset, chunks_metadata, records, collection)
        # The call raises if the index is being repaired: its records may be older than its
        # generation.
        if dataset.catch_up().generation != generation:
            continue
        added = [*moved, *_store(dataset, rewrite)]
        dataset.log.check_late(chunk.ref for chunk in moved)  # its sources are retired
        try:
            commit = _append(dataset, generation + 1, [chunk.ref for chunk in added], retiring)
        except AlreadyExists:
            discard(dataset, added[len(moved) :])
            continue
        dataset.publish(commit, [chunk.head for chunk in added])
        return commit, rewrite.dropped
    discard(dataset, moved)
    raise Conflict(
        f"cannot commit to dataset {dataset.ref.name}: in each of {_TRIES} tries a writer "
        "committed first",
        "run the purge again when its writers pause",
    )


def chunk_records(dataset: Dataset, chunks: Sequence[ChunkId]) -> dict[bytes, ChunkRecord]:
    """Return the records of those of `chunks` that are not retired. Costs one get."""
    key, fields = keys.chunks_of(dataset.ref.id), [chunk_id.value for chunk_id in chunks]
    values = dataset.index.get_many([MapFields(key, fields)])[0] if fields else []
    found = {
        field: ChunkRecord.decode(key, field, value)
        for field, value in zip(fields, values, strict=True)
        if value is not None
    }
    return {field: record for field, record in found.items() if not record.retired}


def discard(dataset: Dataset, chunks: Iterable[SealedChunk]) -> None:
    """Delete chunks that no commit names; failed deletions are left to gc."""
    for chunk in chunks:
        with suppress(ChunkStoreError):
            dataset.store.delete(chunk_key(dataset.ref.name, chunk.ref.id))


def _planned_rewrite(
    dataset: Dataset,
    chunks_metadata: Sequence[ChunkMetadata],
    records: Mapping[bytes, ChunkRecord],
    collection: TombstoneCollection | None,
) -> TombstoneRewrite:
    if collection is None:
        return tombstone_rewrite_of(dataset.index, dataset.ref.id, chunks_metadata, records)
    present = {ChunkId(chunk_id): record for chunk_id, record in dataset.namespace.chunks().items()}
    collection.look_at(  # only new chunks: those that leave were examined before
        dict.fromkeys(present, True),
        lambda chunk_id: dataset.reader.head(chunk_id, present[chunk_id].head_bytes),
    )
    return tombstone_rewrite_of(
        dataset.index, dataset.ref.id, chunks_metadata, records, collection.collectable
    )


def _store(dataset: Dataset, rewrite: TombstoneRewrite) -> list[SealedChunk]:
    stored: list[SealedChunk] = []

    def store(chunk: SealedChunk) -> None:
        dataset.store.create(chunk_key(dataset.ref.name, chunk.ref.id), [chunk.head])
        stored.append(chunk)

    rewrite.write(ChunkWriter(dataset.ref, CHUNK_IDS, store, open_chunks=1))
    return stored


def _append(
    dataset: Dataset, generation: int, added: Sequence[ChunkRef], retired: Sequence[ChunkId]
) -> Commit:
    for left in reversed(range(_REPETITIONS)):
        try:
            return dataset.log.append_exactly(generation, added, retired)
        except Unavailable as error:
            if not left:
                raise
            log.warning(
                "trying again to write commit %d of dataset %s: %s",
                generation,
                dataset.ref.name,
                error,
            )
    raise AssertionError("the last repetition returns or raises")
