"""The plans of one mount's readers (docs/decisions/0007).

They are taken from the control directory, prefetched and counted.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from chunkstore.stores.read_turn import Payer, ReadTurn, current_turn, in_this_turn, reading
from dieselfs.errors import DieselFSError, MountError, UsageError
from dieselfs.fuse.control.foreign_plans import ForeignPlan, ForeignPlans, ForeignPlanStatistics
from dieselfs.fuse.pages.page_statistics import FillStatistics, PlannedPagesStatistics
from dieselfs.fuse.pages.planned_pages import PlannedPages
from dieselfs.prefetch.close_events import CloseEvents
from dieselfs.prefetch.plan_file import open_plan
from dieselfs.prefetch.plans import AnnouncedPlan, ListedPlan, Plan
from dieselfs.prefetch.prefetcher import BEGIN_S, PlannedMemory, Prefetcher
from dieselfs.prefetch.progress_tracker import MountProgress, ProgressTracker
from dieselfs.prefetch.window import FollowedOrder, PrefetchStatistics
from dieselfs.shuffle.order import parse_parameters
from dieselfs.shuffle.shuffle_lists import ListedOrder
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from dieselfs.cache.ports.block import CacheBlock
    from dieselfs.fuse.pages.page_filler import PageFiller
    from dieselfs.fuse.supervision.shutdown import Shutdown

log = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 0.5
"""The time for fetches under way when the mount ends, which no reader needs any more."""
_REMEMBERED: Final = 16
"""Plans of ranks on one node, and those of their next epochs."""
_PLAN_ID: Final = re.compile(r"[0-9a-f]{16}")


class TaskMemory(PlannedMemory, Protocol):
    """The part of node memory that plans need."""

    @property
    def quota_bytes(self) -> int | None:
        """The bytes allocated to node memory; None: no quota."""
        ...

    def set_budget(self, budget_bytes: int) -> None: ...


class _PaidMemory:
    """The node memory of plans, whose fetches are paid for by the job that told the last plan."""

    def __init__(self, memory: PlannedMemory) -> None:
        self._memory = memory
        self.expect, self.progress = memory.expect, memory.progress
        self.payer: Payer | None = None
        """None: the mount's own job pays."""

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        """See `PlannedMemory`."""
        if self.payer is None:
            self._memory.fetch_blocks(blocks)
            return
        with reading(ReadTurn(ahead=True, payer=self.payer)):
            self._memory.fetch_blocks(blocks)


@dataclass(frozen=True, slots=True)
class PlanSources:
    """Where the plans that are read now come from."""

    shared_memory: int = 0
    """Plan files in the task's folder."""
    mount: int = 0
    """Plans that were told through the mount."""
    lists: int = 0
    """Lists that are read from the control directory, or named by `--shuffle`."""
    foreign: ForeignPlanStatistics = field(default_factory=ForeignPlanStatistics)


class MountTrackers:
    """The progress trackers of a mount, one after the other, and their counters."""

    def __init__(
        self,
        memory: TaskMemory,
        mountpoint: Path,
        most_bytes: int,
        budget_bytes: Callable[[], int],
        make_filler: Callable[[], PageFiller] | None,
        read_names_ahead: Callable[[], None],
    ) -> None:
        """Create it; see `MountPlans`."""
        self._memory, self._mountpoint = memory, mountpoint
        self._most_bytes, self._budget_bytes = most_bytes, budget_bytes
        self._make_filler, self._read_names_ahead = make_filler, read_names_ahead
        self._filler: PageFiller | None = None
        self._filled_before = FillStatistics()
        """Counters of earlier fillers."""
        self.pages: PlannedPages | None = None
        """The last tracker, if it fills pages. It may be closed."""

    def make(self, snapshot: Snapshot) -> ProgressTracker:
        """Return a new tracker. The one before it is closed."""
        try:
            events = CloseEvents(self._mountpoint)
        except OSError as error:
            hint = "raise fs.inotify.max_user_instances"
            raise MountError(f"cannot watch the progress of readers: {error}", hint) from error
        if self._make_filler is None:
            return MountProgress(events, snapshot, self._budget_bytes)
        self._filled_before, self._filler = self.filled(), self._make_filler()
        self.pages = PlannedPages(
            self._filler,
            events,
            snapshot,
            budget_bytes=self._budget_bytes,
            set_node_memory=self._memory.set_budget,
            read_names_ahead=self._read_names_ahead,
            most_bytes=lambda: self._most_bytes,
        )
        return self.pages

    def filled(self) -> FillStatistics:
        """Return the counters of all fillers."""
        filler = self._filler
        return self._filled_before + (FillStatistics() if filler is None else filler.statistics())


class MountPlans:
    """The plans of a mount.

    Thread-safe. The layout of an order takes 0.5 s for 1.28 million files.
    """

    def __init__(
        self,
        memory: TaskMemory,
        task_folder: Path,
        snapshot: Snapshot,
        mountpoint: Path,
        budget_bytes: int,
        make_filler: Callable[[], PageFiller] | None,
        read_names_ahead: Callable[[], None],
        foreign: ForeignPlans | None = None,
    ) -> None:
        """Create it.

        `foreign` has the plans that readers write into the control directory, if they may.
        `budget_bytes` is for node memory and the page-cache prefill of plans, together. Under a
        quota of `memory` they have less, but as much as the plans need.
        `make_filler` makes the filler of each tracker, which is closed with it; None fills nothing.
        For `read_names_ahead` see `PlannedPages`.
        """
        self.task_folder = task_folder
        self._snapshot, self._foreign = snapshot, foreign
        self._trackers = MountTrackers(
            memory,
            mountpoint,
            budget_bytes,
            lambda: self._prefetcher.memory_bytes(),
            make_filler,
            read_names_ahead,
        )
        self._memory = _PaidMemory(memory)
        self._prefetcher = Prefetcher(
            self._memory, lambda: budget_bytes, self._trackers.make, lambda: memory.quota_bytes
        )
        self._announced: list[str] = []
        """Ids of plans that were taken, the newest last; some may have ended."""

    def take(self, name: bytes) -> bytes:
        """Take the plan file that a reader has named.

        Returns a JSON document that says whether the plan is prefetched, or why not. Blocks for up
        to a second.
        """
        plan_id = name.decode("ascii", "replace")
        try:
            if not _PLAN_ID.fullmatch(plan_id):
                raise UsageError(f"{plan_id!r} is not the name of a plan")
            self._follow(self._opened(plan_id))
            self._announced = [*self._announced[1 - _REMEMBERED :], plan_id]
        except FileNotFoundError as error:
            return _document(accepted=False, found=False, error=str(error))
        except (DieselFSError, OSError) as error:
            return _refusal(plan_id, error)
        return _document(accepted=True)

    def follow(self, plan: ForeignPlan) -> bytes:
        """Take a plan that a reader has written into the control directory; see `take`.

        It does not wait for the layout of the order: nobody holds a thread of the control directory
        for that by what he writes.
        """
        try:
            self._follow(AnnouncedPlan(plan, self._snapshot), wait_s=0.0)
        except (DieselFSError, OSError) as error:
            return _refusal(plan.id, error)
        return _document(accepted=True)

    def resumable(self) -> dict[str, list[str]]:
        """Return the prefetched plans and orders for the next server: see `resume`."""
        orders = [plan.id for plan in self._prefetcher.plans if isinstance(plan, ListedPlan)]
        return {"announced": self._announced, "orders": orders}

    def resume(self, plans: Mapping[str, list[str]]) -> None:
        """Prefetch again what the former server has prefetched, as far as it continues.

        The positions of the readers show soon.
        """
        for order in plans.get("orders", []):
            self.begin(ListedOrder(self._snapshot, parse_parameters(order)))
        for plan_id in plans.get("announced", []):
            if (self.task_folder / "plans" / plan_id).exists():
                self.take(plan_id.encode())

    def begin(self, order: ListedOrder) -> None:
        """Note that a reader seems to begin to read in this order.

        The order is prefetched, or the log says why not.
        """
        try:
            self._follow(ListedPlan(order))
        except (DieselFSError, OSError) as error:
            log.warning(
                "the order %s is not prefetched: %s; %s",
                order.parameters,
                error,
                getattr(error, "hint", ""),
            )

    def end_all(self) -> None:
        """End all prefetching. Plans can be taken again."""
        self._prefetcher.stop()
        self._announced = []

    def note_list(self, order: ListedOrder) -> None:
        """Note that a list is read. Returns at once."""
        begin = in_this_turn(partial(self.begin, order))
        threading.Thread(target=begin, daemon=True).start()

    def note_miss(self, inode: int) -> None:
        """Note that a READ has found a file neither in the page cache nor in node memory."""
        pages = self._trackers.pages
        if pages is not None and not pages.is_closed:
            pages.note_miss(inode)

    @property
    def is_filling(self) -> bool:
        """Return True if chunks of a known order are filled: then misses fill none."""
        pages = self._trackers.pages
        return pages is not None and not pages.is_closed

    @property
    def is_prefetching(self) -> bool:
        """Return True if the chunks of a known order are prefetched."""
        return self._prefetcher.is_running

    def followed(self) -> FollowedOrder | None:
        """Return the order that is prefetched now, and how far it is read; None without one."""
        return self._prefetcher.followed()

    def sources(self) -> PlanSources:
        """Return where the plans that are read now come from."""
        plans = self._prefetcher.plans
        announced = [plan for plan in plans if isinstance(plan, AnnouncedPlan)]
        foreign = sum(plan.is_foreign for plan in announced)
        told = ForeignPlanStatistics() if self._foreign is None else self._foreign.statistics()
        return PlanSources(len(announced) - foreign, foreign, len(plans) - len(announced), told)

    def statistics(self) -> PrefetchStatistics:
        """Return the counters of the prefetcher."""
        return self._prefetcher.statistics()

    def pages(self) -> PlannedPagesStatistics:
        """Return the counters of the page cache along known orders; zeros if nothing is filled."""
        pages = self._trackers.pages
        return PlannedPagesStatistics() if pages is None else pages.statistics()

    def filled(self) -> FillStatistics:
        """Return the counters of all fillers for plans, closed ones included."""
        return self._trackers.filled()

    def close(self, shutdown: Shutdown) -> None:
        """End the prefetcher within the time of `shutdown`, then the filler."""
        self._prefetcher.close(shutdown.left_s(_END_TIMEOUT_S))
        if self._trackers.pages is not None:
            self._trackers.pages.close()

    def _follow(self, plan: Plan, wait_s: float = BEGIN_S) -> None:
        """Follow a plan at the cost of those who told it: of this thread's turn."""
        self._memory.payer = current_turn().payer
        self._prefetcher.follow(plan, wait_s)

    def _opened(self, plan_id: str) -> AnnouncedPlan:
        file = open_plan(self.task_folder / "plans" / plan_id)
        if file.plan.snapshot_id != str(self._snapshot.id):
            raise UsageError(
                f"the plan is of snapshot {file.plan.snapshot_id},"
                f" and {self._snapshot.id} is mounted",
                "start again with the mounted snapshot",
            )
        return AnnouncedPlan(file, self._snapshot)


def _refusal(plan_id: str, error: Exception) -> bytes:
    log.warning("plan %s is not prefetched: %s", plan_id, error)
    return _document(accepted=False, error=str(error), hint=getattr(error, "hint", None))


def _document(**answer: Any) -> bytes:
    return json.dumps(answer).encode() + b"\n"
