"""Readers that map chunks from node memory, and say in their plan files how far they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dieselfs.plan.chunk_uses import ChunkUses


class ClientProgress:
    """Implements `prefetcher.Readers`. A chunk is done when its last file has been read."""

    def __init__(self, position: Callable[[], int]) -> None:
        """`position` reads how many files of the order are done."""
        self._read_position = position
        self._position = 0
        self._by_last: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._last: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._done = 0

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        in_turn = np.argsort(uses.last)
        self._by_last, self._last = uses.chunks[in_turn], uses.last[in_turn]
        self._position = self._done = 0

    def position(self) -> int:
        self._position = self._read_position()
        return self._position

    def leading_position(self) -> int:
        return self._position

    def arrived(self, chunk: int) -> None:
        """They find it by its name."""

    def released(self) -> Sequence[int]:
        done = int(np.searchsorted(self._last, self._position, "left"))
        chunks: list[int] = self._by_last[self._done : done].tolist()
        self._done = max(self._done, done)
        return chunks

    def outside_bytes(self) -> int:
        return 0

    def wake_fds(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        """Nothing is theirs."""
