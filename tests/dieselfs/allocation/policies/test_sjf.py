"""SJF's closed form against a search over allocations, and the example of Section 5.1."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from dieselfs.allocation.jobs import Job, JobState, Resources
from dieselfs.allocation.policies.naming import policy_of
from dieselfs.allocation.policies.sjf import score, vanilla_score
from tests.dieselfs.allocation.made_jobs import GB, MB, job, running, waiting


def searched(state: JobState, total: Resources) -> float:
    """The least score over a grid of cached shares and remote IO, equation 7 as it is written."""
    made = state.job
    cached = np.linspace(0.0, min(1.0, total.cache_bytes / made.dataset_bytes), 601)[:, None]
    io = np.linspace(0.0, min(1.0, made.speed_bytes_per_s / total.io_bytes_per_s), 601)[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        loading = np.where(cached < 1, io * total.io_bytes_per_s / (1 - cached), np.inf)
        rate = np.minimum(made.speed_bytes_per_s, loading)
        shares = made.gpus / total.gpus + cached * made.dataset_bytes / total.cache_bytes + io
        found = np.where(rate > 0, shares * state.left_bytes / rate, np.inf)
    return float(found.min())


def test_the_closed_form_is_the_minimum_of_a_search() -> None:
    chance = random.Random(3)
    for _ in range(30):
        made = Job(
            "a", "a", int(10 ** chance.uniform(10, 13)), 10 ** chance.uniform(6, 9.5),
            chance.choice((1, 2, 4, 8)), 10 ** chance.uniform(-1, 2),
        )  # fmt: skip
        cache, io = int(10 ** chance.uniform(10, 13)), 10 ** chance.uniform(6.5, 9.5)
        total = Resources(chance.choice((8, 96)), cache, io)
        found, best = score(waiting(made), total), searched(waiting(made), total)
        assert found <= best * (1 + 1e-9)
        assert found == pytest.approx(best, rel=0.01)


def test_the_smaller_dataset_goes_first() -> None:
    small, large = job("small", 143, 114), job("large", 1300, 114)
    states = [JobState(large, 1e12), JobState(small, 1e12)]
    total = Resources(1, 2000 * GB, 200 * MB)
    assert policy_of("sjf", "silod").schedule(states, total).gpus == {"small": 1, "large": 0}
    # Vanilla SJF sees no difference, so the name decides.
    assert vanilla_score(states[0], total) == vanilla_score(states[1], total)
    assert policy_of("sjf", "quiver").schedule(states, total).gpus == {"large": 1, "small": 0}


def test_jobs_that_run_are_not_preempted() -> None:
    states = [running(job("long", passes=1000)), waiting(job("short", passes=0.1))]
    found = policy_of("sjf", "silod").schedule(states, Resources(1, 0, 1e9))
    assert found.gpus == {"long": 1, "short": 0}


def test_a_dataset_that_is_cached_for_others_costs_nothing() -> None:
    total = Resources(8, 1000 * GB, 10 * MB)
    made = job("a", 500, 100)
    alone, shared = JobState(made, 1e12), JobState(made, 1e12, held_bytes=500 * GB)
    assert score(shared, total) == pytest.approx(1e12 / (100 * MB) / 8)
    assert score(shared, total) < score(alone, total)


def test_without_cache_or_without_io() -> None:
    state = waiting(job("a", 100, 100, passes=1))
    assert score(state, Resources(1, 0, 50 * MB)) == pytest.approx(2000 * 2)
    assert score(state, Resources(1, 100 * GB, 0.0)) == pytest.approx(1000 * 2)
    assert score(state, Resources(1, 99 * GB, 0.0)) == math.inf


def test_the_best_may_be_just_enough_cache_for_the_ideal_rate() -> None:
    # f = 1.2 B and d = 2 C: x = 1 - B/f = 1/6 costs 1 + 1 + 1/3 over 1.2 B; no cache 2 over B.
    state = waiting(job("a", 200, 120, passes=1))
    total = Resources(1, 100 * GB, 100 * MB)
    assert score(state, total) == pytest.approx(200e9 / 120e6 * (2 + 1 / 3))
    assert score(state, total) == pytest.approx(searched(state, total), rel=0.01)
