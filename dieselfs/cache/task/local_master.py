"""A task's master as a member in the master's own process sees it: calls instead of messages."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from chunkstore.errors import ChunkStoreError
from dieselfs.cache.node.member_port import MemberPort, master_failed
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task.leader import Leader
from dieselfs.cache.task.task_master import TaskMaster
from dieselfs.cache.wire.local_messages import Message
from dieselfs.errors import DieselFSError, MasterGone


class LocalMaster(MemberPort):
    """The `TaskMaster` of the process that leads. It is also a `CacheObserver` of its master.

    It is one membership, ended by `close`, and is never used in a forked child. The thread that
    calls `fetch` first fetches the block itself.
    """

    def __init__(
        self,
        leader: Leader,
        budget_bytes: int | None,
        exchange: Callable[[TaskMaster], None],
        job: str | None = None,
    ) -> None:
        """Join the master. Raises `MasterGone`.

        `exchange` handles pending cache events and sends notices; any thread may call it.
        """
        super().__init__(leader.master, job)
        self._peers, self._exchange = leader.peers, exchange
        self._evicted: deque[str] = deque()
        self.is_gone = False
        self.pid = os.getpid()
        if budget_bytes is not None:
            self.set_budget(budget_bytes)
        self._master.blocks.listen(self)

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None:
        """See `TaskMaster`. A failure that no reader expects is a `MasterGone`."""
        try:
            super().fetch(block, ahead=ahead)
        except (ChunkStoreError, DieselFSError):
            raise
        except Exception as error:
            raise master_failed(error) from None

    def task_statistics(self) -> TaskStatistics | None:
        """See `TaskMaster`."""
        return None if self._peers is None else self._peers.statistics()

    def suspect(self, peer: str) -> None:
        """See `TaskMaster`."""
        if self._peers is not None:
            self._peers.suspect(peer)

    def send_notice(self, notice: Message, *, wait: bool = True) -> bool:
        """See `TaskMaster`. It never has to wait."""
        self._evicted.extend(self.notice(notice))
        return True

    def has_ended(self) -> bool:
        """See `TaskMaster`."""
        return self.is_gone

    def events(self) -> Sequence[tuple[bool, str]]:
        """See `TaskMaster`."""
        items = []
        while self._evicted:
            items.append((True, self._evicted.popleft()))
        return items

    def close(self) -> None:
        """Leave the task."""
        self.is_gone = True
        self._master.blocks.ignore(self)
        super().close()

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
