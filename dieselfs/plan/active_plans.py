"""Which plan files are followed at a time: one for each reader (a rank of a job), and the one that each goes on to.

A reader's plan is over when its file is gone, or its reader was killed: it has gone on to the plan that names it as the one before, or has
ended. Readers of one job keep pace, so their plans are followed as one order, a file of each in turn (`chunk_uses.interleaved`), and they go
on together. All are of one snapshot: a plan of another one replaces them.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from dieselfs.plan.chunk_uses import interleaved
from dieselfs.plan.plan_file import PlanFile, ReadingPlan


class ActivePlans:
    """One thread at a time."""

    def __init__(self) -> None:
        self._current: list[PlanFile] = []
        self._start: list[int] = []
        """Where each was when it became current: the order begins there."""
        self._after: dict[str, PlanFile] = {}
        """By the id of the plan that is before them; what comes after these may be known too."""

    def copy(self) -> Self:
        other = type(self)()
        other._current, other._start = list(self._current), list(self._start)
        other._after = dict(self._after)
        return other

    def add(self, plan: PlanFile) -> bool:
        """True if it is to be followed beside the current ones, which begin anew; False if it comes after one that is known."""
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
        return tuple(self._current)

    def order(self) -> ReadingPlan:
        """What the current ones still had to read when they became current."""
        return interleaved(
            [_rest(plan.plan, at) for plan, at in zip(self._current, self._start, strict=True)]
        )

    def following(self) -> tuple[PlanFile, ...]:
        """Those that come after them, of readers that have not ended; none until all of these have one."""
        found = []
        for plan in self._current:
            successor = self._successor(plan)
            if successor is not None:
                found.append(successor)
            elif plan.is_read:
                return ()
        return tuple(found)

    def position(self) -> int:
        """How many files of `order` have been read at least, as far as the plan files say: the slowest counts."""
        lengths = [
            len(plan.plan) - start for plan, start in zip(self._current, self._start, strict=True)
        ]
        read = [
            plan.position - start for plan, start in zip(self._current, self._start, strict=True)
        ]
        at_work = [i for i in range(len(read)) if read[i] < lengths[i]]
        if len(at_work) > 1:  # a reader that was killed does not keep the others
            at_work = [i for i in at_work if self._current[i].is_read] or at_work
        turns = min((read[i] for i in at_work), default=max(lengths, default=0))
        return sum(min(turns, length) for length in lengths)

    def have_gone_on(self) -> bool:
        """Whether a reader has left its plan for the one that follows; the others are about to."""
        return any(self._successor(plan) and not plan.is_read for plan in self._current)

    def have_ended(self) -> bool:
        """Whether no reader is left."""
        return not any(plan.is_read or self._successor(plan) for plan in self._current)

    def go_on(self) -> list[PlanFile]:
        """What follows is current from now on, and who has none and has not ended stays. Returns those that are over."""
        before = self._current
        starts: dict[PlanFile, int] = {}
        for plan in before:
            if (successor := self._successor(plan)) is not None:
                starts[successor] = (
                    0  # it is read as a whole, though it may have been begun already
                )
            elif plan.is_read:
                starts[plan] = _position(plan)
        self._begin(starts)
        return [plan for plan in before if plan not in self._current]

    def _successor(self, plan: PlanFile) -> PlanFile | None:
        """The next plan of its reader. One that has been removed already was not read, or only between two looks."""
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
