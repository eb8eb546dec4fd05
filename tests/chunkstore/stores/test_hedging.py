from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkstore.call_threads import Answers
from chunkstore.errors import ChunkStoreError, NotFound, Unavailable
from chunkstore.stores import time_left
from chunkstore.stores.deadline import DeadlineStore
from chunkstore.stores.hedging import HedgePolicy, HedgeStatistics, HedgingStore
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.read import Read
from chunkstore.stores.time_left import OperationEnds
from tests.chunkstore.stores.faulty_store import FaultyStore, hanging
from tests.eventually import PATIENCE_S, eventually

POLICY = HedgePolicy(shortest_s=0.3, extra_share=1.0, enough=4)


class InOrder(DeadlineStore):
    """Begins a read when the store has seen it: a second request never overtakes the first."""

    def __init__(self, faulty: FaultyStore) -> None:
        super().__init__(faulty, PATIENCE_S)
        self._calls = faulty.calls

    def begin(
        self, read: Read, answers: Answers[Buffer], call: int, then: Callable[[], None]
    ) -> None:
        name = "get" if read.length is None else "get_range"
        before = self._calls[name]
        super().begin(read, answers, call, then)
        eventually(lambda: self._calls[name] > before)


def hedging(faulty: FaultyStore, policy: HedgePolicy = POLICY, seen: int = 4) -> HedgingStore:
    """Return a store whose reads so far took no time: a read is late after `shortest_s`."""
    faulty.inner.create("k", [b"0123456789"])
    store = HedgingStore(InOrder(faulty), policy, clock=lambda: 0.0)
    for _ in range(seen):
        store.get("k")
        store.get_range("k", 0, 5)
    return store


def nth(wanted: int, act: Callable[[], None]) -> Callable[[str, str, int], None]:
    """`act` at the `wanted`-th get and get_range."""

    def fault(call: str, key: str, number: int) -> None:
        if call in ("get", "get_range") and number == wanted:
            act()

    return fault


def test_a_late_read_is_answered_by_a_second() -> None:
    with hanging() as hang:
        store = hedging(FaultyStore(nth(5, hang)))
        assert store.get("k") == b"0123456789"
        assert store.get_range("k", 2, 4) == b"2345"
        assert store.statistics() == HedgeStatistics(reads=10, hedges=2, won=2)


def test_a_first_answer_that_comes_after_all_wins_over_a_second_that_hangs() -> None:
    first = threading.Event()
    with hanging() as hang:

        def fault(call: str, key: str, number: int) -> None:
            if number == 5:
                assert first.wait(20)
            if number == 6:
                first.set()
                hang()

        store = hedging(FaultyStore(fault), seen=4)
        assert store.get("k") == b"0123456789"
        assert store.statistics() == HedgeStatistics(reads=9, hedges=1)


def test_not_before_enough_were_seen() -> None:
    faulty = FaultyStore()
    store = hedging(faulty, seen=3)
    with hanging() as hang:
        faulty.fault = nth(4, hang)
        with OperationEnds(1.0), pytest.raises(Unavailable, match="in time"):
            store.get("k")
    assert store.statistics() == HedgeStatistics(reads=7)


def test_a_kind_that_was_not_seen_is_not_hedged() -> None:
    faulty = FaultyStore()
    store = hedging(faulty)
    with hanging() as hang:
        faulty.fault = nth(5, hang)
        with OperationEnds(1.0), pytest.raises(Unavailable, match="in time"):
            store.get_range("k", 0, 1000)
    assert store.statistics().hedges == 0


def test_a_store_that_is_slow_everywhere_is_not_given_twice_the_work() -> None:
    """Tokens of 400 reads at 2.5%: 10 second requests."""
    policy = HedgePolicy(shortest_s=0.001, extra_share=0.025, burst=2.0, enough=100)
    faulty = FaultyStore()
    store = hedging(faulty, policy, seen=100)
    slow = threading.Event()
    faulty.fault = lambda *_: slow.wait(0.02) and None
    before = faulty.calls["get"]
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(store.get, ["k"] * 400)) == {b"0123456789"}
    eventually(lambda: len(store._store._threads._idle) == store._store._threads.count)
    extra = faulty.calls["get"] - before - 400
    assert extra == store.statistics().hedges
    assert 0 < extra <= 2 + 400 * 0.025
    assert store.statistics().refused > 0


def test_of_two_requests_one_may_be_unavailable() -> None:
    """The second fails at once, the first is answered later; and the other way round."""
    second_failed = threading.Event()

    def fault(call: str, key: str, number: int) -> None:
        if number == 5:
            assert second_failed.wait(20)
        if number == 6:
            second_failed.set()
            raise Unavailable("the second")

    store = hedging(FaultyStore(fault))
    assert store.get("k") == b"0123456789"

    second_began = threading.Event()

    def other_way(call: str, key: str, number: int) -> None:
        if number == 5:
            assert second_began.wait(20)
            raise Unavailable("the first")
        if number == 6:
            second_began.set()

    store = hedging(FaultyStore(other_way))
    assert store.get("k") == b"0123456789"


def test_both_unavailable() -> None:
    second_began = threading.Event()

    def fault(call: str, key: str, number: int) -> None:
        if number == 5:
            assert second_began.wait(20)
        if number == 6:
            second_began.set()
        if number >= 5:
            raise Unavailable("away")

    store = hedging(FaultyStore(fault))
    with pytest.raises(Unavailable, match="away"):
        store.get("k")
    assert store.statistics().hedges == 1


@pytest.mark.parametrize("error", [NotFound, Unavailable])
def test_an_error_that_comes_in_time_is_told_at_once(error: type[ChunkStoreError]) -> None:
    def away() -> None:
        raise error("away")

    policy = HedgePolicy(shortest_s=PATIENCE_S / 2, extra_share=1.0, enough=4)
    store = hedging(FaultyStore(nth(5, away)), policy)
    with pytest.raises(error, match="away"):
        store.get("k")
    assert store.statistics().hedges == 0


class Stopped:
    """Stands in for `time`: however late a thread is, an operation has all its time."""

    def monotonic(self) -> float:
        return 0.0


def test_both_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_left, "time", Stopped())
    with hanging() as hang:
        policy = HedgePolicy(shortest_s=0.01, extra_share=1.0, enough=4)
        faulty = FaultyStore(lambda call, key, number: hang() if number > 4 else None)
        store = hedging(faulty, policy)
        with OperationEnds(1.0), pytest.raises(Unavailable, match="in time"):
            store.get("k")
        assert store.statistics().hedges == 1


def test_one_slow_object_delays_nobody_else() -> None:
    """All its requests hang, while others are read in the same store."""
    with ThreadPoolExecutor(16) as pool, hanging() as hang:
        faulty = FaultyStore(lambda call, key, number: hang() if key == "slow" else None)
        store = hedging(faulty)
        faulty.inner.create("slow", [b"x"])
        late = [pool.submit(store.get, "slow") for _ in range(8)]
        eventually(lambda: store.statistics().hedges == 8)
        assert list(pool.map(store.get, ["k"] * 200)) == [b"0123456789"] * 200
        assert not any(one.done() for one in late)
    assert [one.result() for one in late] == [b"x"] * 8
