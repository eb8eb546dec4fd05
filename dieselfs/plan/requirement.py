"""Whether a plan fits into the memory given, and which group size would."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.errors import PlanTooLarge
from dieselfs.plan.chunk_uses import ChunkUses
from dieselfs.shuffle import ShuffleParameters, shuffle_order
from metadata.snapshot import Snapshot

UNDER_WAY: Final = 2
"""Chunks beside the group that is read: fewer, and the store is idle between two fetches."""


def require_room(uses: ChunkUses, group_start: npt.NDArray[np.int64], memory_bytes: int) -> None:
    """Raise `PlanTooLarge` unless the largest group and the chunks under way fit into `memory_bytes`."""
    if not len(uses):
        return
    largest = int(uses.payload_bytes.max())
    group = int(uses.group_bytes(group_start).max())
    needed = group + min(UNDER_WAY * largest, int(uses.payload_bytes.sum()) - group)
    if needed <= memory_bytes:
        return
    fits = memory_bytes // largest - UNDER_WAY
    raise PlanTooLarge(
        f"this order needs {_mib(needed)} of memory, its largest group of chunks and {UNDER_WAY} chunks under way; there are {_mib(memory_bytes)}",
        f"give it {_mib(needed)}, or use a group size of {fits}"
        if fits > 0
        else f"give it {_mib(needed)}; a group of one chunk needs {_mib((1 + UNDER_WAY) * largest)}",
    )


def _mib(size: int) -> str:
    return f"{-(-size // (1 << 20))} MiB"


def require_room_for(snapshot: Snapshot, parameters: ShuffleParameters, memory_bytes: int) -> None:
    """The same for a shuffled order of a snapshot."""
    order = shuffle_order(
        snapshot.chunk_first_inode,
        parameters.seed,
        parameters.epoch,
        parameters.group_size,
        parameters.rank,
        parameters.world_size,
    )
    require_room(ChunkUses.of(snapshot, order.inodes), order.group_start, memory_bytes)
