import math

import pytest

from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.allocation.readers.division import divided, need_of
from tests.dieselfs.allocation.made_leases import lease


def reader(name: str, used: float = 0.0, bound: float = 0.0, age_s: float = 60.0) -> ReaderLease:
    return lease("a job", reader=name * 16, used_bytes_per_s=used, bound=bound, age_s=age_s)


def shares(*readers: ReaderLease, total: float = 100e6) -> list[float]:
    found = divided(readers, total)
    assert math.isclose(sum(found.values()), total)
    return [found[each.reader] / 1e6 for each in readers]


def test_readers_of_which_nothing_is_known_get_equally_much() -> None:
    new = [reader(name, age_s=0) for name in "abcd"]
    assert shares(*new) == [25, 25, 25, 25]


def test_what_one_does_not_need_goes_to_those_who_wait() -> None:
    found = shares(reader("a", 33e6, bound=0.9), reader("b", 10e6), reader("c", 10e6))
    assert found == pytest.approx([78, 11, 11])


def test_all_who_wait_get_equally_much_whatever_they_used() -> None:
    found = shares(reader("a", 80e6, 1.0), reader("b", 10e6, 1.0), reader("c", 5e6))
    assert found == pytest.approx([47.25, 47.25, 5.5])


def test_what_nobody_needs_is_divided_equally() -> None:
    assert shares(reader("a", 50e6), reader("b", 0)) == pytest.approx([77.467, 22.533], abs=0.01)


def test_an_idle_reader_can_begin_to_read() -> None:
    assert need_of(reader("a")) == 64 << 10


def test_nobody_gets_nothing() -> None:
    assert divided([], 1e6) == {}
