"""The choice of the job registry, by the index."""

from __future__ import annotations

from typing import Final

from dieselfs.cache.jobs.job_registry import JobRegistry
from dieselfs.cache.jobs.jobs_folder import JobsFolder

_REDIS: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")


def is_redis(index_url: str) -> bool:
    """Return whether the index is in a Redis, a server or a cluster."""
    return index_url.partition("://")[0] in _REDIS


def job_registry(index_url: str) -> JobRegistry:
    """Return the registry beside an index: in its Redis, or else in this node's shared memory.

    Datasets have unique ids, so the jobs of several stores may share one. Raises
    `IndexUnavailable` if the URL is no address of a Redis. No call is made.
    """
    if not is_redis(index_url):
        return JobsFolder()
    from dieselfs.cache.jobs.redis_jobs import (
        RedisJobs,
    )  # an embedded set-up must not need redis-py

    return RedisJobs(index_url)
