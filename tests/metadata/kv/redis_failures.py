"""What both Redis stores must do beyond the contract: split large maps, and lose their scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import redis

from metadata.errors import MapOfWrongType
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate
from metadata.kv.redis_maps import MARKER, bucket_key
from tests.contracts.key_value_store_contract import (
    content,
    get_one,
    new_key,
    put_one,
    running,
    value,
)

OpenSplitStore = Callable[[int], KeyValueStore]
"""A store with this limit."""


def all_keys(clients: Iterable[redis.Redis]) -> list[bytes]:
    return [key for client in clients for key in client.keys("*")]  # type: ignore[union-attr]


class SplitMaps:
    """A subscriber has the fixtures `open_split` and `clients` (of every master)."""

    def test_a_large_map_is_split(
        self, open_split: OpenSplitStore, clients: list[redis.Redis]
    ) -> None:
        store, key = open_split(1_000), new_key()
        expected = {b"%d" % i: value(1, i, bytes(64)) for i in range(9_000)}
        names = list(expected)
        for at in range(0, 9_000, 300):
            part = names[at : at + 300]
            store.put([[MapUpdate(key, part, [expected[name] for name in part])]])
        sizes = {found: size for found, size in hash_sizes(clients).items()}
        assert sizes.pop(key) == 1_200 + 1  # and the marker
        assert len(sizes) == 256
        assert max(sizes.values()) < 3 * min(sizes.values()) + 30
        assert content(store, key) == expected
        [found] = store.get_many([MapFields(key, [*names, b"none"])])
        assert found == [*expected.values(), None]
        assert get_one(store, key, MARKER[:255]) is None

        # A field keeps its place, in the base and in the buckets.
        store.put([[MapUpdate(key, names, [value(2, i) for i in range(9_000)])]])
        store.put([[MapUpdate(key, names, [value(1, 2**40) for _ in range(9_000)])]])
        assert content(store, key) == {name: value(2, i) for i, name in enumerate(names)}
        assert hash_sizes(clients)[key] == 1_201

        store.remove([MapFields(key, names[::2])])
        assert content(store, key).keys() == set(names[1::2])
        put_one(store, key, names[0], value(1))
        assert get_one(store, key, names[0]) == value(1)

        store.drop([key])
        assert all_keys(clients) == []
        put_one(store, key, b"a", value(1))
        assert content(store, key) == {b"a": value(1)}
        store.close()

    @pytest.mark.parametrize("of_a_bucket", [False, True])
    def test_what_is_no_map_is_told_and_dropped(
        self, open_split: OpenSplitStore, clients: list[redis.Redis], of_a_bucket: bool
    ) -> None:
        store, key, other = open_split(10), new_key(), new_key()
        names = [b"%d" % i for i in range(300)]
        for at in range(0, 300, 10):
            store.put([[MapUpdate(key, names[at : at + 10], [value(1)] * 10)]])
        put_one(store, other, b"a", value(1))
        foreign = bucket_key(key, names[-1]) if of_a_bucket else key
        [owner] = [client for client in clients if foreign in client.keys("*")]  # type: ignore[operator]
        owner.delete(foreign)
        owner.set(foreign, b"of another program")
        for call in (
            lambda: content(store, key),
            lambda: store.get_many([MapFields(key, names)]),
            lambda: store.put([[MapUpdate(key, names, [value(2)] * 300)]]),
            lambda: store.remove([MapFields(key, names)]),
        ):
            with pytest.raises(MapOfWrongType) as raised:
                call()
            assert raised.value.key == foreign
        store.drop([foreign])
        put_one(store, key, names[-1], value(3))
        assert content(store, key)[names[-1]] == value(3)
        store.drop([key, other])
        assert all_keys(clients) == []
        store.close()

    def test_an_unsplit_map_is_one_hash(
        self, open_split: OpenSplitStore, clients: list[redis.Redis]
    ) -> None:
        store, key = open_split(100), new_key()
        names = [b"%d" % i for i in range(100)]
        store.put([[MapUpdate(key, names, [value(1)] * 100)]])
        store.put([[MapUpdate(key, names[:50], [value(2)] * 50)]])  # nothing new at the limit
        store.put([[MapUpdate(key, names[50:], [value(2)] * 50)]])
        assert len(content(store, key)) == 100
        assert all_keys(clients) == [key]
        store.close()

    def test_a_key_without_a_tag_is_split_too(self, open_split: OpenSplitStore) -> None:
        for key in (b"plain", b"{}empty", b"}{", b"{open"):
            store = open_split(10)
            names = [b"%d" % i for i in range(300)]
            for at in range(0, 300, 10):
                part = names[at : at + 10]
                store.put([[MapUpdate(key, part, [value(1)] * 10)]])
            assert content(store, key).keys() == set(names)
            store.drop([key])
            assert content(store, key) == {}
            store.close()

    def test_processes_that_split_a_map_together(self, open_split: OpenSplitStore) -> None:
        key = new_key()
        names = [b"%d" % i for i in range(2_000)]

        def fill(seed: int) -> Callable[[], None]:
            def run() -> None:
                store = open_split(200)
                for at in range(0, 2_000, 40):
                    part = names[at : at + 40]
                    store.put([[MapUpdate(key, part, [value(1, seed)] * 40)]])
                store.close()

            return run

        with running([fill(seed) for seed in range(3)]):
            pass
        store = open_split(200)
        assert content(store, key) == dict.fromkeys(names, value(1, 2))  # and each only once
        store.close()

    def test_a_server_that_forgot_the_scripts(
        self, open_split: OpenSplitStore, clients: list[redis.Redis]
    ) -> None:
        store, keys = open_split(100), [new_key() for _ in range(20)]
        for turn in range(3):
            for client in clients:
                client.script_flush()
            store.put([[MapUpdate(key, [b"a"], [value(turn + 1)]) for key in keys]])
            for client in clients:
                client.script_flush()
            for key in keys:
                assert content(store, key) == {b"a": value(turn + 1)}
        store.close()


def hash_sizes(clients: Iterable[redis.Redis]) -> dict[bytes, int]:
    return {key: client.hlen(key) for client in clients for key in client.keys("*")}  # type: ignore[union-attr,misc]
