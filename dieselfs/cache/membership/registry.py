"""The port through which the masters of a task find each other.

It is implemented by leases in Redis, by a static list, and by rank 0 of a PyTorch job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from dieselfs.cache.ports.members import Member

LEASE_S: Final = 6.0
"""The length of a lease: a node that does not announce itself for so long is no member any more."""
HEARTBEAT_S: Final = 1.0
"""The interval between two announcements of a node."""


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
