"""The port between the simulation's clock and its engines: jobs that read for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dieselfs.allocation.jobs import Job
from dieselfs.allocation.simulation.events import Event

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grant:
    """The resources that running jobs may use until the next decision.

    Three of its columns have a row a running job.
    """

    jobs: Numbers
    """Numbers of the running jobs."""
    speeds: Floats
    """The bytes/s at which each reads if nothing waits, with the GPUs that it has."""
    ios: Floats
    """Remote IO, bytes/s."""
    quotas: Floats
    """Bytes of each dataset, by its number. Without meaning for an LRU pool."""
    pooled_io: float | None = None
    """Remote IO of all jobs if nothing controls that of each: the fluid engine then divides it by
    need at every step, since the hit shares of an LRU pool change all the time."""


@dataclass(frozen=True, slots=True)
class BeatProgress:
    """The result of a beat: events, and columns with a row a running job."""

    events: Sequence[Event]
    read_bytes: Floats
    missed_bytes: Floats
    """Those of the read bytes that took remote IO."""


@dataclass(frozen=True, slots=True)
class JobColumns:
    """The jobs of a simulation as columns, and their datasets as numbers."""

    sizes: Floats
    """Bytes of each job's dataset."""
    datasets: Numbers
    names: Sequence[str]
    """Datasets by number."""
    repeats: NDArray[np.bool_]

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> JobColumns:
        numbers = {name: at for at, name in enumerate(dict.fromkeys(job.dataset for job in jobs))}
        return cls(
            np.array([job.dataset_bytes for job in jobs], float),
            np.array([numbers[job.dataset] for job in jobs], np.int64),
            list(numbers),
            np.array([job.repeats_items for job in jobs], bool),
        )

    @property
    def are_private(self) -> bool:
        """True if each dataset is of one job."""
        return len(self.names) == len(self.datasets)


class Readers(Protocol):
    """An engine: it knows how far each job is, and what the cache holds.

    Jobs are numbered by their places in the list with which it was made. Calls come from one
    thread.
    """

    @property
    def left_bytes(self) -> Floats:
        """The bytes that each job has still to read."""
        ...

    def start(self, job: int) -> None:
        """Let a job begin; what its dataset has in the cache is effective for it at once."""
        ...

    def effective_bytes(self, jobs: Numbers) -> Floats:
        """Return what of the cache each of `jobs` hits now, scaled to the dataset."""
        ...

    def held_bytes(self, jobs: Numbers) -> Floats:
        """Return what the cache holds of the dataset of each of `jobs`."""
        ...

    def advance(self, grant: Grant, at_s: float, length_s: float) -> BeatProgress:
        """Let the running jobs read from `at_s` on; events have exact times within the beat."""
        ...
