"""Of whom a chunk is asked, and in which order, before it is read from the store (docs/decisions/0011-peer-cache.md, points 2, 3 and 7).

A *reader* asks the chunk's owner, who fetches it for all; if that fails, the next owner among those left, once. Who owns the chunk, or was asked
for it as if it did, asks the best-ranked other member *whether it holds it*: who joins or returns takes over from who had it.
A question that may not fetch is never passed on, so there is no loop and no second hop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from dieselfs.peercache.members import Member, MemberId

Role: TypeAlias = Literal["reader", "owner"]

MAX_OWNERS_ASKED: Final = 2
"""By a reader, one after the other: a third that fails as well would be the network's fault, and each costs a second."""


@dataclass(frozen=True, slots=True)
class Step:
    """A question; the next one is asked only if this fails. What is answered `NotCached` or `Failed` is read from the store at once."""

    peer: Member
    may_fetch: bool


def steps(
    ranked: Sequence[Member], me: MemberId, is_up: Callable[[MemberId], bool], role: Role
) -> Iterator[Step]:
    """The questions for a chunk, lazily: `is_up` is asked again after each failure. The end of them: the store.

    `ranked` are the members that have a share and answer, the owner first; `is_up` says whom the breakers let be asked, and is not asked of me.
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
    """Who is to be asked first: the best of those that can be, who may be myself. None: nobody has a share."""
    for member in ranked:
        if member.id == me or is_up(member.id):
            return member
    return None
