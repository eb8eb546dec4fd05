"""A store that is read through a cache cluster.

Chunks come from the cache node that owns them, which reads the store for all clients, or else from
the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dieselfs.cache.cluster.peers import CacheClusterPeers
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.verified_source import VerifiedSource


@dataclass(frozen=True, slots=True)
class CacheClusterStatistics:
    """The statistics of a cache cluster in a mount's `stats.json`.

    They count for the mount's process alone, since it began.
    """

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


def with_cache_cluster(
    reader: VerifiedSource, cache_cluster: CacheClusterSettings | None
) -> VerifiedSource:
    """Return a reader through the cache cluster, or `reader` itself if there is none.

    Data from the cluster is verified as `reader` does it.
    """
    return (
        reader
        if cache_cluster is None
        else PeerSource(reader, CacheClusterPeers(cache_cluster, reader.dataset))
    )


def cache_cluster_statistics(source: VerifiedSource) -> CacheClusterStatistics | None:
    """Return the statistics of a source that `with_cache_cluster` made; None without a cluster."""
    if not isinstance(source, PeerSource):
        return None
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
