"""A store, read through a cache cluster of cache nodes: chunks come from the node that owns them, which reads the store for all, or else from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dieselfs.cachenodes.ring_peers import CacheClusterPeers
from dieselfs.cachenodes.ring_settings import CacheClusterSettings
from dieselfs.peercache.peer_source import PeerSource
from dieselfs.peercache.verified_source import VerifiedSource


@dataclass(frozen=True, slots=True)
class CacheClusterStatistics:
    """What a mount's `stats.json` says of the cache cluster that it reads through: of its process alone, since it began."""

    nodes: int = 0
    """Known. As of now, as the next one."""
    nodes_up: int = 0
    """That answer."""
    chunks_from_nodes: int = 0
    """Whole chunks, and pieces of large files."""
    files_from_nodes: int = 0
    bytes_from_nodes: int = 0
    bytes_from_store: int = 0
    """What the cache cluster did not have in time."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Questions that a node did not answer by what was asked for, by reason."""


def with_cache_cluster(
    reader: VerifiedSource, cache_cluster: CacheClusterSettings | None
) -> VerifiedSource:
    """The reader itself if there is no cache cluster. What comes through it is verified as `reader` does it."""
    return (
        reader
        if cache_cluster is None
        else PeerSource(reader, CacheClusterPeers(cache_cluster, reader.dataset))
    )


def cache_cluster_statistics(source: VerifiedSource) -> CacheClusterStatistics | None:
    """Of what `with_ring` has made; None if there is no cache cluster."""
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
