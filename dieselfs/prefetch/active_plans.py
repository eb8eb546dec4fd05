"""The active plan files: the current one of each reader, and its successors.

A reader is one rank of a job. Its plan is over when its file is gone or the reader was killed. The
reader has then gone on to the plan that names this one as its predecessor, or has ended.

Readers of one job keep pace. So their plans are prefetched as one order, with a file of each in
turn (`chunk_uses.interleaved`), and they go on together. All plans are of one snapshot: a plan of
another snapshot replaces them.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from dieselfs.prefetch.chunk_uses import interleaved
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan


class ActivePlans:
    """The current plans and their successors. One thread at a time may use it."""

    def __init__(self) -> None:
        self._current: list[PlanFile] = []
        self._start: list[int] = []
        """The position of each plan when it became current: the order begins there."""
        self._after: dict[str, PlanFile] = {}
        """The successors by the id of the plan before them.

        Successors of these may be known too.
        """

    def copy(self) -> Self:
        """Return an independent copy."""
        other = type(self)()
        other._current, other._start = list(self._current), list(self._start)
        other._after = dict(self._after)
        return other

    def add(self, plan: PlanFile) -> bool:
        """Add a plan.

        Return True if it is read beside the current ones, which then begin again at their
        positions. Return False if it comes after a plan that is known.
        """
        known = {before.id: before for before in (*self._current, *self._after.values())}
        if plan.after in known and _same_snapshot(plan, known[plan.after]):
            self._after[plan.after] = plan
            return False
        beside = [other for other in self._current if other.is_read and _same_snapshot(plan, other)]
        self._begin({other: _position(other) for other in (*beside, plan)})
        return True

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, plan: PlanFile) -> bool:
        return any(plan.id == known.id for known in (*self._current, *self._after.values()))

    @property
    def current(self) -> tuple[PlanFile, ...]:
        """The plans that are read now."""
        return tuple(self._current)

    def order(self) -> ReadingPlan:
        """Return the files that the current plans still had to read when they became current."""
        return interleaved(
            [_rest(plan.plan, at) for plan, at in zip(self._current, self._start, strict=True)]
        )

    def successors(self) -> tuple[PlanFile, ...]:
        """Return the successors of the current plans whose readers have not ended.

        There are none until every such reader has a successor.
        """
        found = []
        for plan in self._current:
            successor = self._successor(plan)
            if successor is not None:
                found.append(successor)
            elif plan.is_read:
                return ()
        return tuple(found)

    def position(self) -> int:
        """Return how many files of `order` have been read at least, according to the plan files.

        The slowest reader counts.
        """
        lengths = [
            len(plan.plan) - start for plan, start in zip(self._current, self._start, strict=True)
        ]
        read = [
            plan.position - start for plan, start in zip(self._current, self._start, strict=True)
        ]
        at_work = [i for i in range(len(read)) if read[i] < lengths[i]]
        if len(at_work) > 1:  # a reader that was killed does not hold up the others
            at_work = [i for i in at_work if self._current[i].is_read] or at_work
        turns = min((read[i] for i in at_work), default=max(lengths, default=0))
        return sum(min(turns, length) for length in lengths)

    def has_advanced(self) -> bool:
        """Return whether a reader has left its plan for the next one; the others are about to."""
        return any(self._successor(plan) and not plan.is_read for plan in self._current)

    def has_ended(self) -> bool:
        """Return whether no reader is left."""
        return not any(plan.is_read or self._successor(plan) for plan in self._current)

    def advance(self) -> list[PlanFile]:
        """Make the successors current; return the plans that are over.

        A plan stays current if it has no successor and its reader has not ended.
        """
        before = self._current
        starts: dict[PlanFile, int] = {}
        for plan in before:
            if (successor := self._successor(plan)) is not None:
                # It is read as a whole, though its reader may have begun already.
                starts[successor] = 0
            elif plan.is_read:
                starts[plan] = _position(plan)
        self._begin(starts)
        return [plan for plan in before if plan not in self._current]

    def _successor(self, plan: PlanFile) -> PlanFile | None:
        """Return the next plan of its reader.

        A plan that has been removed already was not read, or only between two checks.
        """
        successor = self._after.get(plan.id)
        while successor is not None and not successor.is_read:
            successor = self._after.get(successor.id)
        return successor

    def _begin(self, starts: dict[PlanFile, int]) -> None:
        self._current, self._start = list(starts), list(starts.values())
        kept: dict[str, PlanFile] = {}
        for plan in starts:
            while (successor := self._after.get(plan.id)) is not None:
                kept[plan.id] = plan = successor
        self._after = kept


def _position(plan: PlanFile) -> int:
    return min(plan.position, len(plan.plan))


def _same_snapshot(plan: PlanFile, other: PlanFile) -> bool:
    return plan.plan.snapshot_id == other.plan.snapshot_id


def _rest(plan: ReadingPlan, start: int) -> ReadingPlan:
    if not start:
        return plan
    later = plan.group_start[plan.group_start > start] - start
    group_start = np.concatenate([[0], later]).astype(np.int64)
    return ReadingPlan(plan.snapshot_id, plan.inodes[start:], group_start, plan.snapshot_path)
