"""Which cache cluster is read through, and by which secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dieselfs.peercache.secret import TaskSecret
from dieselfs.peercache.settings import RedisLeases, StaticPeers

DEFAULT_CLUSTER: Final = "ring"
"""Its name is part of keys in Redis and of the handshake, so it stays what it was."""


@dataclass(frozen=True, slots=True)
class CacheClusterOptions:
    """As flags and -o options say it (`cache_cluster_options`). None: not said."""

    cache_cluster: str | None = None
    secret_file: str | None = None


@dataclass(frozen=True, slots=True)
class CacheClusterSettings:
    """For who reads. Pickles; the secret is never shown."""

    name: str
    secret: TaskSecret
    registry: RedisLeases | StaticPeers
    """Where its nodes are found. The addresses of a list are those under which the nodes go (`node_settings.CacheNodeSettings.id`)."""
