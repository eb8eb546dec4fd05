from __future__ import annotations

import itertools
import random

import pytest

from chunkstore.byte_ranges import MergedRange, merge_ranges


def test_nothing() -> None:
    assert merge_ranges([]) == []


@pytest.mark.parametrize(
    ("extents", "merged"),
    [
        ([(5, 3)], [(5, 3, (0,))]),
        ([(5, 3), (8, 2)], [(5, 5, (0, 1))]),
        ([(8, 2), (5, 3)], [(5, 5, (1, 0))]),
        ([(0, 1), (11, 1)], [(0, 12, (0, 1))]),  # the gap is the limit
        ([(0, 1), (12, 1)], [(0, 1, (0,)), (12, 1, (1,))]),  # one more
        ([(0, 20), (5, 2), (25, 1)], [(0, 26, (0, 1, 2))]),  # the gap is from the farthest end
        ([(3, 4), (3, 4)], [(3, 4, (0, 1))]),
        ([(0, 60), (60, 40), (100, 1)], [(0, 100, (0, 1)), (100, 1, (2,))]),  # the longest
        ([(0, 500), (500, 1)], [(0, 500, (0,)), (500, 1, (1,))]),
        ([(0, 0), (4, 0)], [(0, 4, (0, 1))]),
    ],
)
def test_cases(extents: list[tuple[int, int]], merged: list[tuple[int, int, tuple[int]]]) -> None:
    found = merge_ranges(extents, max_gap_bytes=10, max_range_bytes=100)
    assert found == [MergedRange(*fields) for fields in merged]


@pytest.mark.parametrize("seed", range(50))
def test_what_holds_of_all(seed: int) -> None:
    draw = random.Random(seed)
    extents = [(draw.randrange(3000), draw.randrange(60)) for _ in range(draw.randrange(80))]
    merged = merge_ranges(extents, max_gap_bytes=15, max_range_bytes=200)
    assert sorted(at for one in merged for at in one.members) == list(range(len(extents)))
    for one in merged:
        assert one.length <= 200
        covered = set()
        for at in one.members:
            start, length = extents[at]
            assert one.start <= start <= start + length <= one.start + one.length
            covered |= set(range(start, start + length + 1))
        ends = sorted(covered)
        assert max((b - a for a, b in itertools.pairwise(ends)), default=0) <= 16
    for one, following in itertools.pairwise(merged):
        start, length = extents[following.members[0]]
        apart = start - (one.start + one.length) > 15
        assert apart or start + length - one.start > 200, "two that should be one"
