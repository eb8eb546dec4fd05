"""The whole stack, and each wrapper, do what every store must."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkstore.errors import NotFound, Unavailable
from chunkstore.stores.adaptive_limit import LimitedStore
from chunkstore.stores.aimd import LimitPolicy
from chunkstore.stores.deadline import DeadlineStore
from chunkstore.stores.hedging import HedgingStore
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.resilient import ResiliencePolicy, ResilientStore
from chunkstore.stores.retrying import RetryingStore, RetryPolicy, RetryStatistics
from tests.chunkstore.stores.faulty_store import FaultyStore, hanging
from tests.contracts.object_store_contract import (
    ObjectStoreContract,
    OpenStore,
    SharedObjectStoreContract,
)

WRAPPERS: dict[str, Callable[[ObjectStore], ObjectStore]] = {
    "retrying": RetryingStore,
    "limited": LimitedStore,
    "deadline": DeadlineStore,
    "hedging": lambda store: HedgingStore(DeadlineStore(store)),
    "all": ResilientStore,
}


class TestOverMemory(ObjectStoreContract):
    @pytest.fixture(params=WRAPPERS)
    def open_store(self, request: pytest.FixtureRequest) -> OpenStore:
        return lambda: WRAPPERS[request.param](MemoryObjectStore())


class TestOverADirectory(SharedObjectStoreContract):
    """With processes that fork while the wrappers' threads are there."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: ResilientStore(LocalDirectory(tmp_path / "store"))


class TestPickled:
    """A helper process is given the store: with what it needs, and without what is of this process."""

    @pytest.mark.parametrize("wrapper", WRAPPERS)
    def test_over_a_directory(self, wrapper: str, tmp_path: Path) -> None:
        store = WRAPPERS[wrapper](LocalDirectory(tmp_path / "store"))
        store.create("k", [b"x"])
        assert store.get("k") == b"x"
        copy = pickle.loads(pickle.dumps(store))
        assert type(copy) is type(store)
        assert copy.get("k") == b"x"
        again = pickle.loads(pickle.dumps(copy))
        assert [again.get("k") for _ in range(3)] == [b"x"] * 3

    def test_counters_begin_anew_and_the_policy_stays(self, tmp_path: Path) -> None:
        policy = ResiliencePolicy(
            retry=RetryPolicy(tries=2), limit=LimitPolicy(first=5), request_timeout_s=3
        )
        store = ResilientStore(LocalDirectory(tmp_path / "store"), policy)
        store.create("k", [b"x"])
        store.get("k")
        assert store.statistics().hedge.reads == 1
        copy = pickle.loads(pickle.dumps(store))
        assert copy.statistics().hedge.reads == 0
        assert copy.statistics().limit.limit == 5
        (tmp_path / "store").rename(tmp_path / "gone")
        with pytest.raises(Unavailable):
            copy.get("k")
        assert copy.statistics().retry == RetryStatistics(retries=1, given_up=1)

    def test_who_is_handed_a_store_that_has_answered_is_patient_at_once(
        self, tmp_path: Path
    ) -> None:
        policy = ResiliencePolicy(RetryPolicy(None, first_pause_s=0.001, operation_timeout_s=0.5))
        store = ResilientStore(LocalDirectory(tmp_path / "store"), policy)
        store.create("k", [b"x"])
        copy = pickle.loads(pickle.dumps(store))
        (tmp_path / "store").rename(tmp_path / "gone")
        with pytest.raises(Unavailable):
            copy.get("k")
        assert copy.statistics().retry.retries > 4

    def test_a_store_in_memory_stays_where_it_is(self) -> None:
        for store in (MemoryObjectStore(), ResilientStore(MemoryObjectStore())):
            with pytest.raises(TypeError):
                pickle.dumps(store)


class TestTogether:
    def test_a_request_that_hangs_is_tried_again_and_answered(self) -> None:
        with hanging() as hang:
            faulty = FaultyStore(lambda call, key, number: hang() if number == 1 else None)
            faulty.inner.create("k", [b"x"])
            store = ResilientStore(faulty, ResiliencePolicy(request_timeout_s=0.05))
            assert store.get("k") == b"x"
            assert store.stat("k").size_bytes == 1
            statistics = store.statistics()
        assert statistics.retry == RetryStatistics(retries=2)
        assert statistics.deadline.abandoned == 2
        assert statistics.limit.in_flight == 0

    def test_an_operation_ends_when_everything_hangs(self) -> None:
        with hanging() as hang:
            faulty = FaultyStore(lambda *_: hang())
            policy = ResiliencePolicy(
                RetryPolicy(tries=1000, first_pause_s=0, operation_timeout_s=0.2),
                request_timeout_s=0.05,
            )
            store = ResilientStore(faulty, policy)
            begin = time.monotonic()
            with pytest.raises(Unavailable, match="in time"):
                store.get("k")
            assert 0.15 < time.monotonic() - begin < 10
            assert 2 <= faulty.calls["get"] < 20

    def test_a_read_that_pauses_holds_no_turn(self) -> None:
        """The only place in the line is another's while a failed read waits for its next try."""
        others: list[bytes] = []

        def fault(call: str, key: str, number: int) -> None:
            if key == "away" and number == 1:
                raise Unavailable("away")

        faulty = FaultyStore(fault)
        faulty.inner.create("k", [b"x"])
        faulty.inner.create("away", [b"y"])
        limited = LimitedStore(faulty, LimitPolicy(lowest=1, first=1, highest=1))
        store = RetryingStore(limited, sleep=lambda _: others.append(limited.get("k")))
        assert store.get("away") == b"y"
        assert others == [b"x"]

    def test_what_a_store_says_of_itself_is_told(self) -> None:
        store = ResilientStore(MemoryObjectStore())
        with pytest.raises(NotFound):
            store.get("k")
        assert store.statistics().retry == RetryStatistics()
