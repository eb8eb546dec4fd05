"""Readers of a plan through a mount whose READs Python answers: without the fast path, or with nothing stored ahead.

Each file's first READ is seen, since its pages are not in the cache; the foremost says how far the readers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dieselfs.fuse.inodes import epoch_of, snapshot_inode
from dieselfs.plan.chunk_uses import ChunkUses
from dieselfs.plan.client_readers import ClientReaders

_NOT_PLANNED = 0xFFFFFFFF


class RequestReaders:
    """Implements `follower.Readers`."""

    def __init__(self, epoch: int, files: int, tick: Callable[[int], None]) -> None:
        """Of the mount's epoch that shows the snapshot, which has so many `files`; `tick` is told the position at each look."""
        self._epoch = epoch
        self._position_of: npt.NDArray[np.uint32] = np.full(files, _NOT_PLANNED, np.uint32)
        self._foremost = 0
        self._tick = tick
        self._readers = ClientReaders(lambda: self._foremost)

    def note_read(self, inode: int) -> None:
        """A file of the mount is READ, by the kernel's number. From any thread."""
        if epoch_of(inode) != self._epoch:
            return
        position = int(self._position_of[snapshot_inode(inode)])
        if position != _NOT_PLANNED and position >= self._foremost:
            self._foremost = position + 1

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        position_of = np.full(len(self._position_of), _NOT_PLANNED, np.uint32)
        position_of[order] = np.arange(len(order), dtype=np.uint32)
        self._position_of, self._foremost = position_of, 0
        self._readers.begin(order, uses)

    def arrived(self, chunk: int) -> None:
        """READs find it in node memory."""

    def position(self) -> int:
        position = self._readers.position()
        self._tick(position)
        return position

    def foremost(self) -> int:
        return self._readers.foremost()

    def released(self) -> Sequence[int]:
        return self._readers.released()

    def outside_bytes(self) -> int:
        return 0

    def wake_fds(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        """Nothing is theirs."""
