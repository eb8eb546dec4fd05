"""The pool: in order, bounded, started as needed, and counted from submission to end."""

import threading

import pytest

from dieselfs.fuse.requests.pending_reads import PendingReads
from tests.eventually import eventually


def pool_threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_threads_are_started_when_none_is_idle_and_end_with_the_pool() -> None:
    pool = PendingReads(4, "pool-a")
    assert pool_threads("pool-a") == 0
    for _ in range(5):
        pool.submit(lambda: None)
        assert pool.drain(10)
        eventually(lambda: pool._idle == 1)
    assert pool_threads("pool-a") == 1
    gate = threading.Event()
    for _ in range(9):
        pool.submit(gate.wait)
    eventually(lambda: len(pool._waiting) == 5)
    assert pool_threads("pool-a") == 4
    assert not pool.drain(0.01)
    assert pool.statistics().under_way == 9
    gate.set()
    assert pool.drain(10)
    pool.close()
    eventually(lambda: pool_threads("pool-a") == 0)


def test_work_begins_in_the_order_it_was_submitted() -> None:
    pool, begun = PendingReads(1), list[int]()
    for number in range(100):
        pool.submit(lambda number=number: begun.append(number))  # type: ignore[misc]
    assert pool.drain(10)
    assert begun == list(range(100))
    pool.close()


def test_waits_are_counted_from_submission() -> None:
    pool, gate = PendingReads(1), threading.Event()
    pool.submit(lambda: gate.wait(10))
    pool.submit(lambda: None)
    assert not pool.drain(0.05)
    gate.set()
    assert pool.drain(10)
    found = pool.statistics()
    assert (found.submitted, found.waits, found.under_way) == (2, 2, 0)
    assert found.waited_s >= 0.09
    pool.close()


def test_a_bug_in_work_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    pool, done = PendingReads(1), threading.Event()
    pool.submit(lambda: 1 / 0)
    pool.submit(done.set)
    assert done.wait(10)
    assert pool.drain(10)
    assert "failed unexpectedly" in caplog.text
    pool.close()


def test_a_closed_pool_drops_what_has_not_begun() -> None:
    pool, gate, begun = PendingReads(1), threading.Event(), list[int]()
    pool.submit(lambda: gate.wait(10))
    pool.submit(lambda: begun.append(1))
    pool.close()
    pool.submit(lambda: begun.append(2))
    gate.set()
    assert pool.drain(10)
    assert begun == []
