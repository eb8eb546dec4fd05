"""The allocation directory in Redis: its contract, on a server and in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from redis.cluster import RedisCluster as ClusterClient

from dieselfs.allocation.directory import redis_directory
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.allocation.directory.redis_directory import RedisDirectory
from metadata import keys
from tests.contracts.allocation_directory import AllocationDirectoryContract, Place
from tests.eventually import eventually

MAPS = {
    "caches": keys.ALLOCATED_CACHES,
    "ios": keys.ALLOCATED_IO,
    "jobs": keys.ALLOCATION_JOBS,
}


@contextmanager
def client_of(url: str) -> Iterator[redis.Redis]:
    """A client that knows nothing of ours, to look and to damage."""
    if url.startswith("redis+cluster"):
        first = url.partition("://")[2].partition(",")[0]
        client = ClusterClient.from_url(f"redis://{first}")
    else:
        client = redis.Redis.from_url(url)
    try:
        yield client
    finally:
        client.close()


class RedisPlace(Place):
    module = redis_directory

    def __init__(self, url: str) -> None:
        self.url, self.opened = url, list[RedisDirectory]()

    def open(self) -> RedisDirectory:
        directory = RedisDirectory(self.url)
        self.opened.append(directory)
        return directory

    def put(self, kind: str, key: str, content: bytes) -> None:
        with client_of(self.url) as client:
            client.hset(MAPS[kind], key, content)

    def lead_until_it_ends(self, directory: AllocationDirectory, id: str) -> None:
        assert directory.lead(id, 0.05) == id
        with client_of(self.url) as client:
            eventually(lambda: not client.exists(keys.ALLOCATION_LEADER), "the lease ends")


@pytest.fixture(params=["redis_url", "redis_cluster_url"])
def place(request: pytest.FixtureRequest) -> Iterator[RedisPlace]:
    found = RedisPlace(request.getfixturevalue(request.param))
    yield found
    for directory in found.opened:
        directory.close()


class TestRedisDirectory(AllocationDirectoryContract):
    @pytest.fixture
    def place(self, place: RedisPlace) -> RedisPlace:
        return place
