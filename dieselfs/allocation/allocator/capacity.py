"""The cache and the remote IO that are divided, as an administrator or a cache cluster says."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from chunkstore.ssd.region_files import region_bytes_for
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES
from dieselfs.cache.cluster.options import configured_cluster
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.cluster.status import cluster_nodes
from dieselfs.cache.ssd.byte_sizes import human_size
from dieselfs.config import Config
from dieselfs.errors import RegistryUnavailable, UsageError

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 5.0
"""A cache node that is gone is out of the estimate within 15 s."""


def capacity_of(
    config: Config, cache_bytes: int | None, io_bytes_per_s: float
) -> Callable[[], tuple[int, float]]:
    """Return a function that returns the bytes of cache and the bytes a second of remote IO.

    Raises `UsageError` if no cache is given, and no cache cluster configured, and for a cache below
    a region.
    """
    if not io_bytes_per_s > 0:
        raise UsageError("--remote-io of 0", "write for instance 200MB/s")
    if cache_bytes is not None:
        check_feasible("--cache", cache_bytes)
        return lambda: (cache_bytes, io_bytes_per_s)
    cluster = configured_cluster(config, os.environ)
    if cluster is None:
        raise UsageError(
            "--cache is not given, and no cache cluster is configured",
            "write for instance --cache 2TiB",
        )
    return ClusterCapacity(cluster, io_bytes_per_s)


def check_feasible(what: str, size_bytes: int, least: int | None = None) -> None:
    """Raise `UsageError` if SSDs could keep nothing within a size, though it is not 0.

    `least` is the size of their regions; None stands for the smallest regions that there are.
    """
    least = region_bytes_for(0, DEFAULT_SEGMENT_BYTES) if least is None else least
    if 0 < size_bytes < least:
        raise UsageError(
            f"{what} of {human_size(size_bytes)} is smaller than a region, so nothing would be "
            "cached",
            f"give at least {human_size(least)} (SSDs are divided into regions), or 0 to cache "
            "nothing",
        )


class ClusterCapacity:
    """The capacity of a cache cluster: the sum over the nodes that answer, about 5 s old."""

    def __init__(
        self,
        cluster: CacheClusterSettings,
        io_bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._io, self._clock = cluster, io_bytes_per_s, clock
        self._looked_at = float("-inf")
        self._bytes: int | None = None
        """None: it was never known."""
        self._answered: Mapping[str, int] = {}
        """The bytes of each node that answered at the last look, by its id."""

    def __call__(self) -> tuple[int, float]:
        """Return the capacity. Raises `RegistryUnavailable` if it was never known."""
        now = self._clock()
        if self._bytes is None or now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._bytes = self._look()
        return self._bytes, self._io

    def _look(self) -> int:
        """Return the bytes of all nodes. One that is silent for the first time counts as before.

        Without its bytes, quotas would be lowered, and chunks evicted, for a pause of a second.
        """
        try:
            nodes = cluster_nodes(self._cluster)
        except RegistryUnavailable as error:
            if self._bytes is None:
                raise
            log.warning("the cache cluster counts as it was: %s", error)
            return self._bytes
        former = self._answered
        self._answered = {
            node.member.id: node.status.budget_bytes for node in nodes if node.status is not None
        }
        silent = [node.member.id for node in nodes if node.status is None]
        return sum(self._answered.values()) + sum(former.get(id, 0) for id in silent)
