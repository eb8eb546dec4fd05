"""The settings of the cache cluster to read through, and its secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dieselfs.cache.ports.peer_settings import RedisLeases, StaticPeers
from dieselfs.cache.ports.secret import TaskSecret

DEFAULT_CLUSTER: Final = "ring"
"""The name of a cluster that was given none.

The name is part of keys in Redis and of the handshake, so it stays what it was.
"""


@dataclass(frozen=True, slots=True)
class CacheClusterOptions:
    """The values of flags and -o options (`cache_cluster_options`). None: not given."""

    cache_cluster: str | None = None
    secret_file: str | None = None


@dataclass(frozen=True, slots=True)
class CacheClusterSettings:
    """The settings of a client. They pickle; the secret is never shown."""

    name: str
    secret: TaskSecret
    registry: RedisLeases | StaticPeers
    """The place where the cluster's nodes are found.

    The addresses of a list are the ids of the nodes (`node_settings.CacheNodeSettings.id`).
    """
