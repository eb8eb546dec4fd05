"""The model of the tier's cache: regions and their orders of eviction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from dieselfs.cache.advice.cache_model import EvictionOrder, RegionCache

INF = float("inf")


def insert(cache: RegionCache, *keys: int) -> list[int]:
    """Insert segments of one byte; return those that were evicted."""
    return [gone for key in keys for gone in cache.insert(key, 1, key)]


def cached(cache: RegionCache, keys: Sequence[int]) -> list[int]:
    return [key for key in keys if cache.hit(key)]


@pytest.mark.parametrize(("order", "evicted"), [("lru", 2), ("fifo", 1)])
def test_lru_keeps_what_was_used_and_fifo_what_came_last(
    order: EvictionOrder, evicted: int
) -> None:
    cache = RegionCache(2, order=order)
    assert insert(cache, 1, 2) == []
    assert cache.hit(1)
    assert insert(cache, 3) == [evicted]
    assert cached(cache, (1, 2, 3)) == [key for key in (1, 2, 3) if key != evicted]


def test_a_region_is_evicted_as_a_whole() -> None:
    cache = RegionCache(4, 2)
    assert [insert(cache, key) for key in range(5)] == [[], [], [], [], [0, 1]]
    assert cached(cache, range(5)) == [2, 3, 4]


def test_segments_of_different_lengths_share_the_bytes_of_a_region() -> None:
    cache = RegionCache(20, 10)
    for key, length in enumerate((6, 4, 5, 6)):
        evicted = cache.insert(key, length, key)
    assert evicted == [0, 1]  # 5 and 6 share no region
    assert not cache.fits(21)


def predicted(uses: dict[int, float], segments: int, region_bytes: int = 0) -> RegionCache:
    def predict(keys: Sequence[int]) -> npt.NDArray[np.float64]:
        return np.array([uses[key] for key in keys], np.float64)

    cache = RegionCache(segments, region_bytes, "next-use", predict)
    cache.refresh(0)
    return cache


def test_the_segment_that_is_used_last_is_evicted_first() -> None:
    cache = predicted({1: 500, 2: 900, 3: 700, 4: 100}, 3)
    assert insert(cache, 1, 2, 3) == []
    assert cache.evicts_next() == 900
    assert insert(cache, 4) == [2]


def test_ranks_are_those_of_the_last_refresh() -> None:
    uses = {1: 500.0, 2: 900.0, 3: 700.0, 4: 100.0, 5: 100.0}
    cache = predicted(uses, 3)
    insert(cache, 1, 2, 3)
    uses[1] = INF
    assert insert(cache, 4) == [2]
    cache.refresh(10)
    assert cache.evicts_next() == INF
    assert insert(cache, 5) == [1]


def test_there_is_room_until_the_last_region_is_full() -> None:
    cache = predicted(dict.fromkeys(range(9), 100.0), 4, 2)
    insert(cache, 1, 2)
    assert cache.evicts_next() is None
    insert(cache, 3)
    assert cache.evicts_next() == 100  # the last free region is open


def test_segments_that_are_used_late_fill_a_region_of_their_own() -> None:
    soon, late = (1, 3, 5, 7), (2, 4, 6, 8)
    cache = predicted({**dict.fromkeys(soon, 100.0), **dict.fromkeys(late, INF)}, 8, 4)
    assert insert(cache, *sorted(soon + late)) == []
    cache.refresh(10)
    assert insert(cache, 1) == list(late)


def test_without_predictions_the_order_is_lru() -> None:
    cache = RegionCache(2, 0, "next-use", lambda keys: None)
    cache.refresh(0)
    insert(cache, 1, 2)
    assert cache.hit(1)
    assert cache.evicts_next() is None
    assert insert(cache, 3) == [2]
