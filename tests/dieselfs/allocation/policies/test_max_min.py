"""Max-min fairness: two solvers agree, nobody beats it, and nothing is left idle."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from dieselfs.allocation.fairness import fairness_ratios
from dieselfs.allocation.jobs import Allocation, JobState, Resources
from dieselfs.allocation.policies.linear_program import least_io_by_program
from dieselfs.allocation.policies.max_min import MaxMinPolicy, fair_rates
from dieselfs.allocation.policies.max_min_problem import best_level, least_io, problem_of
from dieselfs.allocation.policies.naming import policy_of
from tests.dieselfs.allocation.made_jobs import (
    GB,
    MB,
    TB,
    in_steady_state,
    job,
    random_allocation,
    random_jobs,
    random_total,
    waiting,
    when_effective,
)


def made_instances(count: int, seed: int) -> list[tuple[list[JobState], Resources]]:
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        states = random_jobs(chance, chance.randint(1, 12), chance.randint(1, 8))
        found.append((states, random_total(chance, states)))
    return found


def least_ratio(states: list[JobState], found: Allocation, total: Resources) -> float:
    return min(fairness_ratios(when_effective(states, found), found, total).values())


def test_figure_4_gives_both_jobs_the_same() -> None:
    states = [waiting(job(name, 1360, 114)) for name in "ab"]
    total = Resources(2, int(1.4 * TB), 50 * MB)
    found = in_steady_state(MaxMinPolicy(), states, total)
    assert found.gpus == {"a": 1, "b": 1}
    # One dataset is cached as a whole, and its job leaves the remote IO to the other: 52 MB/s by
    # equation 4, which the ratio of an equal division is too.
    assert least_ratio(states, found, total) == pytest.approx(1.0, rel=0.05)


def test_the_linear_program_and_the_knapsack_agree() -> None:
    for states, total in made_instances(8, 1):
        problem = problem_of(states, total)
        knapsack, programs = best_level(problem), best_level(problem, least_io_by_program)
        assert knapsack == pytest.approx(programs, rel=1e-4)


def test_no_baseline_and_no_random_allocation_is_fairer() -> None:
    chance = random.Random(5)
    for states, total in made_instances(30, 2):
        fair = in_steady_state(MaxMinPolicy(), states, total)
        least = least_ratio(states, fair, total)
        others = [
            in_steady_state(policy_of(order, system), states, total)
            for order in ("fifo", "max-min")
            for system in ("silod", "quiver", "coordl")
        ]
        others += [random_allocation(chance, states, total) for _ in range(5)]
        assert max(least_ratio(states, other, total) for other in others) <= least * (1 + 1e-6)


def test_no_rate_can_grow_without_that_of_a_poorer_job() -> None:
    for states, total in made_instances(20, 4):
        problem = problem_of(states, total)
        rates = fair_rates(problem)
        for row in np.flatnonzero(rates < problem.speeds * (1 - 1e-6)):
            more = rates.copy()
            more[row] = min(problem.speeds[row], more[row] * 1.001)
            assert (
                problem.gpus_needed(more) > total.gpus * (1 + 1e-9)
                or least_io(problem, more) > total.io_bytes_per_s
            )


def test_rates_are_those_of_the_problem_once_the_cache_is_effective() -> None:
    for states, total in made_instances(20, 6):
        problem = problem_of(states, total)
        found = in_steady_state(MaxMinPolicy(), states, total)
        ratios = fairness_ratios(when_effective(states, found), found, total)
        rates = np.array(list(ratios.values())) * problem.equal_rates
        assert (rates >= fair_rates(problem) * (1 - 1e-6)).all()


def test_gpus_that_would_be_idle_are_given_out() -> None:
    states = [waiting(job(name, 1000, 100, gpus=2)) for name in "abc"]
    found = MaxMinPolicy().schedule(states, Resources(5, 0, 30 * MB))
    assert sum(found.gpus.values()) == pytest.approx(5)
    assert found.io_bytes_per_s == pytest.approx({name: 10 * MB for name in "abc"})


def test_what_is_held_breaks_a_tie() -> None:
    first, second = waiting(job("a", 100, 100)), waiting(job("b", 100, 100))
    states = [first, replace(second, held_bytes=90.0 * GB)]
    found = MaxMinPolicy().schedule(states, Resources(2, 100 * GB, 100 * MB))
    assert found.cache_bytes == {"a": 0, "b": 100 * GB}


def test_a_job_wider_than_the_cluster_gets_nothing() -> None:
    states = [waiting(job("a", gpus=16)), waiting(job("b"))]
    for system in ("silod", "quiver"):
        found = policy_of("max-min", system).schedule(states, Resources(8, GB, 1e9))
        assert found.gpus == {"b": 1}
    assert MaxMinPolicy().schedule(states[:1], Resources(8, GB, 1e9)) == Allocation()


def test_vanilla_max_min_divides_gpus_alone() -> None:
    states = [waiting(job("a", 10, 1, gpus=1)), waiting(job("b", 10, 1000, gpus=8))]
    found = policy_of("max-min", "alluxio").schedule(states, Resources(8, GB, 1e9))
    assert found.gpus == pytest.approx({"a": 1, "b": 7})
    assert found.is_lru
