"""A store, read through a ring of cache nodes: chunks come from the node that owns them, which reads the store for all, or else from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dieselfs.cachenodes.ring_peers import RingPeers
from dieselfs.cachenodes.ring_settings import RingSettings
from dieselfs.peercache.peer_source import PeerSource
from dieselfs.peercache.verified_source import VerifiedSource


@dataclass(frozen=True, slots=True)
class RingFigures:
    """What a mount's `stats.json` says of the ring that it reads through: of its process alone, since it began."""

    nodes: int = 0
    """Known. As of now, as the next one."""
    nodes_up: int = 0
    """That answer."""
    chunks_from_ring: int = 0
    """Whole chunks, and pieces of large files."""
    files_from_ring: int = 0
    bytes_from_ring: int = 0
    bytes_from_store: int = 0
    """What the ring did not have in time."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Questions that a node did not answer by what was asked for, by reason."""


def with_ring(reader: VerifiedSource, ring: RingSettings | None) -> VerifiedSource:
    """The reader itself if there is no ring. What comes through it is verified as `reader` does it."""
    return reader if ring is None else PeerSource(reader, RingPeers(ring, reader.dataset))


def ring_figures(source: VerifiedSource) -> RingFigures | None:
    """Of what `with_ring` has made; None if there is no ring."""
    if not isinstance(source, PeerSource):
        return None
    read, nodes = source.statistics(), source.nodes()
    return RingFigures(
        nodes=len(nodes),
        nodes_up=sum(nodes.values()),
        chunks_from_ring=read.chunks_from_peers,
        files_from_ring=read.files_from_peers,
        bytes_from_ring=read.bytes_from_peers,
        bytes_from_store=read.bytes_from_store,
        fallbacks=read.fallbacks,
    )
