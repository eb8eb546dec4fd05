"""The parts that a process has when it leads a task.

They are the leadership, the master, the server through which members reach the master, and the
node's part in the task's peer cache.
"""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chunkstore.chunk_source import ChunkSource
from dieselfs.cache.node.block_eviction import PolicyName
from dieselfs.cache.node.budget import default_budget_bytes
from dieselfs.cache.node.master import Master
from dieselfs.cache.node.master_server import Server
from dieselfs.cache.node.task_folder import Leadership, TaskFolder, sweep
from dieselfs.cache.ports.job_payers import JobPayers
from dieselfs.cache.task.client_plans import ClientPlans

if TYPE_CHECKING:
    from dieselfs.cache.membership.owners import Shares
    from dieselfs.cache.peers.peer_cache import PeerCache
    from dieselfs.cache.ports.peer_settings import PeerSettings

log = logging.getLogger(__name__)

END_S: Final = 60.0
"""The time limit of a helper, for which no process waits."""
LEAVE_PEERS_S: Final = 1.0
"""The time limit for leaving the peer cache."""


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """The settings of a task's node memory; they hold for every process that may lead."""

    folder: TaskFolder
    budget_bytes: int | None
    """The budget that this process asks for; a leader takes None as a share of the free memory."""
    policy: PolicyName
    linger_s: float
    """The time that a helper stays after its last member has left."""
    peers: PeerSettings | None = None
    """The node's settings for the task's peer cache; None if the task has none."""
    job: str | None = None
    """The job that pays for what this process asks for; None: nobody."""
    payers: JobPayers | None = None
    """The budgets of the members' jobs, if this process leads; None: all is free."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The master of a task and all that serves it; `end` ends them.

    If the process is killed instead, the next leader adopts the files.
    """

    master: Master
    plans: ClientPlans
    peers: PeerCache | None
    server: Server
    _leadership: Leadership

    @classmethod
    def begin(cls, settings: MemorySettings, source: ChunkSource) -> Leader | None:
        """Lead the task; return None if another process leads it.

        Raises `OSError` if the task cannot be served.
        """
        leadership = settings.folder.try_lead()
        if leadership is None:
            return None
        try:
            sweep(settings.folder.path.parent)  # folders that ended tasks left; this task is led
            budget_bytes = settings.budget_bytes
            if budget_bytes is None:
                budget_bytes = default_budget_bytes(settings.folder.path)
            shares = None if settings.peers is None else _make_shares(source)
            if shares is None:
                for folder in (settings.folder.heads, settings.folder.peers):
                    shutil.rmtree(folder, ignore_errors=True)  # left by an earlier leader
            master = Master(
                settings.folder,
                source,
                budget_bytes,
                settings.policy,
                follow=lambda plan, payer: plans.follow(plan, payer),
                planned=lambda: plans.statistics(),
                owns=None if shares is None else shares.owns,
                payers=settings.payers,
            )
            plans = ClientPlans(master)
            peers = None
            try:
                if shares is not None:
                    peers = _begin_peer_cache(settings, master, source, shares)
                server = Server(settings.folder, master, peers)
                return cls(master, plans, peers, server, leadership)
            except BaseException:
                if peers is not None:
                    peers.end(LEAVE_PEERS_S)
                master.close()
                raise
        except BaseException:
            leadership.release()
            raise

    def end(self, *, keep_for_members: bool = True, timeout_s: float = END_S) -> None:
        """End the master and remove the task's files.

        With `keep_for_members` the files stay if members are left: these elect another leader,
        which adopts them. After `timeout_s` nothing is waited for any more, and another process
        deletes the remaining files.
        """
        deadline = time.monotonic() + timeout_s
        if self.peers is not None:
            self.peers.end(min(LEAVE_PEERS_S, timeout_s))
        remained = self.server.close(max(0.0, deadline - time.monotonic()))
        self.master.close(max(0.0, deadline - time.monotonic()))
        self._leadership.release(
            remove_folder=not (keep_for_members and remained),
            timeout_s=max(0.0, deadline - time.monotonic()),
        )


# Only tasks with peers load the modules that connect to them.


def _make_shares(source: ChunkSource) -> Shares | None:
    from dieselfs.cache.membership.owners import Shares
    from dieselfs.cache.peers.peer_source import PeerSource

    if isinstance(source, PeerSource):
        return Shares()
    log.warning("this task has no peers: its source of chunks cannot ask them")
    return None


def _begin_peer_cache(
    settings: MemorySettings, master: Master, source: ChunkSource, shares: Shares
) -> PeerCache:
    from dieselfs.cache.peers.peer_cache import PeerCache
    from dieselfs.cache.peers.peer_source import PeerSource

    assert settings.peers is not None
    assert isinstance(source, PeerSource)
    return PeerCache.begin(settings.peers, settings.folder, master, source, shares)
