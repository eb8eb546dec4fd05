"""A node's part in its task's peer cache, in the process that leads the node: it begins and ends with the leader."""

from __future__ import annotations

from dieselfs.node_memory.master import Master
from dieselfs.node_memory.task_folder import TaskFolder
from dieselfs.peercache.settings import PeerSettings
from dieselfs.peercache.task_statistics import TaskStatistics


class PeerCache:
    """Begin it by `begin`, end it by `end`."""

    @classmethod
    def begin(cls, settings: PeerSettings, folder: TaskFolder, master: Master) -> PeerCache:
        """Never fails: what keeps this node from taking part is logged, and tried again every few seconds, while the node works without peers."""
        raise NotImplementedError

    def statistics(self) -> TaskStatistics:
        """About 0.1 ms and 5 µs a member."""
        raise NotImplementedError

    def end(self, timeout_s: float) -> None:
        """Leave the task. Readers go past peers from now on; what does not end within `timeout_s` is left to the end of the process."""
        raise NotImplementedError
