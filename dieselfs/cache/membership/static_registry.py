"""The members of a task as a list that every node was given.

No node is asked for it, and pings tell which members are there. The list contains no memory sizes,
so all members have an equal share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress

EQUAL_WEIGHT: Final = 1


class StaticRegistry:
    """The `MembershipRegistry` of a fixed list. Its calls cost nothing."""

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
