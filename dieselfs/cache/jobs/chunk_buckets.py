"""The buckets of a snapshot's chunks: by dataset, by directory, or by group of the plan.

A chunk's directory is that of its first file. `put` mixes files of all directories in a chunk, so
directories are of use for datasets that were packed one directory after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.segment_buckets import Bucket, Tags, bucket_map_named, by_dataset
from dieselfs.cache.jobs.published_order import MAX_BUCKETS
from dieselfs.prefetch.window import PlannedOrder
from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

log = logging.getLogger(__name__)

BucketMapName = Literal["dataset", "directory", "group"]
BUCKET_MAP_NAMES: Final[tuple[BucketMapName, ...]] = get_args(BucketMapName)


class ChunkBuckets:
    """The buckets of one snapshot's chunks, by one map. Thread-safe."""

    def __init__(self, snapshot: Snapshot, map_name: BucketMapName = "dataset") -> None:
        """Create it; what a map needs is computed at the first use."""
        self._snapshot, self._map = snapshot, bucket_map_named(map_name)
        self._dataset = snapshot.dataset.name
        self._whole = by_dataset(Tags(self._dataset))
        self._map_name = map_name
        if map_name == "directory" and len(self._directories[0]) > MAX_BUCKETS:
            log.warning(
                "dataset %s has files in more than %d directories, so it is one bucket",
                *(self._dataset, MAX_BUCKETS),
            )
            self._map_name = "dataset"
        self._groups: dict[int, Bucket] = {}
        """The bucket of each chunk of the order that is read now, by its number."""

    def of(self, chunk: bytes) -> Bucket:
        """Return the bucket of a chunk, by its id. Takes about 0.3 µs."""
        if self._map_name == "dataset":
            return self._whole
        number = self._numbers.get(chunk)
        if number is None:  # of another generation of the dataset
            return self._whole
        if self._map_name == "group":
            return self._groups.get(number, self._whole)
        names, of_chunk = self._directories
        return names[int(of_chunk[number])]

    def all(self) -> Sequence[Bucket]:
        """Return all buckets, as far as they are known without an order."""
        return self._directories[0] if self._map_name == "directory" else [self._whole]

    def by_last_use(self, order: PlannedOrder) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Return the buckets of an order by their last uses, and the positions of these.

        From now on, chunks are in the groups of this order.
        """
        uses = order.uses
        if self._map_name == "directory":
            all_names, of_chunk = self._directories
            which = of_chunk[uses.chunks]
        elif self._map_name == "group":
            which = np.searchsorted(order.group_start, uses.first, "right") - 1
            groups = len(order.group_start) - 1
            all_names = [self._map(Tags(self._dataset, group=group)) for group in range(groups)]
            numbers = uses.chunks.tolist()
            names_of_uses = [all_names[group] for group in which.tolist()]
            self._groups = dict(zip(numbers, names_of_uses, strict=True))
        else:
            all_names, which = [self._whole], np.zeros(len(uses), np.int64)
        last = np.full(len(all_names), -1, np.int64)
        np.maximum.at(last, which, uses.last)
        in_turn = np.argsort(last, kind="stable")
        in_turn = in_turn[last[in_turn] >= 0]
        return [all_names[bucket] for bucket in in_turn.tolist()], last[in_turn]

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        """The numbers of the chunks by their ids: about 130 bytes of memory a chunk."""
        ids = self._snapshot.columns.chunk_id.tobytes()
        return {ids[at : at + 16]: at // 16 for at in range(0, len(ids), 16)}

    @cached_property
    def _directories(self) -> tuple[list[Bucket], npt.NDArray[np.int64]]:
        """The buckets of the directories, and which of them each chunk is in."""
        snapshot = self._snapshot
        first = snapshot.chunk_first_inode[:-1]
        parents, which = np.unique(snapshot.columns.parent[first], return_inverse=True)
        names = [
            self._map(Tags(self._dataset, directory=path.decode(errors="backslashreplace")))
            for path in map(snapshot.path_of, (DIRECTORY_BASE + parents.astype(np.int64)).tolist())
        ]
        return names, which.astype(np.int64)
