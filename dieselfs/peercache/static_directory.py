"""The members of a task as a list that every node was given: nobody is asked, and pings say who is there.

A list says nothing of memory, so all in it have an equal share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dieselfs.peercache.members import Member
from dieselfs.peercache.runtime import PeerAddress

EQUAL_WEIGHT: Final = 1


class StaticRegistry:
    """Implements `MembershipRegistry`, at no cost."""

    def __init__(self, addresses: Sequence[PeerAddress]) -> None:
        self._members = tuple(
            Member(str(address), address, EQUAL_WEIGHT) for address in dict.fromkeys(addresses)
        )

    def announce(self, me: Member) -> Sequence[Member]:
        """`me` is that of the list, its name aside."""
        return [me if member.id == me.id else member for member in self._members]

    def leave(self, me: Member) -> None:
        """The others notice that it does not answer."""
