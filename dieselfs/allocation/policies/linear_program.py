"""The max-min problem's linear program, given to HiGHS: the second way to solve it.

It needs SciPy, of the extra `alloc`. The allocator itself fills a knapsack, which gives the same
and takes a hundredth of the time; docs/decisions/0031-allocation.md has the figures.
"""

from __future__ import annotations

import numpy as np

from dieselfs.allocation.policies.max_min_problem import Floats, MaxMinProblem
from dieselfs.errors import UsageError


def least_io_by_program(problem: MaxMinProblem, rates: Floats) -> float:
    """Return the least sum of b over b >= x - x c/d, c <= d, and the sum of c within the cache."""
    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, hstack, vstack
    except ImportError as error:
        hint = "run 'pip install dieselfs[alloc]'"
        raise UsageError("solving linear programs needs scipy", hint) from error
    jobs, datasets = len(rates), len(problem.dataset_bytes)
    rows, ones = np.arange(jobs), np.ones(jobs)
    # The unit is the largest rate and the whole of a dataset, or the solver's tolerances mislead.
    unit = float(rates.max()) or 1.0
    own = rates / unit
    served = csr_array((-own, (rows, problem.dataset_of)), shape=(jobs, datasets))
    fetched = csr_array((-ones, (rows, rows)), shape=(jobs, jobs))
    sizes = problem.dataset_bytes / problem.dataset_bytes.sum()
    cache = csr_array(np.concatenate((sizes, np.zeros(jobs)))[None, :])
    found = linprog(
        np.concatenate((np.zeros(datasets), ones)),
        A_ub=vstack((hstack((served, fetched)), cache)),
        b_ub=np.append(-own, problem.total.cache_bytes / problem.dataset_bytes.sum()),
        bounds=[(0.0, 1.0)] * datasets + [(0.0, None)] * jobs,
        method="highs",
    )
    assert found.success, found.message
    return float(found.fun) * unit
