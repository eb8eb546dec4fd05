"""Asks the task's other masters: one connection a member, shared by all threads of a process (DIESEL Fig. 7: p × (n − 1) connections).

Whether a member should be asked at all is decided above (`breakers`): here a connection that ended is replaced at the next question. A
forked child begins with no connections.
"""

from __future__ import annotations

from dieselfs.peercache.members import Member
from dieselfs.peercache.messages import Answer, Request
from dieselfs.peercache.peer_connection import Pending
from dieselfs.peercache.runtime import Runtime
from dieselfs.peercache.secret import TaskSecret


class PeerClient:
    """Thread-safe."""

    def __init__(self, runtime: Runtime, secret: TaskSecret, task: str, name: str) -> None:
        """`name`: of this process, for the logs of servers."""
        raise NotImplementedError

    def ask(self, member: Member, request: Request) -> Answer:
        """Its answer, never `Working`; `Data.bulk` has exactly the number of bytes asked for, and is the caller's.

        Raises `PeerFailed` within about a second of silence, after 15 s of nothing but work, or at bulk that comes slower than 8 MB/s;
        `PeerRefused`.
        """
        return self.begin(member, request).result()

    def begin(self, member: Member, request: Request) -> Pending:
        """Ask, and fetch the answer later, by the thread that asks, and soon: the peer can't send more than the network holds meanwhile."""
        raise NotImplementedError

    def connections(self) -> int:
        """How many there are now."""
        raise NotImplementedError

    def close(self) -> None:
        """All that wait get `PeerFailed`, and all that ask from now on."""
        raise NotImplementedError
