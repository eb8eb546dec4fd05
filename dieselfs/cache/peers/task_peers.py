"""The peers that one process may ask: those in its node's view that its breakers allow.

A process of the task finds its peers in the task's folder as soon as the node's master has
published a view there, and closes its connections when there is no view any more. The master itself
and a simulation are given theirs. The folder's name is the task's: peers are for tasks that were
named.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.chunk_id import ChunkId
from dieselfs.cache.membership.breakers import Breakers
from dieselfs.cache.membership.placement import Placement, reachable
from dieselfs.cache.membership.view_file import ViewFile
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers.routing import Role, Step, owner_of, steps
from dieselfs.cache.ports.members import Member, MemberId, View, ViewBoard
from dieselfs.cache.ports.runtime import Runtime
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import LocalFileError

if TYPE_CHECKING:
    from chunkstore.stores.read_turn import Payer
    from dieselfs.cache.peers.paid_requests import PaidRequests

log = logging.getLogger(__name__)


class KnownPeers(Protocol):
    """The peers that one process may ask. Thread-safe.

    It is implemented by `TaskPeers`, and by the peers of a cache cluster.
    """

    def current(self) -> Peers | None:
        """Return the peers, or None if there are none to ask.

        Takes about 0.2 µs most of the time; the first call loads the modules that connect.
        """
        ...

    def breakers(self) -> Breakers | None:
        """Return the breakers, or None if there were never any peers to ask."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Peers:
    """The peers of one view."""

    view: View
    placement: Placement
    client: PeerClient
    breakers: Breakers
    runtime: Runtime
    payer: Payer | None = None
    """The payer of bytes that a peer fetches for this process; None: they are free."""

    @property
    def paid(self) -> PaidRequests:
        """The requests that are paid for."""
        from dieselfs.cache.peers.paid_requests import PaidRequests

        return PaidRequests(self.client, self.payer)

    def steps(self, chunk: ChunkId, role: Role) -> Iterator[Step]:
        """Yield the requests for a chunk: see `routing.steps`."""
        return steps(self.placement.ranked(chunk), self.view.me.id, self.is_up, role)

    def owner(self, chunk: ChunkId) -> Member | None:
        """Return the member to ask first for a chunk: see `routing.owner_of`."""
        return owner_of(self.placement.ranked(chunk), self.view.me.id, self.is_up)

    def is_up(self, peer: MemberId) -> bool:
        """Return whether the peer's breaker allows a request."""
        return self.breakers.allows(peer, self.view.answered.get(peer))


class TaskPeers:
    """The `KnownPeers` of a task. Thread-safe.

    A forked child has connections and breakers of its own.
    """

    def __init__(self, folder: TaskFolder) -> None:
        self._folder = folder
        self._board: ViewBoard = ViewFile(folder.path)
        self._runtime: Runtime | None = None
        self._given: PeerClient | None = None
        """Set by `attach`; this object does not close it."""
        self._given_breakers: Breakers | None = None
        self._trouble = ""
        self._failed: Callable[[MemberId], None] | None = None
        self._opening: threading.Lock
        self._opened: PeerClient | None
        """Opened by this object, which closes it."""
        self._peers: Peers | None
        renew_now_and_after_fork(self)

    def attach(
        self, runtime: Runtime, client: PeerClient, board: ViewBoard, breakers: Breakers
    ) -> None:
        """Use these from now on. They stay the caller's."""
        with self._opening:
            opened, self._opened = self._opened, None
            self._runtime, self._board = runtime, board
            self._given, self._given_breakers = client, breakers
            self._peers = None
        if opened is not None:
            opened.close()

    def report_failed(self, failed: Callable[[MemberId], None]) -> None:
        """Set the callback for peers that this process finds failing.

        It is called at most once a second for each peer, and not for the breakers that `attach`
        gives.
        """
        self._failed = failed

    def current(self) -> Peers | None:
        """See `KnownPeers`."""
        view = self._board.current()
        peers = self._peers
        if view is None:
            if peers is not None:
                self._drop_peers()
            return None
        if peers is None or peers.view is not view:
            return self._adopt(view)
        return peers

    def breakers(self) -> Breakers | None:
        """Return the breakers, or None if there was never a view."""
        peers = self._peers
        return self._given_breakers if peers is None else peers.breakers

    def renew(self) -> None:
        """Start without connections in a forked child, which has none of its parent's.

        A lock of the parent may be held, so the child gets a new one.
        """
        self._opening = threading.Lock()
        self._opened = None
        self._peers = None
        if self._given_breakers is not None and self._runtime is not None:
            self._given_breakers = Breakers(self._runtime.now)

    def _adopt(self, view: View) -> Peers | None:
        with self._opening:
            before = self._peers
            if before is not None and before.placement.members == reachable(view):
                placement = before.placement  # keeps its rankings
            else:
                placement = Placement.of(view)
            if before is not None:
                peers = Peers(view, placement, before.client, before.breakers, before.runtime)
            else:
                runtime = self._runtime or OperatingSystem()
                client = self._given or self._open(runtime, view)
                if client is None:
                    return None
                breakers = self._given_breakers or Breakers(runtime.now, self._failed)
                peers = Peers(view, placement, client, breakers, runtime)
            self._peers = peers
            return peers

    def _open(self, runtime: Runtime, view: View) -> PeerClient | None:
        try:
            assert isinstance(self._board, ViewFile)
            secret = self._board.read_secret()
        except LocalFileError as error:
            self._note_trouble(f"{error}; {error.hint}" if error.hint else str(error))
            return None
        if secret is None:
            return None  # the secret is not written yet, or removed
        name = f"{view.me.id}/{os.getpid()}"
        client = PeerClient(runtime, secret, self._folder.path.name, name)
        weakref.finalize(self, client.close)
        self._opened = client
        return client

    def _drop_peers(self) -> None:
        with self._opening:
            opened, self._opened = self._opened, None
            self._peers = None
        if opened is not None:
            opened.close()

    def _note_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("this process reads without peers: %s", trouble)
