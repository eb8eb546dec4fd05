"""The bytes of a known order's files that are filled into the page cache: arithmetic on columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.fuse.pages.page_filler import MAX_FILLED_FILE_BYTES, Inodes
from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.shuffle.group_memory import UNDER_WAY
from metadata.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class OrderBytes:
    """Bytes of files that are small enough to be filled, without those of chunks left out."""

    before: npt.NDArray[np.int64]
    """The bytes before each position of the order; one more than there are files."""
    in_chunk: npt.NDArray[np.int64]
    """The bytes of each chunk, by its number, up to the last one."""
    left_out: int
    """The bytes in chunks that were left out."""
    with_large: frozenset[int]
    """Chunks that have larger files too."""

    @classmethod
    def of(cls, snapshot: Snapshot, order: Inodes, left_out: Collection[int] = ()) -> OrderBytes:
        """Return the bytes of an order, without those of the chunks `left_out`."""
        columns = snapshot.columns
        length, chunk = columns.length[order].astype(np.int64), columns.chunk[order]
        is_small = length <= MAX_FILLED_FILE_BYTES
        is_left_out = np.zeros(snapshot.chunk_count, np.bool_)
        is_left_out[list(left_out)] = True
        is_left_out = is_left_out[chunk]
        counted = np.where(is_small & ~is_left_out, length, 0)
        return cls(
            np.concatenate([[0], np.cumsum(counted)]),
            np.bincount(chunk, counted).astype(np.int64),
            int(length[is_small & is_left_out].sum()),
            frozenset(chunk[~is_small].tolist()),
        )

    def upto(self, position: int) -> int:
        """Return the bytes before a position, which may be one of a longer order."""
        return int(self.before[min(position, len(self.before) - 1)])

    @property
    def total(self) -> int:
        """The bytes of the whole order."""
        return int(self.before[-1])


def bytes_in_use(uses: ChunkUses) -> int:
    """Return the least bytes that the order needs: its largest group, and chunks under way."""
    if not len(uses):
        return 0
    change = np.zeros(uses.files + 1, np.int64)
    np.add.at(change, uses.first, uses.payload_bytes)
    np.add.at(change, uses.last + 1, -uses.payload_bytes)
    return int(np.cumsum(change).max()) + UNDER_WAY * int(uses.payload_bytes.max())
