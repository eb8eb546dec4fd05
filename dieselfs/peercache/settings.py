"""How a node takes part in its task's peer cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from dieselfs.peercache.runtime import PeerAddress
from dieselfs.peercache.secret import TaskSecret

CachePolicy: TypeAlias = Literal["oneshot", "on-demand"]
"""DIESEL §4.2: fetch the whole share at the start, or each chunk at its first use."""


@dataclass(frozen=True, slots=True)
class RedisLeases:
    url: str = field(repr=False)
    """`redis://…` or `redis+cluster://…`; it may hold a password."""


@dataclass(frozen=True, slots=True)
class StaticPeers:
    addresses: tuple[PeerAddress, ...]
    """Of all members, this node's own among them, the same on every node."""


@dataclass(frozen=True, slots=True)
class RankZero:
    """The nodes of a PyTorch job: the master of node 0 keeps the list of members."""

    address: PeerAddress
    """Of that master."""
    node_rank: int
    nodes: int


LOOPBACK: Final = PeerAddress("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Pickles, for the helper process that leads for clients; the secret is never shown."""

    task: str
    """The same on all nodes. With the secret it is what keeps tasks apart."""
    secret: TaskSecret
    registry: RedisLeases | StaticPeers | RankZero
    listen: PeerAddress = LOOPBACK
    advertise: str | None = None
    """The host that peers are told to connect to; None: the one that is listened on."""
    member: str | None = None
    """This node's id; None: its advertised address, without the port unless that is loopback's or from a static list."""
    nodes: int | None = None
    """How many the task has, if that is known: *oneshot* begins when all are there, or after some seconds."""
    cache_policy: CachePolicy = "on-demand"
    gives_memory: bool = True
    """False: this node has no share, and only reads."""
