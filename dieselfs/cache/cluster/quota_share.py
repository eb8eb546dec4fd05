"""The part of each dataset's quota that one cache node keeps: its weight's share of the cluster.

Placement gives chunks to nodes by their weights, so a node that keeps this part of a quota has room
for this part of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.cache.ports.members import Member, MemberId

STEADY_S: Final = 3.0
"""The time for which a share must stay the same before a node keeps more.

Nodes see each other within a second or two, and what is above a quota is evicted within a second.
"""


def quota_share(
    me: MemberId, reader: str, members: Iterable[Member], leases: Iterable[ReaderLease]
) -> float | None:
    """Return the share of a node, from 0 to 1; None if nothing is known yet.

    `members` are the nodes of the cluster as clients find them, and `leases` those that its nodes
    have in the allocation directory; `reader` is the id of this node's own. Of the two the smaller
    share counts: nodes that are seen in one place alone keep their parts.
    """
    weights = {member.id: member.weight for member in members}
    sizes = {lease.reader: lease.cache_bytes for lease in leases if lease.cache_bytes}
    found = []
    if weights.get(me):
        found.append(weights[me] / sum(weights.values()))
    if sizes.get(reader):
        found.append(sizes[reader] / sum(sizes.values()))
    return min(found, default=None)


class SteadyShare:
    """A share that is lowered at once, and raised when it has stayed the same for `STEADY_S`.

    So the shares of all nodes never exceed 1 while nodes come and go.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._since = 0.0
        self.now: float | None = None
        """The share to keep; None before one has been steady."""

    def note(self, share: float | None, now: float) -> None:
        """Take note of the share at a time."""
        if share is None:
            return
        if share != self._last:
            self._last, self._since = share, now
        if now - self._since >= STEADY_S or (self.now is not None and share < self.now):
            self.now = share
