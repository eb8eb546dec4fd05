"""The door to threads: a limit, results and errors, and what cancelling does."""

import threading

import pytest
import trio

from dieselfs.worker_threads import WorkerThreads


async def test_results_and_errors_come_back() -> None:
    threads = WorkerThreads(2)
    assert await threads.run(divmod, 7, 3) == (2, 1)
    assert await threads.run_abandonable(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)


async def test_no_more_than_the_limit_run_at_a_time() -> None:
    threads, lock, running, most = WorkerThreads(3), threading.Lock(), 0, 0
    full = threading.Barrier(3)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.wait(10)
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(threads.run, work)
    assert most == 3


async def test_a_cancelled_caller_leaves_what_hangs() -> None:
    threads, release = WorkerThreads(1), threading.Event()
    with trio.move_on_after(0.01) as scope:
        await threads.run_abandonable(release.wait)
    assert scope.cancelled_caught
    release.set()


async def test_a_cancelled_caller_waits_for_what_must_end() -> None:
    threads, ended = WorkerThreads(1), []

    def work() -> None:
        threading.Event().wait(0.05)
        ended.append(True)

    with trio.move_on_after(0.001):
        await threads.run(work)
    assert ended == [True]
