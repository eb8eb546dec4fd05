"""The status of a cache cluster: its nodes, their shares and their own status, asked once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from dieselfs.cache.cluster.peers import cluster_registry
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.cluster.topic import CacheClusterTopic
from dieselfs.cache.ports.cached_chunks import NodeStatus, PolicyStatus
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.messages import (
    POLICY_VERSION,
    Answer,
    AskPolicy,
    Ping,
    PolicyReport,
    Pong,
)
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import PeerFailed

_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class CacheNodeReport:
    """The status of one node."""

    member: Member
    share: float
    """The part of the chunks, from 0 to 1: its weight among the nodes that answer."""
    status: NodeStatus | None
    """None: it does not answer."""
    policy: PolicyStatus | None = None
    """None: it is of a release that tells nothing about its cache policy."""
    trouble: str = ""
    """The reason why it does not answer."""
    answered_in_s: float = 0.0


def cluster_nodes(settings: CacheClusterSettings) -> Sequence[CacheNodeReport]:
    """Return the nodes, ordered by id. It takes about 2 s if one does not answer.

    Raises `RegistryUnavailable`.
    """
    looker = Member("client/status", PeerAddress("client", 1), 0)
    registry = cluster_registry(settings)
    try:
        members = sorted(registry.announce(looker), key=lambda member: member.id)
    finally:
        registry.leave(looker)
    topic = str(CacheClusterTopic(settings.name))
    client = PeerClient(OperatingSystem(), settings.secret, topic, looker.id)

    def asked(member: Member) -> CacheNodeReport:
        began = time.monotonic()
        policy: Answer | None = None
        try:
            answer = client.ask(member, Ping())
            took_s = time.monotonic() - began
            if client.version(member) >= POLICY_VERSION:
                policy = client.ask(member, AskPolicy())
        except PeerFailed as error:
            return CacheNodeReport(
                member, 0.0, None, trouble=f"{error}; {error.hint}" if error.hint else str(error)
            )
        status = answer.status if isinstance(answer, Pong) else None
        of_policy = policy.status if isinstance(policy, PolicyReport) else None
        return CacheNodeReport(member, 0.0, status, of_policy, answered_in_s=took_s)

    try:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            nodes = list(threads.map(asked, members))
    finally:
        client.close()
    total = sum(node.member.weight for node in nodes if node.status is not None)
    return [
        node if node.status is None else replace(node, share=node.member.weight / max(1, total))
        for node in nodes
    ]
