"""Threads that receive, and threads whose request waits: with requests from a queue."""

import errno
import os
import threading
from collections.abc import Iterator
from queue import Empty, Queue

import pytest

from dieselfs.fuse.requests import receiving_threads
from dieselfs.fuse.requests.receiving_threads import (
    THREADS,
    Receive,
    ReceivingThreads,
    Work,
    threads_by_cores,
)
from tests.eventually import PATIENCE_S, eventually

POLL_S = 0.01


class Requests:
    """A queue of requests: each is work that waits, or None for one that is answered at once."""

    def __init__(self, places: int = THREADS) -> None:
        # No SimpleQueue: with several consumers its `get` may wait for ever, whatever its timeout
        # is. In CPython 3.11 a consumer that is woken too late waits for what is left of the
        # timeout, and a negative rest means for ever.
        self.queue: Queue[Work | None] = Queue()
        self.answered = 0
        self.seen: set[int] = set()
        """The threads that have received a request."""
        self.alive = 0
        self.threads = ReceivingThreads(self.receiver, places)

    def receiver(self) -> Receive:
        self.alive += 1

        def receive() -> Work | None:
            try:
                work = self.queue.get(timeout=POLL_S)
            except Empty:
                return None
            self.threads.note_request()
            self.seen.add(threading.get_ident())
            self.answered += work is None
            return work

        return receive

    def are_answered(self, count: int) -> None:
        """Have that many requests answered at once."""
        wanted = self.answered + count
        for _ in range(count):
            self.queue.put(None)
        eventually(lambda: self.answered == wanted)

    def are_back(self) -> bool:
        """Return True if no thread is at work: each receives, or is idle and given no place."""
        threads = self.threads
        return not threads._given and threads._idle + threads._receiving == threads._started


@pytest.fixture
def requests() -> Iterator[Requests]:
    before = set(threading.enumerate())
    made = Requests()
    made.threads.start()
    yield made
    made.threads.end()
    assert made.threads.wait_for_end(PATIENCE_S)
    eventually(lambda: set(threading.enumerate()) <= before, "an end of all threads")


def waits(gate: threading.Event) -> Work:
    return lambda: gate.wait(60)


def test_requests_are_answered_however_many_others_wait(requests: Requests) -> None:
    gate = threading.Event()
    for _ in range(10):
        requests.queue.put(waits(gate))
    requests.are_answered(5)
    assert requests.alive <= 10 + THREADS
    gate.set()
    requests.are_answered(5)


def test_a_reader_that_waits_for_one_request_after_the_other_needs_no_more_threads(
    requests: Requests,
) -> None:
    for _ in range(50):
        answered = threading.Event()
        requests.queue.put(answered.set)
        assert answered.wait(60)
        # Another thread is needed for a request that comes before this one's is back.
        eventually(requests.are_back)
    assert requests.threads._started == THREADS


def test_places_that_were_given_up_are_filled_and_taken_back(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving_threads, "IDLE_S", PATIENCE_S)  # no idle thread ends
    threads = requests.threads
    for _ in range(5):
        gate = threading.Event()
        for _ in range(4):
            requests.queue.put(waits(gate))
        requests.are_answered(1)
        gate.set()
        eventually(requests.are_back)
    assert requests.alive <= 4 + THREADS, "idle threads are used again"
    assert (threads._receiving, threads._given) == (THREADS, 0)


@pytest.mark.parametrize("places", [1, 5])
def test_as_many_threads_receive_as_there_are_places(places: int) -> None:
    requests, gate = Requests(places), threading.Event()
    has_begun = threading.Event()

    def work() -> None:
        has_begun.set()
        gate.wait(60)

    requests.threads.start()
    try:
        eventually(lambda: requests.alive == places)
        requests.queue.put(work)
        assert has_begun.wait(PATIENCE_S), "its thread has given up its place"
        requests.are_answered(2 * places)
        eventually(lambda: requests.alive == places + 1, "the place is filled")
        threads = requests.threads
        assert (threads._receiving, threads._started) == (places, places + 1)
    finally:
        gate.set()
        requests.threads.end()
        assert requests.threads.wait_for_end(PATIENCE_S)


@pytest.mark.parametrize(("cores", "threads"), [(1, 2), (2, 2), (3, 3), (64, 4)])
def test_threads_by_cores(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    assert threads_by_cores() == threads


def test_a_place_is_filled_later_if_there_are_too_many_descriptors_now(
    requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread needs one to wait for requests."""
    made = requests.threads._receiver
    requests.are_answered(1)

    def fails() -> Receive:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    requests.threads._receiver = fails
    gate = threading.Event()
    for _ in range(THREADS):
        requests.queue.put(waits(gate))
    eventually(lambda: "requests wait for a thread" in caplog.text)
    requests.threads._receiver = made
    gate.set()
    requests.are_answered(5)
    eventually(lambda: requests.threads._receiving == THREADS, "all places are filled")


def test_idle_threads_end(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving_threads, "IDLE_S", 0.01)
    gate = threading.Event()
    for _ in range(4):
        requests.queue.put(waits(gate))
    requests.are_answered(1)
    started = requests.alive
    gate.set()

    def alive() -> int:
        return sum(thread.name.startswith("fuse-") for thread in threading.enumerate())

    eventually(lambda: alive() == THREADS)
    assert started > THREADS
    requests.are_answered(3)


def test_to_end_takes_no_answer_away_and_waits_for_none(requests: Requests) -> None:
    gate, replied = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(60)
        replied.set()

    requests.queue.put(work)
    requests.are_answered(1)
    assert requests.threads.end()
    assert not requests.threads.end(), "they were told"
    assert requests.threads.wait_for_end(PATIENCE_S)
    gate.set()
    assert replied.wait(60)


def test_a_thread_that_is_receiving_is_waited_for() -> None:
    receives, goes_on = threading.Event(), threading.Event()

    def receive() -> None:
        receives.set()
        goes_on.wait()

    threads = ReceivingThreads(lambda: receive)
    threads.start()
    assert receives.wait(PATIENCE_S)  # a thread that begins later would only end
    threads.end()
    assert not threads.wait_for_end(0.01)
    goes_on.set()
    assert threads.wait_for_end(PATIENCE_S)


def test_without_more_threads_requests_wait_for_one_that_is_back(
    requests: Requests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    requests.are_answered(1)
    monkeypatch.setattr(threading.Thread, "start", fails)
    gate = threading.Event()
    for _ in range(THREADS):
        requests.queue.put(waits(gate))
    eventually(lambda: "requests wait for a thread" in caplog.text)
    requests.queue.put(None)
    gate.set()
    eventually(lambda: requests.answered == 2)
