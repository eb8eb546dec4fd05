"""The statistics of a peer cache in `dlcmd task show` and in a mount's `stats.json`.

They are sums and ratios over the statuses that the members have sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.task_statistics import FillingStatistics, TaskStatistics


@dataclass(frozen=True, slots=True)
class ReadSources:
    """Reads of this node's master by their source: files, whole chunks and blocks together."""

    from_peers: int = 0
    """Reads from an owner's memory."""
    from_second: int = 0
    """Reads for this node's own share from the memory of its previous owner."""
    from_store: int = 0
    """Reads from the store."""


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """Totals of a task as one of its nodes sees it.

    Bytes are those since each node began, unless stated otherwise.
    """

    task: str
    policy: str
    trouble: str
    """The reason why this node does not take part just now; empty if it does."""
    members: int
    members_up: int
    """Members that answer, this node among them."""
    members_open: int
    """Other members whose breaker is open: readers do not ask them."""
    budget_bytes: int
    cached_bytes: int
    share_bytes: int
    """Bytes of all members' shares now, as far as they know them: the dataset, once."""
    share_cached_bytes: int
    from_store_bytes: int
    served_bytes: int
    """Bytes that members sent to each other."""
    task_store_bytes_per_byte: float | None
    """The part that came from the store, of all bytes that nodes got from the store or from peers.

    None if there were none.
    """
    node_store_bytes_per_byte: float | None
    """The same part of the bytes that were loaded into this node's memory."""
    sources: ReadSources
    connections: int
    filling: FillingStatistics | None


def task_totals(statistics: TaskStatistics) -> TaskTotals:
    """Return the totals of a task's statistics."""
    statuses = [member.status for member in statistics.members]
    states = [member.state for member in statistics.members]
    node = next((m.status for m in statistics.members if m.state == "me"), NodeStatus())
    counts = dict(statistics.counts)
    from_store = _sum(statuses, "from_store_bytes")
    served = _sum(statuses, "served_bytes")
    return TaskTotals(
        task=statistics.task,
        policy=statistics.policy,
        trouble=statistics.trouble,
        members=len(states),
        members_up=states.count("up") + states.count("me"),
        members_open=states.count("open"),
        budget_bytes=_sum(statuses, "budget_bytes"),
        cached_bytes=_sum(statuses, "cached_bytes"),
        share_bytes=_sum(statuses, "share_bytes"),
        share_cached_bytes=_sum(statuses, "share_cached_bytes"),
        from_store_bytes=from_store,
        served_bytes=served,
        task_store_bytes_per_byte=share_of(from_store, from_store + served),
        node_store_bytes_per_byte=share_of(
            node.from_store_bytes, node.from_store_bytes + node.from_peers_bytes
        ),
        sources=ReadSources(
            counts.get("read.files_from_peers", 0)
            + counts.get("read.chunks_from_peers", 0)
            - counts.get("read.second_hits", 0),
            counts.get("read.second_hits", 0),
            counts.get("read.files_from_store", 0) + counts.get("read.chunks_from_store", 0),
        ),
        connections=counts.get("connections", 0),
        filling=statistics.filling,
    )


def share_of(part: float, whole: float) -> float | None:
    """Return `part` divided by `whole`, or None if `whole` is 0."""
    return part / whole if whole else None


def _sum(statuses: Sequence[NodeStatus], name: str) -> int:
    return sum(getattr(status, name) for status in statuses)
