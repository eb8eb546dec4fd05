"""The tasks of this user on this node, with the statistics of their masters, for tools."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dieselfs.cache.node.task_folder import memory_root
from dieselfs.cache.ports.master_port import MemoryScrub, MemoryStatistics
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task.remote_master import RemoteMaster
from dieselfs.errors import MasterGone


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task's folder and the statistics of its master.

    A master that is gone or hangs gives none.
    """

    folder: Path
    leader_pid: int | None = None
    memory: MemoryStatistics | None = None
    peers: TaskStatistics | None = None
    """None: the task has no peer cache."""

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.folder.name

    @property
    def processes(self) -> int:
        """The number of processes that read through its memory now, without the caller."""
        return 0 if self.memory is None else self.memory.members - 1


def running_tasks() -> list[RunningTask]:
    """Return all tasks that have a folder, sorted by name. A master that hangs takes up to 2 s."""
    root = memory_root()
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [ask(root / name) for name in sorted(names) if not name.startswith(".")]


def ask(folder: Path) -> RunningTask:
    """Return the state of one task, by joining it for a moment. Never fail."""
    try:
        master = RemoteMaster(folder / "socket")
    except MasterGone:
        return RunningTask(folder)
    try:
        return RunningTask(folder, master.pid, master.statistics(), master.task_statistics())
    except MasterGone:
        return RunningTask(folder, master.pid)
    finally:
        master.close()


def scrub_task(folder: Path) -> MemoryScrub:
    """Have a task's master verify the chunks that it caches, and evict the damaged ones.

    Raises `MasterGone` if no master answers, or one of a former release.
    """
    master = RemoteMaster(folder / "socket")
    try:
        return master.scrub()
    finally:
        master.close()
