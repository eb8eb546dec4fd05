"""The chunks that a reading order needs: which, from when to when, and how many bytes.

All of it is arithmetic on columns, about 0.1 µs a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from dieselfs.prefetch.plan_file import ReadingPlan
from metadata.snapshot import Snapshot

_FILES_AT_ONCE: Final = 1 << 16
"""Columns between the order and the result are no longer than this."""


@dataclass(frozen=True, slots=True)
class ChunkUses:
    """The chunks of one order, each once, in the order of their first use.

    A chunk above 16 MiB is among them if it is one file, which is fetched in blocks. Those of many
    files are not: their files are read by ranges when their turn comes.
    """

    chunks: npt.NDArray[np.int64]
    """Chunk numbers of the snapshot."""
    first: npt.NDArray[np.int64]
    """The position in the order of the first file that lies in the chunk."""
    last: npt.NDArray[np.int64]
    """The position of the last one."""
    payload_bytes: npt.NDArray[np.int64]
    """The bytes that the chunk takes in node memory."""
    read_bytes: npt.NDArray[np.int64]
    """For each position, the bytes of the files before it that lie in these chunks.

    It has one more item than there are files.
    """

    @classmethod
    def of(cls, snapshot: Snapshot, inodes: npt.NDArray[np.uint32]) -> ChunkUses:
        """Return the chunks that these files of a snapshot use, in this order."""
        columns = snapshot.columns
        payload = columns.chunk_payload_bytes.astype(np.int64)
        is_one_file = np.diff(snapshot.chunk_first_inode.astype(np.int64)) == 1
        is_fetched = (payload > 0) & ((payload <= MAX_WHOLE_BYTES) | is_one_file)
        last = np.full(len(payload), -1, np.int64)
        first = np.full(len(payload), -1, np.int64)
        read_bytes = np.zeros(len(inodes) + 1, np.int64)
        for start in reversed(range(0, len(inodes), _FILES_AT_ONCE)):
            some = inodes[start : start + _FILES_AT_ONCE]
            number = columns.chunk[some]
            positions = np.arange(start, start + len(some), dtype=np.int64)
            # Of equal indices the last assignment stays.
            first[number[::-1]] = positions[::-1]
            is_last = last[number] < 0
            last[number[is_last]] = positions[is_last]
            lengths = np.where(is_fetched[number], columns.length[some], 0)
            read_bytes[start + 1 : start + 1 + len(some)] = lengths
        np.add.accumulate(read_bytes, out=read_bytes)
        used = np.flatnonzero((last >= 0) & is_fetched)
        used = used[np.argsort(first[used])]
        return cls(
            used,
            first[used],
            last[used],
            payload[used],
            read_bytes,
        )

    def whole(self) -> ChunkUses:
        """Return the uses of chunks that are fetched as a whole: a group must have room for them.

        A large file needs room at its turn alone, and is read by blocks without it.
        """
        kept = self.payload_bytes <= MAX_WHOLE_BYTES
        return replace(
            self,
            chunks=self.chunks[kept],
            first=self.first[kept],
            last=self.last[kept],
            payload_bytes=self.payload_bytes[kept],
        )

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    def files(self) -> int:
        """The number of files in the order."""
        return len(self.read_bytes) - 1

    def group_bytes(self, group_start: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return for each group the bytes of the chunks that must be in memory while it is read.

        A chunk counts for all groups from that of its first file to that of its last.
        """
        first = np.searchsorted(group_start, self.first, "right") - 1
        last = np.searchsorted(group_start, self.last, "right") - 1
        change = np.zeros(len(group_start) + 1, np.int64)
        np.add.at(change, first, self.payload_bytes)
        np.add.at(change, last + 1, -self.payload_bytes)
        return np.cumsum(change)[: len(group_start) - 1]


class LastUses:
    """The chunks of one order by their last uses."""

    def __init__(self, uses: ChunkUses) -> None:
        in_turn = np.argsort(uses.last)
        self._chunks, self._last, self._done = uses.chunks[in_turn], uses.last[in_turn], 0

    def before(self, position: int) -> list[int]:
        """Return the chunks that are used before this position only, since the last call."""
        first = self._done
        self._done = max(first, int(np.searchsorted(self._last, position, "left")))
        chunks: list[int] = self._chunks[first : self._done].tolist()
        return chunks


def rest_of(plan: ReadingPlan, start: int) -> ReadingPlan:
    """Return the order without its first `start` files."""
    if not start:
        return plan
    later = plan.group_start[plan.group_start > start] - start
    group_start = np.concatenate([[0], later]).astype(np.int64)
    return ReadingPlan(plan.snapshot_id, plan.inodes[start:], group_start, plan.snapshot_path)


def interleaved(plans: Sequence[ReadingPlan]) -> ReadingPlan:
    """Return the orders of several readers that keep pace as one order: a file of each in turn.

    Such readers are the ranks of one job on one node. The groups are those of the longest order:
    each has that order's files and the others' at the same places.
    """
    if len(plans) == 1:
        return plans[0]
    longest = max(plans, key=len)
    turns = np.full((len(longest), len(plans)), -1, np.int64)
    for reader, plan in enumerate(plans):
        turns[: len(plan), reader] = plan.inodes
    in_order = turns.ravel()
    present = in_order >= 0
    before = np.concatenate([[0], np.cumsum(present)])
    return ReadingPlan(
        longest.snapshot_id,
        in_order[present].astype(np.uint32),
        before[longest.group_start * len(plans)],
        longest.snapshot_path,
    )
