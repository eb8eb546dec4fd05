"""The simulation's clock: it submits jobs, asks the policy, lets jobs read and counts (§7.2).

Time goes in beats. At the beginning of a beat jobs are submitted and the policy decides; within it
epochs and ends have exact times. So a job starts, and what an ended one had is given to others, up
to a beat late. The same jobs and policy give the same outcome: there is no other clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

import numpy as np

from dieselfs.allocation.jobs import Allocation, Job, JobState, Policy, Resources
from dieselfs.allocation.simulation.events import Event, EventKind
from dieselfs.allocation.simulation.fluid import FluidReaders, UniformCaches
from dieselfs.allocation.simulation.items import ItemReaders
from dieselfs.allocation.simulation.lru_pool import LruPool
from dieselfs.allocation.simulation.metrics import Fairness, Outcome, SimulatedBeat, equal_rates
from dieselfs.allocation.simulation.readers import (
    BeatProgress,
    Grant,
    JobColumns,
    Numbers,
    Readers,
)
from dieselfs.errors import UsageError

BEAT_S = 60.0
STANDSTILL_BEATS = 1000
"""After as many beats without a byte read and without a new job, the simulation ends."""


class Grain(Enum):
    """The engines by what they count."""

    FLUID = "fluid"
    ITEMS = "items"


def simulate(
    jobs: Sequence[Job],
    policy: Policy,
    total: Resources,
    *,
    grain: Grain = Grain.FLUID,
    beat_s: float = BEAT_S,
    seed: int = 1,
) -> Outcome:
    """Run `jobs` from the first submission until all have ended.

    `seed` draws the orders of single items and what is evicted; the fluid engine draws nothing.
    Quotas are used uniformly, also if jobs tell their orders. A job that gets nothing for ever, or
    is not regular, is a `UsageError`.
    """
    if len({job.name for job in jobs}) < len(jobs):
        raise UsageError("two jobs of the trace have the same name")
    for job in jobs:
        if not job.regular:
            raise UsageError(
                f"job {job.name!r} is not regular, so the simulator does not know what it reads",
                "leave it out; for one that draws with replacement set repeats_items and regular",
            )
        if job.gpus > total.gpus:
            raise UsageError(f"job {job.name!r} needs {job.gpus} GPUs of {total.gpus}")
    uniform = [replace(job, order="random") for job in jobs]
    return _Simulation(uniform, policy, total, grain, beat_s, seed).run()


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[Job],
        policy: Policy,
        total: Resources,
        grain: Grain,
        beat_s: float,
        seed: int,
    ) -> None:
        self._jobs, self._policy, self._total, self._beat_s = jobs, policy, total, beat_s
        self._columns = JobColumns.of(jobs)
        self._new_readers: Callable[[bool], Readers] = lambda is_lru: _readers(
            jobs, self._columns, total, grain, is_lru, seed
        )
        self._readers: Readers | None = None
        self._speeds = np.array([job.speed_bytes_per_s for job in jobs])
        self._gpus = np.array([job.gpus for job in jobs], float)
        order = sorted(range(len(jobs)), key=lambda number: jobs[number].submitted_s)
        self._pending = order[::-1]
        self._active: dict[int, JobState] = {}
        self._started: set[int] = set()
        self._events: list[Event] = []
        self._beats: list[SimulatedBeat] = []
        self._ends: dict[str, float] = {}

    def run(self) -> Outcome:
        at_s, still = 0.0, 0
        while self._pending or self._active:
            if not self._active:
                at_s = max(at_s, self._jobs[self._pending[-1]].submitted_s)
            self._submit(at_s)
            grant = self._decide(at_s)
            assert self._readers is not None
            done = self._readers.advance(grant, at_s, self._beat_s)
            self._count(at_s, grant, done)
            self._take_out(done)
            at_s += self._beat_s
            still = 0 if self._pending or done.read_bytes.any() else still + 1
            if still > STANDSTILL_BEATS:
                raise UsageError(f"no job reads anything after {at_s:.0f} s, and none will")
        return Outcome(self._jobs, self._events, self._beats, self._ends)

    def _submit(self, at_s: float) -> None:
        while self._pending and self._jobs[self._pending[-1]].submitted_s <= at_s:
            number = self._pending.pop()
            job = self._jobs[number]
            self._active[number] = JobState(job, job.total_bytes)
            self._events.append(Event(job.submitted_s, EventKind.SUBMIT, number))

    def _decide(self, at_s: float) -> Grant:
        self._look()
        allocation = self._policy.schedule(list(self._active.values()), self._total)
        self._events.append(Event(at_s, EventKind.ALLOCATE, -1))
        if self._readers is None:
            self._readers = self._new_readers(allocation.is_lru)
        running = [number for number in self._active if self._share(allocation, number) > 0]
        for number in running:
            if number not in self._started:
                self._started.add(number)
                self._readers.start(number)
                self._events.append(Event(at_s, EventKind.START, number))
        self._mark(set(running))
        return self._grant(allocation, np.array(running, np.int64))

    def _grant(self, allocation: Allocation, running: Numbers) -> Grant:
        shares = [self._share(allocation, int(number)) for number in running]
        ios = [allocation.io_bytes_per_s.get(self._jobs[number].name, 0.0) for number in running]
        quotas = [allocation.cache_bytes.get(name, 0) for name in self._columns.names]
        speeds = self._speeds[running] * np.minimum(1.0, shares / self._gpus[running])
        pooled = self._total.io_bytes_per_s if allocation.is_lru else None
        return Grant(running, speeds, np.array(ios, float), np.array(quotas, float), pooled)

    def _share(self, allocation: Allocation, number: int) -> float:
        return allocation.gpus.get(self._jobs[number].name, 0.0)

    def _look(self) -> None:
        """Tell the states of jobs that have started as the engine sees them."""
        if self._readers is None:
            return
        numbers = np.array([n for n in self._active if n in self._started], np.int64)
        effective = self._readers.effective_bytes(numbers).tolist()
        held = self._readers.held_bytes(numbers).tolist()
        left = self._readers.left_bytes[numbers].tolist()
        for number, *figures in zip(numbers.tolist(), left, effective, held, strict=True):
            state = self._active[number]
            self._active[number] = JobState(
                state.job, figures[0], state.is_running, figures[1], figures[2]
            )

    def _mark(self, running: set[int]) -> None:
        for number, state in self._active.items():
            if state.is_running != (number in running):
                self._active[number] = JobState(
                    state.job,
                    state.left_bytes,
                    number in running,
                    state.effective_bytes,
                    state.held_bytes,
                )

    def _take_out(self, done: BeatProgress) -> None:
        self._events.extend(done.events)
        for event in done.events:
            if event.kind is EventKind.END:
                self._ends[self._jobs[event.job].name] = event.at_s
                del self._active[event.job]

    def _count(self, at_s: float, grant: Grant, done: BeatProgress) -> None:
        assert self._readers is not None
        jobs, datasets = grant.jobs, self._columns.datasets[grant.jobs]
        held, effective = np.zeros((2, len(self._columns.names)))
        held[datasets] = self._readers.held_bytes(jobs)
        np.maximum.at(effective, datasets, self._readers.effective_bytes(jobs))
        self._beats.append(
            SimulatedBeat(
                at_s,
                self._beat_s,
                len(jobs),
                len(self._active) - len(jobs),
                float(done.read_bytes.sum()) / self._beat_s,
                float(grant.speeds.sum()),
                float(done.missed_bytes.sum()) / self._beat_s,
                float(held.sum()),
                float(effective.sum()),
                self._fairness(jobs, done),
            )
        )

    def _fairness(self, jobs: Numbers, done: BeatProgress) -> Fairness | None:
        ended = {event.job for event in done.events if event.kind is EventKind.END}
        active = np.array([number for number in self._active if number not in ended], np.int64)
        if not len(active):
            return None
        rates = np.zeros(len(self._jobs))
        rates[jobs] = done.read_bytes / self._beat_s
        equal = equal_rates(
            self._speeds[active],
            self._gpus[active],
            self._columns.sizes[active],
            self._total,
            1.0 / len(active),
        )
        ratios = rates[active] / np.maximum(equal, 1e-9)
        least, tenth, median = np.percentile(ratios, (0, 10, 50))
        return float(least), float(tenth), float(median)


def _readers(
    jobs: Sequence[Job],
    columns: JobColumns,
    total: Resources,
    grain: Grain,
    is_lru: bool,
    seed: int,
) -> Readers:
    if grain is Grain.ITEMS:
        return ItemReaders(jobs, columns, total.cache_bytes if is_lru else None, seed)
    cache = LruPool(columns, total.cache_bytes) if is_lru else UniformCaches(columns)
    return FluidReaders(jobs, columns, cache)
