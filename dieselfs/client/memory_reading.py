"""Reads of one client through the node's shared memory, along a plan if there is one."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import index
from typing import SupportsIndex

from dieselfs.cache.read_settings import ReadSettings
from dieselfs.cache.read_stack import ReadStack
from dieselfs.cache.task.sample_reader import SampleReader
from dieselfs.client.path_arguments import ENCODING, ERRORS, NAMES_ARE_UTF8, DatasetPath, encoded
from dieselfs.dataset.dataset import Dataset
from dieselfs.errors import UsageError
from dieselfs.prefetch.plan_file import ReadingPlan, write_plan
from dieselfs.prefetch.reading_position import ReadingPosition, files_between_positions
from dieselfs.shuffle.order import ShuffledOrder
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.snapshot import Snapshot


def checked_budget(budget_bytes: int | None) -> int | None:
    """Return the memory that a caller wants; `UsageError` for what is not a number of bytes."""
    if budget_bytes is None:
        return None
    if not isinstance(budget_bytes, SupportsIndex) or index(budget_bytes) < 1:
        raise UsageError(
            f"{budget_bytes!r} is not a size of node memory", "write a number of bytes: 8 << 30"
        )
    return index(budget_bytes)


class MemoryReading:
    """Node memory and a client's place in it. For one thread at a time; reads survive a fork."""

    def __init__(
        self,
        dataset: Dataset,
        settings: ReadSettings,
        expected: ExpectedFiles,
        snapshot: Snapshot | None,
    ) -> None:
        """Join the task's memory to read a snapshot; without one, when `show` gives it."""
        self.stack = ReadStack(dataset.ref, dataset.store, settings, expected)
        if snapshot is not None:
            self.stack.read_by_requests(snapshot)
        self.memory = self.stack.open_memory(join=snapshot is not None)
        self.samples: SampleReader | None = None
        """The reader of files by inode; None until a snapshot is shown."""
        self.position: ReadingPosition | None = None
        self._position_owner = os.getpid()
        if snapshot is not None:
            self.samples = SampleReader(snapshot, self.memory)

    def show(self, snapshot: Snapshot) -> None:
        """Read the files of a snapshot from now on, without a plan."""
        self.end_plan()
        self.stack.read_by_requests(snapshot)
        self.memory.join()
        self.samples = SampleReader(snapshot, self.memory)

    def ask(self, budget_bytes: int | None, task: str | None) -> None:
        """Ask for a budget, if it is given; `UsageError` if the memory is that of another task."""
        present = self.stack.folder.path.name
        if task not in (None, "", present):
            raise UsageError(
                f"this client reads through the node memory of task {present}, not of {task}",
                "name the task in the first call that opens node memory",
            )
        if budget_bytes is not None:
            self.memory.set_budget(budget_bytes)

    @property
    def read_path(self) -> Callable[[DatasetPath], bytes] | None:
        """The function that returns a whole file; None until a snapshot is shown."""
        if self.samples is None:
            return None
        if self.position is not None:
            return self._read_planned
        return self.samples.read_path if NAMES_ARE_UTF8 else self._read_encoded

    def _read_encoded(self, path: DatasetPath) -> bytes:
        assert self.samples is not None
        return self.samples.read_path(encoded(path))

    def _read_planned(self, path: DatasetPath) -> bytes:
        """Return a whole file, and note its place in the plan."""
        reader, position = self.samples, self.position
        assert reader is not None
        assert position is not None
        name = path.encode(ENCODING, ERRORS) if isinstance(path, str) else path
        inode = position.expected
        if not reader.is_path_of(inode, name):
            inode = reader.inode_of(encoded(path))
        data = reader.read(inode)
        position.passed(inode)
        return data

    def follow(self, order: ShuffledOrder, snapshot: Snapshot) -> None:
        """Make `order` the plan; the old plan stays if `order` is refused.

        Raises `PlanTooLarge`.
        """
        if not len(order):
            self.end_plan()
            return
        plan = ReadingPlan(snapshot.id, order.inodes, order.group_start, str(snapshot.path))
        before = "" if self.position is None else self.position.plan.id
        file = write_plan(self.memory.folder.path, plan, after=before)
        try:
            self.memory.follow(file.path)
        except BaseException:
            file.remove()
            raise
        self.end_plan()
        every = files_between_positions(snapshot.columns.length[order.inodes])
        self.position, self._position_owner = ReadingPosition(file, every), os.getpid()

    def end_plan(self) -> None:
        """Remove the plan; a forked child leaves its parent's plan alone."""
        position, self.position = self.position, None
        if position is not None and self._position_owner == os.getpid():
            position.plan.remove()

    def close(self) -> None:
        """Leave the task's memory."""
        self.end_plan()
        self.memory.close()
        self.stack.close()
