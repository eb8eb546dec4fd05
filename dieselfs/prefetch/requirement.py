"""The memory that a plan needs, and the group size that would fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.errors import PlanTooLarge
from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.shuffle.group_memory import UNDER_WAY
from dieselfs.shuffle.order import ShuffleParameters
from dieselfs.shuffle.shuffle_lists import ListedOrder
from metadata.snapshot import Snapshot

FETCHES: Final = 8
"""The most fetches at a time.

The store's own limit finds out how many of them the store can handle
(`chunkstore.stores.adaptive_limit`).
"""
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory of one plan: its largest group and the chunks that are being fetched."""

    needed_bytes: int = 0
    largest_chunk_bytes: int = 0
    total_bytes: int = 0
    """All chunks of the order; no order needs more."""

    @classmethod
    def of(cls, uses: ChunkUses, group_start: npt.NDArray[np.int64]) -> MemoryNeed:
        """Return the need of an order with these groups. Large files need nothing."""
        uses = uses.whole()
        if not len(uses):
            return cls()
        largest, total = int(uses.payload_bytes.max()), int(uses.payload_bytes.sum())
        group = int(uses.group_bytes(group_start).max())
        return cls(group + min(UNDER_WAY * largest, total - group), largest, total)

    @property
    def window_bytes(self) -> int:
        """The memory with which fetching never waits for room, as far as groups go.

        The next group is fetched while one is read, and as many chunks are under way as are
        requested at a time. With less, a chunk that must wait for a byte budget holds up readers.
        """
        under_way = max(0, FETCHES - 2 * UNDER_WAY) * self.largest_chunk_bytes
        return min(2 * self.needed_bytes + under_way, self.total_bytes)

    def require(self, memory_bytes: int, readers: int = 1) -> None:
        """Raise `PlanTooLarge` if one reader's share of `memory_bytes` is too small."""
        needed, share = self.needed_bytes, memory_bytes // readers
        if needed <= share:
            return
        what = f"its largest group of chunks and {UNDER_WAY} chunks that are being fetched"
        if needed == self.total_bytes:
            what = "all of its chunks"
        among = "" if readers == 1 else f" for {readers} readers"
        raise PlanTooLarge(
            f"this order needs {_mib(needed)} of memory, for {what}; the budget is "
            f"{_mib(memory_bytes, down=True)}{among}",
            f"raise the budget to {_mib(needed * readers)}{self._smaller(share, readers)}",
        )

    def _smaller(self, share_bytes: int, readers: int) -> str:
        """Return the end of a hint: the smaller group that fits, or what the smallest needs.

        It is empty if the smallest group needs no less.
        """
        largest = self.largest_chunk_bytes
        fits = share_bytes // largest - UNDER_WAY
        if fits > 0:
            return f", or use a group size of {fits}"
        least = min((1 + UNDER_WAY) * largest, self.total_bytes)
        if least == self.needed_bytes:
            return ""
        return f"; a group of one chunk needs {_mib(least * readers)}"


def require_room_for(snapshot: Snapshot, parameters: ShuffleParameters, memory_bytes: int) -> None:
    """Raise `PlanTooLarge` if this shuffled order of a snapshot needs more memory."""
    order = ListedOrder(snapshot, parameters).shuffled()
    uses = ChunkUses.of(snapshot, order.inodes)
    MemoryNeed.of(uses, order.group_start).require(memory_bytes)


def _mib(size: int, *, down: bool = False) -> str:
    return f"{size // _MIB if down else -(-size // _MIB)} MiB"
