import math
from collections.abc import Sequence

import msgspec
import pytest

from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.allocation.readers.division import divided
from tests.dieselfs.allocation.made_leases import lease

TOTAL = 100e6


def reader(name: str, used: float = 0.0, bound: float = 0.0, age_s: float = 60.0) -> ReaderLease:
    return lease("a job", reader=name * 16, used_bytes_per_s=used, bound=bound, age_s=age_s)


def shares(*readers: ReaderLease, total: float = TOTAL) -> list[float]:
    found = divided(readers, total)
    assert math.isclose(sum(found.values()), total)
    return [found[each.reader] / 1e6 for each in readers]


def test_readers_of_which_nothing_is_known_get_equally_much() -> None:
    new = [reader(name, age_s=0) for name in "abcd"]
    assert shares(*new) == [25, 25, 25, 25]


def test_all_grow_alike_with_the_one_who_waits() -> None:
    found = shares(reader("a", 32e6, bound=0.9), reader("b", 4e6), reader("c", 4e6))
    assert found == pytest.approx([79.2, 10.4, 10.4], abs=0.1)


def test_those_who_wait_come_to_have_equally_much() -> None:
    found = shares(reader("a", 70e6, 1.0), reader("b", 30e6, 1.0))
    assert found == pytest.approx([68, 32])


def test_a_reader_that_uses_less_than_its_share_is_held_up_by_something_else() -> None:
    slow = msgspec.structs.replace(reader("b", 20e6, 0.6), allowed_bytes_per_s=30e6)
    a, b = shares(reader("a", 70e6, 1.0), slow)
    assert b / a == pytest.approx(1.05 * 20 / 70)


def test_a_reader_that_begins_to_read_gets_an_equal_share_at_once() -> None:
    assert shares(reader("a", 98e6, 1.0), reader("b", 1e6, 0.4)) == [50, 50]


def test_an_idle_reader_can_begin_to_read() -> None:
    a, b = shares(reader("a", 50e6), reader("b", 0))
    assert a + b == pytest.approx(100)
    assert b > 0.1


def test_nobody_gets_nothing() -> None:
    assert divided([], 1e6) == {}
    assert shares(reader("a"), reader("b")) == [50, 50]


def after_beats(
    beats: int, used: Sequence[float], needs: Sequence[float], *, in_step: bool
) -> list[float]:
    """What readers use when they have divided so often. In step, they read in proportion to their
    needs, as fast as the slowest one; else each reads what it needs, or what it may."""
    bounds = [0.0] * len(needs)
    for _ in range(beats):
        leases = [
            reader(chr(97 + at), use, bound)
            for at, (use, bound) in enumerate(zip(used, bounds, strict=True))
        ]
        allowed = list(divided(leases, TOTAL).values())
        speeds = [share / need for share, need in zip(allowed, needs, strict=True)]
        if in_step:
            used = [min(speeds) * need for need in needs]
            bounds = [0.95 * min(speeds) / speed for speed in speeds]
            bounds = [bound if bound > 0.94 else 0.0 for bound in bounds]
        else:
            used = [need * min(1.0, speed) for need, speed in zip(needs, speeds, strict=True)]
            bounds = [float(speed < 1) for speed in speeds]
    return used


@pytest.mark.parametrize("needs", [[80, 10, 10], [90, 5, 5], [40, 30, 20, 10], [10, 10, 10]])
def test_readers_in_step_use_what_there_is_after_three_beats(needs: list[float]) -> None:
    equal = TOTAL / len(needs)
    used = [equal * need / max(needs) for need in needs]
    for beats in (3, 10, 11):
        assert sum(after_beats(beats, used, needs, in_step=True)) >= 0.95 * TOTAL


@pytest.mark.parametrize(
    ("needs", "fair"),
    [
        ([200e6, 10e6, 10e6], [78e6, 10e6, 10e6]),
        ([200e6, 200e6, 10e6], [44.5e6, 44.5e6, 10e6]),
        ([200e6, 30e6, 200e6], [34e6, 30e6, 34e6]),
        ([45e6, 200e6], [45e6, 50.5e6]),
    ],
)
def test_readers_on_their_own_come_to_max_min(needs: list[float], fair: list[float]) -> None:
    first = [min(need, 90e6 if at == 0 else 5e6) for at, need in enumerate(needs)]
    assert after_beats(60, first, needs, in_step=False) == pytest.approx(fair, rel=0.05)
