"""Which pieces leave for a newcomer. Pure bookkeeping over names: no files, no locks, no clock.

Three answers: nothing (uniform caching: what is in stays, which is as good as any choice when every piece is read exactly
once in random order, SiloD §2.2), the least recently used, and with a known order the one whose next use is farthest (Belady 1966).

Where nodes keep a dataset between them, a piece is either of this node's share (*owned*), or a *copy* of what another node keeps too. Copies leave
before owned pieces, and without a plan nothing owned leaves for a copy: it would have to come from the store again, for all nodes
(docs/decisions/0011-peer-cache.md). Alone a node owns nothing, and all are equal.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, filterfalse
from typing import Final, Literal, Protocol, TypeAlias

PolicyName: TypeAlias = Literal["uniform", "lru"]
Owns: TypeAlias = Callable[[str], bool]
"""Whether the piece of a name is of this node's share. It may change its mind; see `EvictionPolicy.regroup`. About 0.1 µs."""

_NEVER: Final = 1 << 62


class EvictionPolicy(Protocol):
    """Knows the pieces that are held, since it is told of each that comes and goes. One thread at a time."""

    def add(self, name: str, length: int, *, ahead: bool) -> None:
        """It is held from now on, and counts as just used unless it was fetched `ahead` of any reader."""
        ...

    def use(self, name: str) -> None:
        """A reader asked for it, or mapped it."""
        ...

    def remove(self, name: str) -> None:
        """It is not held any more."""
        ...

    def victims(
        self, newcomer: str | None, wanted_bytes: int, mapped: Callable[[str], bool], *, ahead: bool
    ) -> Sequence[str]:
        """Who leaves, first things first, until `wanted_bytes` are reached or nobody else may leave for this newcomer.

        Of pieces of equal merit those that are not `mapped` go first. None as the newcomer: the budget has shrunk, and anybody may leave.
        """
        ...

    def regroup(self) -> None:
        """What is owned has changed."""
        ...


def nothing_owned(name: str) -> bool:
    """`Owns` of a node that is alone."""
    return False


def policy_of(name: PolicyName, owns: Owns = nothing_owned) -> EvictionPolicy:
    return Uniform(owns) if name == "uniform" else LeastRecentlyUsed(owns)


class Uniform:
    """What is in stays, but for copies where something owned wants in. Choosing looks at all that is held."""

    def __init__(self, owns: Owns = nothing_owned) -> None:
        self._owns = owns
        self._lengths: dict[str, int] = {}

    def add(self, name: str, length: int, *, ahead: bool) -> None:
        self._lengths[name] = length

    def use(self, name: str) -> None:
        pass

    def remove(self, name: str) -> None:
        del self._lengths[name]

    def victims(
        self, newcomer: str | None, wanted_bytes: int, mapped: Callable[[str], bool], *, ahead: bool
    ) -> Sequence[str]:
        if newcomer is not None and not self._owns(newcomer):
            return []
        groups = [_unmapped_first(filterfalse(self._owns, self._lengths), mapped)]
        if newcomer is None:
            groups.append(_unmapped_first(filter(self._owns, self._lengths), mapped))
        return _until(wanted_bytes, chain(*groups), self._lengths)

    def regroup(self) -> None:
        pass


class LeastRecentlyUsed:
    """What was fetched ahead does not displace what was fetched ahead and still waits for its reader: that one is used sooner."""

    def __init__(self, owns: Owns = nothing_owned) -> None:
        self._owns = owns
        self._lengths: OrderedDict[str, int] = OrderedDict()
        self._waiting: set[str] = set()

    def add(self, name: str, length: int, *, ahead: bool) -> None:
        self._lengths[name] = length
        if ahead:
            self._waiting.add(name)

    def use(self, name: str) -> None:
        self._lengths.move_to_end(name)
        self._waiting.discard(name)

    def remove(self, name: str) -> None:
        del self._lengths[name]
        self._waiting.discard(name)

    def victims(
        self, newcomer: str | None, wanted_bytes: int, mapped: Callable[[str], bool], *, ahead: bool
    ) -> Sequence[str]:
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
        pass


class FarthestNextUse:
    """Belady's choice for a known sequence of uses. A newcomer never displaces what is used as soon as itself, or sooner.

    What the sequence does not name (any more) is never used: it leaves first, and displaces nothing, unless it is owned: then it displaces copies
    that are never used. Of owned pieces none leaves while a copy may. Telling of a use that is over
    costs O(log n) of the n pieces held, choosing a victim as much; a new sequence O(its length).
    """

    def __init__(self, names: Sequence[str], owns: Owns = nothing_owned) -> None:
        self._names = names
        self._owns = owns
        self._used = 0
        self._next_use: dict[str, int] = {}
        """Position of the first use that is not over; a name without one is not in it."""
        self._use_after = [_NEVER] * len(names)
        """Position of the next use of the same name, for each position."""
        for position in range(len(names) - 1, -1, -1):
            name = names[position]
            self._use_after[position] = self._next_use.get(name, _NEVER)
            self._next_use[name] = position
        self._lengths: dict[str, int] = {}
        self._copies, self._owned = _ByNextUse(), _ByNextUse()

    def progress(self, used: int) -> None:
        """The first `used` uses are over; fewer than before changes nothing."""
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
        self._lengths[name] = length
        group = self._owned if self._owns(name) else self._copies
        group.place(name, self._next_use.get(name, _NEVER))

    def use(self, name: str) -> None:
        pass

    def remove(self, name: str) -> None:
        del self._lengths[name]
        self._copies.remove(name)
        self._owned.remove(name)

    def victims(
        self, newcomer: str | None, wanted_bytes: int, mapped: Callable[[str], bool], *, ahead: bool
    ) -> Sequence[str]:
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
        """O(n log n)."""
        self._copies, self._owned = _ByNextUse(), _ByNextUse()
        for name, length in self._lengths.items():
            self.add(name, length, ahead=False)


class _ByNextUse:
    """Pieces that are held, by their next use."""

    def __init__(self) -> None:
        self._next_use: dict[str, int] = {}
        self.unneeded: dict[str, None] = {}
        """Never used again, in order of arrival."""
        self._farthest: list[tuple[int, str]] = []
        """A heap of (−next use, name) of the others, with entries that are out of date."""

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
        """Of those used later than `sooner`. Entries that are out of date are dropped for good."""
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
    """The first of the names that have `wanted_bytes` together, or all of them."""
    chosen: list[str] = []
    for name in names:
        if wanted_bytes <= 0:
            break
        chosen.append(name)
        wanted_bytes -= lengths[name]
    return chosen
