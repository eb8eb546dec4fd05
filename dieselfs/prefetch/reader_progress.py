"""The positions of the readers of an order, from progress probes.

They are those of the slowest and the leading reader, and how far behind the slowest position one
reader may be nevertheless. Several workers read batches side by side, and the last files of a
batch, behind its last probe, may be read long after the low progress has passed them. So what
counts as surely read stays behind it as far as readers were seen apart lately.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.prefetch.close_events import CloseEvents
from dieselfs.prefetch.progress_probes import ProgressProbes
from metadata.snapshot import Snapshot

_APART_AT_FIRST: Final = 512
"""Files, until something is known of the readers."""
_APART_FOR: Final = 8
"""The decay of the distance.

Readers are taken to be as far apart as they were, less an eighth of what they have read since.
"""


class ReaderProgress:
    """The positions of one order after the other."""

    def __init__(self, events: CloseEvents, snapshot: Snapshot) -> None:
        """Create it; `events` is the caller's to close."""
        self._columns = snapshot.columns
        self.probes = ProgressProbes(events, snapshot.path_of)
        self.low = self.leading_position = 0
        """Files that all readers, and the leading reader, have read."""
        self.apart = _APART_AT_FIRST
        """Files by which readers are apart."""
        self.read_bytes = np.zeros(1, np.int64)
        """See `ChunkUses`."""

    def begin(self, order: npt.NDArray[np.uint32], read_bytes: npt.NDArray[np.int64]) -> None:
        """Start an order; for `read_bytes` see `ChunkUses`."""
        self.low = self.leading_position = 0
        self.read_bytes = read_bytes
        self.probes.begin(order, self._columns.length[order], self._columns.chunk[order])

    @property
    def is_at_end(self) -> bool:
        """True if all readers have read the order."""
        return self.low >= len(self.read_bytes) - 1

    def look(self, ahead_bytes: int, most_bytes: int) -> None:
        """Look at the probes.

        A reader reads at most `ahead_bytes` ahead. Readers may skip a probe (a last batch that is
        dropped): if the low progress falls back by more than `most_bytes`, it is moved on.
        """
        read = self.read_bytes
        ahead = read[self.leading_position] + ahead_bytes
        low, high = self.probes.progress(int(np.searchsorted(read, ahead, "right")))
        self.leading_position = max(self.leading_position, low, high)
        self.apart = max(self.leading_position - low, self.apart - (low - self.low) // _APART_FOR)
        if read[self.leading_position] - read[low] > most_bytes:
            forced = int(np.searchsorted(read, read[self.leading_position] - most_bytes, "left"))
            self.probes.advance(forced)
            low = max(low, forced)
            self.apart = 0  # they were not apart: no reader reads what is between
        self.low = low

    def watch(self) -> None:
        """Watch the probes that come next."""
        self.probes.watch(self.leading_position)

    def surely_read(self, before: npt.NDArray[np.int64], held_back_bytes: int) -> int:
        """Return how many files even a reader that is apart has read.

        It may be no more than `held_back_bytes` behind the low progress. `before` has the bytes
        before each position.
        """
        limit = int(np.searchsorted(before, before[self.low] - held_back_bytes, "left"))
        return max(0, self.low - self.apart, limit)
