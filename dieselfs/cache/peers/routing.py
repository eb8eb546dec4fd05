"""The members that are asked for a chunk before the store, and their order.

The decision is docs/decisions/0011, points 2, 3 and 7. A *reader* asks the chunk's owner, which
fetches the chunk for all; if that fails, it asks the next owner among the remaining members, once.
An *owner*, or a node that was asked in the owner's place, asks the best-ranked other member
*whether it has the chunk cached*: so a member that joins or returns takes over from the one that
had it. A request that may not fetch is never passed on, so there is no loop and no second hop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from dieselfs.cache.ports.members import Member, MemberId

Role: TypeAlias = Literal["reader", "owner"]

MAX_OWNERS_ASKED: Final = 2
"""The number of owners that a reader asks, one after the other.

If a third one failed as well, the network would be at fault, and each attempt costs a second.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One request. The next one is sent only if this one fails.

    After the answer `NotCached` or `Failed` the chunk is read from the store at once.
    """

    peer: Member
    may_fetch: bool


def steps(
    ranked: Sequence[Member], me: MemberId, is_up: Callable[[MemberId], bool], role: Role
) -> Iterator[Step]:
    """Yield the requests for a chunk. At their end the chunk is read from the store.

    `ranked` are the members that have a share and answer, the owner first. `is_up` says which of
    them the breakers allow; it is called again after each failure, and never for `me`.
    """
    asked = 0
    for member in ranked:
        if member.id == me:
            if role == "reader":
                return
        elif is_up(member.id):
            yield Step(member, role == "reader")
            asked += 1
            if role == "owner" or asked == MAX_OWNERS_ASKED:
                return


def owner_of(
    ranked: Sequence[Member], me: MemberId, is_up: Callable[[MemberId], bool]
) -> Member | None:
    """Return the member to ask first: the best-ranked of those that can be asked, or `me`.

    None if no member has a share.
    """
    for member in ranked:
        if member.id == me or is_up(member.id):
            return member
    return None
