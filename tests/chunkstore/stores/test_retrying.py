from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from chunkstore.errors import (
    AlreadyExists,
    ChunkStoreError,
    Corrupt,
    Denied,
    NotFound,
    StoreFull,
    Unavailable,
)
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.retrying import RetryingStore, RetryPolicy, RetryStatistics
from tests.chunkstore.stores.faulty_store import FaultyStore
from tests.eventually import scaled_by_load

CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", 0, 1),
    "stat": lambda store: store.stat("k"),
    "delete": lambda store: store.delete("k"),
    "list": lambda store: list(store.list("")),
    "create": lambda store: store.create("new", [b"x"]),
}


def failing(times: int, error: type[ChunkStoreError] = Unavailable) -> FaultyStore:
    """Each call fails as often."""

    def fault(call: str, key: str, number: int) -> None:
        if number <= times:
            raise error(f"failure {number}")

    store = FaultyStore(fault)
    store.inner.create("k", [b"content"])
    return store


def retrying(store: ObjectStore, **policy: float) -> tuple[RetryingStore, list[float]]:
    pauses: list[float] = []
    return RetryingStore(store, RetryPolicy(**policy), seed=1, sleep=pauses.append), pauses  # type: ignore[arg-type]


@pytest.mark.parametrize("call", CALLS)
class TestEachCall:
    def test_is_tried_again(self, call: str) -> None:
        faulty = failing(3)
        store, pauses = retrying(faulty)
        CALLS[call](store)
        assert (faulty.calls[call], len(pauses)) == (4, 3)
        assert store.statistics() == RetryStatistics(retries=3)

    def test_is_given_up(self, call: str) -> None:
        faulty = failing(4)
        store, pauses = retrying(faulty)
        with pytest.raises(Unavailable, match="failure 4"):
            CALLS[call](store)
        assert (faulty.calls[call], len(pauses)) == (4, 3)
        assert store.statistics() == RetryStatistics(retries=3, given_up=1)

    @pytest.mark.parametrize("error", [Denied, NotFound, Corrupt, StoreFull])
    def test_other_errors_are_told_at_once(self, call: str, error: type[ChunkStoreError]) -> None:
        faulty = failing(1, error)
        store, pauses = retrying(faulty)
        with pytest.raises(error):
            CALLS[call](store)
        assert (faulty.calls[call], pauses) == (1, [])


def test_pauses_double_up_to_the_longest_and_are_spread_from_nought() -> None:
    store, pauses = retrying(
        failing(10**9), tries=9, first_pause_s=1, longest_pause_s=50, operation_timeout_s=1e9
    )
    for _ in range(500):
        with pytest.raises(Unavailable):
            store.get("k")
    for failure, longest in enumerate([1, 2, 4, 8, 16, 32, 50, 50]):
        drawn = pauses[failure::8]
        assert len(drawn) == 500
        assert 0 <= min(drawn) < 0.05 * longest
        assert 0.95 * longest < max(drawn) <= longest
        assert 0.4 * longest < sum(drawn) / 500 < 0.6 * longest


def test_no_pause_that_outlasts_the_operation() -> None:
    faulty = failing(10**9)
    store, pauses = retrying(faulty, operation_timeout_s=0.0)
    with pytest.raises(Unavailable, match="failure 1"):
        store.get("k")
    assert (faulty.calls["get"], pauses) == (1, [])


class TestCreate:
    @staticmethod
    def answering_late(times: int = 1) -> FaultyStore:
        """`create` does its work, and its answer is lost."""

        class Store(FaultyStore):
            def after(self, call: str, key: str) -> None:
                if call == "create" and self.calls[call] <= times:
                    raise Unavailable("the answer is lost")

        return Store()

    def test_that_succeeded_unheard_is_no_failure(self) -> None:
        faulty = self.answering_late()
        store, _ = retrying(faulty)
        parts = [b"head", b"", b"x" * (9 << 20), b"tail"]
        store.create("k", parts)
        assert faulty.inner.get("k") == b"".join(parts)
        assert faulty.calls["create"] == 2

    def test_empty_ones_are_compared_too(self) -> None:
        store, _ = retrying(self.answering_late())
        store.create("k", [])

    @pytest.mark.parametrize("other", [b"", b"mine, but longer", b"min", b"mini", b"Mine"])
    def test_a_key_that_another_took_meanwhile(self, other: bytes) -> None:
        def fault(call: str, key: str, number: int) -> None:
            if call == "create" and number == 1:
                faulty.inner.create(key, [other])
                raise Unavailable("it did not arrive")

        faulty = FaultyStore(fault)
        store, _ = retrying(faulty)
        with pytest.raises(AlreadyExists):
            store.create("k", [b"mi", b"ne"])
        assert faulty.inner.get("k") == other

    def test_a_key_that_was_taken_before_is_refused_though_the_content_is_equal(self) -> None:
        """Whoever creates an object owns it, and here nobody has tried before."""
        faulty = FaultyStore()
        faulty.inner.create("k", [b"equal"])
        store, _ = retrying(faulty)
        with pytest.raises(AlreadyExists):
            store.create("k", [b"equal"])
        assert faulty.calls == {"create": 1}

    def test_the_comparison_is_tried_again_too(self) -> None:
        faulty = self.answering_late()

        def fault(call: str, key: str, number: int) -> None:
            if call == "get_range" and number == 1:
                raise Unavailable("not now")

        faulty.fault = fault
        store, _ = retrying(faulty)
        store.create("k", [b"mine"])

    def test_parts_that_pass_once_are_tried_once(self) -> None:
        def parts() -> Iterator[bytes]:
            yield b"a"

        faulty = failing(1)
        store, pauses = retrying(faulty)
        with pytest.raises(Unavailable):
            store.create("new", parts())
        assert (faulty.calls["create"], pauses) == (1, [])


class TestList:
    def test_a_listing_that_breaks_off_goes_on_with_what_is_missing(self) -> None:
        faulty = FaultyStore()
        names = [f"k{number:02d}" for number in range(20)]
        for name in names:
            faulty.inner.create(name, [])
        whole, breaks = faulty.inner.list, iter([0, 7, 20])

        def listing(prefix: str) -> Iterator[object]:
            end = next(breaks, None)
            for at, info in enumerate(whole(prefix)):
                if at == end:
                    break
                yield info
            if end is not None:
                raise Unavailable(f"broke off after {end}")

        faulty.inner.list = listing  # type: ignore[method-assign, assignment]
        store, pauses = retrying(faulty)
        assert [info.key for info in store.list("")] == names
        assert len(pauses) == 3

    def test_what_its_reader_raises_is_not_the_stores_failure(self) -> None:
        faulty = failing(0)
        store, _ = retrying(faulty)

        def read() -> None:
            for _ in store.list(""):
                raise Unavailable("the reader's own")

        with pytest.raises(Unavailable, match="the reader's"):
            read()
        assert faulty.calls["list"] == 1


class TestPatience:
    """Operations that go on for a time, not for a number of tries."""

    @staticmethod
    def patient(store: ObjectStore, patience_s: float = 1e6) -> tuple[RetryingStore, list[float]]:
        pauses: list[float] = []
        policy = RetryPolicy.patient(patience_s)
        return RetryingStore(store, policy, seed=1, sleep=pauses.append), pauses

    @pytest.mark.parametrize("call", CALLS)
    def test_a_store_that_has_answered_is_waited_out(self, call: str) -> None:
        faulty = failing(0)
        store, pauses = self.patient(faulty)
        store.stat("k")
        faulty.fault = failing(200).fault
        CALLS[call](store)
        assert len(pauses) in (199, 200)  # of the same call, one came before
        assert max(pauses) <= 5.0

    def test_a_store_that_never_answered_is_an_address_that_is_wrong(self) -> None:
        faulty = failing(10**9)
        store, pauses = self.patient(faulty)
        with pytest.raises(Unavailable, match="failure 4"):
            store.get("k")
        assert len(pauses) == 3

    def test_the_patience_ends(self) -> None:
        faulty = failing(0)
        store = RetryingStore(
            faulty, RetryPolicy(tries=None, first_pause_s=0.01, operation_timeout_s=0.5)
        )
        store.get("k")
        faulty.fault = failing(10**9).fault
        for call in CALLS.values():
            began = time.monotonic()
            with pytest.raises(Unavailable):
                call(store)
            assert time.monotonic() - began < scaled_by_load(10)

    def test_what_is_no_failure_of_the_store_counts_as_its_answer(self) -> None:
        faulty = failing(0)
        store, pauses = self.patient(faulty)
        with pytest.raises(NotFound):
            store.get("absent")
        faulty.fault = failing(20).fault
        store.stat("k")
        assert len(pauses) == 20


def test_an_outage_is_told_twice_in_all(caplog: pytest.LogCaptureFixture) -> None:
    faulty = failing(0)
    store = RetryingStore(faulty, RetryPolicy.patient(), sleep=lambda _: None)
    store.get("k")
    faulty.fault = failing(50).fault
    with caplog.at_level("INFO", "chunkstore"):
        store.get("k")
        store.get("k")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("the store does not answer; each operation is tried again for 150 s")
    assert told[1].startswith("the store answers again after")


def test_a_failure_now_and_then_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    faulty = FaultyStore()

    def every_second(call: str, key: str, number: int) -> None:
        if number % 2:
            raise Unavailable("now and then")

    faulty.inner.create("k", [b"x"])
    faulty.fault = every_second
    store = RetryingStore(faulty, RetryPolicy.patient(), sleep=lambda _: None)
    with caplog.at_level("INFO", "chunkstore"):
        for _ in range(20):
            store.get("k")
    assert caplog.records == []
