"""The accounting of a task's budget: which bytes are in files, being fetched, or still mapped.

It uses no files and no locks. Room is reserved before a block is fetched. So the sum stays within
the budget whatever comes back from the store, and whenever it does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from dieselfs.cache.node.block_eviction import EvictionPolicy
from dieselfs.cache.node.planned_eviction import FarthestNextUse

PATIENCE_S: Final = 0.5
"""The time that members get to unmap an evicted block.

A member unmaps it when it maps its next block. A member that has not done so by then still reads
the block, and more blocks are evicted instead.
"""
_REMEMBERED: Final = 1024
"""The number of evictions that are remembered.

A member's message that it maps the block may still arrive after the eviction.
"""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The result of `CacheAccounting.reserve`."""

    granted: bool
    evicted: Sequence[str]
    """The blocks whose files the caller removes, also if nothing was granted."""
    room_expected: bool = False
    """Not granted now, but it can be granted when members have unmapped the evicted blocks."""


@dataclass(slots=True, eq=False)
class _BlockFile:
    """One file, from its reservation until no member maps it any more."""

    name: str
    length: int
    unused_ahead: bool
    """True if it was prefetched and no member has mapped it so far."""
    maps: int = 0
    evicted_at: float | None = None


class CacheAccounting:
    """The accounting of one node memory.

    One thread at a time may use it. Members are any hashable objects.
    """

    def __init__(
        self, budget_bytes: int, policy: EvictionPolicy, clock: Callable[[], float]
    ) -> None:
        self.budget_bytes = budget_bytes
        self._policy = policy
        self._plan: FarthestNextUse | None = None
        self._clock = clock
        self._reserved: dict[str, _BlockFile] = {}
        self._cached: dict[str, _BlockFile] = {}
        self._evicted_mapped: dict[_BlockFile, None] = {}
        """The files that are evicted and still mapped, oldest eviction first."""
        self._maps: dict[Hashable, dict[str, list[_BlockFile]]] = {}
        """The files that each member maps, oldest first.

        A member may map a block and its successor of the same name.
        """
        self._freed: OrderedDict[str, _BlockFile] = OrderedDict()
        """The files that were freed last."""
        self.taken_bytes = 0
        self.reserved_bytes = 0
        self.evictions = self.evicted_bytes = 0
        self.prefetched_used = self.prefetched_wasted = 0

    def __contains__(self, name: str) -> bool:
        return name in self._cached

    def __len__(self) -> int:
        return len(self._cached)

    def names(self) -> Sequence[str]:
        """Return the names of the cached blocks."""
        return list(self._cached)

    def adopt(self, name: str, length: int) -> None:
        """Count a block that was there before this master.

        The budget may be exceeded until `shrink`.
        """
        self.taken_bytes += length
        self._insert(_BlockFile(name, length, unused_ahead=False))

    def reserve(self, name: str, length: int, *, ahead: bool) -> Reservation:
        """Reserve room for a block that is about to be fetched.

        Afterwards call `keep` or `drop`.
        """
        evicted: Sequence[str] = ()
        unmapping_bytes = self._evicted_mapped_bytes(since=self._clock() - PATIENCE_S)
        wanted = self.taken_bytes + length - self.budget_bytes
        if wanted > unmapping_bytes:
            if length > self.budget_bytes:
                return Reservation(False, evicted)
            wanted -= unmapping_bytes
            chosen = self._policy_now().victims(name, wanted, self._is_mapped, ahead=ahead)
            if sum(self._cached[victim].length for victim in chosen) < wanted:
                return Reservation(False, evicted)
            for victim in chosen:
                self._evict(self._cached[victim])
            evicted = chosen
        if self.taken_bytes + length > self.budget_bytes:
            return Reservation(False, evicted, room_expected=True)
        self._reserved[name] = _BlockFile(name, length, unused_ahead=ahead)
        self.taken_bytes += length
        self.reserved_bytes += length
        return Reservation(True, evicted)

    def keep(self, name: str) -> None:
        """Note that the reserved block is in its file."""
        stored = self._reserved.pop(name)
        self.reserved_bytes -= stored.length
        self._insert(stored)

    def drop(self, name: str) -> None:
        """Give back the reservation of a block that was not fetched."""
        stored = self._reserved.pop(name)
        self.reserved_bytes -= stored.length
        self.taken_bytes -= stored.length

    def use(self, name: str) -> None:
        """Note that a reader asked for the block or mapped it."""
        self._policy.use(name)
        if self._plan is not None:
            self._plan.use(name)

    def evict(self, name: str) -> bool:
        """Evict the block; return whether it was cached."""
        stored = self._cached.get(name)
        if stored is not None:
            self._evict(stored)
        return stored is not None

    def shrink(self) -> Sequence[str]:
        """Evict blocks until the budget is met; return their names.

        Evicted blocks that members still map count as freed here.
        """
        excess = self.taken_bytes - self._evicted_mapped_bytes() - self.budget_bytes
        chosen = self._policy_now().victims(None, excess, self._is_mapped, ahead=False)
        for victim in chosen:
            self._evict(self._cached[victim])
        return chosen

    def map(self, member: Hashable, name: str) -> None:
        """Note that a member maps a block.

        The message may arrive before the block is kept, and after it was evicted.
        """
        stored = self._cached.get(name) or self._reserved.get(name) or self._find_evicted(name)
        if stored is None:
            return
        if stored.unused_ahead:
            stored.unused_ahead = False
            self.prefetched_used += 1
        if name in self._cached:
            self.use(name)
        stored.maps += 1
        self._maps.setdefault(member, {}).setdefault(name, []).append(stored)

    def unmap(self, member: Hashable, name: str) -> None:
        """Note that a member has unmapped a block."""
        maps = self._maps.get(member, {})
        if name in maps:
            self._unmap(maps[name].pop(0))
            if not maps[name]:
                del maps[name]

    def unmap_all(self, member: Hashable) -> None:
        """Note that a member maps nothing any more."""
        for stored in (stored for maps in self._maps.pop(member, {}).values() for stored in maps):
            self._unmap(stored)

    def expect(self, plan: FarthestNextUse | None) -> None:
        """Evict by this plan from now on; None: by the policy again.

        The plan must not know of any cached block yet: this method adds them.
        """
        self._plan = plan
        if plan is not None:
            for stored in self._cached.values():
                plan.add(stored.name, stored.length, ahead=stored.unused_ahead)

    def use_policy(self, policy: EvictionPolicy) -> None:
        """Evict by this policy, which knows of no block yet, where there is no plan."""
        self._policy = policy
        for stored in self._cached.values():
            policy.add(stored.name, stored.length, ahead=stored.unused_ahead)

    def progress(self, used: int, by: Hashable = None) -> None:
        """Note that the first `used` uses of a member's order are over."""
        if self._plan is not None:
            self._plan.progress(used, by)

    def regroup(self) -> None:
        """Note that the set of owned blocks has changed."""
        self._policy.regroup()
        if self._plan is not None:
            self._plan.regroup()

    def _policy_now(self) -> EvictionPolicy:
        return self._plan or self._policy

    def _is_mapped(self, name: str) -> bool:
        return self._cached[name].maps > 0

    def _insert(self, stored: _BlockFile) -> None:
        self._cached[stored.name] = stored
        self._policy.add(stored.name, stored.length, ahead=stored.unused_ahead)
        if self._plan is not None:
            self._plan.add(stored.name, stored.length, ahead=stored.unused_ahead)

    def _evict(self, stored: _BlockFile) -> None:
        del self._cached[stored.name]
        self._policy.remove(stored.name)
        if self._plan is not None:
            self._plan.remove(stored.name)
        self.evictions += 1
        self.evicted_bytes += stored.length
        self.prefetched_wasted += stored.unused_ahead
        stored.evicted_at = self._clock()
        if stored.maps:
            self._evicted_mapped[stored] = None
        else:
            self._free(stored)

    def _unmap(self, stored: _BlockFile) -> None:
        stored.maps -= 1
        if not stored.maps and stored in self._evicted_mapped:
            del self._evicted_mapped[stored]
            self._free(stored)

    def _free(self, stored: _BlockFile) -> None:
        self.taken_bytes -= stored.length
        self._freed[stored.name] = stored
        self._freed.move_to_end(stored.name)
        if len(self._freed) > _REMEMBERED:
            self._freed.popitem(last=False)

    def _find_evicted(self, name: str) -> _BlockFile | None:
        """Return the evicted file that a member says it maps.

        The member opened the file before it was removed, if this master has removed such a file.
        """
        for stored in reversed(self._evicted_mapped):
            if stored.name == name:
                return stored
        freed = self._freed.pop(name, None)
        if freed is not None:
            freed.evicted_at = self._clock()
            self._evicted_mapped[freed] = None
            self.taken_bytes += freed.length
            self.prefetched_wasted -= freed.unused_ahead  # it was mapped before its eviction
        return freed

    def _evicted_mapped_bytes(self, since: float = float("-inf")) -> int:
        total = 0
        for stored in reversed(self._evicted_mapped):
            assert stored.evicted_at is not None
            if stored.evicted_at < since:
                break
            total += stored.length
        return total
