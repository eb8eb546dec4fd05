"""When a peer is too slow to be asked."""

from __future__ import annotations

import pytest

from dieselfs.cache.wire.slow_peer_detector import (
    ANSWER_S,
    BYTES_PER_S,
    TOO_SLOW_S,
    SlowPeerDetector,
)


def answers_until_too_slow(took_s: float, bulk_bytes: int = 0, idle_s: float = 0.0) -> int:
    """Of one who asks, waits, and computes; 1,000 are enough."""
    pace, now = SlowPeerDetector(), 5.0
    for count in range(1, 1001):
        pace.waits(now)
        pace.answered(now, now + took_s, bulk_bytes)
        if pace.is_too_slow:
            return count
        now += took_s + idle_s
    return 1000


def test_who_keeps_to_the_allowance_is_never_too_slow() -> None:
    assert answers_until_too_slow(0.9 * ANSWER_S) == 1000
    assert answers_until_too_slow(0.9 * (ANSWER_S + 1e6 / BYTES_PER_S), 1_000_000) == 1000


@pytest.mark.parametrize(
    ("took_s", "count"), [(0.011, 1000), (0.02, 100), (0.16, 7), (0.35, 3), (0.99, 2), (9.0, 2)]
)
def test_who_is_beyond_it_each_time(took_s: float, count: int) -> None:
    assert abs(answers_until_too_slow(took_s) - count) <= 1


def test_idle_time_is_forgiven_at_a_tenth() -> None:
    assert answers_until_too_slow(0.06, idle_s=1.0) == 1000
    assert answers_until_too_slow(0.35, idle_s=1.0) < 10


def test_quick_answers_pay_for_slow_ones() -> None:
    pace, now = SlowPeerDetector(), 0.0
    for number in range(10_000):
        took_s = 0.4 if number % 50 == 0 else 0.001
        pace.waits(now)
        pace.answered(now, now + took_s, 0)
        now += took_s
        assert pace.debt_s < 0.5


def test_answers_that_were_asked_for_together_share_the_time() -> None:
    pace = SlowPeerDetector()
    pace.waits(0.0)
    for number in range(100):
        pace.answered(0.0, (number + 1) * 0.009, 0)
    assert pace.debt_s == 0.0


def test_what_lies_there_before_anybody_looks_costs_nothing() -> None:
    pace = SlowPeerDetector()
    for _ in range(100):
        pace.waits(20.0)  # another peer was heard before this one
        pace.answered(0.0, 20.001, 0)
    assert pace.debt_s == 0.0


def test_a_pause_of_ones_own_is_not_enough() -> None:
    pace = SlowPeerDetector()
    pace.waits(0.0)
    pace.answered(0.0, 100.0, 0)
    assert 0 < pace.debt_s < TOO_SLOW_S


def test_time_that_does_not_count() -> None:
    pace = SlowPeerDetector()
    pace.waits(0.0)
    pace.passes(14.0)
    pace.answered(0.0, 14.0 + ANSWER_S, 0)
    assert pace.debt_s == pytest.approx(0.0)
