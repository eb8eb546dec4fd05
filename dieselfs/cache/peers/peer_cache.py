"""A node's part in its task's peer cache, in the process of the node's master.

It begins and ends with the master. An obstacle (a port in use, a wrong membership registry) keeps
no reader waiting: the node works without peers, and tries again every few seconds. One thread does
that, follows the view (which blocks belong to this node's share) and starts the filling.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Final

from dieselfs.cache.membership.owners import Shares
from dieselfs.cache.membership.placement import Placement, reachable
from dieselfs.cache.membership.view_file import ViewFile
from dieselfs.cache.node.master import Master
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers.cached_files import CachedFiles
from dieselfs.cache.peers.node_share import NodeShare
from dieselfs.cache.peers.oneshot import Oneshot
from dieselfs.cache.peers.participation import Participation
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import MemberId, View
from dieselfs.cache.ports.peer_settings import PeerSettings
from dieselfs.cache.ports.runtime import Runtime
from dieselfs.cache.ports.task_statistics import MemberState, MemberStatistics, TaskStatistics
from dieselfs.errors import DieselFSError
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

AGAIN_S: Final = 3.0
"""The pause after this node could not take part."""
LOOK_S: Final = 0.05
"""The interval between two looks at the view, and so the delay of a change of the share."""
STEADY_S: Final = 2.0
"""The time for which a changed share must stay the same before it is fetched.

A peer that was silent only for a moment takes its share back.
"""
FIRST_LOOK_S: Final = 1.0
"""The longest time for which a node that joins a task waits for its first view.

It begins to read when it knows which peers it may ask, mostly after some milliseconds.
"""
SETTLED_S: Final = 30.0
"""The longest time for which the filling waits for nodes that are announced to come."""


class PeerCache:
    """A node's part in a peer cache, from `begin` to `end`."""

    def __init__(
        self,
        settings: PeerSettings,
        folder: TaskFolder,
        master: Master,
        source: PeerSource,
        shares: Shares,
        runtime: Runtime,
    ) -> None:
        self._settings, self._folder, self._master = settings, folder, master
        self._source, self._shares, self._runtime = source, shares, runtime
        self._share = NodeShare(shares, self._snapshots, master.blocks.names, runtime.now)
        self._cached = CachedFiles(folder, master, self._completed)
        self._oneshot = Oneshot(runtime, master) if settings.cache_policy == "oneshot" else None
        self._part: Participation | None = None
        self._trouble = ""
        self._fill_at: float | None = None
        """The time at which the share is to be fetched; None if it need not be."""
        self._has_settled = False
        self._give_up_waiting_at = 0.0
        self._lock = runtime.lock()
        self._end = runtime.condition(self._lock)
        self._ending = False
        self._end_by = 0.0
        self._begin()
        self._wait_for_first_look()
        self._thread = runtime.start(self._run, "peer-cache")

    @classmethod
    def begin(
        cls,
        settings: PeerSettings,
        folder: TaskFolder,
        master: Master,
        source: PeerSource,
        shares: Shares,
        runtime: Runtime | None = None,
    ) -> PeerCache:
        """Begin to take part. Never fails.

        An obstacle to taking part is logged and tried again every few seconds, while the node works
        without peers. `shares` is the object that `master` asks whether this node owns a block.
        """
        from dieselfs.cache.wire.os_runtime import OperatingSystem

        return cls(settings, folder, master, source, shares, runtime or OperatingSystem())

    def statistics(self) -> TaskStatistics:
        """Return the statistics. Takes about 0.1 ms and 5 µs a member."""
        part, filling = self._part, None
        if self._oneshot is not None:
            share = self._share
            filling = self._oneshot.statistics(
                blocks=len(share.blocks), share_bytes=share.size_bytes, cached=share.cached()
            )
            filling = replace(filling, done=filling.done and self._fill_at is None)
        return TaskStatistics(
            task=self._settings.task,
            policy=self._settings.cache_policy,
            members=() if part is None else tuple(self._members(part)),
            filling=filling,
            counts=tuple(self._counts(part)),
            trouble=self._trouble or ("" if part is None else part.membership.trouble),
        )

    def suspect(self, peer: MemberId) -> None:
        """Note that a process of this node asked a peer and failed.

        When this returns the master asks that peer no more; soon no process of the node does.
        """
        part = self._part
        if part is not None:
            part.breakers.failed(peer)

    def end(self, timeout_s: float) -> None:
        """Leave the task. Readers go past peers from now on.

        Threads that do not end within `timeout_s` are left to the end of the process.
        """
        with self._lock:
            self._end_by = self._runtime.now() + timeout_s
            self._ending = True
            self._end.notify_all()
        if self._oneshot is not None:
            self._oneshot.close(0.0)  # its fetches end with the master
        self._thread.join(timeout_s)
        self._cached.close()

    def _run(self) -> None:
        pause_s = LOOK_S
        while not self._ended_within(pause_s):
            if self._part is None:
                self._begin()
            if self._part is not None:
                self._look(self._part)
            pause_s = AGAIN_S if self._part is None else LOOK_S
        part, self._part = self._part, None
        if part is not None:
            part.end(self._runtime, max(0.0, self._end_by - self._runtime.now()))

    def _ended_within(self, seconds: float) -> bool:
        deadline = self._runtime.now() + seconds
        with self._lock:
            while not self._ending and (left_s := deadline - self._runtime.now()) > 0:
                self._end.wait(left_s)
            return self._ending

    def _begin(self) -> None:
        try:
            self._part = Participation.begin(
                self._settings,
                self._folder,
                self._runtime,
                self._cached,
                self._source,
                self._master.statistics().budget_bytes,
            )
        except (OSError, DieselFSError) as error:
            hint = error.hint if isinstance(error, DieselFSError) else None
            trouble = f"{error}; {hint}" if hint else str(error)
            if isinstance(error, OSError):
                trouble = f"cannot listen on {self._settings.listen}: {error.strerror or error}"
            if trouble != self._trouble:
                log.warning(
                    "this node works without the peers of task %s, and retries every %g s: %s",
                    *(self._settings.task, AGAIN_S, trouble),
                )
            self._trouble = trouble
            return
        self._trouble = ""
        self._give_up_waiting_at = self._runtime.now() + SETTLED_S
        me = self._part.me
        log.info("%s has joined task %s at %s", me.id, self._settings.task, me.address)

    def _wait_for_first_look(self) -> None:
        """Wait until the registry has answered, and each peer has answered a ping or missed one.

        Waits at most for `FIRST_LOOK_S`.
        """
        deadline, board = self._runtime.now() + FIRST_LOOK_S, ViewFile(self._folder.path)
        while self._part is not None and self._runtime.now() < deadline:
            published, view = board.current(), self._part.membership.view
            others = {member.id for member in view.members} - {view.me.id}
            if published is not None and others <= view.answered.keys() | view.silent:
                self._look(self._part)
                return
            self._runtime.sleep(FIRST_LOOK_S / 100)

    def _look(self, part: Participation) -> None:
        view = part.membership.view
        placement = self._shares.placement
        if placement is None or placement.members != reachable(view):
            self._shares.place(Placement.of(view), part.me.id)
            self._shares.prepare(self._master.blocks.names())
            self._master.blocks.shares_changed()
        changed = self._share.update()
        if self._oneshot is not None:
            self._fill(self._oneshot, part, changed)

    def _fill(self, oneshot: Oneshot, part: Participation, changed: bool) -> None:
        now = self._runtime.now()
        if not self._has_settled:
            self._has_settled = now >= self._give_up_waiting_at or part.membership.settled(
                self._settings.nodes, 0.0
            )
            self._fill_at = now
        elif changed:
            self._fill_at = now + STEADY_S
        if self._has_settled and self._fill_at is not None and now >= self._fill_at:
            self._fill_at = None
            oneshot.fill(self._share.blocks)

    def _snapshots(self) -> Sequence[Snapshot]:
        expected = self._source.expected
        return expected.snapshots if isinstance(expected, ExpectedFiles) else ()

    def _completed(self, status: NodeStatus) -> NodeStatus:
        read = self._source.statistics()
        return replace(
            status,
            share_bytes=self._share.size_bytes,
            share_cached_bytes=self._share.cached()[1],
            from_store_bytes=read.bytes_from_store,
            from_peers_bytes=read.bytes_from_peers,
        )

    def _members(self, part: Participation) -> Iterator[MemberStatistics]:
        view, statuses = part.membership.view, part.membership.statuses()
        now, served = self._runtime.now(), part.server.statistics()
        refused = part.membership.refused()
        for member in view.members:
            answered = view.answered.get(member.id)
            if member.id == part.me.id:
                status = replace(
                    self._cached.status(),
                    served_bytes=served.sent_bytes,
                    served_requests=served.requests,
                )
            else:
                status = statuses.get(member.id, NodeStatus())
            yield MemberStatistics(
                id=member.id,
                address=str(member.address),
                weight=member.weight,
                node=member.node,
                state="refused" if member.id in refused else _state(member.id, view, part),
                answered_s=None if answered is None else now - answered,
                status=status,
            )

    def _counts(self, part: Participation | None) -> Iterator[tuple[str, int]]:
        read = self._source.statistics()
        for field in fields(read):
            value = getattr(read, field.name)
            if isinstance(value, int):
                yield f"read.{field.name}", value
        for reason, count in sorted(read.fallbacks.items()):
            yield f"read.fallbacks.{reason}", count
        if part is not None:
            served = part.server.statistics()
            for field in fields(served):
                yield f"served.{field.name}", getattr(served, field.name)
            yield "connections", part.client.connections()


def _state(member: MemberId, view: View, part: Participation) -> MemberState:
    if member == part.me.id:
        return "me"
    if not part.breakers.allows(member, view.answered.get(member)):
        return "open"
    return "up" if member in view.answered and member not in view.silent else "silent"
