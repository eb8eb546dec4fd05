from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from metadata.errors import IndexDenied, IndexUnavailable
from metadata.kv import redis_pipeline
from metadata.kv.key_value_store import MapUpdate
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
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.metadata.kv.redis_failures import OpenSplitStore, SplitMaps
from tests.services.redis_processes import RedisProcess, free_port


class TestRedisServerStore(SharedKeyValueStoreContract):
    @pytest.fixture
    def open_store(self, redis_url: str) -> OpenStore:
        return lambda: RedisServerStore(redis_url)


class TestRedisServerStoreWithSplitMaps(SharedKeyValueStoreContract):
    """Hardly a map that is not split."""

    @pytest.fixture
    def open_store(self, redis_url: str) -> OpenStore:
        return lambda: RedisServerStore(redis_url, split_above=3)


class TestSplitMaps(SplitMaps):
    @pytest.fixture
    def open_split(self, redis_url: str) -> OpenSplitStore:
        return lambda limit: RedisServerStore(redis_url, split_above=limit)

    @pytest.fixture
    def clients(self, redis_url: str) -> Iterator[list[redis.Redis]]:
        with redis.Redis.from_url(redis_url) as client:
            yield [client]


def test_a_restarted_server(own_redis_server: RedisProcess) -> None:
    store = RedisServerStore(own_redis_server.url)
    put_one(store, b"{k}f", b"a", value(1))
    own_redis_server.stop()
    own_redis_server.start()
    assert get_one(store, b"{k}f", b"a") == value(1)
    put_one(store, b"{k}f", b"a", value(2))
    assert get_one(store, b"{k}f", b"a") == value(2)
    store.close()


def test_a_scan_over_a_restart_misses_nothing(own_redis_server: RedisProcess) -> None:
    """Its cursor means something else to the new process: the hash function has another seed."""
    store, key = RedisServerStore(own_redis_server.url), new_key()
    names = [b"%d" % i for i in range(30_000)]
    store.put([[MapUpdate(key, names, [value(1, 0, bytes(64))] * 30_000)]])
    scan = store.scan(key)
    seen = {field for field, _ in next(scan)}
    own_redis_server.stop()
    own_redis_server.start()
    seen |= {field for batch in scan for field, _ in batch}
    assert seen == set(names)
    store.close()


def test_a_server_that_is_gone(own_redis_server: RedisProcess) -> None:
    store = RedisServerStore(own_redis_server.url, patience_s=0.5)
    own_redis_server.stop()
    start = time.monotonic()
    for call in (
        lambda: put_one(store, b"{k}f", b"a", value(1)),
        lambda: get_one(store, b"{k}f", b"a"),
        lambda: content(store, b"{k}f"),
        lambda: store.drop([b"{k}f"]),
    ):
        with pytest.raises(IndexUnavailable, match="check the address and that Redis runs there"):
            call()
    assert time.monotonic() - start < scaled_by_load(10)
    store.close()


def opened(url: str, **options: Any) -> RedisServerStore:
    """Open a store with a short time limit, in which a busy machine may not answer at first."""
    return eventually(
        lambda: RedisServerStore(url, **options), "an answer in time", ignored=IndexUnavailable
    )


def test_a_server_that_hangs(
    own_redis_server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_pipeline, "SOCKET_TIMEOUT_S", 0.5)
    store = opened(own_redis_server.url, patience_s=0.5)
    own_redis_server.pause()
    start = time.monotonic()
    with pytest.raises(IndexUnavailable, match="no answer within"):
        get_one(store, b"{k}f", b"a")
    with pytest.raises(IndexUnavailable, match="no answer within"):
        RedisServerStore(own_redis_server.url)
    assert time.monotonic() - start < scaled_by_load(5)
    own_redis_server.resume()
    found = eventually(
        lambda: [get_one(store, b"{k}f", b"a")], "an answer in time", ignored=IndexUnavailable
    )
    assert found == [None]
    store.close()


def test_a_server_that_hangs_for_a_while(
    own_redis_server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_pipeline, "SOCKET_TIMEOUT_S", 0.3)
    store = opened(own_redis_server.url)
    own_redis_server.pause()
    back = threading.Timer(0.8, own_redis_server.resume)
    back.start()
    put_one(store, b"{k}f", b"a", value(1))
    back.join()
    assert get_one(store, b"{k}f", b"a") == value(1)
    store.close()


def test_a_late_answer_is_not_another_calls(
    own_redis_server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_pipeline, "SOCKET_TIMEOUT_S", PATIENCE_S)
    store = RedisServerStore(own_redis_server.url, patience_s=0)
    put_one(store, b"{k}f", b"a", value(1))
    own_redis_server.pause()
    with monkeypatch.context() as impatient:
        impatient.setattr(redis_pipeline, "SOCKET_TIMEOUT_S", 0.3)
        with pytest.raises(IndexUnavailable):
            get_one(store, b"{k}f", b"a")
    own_redis_server.resume()
    assert get_one(store, b"{k}f", b"b") is None
    store.close()


def test_a_full_server_refuses_a_phase_and_all_later_ones(own_redis_server: RedisProcess) -> None:
    store = RedisServerStore(own_redis_server.url)
    with own_redis_server.client() as client:
        client.config_set("maxmemory", "1")
        with pytest.raises(IndexUnavailable, match="maxmemory"):
            store.put(
                [[MapUpdate(b"{k}f", [b"a"], [value(1)])], [MapUpdate(b"{l}f", [b"a"], [value(1)])]]
            )
        client.config_set("maxmemory", "0")
    assert content(store, b"{k}f") == content(store, b"{l}f") == {}
    store.close()


def test_a_password(own_redis_server: RedisProcess) -> None:
    with own_redis_server.client() as client:
        client.config_set("requirepass", "s3cret/word")
    place = f"127.0.0.1:{own_redis_server.port}"
    store = RedisServerStore(f"redis://:s3cret%2Fword@{place}")
    put_one(store, b"{k}f", b"a", value(1))
    store.close()
    for wrong in (f"redis://u:s3cret-wrong@{place}", f"redis://{place}?password=s3cret-wrong"):
        with pytest.raises(IndexDenied, match="check user and password") as caught:
            RedisServerStore(wrong)
        assert "s3cret" not in str(caught.value)
        assert place in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://u:s3cret@127.0.0.1",
        "redis://u:s3cret@127.0.0.1:port",
        "redis://u:s3cret@127.0.0.1:6379?db=s3cret",
        "redis://u:s3cret@127.0.0.1:1?nonsense=s3cret",
        "u:s3cret@host:1",
        "u:s3cret@x://host:1",
        "",
    ],
)
def test_a_wrong_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(IndexUnavailable) as caught:
        RedisServerStore(url)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nobody_there() -> None:
    port = free_port()
    with pytest.raises(IndexUnavailable, match=f"127.0.0.1:{port}.*check the address"):
        RedisServerStore(f"redis://127.0.0.1:{port}")


def test_threads_have_connections_of_their_own(redis_url: str) -> None:
    store = RedisServerStore(redis_url)
    key = new_key()
    failures: list[BaseException] = []

    def work(name: bytes) -> None:
        try:
            for turn in range(100):
                put_one(store, key, name, value(turn + 1, 0, name))
                assert get_one(store, key, name) == value(turn + 1, 0, name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(b"%d" % i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    store.close()
