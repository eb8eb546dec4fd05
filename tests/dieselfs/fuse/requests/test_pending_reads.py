"""Pending work: bounded, in order, and counted from submission to end."""

import threading
import time

import pytest

from dieselfs.fuse.requests.pending_reads import PendingReads, Work
from tests.eventually import PATIENCE_S, eventually


def begun(pending: PendingReads, work: Work) -> Work:
    """Submit work that need not wait for its turn."""
    run = pending.submit(work)
    assert run is not None
    return run


def test_work_beyond_the_limit_is_run_in_order_by_the_threads_that_are_at_work() -> None:
    pending, done, threads = PendingReads(2), list[int](), set[int]()

    def work(number: int) -> Work:
        def run() -> None:
            done.append(number)
            threads.add(threading.get_ident())

        return run

    first = begun(pending, work(0))
    begun(pending, work(1))
    assert [pending.submit(work(number)) for number in range(2, 6)] == [None] * 4
    assert pending.statistics().under_way == 6
    assert not pending.drain(0.01)
    first()
    assert done == [0, 2, 3, 4, 5]
    assert threads == {threading.get_ident()}
    assert pending.statistics().under_way == 1
    begun(pending, work(6))()
    assert done[-1] == 6


def test_drain_waits_for_the_last() -> None:
    pending, gate = PendingReads(2), threading.Event()
    threads = [threading.Thread(target=begun(pending, gate.wait)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert not pending.drain(0.01)
    gate.set()
    assert pending.drain(PATIENCE_S)
    for thread in threads:
        thread.join()


def test_waits_are_counted_from_submission() -> None:
    pending = PendingReads(1)
    run = begun(pending, lambda: time.sleep(0.05))
    pending.submit(lambda: None)
    run()
    found = pending.statistics()
    assert (found.submitted, found.waits, found.under_way) == (2, 2, 0)
    assert found.waited_s >= 0.1


def test_a_bug_in_work_is_logged_and_the_next_is_run(caplog: pytest.LogCaptureFixture) -> None:
    pending, done = PendingReads(1), threading.Event()
    run = begun(pending, lambda: 1 / 0)
    pending.submit(done.set)
    run()
    assert done.is_set()
    assert pending.drain(0)
    assert "failed unexpectedly" in caplog.text


def test_when_closed_what_has_not_begun_is_dropped() -> None:
    pending, gate, ran = PendingReads(1), threading.Event(), list[int]()
    thread = threading.Thread(target=begun(pending, gate.wait))
    thread.start()
    pending.submit(lambda: ran.append(1))
    pending.close()
    assert pending.submit(lambda: ran.append(2)) is None
    gate.set()
    eventually(lambda: not thread.is_alive())
    assert pending.drain(PATIENCE_S)
    assert ran == []
