"""The eviction of node memory while members tell the orders in which they will read.

With one order the block whose next use is farthest is evicted (Belady 1966). Members that read side
by side each tell an order. A block is then worth what its soonest use by any of them is. So the
time of each use is predicted, from the member's position and its share of the recent uses. Time
counts in uses of all members: it stands still while nobody reads, and needs no clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol

from dieselfs.cache.node.block_eviction import Owns, nothing_owned, unmapped_first, until

NEVER: Final = 1 << 62
"""The next use of a block that is not used again."""
_RANKED_PART: Final = 8
"""Predictions are made again when a part of as many blocks as are cached was used, an eighth."""
_LEAST_USES: Final = 16
_KEPT_SHARE: Final = 0.75
"""The weight that earlier uses keep in a member's rate, at each prediction."""
_LEAST_RATE: Final = 1 / 64
"""The least share of the uses that a member is expected to make, also if it pauses."""


class KnownOrder:
    """One member's sequence of uses, and how many of them are over."""

    def __init__(self, names: Sequence[str]) -> None:
        """0.08 µs a use."""
        self.used = 0
        self.recent_uses = 0.0
        """The member's uses, the later ones counting more; 0: its rate is not known."""
        self.next_uses: dict[str, int] = {}
        """The position of the first use that is not over; names without one are missing."""
        self._names = names
        self._use_after = [NEVER] * len(names)
        """For each position, the position of the next use of the same name."""
        for position in range(len(names) - 1, -1, -1):
            name = names[position]
            self._use_after[position] = self.next_uses.get(name, NEVER)
            self.next_uses[name] = position

    def next_use(self, name: str) -> int:
        """Return the position of the block's first use that is not over, or `NEVER`."""
        return self.next_uses.get(name, NEVER)

    def progress(self, used: int, by: Hashable = None, blocks: int = 0) -> Sequence[str]:
        """Note that the first `used` uses are over; return the names of those newly so.

        A lower number changes nothing.
        """
        begin, end = self.used, min(used, len(self._names))
        for position in range(begin, end):
            name, following = self._names[position], self._use_after[position]
            if following == NEVER:
                del self.next_uses[name]
            else:
                self.next_uses[name] = following
        self.used = max(begin, end)
        return self._names[begin:end]


class MergedOrders:
    """The orders of several members, merged by predicted time."""

    def __init__(self, orders: Mapping[Any, KnownOrder]) -> None:
        """Take over the orders, and what they know of their members' rates.

        Members without uses so far are taken to be as fast as the others on average.
        """
        self._orders: dict[Hashable, KnownOrder] = dict(orders)
        known = [order.recent_uses for order in orders.values() if order.recent_uses]
        for order in orders.values():
            order.recent_uses = order.recent_uses or sum(known) / len(known) if known else 1.0
        self._lines: Sequence[tuple[dict[str, int], float, float]] = ()
        """The next uses of each order, the time of its position 0, and that between two uses."""
        self._now = self._predicted_at = 0
        self._predict()

    def next_use(self, name: str) -> float:
        """Return the predicted time of the block's soonest use by any member, or `NEVER`."""
        soonest: float = NEVER
        for next_uses, begin, uses_apart in self._lines:
            position = next_uses.get(name)
            if position is not None and (time := begin + position * uses_apart) < soonest:
                soonest = time
        return soonest

    def progress(self, used: int, by: Hashable, blocks: int) -> Sequence[str] | None:
        """Note a member's progress. See `Uses`."""
        order = self._orders[by]
        newly = order.progress(used)
        order.recent_uses += len(newly)
        self._now += len(newly)
        if self._now - self._predicted_at <= blocks // _RANKED_PART + _LEAST_USES:
            return newly
        self._predict()
        return None

    def _predict(self) -> None:
        """Predict by the present positions and rates."""
        orders = self._orders.values()
        total, lines = sum(order.recent_uses for order in orders), []
        for order in orders:
            uses_apart = 1 / max(_LEAST_RATE, order.recent_uses / total)
            begin = self._now - order.used * uses_apart
            lines.append((order.next_uses, begin, uses_apart))
            order.recent_uses *= _KEPT_SHARE
        self._lines, self._predicted_at = lines, self._now


class Uses(Protocol):
    """The known uses to come: `KnownOrder` or `MergedOrders`."""

    def next_use(self, name: str) -> float:
        """Return when the block is used next, on a scale of its own, or `NEVER`."""
        ...

    def progress(self, used: int, by: Hashable, blocks: int) -> Sequence[str] | None:
        """Note that the first `used` uses of a member are over.

        Return the names of the uses that are newly over. None: predictions have changed, and all
        blocks are to be ranked again, of which `blocks` are cached.
        """
        ...


class FarthestNextUse:
    """Belady's choice for known uses.

    A newcomer never displaces a block that is used as soon as the newcomer or sooner.

    A block that no order names, or not any more, is never used. It is evicted first and
    displaces nothing; but if it is owned, it displaces copies that are never used. No owned block
    is evicted while a copy may be.

    `progress` costs O(log n) for each use that is over, with n cached blocks. The choice of a
    victim costs as much, and new uses O(n). With several orders all blocks are ranked again after
    n/8 uses.
    """

    def __init__(self, uses: Uses, owns: Owns = nothing_owned) -> None:
        self._next_use, self._progress = uses.next_use, uses.progress
        self._owns = owns
        self._lengths: dict[str, int] = {}
        self._copies, self._owned = _ByNextUse(), _ByNextUse()

    def progress(self, used: int, by: Hashable = None) -> None:
        """Note that the first `used` uses of a member are over; a lower number changes nothing."""
        newly = self._progress(used, by, len(self._lengths))
        if newly is None:
            self.regroup()
            return
        for name in newly:
            if name in self._lengths:
                group = self._owned if name in self._owned else self._copies
                group.place(name, self._next_use(name))

    def add(self, name: str, length: int, *, ahead: bool) -> None:
        """See `EvictionPolicy`."""
        self._lengths[name] = length
        group = self._owned if self._owns(name) else self._copies
        group.place(name, self._next_use(name))

    def use(self, name: str) -> None:
        """Do nothing: `progress` tells which uses are over."""

    def remove(self, name: str) -> None:
        """See `EvictionPolicy`."""
        del self._lengths[name]
        self._copies.remove(name)
        self._owned.remove(name)

    def victims(
        self, newcomer: str | None, wanted_bytes: int, mapped: Callable[[str], bool], *, ahead: bool
    ) -> Sequence[str]:
        """See `EvictionPolicy`."""
        sooner = -math.inf if newcomer is None else self._next_use(newcomer)
        groups = [self._copies, self._owned]
        if newcomer is not None and sooner == NEVER:
            groups = [self._copies] if self._owns(newcomer) else []
        chosen: list[str] = []
        for group in groups:
            leaving = until(wanted_bytes, unmapped_first(group.unneeded, mapped), self._lengths)
            wanted_bytes -= sum(self._lengths[name] for name in leaving)
            farther = group.farthest_first(sooner, wanted_bytes, self._lengths)
            wanted_bytes -= sum(self._lengths[name] for name in farther)
            chosen += leaving + farther
        return chosen

    def regroup(self) -> None:
        """See `EvictionPolicy`. O(n log n)."""
        self._copies, self._owned = _ByNextUse(), _ByNextUse()
        for name, length in self._lengths.items():
            self.add(name, length, ahead=False)


class _ByNextUse:
    """Cached blocks, ordered by their next use."""

    def __init__(self) -> None:
        self._next_use: dict[str, float] = {}
        self.unneeded: dict[str, None] = {}
        """The blocks that are never used again, in order of arrival."""
        self._farthest: list[tuple[float, str]] = []
        """A heap of (−next use, name) of the other blocks; some entries are out of date."""

    def __contains__(self, name: str) -> bool:
        return name in self._next_use

    def place(self, name: str, next_use: float) -> None:
        self._next_use[name] = next_use
        if next_use == NEVER:
            self.unneeded[name] = None
        else:
            heapq.heappush(self._farthest, (-next_use, name))

    def remove(self, name: str) -> None:
        self._next_use.pop(name, None)
        self.unneeded.pop(name, None)

    def farthest_first(
        self, sooner: float, wanted_bytes: int, lengths: Mapping[str, int]
    ) -> list[str]:
        """Return blocks that are used later than `sooner`, up to `wanted_bytes`.

        Entries that are out of date are dropped for good.
        """
        found: dict[str, tuple[float, str]] = {}
        while wanted_bytes > 0 and self._farthest and -self._farthest[0][0] > sooner:
            entry = heapq.heappop(self._farthest)
            next_use, name = -entry[0], entry[1]
            if name not in found and self._next_use.get(name) == next_use:
                found[name] = entry
                wanted_bytes -= lengths[name]
        for entry in found.values():
            heapq.heappush(self._farthest, entry)
        return list(found)
