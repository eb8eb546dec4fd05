"""Follows the plan files of a node's readers, from one to the next, for as long as there are any."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dieselfs.errors import UsageError
from dieselfs.plan.active_plans import ActivePlans
from dieselfs.plan.chunk_uses import ChunkUses
from dieselfs.plan.client_readers import ClientReaders
from dieselfs.plan.follower import (
    Follower,
    FollowerStatistics,
    Order,
    PlannedMemory,
    Readers,
)
from dieselfs.plan.plan_file import PlanFile, ReadingPlan, open_plan
from dieselfs.plan.requirement import require_room
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)


class PlanFollowing:
    """Thread-safe. By default the readers are clients, who say in their plan files how far they are."""

    def __init__(
        self,
        memory: PlannedMemory,
        snapshot_of: Callable[[ReadingPlan], Snapshot],
        budget_bytes: Callable[[], int],
        *,
        readers: Callable[[Snapshot], Readers] | None = None,
        over: Callable[[Sequence[PlanFile]], None] = lambda plans: None,
    ) -> None:
        """`readers` makes those of a snapshot, if they are no clients; `over` is told of plans that readers have left behind."""
        self._memory, self._snapshot_of, self._budget_bytes = memory, snapshot_of, budget_bytes
        self._make_readers, self._over = readers, over
        self._plans = ActivePlans()
        self._follower: Follower | None = None
        self._lock = threading.RLock()

    def follow(self, path: Path) -> None:
        """Follow a plan file too, or next. Raises `PlanTooLarge`, `UsageError` if it is no plan of a snapshot at hand."""
        plan = open_plan(path)
        with self._lock:
            snapshot = self._snapshot_of(plan.plan)
            if len(plan.plan) and int(plan.plan.inodes.max()) >= snapshot.file_count:
                raise UsageError(f"the plan {path} names files that snapshot {snapshot.id} lacks")
            require_room(
                ChunkUses.of(snapshot, plan.plan.inodes),
                plan.plan.group_start,
                self._budget_bytes(),
            )
            if self._plans.add(plan):
                self._start(snapshot)
            elif (order := self._plans.following_order()) is not None:
                assert self._follower is not None
                self._follower.follow_on(_order(snapshot, order))

    def statistics(self) -> FollowerStatistics:
        follower = self._follower
        return FollowerStatistics() if follower is None else follower.statistics()

    def close(self) -> None:
        with self._lock:
            follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    def tick(self, position: int) -> None:
        """Look whether the readers have gone on to their next plans, or have ended. For `Readers.position`."""
        if not self._lock.acquire(blocking=False):
            return  # a plan is being added: next time
        try:
            follower = self._follower
            if follower is None:
                return
            at_end = position >= follower.statistics().files
            if self._plans.have_gone_on() or (at_end and self._plans.following_order() is not None):
                over = self._plans.go_on()
                follower.go_on()
                self._over(over)
            elif self._plans.have_ended():
                self._plans = ActivePlans()
                follower.stop()
        finally:
            self._lock.release()

    def _start(self, snapshot: Snapshot) -> None:
        if self._follower is not None:
            self._follower.close()
        readers = self._make_readers(snapshot) if self._make_readers else self._clients()
        order = _order(snapshot, self._plans.order())
        self._follower = Follower(self._memory, readers, snapshot.chunk, self._budget_bytes, order)
        self._follower.start()

    def _clients(self) -> Readers:
        def position() -> int:
            read = self._plans.position()
            self.tick(-1)  # a client that is at its end may still hold what it reads
            return read

        return ClientReaders(position)


def _order(snapshot: Snapshot, plan: ReadingPlan) -> Order:
    return Order(plan.inodes, ChunkUses.of(snapshot, plan.inodes))
