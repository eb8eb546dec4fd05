"""How often the readers of each dataset found what they wanted on a tier: counted in a dictionary as they read, told to the other processes now and then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReadCount:
    """Of one dataset. Mutable: whoever counts adds to it, without a lock, so one of many at the same moment may be lost."""

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0


class ReadCounts:
    """Of one process, since they were taken last. 0.2 µs a read."""

    def __init__(self) -> None:
        self._of: dict[bytes, ReadCount] = {}

    def hit(self, dataset: bytes, length: int) -> None:
        count = self._of.get(dataset) or self._of.setdefault(dataset, ReadCount())
        count.hits += 1
        count.hit_bytes += length

    def miss(self, dataset: bytes) -> None:
        count = self._of.get(dataset) or self._of.setdefault(dataset, ReadCount())
        count.misses += 1

    def take(self) -> dict[bytes, ReadCount]:
        """What was counted since, by dataset; counting begins anew."""
        taken, self._of = self._of, {}
        return dict(taken)  # a thread may still be adding to it
