"""Hits with known orders: the closed forms against figures, and what policies make of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dieselfs.allocation.estimator import uniform_hits
from dieselfs.allocation.jobs import Job, JobState, Resources
from dieselfs.allocation.known_hits import ToldHits, drawn_hits, hit_functions, slope
from dieselfs.allocation.policies.cache_rule import CacheRule
from dieselfs.allocation.policies.greedy import GreedyCache
from dieselfs.allocation.policies.lasting import LastingCache
from dieselfs.errors import UsageError
from tests.dieselfs.allocation.made_jobs import GB, job, running

SHARES = (0.1, 0.25, 0.5, 0.75)


def told(name: str, dataset: str, speed_mb: float = 100) -> Job:
    return replace(job(name, 100, speed_mb, dataset=dataset), order="told")


def test_the_figures_of_belady() -> None:
    """Replays of other make give these, to two digits."""
    assert [*map(ToldHits(2), SHARES)] == pytest.approx([0.31, 0.50, 0.72, 0.88], abs=0.012)
    assert [*map(ToldHits(4), SHARES)] == pytest.approx([0.36, 0.56, 0.77, 0.91], abs=0.007)
    assert [*map(drawn_hits, SHARES)] == pytest.approx([0.40, 0.61, 0.81, 0.93], abs=0.013)


def test_one_job_hits_as_with_uniform_caching_and_very_many_as_with_draws() -> None:
    assert [*map(ToldHits(1), SHARES)] == pytest.approx(SHARES)
    assert [*map(ToldHits(1000), SHARES)] == pytest.approx([*map(drawn_hits, SHARES)], abs=1e-3)


@pytest.mark.parametrize("hits", [drawn_hits, ToldHits(1.5), ToldHits(2), ToldHits(7)])
def test_hits_rise_from_nothing_to_everything_ever_more_slowly(hits: ToldHits) -> None:
    assert (hits(-1), hits(0), hits(1), hits(2)) == (0, 0, 1, 1)
    found = [hits(at / 50) for at in range(51)]
    gains = [high - low for low, high in itertools.pairwise(found)]
    assert all(low > high > 0 for low, high in itertools.pairwise(gains))


def test_the_slope() -> None:
    assert slope(uniform_hits, 0.3) == slope(uniform_hits, 1.0) == 1
    assert slope(ToldHits(2), 0.1) > 1.5 > 1 > slope(ToldHits(2), 0.9) > slope(ToldHits(2), 1.0) > 0


def test_only_jobs_that_tell_and_share_help_each_other() -> None:
    fast, slow = told("fast", "shared", 300), told("slow", "shared", 100)
    silent, alone = job("silent", dataset="shared"), told("alone", "own")
    draws = replace(job("draws"), order="draws", repeats_items=True)
    found = hit_functions([fast, slow, silent, alone, draws])
    assert found["fast"] == found["slow"] == ToldHits(1.6)
    assert found["silent"] is found["alone"] is uniform_hits
    assert found["draws"] is drawn_hits
    assert not hit_functions([replace(fast, regular=False)])


def test_draws_repeat_items() -> None:
    with pytest.raises(UsageError, match="draws"):
        replace(job("draws"), order="draws")


@pytest.mark.parametrize("rule", [GreedyCache(), LastingCache()])
def test_the_first_bytes_of_a_shared_dataset_are_worth_most(rule: CacheRule) -> None:
    """Two jobs of 100 MB/s on one dataset spare less by its last bytes than one of 150 MB/s."""
    states = [running(told(name, "shared")) for name in "ab"] + [running(job("fast", 100, 150))]
    assert given(rule, states, 60) == {"shared": 50, "fast": 10}
    assert given(rule, states, 140) == {"shared": 40 + 10, "fast": 90}
    assert given(rule, states, 150) == {"shared": 50, "fast": 100}
    assert given(rule, states, 220) == {"shared": 100, "fast": 100}


def test_held_cache_is_worth_the_hits_that_it_brings() -> None:
    """Held bytes that are hit more than once an epoch stay, though another job is faster."""
    held = [JobState(told(name, "shared"), 10 * 100 * GB, True, 70 * GB, 50 * GB) for name in "ab"]
    fast = running(job("fast", 100, 250, passes=100), left_passes=100)
    assert given(LastingCache(), [*held, fast], 50) == {"shared": 50, "fast": 0}


def given(rule: CacheRule, states: list[JobState], cache_gb: int) -> dict[str, float]:
    quotas = rule.quotas(states, (), Resources(len(states), cache_gb * GB, 0))
    return {name: quota / GB for name, quota in (quotas or {}).items()}
