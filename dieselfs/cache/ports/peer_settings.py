"""The settings by which a node takes part in its task's peer cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret

CachePolicy: TypeAlias = Literal["oneshot", "on-demand"]
"""DIESEL §4.2: fetch the whole share at the start, or each chunk at its first use."""


@dataclass(frozen=True, slots=True)
class RedisLeases:
    """The membership registry in Redis."""

    url: str = field(repr=False)
    """`redis://…` or `redis+cluster://…`; it may contain a password."""


@dataclass(frozen=True, slots=True)
class StaticPeers:
    """The membership registry that is a static list."""

    addresses: tuple[PeerAddress, ...]
    """The addresses of all members, this node's own among them, the same on every node."""


@dataclass(frozen=True, slots=True)
class RankZero:
    """The membership registry of a PyTorch job: the master of node 0 keeps the member list."""

    address: PeerAddress
    """The address of that master."""
    node_rank: int
    nodes: int


LOOPBACK: Final = PeerAddress("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """All settings of one node. Never shows the secret.

    It pickles, for the helper process that is the master for clients.
    """

    task: str
    """The task's name, the same on all nodes. Name and secret together keep tasks apart."""
    secret: TaskSecret
    registry: RedisLeases | StaticPeers | RankZero
    listen: PeerAddress = LOOPBACK
    advertise: str | None = None
    """The host to which peers are told to connect; None stands for the host that is listened on."""
    member: str | None = None
    """This node's id; None stands for its advertised address.

    The port belongs to that id only if the address is loopback's or from a static list.
    """
    nodes: int | None = None
    """The number of the task's nodes if it is known.

    *oneshot* then begins when all are there, or after some seconds.
    """
    cache_policy: CachePolicy = "on-demand"
    gives_memory: bool = True
    """False if this node has no share, and only reads."""
