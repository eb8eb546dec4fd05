"""The settings of a node of a cache cluster."""

from __future__ import annotations

from dataclasses import dataclass

from dieselfs.cache.cluster.chunk_memory import DEFAULT_MEMORY_BYTES
from dieselfs.cache.ports.peer_settings import RedisLeases
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.ssd.settings import SsdSettings


@dataclass(frozen=True, slots=True)
class CacheNodeSettings:
    """The settings of one cache node."""

    cache_cluster: str
    secret: TaskSecret
    ssd: SsdSettings
    listen: PeerAddress
    """The address on which it listens, with a port."""
    advertise: str | None = None
    """The host to which clients connect; None: the host on which it listens."""
    leases: RedisLeases | None = None
    """The place where it announces itself; None: it is in the lists of the clients."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    listed: tuple[PeerAddress, ...] = ()
    """The nodes of a cluster without leases, as clients list them; (): not known here."""

    @property
    def address(self) -> PeerAddress:
        """The address at which clients reach it."""
        return PeerAddress(self.advertise or self.listen.host, self.listen.port)

    @property
    def id(self) -> str:
        """Its address: the same after a restart, so that it owns the chunks on its SSD."""
        return str(self.address)
