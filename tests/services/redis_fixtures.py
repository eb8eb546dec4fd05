"""Fixtures: a Redis server and a Redis Cluster, one a test process, empty for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metadata.kv import redis_slot
from tests.eventually import PATIENCE_S
from tests.services.redis_processes import RedisCluster, RedisProcess


@pytest.fixture(scope="session")
def _redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def _redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("redis-cluster")) as cluster:
        cluster.rest()
        yield cluster


@pytest.fixture
def patient_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of one slot wait for a Redis that a busy machine stalls. Their 0.6 s are for a test
    that pauses it."""
    monkeypatch.setattr(redis_slot, "TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(redis_slot, "LOOK_UP_S", PATIENCE_S)


@pytest.fixture
def redis_url(_redis_server: RedisProcess, patient_redis: None) -> str:
    with _redis_server.client() as client:
        client.flushall()
    return _redis_server.url


@pytest.fixture
def redis_cluster_url(_redis_cluster: RedisCluster, patient_redis: None) -> str:
    for master in _redis_cluster.masters():
        with master.client() as client:
            client.flushall()
    return _redis_cluster.url


@pytest.fixture
def own_redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """For tests that stop, pause or kill it."""
    with RedisProcess(tmp_path_factory.mktemp("own-redis")) as server:
        yield server


@pytest.fixture
def own_redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """For tests that stop, pause or kill nodes."""
    with RedisCluster(tmp_path_factory.mktemp("own-cluster"), node_timeout_ms=1000) as cluster:
        yield cluster
