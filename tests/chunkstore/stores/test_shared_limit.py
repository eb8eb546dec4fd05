"""Uploads of forked processes within one limit, also if one of them is killed."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkstore.stores import shared_limit
from chunkstore.stores.aimd import LimitPolicy
from chunkstore.stores.shared_limit import SharedLimit
from tests.contracts.key_value_store_contract import fork
from tests.eventually import PATIENCE_S, eventually


def limit_of(first: int, lowest: int = 1) -> SharedLimit:
    return SharedLimit(LimitPolicy(lowest=lowest, first=first, highest=64))


def ended(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0


def test_no_more_places_than_the_limit_in_one_process() -> None:
    limit = limit_of(2)
    assert limit.take(0)
    assert limit.take(0)
    assert not limit.take(0.01)
    limit.give_back()
    assert limit.take(PATIENCE_S)
    statistics = limit.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.waited) == (2, 0, 1)


def test_no_more_places_than_the_limit_in_all_processes() -> None:
    limit = limit_of(3)
    counts = mmap.mmap(-1, 8)  # uploads under way, by process

    def upload(number: int) -> Callable[[], None]:
        lock = threading.Lock()

        def add(change: int) -> None:
            with lock:
                counts[number] += change

        def once(_: int) -> int:
            assert limit.take(PATIENCE_S)
            add(1)
            seen = sum(counts[:])
            threading.Event().wait(0.001)
            add(-1)
            limit.give_back()
            return seen

        def child() -> None:
            with ThreadPoolExecutor(4) as pool:
                assert max(pool.map(once, range(100))) <= 3

        return child

    children = [fork(upload(number)) for number in range(3)]
    for child in children:
        ended(child)
    assert sum(counts[:]) == 0


def test_the_places_of_a_killed_process_are_free() -> None:
    limit = limit_of(2)
    taken = mmap.mmap(-1, 1)

    def hold() -> None:
        assert limit.take(0)
        assert limit.take(0)
        taken[0] = 1
        signal.pause()

    child = fork(hold)
    eventually(lambda: taken[0])
    assert not limit.take(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert limit.take(PATIENCE_S)
    assert limit.take(PATIENCE_S)


def test_a_process_that_is_killed_within_a_report_leaves_the_rule_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = limit_of(8)
    inside = mmap.mmap(-1, 1)

    class Stops(struct.Struct):
        def pack_into(self, *_: object) -> None:
            inside[0] = 1
            signal.pause()

    def report() -> None:
        monkeypatch.setattr(shared_limit, "_HEAD", Stops(shared_limit._HEAD.format))
        limit.report(lambda aimd: aimd.failed(1.0, 1.0, "lost with its process"))

    child = fork(report)
    eventually(lambda: inside[0])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    limit.report(lambda aimd: aimd.failed(1.0, 1.0, "503"))
    statistics = limit.statistics()
    assert (statistics.limit, statistics.failures, statistics.last_failure) == (4, 1, "503")


def test_all_processes_back_off_for_the_failure_of_one() -> None:
    limit = limit_of(8)
    ended(fork(lambda: limit.report(lambda aimd: aimd.failed(5.0, 5.0))))
    answered_at, not_before = limit.times()
    assert not_before > 5.0 > answered_at
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(limit.take, [0.02] * 8)) == 4


def test_a_turn_that_was_taken_under_a_higher_limit_is_kept() -> None:
    limit = limit_of(4)
    for _ in range(4):
        assert limit.take(0)
    limit.report(lambda aimd: aimd.failed(5.0, 5.0))
    limit.give_back()
    limit.give_back()
    assert not limit.take(0.01)
    limit.give_back()
    assert limit.take(PATIENCE_S)


@pytest.mark.parametrize("kinds", [100])
def test_the_rule_has_room_for_what_it_counts(kinds: int) -> None:
    limit = SharedLimit(LimitPolicy(first=100, highest=128))

    def tell(number: int) -> None:
        now = float(number)
        limit.report(lambda aimd: aimd.succeeded(f"datasets/{number % kinds}", now, now + 1))

    for number in range(2000):
        tell(number)
    assert limit.times()[0] == 2000.0
