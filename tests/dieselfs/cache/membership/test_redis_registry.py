from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable

import pytest
import redis
from redis.crc import key_slot

from dieselfs.cache.membership import redis_registry
from dieselfs.cache.membership.redis_registry import RedisRegistry
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.errors import RegistryUnavailable
from metadata.kv import redis_slot
from tests.contracts.registry_contract import NODES, LeasedRegistryContract, OpenRegistry
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.services.redis_processes import RedisCluster, RedisProcess

LEASE_S = PATIENCE_S


@pytest.fixture(autouse=True)
def nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a Redis of a busy machine, nor a process that renews its lease."""
    for name in ("TIMEOUT_S", "LOOK_UP_S"):
        monkeypatch.setattr(redis_slot, name, PATIENCE_S)
    monkeypatch.setattr(redis_registry, "LEASE_S", LEASE_S)


@pytest.fixture
def task() -> str:
    return f"task-{uuid.uuid4().hex[:8]}"


def key(task: str) -> str:
    return f"dieselfs:{{{task}}}:peers"


def end_all(client: redis.Redis, task: str) -> None:
    """As if time had passed: a lease ends at 1 ms of 1970."""
    for entry in client.zrange(key(task), 0, -1):
        client.zadd(key(task), {entry: 1})


class TestRedisDirectory(LeasedRegistryContract):
    @pytest.fixture
    def open_registry(self, redis_url: str, task: str) -> OpenRegistry:
        return lambda number: RedisRegistry(redis_url, task)

    @pytest.fixture
    def end_leases(self, redis_url: str, task: str) -> Callable[[], None]:
        def end() -> None:
            with redis.Redis.from_url(redis_url) as client:
                end_all(client, task)

        return end


class TestRedisDirectoryInACluster(LeasedRegistryContract):
    @pytest.fixture
    def open_registry(self, redis_cluster_url: str, task: str) -> OpenRegistry:
        return lambda number: RedisRegistry(redis_cluster_url, task)

    @pytest.fixture
    def end_leases(
        self, redis_cluster_url: str, _redis_cluster: RedisCluster, task: str
    ) -> Callable[[], None]:
        def end() -> None:
            port = _redis_cluster.nodes[0].port
            with redis.RedisCluster("127.0.0.1", port) as client:
                end_all(client, task)

        return end


def test_two_tasks_share_nothing(redis_url: str) -> None:
    RedisRegistry(redis_url, "one").announce(NODES[0])
    assert RedisRegistry(redis_url, "other").announce(NODES[1]) == [NODES[1]]


def test_what_is_there_is_for_people_to_read_and_ends_by_itself(redis_url: str, task: str) -> None:
    RedisRegistry(redis_url, task).announce(NODES[0])
    with redis.Redis.from_url(redis_url) as client:
        [entry] = client.zrange(key(task), 0, -1)
        assert 0 < client.pttl(key(task)) <= LEASE_S * 1000
    id, _, fields = entry.decode().partition(" ")
    assert id == "rank-0"
    assert json.loads(fields) == ["rank-0", "10.0.0.1", 7000, 100, "host ä 0"]


def test_what_is_no_member_is_passed_over(
    redis_url: str, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = RedisRegistry(redis_url, task)
    bad: list[str | bytes] = [
        "",
        "x",
        "\xff" * 7,
        b"\xff\xfe \x00",
        "a [" + "[" * 2000,
        'a ["b","h",1,1,""]',
        'a ["a","h",0,1,""]',
        'a ["a","h",1,-1,""]',
        'a ["a","h",1,1e9,""]',
        'a ["a","h h",1,1,""]',
        'a ["a","h",1,1,"\\u0007"]',
        'a ["a","h",1,1,"' + "n" * 256 + '"]',
        'a ["a","h",1,1]',
        'a ["a","h",1,' + "9" * 1900 + ',""]',
        "a " + "x" * 5000,
        'rank-0 ["rank-1","h",1,1,""]',
    ]
    with redis.Redis.from_url(redis_url) as client:
        client.zadd(key(task), {entry: 1e15 for entry in bad})
        assert registry.announce(NODES[0]) == [NODES[0]]
        assert registry.announce(NODES[0]) == [NODES[0]]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        client.delete(key(task))
        client.set(key(task), "not a set")
        with pytest.raises(RegistryUnavailable, match="WRONGTYPE"):
            registry.announce(NODES[0])
        client.delete(key(task))
    assert registry.announce(NODES[0]) == [NODES[0]]


def test_a_flood_of_entries_is_told_in_part(redis_url: str, task: str) -> None:
    flood = [Member(f"m-{number}", PeerAddress("h", 1), 1) for number in range(1500)]
    with redis.Redis.from_url(redis_url) as client:
        client.zadd(key(task), {f'{one.id} ["{one.id}","h",1,1,""]': 1e15 for one in flood})
    found = RedisRegistry(redis_url, task).announce(NODES[0])
    assert len(found) == 1025
    assert NODES[0] in found


def test_redis_away_and_back(own_redis_server: RedisProcess, task: str) -> None:
    """Restarted without its data: who is there is there again."""
    first = RedisRegistry(own_redis_server.url, task)
    second = RedisRegistry(own_redis_server.url, task)
    first.announce(NODES[0])
    assert set(second.announce(NODES[1])) == set(NODES[:2])
    own_redis_server.stop()
    with pytest.raises(RegistryUnavailable, match="check the address"):
        first.announce(NODES[0])
    first.leave(NODES[0])
    own_redis_server.forget()
    own_redis_server.start()
    assert first.announce(NODES[0]) == [NODES[0]]
    assert set(second.announce(NODES[1])) == set(NODES[:2])


def test_a_redis_that_hangs_is_waited_for_shortly(
    own_redis_server: RedisProcess, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_slot, "TIMEOUT_S", 0.6)
    registry = RedisRegistry(own_redis_server.url, task)

    def is_announced() -> bool:
        return registry.announce(NODES[0]) == [NODES[0]]

    eventually(is_announced, "an answer in time", ignored=RegistryUnavailable)
    own_redis_server.pause()
    try:
        begun = time.monotonic()
        with pytest.raises(RegistryUnavailable, match=r"no answer within 0\.6 s"):
            registry.announce(NODES[0])
        registry.leave(NODES[0])
        assert time.monotonic() - begun < scaled_by_load(4)  # two calls of 0.6 s
    finally:
        own_redis_server.resume()
    eventually(is_announced, "it comes back", ignored=RegistryUnavailable)


def test_a_server_of_a_cluster_says_so(redis_cluster_url: str, task: str) -> None:
    node = "redis://" + redis_cluster_url.partition("://")[2].split(",")[0]
    slots_elsewhere = (
        name for n in range(99) if key_slot(key(name := f"{task}-{n}").encode()) > 5460
    )
    with pytest.raises(RegistryUnavailable, match=r"write redis\+cluster://"):
        RedisRegistry(node, next(slots_elsewhere)).announce(NODES[0])


def test_a_server_alone_is_no_cluster(redis_url: str, task: str) -> None:
    url = redis_url.replace("redis://", "redis+cluster://").removesuffix("/0")
    with pytest.raises(RegistryUnavailable, match="write redis://"):
        RedisRegistry(url, task).announce(NODES[0])


def test_no_password_in_what_is_said(task: str) -> None:
    registry = RedisRegistry("redis://someone:s3cret@127.0.0.1:1/0", task)
    with pytest.raises(RegistryUnavailable) as caught:
        registry.announce(NODES[0])
    assert "s3cret" not in str(caught.value)
