"""One does the work, the others wait for what comes of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkstore.errors import Unavailable
from chunkstore.single_flight import SingleFlight


def test_all_who_wait_hear_of_a_failure_and_the_next_one_tries_again() -> None:
    flights: SingleFlight[None] = SingleFlight()
    outcomes: list[str] = []
    began = threading.Event()
    fails = threading.Event()

    def work() -> None:
        began.set()
        fails.wait(30)
        raise Unavailable("the store is out")

    def run() -> None:
        try:
            flights.run("chunk", work)
        except Unavailable as error:
            outcomes.append(str(error))

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(run)
        assert began.wait(30)
        assert flights.is_under_way("chunk")
        others = [threads.submit(run) for _ in range(2)]
        fails.set()
        for one in (first, *others):
            one.result(30)
    assert outcomes == ["the store is out"] * 3
    assert not flights.is_under_way("chunk")
    flights.run("chunk", lambda: outcomes.append("again"))
    assert outcomes[-1] == "again"


def test_work_that_cannot_be_started_leaves_nothing_behind() -> None:
    flights: SingleFlight[int] = SingleFlight()

    def fails(land: object) -> None:
        raise RuntimeError("no more threads")

    with pytest.raises(RuntimeError):
        flights.begin("chunk", lambda: 1, fails)
    assert flights.run("chunk", lambda: 2) == 2


def test_work_may_be_done_by_another_thread() -> None:
    flights: SingleFlight[int] = SingleFlight()
    go = threading.Event()

    def start(land: object) -> None:
        threading.Thread(target=land).start()  # type: ignore[arg-type]

    found = flights.begin("chunk", lambda: int(go.wait(30)), start)
    with pytest.raises(TimeoutError):
        found.result(0.0)
    assert flights.begin("chunk", lambda: 7, start) is found
    go.set()
    assert found.result(30) == 1
