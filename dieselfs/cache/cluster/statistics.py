"""The statistics of a cache cluster in a mount's `stats.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dieselfs.cache.peers.peer_source import PeerSource


@dataclass(frozen=True, slots=True)
class CacheClusterStatistics:
    """The statistics of one process as a cluster's client. They count since it began."""

    nodes: int = 0
    """The current number of known nodes."""
    nodes_up: int = 0
    """The current number of nodes that answer."""
    chunks_from_nodes: int = 0
    """Whole chunks, and blocks of large files."""
    files_from_nodes: int = 0
    bytes_from_nodes: int = 0
    bytes_from_store: int = 0
    """Bytes that the cache cluster did not deliver in time."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Requests that a node did not answer with the data asked for, by reason."""


def cache_cluster_statistics(source: PeerSource) -> CacheClusterStatistics:
    """Return the statistics of a source whose peers are a cluster's nodes."""
    read, nodes = source.statistics(), source.nodes()
    return CacheClusterStatistics(
        nodes=len(nodes),
        nodes_up=sum(nodes.values()),
        chunks_from_nodes=read.chunks_from_peers,
        files_from_nodes=read.files_from_peers,
        bytes_from_nodes=read.bytes_from_peers,
        bytes_from_store=read.bytes_from_store,
        fallbacks=read.fallbacks,
    )
