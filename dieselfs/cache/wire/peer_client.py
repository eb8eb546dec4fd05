"""The client that asks the other masters of the task.

All threads of a process share one connection to each member (DIESEL Fig. 7: p × (n − 1)
connections). The layers above decide whether a member should be asked at all (`breakers`). Here a
connection that ended is replaced at the next request. A forked child begins with no connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chunkstore.after_fork import renew_after_fork
from dieselfs.cache.ports.members import Member, MemberId
from dieselfs.cache.ports.request_tags import TagsOf
from dieselfs.cache.ports.runtime import Lock, PeerAddress, Runtime
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.messages import Answer, Request
from dieselfs.cache.wire.peer_connection import PeerConnection, SentRequest, connect
from dieselfs.errors import PeerFailed

_CLOSED: Final = "the client of the peer cache was closed"


@dataclass(slots=True, eq=False)
class _Link:
    """The connection to one member, and what was counted of earlier ones."""

    address: PeerAddress
    connecting: Lock
    connection: PeerConnection | None = None
    connected: int = 0
    failures: int = 0
    """Attempts to connect that failed."""
    failure: PeerFailed | None = None
    """The last failed attempt to connect."""
    answers: int = 0
    """Answers over connections that were replaced."""
    received_bytes: int = 0


class PeerClient:
    """The connections of one process to the members of a task. Thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        secret: TaskSecret,
        task: str,
        name: str,
        tags_of: TagsOf | None = None,
    ) -> None:
        """`name` identifies this process in the logs of servers.

        Requests for chunks carry the tags that `tags_of` gives, if the server's version has them.
        """
        self._runtime = runtime
        self._secret = secret
        self._task = task
        self._name = name
        self._tags_of = tags_of
        self._closed = False
        self._links: dict[MemberId, _Link] = {}
        renew_after_fork(self)

    def ask(self, member: Member, request: Request) -> Answer:
        """Return the member's answer, never `Working`.

        `Data.bulk` has exactly the number of bytes asked for, and belongs to the caller. Raises
        `PeerFailed` within about a second of silence, or if bulk comes more slowly than 8 MB/s;
        `PeerBusy` after 15 s of nothing but work; `PeerRefused`.
        """
        link = self._links.get(member.id)
        if link is not None and link.address is member.address:  # 0.2 µs less, mostly
            connection = link.connection
            if connection is not None and connection.ended is None:
                return connection.ask(request)
        return self._connection(member).ask(request)

    def begin(self, member: Member, request: Request) -> SentRequest:
        """Send a request, whose answer the caller fetches later, but soon.

        Until then the peer can't send more than the network buffers, and it waits only for a
        limited time. Connects if necessary, for up to 2 s. Raises `PeerFailed`, `PeerRefused`.
        """
        return self._connection(member).begin(request)

    def _connection(self, member: Member) -> PeerConnection:
        link = self._links.get(member.id)
        if link is None:
            link = self._links.setdefault(member.id, _Link(member.address, self._runtime.lock()))
        connection, address = link.connection, member.address
        if (
            connection is None
            or connection.ended is not None
            # A view's members are the same objects for long, and comparing addresses takes 0.4 µs.
            or (link.address is not address and link.address != address)
        ):
            connection = self._connect(link, member)
        return connection

    def version(self, member: Member) -> int:
        """Return the protocol's version in which the member was last spoken to; 0: never."""
        link = self._links.get(member.id)
        connection = None if link is None else link.connection
        return 0 if connection is None else connection.version

    @property
    def connected(self) -> int:
        """The number of connections that were made since this client began."""
        return sum(link.connected for link in list(self._links.values()))

    def connections(self) -> int:
        """Return the number of connections open now."""
        open_now = [link.connection for link in list(self._links.values())]
        return sum(each is not None and each.ended is None for each in open_now)

    def close(self) -> None:
        """Close all connections. Waiting and later requests fail with `PeerFailed`."""
        self._closed = True
        for link in list(self._links.values()):
            if link.connection is not None:
                link.connection.close(_CLOSED)

    def _connect(self, link: _Link, member: Member) -> PeerConnection:
        """Connect to a member, one thread at a time.

        A thread that has waited for another one's attempt shares its result.
        """
        failures = link.failures
        with link.connecting:
            before = link.connection
            moved = link.address != member.address
            if before is not None and before.ended is None and not moved:
                return before
            if self._is_closed():
                raise PeerFailed(_CLOSED)
            if link.failure is not None and link.failures != failures:
                raise type(link.failure)(str(link.failure), link.failure.hint)
            try:
                fresh = connect(
                    self._runtime, self._secret, self._task, self._name, member, self._tags_of
                )
            except PeerFailed as failure:
                link.failures += 1
                link.failure = failure
                raise
            if before is not None:
                before.close(f"peer {member.id} has moved to {member.address}")
            link.address, link.connection = member.address, fresh
            link.connected += 1
        if self._is_closed():  # another thread closed the client meanwhile
            fresh.close(_CLOSED)
        return fresh

    def _is_closed(self) -> bool:
        return self._closed

    def renew(self) -> None:
        """Start without connections in a forked child, whose copies of them are closed."""
        self._links = {}
