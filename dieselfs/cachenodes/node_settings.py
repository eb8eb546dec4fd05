"""How a node takes part in a cache cluster."""

from __future__ import annotations

from dataclasses import dataclass

from dieselfs.cachenodes.chunk_memory import DEFAULT_MEMORY_BYTES
from dieselfs.peercache.runtime import PeerAddress
from dieselfs.peercache.secret import TaskSecret
from dieselfs.peercache.settings import RedisLeases
from dieselfs.ssd_tier import SsdSettings


@dataclass(frozen=True, slots=True)
class CacheNodeSettings:
    cache_cluster: str
    secret: TaskSecret
    ssd: SsdSettings
    listen: PeerAddress
    """With a port."""
    advertise: str | None = None
    """The host that clients connect to; None: the one that is listened on."""
    leases: RedisLeases | None = None
    """Where it announces itself; None: it is in the lists that clients have."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES

    @property
    def address(self) -> PeerAddress:
        """At which clients reach it."""
        return PeerAddress(self.advertise or self.listen.host, self.listen.port)

    @property
    def id(self) -> str:
        """Its address: the same after a restart, so that it owns what its SSD holds."""
        return str(self.address)
