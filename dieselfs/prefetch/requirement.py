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

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory of one plan: its largest group and the chunks that are being fetched."""

    needed_bytes: int = 0
    largest_chunk_bytes: int = 0

    @classmethod
    def of(cls, uses: ChunkUses, group_start: npt.NDArray[np.int64]) -> MemoryNeed:
        """Return the need of an order with these groups."""
        if not len(uses):
            return cls()
        largest, total = int(uses.payload_bytes.max()), int(uses.payload_bytes.sum())
        group = int(uses.group_bytes(group_start).max())
        return cls(group + min(UNDER_WAY * largest, total - group), largest)

    def require(self, memory_bytes: int, readers: int = 1) -> None:
        """Raise `PlanTooLarge` if one reader's share of `memory_bytes` is too small."""
        needed, largest, share = (
            self.needed_bytes,
            self.largest_chunk_bytes,
            memory_bytes // readers,
        )
        if needed <= share:
            return
        fits = share // largest - UNDER_WAY
        budget = f"the budget is {_mib(memory_bytes, down=True)}"
        raise PlanTooLarge(
            f"this order needs {_mib(needed)} of memory, for its largest group of chunks and "
            f"{UNDER_WAY} chunks that are being fetched; "
            + (budget if readers == 1 else f"{budget} for {readers} readers"),
            f"raise the budget to {_mib(needed * readers)}, or use a group size of {fits}"
            if fits > 0
            else f"raise the budget to {_mib(needed * readers)}; a group of one chunk needs"
            f" {_mib((1 + UNDER_WAY) * largest * readers)}",
        )


def require_room_for(snapshot: Snapshot, parameters: ShuffleParameters, memory_bytes: int) -> None:
    """Raise `PlanTooLarge` if this shuffled order of a snapshot needs more memory."""
    order = ListedOrder(snapshot, parameters).shuffled()
    uses = ChunkUses.of(snapshot, order.inodes)
    MemoryNeed.of(uses, order.group_start).require(memory_bytes)


def _mib(size: int, *, down: bool = False) -> str:
    return f"{size // _MIB if down else -(-size // _MIB)} MiB"
