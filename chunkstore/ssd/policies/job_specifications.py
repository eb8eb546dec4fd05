"""Specifications of jobs: which buckets each job will read (Tectonic-Shift §5.1, the GMS).

A job publishes its specification again and again, within its lease. A job that dies stops doing so
and is forgotten. The global metadata store that carries specifications between nodes is not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.segment_buckets import Bucket

MAX_JOBS: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class PlannedReads:
    """The segments that one reader reads in one epoch, in its order, and how far it is."""

    id: str
    """The plan's name; its keys never change."""
    keys: npt.NDArray[np.uint32]
    """The low 32 bits of each segment's key (`tags.key_of`), in the order of its first use."""
    position: int
    """How many of them have been read."""
    keys_per_s: float
    """The reader's rate; 0: not known."""
    repeats: bool = True
    """True if the reader reads all of them again in another order afterwards."""


@dataclass(frozen=True, slots=True)
class JobSpecification:
    """The buckets that one reader of a job reads, in its order."""

    job: str
    dataset: str
    buckets: tuple[Bucket, ...]
    finished: frozenset[Bucket] = frozenset()
    """The buckets that the job will not read again."""
    lease_s: float = 60.0
    """Seconds after which the job is forgotten unless it publishes again."""
    reader: str = ""
    """The reader among the job's, for instance a node; a job of one reader needs none."""
    plan: PlannedReads | None = None
    """The order, if the reader tells it."""
    repeats: bool = False
    """True if the job begins again with all buckets when it has finished them."""
    is_reading: bool = False
    """True if the reader is known to read now. Its requests may go to other tiers than this one."""

    def __post_init__(self) -> None:
        if not self.job:
            raise ValueError("a specification of a job without a name")
        if not (math.isfinite(self.lease_s) and self.lease_s > 0):
            raise ValueError(f"a lease of {self.lease_s} s for job {self.job}; it must be positive")


class PublishedJobs:
    """The specifications that a node knows. Not thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], tuple[JobSpecification, float]] = {}

    def publish(self, specification: JobSpecification, elapsed_s: float) -> None:
        """Record a reader's specification in place of its former one; raise ValueError if full."""
        reader = specification.job, specification.reader
        if reader not in self._jobs and len(self._jobs) >= MAX_JOBS:
            raise ValueError(f"no more than {MAX_JOBS} readers of jobs can be published")
        self._jobs[reader] = specification, elapsed_s + specification.lease_s

    def withdraw(self, job: str, reader: str = "") -> None:
        """Forget a reader that has ended, if it is known."""
        self._jobs.pop((job, reader), None)

    def alive(self, elapsed_s: float) -> Sequence[JobSpecification]:
        """Return the specifications under a lease, and forget the others."""
        self._jobs = {job: known for job, known in self._jobs.items() if elapsed_s < known[1]}
        return [specification for specification, _ in self._jobs.values()]
