"""The port through which the masters of a task find each other: leases in Redis, a static list, or rank 0 of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from dieselfs.peercache.members import Member

LEASE_S: Final = 6.0
"""Who has not announced itself for so long is no member any more."""
HEARTBEAT_S: Final = 1.0


class MembershipRegistry(Protocol):
    """One thread at a time."""

    def announce(self, me: Member) -> Sequence[Member]:
        """Renew my lease; all that have one now, myself among them, in any order.

        Raises `RegistryUnavailable` within about 2 s if it can't be asked. Costs one round trip.
        """
        ...

    def leave(self, me: Member) -> None:
        """Give the lease back, if that can be done within a second. Never raises."""
        ...
