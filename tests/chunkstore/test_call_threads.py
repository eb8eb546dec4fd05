from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from queue import SimpleQueue

import pytest

from chunkstore.call_threads import Answers, CallThreads, NoThread
from tests.chunkstore.stores.faulty_store import hanging
from tests.contracts.key_value_store_contract import fork
from tests.eventually import PATIENCE_S, eventually


def test_a_result_and_an_error() -> None:
    threads = CallThreads("t")
    assert threads.run(lambda: 5, PATIENCE_S) == 5
    with pytest.raises(KeyError, match="gone"):
        threads.run(lambda: {}["gone"], PATIENCE_S)


def test_a_thread_serves_one_call_after_another_and_ends_when_idle() -> None:
    threads = CallThreads("t", idle_s=30)
    names = {threads.run(threading.get_ident, PATIENCE_S) for _ in range(50)}
    assert len(names) == 1
    brief = CallThreads("t", idle_s=0.05)
    for _ in range(2):
        assert brief.run(lambda: 1, PATIENCE_S) == 1
        eventually(lambda: brief.count == 0)


def test_a_call_that_hangs_is_left() -> None:
    threads = CallThreads("t", limit=2)
    with hanging() as hang:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                threads.run(hang, 0.01)
        with pytest.raises(NoThread, match="hangs"):
            threads.run(hang, PATIENCE_S)
    eventually(lambda: len(threads._idle) == 2)
    assert threads.run(lambda: True, PATIENCE_S)


def test_answers_come_in_the_order_in_which_calls_end() -> None:
    threads = CallThreads("t")
    answers: Answers[int] = SimpleQueue()
    first_may_end = threading.Event()

    def first() -> int:
        assert first_may_end.wait(PATIENCE_S)
        return 1

    threads.start(first, answers, 1)
    threads.start(lambda: 2, answers, 2)
    assert answers.get(timeout=PATIENCE_S).call == 2
    first_may_end.set()
    assert answers.get(timeout=PATIENCE_S).call == 1


def test_an_idle_thread_holds_nobodys_bytes() -> None:
    class Content:
        pass

    threads = CallThreads("t")
    content = threads.run(Content, PATIENCE_S)
    gone = weakref.ref(content)
    del content

    def collected() -> bool:
        gc.collect()
        return gone() is None

    eventually(collected)
    assert threads.count == 1


class TestRunAll:
    def test_results_in_order_and_as_many_at_once_as_told(self) -> None:
        lock, running, most = threading.Lock(), 0, 0
        together = threading.Barrier(3)

        def act(number: int) -> int:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            together.wait(PATIENCE_S)  # three are running, or this fails
            with lock:
                running -= 1
            return number

        functions = [lambda number=number: act(number) for number in range(12)]
        # The last is run by the caller: beside two of the others.
        threads = CallThreads("t")
        assert threads.run_all(functions, 3) == list(range(12))
        assert most == 3

    def test_none_and_one_need_no_thread(self) -> None:
        threads = CallThreads("t")
        assert threads.run_all([], 4) == []
        assert threads.run_all([threading.get_ident], 4) == [threading.get_ident()]
        assert threads.count == 0

    def test_the_first_error_is_raised(self) -> None:
        threads = CallThreads("t")
        with pytest.raises(ZeroDivisionError), hanging() as hang:
            threads.run_all([hang, lambda: 1 // 0, lambda: None], 3)

    def test_without_a_thread_the_caller_runs_them(self) -> None:
        threads = CallThreads("t", limit=0)
        assert threads.run_all([lambda: 1, lambda: 2, lambda: 3], 2) == [1, 2, 3]


def test_a_forked_child_has_threads_of_its_own() -> None:
    threads = CallThreads("t")
    with hanging() as hang:
        with pytest.raises(TimeoutError):
            threads.run(hang, 0.01)
        assert threads.run(lambda: 1, PATIENCE_S) == 1

        def child() -> None:
            assert threads.count == 0
            assert [threads.run(os.getpid, PATIENCE_S) for _ in range(3)] == [os.getpid()] * 3

        assert os.waitpid(fork(child), 0)[1] == 0


def test_a_lock_held_at_the_fork_is_free_in_the_child() -> None:
    threads = CallThreads("t")
    with threads._lock:
        child = fork(lambda: threads.run(lambda: None, PATIENCE_S))
    assert os.waitpid(child, 0)[1] == 0


def test_pickled_without_its_threads() -> None:
    threads = CallThreads("t", limit=3, idle_s=2)
    threads.run(lambda: 1, PATIENCE_S)
    copy = pickle.loads(pickle.dumps(threads))
    assert (copy.count, copy._limit, copy._idle_s) == (0, 3, 2)
    assert copy.run(lambda: 1, PATIENCE_S) == 1


def test_a_call_that_hangs_does_not_keep_the_process() -> None:
    program = """
import threading
from chunkstore.call_threads import CallThreads
try:
    CallThreads("t").run(threading.Event().wait, 0.01)
except TimeoutError:
    print("left")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == b"left\n"
