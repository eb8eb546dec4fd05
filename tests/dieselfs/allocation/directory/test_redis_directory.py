"""The allocation directory in Redis: its contract, on a server and in a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import redis
from redis.cluster import RedisCluster as ClusterClient
from redis.crc import key_slot

from dieselfs.allocation.directory import redis_directory
from dieselfs.allocation.directory.directories import allocation_directory
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.allocation.directory.redis_directory import RedisDirectory
from dieselfs.errors import RegistryUnavailable
from metadata import keys
from metadata.errors import IndexUnavailable
from metadata.kv import redis_board
from tests.contracts.allocation_directory import (
    ID,
    LEASE_S,
    OTHER,
    READER,
    THIRD,
    AllocationDirectoryContract,
    Place,
    made_job,
    made_lease,
    readers_of,
)
from tests.eventually import eventually, scaled_by_load
from tests.services.redis_processes import RedisCluster, RedisProcess, refusing_port

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


def calls_of(directory: RedisDirectory) -> list[Callable[[], object]]:
    """All calls that may raise."""
    return [
        lambda: directory.allocate_cache_size("imagenet", ID, 1, origin="hand"),
        lambda: directory.allocate_remote_io("resnet", 1.0, origin="hand"),
        lambda: directory.put_job(made_job()),
        lambda: directory.remove_job("resnet"),
        directory.jobs,
        directory.decisions,
        lambda: directory.beat(made_lease(), LEASE_S),
        directory.leases,
        lambda: directory.lead("a", LEASE_S),
    ]


def test_the_index_says_where_the_directory_is() -> None:
    assert isinstance(allocation_directory("redis+cluster://h:1"), RedisDirectory)
    with pytest.raises(IndexUnavailable):
        allocation_directory("redis://h:x")


def test_a_redis_that_is_away() -> None:
    with refusing_port() as port:
        directory = RedisDirectory(f"redis://127.0.0.1:{port}/0")
        for call in calls_of(directory):
            with pytest.raises(RegistryUnavailable, match="Redis runs there"):
                call()
        directory.resign("a")
        directory.withdraw(READER)
        directory.close()


def test_a_redis_that_hangs_and_goes_on(own_redis_server: RedisProcess) -> None:
    directory = RedisDirectory(own_redis_server.url)
    eventually(
        lambda: directory.beat(made_lease(), LEASE_S),
        "an answer in time",
        ignored=RegistryUnavailable,
    )
    own_redis_server.pause()
    try:
        for call in calls_of(directory)[-3:]:
            began = time.monotonic()
            with pytest.raises(RegistryUnavailable, match="no answer"):
                call()
            assert time.monotonic() - began < scaled_by_load(2.5)
        directory.withdraw(OTHER)
        directory.resign("a")
    finally:
        own_redis_server.resume()
    found = eventually(directory.leases, "it goes on", ignored=RegistryUnavailable)
    assert readers_of(found) == [READER]
    directory.close()


def test_all_keys_are_in_one_slot_and_the_leases_expire(place: RedisPlace) -> None:
    directory = place.open()
    directory.beat(made_lease(), LEASE_S)
    directory.beat(made_lease(OTHER, "bert"), 0.05)
    eventually(lambda: readers_of(directory.leases()) == [READER], "the other lease ends")
    with client_of(place.url) as client:
        assert client.hlen(keys.READER_LEASES) == 2
        directory.beat(made_lease(), LEASE_S)  # and removes it
        assert client.hlen(keys.READER_LEASES) == client.zcard(keys.READER_ENDS) == 1
        directory.put_job(made_job())
        directory.allocate_remote_io("resnet", 1.0, origin="hand")
        directory.allocate_cache_size("imagenet", ID, 1, origin="hand")
        directory.lead("a", LEASE_S)
        made = [key for key in client.scan_iter("*")]
        assert len(made) == 8
        assert {key_slot(key) for key in made} == {key_slot(keys.ALLOCATION_STATE)}
        expires = {key for key in made if client.pttl(key) > 0}
        assert len(expires) == 4  # the leases and the leader; decisions stay


def test_a_directory_that_was_lost_has_another_life(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RedisDirectory(redis_url)
    directory.allocate_cache_size("imagenet", ID, 1, origin="hand")
    with monkeypatch.context() as patched:  # a machine that stalls here makes no break
        patched.setattr(redis_board, "_BREAK_US", str(int(LEASE_S * 1e6)))
        first = directory.beat(made_lease(), LEASE_S)
        again = directory.beat(made_lease(), LEASE_S)
    assert (again.life, again.since) == (first.life, first.since)
    assert again.awake_s > first.awake_s == 0.0
    assert directory.decisions().life == first.life
    with client_of(redis_url) as client:
        client.flushall()
        lost = directory.beat(made_lease(), LEASE_S)
        assert lost.life > first.life
        assert lost.since > first.since
        assert (lost.cache_version, lost.has_any, lost.awake_s) == (0, False, 0.0)
        assert readers_of(directory.leases()) == [READER]
        client.hincrby(keys.ALLOCATION_STATE, "heard", -3_500_000)
        away = directory.beat(made_lease(), LEASE_S)
        assert away.life == lost.life
        assert away.since > lost.since
        client.hincrby(keys.ALLOCATION_STATE, "heard", 60_000_000)  # a clock that was put back
        assert directory.beat(made_lease(), LEASE_S).since > away.since
    directory.close()


def test_clocks_of_readers_do_not_count(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(redis_url) as client:
        now_s = client.time()[0]
    directory = RedisDirectory(redis_url)
    for shift_s in (-86_400.0, 86_400.0):
        monkeypatch.setattr(time, "time", lambda shift_s=shift_s: now_s + shift_s)
        directory.beat(made_lease(), LEASE_S)
        directory.allocate_remote_io("resnet", 2.0, origin="hand")
        assert readers_of(directory.leases()) == [READER]
        [found] = directory.decisions().ios
        assert abs(found.stamp / 1e6 - now_s) < 600
        assert directory.lead(f"{shift_s}", LEASE_S) == "-86400.0"
    directory.close()


def test_readers_of_a_large_job_see_each_other_now_and_then(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_directory, "FEW_READERS", 2)
    now = 0.0
    directory = RedisDirectory(redis_url, monotonic=lambda: now)
    for reader in (OTHER, THIRD, READER):
        directory.beat(made_lease(reader), LEASE_S)
    later = made_lease(used_bytes_per_s=7.0)
    directory.withdraw(OTHER)
    now = 2.0
    peers = directory.beat(later, LEASE_S).peers
    assert readers_of(list(peers)) == [READER, OTHER, THIRD]
    assert later in peers
    now = 2.5
    assert readers_of(list(directory.beat(later, LEASE_S).peers)) == [READER, THIRD]
    directory.close()


def test_damaged_leases_are_skipped_and_said_once(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = RedisDirectory(redis_url)
    directory.beat(made_lease(), LEASE_S)
    later_release = msgspec.json.encode(made_lease(OTHER)).replace(b'"v":1', b'"v":2')
    ends = {"3": b"", "4": b"\xff\0", "5": later_release, "6": b"x" * 100_000}
    with client_of(redis_url) as client:
        until_ms = (client.time()[0] + 60) * 1000
        for holder, content in ends.items():
            client.hset(keys.READER_LEASES, holder, content)
            for key in (keys.READER_ENDS, keys.reader_ends_of("resnet")):
                client.zadd(key, {holder: until_ms, "of no lease": until_ms})
    for _ in range(2):
        assert readers_of(list(directory.beat(made_lease(), LEASE_S).peers)) == [READER]
        assert readers_of(directory.leases()) == [READER]
    assert caplog.text.count("reader leases of this release") == 1
    directory.close()


def test_a_damaged_state_and_a_leader_that_never_ends(redis_url: str) -> None:
    directory = RedisDirectory(redis_url)
    with client_of(redis_url) as client:
        damage = {"life": "x", "since": "nan", "heard": "", "stamp": "-", "version": "[]"}
        client.hset(keys.ALLOCATION_STATE, mapping=damage)
        client.hset(keys.ALLOCATION_LEADER, "id", b"\xff")
        assert directory.lead("a", LEASE_S) == "a"
        directory.allocate_cache_size("imagenet", ID, 1, origin="hand")
        assert directory.decisions().version == directory.decisions().caches[0].stamp
        assert directory.beat(made_lease(), LEASE_S).awake_s < 60
        client.set(keys.ALLOCATED_IO, "of another program")
        with pytest.raises(RegistryUnavailable, match="WRONGTYPE"):
            directory.decisions()
    directory.close()


def test_a_record_is_json_for_people(redis_url: str) -> None:
    directory = RedisDirectory(redis_url)
    directory.allocate_remote_io("resnet", 2.5, origin="hand")
    with client_of(redis_url) as client:
        record = json.loads(client.hget(keys.ALLOCATED_IO, "hand:resnet"))
    assert record.pop("stamp") > 1.7e15
    assert record == {"v": 1, "job": "resnet", "bytes_per_s": 2.5, "origin": "hand"}
    directory.close()


def test_the_directory_moves_with_its_slot(
    own_redis_cluster: RedisCluster, patient_redis: None
) -> None:
    """A master and its replica change places, and then the new master is gone."""
    own_redis_cluster.bear_stalls()
    directory = RedisDirectory(own_redis_cluster.url)
    directory.allocate_remote_io("resnet", 2.0, origin="hand")
    life = directory.beat(made_lease(), LEASE_S).life
    nodes = own_redis_cluster.fail_over(keys.ALLOCATION_STATE)
    beat = directory.beat(made_lease(OTHER), LEASE_S)
    assert beat.io is not None
    assert beat.life == life
    assert readers_of(list(beat.peers)) == [READER, OTHER]
    for node in nodes:
        node.stop()
    with pytest.raises(RegistryUnavailable):
        directory.beat(made_lease(), LEASE_S)
    directory.close()


def test_a_user_needs_the_pattern_of_the_directory(redis_url: str) -> None:
    """docs/rights.md"""
    rights = "+@read +@write +@scripting +@connection -@dangerous +info +wait +time +cluster|slots"
    host = redis_url.partition("://")[2]
    with client_of(redis_url) as client:
        for name, pattern in (("one", "~dieselfs:{allocation}:*"), ("other", "~{dieselfs}n")):
            client.execute_command(
                "ACL", "SETUSER", name, "on", ">secret", "-@all", *rights.split(), pattern
            )
        try:
            directory = RedisDirectory(f"redis://one:secret@{host}")
            for call in calls_of(directory):
                call()
            directory.resign("a")
            directory.withdraw(READER)
            directory.close()
            directory = RedisDirectory(f"redis://other:secret@{host}")
            for call in calls_of(directory):
                with pytest.raises(RegistryUnavailable, match="refused access"):
                    call()
            directory.close()
        finally:
            client.execute_command("ACL", "DELUSER", "one", "other")


def test_decisions_are_bounded(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_directory, "MAX_DECISIONS", 1)
    directory = RedisDirectory(redis_url)
    directory.allocate_cache_size("imagenet", ID, 1, origin="hand")
    with pytest.raises(RegistryUnavailable, match="full"):
        directory.allocate_cache_size("imagenet", ID, 1, origin="allocator")
    directory.allocate_cache_size("imagenet", ID, 2, origin="hand")
    assert [each.size_bytes for each in directory.decisions().caches] == [2]
    directory.close()
