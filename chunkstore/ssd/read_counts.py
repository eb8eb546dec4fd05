"""Counts of hits and misses of each dataset on a tier.

Readers add to a dictionary. The process publishes the counts to the other processes now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(slots=True)
class ReadCount:
    """The counts of one dataset.

    Readers add to it without a lock, so one of many concurrent increments may be lost.
    """

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0

    def less(self, other: ReadCount) -> ReadCount:
        """Return these counts less the others."""
        return ReadCount(
            self.hits - other.hits, self.hit_bytes - other.hit_bytes, self.misses - other.misses
        )


_NOTHING: Final = ReadCount()


class ReadCounts:
    """The counts of one process, and what is new since the last `take`. 0.2 µs a read."""

    def __init__(self) -> None:
        self._of: dict[bytes, ReadCount] = {}
        self._taken: dict[bytes, ReadCount] = {}
        """What `take` has returned so far, in sum."""

    def hit(self, dataset: bytes, length: int) -> None:
        """Count a read of `length` bytes that the tier answered."""
        count = self._of.get(dataset) or self._of.setdefault(dataset, ReadCount())
        count.hits += 1
        count.hit_bytes += length

    def miss(self, dataset: bytes) -> None:
        """Count a read that the tier could not answer."""
        count = self._of.get(dataset) or self._of.setdefault(dataset, ReadCount())
        count.misses += 1

    def take(self) -> dict[bytes, ReadCount]:
        """Return what was counted since the last `take`, by dataset.

        Rows stay where they are: a thread may be adding to one just now. One thread at a time may
        call it.
        """
        former = self._taken
        self._taken = {dataset: replace(count) for dataset, count in dict(self._of).items()}
        return {
            dataset: count.less(former.get(dataset, _NOTHING))
            for dataset, count in self._taken.items()
            if count != former.get(dataset)
        }
