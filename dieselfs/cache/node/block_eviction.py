"""Eviction policies: they choose the cache blocks to evict for a new one.

They only keep books about names: they use no files, no locks and no clock. There are three
policies:

- *uniform* evicts nothing. If every block is read exactly once in random order, this is as good as
  any other choice (SiloD §2.2). If its budget shrinks, blocks are evicted at random, so what stays
  is a fair sample of the dataset.
- *lru* evicts the least recently used block.
- With known orders, the block whose next use is farthest is evicted (`planned_eviction`).

In a task with peers, a block is *owned* if it is of this node's share, else it is a *copy* of what
another node keeps too. Copies are evicted before owned blocks. Without a plan no owned block is
evicted for a copy: it would have to be fetched from the store again, for all nodes
(docs/decisions/0011-peer-cache.md). A node without peers owns nothing, and all blocks are equal.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, Protocol, TypeAlias

PolicyName: TypeAlias = Literal["uniform", "lru"]
Owns: TypeAlias = Callable[[str], bool]
"""A function that returns whether the block of that name is of this node's share. About 0.1 µs.

Its answer may change over time; see `EvictionPolicy.regroup`.
"""


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

    def __init__(
        self, owns: Owns = nothing_owned, shuffle: Callable[[list[str]], None] = random.shuffle
    ) -> None:
        self._owns, self._shuffle = owns, shuffle
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
        if wanted_bytes <= 0 or (newcomer is not None and not self._owns(newcomer)):
            return []
        names = list(self._lengths)
        if newcomer is None:
            self._shuffle(names)
        copies, owned = _copies_and_owned(names, self._owns)
        groups = [unmapped_first(copies, mapped)]
        if newcomer is None:
            groups.append(unmapped_first(owned, mapped))
        return until(wanted_bytes, chain(*groups), self._lengths)

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
        copies, owned = _copies_and_owned(names, self._owns)
        if newcomer is not None and not self._owns(newcomer):
            return until(wanted_bytes, copies, self._lengths)
        return until(wanted_bytes, chain(copies, owned), self._lengths)

    def regroup(self) -> None:
        """Do nothing: ownership is asked for at each choice."""


def _copies_and_owned(names: Iterable[str], owns: Owns) -> tuple[Iterator[str], Iterable[str]]:
    """Return the copies among the names, and the owned blocks, which are known after the copies.

    Each name is looked up once: the shares may change meanwhile, and no block is in both groups.
    """
    owned: list[str] = []

    def copies() -> Iterator[str]:
        for name in names:
            if owns(name):
                owned.append(name)
            else:
                yield name

    return copies(), owned


def unmapped_first(names: Iterable[str], mapped: Callable[[str], bool]) -> Iterator[str]:
    """Yield the names, those last that are mapped."""
    still_mapped = []
    for name in names:
        if mapped(name):
            still_mapped.append(name)
        else:
            yield name
    yield from still_mapped


def until(wanted_bytes: int, names: Iterable[str], lengths: dict[str, int]) -> list[str]:
    """Return the first of the names that have `wanted_bytes` together, or all of them."""
    chosen: list[str] = []
    for name in names:
        if wanted_bytes <= 0:
            break
        chosen.append(name)
        wanted_bytes -= lengths[name]
    return chosen
