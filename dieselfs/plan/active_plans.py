"""Which plan files are followed at a time: one for each reader (a rank of a job), and the one that each goes on to.

A reader's plan is over when its file is gone: it has gone on to the plan that names it as the one before, or has ended. Readers of one
job keep pace, so their plans are followed as one order, a file of each in turn (`chunk_uses.interleaved`), and they go on together.
"""

from __future__ import annotations

import numpy as np

from dieselfs.plan.chunk_uses import interleaved
from dieselfs.plan.plan_file import PlanFile, ReadingPlan


class ActivePlans:
    """One thread at a time."""

    def __init__(self) -> None:
        self._current: list[PlanFile] = []
        self._start: list[int] = []
        """Where each was when it became current: the order begins there."""
        self._following: dict[str, PlanFile] = {}
        """By the id of the plan that is before them."""

    def add(self, plan: PlanFile) -> bool:
        """True if it is to be followed beside the current ones; False if it comes after one of them."""
        if any(plan.after == current.id for current in self._current):
            self._following[plan.after] = plan
            return False
        self._current = [current for current in self._current if current.path.exists()]
        self._current.append(plan)
        self._begin()
        return True

    def __len__(self) -> int:
        return len(self._current)

    def order(self) -> ReadingPlan:
        """What the current ones still had to read when they became current."""
        return interleaved(
            [_rest(plan.plan, at) for plan, at in zip(self._current, self._start, strict=True)]
        )

    def following_order(self) -> ReadingPlan | None:
        """What comes after it; None until all of them have a plan that does."""
        following = [self._following.get(plan.id) for plan in self._current]
        known = [plan.plan for plan in following if plan is not None]
        return interleaved(known) if known and len(known) == len(following) else None

    def position(self) -> int:
        """How many files of `order` have been read at least, as far as the plan files say: the slowest counts."""
        read = [
            plan.position - start
            for plan, start in zip(self._current, self._start, strict=True)
            if plan.position < len(plan.plan)
        ]
        if not read:  # all at their end
            return sum(
                len(plan.plan) - start
                for plan, start in zip(self._current, self._start, strict=True)
            )
        return min(read) * len(self._current)

    def have_gone_on(self) -> bool:
        """Whether a reader has left its plan for the one that follows; the others are about to."""
        return any(plan.id in self._following and not plan.path.exists() for plan in self._current)

    def have_ended(self) -> bool:
        """Whether no reader is left."""
        return not any(plan.path.exists() or plan.id in self._following for plan in self._current)

    def go_on(self) -> list[PlanFile]:
        """What follows is current from now on; who has no plan that follows has ended. Returns those that are over."""
        over = self._current
        self._current = [self._following[plan.id] for plan in over if plan.id in self._following]
        self._following = {}
        self._begin()
        return over

    def _begin(self) -> None:
        self._start = [min(plan.position, len(plan.plan)) for plan in self._current]


def _rest(plan: ReadingPlan, start: int) -> ReadingPlan:
    if not start:
        return plan
    later = plan.group_start[plan.group_start > start] - start
    group_start = np.concatenate([[0], later]).astype(np.int64)
    return ReadingPlan(plan.snapshot_id, plan.inodes[start:], group_start, plan.snapshot_path)
