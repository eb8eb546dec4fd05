"""Where the bytes of a task's budget are: in files, reserved for what is being fetched, or evicted and still mapped. Pure: no files, no locks.

Room is reserved before a piece is fetched, so the sum stays within the budget whatever comes back from the store, and when.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from dieselfs.node_memory.eviction import EvictionPolicy, FarthestNextUse

PATIENCE_S: Final = 0.5
"""A member lets go of an evicted piece when it maps its next one. One that has not by then reads on in it: more leave in its stead."""
_REMEMBERED: Final = 1024
"""Evictions after which a message of a member that it maps the piece may still arrive."""


@dataclass(frozen=True, slots=True)
class Reservation:
    granted: bool
    evicted: Sequence[str]
    """Their files are to be removed, also if nothing was granted."""
    room_coming: bool = False
    """Not granted now, but it will be when members have unmapped what was evicted."""


@dataclass(slots=True, eq=False)
class _Stored:
    """One file, from its reservation until nobody maps it any more."""

    name: str
    length: int
    unused_ahead: bool
    """Fetched ahead, and not mapped by anybody so far."""
    maps: int = 0
    evicted_at: float | None = None


class CacheAccounting:
    """One thread at a time. Members are any hashable things."""

    def __init__(
        self, budget_bytes: int, policy: EvictionPolicy, clock: Callable[[], float]
    ) -> None:
        self.budget_bytes = budget_bytes
        self._policy = policy
        self._plan: FarthestNextUse | None = None
        self._clock = clock
        self._coming: dict[str, _Stored] = {}
        self._held: dict[str, _Stored] = {}
        self._leaving: dict[_Stored, None] = {}
        """Evicted and still mapped, oldest eviction first."""
        self._maps: dict[Hashable, dict[str, list[_Stored]]] = {}
        """What each member maps, oldest first: it may map a piece and its successor of the same name."""
        self._gone: OrderedDict[str, int] = OrderedDict()
        """Bytes of what has left of late."""
        self.taken_bytes = 0
        self.coming_bytes = 0
        self.evictions = self.evicted_bytes = 0
        self.prefetched_used = self.prefetched_wasted = 0

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def __len__(self) -> int:
        return len(self._held)

    def names(self) -> Sequence[str]:
        return list(self._held)

    def adopt(self, name: str, length: int) -> None:
        """It was there before us. The budget may be exceeded until `shrink`."""
        self.taken_bytes += length
        self._hold(_Stored(name, length, unused_ahead=False))

    def reserve(self, name: str, length: int, *, ahead: bool) -> Reservation:
        """Room for a piece that is about to be fetched. Then either `keep` or `drop` it."""
        evicted: Sequence[str] = ()
        coming_free = self._leaving_bytes(since=self._clock() - PATIENCE_S)
        wanted = self.taken_bytes + length - self.budget_bytes
        if wanted > coming_free:
            if length > self.budget_bytes:
                return Reservation(False, evicted)
            wanted -= coming_free
            chosen = self._policy_now().victims(name, wanted, self._is_mapped, ahead=ahead)
            if sum(self._held[victim].length for victim in chosen) < wanted:
                return Reservation(False, evicted)
            for victim in chosen:
                self._evict(self._held[victim])
            evicted = chosen
        if self.taken_bytes + length > self.budget_bytes:
            return Reservation(False, evicted, room_coming=True)
        self._coming[name] = _Stored(name, length, unused_ahead=ahead)
        self.taken_bytes += length
        self.coming_bytes += length
        return Reservation(True, evicted)

    def keep(self, name: str) -> None:
        """What was reserved is in its file."""
        stored = self._coming.pop(name)
        self.coming_bytes -= stored.length
        self._hold(stored)

    def drop(self, name: str) -> None:
        """What was reserved has not come."""
        stored = self._coming.pop(name)
        self.coming_bytes -= stored.length
        self.taken_bytes -= stored.length

    def use(self, name: str) -> None:
        self._policy.use(name)
        if self._plan is not None:
            self._plan.use(name)

    def evict(self, name: str) -> bool:
        """Whether it was held."""
        stored = self._held.get(name)
        if stored is not None:
            self._evict(stored)
        return stored is not None

    def shrink(self) -> Sequence[str]:
        """Evict until the budget is kept, as soon as what was evicted is unmapped too; who has left."""
        excess = self.taken_bytes - self._leaving_bytes() - self.budget_bytes
        chosen = self._policy_now().victims(None, excess, self._is_mapped, ahead=False)
        for victim in chosen:
            self._evict(self._held[victim])
        return chosen

    def map(self, member: Hashable, name: str) -> None:
        """The message may arrive before the piece is kept, and after it has left."""
        stored = self._held.get(name) or self._coming.get(name) or self._still_leaving(name)
        if stored is None:
            return
        if stored.unused_ahead:
            stored.unused_ahead = False
            self.prefetched_used += 1
        if name in self._held:
            self.use(name)
        stored.maps += 1
        self._maps.setdefault(member, {}).setdefault(name, []).append(stored)

    def unmap(self, member: Hashable, name: str) -> None:
        maps = self._maps.get(member, {})
        if name in maps:
            self._unmap(maps[name].pop(0))
            if not maps[name]:
                del maps[name]

    def leave(self, member: Hashable) -> None:
        """It maps nothing any more."""
        for stored in (stored for maps in self._maps.pop(member, {}).values() for stored in maps):
            self._unmap(stored)

    def expect(self, plan: FarthestNextUse | None) -> None:
        """Evict by this plan from now on, which knows of nothing that is held; None: by the policy again."""
        self._plan = plan
        if plan is not None:
            for stored in self._held.values():
                plan.add(stored.name, stored.length, ahead=stored.unused_ahead)

    def progress(self, used: int) -> None:
        if self._plan is not None:
            self._plan.progress(used)

    def regroup(self) -> None:
        """What is owned has changed."""
        self._policy.regroup()
        if self._plan is not None:
            self._plan.regroup()

    def _policy_now(self) -> EvictionPolicy:
        return self._plan or self._policy

    def _is_mapped(self, name: str) -> bool:
        return self._held[name].maps > 0

    def _hold(self, stored: _Stored) -> None:
        self._held[stored.name] = stored
        self._policy.add(stored.name, stored.length, ahead=stored.unused_ahead)
        if self._plan is not None:
            self._plan.add(stored.name, stored.length, ahead=stored.unused_ahead)

    def _evict(self, stored: _Stored) -> None:
        del self._held[stored.name]
        self._policy.remove(stored.name)
        if self._plan is not None:
            self._plan.remove(stored.name)
        self.evictions += 1
        self.evicted_bytes += stored.length
        self.prefetched_wasted += stored.unused_ahead
        stored.evicted_at = self._clock()
        if stored.maps:
            self._leaving[stored] = None
        else:
            self._forget(stored)

    def _unmap(self, stored: _Stored) -> None:
        stored.maps -= 1
        if not stored.maps and stored in self._leaving:
            del self._leaving[stored]
            self._forget(stored)

    def _forget(self, stored: _Stored) -> None:
        self.taken_bytes -= stored.length
        self._gone[stored.name] = stored.length
        self._gone.move_to_end(stored.name)
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def _still_leaving(self, name: str) -> _Stored | None:
        """The evicted file that a member says it maps: it opened the file before it was removed, if we did remove one."""
        for stored in reversed(self._leaving):
            if stored.name == name:
                return stored
        if name not in self._gone:
            return None
        stored = _Stored(name, self._gone.pop(name), False, evicted_at=self._clock())
        self._leaving[stored] = None
        self.taken_bytes += stored.length
        return stored

    def _leaving_bytes(self, since: float = float("-inf")) -> int:
        total = 0
        for stored in reversed(self._leaving):
            assert stored.evicted_at is not None
            if stored.evicted_at < since:
                break
            total += stored.length
        return total
