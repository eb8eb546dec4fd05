from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import redis
from redis.crc import key_slot

from metadata.errors import IndexUnavailable
from metadata.kv import redis_pipeline
from metadata.kv.key_value_store import MapFields, MapUpdate
from metadata.kv.redis_cluster import RedisClusterStore
from metadata.kv.redis_maps import bucket_keys
from metadata.kv.redis_server import RedisServerStore
from tests.contracts.key_value_store_contract import (
    OpenStore,
    SharedKeyValueStoreContract,
    content,
    get_one,
    new_key,
    put_one,
    value,
)
from tests.eventually import eventually, scaled_by_load
from tests.metadata.kv.redis_failures import OpenSplitStore, SplitMaps
from tests.services.redis_processes import RedisCluster, RedisProcess, free_port


class TestRedisClusterStore(SharedKeyValueStoreContract):
    @pytest.fixture
    def open_store(self, redis_cluster_url: str) -> OpenStore:
        return lambda: RedisClusterStore(redis_cluster_url)


class TestRedisClusterStoreWithSplitMaps(SharedKeyValueStoreContract):
    """Hardly a map that is not split."""

    @pytest.fixture
    def open_store(self, redis_cluster_url: str) -> OpenStore:
        return lambda: RedisClusterStore(redis_cluster_url, split_above=3)


class TestSplitMaps(SplitMaps):
    @pytest.fixture
    def open_split(self, redis_cluster_url: str) -> OpenSplitStore:
        return lambda limit: RedisClusterStore(redis_cluster_url, split_above=limit)

    @pytest.fixture
    def clients(
        self, redis_cluster_url: str, _redis_cluster: RedisCluster
    ) -> Iterator[list[redis.Redis]]:
        clients = [master.client() for master in _redis_cluster.masters()]
        yield clients
        for client in clients:
            client.close()


def test_a_slot_that_has_moved_is_learnt(redis_cluster_url: str) -> None:
    """Or each later command about it would be sent twice."""
    store, key = RedisClusterStore(redis_cluster_url), new_key()
    slot = key_slot(key)
    master = store._slots[slot]
    store._slots[slot] = next(other for other in store._seats if other != master)
    put_one(store, key, b"a", value(1))
    assert store._slots[slot] == master
    assert get_one(store, key, b"a") == value(1)
    store.close()


def test_buckets_spread_over_slots() -> None:
    key = new_key()
    assert len({key_slot(bucket) for bucket in bucket_keys(key)}) > 200
    assert len(set(bucket_keys(key)) | {key}) == 257


FAIL_OVER_S = 15.0
"""A fail-over takes 3 s, and nodes that a busy machine pauses vote again."""


def await_replica(master: RedisProcess) -> None:
    """Wait until a replica has all that was put: a fail-over forgets the rest."""
    with master.client() as client:
        written = client.info("replication")["master_repl_offset"]

        def has_all() -> bool:
            replica = client.info("replication").get("slave0")
            return replica is not None and replica["offset"] >= written

        eventually(has_all, "a replica with all writes")


def test_a_master_that_dies_is_replaced(own_redis_cluster: RedisCluster) -> None:
    patience_s = scaled_by_load(FAIL_OVER_S)
    store = RedisClusterStore(own_redis_cluster.url, patience_s=patience_s)
    keys = [new_key() for _ in range(60)]
    store.put([[MapUpdate(key, [b"before"], [value(1)]) for key in keys]])
    [victim, *_] = own_redis_cluster.masters()
    await_replica(victim)
    victim.stop()
    start = time.monotonic()
    store.put([[MapUpdate(key, [b"after"], [value(2)]) for key in keys]])
    assert time.monotonic() - start < patience_s + scaled_by_load(1)
    found = store.get_many([MapFields(key, [b"after", b"before"]) for key in keys])
    assert found == [[value(2), value(1)]] * 60
    assert all(content(store, key) == {b"before": value(1), b"after": value(2)} for key in keys)
    store.close()


def test_a_master_that_hangs_is_replaced(
    own_redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_pipeline, "SOCKET_TIMEOUT_S", 1.0)
    patience_s = scaled_by_load(FAIL_OVER_S)
    store = RedisClusterStore(own_redis_cluster.url, patience_s=patience_s)
    keys = [new_key() for _ in range(60)]
    [victim, *_] = own_redis_cluster.masters()
    victim.pause()
    start = time.monotonic()
    store.put([[MapUpdate(key, [b"a"], [value(1)]) for key in keys]])
    assert time.monotonic() - start < patience_s + scaled_by_load(1)
    victim.resume()
    eventually(own_redis_cluster.is_whole, "the old master follows", ignored=redis.RedisError)
    found = store.get_many([MapFields(key, [b"a"]) for key in keys])
    assert found == [[value(1)]] * 60
    store.close()


def test_a_master_that_comes_back(own_redis_cluster: RedisCluster) -> None:
    """As a replica, which must not be taken for the master that it was."""
    store = RedisClusterStore(own_redis_cluster.url)
    keys = [new_key() for _ in range(60)]
    store.put([[MapUpdate(key, [b"a"], [value(1)]) for key in keys]])
    [victim, *_] = own_redis_cluster.masters()
    await_replica(victim)
    victim.stop()
    eventually(
        lambda: len(own_redis_cluster.masters()) == 3, "a fail-over", ignored=redis.RedisError
    )
    victim.start()
    eventually(own_redis_cluster.is_whole, "the old master follows", ignored=redis.RedisError)
    store.put([[MapUpdate(key, [b"a"], [value(2)]) for key in keys]])
    found = store.get_many([MapFields(key, [b"a"]) for key in keys])
    assert found == [[value(2)]] * 60
    store.close()


def test_a_cluster_that_is_gone(own_redis_cluster: RedisCluster) -> None:
    store = RedisClusterStore(own_redis_cluster.url, patience_s=1)
    for node in own_redis_cluster.nodes:
        node.stop()
    start = time.monotonic()
    with pytest.raises(IndexUnavailable, match="check the address and that Redis runs there"):
        put_one(store, b"{k}f", b"a", value(1))
    with pytest.raises(IndexUnavailable, match="check the address and that Redis runs there"):
        RedisClusterStore(own_redis_cluster.url)
    assert time.monotonic() - start < scaled_by_load(5)
    store.close()


def test_a_slot_on_the_move(own_redis_cluster: RedisCluster) -> None:
    """Half-way, a key that is not at its old master any more is asked for at the new one."""
    own_redis_cluster.bear_pauses()
    store = RedisClusterStore(own_redis_cluster.url)
    moved, stays = b"{moving}f", b"{moving}d"
    put_one(store, stays, b"a", value(1))
    owners = {
        node: dict(
            (line.split()[1].split("@")[0], line.split()[0])
            for line in _ask(node, "CLUSTER", "NODES").splitlines()
        )[f"127.0.0.1:{node.port}"]
        for node in own_redis_cluster.masters()
    }
    slot = key_slot(moved)
    [old] = [node for node in owners if _ask(node, "CLUSTER", "COUNTKEYSINSLOT", slot) == 1]
    new = next(node for node in owners if node is not old)
    _ask(new, "CLUSTER", "SETSLOT", slot, "IMPORTING", owners[old])
    _ask(old, "CLUSTER", "SETSLOT", slot, "MIGRATING", owners[new])

    put_one(store, moved, b"a", value(2))  # absent, so it is made at the new master
    assert get_one(store, moved, b"a") == value(2)
    assert get_one(store, stays, b"a") == value(1)
    assert content(store, moved) == {b"a": value(2)}

    _ask(old, "MIGRATE", "127.0.0.1", new.port, stays, 0, 5000)
    for node in (new, old):
        _ask(node, "CLUSTER", "SETSLOT", slot, "NODE", owners[new])
    assert get_one(store, stays, b"a") == value(1)
    put_one(store, moved, b"a", value(3))
    assert get_one(store, moved, b"a") == value(3)
    store.close()


def test_writers_through_a_fail_over(own_redis_cluster: RedisCluster) -> None:
    store = RedisClusterStore(own_redis_cluster.url, patience_s=scaled_by_load(FAIL_OVER_S))
    keys = [new_key() for _ in range(12)]
    failures: list[BaseException] = []
    stop = threading.Event()
    turns = [0, 0]

    def write(worker: int) -> None:
        try:
            while not stop.is_set():
                turns[worker] += 1
                store.put(
                    [[MapUpdate(key, [b"%d" % worker], [value(turns[worker])]) for key in keys]]
                )
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
    for writer in writers:
        writer.start()
    eventually(lambda: min(turns) > 5, "the writers start")
    # Records that no replica has because a busy machine has paused it would be lost.
    eventually(lambda: store.lost_writes().is_confirmed or failures, "replicas in time")
    own_redis_cluster.masters()[1].stop()
    eventually(
        lambda: len(own_redis_cluster.masters()) == 3, "a fail-over", ignored=redis.RedisError
    )
    later = max(turns) + 5
    eventually(lambda: min(turns) > later or failures, "the writers go on")
    stop.set()
    for writer in writers:
        writer.join()
    assert not failures
    found = store.get_many([MapFields(key, [b"0", b"1"]) for key in keys])
    assert found == [[value(turns[0]), value(turns[1])]] * 12
    store.close()


def test_the_wrong_kind_of_address(redis_url: str, redis_cluster_url: str) -> None:
    with pytest.raises(IndexUnavailable, match="write redis:// instead"):
        RedisClusterStore(redis_url.replace("redis://", "redis+cluster://"))
    store = RedisServerStore(redis_cluster_url.replace("+cluster", "").partition(",")[0])
    with pytest.raises(IndexUnavailable, match=r"write redis\+cluster:// instead"):
        store.get_many([MapFields(new_key(), [b"a"]) for _ in range(50)])
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "u:s3cret@host:1",
        "u:s3cret@x://host:1",
        "redis+cluster://u:s3cret@host:1,,host:2",
        "redis+cluster://u:s3cret@host:port",
        "redis://u:s3cret@host:1",
        "http+cluster://u:s3cret@host:1",
        "",
    ],
)
def test_a_wrong_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(IndexUnavailable) as caught:
        RedisClusterStore(url)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_known_node_will_do(redis_cluster_url: str) -> None:
    rest = redis_cluster_url.partition("://")[2]
    store = RedisClusterStore(f"redis+cluster://127.0.0.1:{free_port()},{rest}")
    put_one(store, b"{k}f", b"a", value(1))
    store.close()


def _ask(node: RedisProcess, *words: object) -> object:
    with node.client() as client:
        client.response_callbacks.clear()
        answer = client.execute_command(*words)
        return answer.decode() if isinstance(answer, bytes) else answer
