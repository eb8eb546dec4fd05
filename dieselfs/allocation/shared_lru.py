"""One LRU pool of several jobs in the long run: what each dataset holds and hits.

An item is in the pool for a time T after it was read, the same T for all jobs: what is read in T
fills the pool (Che's approximation). A job of rate f reads t = T f/d epochs in that time. The gap
between two reads of an item is 1 epoch on average, and triangular between 0 and 2 epochs for a job
that reads each item once an epoch. So a read is a hit with probability P(gap <= t).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dieselfs.allocation.jobs import JobState

Floats = npt.NDArray[np.float64]


def lru_shares(
    states: Sequence[JobState], rates: Sequence[float], pool_bytes: float
) -> tuple[Floats, Floats]:
    """Return the cached share of each job's dataset and the hit share of its reads.

    Jobs of one dataset are taken as one that reads at the sum of their rates.
    """
    names = {name: row for row, name in enumerate({state.job.dataset: 0 for state in states})}
    rows = np.array([names[state.job.dataset] for state in states], dtype=np.intp)
    sizes = np.zeros(len(names))
    sizes[rows] = [state.job.dataset_bytes for state in states]
    speeds = np.bincount(rows, np.array(rates, dtype=float), len(names)) / sizes
    low, high = 0.0, 2.0 / max(float(speeds[speeds > 0].min(initial=1.0)), 1e-30)
    for _ in range(60):
        middle = (low + high) / 2
        if float((_cached(speeds * middle) * sizes).sum()) <= pool_bytes:
            low = middle
        else:
            high = middle
    epochs = speeds * low
    return _cached(epochs)[rows], _hits(epochs)[rows]


def _hits(epochs: Floats) -> Floats:
    """Return P(gap <= t)."""
    below, above = np.minimum(epochs, 1.0), np.clip(2.0 - epochs, 0.0, 1.0)
    return np.where(epochs <= 1.0, below**2 / 2, 1.0 - above**2 / 2)


def _cached(epochs: Floats) -> Floats:
    """Return the share of items that were read in the last t: the integral of P(gap > s) to t."""
    below, above = np.minimum(epochs, 1.0), np.clip(2.0 - epochs, 0.0, 1.0)
    return np.where(epochs <= 1.0, below - below**3 / 6, 1.0 - above**3 / 6)
