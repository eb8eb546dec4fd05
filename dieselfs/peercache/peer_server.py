"""Answers the task's other masters and their processes from what this node's memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dieselfs.peercache.held_chunks import HeldChunks
from dieselfs.peercache.members import Member, MemberId
from dieselfs.peercache.runtime import Address, Runtime
from dieselfs.peercache.secret import TaskSecret


class Roll(Protocol):
    """The list of members that rank 0 keeps. Thread-safe; neither blocks nor raises."""

    def join(self, member: Member) -> Sequence[Member]:
        """Renew its lease; all that have one now."""
        ...

    def leave(self, member: MemberId) -> None: ...


@dataclass(frozen=True, slots=True)
class PeerServerStatistics:
    """Counts and bytes since it began, unless said otherwise."""

    connections: int
    """As of now."""
    accepted: int
    refused: int
    """That did not prove to be of the task, came too many, or broke the protocol."""
    requests: int
    """Answered with data."""
    sent_bytes: int
    """Bulk alone."""


class PeerServer:
    """Serves from when it is made until `close`."""

    def __init__(
        self,
        runtime: Runtime,
        secret: TaskSecret,
        task: str,
        me: MemberId,
        listen: Address,
        held: HeldChunks,
        roll: Roll | None = None,
    ) -> None:
        """`OSError` if it can't listen there. Pongs tell `held.status()`, with what this server has sent in `served_bytes` and `served_requests`."""
        raise NotImplementedError

    @property
    def address(self) -> Address:
        """With the port that was chosen."""
        raise NotImplementedError

    def statistics(self) -> PeerServerStatistics:
        raise NotImplementedError

    def close(self, timeout_s: float) -> bool:
        """All connections end. Whether all threads have ended, too, within the time: one may hang in a fetch."""
        raise NotImplementedError
