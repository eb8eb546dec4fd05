"""The master of a task as `NodeMemory` uses it, in its own process or in another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.wire.local_messages import Message


class TaskMaster(Protocol):
    """One membership: a `MasterPort` with notices and cache events. Thread-safe.

    `local_master` and `remote_master` implement it.
    """

    is_gone: bool
    """True if the master has died or this membership has ended."""
    pid: int
    """The process of the master."""

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None:
        """See `MasterPort`.

        While it waits, cache events are handled: the room that it waits for may be mapped by this
        process.
        """
        ...

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        """See `MasterPort`."""
        ...

    def expect(self, names: Sequence[str]) -> None:
        """See `MasterPort`."""
        ...

    def set_budget(self, budget_bytes: int) -> None:
        """See `MasterPort`."""
        ...

    def set_quota(self, quota_bytes: int | None, window_bytes: int = 0) -> None:
        """See `MasterPort`."""
        ...

    def follow(self, plan: Path) -> None:
        """See `MasterPort`."""
        ...

    def statistics(self) -> MemoryStatistics:
        """See `MasterPort`."""
        ...

    def task_statistics(self) -> TaskStatistics | None:
        """Return the statistics of the node's part in the peer cache; None if it has none."""
        ...

    def suspect(self, peer: str) -> None:
        """Report that a peer of the task failed to answer.

        When this returns, the master does not ask the peer for a while.
        """
        ...

    def send_notice(self, notice: Message, *, wait: bool = True) -> bool:
        """Send a notice; return False if that would have to wait and may not.

        Raises `MasterGone`, also if it waits too long.
        """
        ...

    def has_ended(self) -> bool:
        """Return whether it is gone, also if nothing was asked of it since. Never wait."""
        ...

    def events(self) -> Sequence[tuple[bool, str]]:
        """Return the pending cache events in order, as (evicted, name).

        One thread at a time may call it. Raises `MasterGone`.
        """
        ...

    def close(self) -> None:
        """End the membership. Threads that wait for another process's answer get `MasterGone`."""
        ...

    def forsake(self) -> None:
        """Close the copies of connections in a forked child; the parent keeps its own."""
        ...
