"""The chunks that a warm-up is for: those of a whole snapshot, of paths, or of an epoch's order."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_source import ChunkRef
from dieselfs.shuffle.order import ShuffledOrder, ShuffleParameters
from dieselfs.shuffle.shuffle_lists import ListedOrder
from metadata.errors import PathNotFound
from metadata.snapshot import ROOT, Snapshot


def wanted_chunks(snapshot: Snapshot, since: Snapshot | None = None) -> list[ChunkRef]:
    """Return the chunks of a snapshot, without those of an older one."""
    return without_chunks_of(since, [snapshot.chunk(at) for at in range(snapshot.chunk_count)])


def without_chunks_of(since: Snapshot | None, chunks: Sequence[ChunkRef]) -> list[ChunkRef]:
    """Return the chunks that an older snapshot does not have; all if there is none."""
    known = set() if since is None else {id_.tobytes() for id_ in since.columns.chunk_id}
    return [chunk for chunk in chunks if chunk.id.value not in known]


def chunks_of_paths(snapshot: Snapshot, paths: Sequence[str | bytes]) -> list[ChunkRef]:
    """Return the chunks of these files, in their order, then those of all below directories.

    Takes about 0.5 µs a path. Raises `PathNotFound`.
    """
    encoded = [os.fsencode(path).strip(b"/") for path in paths]
    inodes = snapshot.resolve_many(encoded)
    inodes[[at for at, path in enumerate(encoded) if not path]] = ROOT
    missing = np.flatnonzero(inodes < 0)
    if len(missing):
        others = f" (and {len(missing) - 1:,} other paths)" if len(missing) > 1 else ""
        raise PathNotFound(
            f"no such file or directory in dataset {snapshot.dataset.name}: "
            f"{os.fsdecode(encoded[missing[0]])}{others}"
        )
    are_directories = inodes >= ROOT
    of_files = snapshot.columns.chunk[inodes[~are_directories]]
    below = _chunks_below(snapshot, inodes[are_directories] - ROOT)
    return _in_order(snapshot, np.concatenate((of_files, below)))


def chunks_of_order(snapshot: Snapshot, order: ShuffledOrder | ShuffleParameters) -> list[ChunkRef]:
    """Return the chunks of an epoch, in the order of their first files. About 0.1 µs a file."""
    if isinstance(order, ShuffleParameters):
        order = ListedOrder(snapshot, order).shuffled()
    return _in_order(snapshot, snapshot.columns.chunk[order.inodes])


def _chunks_below(
    snapshot: Snapshot, directories: npt.NDArray[np.integer]
) -> npt.NDArray[np.uint32]:
    """Return the chunks of all files below directories, ascending."""
    columns = snapshot.columns
    if not len(directories):
        return columns.chunk[:0]
    is_below = np.zeros(len(columns.directory_parent), np.bool_)
    is_below[directories] = True
    before = -1
    while (count := int(is_below.sum())) != before:  # once for each level of the tree
        before = count
        is_below |= is_below[columns.directory_parent]
    return np.unique(columns.chunk[is_below[columns.parent]])


def _in_order(snapshot: Snapshot, numbers: npt.NDArray[np.uint32]) -> list[ChunkRef]:
    """Return the chunks of these numbers, each once, at its first place."""
    found, first_at = np.unique(numbers, return_index=True)
    return [snapshot.chunk(number) for number in found[np.argsort(first_at)].tolist()]
