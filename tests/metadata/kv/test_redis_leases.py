from __future__ import annotations

import uuid

import pytest

from metadata.errors import IndexUnavailable
from metadata.kv import redis_leases, redis_slot
from metadata.kv.redis_leases import RedisLeaseSet
from tests.eventually import PATIENCE_S, eventually
from tests.services.redis_processes import RedisCluster, free_port

LEASE_S = 60.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is not repeated, and a busy machine may keep a server from answering for seconds."""
    monkeypatch.setattr(redis_slot, "TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(redis_slot, "LOOK_UP_S", PATIENCE_S)


@pytest.fixture
def name() -> str:
    return f"leases-{uuid.uuid4().hex}"


def test_entries_are_told_until_they_are_removed(redis_url: str, name: str) -> None:
    leases = RedisLeaseSet(redis_url, name)
    assert leases.renew("a", b"a 1", LEASE_S) == [b"a 1"]
    assert set(leases.renew("b", b"b \0\xff", LEASE_S)) == {b"a 1", b"b \0\xff"}
    assert set(leases.renew("a", b"a 2", LEASE_S)) == {b"a 1", b"a 2", b"b \0\xff"}
    leases.remove(b"b \0\xff")
    leases.remove(b"b \0\xff")
    assert leases.renew("a", b"a 2", LEASE_S) == [b"a 2"]
    leases.close()


def test_ids_that_begin_alike_are_different(redis_url: str, name: str) -> None:
    leases = RedisLeaseSet(redis_url, name)
    leases.renew("node", b"node 1", LEASE_S)
    leases.renew("node-1", b"node-1 1", LEASE_S)
    assert set(leases.renew("nod", b"nod 1", LEASE_S)) == {b"node 1", b"node-1 1", b"nod 1"}


def test_a_lease_ends_by_the_clock_of_the_server(redis_url: str, name: str) -> None:
    leases = RedisLeaseSet(redis_url, name)
    leases.renew("short", b"short", 0.05)
    eventually(lambda: leases.renew("a", b"a", LEASE_S) == [b"a"], "it ends")


@pytest.mark.parametrize("server", ["redis_url", "redis_cluster_url"])
def test_who_looks_takes_no_lease_and_sees_none_that_has_ended(
    server: str, name: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server)
    leases, looking = RedisLeaseSet(url, name), RedisLeaseSet(url, name)
    assert looking.entries() == []
    leases.renew("short", b"short", 0.05)
    eventually(lambda: looking.entries() == [], "it ends")
    leases.renew("a", b"a 1", LEASE_S)
    assert looking.entries() == [b"a 1"]
    assert leases.renew("b", b"b 1", LEASE_S) == [b"a 1", b"b 1"]
    assert set(looking.entries()) == {b"a 1", b"b 1"}
    with pytest.raises(IndexUnavailable):
        RedisLeaseSet(f"redis://127.0.0.1:{free_port()}/0", name).entries()


@pytest.mark.parametrize("server", ["redis_url", "redis_cluster_url"])
def test_entries_of_holders_that_do_not_know_each_other(
    server: str, name: str, request: pytest.FixtureRequest
) -> None:
    leases = RedisLeaseSet(request.getfixturevalue(server), f"{{{name}}}:set")
    assert leases.put(b"a 1", b"", LEASE_S) == "put"
    assert leases.put(b"b 1", b"", 0.05) == "put"
    assert leases.put(b"a 2", b"a 1", LEASE_S) == "put"
    assert leases.put(b"a 2", b"a 2", LEASE_S) == "put"
    assert leases.put(b"a 2", b"a 1", LEASE_S) == "restored"
    eventually(lambda: leases.entries() == [b"a 2"], "the other lease ends")
    assert leases.value("x") is None
    assert not leases.renew_value("x", LEASE_S)
    leases.put_value("x", b"\0" * 100_000, LEASE_S)
    assert leases.renew_value("x", 0.05)
    eventually(lambda: leases.value("x") is None, "the value expires")


def test_a_full_set_takes_no_more(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_leases, "MAX_ENTRIES", 1)
    leases = RedisLeaseSet(redis_url, name)
    assert leases.put(b"a 1", b"", LEASE_S) == "put"
    assert leases.put(b"b 1", b"", LEASE_S) == "full"
    assert leases.put(b"a 2", b"a 1", LEASE_S) == "put"
    assert leases.entries() == [b"a 2"]


@pytest.mark.parametrize(
    "url",
    ["redis+cluster://", "redis+cluster://h:1,,h:2", "http://h:1", "redis://h:x", "redis://h?x=1"],
)
def test_no_address_of_a_redis(url: str) -> None:
    with pytest.raises(IndexUnavailable):
        RedisLeaseSet(url, "x")


def test_a_cluster_some_of_whose_named_nodes_are_gone(redis_cluster_url: str, name: str) -> None:
    _, _, hosts = redis_cluster_url.partition("://")
    url = f"redis+cluster://127.0.0.1:{free_port()},{hosts}"
    assert RedisLeaseSet(url, name).renew("a", b"a", LEASE_S) == [b"a"]
    nobody = RedisLeaseSet(f"redis+cluster://127.0.0.1:{free_port()}", name)
    with pytest.raises(IndexUnavailable, match="check the address"):
        nobody.renew("a", b"a", LEASE_S)


def test_the_set_moves_with_its_slot(own_redis_cluster: RedisCluster, name: str) -> None:
    """The master and its replica change places: found again at once, and what was there is
    there."""
    own_redis_cluster.bear_pauses()
    leases = RedisLeaseSet(own_redis_cluster.url, name)
    leases.renew("a", b"a", LEASE_S)
    master, replica = own_redis_cluster.fail_over(name.encode())
    assert set(leases.renew("b", b"b", LEASE_S)) == {b"a", b"b"}
    master.stop()
    assert set(leases.renew("b", b"b", LEASE_S)) == {b"a", b"b"}
    replica.stop()
    with pytest.raises(IndexUnavailable):
        leases.renew("b", b"b", LEASE_S)
