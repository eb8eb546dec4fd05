"""Eviction policies: they choose the cache blocks to evict for a new one.

They only keep books about names: they use no files, no locks and no clock. There are three
policies:

- *uniform* evicts nothing. If every block is read exactly once in random order, this is as good as
  any other choice (SiloD §2.2).
- *lru* evicts the least recently used block.
- With a known order, the block whose next use is farthest is evicted (Belady 1966).

In a task with peers, a block is *owned* if it is of this node's share, else it is a *copy* of what
another node keeps too. Copies are evicted before owned blocks. Without a plan no owned block is
evicted for a copy: it would have to be fetched from the store again, for all nodes
(docs/decisions/0011-peer-cache.md). A node without peers owns nothing, and all blocks are equal.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, filterfalse
from typing import Final, Literal, Protocol, TypeAlias

PolicyName: TypeAlias = Literal["uniform", "lru"]
Owns: TypeAlias = Callable[[str], bool]
"""A function that returns whether the block of that name is of this node's share. About 0.1 µs.

Its answer may change over time; see `EvictionPolicy.regroup`.
"""

_NEVER: Final = 1 << 62


class EvictionPolicy(Protocol):
    """A policy that is told of each block that is inserted and evicted.

    One thread at a time may use it.
    """

    def add(self, name: str, length: int, *, ahead: bool) -> None:
        """Note that a block is cached from now on.

        It counts as just used, unless it was fetched `ahead` of any reader.
        """
        ...

    def use(self, name: str) -> None:
        """Note that a reader asked for the block or mapped it."""
        ...

    def remove(self, name: str) -> None:
        """Note that the block is not cached any more."""
        ...

    def victims(
        self, newcomer: str | None, wanted_bytes: int, mapped: Callable[[str], bool], *, ahead: bool
    ) -> Sequence[str]:
        """Return the blocks to evict, in order, until they have `wanted_bytes` together.

        There are fewer if no other block may be evicted for `newcomer`. If `newcomer` is None, the
        budget has shrunk, and every block may be evicted. Among blocks of equal merit those that
        are not `mapped` come first.
        """
        ...

    def regroup(self) -> None:
        """Note that the set of owned blocks has changed."""
        ...


def nothing_owned(name: str) -> bool:
    """Return False: the `Owns` of a node without peers."""
    return False


def policy_of(name: PolicyName, owns: Owns = nothing_owned) -> EvictionPolicy:
    """Return a new policy of that name."""
    return Uniform(owns) if name == "uniform" else LeastRecentlyUsed(owns)


class Uniform:
    """A policy that evicts nothing but copies, and these only for an owned block.

    Its choice looks at all cached blocks.
    """

    def __init__(self, owns: Owns = nothing_owned) -> None:
        self._owns = owns
        self._lengths: dict[str, int] = {}

    def add(self, name: str, length: int, *, ahead: bool) -> None:
        """See `EvictionPolicy`."""
        self._lengths[name] = length

    def use(self, name: str) -> None:
        """Do nothing: uses do not matter."""

    def remove(self, name: str) -> None:
        """See `EvictionPolicy`."""
        del self._lengths[name]

    def victims(
        self, newcomer: str | None, wanted_bytes: int, mapped: Callable[[str], bool], *, ahead: bool
    ) -> Sequence[str]:
        """See `EvictionPolicy`. Without a newcomer owned blocks follow the copies."""
        if newcomer is not None and not self._owns(newcomer):
            return []
        groups = [_unmapped_first(filterfalse(self._owns, self._lengths), mapped)]
        if newcomer is None:
            groups.append(_unmapped_first(filter(self._owns, self._lengths), mapped))
        return _until(wanted_bytes, chain(*groups), self._lengths)

    def regroup(self) -> None:
        """Do nothing: ownership is asked for at each choice."""


class LeastRecentlyUsed:
    """A policy that evicts the least recently used block.

    A prefetched block does not displace another prefetched block that still waits for its reader,
    since that one is used sooner.
    """

    def __init__(self, owns: Owns = nothing_owned) -> None:
        self._owns = owns
        self._lengths: OrderedDict[str, int] = OrderedDict()
        self._waiting: set[str] = set()

    def add(self, name: str, length: int, *, ahead: bool) -> None:
        """See `EvictionPolicy`."""
        self._lengths[name] = length
        if ahead:
            self._waiting.add(name)

    def use(self, name: str) -> None:
        """See `EvictionPolicy`."""
        self._lengths.move_to_end(name)
        self._waiting.discard(name)

    def remove(self, name: str) -> None:
        """See `EvictionPolicy`."""
        del self._lengths[name]
        self._waiting.discard(name)

    def victims(
        self, newcomer: str | None, wanted_bytes: int, mapped: Callable[[str], bool], *, ahead: bool
    ) -> Sequence[str]:
        """See `EvictionPolicy`."""
        names = (name for name in self._lengths if not (ahead and name in self._waiting))
        copies = filterfalse(self._owns, names)
        if newcomer is not None and not self._owns(newcomer):
            return _until(wanted_bytes, copies, self._lengths)
        owned = (
            name
            for name in self._lengths
            if self._owns(name) and not (ahead and name in self._waiting)
        )
        return _until(wanted_bytes, chain(copies, owned), self._lengths)

    def regroup(self) -> None:
        """Do nothing: ownership is asked for at each choice."""


class FarthestNextUse:
    """Belady's choice for a known sequence of uses.

    A newcomer never displaces a block that is used as soon as the newcomer or sooner.

    A block that the sequence does not name, or not any more, is never used. It is evicted first and
    displaces nothing; but if it is owned, it displaces copies that are never used. No owned block
    is evicted while a copy may be.

    `progress` costs O(log n) for each use that is over, with n cached blocks. The choice of a
    victim costs as much, and a new sequence O(its length).
    """

    def __init__(self, names: Sequence[str], owns: Owns = nothing_owned) -> None:
        self._names = names
        self._owns = owns
        self._used = 0
        self._next_use: dict[str, int] = {}
        """The position of the first use that is not over; names without one are missing."""
        self._use_after = [_NEVER] * len(names)
        """For each position, the position of the next use of the same name."""
        for position in range(len(names) - 1, -1, -1):
            name = names[position]
            self._use_after[position] = self._next_use.get(name, _NEVER)
            self._next_use[name] = position
        self._lengths: dict[str, int] = {}
        self._copies, self._owned = _ByNextUse(), _ByNextUse()

    def progress(self, used: int) -> None:
        """Note that the first `used` uses are over; a lower number changes nothing."""
        for position in range(self._used, min(used, len(self._names))):
            name, following = self._names[position], self._use_after[position]
            if following == _NEVER:
                del self._next_use[name]
            else:
                self._next_use[name] = following
            if name in self._lengths:
                group = self._owned if name in self._owned else self._copies
                group.place(name, following)
        self._used = max(self._used, min(used, len(self._names)))

    def add(self, name: str, length: int, *, ahead: bool) -> None:
        """See `EvictionPolicy`."""
        self._lengths[name] = length
        group = self._owned if self._owns(name) else self._copies
        group.place(name, self._next_use.get(name, _NEVER))

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
        sooner = -1 if newcomer is None else self._next_use.get(newcomer, _NEVER)
        groups = [self._copies, self._owned]
        if newcomer is not None and sooner == _NEVER:
            groups = [self._copies] if self._owns(newcomer) else []
        chosen: list[str] = []
        for group in groups:
            leaving = _until(wanted_bytes, _unmapped_first(group.unneeded, mapped), self._lengths)
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
        self._next_use: dict[str, int] = {}
        self.unneeded: dict[str, None] = {}
        """The blocks that are never used again, in order of arrival."""
        self._farthest: list[tuple[int, str]] = []
        """A heap of (−next use, name) of the other blocks; some entries are out of date."""

    def __contains__(self, name: str) -> bool:
        return name in self._next_use

    def place(self, name: str, next_use: int) -> None:
        self._next_use[name] = next_use
        if next_use == _NEVER:
            self.unneeded[name] = None
        else:
            heapq.heappush(self._farthest, (-next_use, name))

    def remove(self, name: str) -> None:
        self._next_use.pop(name, None)
        self.unneeded.pop(name, None)

    def farthest_first(
        self, sooner: int, wanted_bytes: int, lengths: Mapping[str, int]
    ) -> list[str]:
        """Return blocks that are used later than `sooner`, up to `wanted_bytes`.

        Entries that are out of date are dropped for good.
        """
        found: dict[str, tuple[int, str]] = {}
        while wanted_bytes > 0 and self._farthest and -self._farthest[0][0] > sooner:
            entry = heapq.heappop(self._farthest)
            next_use, name = -entry[0], entry[1]
            if name not in found and self._next_use.get(name) == next_use:
                found[name] = entry
                wanted_bytes -= lengths[name]
        for entry in found.values():
            heapq.heappush(self._farthest, entry)
        return list(found)


def _unmapped_first(names: Iterable[str], mapped: Callable[[str], bool]) -> Iterator[str]:
    still_mapped = []
    for name in names:
        if mapped(name):
            still_mapped.append(name)
        else:
            yield name
    yield from still_mapped


def _until(wanted_bytes: int, names: Iterable[str], lengths: dict[str, int]) -> list[str]:
    """Return the first of the names that have `wanted_bytes` together, or all of them."""
    chosen: list[str] = []
    for name in names:
        if wanted_bytes <= 0:
            break
        chosen.append(name)
        wanted_bytes -= lengths[name]
    return chosen
