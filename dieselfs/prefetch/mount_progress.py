"""The progress of a plan's readers through a mount that fills no pages, from progress probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.prefetch.client_progress import ClientProgress
from dieselfs.prefetch.progress_probes import Events, ProgressProbes
from dieselfs.prefetch.reader_progress import ReaderProgress
from metadata.snapshot import Snapshot

_HELD_BACK: Final = 4
"""The part of the budget that may be kept for readers that are apart: a quarter."""


class MountProgress:
    """The progress of readers; implements `prefetcher.ProgressTracker`.

    `events` is closed with it.
    """

    def __init__(
        self, events: Events, snapshot: Snapshot, budget_bytes: int, tick: Callable[[int], None]
    ) -> None:
        """Create it. `tick` is called with the low progress at each check."""
        self._events, self._snapshot = events, snapshot
        self._budget_bytes, self._tick = budget_bytes, tick
        self._probes = ProgressProbes(events, snapshot.path_of)
        self._at = ReaderProgress()
        self._read_bytes = np.zeros(1, np.int64)
        self._done = ClientProgress(self._surely_read)

    def begin(self, order: npt.NDArray[np.uint32], uses: ChunkUses) -> None:
        """Start an order."""
        columns = self._snapshot.columns
        self._at.begin(uses.read_bytes)
        self._read_bytes = uses.read_bytes
        self._probes.begin(order, columns.length[order], columns.chunk[order])
        self._done.begin(order, uses)

    def arrived(self, chunk: int) -> None:
        """Do nothing: READs find the chunk in node memory."""

    def position(self) -> int:
        """Return the low progress, and watch the probes that come next."""
        at = self._at
        low, high = self._probes.progress(at.reach(self._budget_bytes))
        at.update(low, high, self._budget_bytes // 2, self._probes.advance)
        self._probes.watch(at.leading_position)
        self._done.position()
        self._tick(at.low)
        return at.low

    def leading_position(self) -> int:
        """Return the position of the leading reader."""
        return self._at.leading_position

    def released(self) -> Sequence[int]:
        """Return the chunks that even the slowest reader has surely read."""
        return self._done.released()

    def outside_bytes(self) -> int:
        return 0

    def wake_fds(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        self._events.close()

    def _surely_read(self) -> int:
        return self._at.surely_read(self._read_bytes, self._budget_bytes // _HELD_BACK)
