"""The port through which the masters of a task find each other.

It is implemented by leases in Redis, by a static list, which is here, and by rank 0 of a PyTorch
job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress

LEASE_S: Final = 6.0
"""The length of a lease: a node that does not announce itself for so long is no member any more."""
HEARTBEAT_S: Final = 1.0
"""The interval between two announcements of a node."""
EQUAL_WEIGHT: Final = 1
"""The weight of each member of a static list, which contains no memory sizes."""


class MembershipRegistry(Protocol):
    """The list of a task's members. One thread at a time uses it."""

    def announce(self, me: Member) -> Sequence[Member]:
        """Renew the lease of `me`, and return all members that have one now.

        The members come in any order, and `me` is among them. Costs one round trip. Raises
        `RegistryUnavailable` within about 2 s if the registry can't be asked.
        """
        ...

    def leave(self, me: Member) -> None:
        """Give the lease back if that can be done within a second. Never raises."""
        ...


class StaticRegistry:
    """The `MembershipRegistry` of a list that every node was given. Its calls cost nothing.

    No node is asked for it, and pings tell which members are there.
    """

    def __init__(self, addresses: Sequence[PeerAddress]) -> None:
        self._members = tuple(
            Member(str(address), address, EQUAL_WEIGHT) for address in dict.fromkeys(addresses)
        )

    def announce(self, me: Member) -> Sequence[Member]:
        """Return the list, with `me` in place of its own entry.

        The two differ in the host's name alone.
        """
        return [me if member.id == me.id else member for member in self._members]

    def leave(self, me: Member) -> None:
        """Do nothing: the other nodes notice that this one does not answer."""
