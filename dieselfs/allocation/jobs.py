"""Jobs, the resources of a cluster, and allocations: the values that policies take and return.

`Policy.schedule` is Algorithm 1 of SiloD. A scheduler of any kind can call it: it needs a list of
jobs, the totals, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, get_args

from dieselfs.errors import UsageError

MOST_DATASET_BYTES: Final = 1 << 60
"""A larger dataset is a mistake of units; the largest of SiloD's Table 1 has 400 TB."""
MOST_BYTES_PER_S: Final = 10e12
"""A faster job is a mistake of units: it would read 10 TB a second."""
MOST_GPUS: Final = 100_000
MOST_PASSES: Final = 1e6


ReadingOrder = Literal["random", "told", "draws"]
"""`random` orders are not known to the cache. `told` ones are, an epoch ahead. `draws` are draws
with replacement from a seed that is told."""


@dataclass(frozen=True, slots=True)
class Job:
    """A training job: what it reads, how fast it could, and how often."""

    name: str
    dataset: str
    dataset_bytes: int
    speed_bytes_per_s: float
    """The ideal data rate f*: how fast the job reads if no read waits."""
    gpus: int = 1
    passes: float = 1.0
    """How often the job reads its dataset; 0.07 for a job that ends long before its first epoch."""
    submitted_s: float = 0.0
    regular: bool = True
    """True if each epoch reads each item once, in a random order, as equation 4 assumes."""
    repeats_items: bool = False
    """True if an item may be read again in the same epoch, so a cached byte is effective at once.

    The item is the unit that is cached. A job that draws with replacement repeats items, and so
    does one that reads files in a fully random order, since a chunk holds many files.
    """
    order: ReadingOrder = "random"
    """The order in which the job reads, as far as the cache knows it and may evict by it."""

    def __post_init__(self) -> None:
        _check(bool(self.name.strip()), "a job without a name")
        _check(bool(self.dataset.strip()), "a job without a dataset")
        _check_amount("dataset_bytes", self.dataset_bytes, MOST_DATASET_BYTES, "bytes")
        _check_amount("speed_bytes_per_s", self.speed_bytes_per_s, MOST_BYTES_PER_S, "bytes/s")
        _check_amount("gpus", self.gpus, MOST_GPUS, "GPUs")
        _check_amount("passes", self.passes, MOST_PASSES, "passes")
        _check(self.order in get_args(ReadingOrder), f"order of {self.order}: it is unknown")
        repeats = self.repeats_items or self.order != "draws"
        _check(repeats, "order of draws: a job that draws with replacement repeats items")
        is_time = math.isfinite(self.submitted_s) and self.submitted_s >= 0
        _check(is_time, f"submitted_s of {self.submitted_s}: it must be 0 or more")

    @property
    def total_bytes(self) -> float:
        """The bytes that the job reads from its beginning to its end."""
        return self.passes * self.dataset_bytes


@dataclass(frozen=True, slots=True)
class JobState:
    """A job that has not ended, as a policy sees it."""

    job: Job
    left_bytes: float
    """The bytes that the job has still to read; `job.total_bytes` before it starts."""
    is_running: bool = False
    effective_bytes: float = 0.0
    """Bytes of the cache that this job hits now, in its present epoch."""
    held_bytes: float = 0.0
    """Bytes of its dataset in the cache, effective or not; the same for all jobs of a dataset."""

    @property
    def passes_left(self) -> float:
        """How often the job will still read a byte of its dataset, on average."""
        return self.left_bytes / self.job.dataset_bytes

    @property
    def hit_share(self) -> float:
        """The share of the job's reads that the cache answers now."""
        return min(1.0, self.effective_bytes / self.job.dataset_bytes)

    @property
    def io_demand(self) -> float:
        """Remote IO at the job's ideal rate, with what is effective now: f* (1 - e/d)."""
        return self.job.speed_bytes_per_s * (1.0 - self.hit_share)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a cluster in all."""

    gpus: float
    cache_bytes: int
    io_bytes_per_s: float

    def __post_init__(self) -> None:
        for name in ("gpus", "cache_bytes", "io_bytes_per_s"):
            value = getattr(self, name)
            _check(math.isfinite(value) and value >= 0, f"{name} of {value}: it must be 0 or more")


@dataclass(frozen=True, slots=True)
class Allocation:
    """The resources that each job and each dataset may use.

    Quotas of datasets without a job are left out.
    """

    gpus: Mapping[str, float] = field(default_factory=dict)
    """GPUs by job. A job with none, or none listed, waits.

    With fewer GPUs than `job.gpus` (max-min) it has them for a part of the time, and its ideal rate
    is that part of f*.
    """
    cache_bytes: Mapping[str, int] = field(default_factory=dict)
    """The quota of each dataset, charged once however many jobs read it."""
    io_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """Remote IO by job."""
    is_lru: bool = False
    """True if the cache is one LRU pool of all jobs; there are no quotas then."""
    irregular_cache_bytes: int = 0
    """The LRU pool that the irregular jobs share; their datasets have no quotas then."""

    def gpu_share(self, job: Job) -> float:
        """Return the part of its GPUs that the job has, 0 to 1."""
        return min(1.0, self.gpus.get(job.name, 0.0) / job.gpus)


class Policy(Protocol):
    """Decides what jobs get (Algorithm 1). The same jobs and totals give the same allocation."""

    def schedule(self, jobs: Sequence[JobState], total: Resources) -> Allocation:
        """Allocate to `jobs`, which have all been submitted and have not ended.

        The sums of GPUs, quotas and remote IO do not exceed `total`.
        """
        ...


def _check_amount(name: str, value: float, most: float, unit: str) -> None:
    """Refuse zero, negative, absurd and not-a-number amounts."""
    _check(math.isfinite(value) and value > 0, f"{name} of {value}: it must be more than 0")
    _check(value <= most, f"{name} of {value}: more than {most:g} {unit} is a mistake of units")


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise UsageError(what)
