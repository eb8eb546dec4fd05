"""Readers of a plan through a mount that fills no pages: how far they are is told by their READs.

Each file's first READ is seen, since its pages are not in the cache; the foremost one tells the
position. A READ far ahead of it is taken for somebody else's, unless the next one is there too: the
kernel may have had the pages of all files in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.plan.chunk_uses import ChunkUses
from dieselfs.plan.client_readers import ClientReaders

_NOT_PLANNED = 0xFFFFFFFF


class RequestReaders:
    """Implements `follower.Readers`."""

    def __init__(self, files: int, budget_bytes: int, tick: Callable[[int], None]) -> None:
        """The snapshot has so many `files`. A READ more than `budget_bytes` ahead is far ahead.
        `tick` is told the position at each look.
        """
        self._budget_bytes, self._tick = budget_bytes, tick
        self._files = files
        self._columns: _Columns | None = None
        self._foremost = 0
        self._far_ahead: int | None = None
        """Where the last READ was, if that was far ahead."""
        self._lock = threading.Lock()
        self._readers = ClientReaders(lambda: self._foremost)

    def note_read(self, inode: int) -> None:
        """A file of the snapshot is READ. From any thread; 1 µs."""
        columns = self._columns
        if columns is None:
            return
        position = int(columns.position_of[inode])
        if position == _NOT_PLANNED or position < self._foremost:
            return
        at = columns.read_bytes[position]
        with self._lock:
            near = [other for other in (self._foremost, self._far_ahead) if other is not None]
            if any(abs(at - columns.bytes_before(other)) <= self._budget_bytes for other in near):
                self._foremost, self._far_ahead = max(self._foremost, position + 1), None
            else:
                self._far_ahead = position

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        position_of = np.full(self._files, _NOT_PLANNED, np.uint32)
        position_of[order] = np.arange(len(order), dtype=np.uint32)
        with self._lock:
            self._foremost, self._far_ahead = 0, None
            self._columns = _Columns(position_of, uses.read_bytes)
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
        """Do nothing: it owns nothing."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of one order: other threads see all of it or nothing."""

    position_of: npt.NDArray[np.uint32]
    """By file."""
    read_bytes: npt.NDArray[np.int64]

    def bytes_before(self, position: int) -> int:
        """Bytes of the files before a position, which may have been noted for another order just
        now.
        """
        return int(self.read_bytes[min(position, len(self.read_bytes) - 1)])
