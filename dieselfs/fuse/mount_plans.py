"""The plans of one mount's readers: taken from the control directory, followed, counted (docs/decisions/0007-plan.md)."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from dieselfs.errors import DieselFSError, UsageError
from dieselfs.fuse.kernel_pages import KernelPages
from dieselfs.fuse.listed_plans import ListedPlans
from dieselfs.fuse.mount_readers import MountReaders
from dieselfs.fuse.request_readers import RequestReaders
from dieselfs.fuse.shuffle_lists import ShuffledOrder
from dieselfs.plan.follower import FollowerStatistics, PlannedMemory, Readers
from dieselfs.plan.plan_file import open_plan
from dieselfs.plan.plan_following import PlanFollowing
from dieselfs.worker_threads import WorkerThreads
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from dieselfs.ending import Ending
    from dieselfs.fuse.epochs import Epochs
    from dieselfs.fuse.fast_path import FastPath
    from dieselfs.plan.plan_file import PlanFile, ReadingPlan

log = logging.getLogger(__name__)

_PLANS_AT_A_TIME: Final = 2
_END_TIMEOUT_S: Final = 0.5
"""For fetches under way when the mount ends, which nobody needs any more."""
_PLAN_ID: Final = re.compile(r"[0-9a-f]{16}")


class TaskMemory(PlannedMemory, Protocol):
    """Node memory as far as plans need it."""

    def set_budget(self, budget_bytes: int) -> None: ...


class MountPlans:
    """Thread-safe. To lay out an order takes 0.5 s for 1.28 million files."""

    def __init__(
        self,
        memory: TaskMemory,
        task_folder: Path,
        epochs: Epochs,
        fast_path: FastPath,
        mountpoint: Path,
        budget_bytes: int,
        *,
        stores_ahead: bool,
    ) -> None:
        """`budget_bytes` is for node memory and what plans store in the page cache, together."""
        self.task_folder = task_folder
        self._threads = WorkerThreads(_PLANS_AT_A_TIME)
        self._memory, self._epochs, self._fast_path = memory, epochs, fast_path
        self._budget_bytes, self._stores_ahead = budget_bytes, stores_ahead
        self._pages = KernelPages(mountpoint)
        self._readers: MountReaders | None = None
        self._requests: RequestReaders | None = None
        self._following = PlanFollowing(
            memory,
            self._snapshot_of,
            lambda: budget_bytes,
            readers=self._make_readers,
            over=self._listed_over,
            idle=lambda: memory.set_budget(budget_bytes),
        )
        self._listed = ListedPlans(task_folder, self._following.follow)

    async def take(self, name: bytes) -> bytes:
        """A reader has named its plan file: a JSON document that says whether it is followed, or why not."""
        return await self._threads.run_abandonable(self._take, name.decode("ascii", "replace"))

    def _take(self, name: str) -> bytes:
        try:
            if not _PLAN_ID.fullmatch(name):
                raise UsageError(f"{name!r} is not the name of a plan")
            path = self.task_folder / "plans" / name
            self._require_current(open_plan(path).plan)
            self._listed.end_all()  # who announces plans says when they end; that of a list may have ended long ago
            self._following.follow(path)
        except (DieselFSError, OSError) as error:
            log.warning("plan %s is not followed: %s", name, error)
            return _document(accepted=False, error=str(error), hint=getattr(error, "hint", None))
        return _document(accepted=True)

    def begin(self, order: ShuffledOrder) -> None:
        """A reader begins to read in this order, as far as one can see: it is followed, or the log says why not."""
        try:
            self._listed.begin(order)
        except (DieselFSError, OSError) as error:
            log.warning(
                "%s is not read ahead: %s; %s", order.parameters, error, getattr(error, "hint", "")
            )

    def note_list(self, order: ShuffledOrder) -> None:
        """A list is read. Returns at once."""
        threading.Thread(target=self.begin, args=[order], daemon=True).start()

    def go_over(self, snapshot: Snapshot) -> None:
        """The mount shows this snapshot from now on, in which paths lead to other files: plans of the one before end.

        Orders of lists begin anew in it, at the epoch that was read. Whoever announces his plans does so with his next one.
        """
        self._following.stop()
        for order in self._listed.end_all():
            self.begin(replace(order, snapshot=snapshot))

    def note_read(self, inode: int) -> None:
        """Python answers a READ of a file, by the kernel's number."""
        if self._requests is not None:
            self._requests.note_read(inode)

    def statistics(self) -> FollowerStatistics:
        return self._following.statistics()

    def close(self, ending: Ending) -> None:
        self._following.close(ending.left_s(_END_TIMEOUT_S))
        self._listed.end_all()
        if self._readers is not None:
            self._readers.close()
        self._pages.close(ending.left_s(_END_TIMEOUT_S))

    def _require_current(self, plan: ReadingPlan) -> None:
        current = self._epochs.current.snapshot
        if plan.snapshot_id != str(current.id):
            raise UsageError(
                f"the plan is of snapshot {plan.snapshot_id}, and {current.id} is mounted",
                "begin anew, with the snapshot that is mounted",
            )

    def _snapshot_of(self, plan: ReadingPlan) -> Snapshot:
        return self._epochs.shown(plan.snapshot_id).snapshot

    def _listed_over(self, plans: Sequence[PlanFile]) -> None:
        self._listed.over(plans)

    def _make_readers(self, snapshot: Snapshot) -> Readers:
        if self._readers is not None:
            self._readers.close()
        self._readers = self._requests = None
        epoch = self._epochs.shown(str(snapshot.id)).epoch
        if not (self._fast_path.is_active and self._stores_ahead):
            self._requests = RequestReaders(
                epoch, snapshot.file_count, self._budget_bytes, self._following.tick
            )
            return self._requests
        self._readers = MountReaders(
            self._fast_path,
            self._pages,
            snapshot,
            epoch,
            budget_bytes=lambda: self._budget_bytes,
            set_node_memory=self._memory.set_budget,
            tick=self._following.tick,
        )
        return self._readers


def _document(**answer: Any) -> bytes:
    return json.dumps(answer).encode() + b"\n"
