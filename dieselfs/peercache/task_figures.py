"""What `dlcmd task show` and a mount's `stats.json` say of a peer cache: sums and shares over what its members have said of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dieselfs.peercache.held_chunks import NodeStatus
from dieselfs.peercache.task_statistics import FillingStatistics, TaskStatistics


@dataclass(frozen=True, slots=True)
class ReadSources:
    """Where this node's master has what it read from: files, whole chunks and pieces together."""

    from_peers: int = 0
    """Of an owner's memory."""
    from_second: int = 0
    """Of this node's own share, from the memory of who had it before."""
    from_store: int = 0


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """Of a task as one of its nodes sees it. Bytes since each node began, unless said otherwise."""

    task: str
    policy: str
    trouble: str
    """Why this node does not take part just now; empty if it does."""
    members: int
    members_up: int
    """This node among them."""
    members_open: int
    """Of the others, those whose breaker is open: readers do not ask them."""
    budget_bytes: int
    cached_bytes: int
    share_bytes: int
    """Of all members' shares, as far as they know them: the dataset, once. As of now."""
    share_cached_bytes: int
    from_store_bytes: int
    served_bytes: int
    """By members to each other."""
    task_store_bytes_per_byte: float | None
    """Of what came to a node from the store or from a peer, how much came from the store. None: nothing came."""
    node_store_bytes_per_byte: float | None
    """The same of what came into this node's memory."""
    sources: ReadSources
    connections: int
    filling: FillingStatistics | None


def task_totals(statistics: TaskStatistics) -> TaskTotals:
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
    return part / whole if whole else None


def _sum(statuses: Sequence[NodeStatus], name: str) -> int:
    return sum(getattr(status, name) for status in statuses)
