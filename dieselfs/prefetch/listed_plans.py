"""Plans for readers of shuffled lists.

They are for readers that take their order from a list of the control directory, or that `--shuffle`
announces, and are written here, since such readers do not know of plans. The plan of the next epoch
follows each plan.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dieselfs.errors import DieselFSError
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan, write_plan
from dieselfs.shuffle.order import shuffle_order
from dieselfs.shuffle.shuffle_lists import ListedOrder

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Reader:
    """A rank of a job, which reads one epoch after the other."""

    order: ListedOrder
    """The order that it reads now."""
    current: PlanFile
    successor: PlanFile


class ListedPlans:
    """The plans of a mount's listed orders. Thread-safe."""

    def __init__(self, task_folder: Path, follow: Callable[[Path], None]) -> None:
        """Create it. `follow` is called with each plan file, and raises `PlanTooLarge`."""
        self._task_folder, self._follow = task_folder, follow
        self._readers: dict[ListedOrder, _Reader] = {}
        """Readers by their order of epoch 0."""
        self._lock = threading.Lock()

    def begin(self, order: ListedOrder) -> None:
        """Note that a reader begins this epoch; do nothing if that is known.

        Raises `PlanTooLarge`, and `OSError` if the tmpfs is full. Readers of lists do not report
        when they have ended: a reader of another seed's list, or of one for another number of
        ranks, is a new job, and the plans of the earlier job end. Takes about 0.5 s for 1.28
        million files.
        """
        with self._lock:
            key = _at_epoch(order, 0)
            for other in [other for other in self._readers if not _is_of_one_job(other, key)]:
                self._end(other)
            reader = self._readers.get(key)
            if reader is not None and reader.order == order:
                return
            if reader is not None and _next(reader.order) == order:
                self._advance(reader)
                return
            if reader is not None:
                self._end(key)
            current = self._written(order)
            try:
                self._follow(current.path)
                successor = self._written(_next(order), after=current.id)
            except BaseException:
                current.remove()
                raise
            reader = self._readers[key] = _Reader(order, current, successor)
            self._follow_successor(reader)

    def over(self, plans: Sequence[PlanFile]) -> None:
        """Note that the readers of these plans have reached their end without a report.

        Returns at once; a thread plans the next epochs.
        """
        over = {plan.id for plan in plans}
        if any(reader.current.id in over for reader in list(self._readers.values())):
            threading.Thread(target=self._advance_all, args=[over], daemon=True).start()

    def orders(self) -> list[ListedOrder]:
        """Return the orders that readers read now."""
        return [reader.order for reader in list(self._readers.values())]

    def end_all(self) -> Sequence[ListedOrder]:
        """End the plans; return the orders that their readers read."""
        with self._lock:
            orders = [reader.order for reader in self._readers.values()]
            for key in list(self._readers):
                self._end(key)
            return orders

    def _advance_all(self, over: set[str]) -> None:
        with self._lock:
            for reader in self._readers.values():
                if reader.current.id in over:
                    self._advance(reader)

    def _advance(self, reader: _Reader) -> None:
        reader.current.remove()
        reader.order, reader.current = _next(reader.order), reader.successor
        try:
            reader.successor = self._written(_next(reader.order), after=reader.current.id)
        except OSError as error:
            log.warning("cannot plan the epoch after %s: %s", reader.order.parameters, error)
        else:
            self._follow_successor(reader)

    def _follow_successor(self, reader: _Reader) -> None:
        try:
            self._follow(reader.successor.path)
        except DieselFSError as error:
            log.warning("cannot plan the epoch after %s: %s", reader.order.parameters, error)

    def _end(self, key: ListedOrder) -> None:
        reader = self._readers.pop(key)
        reader.successor.remove()
        reader.current.remove()

    def _written(self, order: ListedOrder, after: str = "") -> PlanFile:
        chosen, snapshot = order.parameters, order.snapshot
        shuffled = shuffle_order(
            snapshot.chunk_first_inode,
            chosen.seed,
            chosen.epoch,
            chosen.group_size,
            chosen.rank,
            chosen.world_size,
        )
        plan = ReadingPlan(str(snapshot.id), shuffled.inodes, shuffled.group_start)
        return write_plan(self._task_folder, plan, after=after)


def _at_epoch(order: ListedOrder, epoch: int) -> ListedOrder:
    return replace(order, parameters=replace(order.parameters, epoch=epoch))


def _is_of_one_job(one: ListedOrder, other: ListedOrder) -> bool:
    """Return True if the orders differ at most in the rank."""
    same_rank = replace(one.parameters, rank=other.parameters.rank)
    return ListedOrder(one.snapshot, same_rank) == other


def _next(order: ListedOrder) -> ListedOrder:
    return _at_epoch(order, order.parameters.epoch + 1)
