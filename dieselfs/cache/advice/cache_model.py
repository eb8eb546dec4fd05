"""A model of the SSD tier: what is cached, in regions that are written and evicted as a whole.

The tier's own rules are here in small. A region has a size, takes chunks until it is full, and is
evicted in LRU or FIFO order, or by the predicted next uses of its chunks. In the last case ranks
are computed at each refresh and kept until the next one, as the tier does, and chunks that are used
soon share no region with others. Without predictions it is in LRU order.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.region_rank import SOON, fill_class, region_ranks

EvictionOrder = Literal["lru", "fifo", "next-use"]
Predict = Callable[[Sequence[int]], npt.NDArray[np.float64] | None]
"""A function from segments' keys to their next uses (`CachePolicy.next_uses`)."""


@dataclass(slots=True)
class _Region:
    reserved_bytes: int
    bytes: int = 0
    rows: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)


class RegionCache:
    """Cached segments by region. A segment is named by its key, and told back as a caller's row."""

    def __init__(
        self,
        cache_bytes: int,
        region_bytes: int = 0,
        order: EvictionOrder = "lru",
        predict: Predict = lambda keys: None,
    ) -> None:
        """`region_bytes` 0: each segment is evicted alone."""
        self._cache_bytes = cache_bytes
        self._region_bytes = region_bytes
        self._is_lru = order != "fifo"
        self._predict = predict if order == "next-use" else lambda keys: None
        self._region_of: dict[int, int] = {}
        self._regions: OrderedDict[int, _Region] = OrderedDict()
        self._open: dict[int, int] = {}
        """The open region of each class."""
        self._reserved_bytes = 0
        self._largest_bytes = max(1, region_bytes)
        self._born = 0
        self._now = 0.0
        self._rank_of: dict[int, float] = {}
        """The current rank of each closed region."""
        self._ranked: list[tuple[float, int, int]] | None = None
        """A heap of closed regions: less rank, less age, number. None: there is no prediction."""

    def __len__(self) -> int:
        """Return how many regions there are at most, given the largest one so far."""
        return max(1, self._cache_bytes // self._largest_bytes)

    def hit(self, key: int) -> bool:
        """Return whether the segment is cached, and count that as a use of its region."""
        region = self._region_of.get(key)
        if region is None:
            return False
        if self._is_lru:
            self._regions.move_to_end(region)
        if self._ranked is not None and region not in self._open.values():
            self._rank(region)
        return True

    def fits(self, length: int) -> bool:
        """Return whether a segment of that length can be cached at all."""
        return max(length, self._region_bytes) <= self._cache_bytes

    def insert(self, key: int, length: int, row: int) -> list[int]:
        """Add a segment that fits; return the rows of those that had to make room."""
        kind = self._class_of(key)
        number = self._open.get(kind)
        if number is not None:
            region = self._regions[number]
            if region.bytes + length <= region.reserved_bytes:
                if self._is_lru:
                    self._regions.move_to_end(number)
                self._add(kind, key, length, row)
                return []
        reserved_bytes = max(length, self._region_bytes)
        self._close(kind)
        evicted = self._make_room(reserved_bytes)
        self._begin_region(reserved_bytes, kind)
        self._add(kind, key, length, row)
        return evicted

    def _class_of(self, key: int) -> int:
        if self._ranked is None or not self._region_bytes:
            return SOON
        next_use = self._predict([key])
        if next_use is None:
            return SOON
        return fill_class(float(next_use[0]), self._now, self.evicts_next(), len(self))

    def _add(self, kind: int, key: int, length: int, row: int) -> None:
        number = self._open[kind]
        region = self._regions[number]
        region.bytes += length
        region.rows.append(row)
        region.keys.append(key)
        self._region_of[key] = number
        if region.bytes >= region.reserved_bytes:
            self._close(kind)

    def _begin_region(self, reserved_bytes: int, kind: int) -> None:
        number = self._born
        self._born += 1
        self._regions[number] = _Region(reserved_bytes)
        self._reserved_bytes += reserved_bytes
        self._largest_bytes = max(self._largest_bytes, reserved_bytes)
        self._open[kind] = number

    def _close(self, kind: int) -> None:
        number = self._open.pop(kind, None)
        if number is not None and self._ranked is not None:
            self._rank(number)

    def _make_room(self, wanted_bytes: int) -> list[int]:
        evicted: list[int] = []
        while self._reserved_bytes + wanted_bytes > self._cache_bytes:
            evicted += self._evict(self._victim())
        return evicted

    def _rank(self, number: int) -> None:
        keys = self._regions[number].keys
        uses = self._predict(keys)
        if uses is not None and self._ranked is not None:
            rank = float(region_ranks(uses, np.zeros(len(keys), np.int64), 1, self._now)[0])
            if self._rank_of.get(number) != rank:
                self._rank_of[number] = rank
                heapq.heappush(self._ranked, (-rank, -number, number))

    def _victim(self) -> int:
        if self._ranked is not None:
            self._drop_evicted()
            if self._ranked:
                return heapq.heappop(self._ranked)[2]
        taken = self._open.values()
        return next(
            (each for each in self._regions if each not in taken), next(iter(self._regions))
        )

    def _drop_evicted(self) -> None:
        """Drop entries of regions that were evicted, or whose rank has changed."""
        while self._ranked and self._rank_of.get(self._ranked[0][2]) != -self._ranked[0][0]:
            heapq.heappop(self._ranked)

    def _evict(self, number: int) -> list[int]:
        region = self._regions.pop(number)
        self._rank_of.pop(number, None)
        self._reserved_bytes -= region.reserved_bytes
        self._open = {kind: each for kind, each in self._open.items() if each != number}
        for key in region.keys:
            del self._region_of[key]
        return region.rows

    def refresh(self, now: float) -> None:
        """Rank all closed regions by what is predicted at this time."""
        self._now = now
        numbers = list(self._regions.keys() - set(self._open.values()))
        keys = [key for number in numbers for key in self._regions[number].keys]
        uses = self._predict(keys)
        if uses is None:
            self._ranked = None
            return
        sizes = [len(self._regions[number].keys) for number in numbers]
        regions = np.repeat(np.arange(len(numbers)), sizes)
        ranks = region_ranks(uses, regions, len(numbers), now).tolist()
        self._rank_of = dict(zip(numbers, ranks, strict=True))
        self._ranked = [
            (-rank, -number, number) for rank, number in zip(ranks, numbers, strict=True)
        ]
        heapq.heapify(self._ranked)

    def evicts_next(self) -> float | None:
        """Return the rank of the region that is evicted next; None: there is room for one."""
        if self._ranked is None:
            return None
        self._drop_evicted()
        if not self._ranked or self._reserved_bytes + self._largest_bytes <= self._cache_bytes:
            return None
        return -self._ranked[0][0]
