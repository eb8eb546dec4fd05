"""The memory that a group size needs in any epoch of any seed.

With it no plan of that group size is refused (`dieselfs.prefetch.requirement`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from metadata.snapshot import Snapshot

UNDER_WAY: Final = 2
"""The chunks beside the group that is read: with fewer the store is idle between two fetches."""


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The memory for each group size.

    It is the payload of the largest chunks that can meet in a group, and of those under way. Chunks
    above 16 MiB need none: one file needs room at its turn alone, and many are read by ranges.
    """

    chunks: int
    """The largest group size: all chunks that hold a file that is read."""
    needed: npt.NDArray[np.int64]
    """Bytes for groups of 1, 2, 3, … chunks; larger groups need no more than the last."""

    def of(self, group_size: int) -> int:
        """Return the bytes that a group size needs."""
        return int(self.needed[min(group_size, len(self.needed)) - 1]) if len(self.needed) else 0

    def largest_group(self, memory_bytes: int) -> int:
        """Return the largest group size that needs at most `memory_bytes`; 0 if none does.

        If there is memory for all chunks, it is their number.
        """
        fitting = int(np.searchsorted(self.needed, memory_bytes, "right"))
        return self.chunks if fitting == len(self.needed) else fitting


def group_memory(snapshot: Snapshot, read: npt.NDArray[np.bool_]) -> GroupMemory:
    """Return the memory for the chunks that hold a file in `read`, a mask by inode."""
    chunks = np.flatnonzero(np.bincount(snapshot.columns.chunk[read]))
    payload = snapshot.columns.chunk_payload_bytes[chunks].astype(np.int64)
    payload = np.sort(payload[(payload > 0) & (payload <= MAX_WHOLE_BYTES)])[::-1]
    group = np.cumsum(payload)
    needed = np.minimum(group + UNDER_WAY * payload[:1], group[-1:])
    return GroupMemory(len(chunks), needed)
