"""The statistics of a task's peer cache, as one node's master sees it.

`dlcmd task show` shows them, and any process may ask the master for them over the task's socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import MemberId
from dieselfs.cache.ports.peer_settings import CachePolicy

MemberState: TypeAlias = Literal["me", "up", "silent", "refused", "open"]
"""The state of a member.

`silent`: the member did not answer the last ping. `refused`: the member or this node does not
accept that the other belongs to the task. `open`: the member's breaker is open, so readers do not
ask it.
"""


@dataclass(frozen=True, slots=True)
class MemberStatistics:
    """The statistics of one member."""

    id: MemberId
    address: str
    """`host:port`."""
    weight: int
    """MiB of memory that the member gives; 0 if it only reads."""
    node: str
    state: MemberState
    answered_s: float | None
    """Seconds since the last ping that the member answered began.

    None if it never answered one, and for this node itself.
    """
    status: NodeStatus
    """The status in the member's last pong; for this node, as of now.

    All 0 before the first pong.
    """


@dataclass(frozen=True, slots=True)
class FillingStatistics:
    """The progress of the policy *oneshot*: how much of its share this node has fetched."""

    blocks: int = 0
    """Blocks of the node's share in the present view, in the snapshots that it knows."""
    blocks_cached: int = 0
    share_bytes: int = 0
    cached_bytes: int = 0
    fetched_bytes: int = 0
    """Bytes loaded by the filling since this node began."""
    rate_bytes_s: float = 0.0
    """The rate while the filling was at work."""
    done: bool = False
    """All blocks for which there is room are cached, and nothing has changed since."""


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """The statistics of a task as one node sees it."""

    task: str
    """The task's name, the same on all nodes."""
    policy: CachePolicy
    members: tuple[MemberStatistics, ...] = ()
    """The members, sorted by id, this node among them.

    Empty while this node does not take part: see `trouble`.
    """
    filling: FillingStatistics | None = None
    """The progress of the filling; None under *on-demand*."""
    counts: tuple[tuple[str, int], ...] = field(default=())
    """Name and value of each count of this node's master.

    The counts are those of its reads from peers (`read.…`), of its server (`served.…`), and of its
    connections to peers.
    """
    trouble: str = ""
    """The reason why this node does not take part just now; empty if it does."""
