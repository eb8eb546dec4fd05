"""The settings of a store: their bytes, and that no change of racing writers is lost."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
import xxhash

from chunkstore.errors import Corrupt
from chunkstore.object_keys import SETTINGS_PREFIX, settings_key
from chunkstore.store_settings import (
    MAX_BYTES,
    StoreSettings,
    change,
    clear,
    newest_version,
    read_version,
)
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer, ObjectStore
from tests.chunkstore.packed import CountingStore


def put(store: ObjectStore, key: str, value: object, dataset: str | None = None) -> int:
    return change(
        store, lambda found: found.replaced(dataset, {**found.values(dataset), key: value})
    ).number


def keys(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list(SETTINGS_PREFIX)]


def test_bytes_by_the_document() -> None:
    text = b'{"datasets":{"pets":{"memory":"8GiB"}},"store":{"index":"redis://n:1"}}'
    body = b"DIESELCF" + struct.pack("<HHIQq", 1, 0, len(text), 7, -5) + text
    data = body + xxhash.xxh3_64(body).digest()
    found = StoreSettings(7, -5, {"index": "redis://n:1"}, {"pets": {"memory": "8GiB"}})
    assert found.encode() == data
    assert StoreSettings.decode(data, 7) == found
    assert settings_key(7) == "config/settings/0000000000000007"


def test_damage_is_noticed_and_cleared() -> None:
    store = MemoryObjectStore()
    put(store, "index", "redis://n:1")
    key = settings_key(1)
    data = bytes(store.get(key))
    other = StoreSettings(1, 0).encode()[:-8]
    later = other[:8] + b"\2" + other[9:]
    for damaged in (
        *(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))),
        *(data[:at] for at in range(0, len(data), 7)),
        later + xxhash.xxh3_64(later).digest(),
        bytes(MAX_BYTES + 1),
    ):
        store.delete(key)
        store.create(key, [damaged])
        with pytest.raises(Corrupt):
            newest_version(store)
        with pytest.raises(Corrupt):
            put(store, "memory", "1GiB")
    clear(store)
    assert newest_version(store).store == {}
    assert keys(store) == [settings_key(2)]
    assert put(store, "memory", "1GiB") == 3


def test_one_version_is_left_and_costs_one_listing_and_one_get() -> None:
    store = CountingStore(MemoryObjectStore())
    assert newest_version(store) == StoreSettings()
    assert store.calls == ["list"]
    for number in range(1, 5):
        assert put(store, "memory", f"{number}GiB") == number
        assert keys(store) == [settings_key(number)]
    store.calls.clear()
    assert newest_version(store).store == {"memory": "4GiB"}
    assert store.calls == ["list", "get_range"]
    store.calls.clear()
    assert read_version(store, 4).store == {"memory": "4GiB"}
    assert store.calls == ["get_range"]
    assert put(store, "memory", "4GiB") == 4, "no change, no version"


def test_what_another_release_wrote_is_kept() -> None:
    store = MemoryObjectStore()
    put(store, "later", {"a": [1, None]})
    put(store, "memory", "1GiB", "pets")
    found = newest_version(store)
    assert found.store == {"later": {"a": [1, None]}}
    assert found.datasets == {"pets": {"memory": "1GiB"}}
    change(store, lambda settings: settings.replaced("pets", {}))
    assert newest_version(store).datasets == {}


class Racing(MemoryObjectStore):
    """All writers have read the same version before the first one creates the next."""

    def __init__(self, writers: int) -> None:
        super().__init__()
        self._barrier = threading.Barrier(writers)
        self._met = threading.local()

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        if not getattr(self._met, "done", False):
            self._met.done = True
            self._barrier.wait(60)
        super().create(key, parts)


def test_of_racing_writers_each_change_is_kept() -> None:
    store = Racing(8)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: put(store, f"key{n}", str(n)), range(8)))
    found = newest_version(store)
    assert found.store == {f"key{n}": str(n) for n in range(8)}
    assert found.number == 8
    assert keys(store) == [settings_key(8)]


def test_a_writer_that_was_killed_leaves_no_second_version_for_long() -> None:
    store = MemoryObjectStore()
    put(store, "memory", "1GiB")
    store.create(settings_key(2), [StoreSettings(2, 0, {"memory": "2GiB"}).encode()])
    assert newest_version(store).store == {"memory": "2GiB"}
    assert put(store, "memory", "2GiB") == 2  # the same command again
    assert keys(store) == [settings_key(2)]


def test_too_much_is_refused() -> None:
    store = MemoryObjectStore()
    with pytest.raises(ValueError, match="at most"):
        put(store, "index", "x" * MAX_BYTES)
    assert keys(store) == []
