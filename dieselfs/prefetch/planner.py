"""The planner: it decides which plans are read now, and which come next.

A reader is one rank of a job. Its plan is over when its file is gone or the reader was killed. The
reader has then gone on to the plan that names this one as its predecessor, or has ended. Readers of
one job keep pace. So their plans are prefetched as one order, with a file of each in turn, and they
go on together. All plans are of one snapshot: a plan of another snapshot replaces them.

`ActivePlans` decides from values alone. `Planner` keeps one for the threads of a process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dieselfs.prefetch.plans import Plan, Seen


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader's current plan."""

    plan: Plan
    start: int = 0
    """The position from which the plan's files belong to the common order."""


Readers = tuple[Reader, ...]
SeenPlans = Mapping[str, Seen]
"""The looks at plans by their ids. A plan that is missing here is read, from its beginning."""


@dataclass(frozen=True, slots=True)
class ActivePlans:
    """The current plans and their successors. It is a value: a decision returns another one."""

    readers: Readers = ()
    after: Mapping[str, Plan] = field(default_factory=dict)
    """The successors by the id of the plan before them; successors of these may be known too."""
    refused: frozenset[str] = frozenset()
    """Ids of plans that follow from current ones and cannot be prefetched."""

    @property
    def known(self) -> tuple[Plan, ...]:
        """The current plans and their announced successors."""
        return (*(reader.plan for reader in self.readers), *self.after.values())

    def reached(self, plan: Plan, seen: SeenPlans) -> ActivePlans | None:
        """Return the plans if `plan` is known already, with its reader at it; None if it is not."""
        if any(known.id == plan.id for known in self.known):
            return self
        for reader in self.readers:
            if reader.plan.next is not None and reader.plan.next.id == plan.id:
                return self.decide({**seen, reader.plan.id: Seen(is_read=False)})
        return None

    def without_ended(self, plan: Plan) -> ActivePlans:
        """Return the plans that may still be read when `plan` is."""
        return self._only(reader for reader in self.readers if reader.plan.goes_on_beside(plan))

    def add(self, plan: Plan, seen: SeenPlans) -> ActivePlans:
        """Return the plans with one more.

        It comes after a plan that is known, or is read beside the current ones, which then begin
        again at their positions.
        """
        beside = [reader for reader in self.readers if reader.plan.snapshot.id == plan.snapshot.id]
        if beside and any(known.id == plan.after for known in self.known):
            return replace(self, after={**self.after, plan.after: plan})
        plans = [reader.plan for reader in beside if _is_read(reader.plan, seen)]
        return self._begun(_reader_at(each, seen) for each in (*plans, plan))

    def decide(self, seen: SeenPlans, *, at_end: bool = False) -> ActivePlans:
        """Return the plans that are read now.

        If a reader has left its plan for the next one, the others are about to: all go on. They
        also go on if all are at their end (`at_end`) and have successors. A reader without a
        successor stays if it has not ended. If all have ended, no plan is left.
        """
        plans = [(reader.plan, self._successor(reader.plan, seen)) for reader in self.readers]
        gone = [(plan, after) for plan, after in plans if not _is_read(plan, seen)]
        if any(after for _, after in gone) or (at_end and self.successors(seen)):
            return self._begun(
                # A successor is read as a whole, though its reader may have begun already.
                _reader_at(plan, seen) if after is None else Reader(after)
                for plan, after in plans
                if after is not None or _is_read(plan, seen)
            )
        return ActivePlans() if len(gone) == len(plans) else self

    def successors(self, seen: SeenPlans) -> Readers:
        """Return the next plans of the readers that have not ended.

        There are none until every such reader has a successor.
        """
        found = []
        for reader in self.readers:
            successor = self._successor(reader.plan, seen)
            if successor is not None:
                found.append(Reader(successor))
            elif _is_read(reader.plan, seen):
                return ()
        return tuple(found)

    def refuse(self, readers: Readers) -> ActivePlans:
        """Return the plans without those of `readers`, which cannot be prefetched."""
        left = self._only(reader for reader in self.readers if reader not in readers)
        return replace(left, refused=self.refused | {reader.plan.id for reader in readers})

    def _successor(self, plan: Plan, seen: SeenPlans) -> Plan | None:
        """Return the next plan of a reader.

        A plan that is gone already was not read, or only between two looks.
        """
        found = self.after.get(plan.id) or plan.next
        while found is not None and not _is_read(found, seen):
            found = self.after.get(found.id) or found.next
        return None if found is None or found.id in self.refused else found

    def _only(self, readers: Iterable[Reader]) -> ActivePlans:
        return replace(self, readers=tuple(readers))

    def _begun(self, readers: Iterable[Reader]) -> ActivePlans:
        begun, kept = tuple(readers), dict[str, Plan]()
        for reader in begun:
            plan = reader.plan
            while (successor := self.after.get(plan.id)) is not None:
                kept[plan.id] = plan = successor
        return ActivePlans(begun, kept)


class WantedPrefetch(NamedTuple):
    """What is to be prefetched."""

    readers: Readers
    """The plans whose common order is read now."""
    successors: Readers
    """Those whose order comes next, if that is known."""


class Planner:
    """The plans of a node. Thread-safe: its lock is held for looks at plan files at most."""

    def __init__(self) -> None:
        self._active = ActivePlans()
        self._is_idle, self._is_closed = True, False
        self._lock = threading.Lock()

    @property
    def readers(self) -> Readers:
        """The readers of the current plans. It takes no lock."""
        return self._active.readers

    def add(self, plan: Plan, memory_bytes: int) -> bool:
        """Add a plan that a reader begins, or will read after a known one.

        Return True if nothing prefetches for the planner: then the caller begins that. Raises
        `PlanTooLarge` if the readers need more than `memory_bytes`; then the other plans stay.
        """
        if self._active.reached(plan, {}) is None:
            plan.need  # noqa: B018  (it takes long: it is computed without the lock)
        with self._lock:
            if self._is_closed:
                return False
            reached = self._active.reached(plan, _look_at(self._active.known))
            if reached is not None:
                self._active = reached
                return False
            self._active = self._active.without_ended(plan)
            active = self._active.add(plan, _look_at((*self._active.known, plan)))
            plans = [reader.plan for reader in active.readers]
            for needed in plans if plan in plans else [plan]:
                needed.need.require(memory_bytes, len(plans))
            self._active = active
            was_idle, self._is_idle = self._is_idle, False
            return was_idle

    def decide(self, at_end: Readers) -> WantedPrefetch:
        """Look at the plan files and return what is wanted now.

        `at_end` are the readers that are known to be at their end, or none. If no reader is left,
        the planner counts on nobody to prefetch any more.
        """
        with self._lock:
            seen = _look_at(self._active.known)
            is_at_end = bool(at_end) and at_end == self._active.readers
            self._active = self._active.decide(seen, at_end=is_at_end)
            self._is_idle = not self._active.readers
            return WantedPrefetch(self._active.readers, self._active.successors(seen))

    def refuse(self, readers: Readers) -> None:
        """Forget plans that cannot be prefetched."""
        with self._lock:
            self._active = self._active.refuse(readers)

    def clear(self) -> None:
        """Forget all plans."""
        with self._lock:
            self._active = ActivePlans()

    def retire(self) -> None:
        """Forget all plans; nothing prefetches for the planner any more."""
        with self._lock:
            self._active, self._is_idle = ActivePlans(), True

    def close(self) -> None:
        """Forget all plans, and add none any more."""
        with self._lock:
            self._active, self._is_closed = ActivePlans(), True


def _look_at(plans: Iterable[Plan]) -> SeenPlans:
    return {plan.id: plan.look() for plan in plans}


def _is_read(plan: Plan, seen: SeenPlans) -> bool:
    return plan.id not in seen or seen[plan.id].is_read


def _reader_at(plan: Plan, seen: SeenPlans) -> Reader:
    """A position beyond the end is the end."""
    position = seen[plan.id].position if plan.id in seen else 0
    return Reader(plan, min(position, len(plan.order)) if position else 0)
