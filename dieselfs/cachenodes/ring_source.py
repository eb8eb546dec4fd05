"""A store, read through a ring of cache nodes: chunks come from the node that owns them, which reads the store for all, or else from the store."""

from __future__ import annotations

from dieselfs.cachenodes.ring_peers import RingPeers
from dieselfs.cachenodes.ring_settings import RingSettings
from dieselfs.peercache.peer_source import PeerSource
from dieselfs.peercache.verified_source import VerifiedSource


def with_ring(reader: VerifiedSource, ring: RingSettings | None) -> VerifiedSource:
    """The reader itself if there is no ring. What comes through it is verified as `reader` does it."""
    return reader if ring is None else PeerSource(reader, RingPeers(ring, reader.dataset))
