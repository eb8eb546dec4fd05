"""The memory that a plan needs, and the group size that would fit."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.errors import PlanTooLarge
from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.shuffle.group_memory import UNDER_WAY
from dieselfs.shuffle.order import ShuffleParameters, shuffle_order
from metadata.snapshot import Snapshot

_MIB: Final = 1 << 20


def require_room(
    uses: ChunkUses, group_start: npt.NDArray[np.int64], memory_bytes: int, readers: int = 1
) -> None:
    """Raise `PlanTooLarge` if a reader's share of `memory_bytes` is too small for the plan.

    The largest group and the chunks under way must fit into it.
    """
    if not len(uses):
        return
    share = memory_bytes // readers
    largest = int(uses.payload_bytes.max())
    group = int(uses.group_bytes(group_start).max())
    needed = group + min(UNDER_WAY * largest, int(uses.payload_bytes.sum()) - group)
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
    """Do the same for a shuffled order of a snapshot."""
    order = shuffle_order(
        snapshot.chunk_first_inode,
        parameters.seed,
        parameters.epoch,
        parameters.group_size,
        parameters.rank,
        parameters.world_size,
    )
    require_room(ChunkUses.of(snapshot, order.inodes), order.group_start, memory_bytes)


def _mib(size: int, *, down: bool = False) -> str:
    return f"{size // _MIB if down else -(-size // _MIB)} MiB"
