"""Ranges that were fetched for a part of them: kept for a while, fetched once at a time."""

from __future__ import annotations

import threading

import pytest

from dieselfs.cache.peers.recent_ranges import Key, RecentRanges
from dieselfs.cache.wire.os_runtime import OperatingSystem

A: Key = (b"a", 0, 0)
B: Key = (b"b", 0, 0)
C: Key = (b"a", 0, 4 << 20)


@pytest.fixture
def recent() -> RecentRanges:
    return RecentRanges(OperatingSystem(), 100)


def never() -> memoryview:
    raise AssertionError("it is kept")


def test_what_was_used_last_is_kept(recent: RecentRanges) -> None:
    for key in (A, B, A):
        assert recent.obtain(key, lambda: memoryview(bytes(50))) == bytes(50)
    recent.obtain(C, lambda: memoryview(bytes(30)))
    assert recent.obtain(A, never) == bytes(50)
    assert recent.obtain(C, never) == bytes(30)
    assert recent.obtain(B, lambda: memoryview(b"again")) == b"again"


def test_what_is_larger_than_the_limit_is_not_kept(recent: RecentRanges) -> None:
    for _ in range(2):
        assert recent.obtain(A, lambda: memoryview(bytes(101))) == bytes(101)
    assert recent.obtain(A, lambda: memoryview(b"x")) == b"x"


def test_nothing_and_errors_are_not_kept(recent: RecentRanges) -> None:
    assert recent.obtain(A, lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        recent.obtain(A, lambda: memoryview(bytes(1 // 0)))
    assert recent.obtain(A, lambda: memoryview(b"x")) == b"x"


@pytest.mark.parametrize("loads", [True, False])
def test_one_fetches_while_others_wait(recent: RecentRanges, loads: bool) -> None:
    entered, go = threading.Event(), threading.Event()
    fetching = 0
    fetches: list[int] = []

    def fetch() -> memoryview | None:
        nonlocal fetching
        fetching += 1
        fetches.append(fetching)
        entered.set()
        assert go.wait(60)
        fetching -= 1
        return memoryview(b"data") if loads else None

    found: list[memoryview | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(recent.obtain(A, fetch))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    assert recent.obtain(B, lambda: memoryview(b"other")) == b"other"
    go.set()
    for thread in threads:
        thread.join(60)
    assert found == [b"data" if loads else None] * 5
    assert fetches == [1] * (1 if loads else 5), "never two at a time"
