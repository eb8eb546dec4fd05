"""The plans that the planner knows: announced by their readers, or epochs of a listed order."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol

from dieselfs.errors import UsageError
from dieselfs.prefetch.chunk_uses import ChunkUses
from dieselfs.prefetch.plan_file import ReadingPlan
from dieselfs.prefetch.requirement import MemoryNeed
from dieselfs.shuffle.shuffle_lists import ListedOrder
from metadata.snapshot import Snapshot


class Seen(NamedTuple):
    """The state of a plan's reader when it was last looked at."""

    position: int = 0
    is_read: bool = True
    """False if the reader has left the plan or has ended."""


class Plan:
    """One rank's order of one epoch, in a snapshot that is open."""

    def __init__(self, id: str, snapshot: Snapshot, after: str = "") -> None:
        self.id, self.snapshot = id, snapshot
        self.after = after
        """The id of the plan whose end leads into this one; empty if there is none."""

    @property
    def order(self) -> ReadingPlan:
        """The files. A listed order is shuffled at the first call: 0.2 s for 1.28 million."""
        raise NotImplementedError

    @cached_property
    def need(self) -> MemoryNeed:
        """The memory that the plan needs. It is computed once, 0.2 s for 1.28 million files."""
        uses = ChunkUses.of(self.snapshot, self.order.inodes)
        return MemoryNeed.of(uses, self.order.group_start)

    @property
    def next(self) -> Plan | None:
        """The plan that its reader reads next, if that follows from this one."""
        return None

    def look(self) -> Seen:
        """Look at the reader."""
        return Seen()

    def goes_on_beside(self, other: Plan) -> bool:
        """Return whether this plan may still be read when `other` is."""
        return True


class PublishedPlan(Protocol):
    """A plan as its reader has published it: a plan file, or what a mount was told."""

    @property
    def id(self) -> str: ...

    @property
    def plan(self) -> ReadingPlan: ...

    @property
    def after(self) -> str: ...

    @property
    def position(self) -> int: ...

    @property
    def is_read(self) -> bool:
        """Whether the reader still exists and has not withdrawn the plan."""
        ...

    @property
    def is_foreign(self) -> bool:
        """Whether it was told through the mount (docs/decisions/0023)."""
        ...


class AnnouncedPlan(Plan):
    """The plan of a reader that publishes its position."""

    def __init__(self, published: PublishedPlan, snapshot: Snapshot) -> None:
        """Create it. Raises `UsageError` if the snapshot lacks files of the plan."""
        super().__init__(published.id, snapshot, published.after)
        self._published = published
        self.is_foreign = published.is_foreign
        inodes = published.plan.inodes
        if len(inodes) and int(inodes.max()) >= snapshot.file_count:
            raise UsageError(
                f"plan {published.id} names files that snapshot {snapshot.id} does not have"
            )

    @property
    def order(self) -> ReadingPlan:
        """See `Plan`."""
        return self._published.plan

    def look(self) -> Seen:
        """Look at what the reader has published."""
        return Seen(self._published.position, self._published.is_read)


class ListedPlan(Plan):
    """The plan of a reader that takes its order from a list of the control directory.

    Such a reader reports nothing. It reads one epoch after the other until its plan is withdrawn.
    """

    def __init__(self, listed: ListedOrder) -> None:
        super().__init__(str(listed.parameters), listed.snapshot)
        self.listed = listed

    @cached_property
    def order(self) -> ReadingPlan:
        """See `Plan`."""
        shuffled = self.listed.shuffled()
        return ReadingPlan(str(self.snapshot.id), shuffled.inodes, shuffled.group_start)

    @cached_property
    def next(self) -> ListedPlan:
        """The plan of the next epoch."""
        epoch = self.listed.parameters.epoch + 1
        return ListedPlan(_with(self.listed, epoch=epoch))

    def goes_on_beside(self, other: Plan) -> bool:
        """Return whether `other` is the list of another rank of the job.

        Readers of lists do not report their ends. They have ended if anything else is read.
        """
        return (
            isinstance(other, ListedPlan)
            and _with(self.listed, epoch=0, rank=0) == _with(other.listed, epoch=0, rank=0)
            and self.listed.parameters.rank != other.listed.parameters.rank
        )


def _with(listed: ListedOrder, **changed: int) -> ListedOrder:
    return replace(listed, parameters=replace(listed.parameters, **changed))
