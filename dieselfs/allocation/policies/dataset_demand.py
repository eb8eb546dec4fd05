"""The demand of all jobs of a dataset for its cache: cache is charged once a dataset (§6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from dieselfs.allocation.jobs import Job, JobState
from dieselfs.allocation.known_hits import hit_functions
from dieselfs.allocation.policies.fair_share import held_of

_PARTS: Final = 10
"""The parts of a dataset whose jobs tell their orders."""


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
    telling: tuple[Job, ...] = ()
    """The jobs whose orders the cache knows."""

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
        held = held_of(state)
        self.held_bytes = max(self.held_bytes, min(held, self.dataset_bytes))
        if job.order != "random" and job.regular:
            self.telling += (job,)
        first = 1.0 - math.exp(-reads) if job.repeats_items else 1.0
        self.hits_if_new = max(0.0, self.reads_left - first)
        self.hits_if_held += _hits_of_held(state, held)


def _hits_of_held(state: JobState, held_bytes: float) -> float:
    """Return the hits that a held byte will give the job.

    Effective bytes are hits whenever they are read. The others were read in this epoch already, so
    they are read once in each epoch that follows.
    """
    reads = state.passes_left
    effective_share = state.effective_bytes / held_bytes if held_bytes > 0 else 0.0
    if effective_share > 1.0:  # its order is known
        return reads * effective_share
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


class Part(NamedTuple):
    """A part of a dataset, from the end of the one before it, with its cache efficiency."""

    demand: DatasetDemand
    end_bytes: int
    efficiency: float


def ranked_parts(demands: Iterable[DatasetDemand]) -> list[Part]:
    """Cut datasets into parts by efficiency, the most efficient first.

    A dataset is one part, since each cached byte spares as much. With known orders the first bytes
    spare most: the part from 10 to 20 % of the dataset comes before that from 20 to 30 %.
    """
    parts: list[Part] = []
    for demand in demands:
        if demand.telling:
            parts += _parts(demand)
        else:
            parts.append(Part(demand, demand.dataset_bytes, demand.efficiency))
    parts.sort(key=lambda part: (-part[2], part[0].name))  # parts of a dataset stay in order
    return parts


def _parts(demand: DatasetDemand) -> Iterator[Part]:
    size = demand.dataset_bytes
    hits = hit_functions(demand.telling)
    own = {job.name: job.speed_bytes_per_s / size for job in demand.telling}
    others = demand.efficiency - sum(own.values())
    for number in range(1, _PARTS + 1):
        begin, end = (number - 1) / _PARTS, number / _PARTS
        told = sum(own[name] * (of(end) - of(begin)) * _PARTS for name, of in hits.items())
        yield Part(demand, size * number // _PARTS, others + told)
