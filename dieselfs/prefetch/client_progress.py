"""The progress of readers that map chunks from node memory.

Their plan files give their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dieselfs.prefetch.chunk_uses import ChunkUses


class ClientProgress:
    """The `ProgressTracker` of clients.

    A chunk is released when its last file has been read.
    """

    def __init__(self, position: Callable[[], int]) -> None:
        """`position` returns how many files of the order are read."""
        self._read_position = position
        self._position = 0
        self._by_last: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._last: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._done = 0

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        """See `ProgressTracker`."""
        in_turn = np.argsort(uses.last)
        self._by_last, self._last = uses.chunks[in_turn], uses.last[in_turn]
        self._position = self._done = 0

    def position(self) -> int:
        """See `ProgressTracker`."""
        self._position = self._read_position()
        return self._position

    def leading_position(self) -> int:
        """See `ProgressTracker`. It is the last `position`."""
        return self._position

    def arrived(self, chunk: int) -> None:
        """Do nothing: readers find the chunk by its name."""

    def released(self) -> Sequence[int]:
        """See `ProgressTracker`."""
        done = int(np.searchsorted(self._last, self._position, "left"))
        chunks: list[int] = self._by_last[self._done : done].tolist()
        self._done = max(self._done, done)
        return chunks

    def outside_bytes(self) -> int:
        """Return 0: clients keep all bytes in node memory."""
        return 0

    def wake_fds(self) -> Sequence[int]:
        """Return none: a position is a word in memory."""
        return ()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
