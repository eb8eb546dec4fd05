"""Policies by themselves, for `bench_silod`: is max-min the fairest, and what does a plan cost?"""

from __future__ import annotations

import random
import time

from benchmarks.harness import report
from benchmarks.silod_runs import ORDERS, SYSTEMS
from dieselfs.allocation.explanation import explain
from dieselfs.allocation.fairness import fairness_ratios
from dieselfs.allocation.jobs import Allocation, Job, JobState, Resources
from dieselfs.allocation.plan import make_plan
from dieselfs.allocation.policies.linear_program import least_io_by_program
from dieselfs.allocation.policies.max_min_problem import best_level, problem_of
from dieselfs.allocation.policies.naming import policy_of
from tests.dieselfs.allocation.made_jobs import (
    in_steady_state,
    random_allocation,
    random_jobs,
    random_total,
    when_effective,
)

_RANDOM_ALLOCATIONS = 10
_PLANNED_JOBS = 400


def max_min(count: int) -> None:
    """Report by how much any other allocation is fairer, and where the two solvers differ most.

    Instances have up to 12 jobs and 8 datasets, totals that fall short or suffice.
    """
    chance = random.Random(1)
    fairer, apart, begin = -1.0, 0.0, time.perf_counter()
    for _ in range(count):
        states = random_jobs(chance, chance.randint(1, 12), chance.randint(1, 8))
        total = random_total(chance, states)
        fair = least_ratio(
            states, in_steady_state(policy_of("max-min", "silod"), states, total), total
        )
        others = [
            in_steady_state(policy_of(order, system), states, total)
            for order in ORDERS
            for system in SYSTEMS
            if system != "alluxio" and (order, system) != ("max-min", "silod")
        ]
        others += [random_allocation(chance, states, total) for _ in range(_RANDOM_ALLOCATIONS)]
        best = max(least_ratio(states, other, total) for other in others)
        fairer = max(fairer, best / fair - 1)
        problem = problem_of(states, total)
        ours, theirs = best_level(problem), best_level(problem, least_io_by_program)
        apart = max(apart, abs(ours / theirs - 1))
    report(
        "max-min",
        instances=count,
        most_by_which_another_is_fairer=fairer,
        most_by_which_solvers_differ=apart,
        seconds=time.perf_counter() - begin,
    )


def least_ratio(states: list[JobState], found: Allocation, total: Resources) -> float:
    return min(fairness_ratios(when_effective(states, found), found, total).values())


def plan_time() -> None:
    """Report the seconds of a plan with its explanation, and of one decision, by policy."""
    chance = random.Random(1)
    jobs: list[Job] = [state.job for state in random_jobs(chance, _PLANNED_JOBS, _PLANNED_JOBS)]
    size = sum(job.dataset_bytes for job in jobs)
    speed = sum(job.speed_bytes_per_s for job in jobs)
    total = Resources(sum(job.gpus for job in jobs), size // 4, speed / 4)
    for order in ORDERS:
        for system in SYSTEMS:
            policy = policy_of(order, system)
            begin = time.perf_counter()
            plan = make_plan(jobs, policy, total)
            explain(plan)
            end = time.perf_counter()
            policy.schedule([each.state for each in plan.jobs], total)
            report(
                "time",
                order=order,
                system=system,
                jobs=_PLANNED_JOBS,
                plan_s=end - begin,
                decision_s=time.perf_counter() - end,
            )
