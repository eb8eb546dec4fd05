"""One LRU pool of all jobs, in bytes.

An LRU pool holds what has been accessed since some time, its *horizon*, which moves forward as
misses arrive. So all that counts of a job is how many bytes it has read since the horizon, its
*window*. With a share y of the epoch of size d read, a window of w bytes reaches p = w - y d into
the epoch before. An item that was not read yet in this epoch is in the cache if it was read in that
part, so it is hit with probability p/d. The job holds y d + p (1 - y) bytes. For one job that is
`estimator.lru_hits`. A job that draws with replacement has 1 - exp(-w/d) of its dataset.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dieselfs.allocation.simulation.readers import Floats, JobColumns, Numbers

STEP_S = 60.0
"""How long hit shares are taken as constant; the shortest epochs of SiloD's jobs take 150 s."""


class LruPool:
    """A fluid cache; quotas have no meaning for it."""

    def __init__(self, columns: JobColumns, capacity_bytes: float) -> None:
        self._columns = columns
        self._capacity_bytes = capacity_bytes
        self._windows: Floats = np.zeros(len(columns.sizes))
        self._position: Floats = np.zeros(len(columns.sizes))
        self._rows: deque[tuple[Numbers, Floats]] = deque()
        """The bytes that jobs have read since the horizon, oldest first."""
        self._is_private = columns.are_private

    def step_s(self, length_s: float) -> float:
        return min(length_s, STEP_S)

    def obey(self, quotas: Floats) -> None:
        """Do nothing: the pool has no quotas."""

    def start(self, job: int) -> None:
        """Do nothing: a job that has read nothing has no window."""

    def effective_bytes(self, jobs: Numbers) -> Floats:
        own = self._own_hits(jobs)
        if self._is_private:
            return own
        sizes = self._columns.sizes[jobs]
        missing, alone = self._missing_shares(), 1.0 - self._held_alone(jobs) / sizes
        others = missing[self._columns.datasets[jobs]] / np.maximum(alone, 1e-12)
        return sizes * (1.0 - (1.0 - own / sizes) * np.minimum(1.0, others))

    def held_bytes(self, jobs: Numbers) -> Floats:
        missing = self._missing_shares()[self._columns.datasets[jobs]]
        return self._columns.sizes[jobs] * (1.0 - missing)

    def read(self, jobs: Numbers, read_bytes: Floats, missed_bytes: Floats) -> None:
        self._rows.append((jobs, read_bytes.copy()))
        self._windows[jobs] += read_bytes
        self._position[jobs] += read_bytes
        self._evict()

    def turn(self, jobs: Numbers) -> None:
        self._position[jobs] = 0.0

    def _own_hits(self, jobs: Numbers) -> Floats:
        sizes, windows = self._columns.sizes[jobs], self._windows[jobs]
        before = np.clip(windows - self._position[jobs], 0.0, sizes)
        return np.where(self._columns.repeats[jobs], self._held_alone(jobs), before)

    def _held_alone(self, jobs: Numbers) -> Floats:
        """Return what would be held of a dataset with this job alone."""
        sizes, windows, position = (
            column[jobs] for column in (self._columns.sizes, self._windows, self._position)
        )
        before = np.clip(windows - position, 0.0, sizes)
        held = np.minimum(windows, position) + before * (1.0 - position / sizes)
        drawn = sizes * -np.expm1(-windows / sizes)
        return np.where(self._columns.repeats[jobs], drawn, held)

    def _missing_shares(self) -> Floats:
        """Return which share of each dataset no job has read since the horizon."""
        jobs = np.flatnonzero(self._windows)
        missing = np.ones(len(self._columns.names))
        shares = 1.0 - self._held_alone(jobs) / self._columns.sizes[jobs]
        np.multiply.at(missing, self._columns.datasets[jobs], shares)
        return missing

    def _held_in_all(self) -> float:
        jobs = np.flatnonzero(self._windows)
        if self._is_private:
            return float(self._held_alone(jobs).sum())
        sizes = np.zeros(len(self._columns.names))
        sizes[self._columns.datasets[jobs]] = self._columns.sizes[jobs]
        return float((sizes * (1.0 - self._missing_shares())).sum())

    def _evict(self) -> None:
        """Move the horizon forward until what is held fits."""
        held = self._held_in_all()
        while held > self._capacity_bytes and self._rows:
            jobs, read_bytes = self._rows.popleft()
            self._drop(jobs, read_bytes)
            left = self._held_in_all()
            if left < self._capacity_bytes:
                kept = read_bytes * ((self._capacity_bytes - left) / (held - left))
                self._windows[jobs] += kept
                self._rows.appendleft((jobs, kept))
                return
            held = left

    def _drop(self, jobs: Numbers, read_bytes: Floats) -> None:
        windows = self._windows[jobs] - read_bytes
        self._windows[jobs] = np.where(windows < 1.0, 0.0, windows)
