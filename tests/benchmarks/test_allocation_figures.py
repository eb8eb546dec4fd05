"""The figures of allocated readers, from what they have noted."""

import math

import pytest

from benchmarks.allocated_reader import Noted, ReaderKind, ReaderProcess
from benchmarks.allocation_figures import (
    are_near,
    left_of,
    most_allowed,
    most_in,
    near_after_s,
    obeyed_after_s,
)


def reader(noted: Noted) -> ReaderProcess:
    found = ReaderProcess(None, None, ReaderKind("resnet"))
    found.noted = noted
    return found


def test_the_most_bytes_of_any_time_of_a_length() -> None:
    left = [(0.0, 10), (4.0, 10), (9.0, 10), (10.5, 30), (30.0, 40)]
    assert most_in(left, 10.0) == 50
    assert most_in(left, 1.0) == 40
    assert most_in([], 1.0) == 0


def test_what_left_in_a_time_is_in_order() -> None:
    first, second = Noted(left=[(1.0, 1), (5.0, 2)]), Noted(left=[(2.0, 3), (9.0, 4)])
    assert left_of([reader(first), reader(second)], 1.0, 9.0) == [(1.0, 1), (2.0, 3), (5.0, 2)]


def test_the_most_that_readers_were_allowed_together() -> None:
    first = Noted(allowed=[(0.0, 5.0), (2.0, 3.0)])
    second = Noted(allowed=[(0.5, 4.0), (2.5, 6.0), (9.0, None)])
    readers = [reader(first), reader(second)]
    assert most_allowed(readers, 0.0, 8.0) == 9.0
    assert most_allowed(readers, 0.0, 10.0) == math.inf


@pytest.mark.parametrize(
    ("rates", "near"), [({"a": 1.04}, True), ({"a": 1.06}, False), ({}, False), ({"b": 1.0}, False)]
)
def test_the_same_allocation(rates: dict[str, float], near: bool) -> None:
    assert are_near(rates, {"a": 1.0}) == near


def test_a_rate_is_obeyed_when_the_readers_have_it_together() -> None:
    first = Noted(allowed=[(1.0, 50.0), (2.0, 5.0), (3.0, 8.0)])
    second = Noted(allowed=[(1.1, 50.0), (2.1, 50.0), (3.1, 2.0)])
    assert obeyed_after_s([reader(first), reader(second)], 1.5, 10.0) == pytest.approx(1.6)


def test_rates_are_near_when_they_stay_so() -> None:
    steady = Noted(allowed=[(float(at), 7.0) for at in range(9)])
    settles = Noted(allowed=[(0.0, None), (1.0, 9.0), (2.0, 5.0), (3.0, 9.1), (4.0, 9.0)])
    assert near_after_s([reader(steady)], 0.5, 8.0) == 0
    other = ReaderProcess(None, None, ReaderKind("late"))
    other.noted = settles
    assert near_after_s([reader(steady), other], 0.5, 8.0) == 1.5
