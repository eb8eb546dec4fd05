"""Equations 1 to 5 with the paper's figures, and hit functions against replays."""

from __future__ import annotations

import math
import random
from collections import OrderedDict

import pytest

from dieselfs.allocation.estimator import (
    MeasuredHits,
    ReadInterval,
    cache_efficiency,
    io_demand,
    job_rate,
    loading_rate,
    lru_hits,
    measured_ideal_rate,
    uniform_hits,
)
from dieselfs.errors import UsageError

MB, GB = 1e6, 1e9


def test_the_cache_efficiencies_of_section_2_2() -> None:
    resnet = cache_efficiency(114 * MB, 143 * GB)
    bert = cache_efficiency(2 * MB, 20_971 * GB)
    assert resnet * GB / MB == pytest.approx(0.8, abs=0.005)
    assert bert * GB / MB == pytest.approx(9.5e-5, rel=0.01)
    assert resnet / bert == pytest.approx(8000, rel=0.05)


def test_the_second_resnet_of_section_7_1_needs_52_6_of_200_mb_per_s() -> None:
    demand = io_demand(114 * MB, uniform_hits(0.7 / 1.3))
    assert demand == pytest.approx(52.6 * MB, rel=1e-3)
    assert job_rate(114 * MB, demand, 0.7 / 1.3) == pytest.approx(114 * MB)
    assert job_rate(114 * MB, demand / 2, 0.7 / 1.3) == pytest.approx(57 * MB)


def test_the_ends_of_equation_4() -> None:
    assert job_rate(114.0, 0.0, 1.0) == 114.0
    assert job_rate(114.0, 0.0, uniform_hits(2.0)) == 114.0
    assert job_rate(114.0, 0.0, 0.999) == 0.0
    assert loading_rate(50.0, 0.0) == 50.0
    assert loading_rate(0.0, 1.0) == math.inf


def test_the_efficiency_is_the_slope_of_the_demand() -> None:
    speed, dataset, step = 114 * MB, 1300 * GB, 1 * GB
    fall = io_demand(speed, 0.4) - io_demand(speed, 0.4 + step / dataset)
    assert fall / step == pytest.approx(cache_efficiency(speed, dataset))


def lru_hits_of_a_replay(items: int, cached: int, epochs: int, seed: int) -> float:
    chance = random.Random(seed)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for epoch in range(epochs):
        for item in chance.sample(range(items), items):
            if item in cache:
                hits += epoch > 0
                cache.move_to_end(item)
                continue
            cache[item] = None
            if len(cache) > cached:
                cache.popitem(last=False)
    return hits / (items * (epochs - 1))


@pytest.mark.parametrize("cached_share", [0.25, 0.5, 0.9])
def test_lru_hits_are_those_of_a_replay(cached_share: float) -> None:
    found = lru_hits_of_a_replay(2000, int(2000 * cached_share), 6, 1)
    assert found == pytest.approx(lru_hits(cached_share), abs=0.015)


def test_the_ends_of_lru() -> None:
    assert lru_hits(0.0) == 0.0
    assert lru_hits(1.0) == lru_hits(1.5) == 1.0
    assert lru_hits(1 - 1e-12) == pytest.approx(1.0, abs=1e-9)
    assert all(lru_hits(share / 10) < uniform_hits(share / 10) for share in range(1, 10))


def test_measured_hits_are_linear_between_measurements() -> None:
    hits = MeasuredHits([0.25, 0.5], [0.5, 0.72])
    found = [hits(share) for share in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 2.0)]
    assert found == pytest.approx([0.0, 0.25, 0.5, 0.72, 0.86, 1.0, 1.0])
    for shares, values in (([0.5, 0.25], [0.1, 0.2]), ([0.5], []), ([0.5], [1.5]), ([0.0], [0.0])):
        with pytest.raises(UsageError):
            MeasuredHits(shares, values)


def test_the_ideal_rate_is_that_of_the_time_without_waiting() -> None:
    free = [ReadInterval(100, 1.0, 0.0), ReadInterval(120, 1.0, 0.005)]
    held_up = [ReadInterval(50, 1.0, 0.5), ReadInterval(80, 1.0, 0.2)]
    found = measured_ideal_rate([*free, *held_up])
    assert found is not None
    assert (found.bytes_per_s, found.is_lower_bound) == (110.0, False)
    bound = measured_ideal_rate(held_up)
    assert bound is not None
    assert (bound.bytes_per_s, bound.is_lower_bound) == (80.0, True)
    assert measured_ideal_rate([ReadInterval(0, 1.0, 0.0)]) is None
