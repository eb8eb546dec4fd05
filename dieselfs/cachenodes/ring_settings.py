"""Which ring is read through, and by which secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dieselfs.peercache.secret import TaskSecret
from dieselfs.peercache.settings import RedisLeases, StaticPeers

DEFAULT_RING: Final = "ring"


@dataclass(frozen=True, slots=True)
class RingOptions:
    """As flags and -o options say it (`ring_options`). None: not said."""

    ring: str | None = None
    secret_file: str | None = None


@dataclass(frozen=True, slots=True)
class RingSettings:
    """For who reads. Pickles; the secret is never shown."""

    name: str
    secret: TaskSecret
    registry: RedisLeases | StaticPeers
    """Where its nodes are found. The addresses of a list are those under which the nodes go (`node_settings.CacheNodeSettings.id`)."""
