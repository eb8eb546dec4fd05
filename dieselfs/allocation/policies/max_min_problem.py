"""Gavel's max-min fairness over GPUs, cache and remote IO, as a problem (§5.2, equations 8 and 9).

The unknowns are the jobs' GPU shares X, remote IO b and cached bytes c. The rate of a job over its
rate with an equal part of everything is its ratio, and the least ratio is to be the largest.

`x (1 - c/d) <= b` has a product of unknowns. For a given ratio the rates x are known, and what is
left is linear: with b >= x - x c/d, is the least sum of b within the remote IO? Two functions
answer it. The program over b and c is a fractional knapsack, which `least_io` fills in descending
order of x/d, the cache efficiency at those rates. `linear_program.py` asks a solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.allocation.fairness import equal_rate
from dieselfs.allocation.jobs import JobState, Resources

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MaxMinProblem:
    """Jobs as columns, one row a job, and the totals."""

    speeds: Floats
    gpus: Floats
    equal_rates: Floats
    """The jobs' rates with an equal part of everything: the ratio's denominators."""
    dataset_of: npt.NDArray[np.intp]
    dataset_bytes: Floats
    held_bytes: Floats
    """By dataset: of two that are equally efficient the one with more in the cache comes first."""
    total: Resources

    def rates(self, level: float) -> Floats:
        """Return the rates at which each job has that ratio, or its ideal rate if it is less."""
        return np.minimum(self.speeds, level * self.equal_rates)

    def gpus_needed(self, rates: Floats) -> float:
        return float((self.gpus * rates / self.speeds).sum())


LeastIo = Callable[[MaxMinProblem, Floats], float]
"""A function from rates to the least remote IO with which a cache can serve them."""


def problem_of(states: Sequence[JobState], total: Resources) -> MaxMinProblem:
    """Write the jobs as columns."""
    names = {name: row for row, name in enumerate({state.job.dataset: 0 for state in states})}
    sizes, held = np.zeros(len(names)), np.zeros(len(names))
    for state in states:
        row = names[state.job.dataset]
        sizes[row] = state.job.dataset_bytes
        held[row] = max(held[row], state.held_bytes)
    return MaxMinProblem(
        speeds=np.array([state.job.speed_bytes_per_s for state in states]),
        gpus=np.array([float(state.job.gpus) for state in states]),
        equal_rates=np.array([equal_rate(state, len(states), total) for state in states]),
        dataset_of=np.array([names[state.job.dataset] for state in states], dtype=np.intp),
        dataset_bytes=sizes,
        held_bytes=held,
        total=total,
    )


def best_cache(problem: MaxMinProblem, rates: Floats) -> Floats:
    """Return the cached bytes by dataset that need the least remote IO at these rates."""
    density = _density(problem, rates)
    order = np.lexsort((-problem.held_bytes, -density))
    sizes = problem.dataset_bytes[order]
    before = np.cumsum(sizes) - sizes
    cached = np.empty_like(sizes)
    cached[order] = np.clip(problem.total.cache_bytes - before, 0.0, sizes)
    return cached


def least_io(problem: MaxMinProblem, rates: Floats) -> float:
    """Return the remote IO with the best cache, by filling the knapsack."""
    cached = best_cache(problem, rates)
    return float(rates.sum() - (_density(problem, rates) * cached).sum())


def _density(problem: MaxMinProblem, rates: Floats) -> Floats:
    """Return the remote IO that a cached byte of each dataset spares at these rates."""
    by_dataset = np.bincount(problem.dataset_of, rates, len(problem.dataset_bytes))
    return by_dataset / problem.dataset_bytes


def best_level(problem: MaxMinProblem, least: LeastIo = least_io) -> float:
    """Return the largest ratio that all jobs can have, but those at their ideal rate, by bisection.

    This is progressive filling up to where the first resource is exhausted: a job that has its
    ideal rate stays there, and the others go on.
    """

    def is_possible(level: float) -> bool:
        rates = problem.rates(level)
        return (
            problem.gpus_needed(rates) <= problem.total.gpus * (1 + 1e-12)
            and least(problem, rates) <= problem.total.io_bytes_per_s * (1 + 1e-12) + 1e-6
        )

    return largest(is_possible, float((problem.speeds / problem.equal_rates).max()))


def largest(is_possible: Callable[[float], bool], most: float) -> float:
    """Return the largest level up to `most` that is possible, to 1 part in 10^11 of `most`."""
    if is_possible(most):
        return most
    low, high = 0.0, most
    while high - low > 1e-11 * high:
        middle = (low + high) / 2
        if is_possible(middle):
            low = middle
        else:
            high = middle
    return low
