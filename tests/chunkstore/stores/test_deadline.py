from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from chunkstore.errors import Unavailable
from chunkstore.stores.deadline import DeadlineStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.time_left import OperationEnds, time_left_s
from tests.chunkstore.stores.faulty_store import FaultyStore, hanging
from tests.eventually import PATIENCE_S, eventually

CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", 0, 1),
    "stat": lambda store: store.stat("k"),
    "delete": lambda store: store.delete("k"),
    "list": lambda store: list(store.list("")),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_hangs_is_unavailable(call: str) -> None:
    with hanging() as hang:
        faulty = FaultyStore(lambda *_: hang())
        store = DeadlineStore(faulty, 0.02)
        with pytest.raises(Unavailable, match="did not answer in time"):
            CALLS[call](store)
        assert store.statistics().abandoned == 1
    eventually(lambda: len(store._threads._idle) == 1)  # the hung call's thread is used again
    store._timeout_s = PATIENCE_S
    faulty.fault = lambda *_: None
    faulty.create("k", [b"x"])
    CALLS[call](store)
    assert store.statistics().threads == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_is_silent_is_told_of_once_while_it_is_waited_for(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    with hanging() as hang:
        faulty = FaultyStore(lambda *_: hang())
        store = DeadlineStore(faulty, 0.05, notice_after_s=0.01)
        for _ in range(2):
            with OperationEnds(60), pytest.raises(Unavailable):
                CALLS[call](store)
    [said] = caplog.messages
    assert said.startswith("the store has not answered for 0.01 s: waiting for up to ")


def test_a_store_that_answers_late_but_in_time_has_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store: DeadlineStore
    with hanging() as hang:
        faulty = FaultyStore(lambda call, *_: hang() if call == "get" else None)
        faulty.inner.create("k", [b"x"])
        store = DeadlineStore(faulty, 60, notice_after_s=0.01)
        found: list[object] = []
        reader = threading.Thread(target=lambda: found.append(store.get("k")))
        reader.start()
        eventually(lambda: len(caplog.messages) == 1)
    reader.join(60)
    assert found == [b"x"]


def test_one_object_that_hangs_delays_no_other() -> None:
    with hanging() as hang:
        faulty = FaultyStore(lambda call, key, _: hang() if key == "hangs" else None)
        faulty.inner.create("k", [b"x"])
        store = DeadlineStore(faulty, PATIENCE_S)
        caught: list[Exception] = []

        def read() -> None:
            try:
                store.get("hangs")
            except Exception as error:
                caught.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        eventually(lambda: faulty.calls["get"] == 1)
        assert [store.get("k") for _ in range(20)] == [b"x"] * 20
        assert thread.is_alive()
    thread.join(PATIENCE_S)
    assert len(caught) == 1  # there is no such object: it was told when the store came back


def test_the_operation_ends_before_the_request_may() -> None:
    with hanging() as hang:
        store = DeadlineStore(FaultyStore(lambda *_: hang()), 1000)
        with OperationEnds(0.02), pytest.raises(Unavailable):
            store.get("k")


def test_the_sooner_end_counts() -> None:
    assert time_left_s(7) == 7
    with OperationEnds(10_000):
        assert 9_900 < time_left_s(100_000) <= 10_000
        assert time_left_s(7) == 7
        with OperationEnds(1_000):
            assert 900 < time_left_s(100_000) <= 1_000
            with OperationEnds(5_000):
                assert time_left_s(100_000) <= 1_000
        assert time_left_s(100_000) > 9_900
    with OperationEnds(0):
        assert time_left_s(7) == 0
    assert time_left_s(7) == 7


def test_an_operation_is_of_its_thread() -> None:
    found = []
    with OperationEnds(0.0):
        thread = threading.Thread(target=lambda: found.append(time_left_s(7)))
        thread.start()
        thread.join(PATIENCE_S)
    assert found == [7]


def test_a_listing_is_asked_for_in_pages_and_each_is_bounded() -> None:
    with hanging() as hang:
        faulty = FaultyStore()
        for number in range(1500):
            faulty.inner.create(f"k{number}", [])
        listed = faulty.inner.list

        def stops_at_1200(prefix: str) -> object:
            for number, info in enumerate(listed(prefix)):
                if number == 1200:
                    hang()
                yield info

        faulty.inner.list = stops_at_1200  # type: ignore[method-assign, assignment]
        store = DeadlineStore(faulty, PATIENCE_S)
        entries = store.list("")
        assert len([next(entries) for _ in range(1000)]) == 1000
        store._timeout_s = 0.6
        begin = time.monotonic()
        with pytest.raises(Unavailable, match="the listing"):
            next(entries)
        assert time.monotonic() - begin >= 0.5


def test_create_is_not_abandoned() -> None:
    """Its caller's buffers are read until it returns, so it must not return before."""
    faulty = FaultyStore(lambda *_: time.sleep(0.03))
    store = DeadlineStore(faulty, 0.001)
    store.create("k", [b"x"])
    assert faulty.inner.get("k") == b"x"
