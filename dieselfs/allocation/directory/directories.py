"""The choice of the allocation directory, by the index."""

from __future__ import annotations

from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.cache.jobs.registries import is_redis


def allocation_directory(index_url: str) -> AllocationDirectory:
    """Return the directory beside an index: in its Redis, or else in this node's shared memory.

    Datasets have unique ids, so several stores may share one. Raises `IndexUnavailable` if the URL
    is no address of a Redis. No call is made.
    """
    if not is_redis(index_url):
        return FolderDirectory()
    from dieselfs.allocation.directory.redis_directory import RedisDirectory

    return RedisDirectory(index_url)
