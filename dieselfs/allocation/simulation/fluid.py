"""The fluid engine: jobs as positions in their epochs, caches as bytes (SiloD §4, §6).

A job reads at the least of its speed and its remote IO over its miss share. Its misses fill the
cache of its dataset up to the quota, and become effective for it when its next epoch begins. A job
that repeats items hits what is cached at once. All jobs advance together, in columns; each stretch
of a job ends with its epoch, its end or the beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from dieselfs.allocation.jobs import Job
from dieselfs.allocation.simulation.events import Event, EventKind
from dieselfs.allocation.simulation.readers import (
    BeatProgress,
    Floats,
    Grant,
    JobColumns,
    Numbers,
)

_NOTHING_BYTES = 1.0
"""Bytes that rounding leaves: less is nothing."""


class FluidCache(Protocol):
    """The contents of the cache, in bytes. Rows are of the jobs that are named."""

    def obey(self, quotas: Floats) -> None:
        """Evict at once what exceeds the quotas."""
        ...

    def start(self, job: int) -> None:
        """Let a job begin."""
        ...

    def effective_bytes(self, jobs: Numbers) -> Floats:
        """Return what each of `jobs` hits now, scaled to its dataset."""
        ...

    def held_bytes(self, jobs: Numbers) -> Floats:
        """Return what is held of the dataset of each."""
        ...

    def read(self, jobs: Numbers, read_bytes: Floats, missed_bytes: Floats) -> None:
        """Take in what has just been read."""
        ...

    def turn(self, jobs: Numbers) -> None:
        """Begin the next epoch of `jobs`."""
        ...

    def step_s(self, length_s: float) -> float:
        """Return how long rates may be taken as constant within a beat."""
        ...


class FluidReaders:
    """The jobs of a simulation over one fluid cache."""

    def __init__(self, jobs: Sequence[Job], columns: JobColumns, cache: FluidCache) -> None:
        self.left_bytes: Floats = np.array([job.total_bytes for job in jobs], float)
        self._columns = columns
        self._cache = cache
        self._position: Floats = np.zeros(len(jobs))

    def start(self, job: int) -> None:
        self._cache.start(job)

    def effective_bytes(self, jobs: Numbers) -> Floats:
        return self._cache.effective_bytes(jobs)

    def held_bytes(self, jobs: Numbers) -> Floats:
        return self._cache.held_bytes(jobs)

    def advance(self, grant: Grant, at_s: float, length_s: float) -> BeatProgress:
        self._cache.obey(grant.quotas)
        steps = max(1, round(length_s / self._cache.step_s(length_s)))
        read, missed = np.zeros(len(grant.jobs)), np.zeros(len(grant.jobs))
        events: list[Event] = []
        for step in range(steps):
            begin_s = at_s + step * length_s / steps
            self._advance_step(
                self._with_io_by_need(grant), begin_s, length_s / steps, read, missed, events
            )
        return BeatProgress(sorted(events, key=lambda event: event.at_s), read, missed)

    def _with_io_by_need(self, grant: Grant) -> Grant:
        """Divide the IO of an uncontrolled store as it divides itself: max-min over needs."""
        if grant.pooled_io is None:
            return grant
        sizes = self._columns.sizes[grant.jobs]
        misses = 1.0 - np.minimum(1.0, self._cache.effective_bytes(grant.jobs) / sizes)
        needs = np.where(self.left_bytes[grant.jobs] > 0, grant.speeds * misses, 0.0)
        return replace(grant, ios=_fair_shares(needs, grant.pooled_io))

    def _advance_step(
        self,
        grant: Grant,
        at_s: float,
        length_s: float,
        read: Floats,
        missed: Floats,
        events: list[Event],
    ) -> None:
        """Advance by a time in which no hit share changes but with an epoch."""
        rest_s = np.full(len(grant.jobs), length_s)
        rows = np.flatnonzero((self.left_bytes[grant.jobs] > 0) & (grant.speeds > 0))
        while len(rows):
            jobs = grant.jobs[rows]
            sizes = self._columns.sizes[jobs]
            misses = 1.0 - np.minimum(1.0, self._cache.effective_bytes(jobs) / sizes)
            rates = _rates(grant.speeds[rows], grant.ios[rows], misses)
            to_epoch = sizes - self._position[jobs]
            reach = np.minimum(to_epoch, self.left_bytes[jobs])
            stretch = np.minimum(rates * rest_s[rows], reach)
            is_there = stretch >= reach - _NOTHING_BYTES
            with np.errstate(divide="ignore", invalid="ignore"):
                spent_s = np.where(is_there & (rates > 0), stretch / rates, rest_s[rows])
            rest_s[rows] -= spent_s
            read[rows] += stretch
            missed[rows] += stretch * misses
            self._position[jobs] += stretch
            self.left_bytes[jobs] -= stretch
            self._cache.read(jobs, stretch, stretch * misses)
            ended = self.left_bytes[jobs] <= _NOTHING_BYTES
            turned = is_there & (sizes - self._position[jobs] <= _NOTHING_BYTES)
            for kind, which in ((EventKind.EPOCH, turned), (EventKind.END, ended)):
                for row in np.flatnonzero(which):
                    ends_s = at_s + length_s - rest_s[rows[row]]
                    events.append(Event(float(ends_s), kind, int(jobs[row])))
            self.left_bytes[jobs[ended]] = 0.0
            if turned.any():
                self._position[jobs[turned]] = 0.0
                self._cache.turn(jobs[turned])
            rows = rows[is_there & ~ended & (rest_s[rows] > 0)]


def _fair_shares(needs: Floats, total: float) -> Floats:
    """Return max-min shares in columns, as `policies.fair_share` does in lists."""
    ascending = np.sort(needs)
    before = np.cumsum(ascending) - ascending
    levels = (total - before) / np.arange(len(needs), 0, -1)
    short = np.flatnonzero(ascending > levels)
    return np.minimum(needs, levels[short[0]]) if len(short) else needs


def _rates(speeds: Floats, ios: Floats, misses: Floats) -> Floats:
    """Return equation 4 of each job."""
    with np.errstate(divide="ignore", invalid="ignore"):
        arriving = np.where(misses > 0, ios / misses, np.inf)
    return np.minimum(speeds, arriving)


class UniformCaches:
    """Datasets with a quota each: what is in stays, and at the quota nothing more is admitted.

    Jobs that share a dataset read it in independent orders. Bytes that one
    of them adds are new for another in proportion to what the other has not read yet.
    """

    def __init__(self, columns: JobColumns) -> None:
        self._columns = columns
        self._held: Floats = np.zeros(len(columns.names))
        self._quotas: Floats = np.zeros(len(columns.names))
        self._effective: Floats = np.zeros(len(columns.sizes))
        self._is_private = columns.are_private

    def step_s(self, length_s: float) -> float:
        return length_s

    def obey(self, quotas: Floats) -> None:
        self._quotas = quotas
        if (self._held > quotas).any():
            with np.errstate(divide="ignore", invalid="ignore"):
                kept = np.where(self._held > quotas, quotas / self._held, 1.0)
            self._held = np.minimum(self._held, quotas)
            self._effective *= kept[self._columns.datasets]

    def start(self, job: int) -> None:
        self._effective[job] = self._held[self._columns.datasets[job]]

    def effective_bytes(self, jobs: Numbers) -> Floats:
        return np.where(self._columns.repeats[jobs], self.held_bytes(jobs), self._effective[jobs])

    def held_bytes(self, jobs: Numbers) -> Floats:
        return self._held[self._columns.datasets[jobs]]

    def read(self, jobs: Numbers, read_bytes: Floats, missed_bytes: Floats) -> None:
        datasets = self._columns.datasets[jobs]
        if self._is_private:
            room = np.maximum(0.0, self._quotas[datasets] - self._held[datasets])
            self._held[datasets] += np.minimum(missed_bytes, room)
            return
        asked = np.bincount(datasets, missed_bytes, len(self._held))
        added = np.minimum(asked, np.maximum(0.0, self._quotas - self._held))
        self._held = self._held + added
        own = np.zeros(len(self._effective))
        own[jobs] = missed_bytes * (added / np.maximum(asked, 1.0))[datasets]
        self._tell_others(added, own)

    def _tell_others(self, added: Floats, own: Floats) -> None:
        """Make what other jobs have added effective, as far as a job has not read it yet."""
        datasets, sizes = self._columns.datasets, self._columns.sizes
        others = added[datasets] - own
        found = np.flatnonzero(others > 0)
        if len(found):
            held, gain = self._held[datasets[found]], others[found]
            missing = np.maximum(sizes[found] - held + gain, 1.0)
            grown = self._effective[found] * (1.0 - gain / missing) + sizes[found] * gain / missing
            self._effective[found] = np.minimum(held, grown)

    def turn(self, jobs: Numbers) -> None:
        self._effective[jobs] = self.held_bytes(jobs)
