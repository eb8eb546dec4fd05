"""The members of a task, and one node's view of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from dieselfs.cache.ports.runtime import PeerAddress

MemberId: TypeAlias = str
"""An id of 1 to 64 printable ASCII characters without blanks.

It belongs to the node and stays the same when the node's master restarts: placement depends on it.
"""


@dataclass(frozen=True, slots=True)
class Member:
    """One node's master, as it announces itself."""

    id: MemberId
    address: PeerAddress
    weight: int
    """Its share of the chunks relative to the other members': MiB of memory that it gives.

    A member of weight 0 has no share, and only reads.
    """
    node: str = ""
    """The host's name, for people."""


@dataclass(frozen=True, slots=True)
class View:
    """The members that one node believes to be in the task at one time.

    Immutable; a newer view replaces it.
    """

    me: Member
    members: tuple[Member, ...] = ()
    """All members that have a lease, sorted by id, `me` among them."""
    answered: Mapping[MemberId, float] = field(default_factory=dict)
    """The time at which the last ping that a peer answered began (`Runtime.now`).

    A peer that never answered has no entry.
    """
    silent: frozenset[MemberId] = frozenset()
    """Peers that did not answer the last ping."""


class ViewBoard(Protocol):
    """The place where a node's master shows its view to the node's processes. Thread-safe."""

    def publish(self, view: View) -> None:
        """Replace the view that the node's processes see."""
        ...

    def withdraw(self) -> None:
        """Remove the view: there is no peer cache any more."""
        ...

    def current(self) -> View | None:
        """Return the view, or None if there is no peer cache (any more).

        Takes about 0.1 µs most of the time.
        """
        ...
