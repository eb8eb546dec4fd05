from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from chunkstore.errors import NotFound, Unavailable
from chunkstore.stores import time_left
from chunkstore.stores.adaptive_limit import LimitedStore, OwnLimit
from chunkstore.stores.aimd import LimitPolicy
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.retrying import RetryingStore, RetryPolicy
from chunkstore.stores.time_left import OperationEnds
from tests.chunkstore.stores.faulty_store import FaultyStore, hanging
from tests.eventually import eventually, scaled_by_load


def limited(faulty: FaultyStore, first: int, highest: int = 64) -> LimitedStore:
    faulty.inner.create("k", [b"0123456789"])
    return LimitedStore(faulty, LimitPolicy(first=first, highest=highest))


class InFlight:
    """Calls that take a millisecond; counts the most at a time."""

    def __init__(self) -> None:
        self.most = self._running = 0
        self._lock, self._pause = threading.Lock(), threading.Event()

    def __call__(self, call: str, key: str, number: int) -> None:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        self._pause.wait(0.001)
        with self._lock:
            self._running -= 1


def test_no_more_in_flight_than_the_limit() -> None:
    in_flight = InFlight()
    store = limited(FaultyStore(in_flight), first=3, highest=3)
    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(store.get, ["k"] * 200)) == {b"0123456789"}
    assert 2 <= in_flight.most <= 3
    statistics = store.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    assert statistics.waited > 0


def test_reads_take_no_turns_of_other_calls() -> None:
    with ThreadPoolExecutor(2) as pool, hanging() as hang:
        faulty = FaultyStore(lambda call, key, _: hang() if key == "slow" else None)
        faulty.inner.create("slow", [b"x"])
        store = limited(faulty, first=2)
        late = [pool.submit(store.get, "slow"), pool.submit(store.get_range, "slow", 0, 1)]
        eventually(lambda: store.statistics().in_flight == 2)
        store.create("new", [b"x"])
        assert store.stat("new").size_bytes == 1
        assert {info.key for info in store.list("")} == {"k", "new", "slow"}
        store.delete("new")
        with OperationEnds(0.02), pytest.raises(Unavailable, match="2 earlier reads"):
            store.get("k")
    assert [one.result() for one in late] == [b"x"] * 2
    assert store.get("k") == b"0123456789"


def test_a_failed_read_gives_its_turn_back_and_only_unavailable_lowers_the_limit() -> None:
    faulty = FaultyStore()
    store = limited(faulty, first=8)
    for _ in range(30):
        with pytest.raises(NotFound):
            store.get("absent")
    assert store.statistics().limit == 8

    def away(*_: object) -> None:
        raise Unavailable("away")

    faulty.fault = away
    for _ in range(30):
        with pytest.raises(Unavailable):
            store.get_range("k", 0, 1)
    statistics = store.statistics()
    assert (statistics.limit, statistics.decreases, statistics.in_flight) == (2, 2, 0)


def test_a_lower_limit_holds_for_the_next() -> None:
    def fault(call: str, key: str, number: int) -> None:
        if key == "away":
            raise Unavailable("away")
        if key == "slow":
            hang()

    with ThreadPoolExecutor(4) as pool, hanging() as hang:
        faulty = FaultyStore(fault)
        faulty.inner.create("slow", [b"x"])
        store = limited(faulty, first=4)
        late = [pool.submit(store.get, "slow") for _ in range(2)]
        eventually(lambda: store.statistics().in_flight == 2)
        with pytest.raises(Unavailable):
            store.get("away")
        with OperationEnds(0.02), pytest.raises(Unavailable, match="earlier reads"):
            store.get("k")
    assert [one.result() for one in late] == [b"x"] * 2


def throttling(times: int) -> Callable[[str, str, int], None]:
    left = itertools.count()

    def fault(call: str, key: str, number: int) -> None:
        if call == "create" and next(left) < times:
            raise Unavailable("503 SlowDown")

    return fault


def uploading(
    faulty: FaultyStore, policy: LimitPolicy, **retry: float
) -> tuple[RetryingStore, LimitedStore]:
    store = LimitedStore(faulty, uploads=OwnLimit(policy))
    return RetryingStore(store, RetryPolicy(tries=None, **retry), has_answered=True), store


def test_no_more_uploads_in_flight_than_the_limit() -> None:
    in_flight = InFlight()
    _, store = uploading(FaultyStore(in_flight), LimitPolicy(first=3, highest=3))
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: store.create(str(number), [b"x"]), range(100)))
    assert 2 <= in_flight.most <= 3
    assert store.upload_statistics().waited > 0
    assert store.statistics().waited == 0


def test_uploads_that_are_throttled_are_repeated_and_cut_the_limit() -> None:
    faulty = FaultyStore(throttling(20))
    policy = LimitPolicy(first=8, first_pause_s=0.001, longest_pause_s=0.002)
    retrying, store = uploading(faulty, policy, first_pause_s=0.001)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: retrying.create(str(number), [b"x"]), range(40)))
    assert {info.key for info in faulty.inner.list("")} == {str(number) for number in range(40)}
    statistics = store.upload_statistics()
    assert (statistics.failures, statistics.in_flight) == (20, 0)
    assert 2 <= statistics.least < 8
    assert "503 SlowDown" in statistics.last_failure


def test_the_wait_for_a_store_that_goes_on_answering_does_not_use_up_the_patience() -> None:
    """The last of 12 uploads wait longer in the line than an upload may take.

    The time between two answers is an eighth of that. An upload may take longer on a busy machine,
    which delays answers; what follows in one thread holds there too.
    """
    pause = threading.Event()
    faulty = FaultyStore(lambda *_: (pause.wait(0.25), None)[1])
    policy = LimitPolicy(first=1, highest=1)
    retrying, _ = uploading(faulty, policy, operation_timeout_s=scaled_by_load(2.0))
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: retrying.create(str(number), [b"x"]), range(12)))
    assert len(list(faulty.inner.list(""))) == 12


class Line(OwnLimit):
    """A line behind others, one of which is answered every 15 s of a given clock."""

    def __init__(self, others: int) -> None:
        super().__init__(LimitPolicy())
        self.now = 0.0
        self._answers = [15.0 * (number + 1) for number in range(others)]

    def monotonic(self) -> float:
        return self.now

    def take(self, timeout_s: float) -> bool:
        end = self.now + timeout_s
        while self._answers and self._answers[0] <= end:
            self.now = answered = self._answers.pop(0)
            self.report(lambda aimd, at=answered: aimd.succeeded("", at, at))  # type: ignore[misc]
        if self._answers:
            self.now = end
        return not self._answers and super().take(0)


@pytest.mark.parametrize(
    ("patience_s", "passes"), [(100, True), (40, True), (16, True), (14, False)]
)
def test_the_wait_for_a_store_ends_when_no_answer_comes_for_as_long_as_an_upload_may_take(
    patience_s: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(others=12)
    monkeypatch.setattr(time_left, "time", line)
    store = LimitedStore(MemoryObjectStore(), uploads=line, clock=line.monotonic)
    outcome = nullcontext() if passes else pytest.raises(Unavailable, match="earlier uploads")
    with OperationEnds(patience_s), outcome:
        store.create("k", [b"x"])
    assert line.now == (12 * 15 if passes else patience_s)


def test_the_wait_for_a_store_that_does_not_answer_ends_with_the_reason() -> None:
    with ThreadPoolExecutor(1) as pool, hanging() as hang:
        faulty = FaultyStore(lambda call, key, _: hang() if key == "slow" else None)
        _, store = uploading(faulty, LimitPolicy(first=1, highest=1))
        late = pool.submit(store.create, "slow", [b"x"])
        eventually(lambda: store.upload_statistics().in_flight == 1)
        with OperationEnds(0.02), pytest.raises(Unavailable, match="earlier uploads"):
            store.create("k", [b"x"])
    late.result()
