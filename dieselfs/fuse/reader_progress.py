"""Where the readers of an order are: the slowest, the foremost, and how far behind the slowest one
reader may be nevertheless.

Several workers read batches side by side, and the last files of a batch, behind its last probe, may
be read long after the low progress has passed them. So what counts as surely read stays behind it
as far as readers were seen apart lately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

_APART_AT_FIRST: Final = 512
"""Files, until something is known of the readers."""
_APART_FOR: Final = 8
"""Readers are taken to be as far apart as they were, less an eighth of what they have read since.
"""


class ReaderProgress:
    """The positions of one order after the other."""

    def __init__(self) -> None:
        self.low = self.leading_position = 0
        """So many files all readers, and the foremost of them, have read."""
        self.apart = _APART_AT_FIRST
        """Files."""
        self._read = np.zeros(1, np.int64)

    def begin(self, read_bytes: npt.NDArray[np.int64]) -> None:
        """`read_bytes`: see `ChunkUses`."""
        self.low = self.leading_position = 0
        self._read = read_bytes

    def reach(self, ahead_bytes: int) -> int:
        """Return the position up to which a reader may have come if it reads so much at most."""
        return int(
            np.searchsorted(self._read, self._read[self.leading_position] + ahead_bytes, "right")
        )

    def follow(self, low: int, high: int, most_bytes: int, advance: Callable[[int], None]) -> None:
        """Take over what probes tell. Readers may skip a probe (a last batch that is dropped): if
        the low progress falls back by more than `most_bytes`, `advance` moves the probes on.
        """
        read = self._read
        self.leading_position = max(self.leading_position, low, high)
        self.apart = max(self.leading_position - low, self.apart - (low - self.low) // _APART_FOR)
        if read[self.leading_position] - read[low] > most_bytes:
            forced = int(np.searchsorted(read, read[self.leading_position] - most_bytes, "left"))
            advance(forced)
            low = max(low, forced)
            self.apart = 0  # they were not apart: nobody reads what is between
        self.low = low

    def surely_read(self, before: npt.NDArray[np.int64], held_back_bytes: int) -> int:
        """Return how many files even a reader that is apart has read; it may be no more than so
        many bytes behind the low progress. `before`: bytes before each position.
        """
        limit = int(np.searchsorted(before, before[self.low] - held_back_bytes, "left"))
        return max(0, self.low - self.apart, limit)
