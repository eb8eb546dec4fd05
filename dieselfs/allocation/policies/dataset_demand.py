"""The demand of all jobs of a dataset for its cache: cache is charged once a dataset (§6)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dieselfs.allocation.jobs import JobState


@dataclass(slots=True)
class DatasetDemand:
    """The jobs that read a dataset at the same time, summed."""

    name: str
    dataset_bytes: int
    efficiency: float = 0.0
    """Remote IO that a cached byte spares at the jobs' ideal rates, 1/s: the sum of f*/d."""
    reads_left: float = 0.0
    """How often a byte will still be read by all its jobs, on average."""
    hits_if_new: float = 0.0
    """How often a byte will be a hit if it is admitted from now on; its first read is none."""
    hits_if_held: float = 0.0
    """The same of a byte that the cache holds."""
    left_s: float = 0.0
    """How long its last job still runs, at ideal rates."""
    held_bytes: float = 0.0

    @property
    def hits_a_second_if_held(self) -> float:
        """The rate of the hits of a held byte, which is the efficiency if all bytes hit."""
        return self.hits_if_held / self.left_s if self.left_s > 0 else 0.0

    def add(self, state: JobState) -> None:
        """Count a job that reads the dataset."""
        job, reads = state.job, state.passes_left
        self.efficiency += job.speed_bytes_per_s / job.dataset_bytes
        self.reads_left += reads
        self.left_s = max(self.left_s, state.left_bytes / job.speed_bytes_per_s)
        held = max(state.held_bytes, state.effective_bytes)
        self.held_bytes = max(self.held_bytes, min(held, self.dataset_bytes))
        first = 1.0 - math.exp(-reads) if job.repeats_items else 1.0
        self.hits_if_new = max(0.0, self.reads_left - first)
        self.hits_if_held += _hits_of_held(state, held)


def _hits_of_held(state: JobState, held_bytes: float) -> float:
    """Return the hits that a held byte will give the job.

    Effective bytes are hits whenever they are read. The others were read in this epoch already, so
    they are read once in each epoch that follows.
    """
    reads = state.passes_left
    effective_share = min(1.0, state.effective_bytes / held_bytes) if held_bytes > 0 else 0.0
    return reads * effective_share + math.floor(reads) * (1.0 - effective_share)


def demands_of(states: Iterable[JobState]) -> dict[str, DatasetDemand]:
    """Sum the jobs by dataset, in the order in which datasets come first."""
    demands: dict[str, DatasetDemand] = {}
    for state in states:
        job = state.job
        demand = demands.get(job.dataset)
        if demand is None:
            demand = demands[job.dataset] = DatasetDemand(job.dataset, job.dataset_bytes)
        demand.add(state)
    return demands


def by_efficiency(demands: Iterable[DatasetDemand]) -> list[DatasetDemand]:
    """Sort by descending cache efficiency, and by name where it is the same."""
    return sorted(demands, key=lambda demand: (-demand.efficiency, demand.name))
