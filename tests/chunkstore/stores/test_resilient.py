"""The whole stack, and each wrapper, do what every store must."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chunkstore.errors import NotFound, Unavailable
from chunkstore.stores import time_left
from chunkstore.stores.adaptive_limit import LimitedStore
from chunkstore.stores.aimd import LimitPolicy
from chunkstore.stores.deadline import DeadlineStore
from chunkstore.stores.hedging import HedgePolicy, HedgeStatistics, HedgingStore
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.resilient import ResiliencePolicy, ResilientStore
from chunkstore.stores.retrying import RetryingStore, RetryPolicy, RetryStatistics
from tests.chunkstore.stores.faulty_store import FaultyStore, hanging
from tests.contracts.key_value_store_contract import fork
from tests.contracts.object_store_contract import (
    ObjectStoreContract,
    OpenStore,
    SharedObjectStoreContract,
)
from tests.eventually import PATIENCE_S, eventually

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


PATIENT = ResiliencePolicy(
    RetryPolicy(None, first_pause_s=0.001, longest_pause_s=0.01, operation_timeout_s=PATIENCE_S)
)


def waits_for(store: ResilientStore, folder: Path) -> None:
    """Assert that a read outlives more failures than a store that has never answered may have."""
    (folder / "store").rename(folder / "gone")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(store.get, "k")
        eventually(lambda: read.done() or store.statistics().retry.retries > 4)
        (folder / "gone").rename(folder / "store")
        assert read.result() == b"x"


class TestPickled:
    """A helper process is given the store: with what it needs, and without what is of this
    process."""

    def test_over_a_directory(self, tmp_path: Path) -> None:
        store = ResilientStore(LocalDirectory(tmp_path / "store"))
        store.create("k", [b"x"])
        assert store.get("k") == b"x"
        copy = pickle.loads(pickle.dumps(store))
        assert type(copy) is type(store)
        assert copy.get("k") == b"x"
        again = pickle.loads(pickle.dumps(copy))
        assert [again.get("k") for _ in range(3)] == [b"x"] * 3

    def test_counters_begin_anew_and_the_policy_stays(self, tmp_path: Path) -> None:
        policy = ResiliencePolicy(
            retry=RetryPolicy(tries=2), limit=LimitPolicy(first=5), request_timeout_s=60
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
        store = ResilientStore(LocalDirectory(tmp_path / "store"), PATIENT)
        store.create("k", [b"x"])
        copy = pickle.loads(pickle.dumps(store))
        waits_for(copy, tmp_path)

    def test_a_store_in_memory_stays_where_it_is(self) -> None:
        for store in (MemoryObjectStore(), ResilientStore(MemoryObjectStore())):
            with pytest.raises(TypeError):
                pickle.dumps(store)


class TestForked:
    """A child has wrappers of its own: none of the parent's reads, latencies and counts are
    there."""

    def test_nothing_is_in_flight(self) -> None:
        with ThreadPoolExecutor(2) as pool, hanging() as hang:
            faulty = FaultyStore(lambda call, key, _: hang() if key == "slow" else None)
            faulty.inner.create("slow", [b"x"])
            faulty.inner.create("k", [b"0123456789"])
            store = ResilientStore(faulty, ResiliencePolicy(limit=LimitPolicy(first=2)))
            for _ in range(2):
                pool.submit(store.get, "slow")
            eventually(lambda: store.statistics().limit.in_flight == 2)

            def child() -> None:
                assert store.statistics().limit.in_flight == 0
                assert store.get("k") == b"0123456789"

            assert os.waitpid(fork(child), 0)[1] == 0

    def test_it_learns_anew_when_a_read_is_late(self) -> None:
        faulty = FaultyStore()
        faulty.inner.create("k", [b"x"])
        hedge = HedgePolicy(shortest_s=0.3, extra_share=1.0, enough=4)
        store = ResilientStore(faulty, ResiliencePolicy(hedge=hedge))
        assert [store.get("k") for _ in range(8)] == [b"x"] * 8
        with hanging() as hang:

            def child() -> None:
                assert store.statistics().hedge == HedgeStatistics()
                assert [store.get("k") for _ in range(5)] == [b"x"] * 5
                late = faulty.calls["get"] + 1  # a busy machine may have hedged some before
                faulty.fault = lambda call, key, number: hang() if number == late else None
                while store.statistics().hedge.hedges == 0:
                    assert store.get("k") == b"x"

            assert os.waitpid(fork(child), 0)[1] == 0
        assert store.statistics().hedge.reads == 8

    def test_it_knows_that_the_store_has_answered(self, tmp_path: Path) -> None:
        store = ResilientStore(LocalDirectory(tmp_path / "store"), PATIENT)
        store.create("k", [b"x"])
        assert os.waitpid(fork(lambda: waits_for(store, tmp_path)), 0)[1] == 0


class MovingClock:
    """Stands in for `time`, and moves by a second at each look."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


class TestTogether:
    def test_a_request_that_hangs_is_tried_again_and_answered(self) -> None:
        with hanging() as hang:
            faulty = FaultyStore(lambda call, key, number: hang() if number == 1 else None)
            faulty.inner.create("k", [b"x"])
            retry = RetryPolicy(tries=1000, longest_pause_s=0.1, operation_timeout_s=PATIENCE_S)
            store = ResilientStore(faulty, ResiliencePolicy(retry, request_timeout_s=0.05))
            assert store.get("k") == b"x"
            assert store.stat("k").size_bytes == 1
            statistics = store.statistics()
        # On a busy machine an answer may be late by itself.
        abandoned = statistics.deadline.abandoned
        assert abandoned >= 2
        assert statistics.retry == RetryStatistics(retries=abandoned)
        assert statistics.limit.in_flight == 0

    def test_an_operation_ends_when_everything_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with hanging() as hang:
            faulty = FaultyStore(lambda *_: hang())
            policy = ResiliencePolicy(
                RetryPolicy(tries=1000, first_pause_s=0, operation_timeout_s=20),
                request_timeout_s=0.05,
            )
            store = ResilientStore(faulty, policy)
            clock = MovingClock()
            monkeypatch.setattr(time_left, "time", clock)
            with pytest.raises(Unavailable, match="in time"):
                store.get("k")
        assert 20 < clock.now < 25
        assert 2 <= store.statistics().deadline.abandoned < 20

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
