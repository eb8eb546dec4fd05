"""What a task's peer cache is doing, as one node's master sees it: for `dlcmd task show`, and whoever asks the master over the task's socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dieselfs.peercache.held_chunks import NodeStatus
from dieselfs.peercache.members import MemberId
from dieselfs.peercache.settings import CachePolicy

MemberState: TypeAlias = Literal["me", "up", "silent", "refused", "open"]
"""`silent`: has not answered the last ping. `refused`: it, or this node, does not believe that the other is of the task. `open`: its breaker is, so that readers do not ask it."""


@dataclass(frozen=True, slots=True)
class MemberStatistics:
    id: MemberId
    address: str
    """`host:port`."""
    weight: int
    """MiB of memory that it gives; 0: it only reads."""
    node: str
    state: MemberState
    answered_s: float | None
    """Since the last ping that it has answered began; None if it never has, and of this node itself."""
    status: NodeStatus
    """As it said with its last pong; of this node, as of now. All 0 if it has said nothing yet."""


@dataclass(frozen=True, slots=True)
class FillingStatistics:
    """Of the policy *oneshot*: how far this node is with fetching its share."""

    blocks: int = 0
    """Of its share in the present view, in the snapshots that it knows."""
    blocks_cached: int = 0
    share_bytes: int = 0
    cached_bytes: int = 0
    fetched_bytes: int = 0
    """Brought in by it since this node began."""
    rate_bytes_s: float = 0.0
    """While it was at work."""
    done: bool = False
    """Whatever there is room for is here, and nothing has changed since."""


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    task: str
    """As all nodes call it."""
    policy: CachePolicy
    members: tuple[MemberStatistics, ...] = ()
    """Sorted by id, this node among them. Empty while it does not take part: see `trouble`."""
    filling: FillingStatistics | None = None
    """None under *on-demand*."""
    counts: tuple[tuple[str, int], ...] = field(default=())
    """Name and value of what this node's master counts of its reads from peers (`read.…`), its server (`served.…`), and its connections to peers."""
    trouble: str = ""
    """Why this node does not take part just now; empty if it does."""
