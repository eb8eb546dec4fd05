"""A task's master as a member in the master's own process sees it: calls instead of messages."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task.leader import Leader
from dieselfs.cache.task.task_master import TaskMaster
from dieselfs.cache.wire.local_messages import Message
from dieselfs.errors import MasterGone


class LocalMaster:
    """The `TaskMaster` of the process that leads. It is also a `CacheObserver` of its master.

    It is one membership, ended by `close`, and is never used in a forked child. A call that fails
    since the master has ended raises `MasterGone`, as over the socket.
    """

    def __init__(
        self, leader: Leader, budget_bytes: int | None, exchange: Callable[[TaskMaster], None]
    ) -> None:
        """Join the master. Raises `MasterGone`.

        `exchange` handles pending cache events and sends notices; any thread may call it.
        """
        self._master, self._peers = leader.master, leader.peers
        self._exchange = exchange
        self._evicted: deque[str] = deque()
        self.is_gone = False
        self.pid = os.getpid()
        self._port = self._master.member()
        if budget_bytes is not None:
            self._port.set_budget(budget_bytes)
        self._master.listen(self)

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None:
        """See `MasterPort`. The calling thread itself fetches the block, if it is the first."""
        self._port.fetch(block, ahead=ahead)

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        """See `MasterPort`."""
        self._port.prefetch(blocks)

    def expect(self, names: Sequence[str]) -> None:
        """See `MasterPort`."""
        self._port.expect(names)

    def set_budget(self, budget_bytes: int) -> None:
        """See `MasterPort`."""
        self._port.set_budget(budget_bytes)

    def follow(self, plan: Path) -> None:
        """See `MasterPort`."""
        self._port.follow(plan)

    def statistics(self) -> MemoryStatistics:
        """See `MasterPort`."""
        return self._port.statistics()

    def task_statistics(self) -> TaskStatistics | None:
        """See `TaskMaster`."""
        return None if self._peers is None else self._peers.statistics()

    def suspect(self, peer: str) -> None:
        """See `TaskMaster`."""
        if self._peers is not None:
            self._peers.suspect(peer)

    def send_notice(self, notice: Message, *, wait: bool = True) -> bool:
        """See `TaskMaster`. It never has to wait."""
        self._evicted.extend(self._port.notice(notice))
        return True

    def events(self) -> Sequence[tuple[bool, str]]:
        """See `TaskMaster`."""
        items = []
        while self._evicted:
            items.append((True, self._evicted.popleft()))
        return items

    def close(self) -> None:
        """Leave the task."""
        self.is_gone = True
        self._master.ignore(self)
        self._port.close()

    def forsake(self) -> None:
        """Do nothing more in a forked child; the parent keeps its membership."""
        self.is_gone = True

    def evicted(self, name: str) -> None:
        """See `CacheObserver`."""
        self._evicted.append(name)

    def release_evicted(self) -> None:
        """See `CacheObserver`."""
        with suppress(MasterGone):
            self._exchange(self)
