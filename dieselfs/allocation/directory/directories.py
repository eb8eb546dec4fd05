"""The choice of the allocation directory: by the index, and by where the process runs."""

from __future__ import annotations

import os

from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.cache.jobs.job_name import annotations_path
from dieselfs.cache.jobs.registries import is_redis


def allocation_directory(index_url: str) -> AllocationDirectory:
    """Return the directory beside an index: in its Redis, or else that of the pod or the node.

    In a pod that is told its annotations, those are the directory; elsewhere the node's shared
    memory is.

    Datasets have unique ids, so several stores may share one. Raises `IndexUnavailable` if the URL
    is no address of a Redis. No call is made.
    """
    if not is_redis(index_url):
        return _directory_here()
    from dieselfs.allocation.directory.redis_directory import RedisDirectory

    return RedisDirectory(index_url)


def _directory_here() -> AllocationDirectory:
    path = annotations_path(os.environ)
    if path is None:
        return FolderDirectory()
    from dieselfs.allocation.directory.pod import PodDirectory

    return PodDirectory(path)
