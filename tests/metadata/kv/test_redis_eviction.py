"""What servers say of evictions: what is asked, and what follows for reads and writes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NoReturn

import pytest
import redis
from redis import exceptions

from metadata.errors import IndexEvicts
from metadata.kv.evictions import NOTHING_EVICTED, Evictions, evictions_of
from metadata.kv.memory import MemoryStore
from metadata.kv.redis_cluster import RedisClusterStore
from metadata.kv.redis_eviction import joined, read_answers
from metadata.kv.redis_server import RedisServerStore
from tests.contracts.key_value_store_contract import get_one, new_key, put_one, value
from tests.services.redis_processes import RedisCluster, RedisProcess

REFUSED = exceptions.NoPermissionError("this user has no permissions to run the command")
MEMORY = b"used_memory:1\r\nmaxmemory_policy:%b\r\n"


def answers(policy: bytes, evicted: int = 0) -> Evictions:
    def unasked() -> NoReturn:
        raise AssertionError("INFO has told the policy")

    return read_answers([MEMORY % policy, b"evicted_keys:%d\r\n" % evicted], unasked, "shown")


@pytest.mark.parametrize(
    ("policy", "evicted", "expected"),
    [
        (b"noeviction", 0, NOTHING_EVICTED),
        (b"noeviction", 3, Evictions(None, 3)),  # by another policy, before
        (b"volatile-lru", 3, NOTHING_EVICTED),  # no key of ours
        (b"allkeys-lfu", 0, Evictions("allkeys-lfu", 0)),
        (b"a-policy-of-tomorrow", 2, Evictions("a-policy-of-tomorrow", 2)),
    ],
)
def test_policies(policy: bytes, evicted: int, expected: Evictions) -> None:
    assert answers(policy, evicted) == expected


def test_a_server_that_tells_its_policy_in_its_configuration_alone() -> None:
    configured = [b"maxmemory-policy", b"allkeys-lru"]
    found = read_answers([b"used_memory:1\r\n", b""], lambda: configured, "shown")
    assert found == Evictions("allkeys-lru", 0)


def test_a_server_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert read_answers([REFUSED] * 2, lambda: REFUSED, "shown") == NOTHING_EVICTED
    assert len(caplog.records) == 1
    assert "does not tell its maxmemory-policy" in caplog.text


def test_one_server_that_evicts_is_enough() -> None:
    assert joined([answers(b"noeviction", 1), answers(b"allkeys-lru", 2)]) == Evictions(
        "allkeys-lru", 3
    )
    assert joined([]) == NOTHING_EVICTED


def test_a_store_that_says_nothing_of_evictions_has_none() -> None:
    assert evictions_of(MemoryStore(), now=True) == NOTHING_EVICTED


def test_a_server_that_evicts_is_read_and_not_written(own_redis_server: RedisProcess) -> None:
    key = new_key()
    before = RedisServerStore(own_redis_server.url)
    put_one(before, key, b"a", value(1))
    with own_redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    store = RedisServerStore(own_redis_server.url)
    assert get_one(store, key, b"a") == value(1)
    with pytest.raises(IndexEvicts, match="set maxmemory-policy noeviction"):
        put_one(store, key, b"a", value(2))
    assert get_one(store, key, b"a") == value(1)
    assert evictions_of(before) == NOTHING_EVICTED  # as it was asked when it was opened
    assert evictions_of(before, now=True) == Evictions("allkeys-lru", 0)
    for opened in (before, store):
        opened.close()


@pytest.fixture
def master_that_evicts(
    redis_cluster_url: str, _redis_cluster: RedisCluster
) -> Iterator[redis.Redis]:
    with _redis_cluster.masters()[-1].client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        yield client
        client.config_set("maxmemory-policy", "noeviction")


def test_each_master_of_a_cluster_is_asked(
    redis_cluster_url: str, master_that_evicts: redis.Redis
) -> None:
    store = RedisClusterStore(redis_cluster_url)
    assert evictions_of(store) == Evictions("allkeys-lru", 0)
    with pytest.raises(IndexEvicts):
        put_one(store, new_key(), b"a", value(1))
    master_that_evicts.config_set("maxmemory-policy", "noeviction")
    assert evictions_of(store, now=True) == NOTHING_EVICTED
    put_one(store, new_key(), b"a", value(1))
    store.close()
