"""Who is in a task: its members, and one node's view of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from dieselfs.peercache.runtime import PeerAddress

MemberId: TypeAlias = str
"""1 to 64 printable ASCII characters without blanks. Of a node, the same when its master has started again: placement depends on it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node's master, as it announces itself."""

    id: MemberId
    address: PeerAddress
    weight: int
    """Its share of the chunks, relative to the others': MiB of memory that it gives. 0: it has no share, and only reads."""
    node: str = ""
    """The host's name, for people."""


@dataclass(frozen=True, slots=True)
class View:
    """Whom one node believes to be in the task at a time. Immutable; a newer one replaces it."""

    me: Member
    members: tuple[Member, ...] = ()
    """All that have a lease, sorted by id, `me` among them."""
    answered: Mapping[MemberId, float] = field(default_factory=dict)
    """When the last ping that a peer has answered began (`Runtime.now`). A peer that is not in it never has."""
    silent: frozenset[MemberId] = frozenset()
    """Peers that have not answered the last ping."""


class ViewBoard(Protocol):
    """Where a node's master shows its view to the node's processes. Thread-safe."""

    def publish(self, view: View) -> None: ...

    def withdraw(self) -> None:
        """There is no peer cache any more."""
        ...

    def current(self) -> View | None:
        """None: there is no peer cache (any more). About 0.1 µs most of the time."""
        ...
