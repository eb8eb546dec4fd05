"""Belady's optimum with bypass."""

from __future__ import annotations

import random
from functools import lru_cache

import pytest

from dieselfs.cache.advice.optimum import optimum
from tests.dieselfs.cache.advice.made_traces import made


def most_hits(keys: tuple[int, ...], room: int) -> int:
    """The optimum by trying everything."""

    @lru_cache(None)
    def from_here(at: int, cached: frozenset[int]) -> int:
        if at == len(keys):
            return 0
        key = keys[at]
        if key in cached:
            return 1 + from_here(at + 1, cached)
        choices = [cached]
        if len(cached) < room:
            choices.append(cached | {key})
        choices += [cached - {gone} | {key} for gone in cached]
        return max(from_here(at + 1, choice) for choice in choices)

    return from_here(0, frozenset())


@pytest.mark.parametrize("seed", range(20))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    choose = random.Random(seed)
    keys = [choose.randrange(6) for _ in range(16)]
    room = choose.randrange(1, 4)
    found = optimum(made(keys, [7] * 16), 7 * room + 6) * len(keys)
    assert found == pytest.approx(most_hits(tuple(keys), room))


def test_a_large_segment_makes_room_for_itself_if_all_that_leave_are_used_later() -> None:
    lengths = {1: 1, 2: 1, 3: 2}
    keys = [1, 2, 3, 3, 1, 2]
    assert optimum(made(keys, [lengths[key] for key in keys]), 2) == 2 / 8
    keys = [1, 2, 3, 1, 3, 2]
    assert optimum(made(keys, [lengths[key] for key in keys]), 2) == 2 / 8  # 1 and 2 stay


def test_a_segment_larger_than_the_cache_is_bypassed() -> None:
    assert optimum(made([1, 2, 1, 2], [9, 1, 9, 1]), 5) == 1 / 20


def test_nothing_is_absorbed_of_nothing() -> None:
    assert optimum(made([]), 5) == 0
