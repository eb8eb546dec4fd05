"""Chunks without a live entry that several writers left, retired without a purge.

Two puts of the same files at once store them twice, and the one that commits later replaces the
chunks of the other, whole. Nothing need be moved out of such a chunk.
"""

from __future__ import annotations

from chunkstore.errors import Corrupt, NotFound
from dieselfs.dataset.dataset import Dataset
from dieselfs.housekeeping.purge.chunk_metadata import chunk_metadata_of
from dieselfs.housekeeping.purge.hole_check import check_holes
from dieselfs.housekeeping.purge.retiring import chunk_records, retire


def retire_dead_chunks(dataset: Dataset, after: int) -> int:
    """Retire the chunks added after generation `after` that nothing refers to; return how many.

    The objects stay for the grace period, as after a purge. Raises `Conflict` if another process
    retires them too. Costs a get for each commit since then, one of the index, and a read of each
    dead chunk's head.
    """
    dataset.catch_up()
    added = [ref.id for commit in dataset.log.since(after) for ref in commit.added]
    metadata = []
    for field, record in chunk_records(dataset, added).items():
        if record.deleted_count < record.entry_count:
            continue
        chunk_id = next(each for each in added if each.value == field)
        try:
            head = dataset.reader.head(chunk_id, record.head_bytes)
        except (Corrupt, NotFound):  # left to purge, which knows what it may have held
            continue
        check_holes(dataset, head, record)
        metadata.append(chunk_metadata_of(head, record.generation))
    if metadata:
        retire(dataset, metadata)
    return len(metadata)
