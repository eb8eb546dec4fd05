from __future__ import annotations

import pytest

from dieselfs.cache.membership.breakers import FORGOTTEN_AFTER_S, LONGEST_HOLD_S, Breakers


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breakers(clock: Clock) -> Breakers:
    return Breakers(clock)


def test_each_that_opens_is_told_of_once(clock: Clock) -> None:
    opened: list[str] = []
    breakers = Breakers(clock, opened.append)
    for _ in range(3):
        breakers.failed("b")
    breakers.failed("c")
    assert opened == ["b", "c"]
    fail_again(breakers, clock)
    assert opened == ["b", "c", "b"]


def fail_again(breakers: Breakers, clock: Clock) -> float:
    """As soon as it may be asked again; the hold."""
    clock.now = max((state.until for state in breakers.states().values()), default=clock.now)
    assert breakers.allows("b", clock.now)
    breakers.failed("b")
    return breakers.states()["b"].hold_s


def test_who_has_not_failed_may_be_asked(breakers: Breakers) -> None:
    assert breakers.allows("b", None)
    assert breakers.states() == {}


def test_a_failure_opens_it_for_that_peer_alone(breakers: Breakers) -> None:
    breakers.failed("b")
    assert not breakers.allows("b", 999.9)
    assert breakers.allows("c", None)
    assert breakers.states()["b"].is_open


def test_it_closes_by_a_ping_that_began_after_the_hold(breakers: Breakers, clock: Clock) -> None:
    breakers.failed("b")
    clock.now = 1030.0
    assert not breakers.allows("b", None)
    assert not breakers.allows("b", 1000.0)
    assert not breakers.allows("b", 1000.99)
    assert breakers.allows("b", 1001.0)
    assert not breakers.states()["b"].is_open
    assert breakers.allows("b", 999.0)  # closed is closed


def test_the_hold_doubles_up_to_a_minute(breakers: Breakers, clock: Clock) -> None:
    holds = [fail_again(breakers, clock) for _ in range(9)]
    assert holds == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    for _ in range(2000):
        assert fail_again(breakers, clock) == LONGEST_HOLD_S


def test_all_that_wait_on_one_connection_fail_as_one(breakers: Breakers, clock: Clock) -> None:
    for _ in range(30):
        breakers.failed("b")
        clock.now += 0.02
    assert breakers.states()["b"].failures == 1
    assert breakers.allows("b", 1001.0)


def test_a_quiet_minute_after_the_hold_is_forgotten(breakers: Breakers, clock: Clock) -> None:
    for _ in range(4):
        fail_again(breakers, clock)
    until = breakers.states()["b"].until
    assert breakers.allows("b", until)
    clock.now = until + FORGOTTEN_AFTER_S - 0.1
    assert breakers.states()["b"].failures == 4
    clock.now = until + FORGOTTEN_AFTER_S
    assert breakers.states() == {}
    breakers.failed("b")
    assert breakers.states()["b"].hold_s == 1


def test_an_open_one_is_never_forgotten(breakers: Breakers, clock: Clock) -> None:
    breakers.failed("b")
    clock.now += 3600
    assert not breakers.allows("b", 999.0)
    assert breakers.allows("b", 4599.0)
    assert breakers.states() == {}
