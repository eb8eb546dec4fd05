"""The model of a disk that the figures are taken on: device time is reckoned, so what is measured
here holds on a busy machine too."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import slow_store
from benchmarks.slow_store import DeviceStatistics, SlowStore, StragglingStore
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from tests.contracts.object_store_contract import ObjectStoreContract, OpenStore


class TestSlowStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return lambda: SlowStore(MemoryObjectStore(), seek_s=1e-4)


class TestStragglingStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return lambda: StragglingStore(MemoryObjectStore(), read_s=1e-4)


class Clock:
    """Stands in for `time`: it says `now`, and notes who sleeps for how long."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(slow_store, "time", found)
    return found


def holding(size: int) -> ObjectStore:
    store = MemoryObjectStore()
    store.create("k", [bytes(size)])
    return store


def test_each_read_takes_a_seek_and_its_bytes() -> None:
    store = SlowStore(holding(3000), seek_s=0.01, bytes_per_s=100_000)
    begin = time.monotonic()
    store.get("k")
    store.get_range("k", 0, 1000)
    store.get_range("k", 2500, 1000)
    assert time.monotonic() - begin >= 0.01 * 3 + 0.045
    statistics = store.statistics()
    assert (statistics.requests, statistics.bytes) == (3, 4500)
    assert statistics.busy_s == pytest.approx(0.075)


def test_one_at_a_time_and_none_is_lost_to_sleeping_too_long(clock: Clock) -> None:
    store = SlowStore(holding(10), seek_s=0.005, bytes_per_s=1e9)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.get, ["k"] * 64))
    assert sorted(clock.slept) == pytest.approx([0.005 * (n + 1) for n in range(64)], rel=1e-3)
    clock.now = 0.3  # who slept too long comes late, but before the end of the others
    store.get("k")
    assert clock.slept[-1] == pytest.approx(65 * 0.005 - 0.3, rel=1e-3)
    clock.now = 1.0
    store.get("k")
    assert clock.slept[-1] == pytest.approx(0.005, rel=1e-3)


def test_only_reads_are_slowed() -> None:
    store = SlowStore(MemoryObjectStore(), seek_s=3600)
    store.create("new", [b"x"])
    assert store.stat("new").size_bytes == 1
    assert [info.key for info in store.list("")] == ["new"]
    store.delete("new")
    assert store.statistics() == DeviceStatistics()


def test_pickled_with_a_queue_of_its_own(tmp_path: Path) -> None:
    store = SlowStore(LocalDirectory(tmp_path / "store"), 0.001, 1e6)
    store.create("k", [b"x"])
    store.get("k")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.statistics() == DeviceStatistics()
    assert copy.get("k") == b"x"
    assert copy.statistics().busy_s == pytest.approx(0.001001)


def test_the_share_of_stragglers(clock: Clock) -> None:
    store = StragglingStore(holding(1), share=0.25, factor=100, read_s=1e-4, seed=3)
    for _ in range(200):
        store.get("k")
    assert 30 <= sum(seconds >= 0.009 for seconds in clock.slept) <= 80
    assert store.reads == 200
