"""Tectonic-Shift's three workloads (§6.1, Table 3) as traces of requests, scaled down.

Each job reads its partitions one after the other. Its readers take the splits of a partition from a
common queue and read each split from its beginning to its end. The paper does not say in which
order the queue hands out the splits, nor how far equal jobs drift apart, so the order is a
parameter:

| order | meaning |
|---|---|
| same | all jobs walk all partitions in one order, at one speed |
| drift-D | the same order; a job's speed in each partition differs by D % (standard deviation) |
| windows-N | the splits of each N-th of a partition in each job's own random order |
| windows-N-drift-D | both |
| own-splits | each job has its own random order of splits: windows-1 |
| own-segments | each job has its own random order of segments |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.segment_buckets import Bucket

PARTITION_BYTES = 5e12
READER_BYTES_PER_S = 1.5e9
SPLITS = 128


@dataclass(frozen=True, slots=True)
class Order:
    """How the jobs walk a partition."""

    name: str
    windows: int
    """The parts of a partition that are read one after the other; the splits of each are read in
    the job's own random order."""
    drift: float = 0.0
    """The standard deviation of the logarithm of a job's speed in a partition."""
    shuffles_segments: bool = False


ORDERS = (
    Order("same", SPLITS),
    Order("drift-5", SPLITS, 0.05),
    Order("drift-20", SPLITS, 0.2),
    Order("windows-8", 8),
    Order("windows-2", 2),
    Order("windows-2-drift-20", 2, 0.2),
    Order("own-splits", 1),
    Order("own-segments", 1, shuffles_segments=True),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs of a row of Table 3."""

    name: str
    batches: tuple[tuple[tuple[int, ...], ...], ...]
    """Batches of jobs, each with the numbers of its partitions. A batch starts when the one before
    has ended."""
    cache_partitions: float
    """The size of the cache over that of a partition."""
    readers: int


WORKLOADS = (
    Workload(
        "synchronized", (((1, 2, 3), (4, 5, 6), (1, 2, 3), (7, 8, 9), (1, 2, 3)),), 1.28 / 5, 4
    ),
    Workload("pipelined", (((1, 2, 3), (2, 3), (3,)),), 1.0, 5),
    Workload("sequential", (((1,), (1,), (1,)), ((1,), (2,), (3,)), ((1,), (4,), (5,))), 1.0, 5),
)


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job of a trace: which buckets it reads, and when it is done with each."""

    name: str
    begin_s: float
    buckets: tuple[Bucket, ...]
    ends_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a workload in the order of time, one segment each."""

    workload: Workload
    segments: int
    """Segments of a partition."""
    times_s: npt.NDArray[np.float64]
    job_numbers: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """The numbers of the segments, unique over all partitions."""
    jobs: tuple[JobRun, ...]

    @property
    def segment_bytes(self) -> int:
        return int(PARTITION_BYTES / self.segments)

    @property
    def duration_s(self) -> float:
        return float(self.times_s[-1])


def bucket_of(partition: int) -> Bucket:
    return Bucket(f"table:p{partition}")


def trace_of(workload: Workload, order: Order, segments: int, seed: int) -> Trace:
    """Return the requests of a workload; `segments` a partition is a multiple of `SPLITS`."""
    random = np.random.default_rng(seed)
    parts: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]] = []
    jobs: list[JobRun] = []
    begin_s = 0.0
    for batch in workload.batches:
        for partitions in batch:
            times, places, ends = _walk(workload, partitions, order, segments, random)
            parts.append((times + begin_s, places))
            jobs.append(
                JobRun(
                    f"job{len(jobs) + 1}",
                    begin_s,
                    tuple(map(bucket_of, partitions)),
                    tuple(begin_s + end for end in ends),
                )
            )
        begin_s = max(job.ends_s[-1] for job in jobs)
    numbers = np.concatenate([np.full(len(part[0]), n) for n, part in enumerate(parts)])
    times_s = np.concatenate([times for times, _ in parts])
    sort = np.argsort(times_s, kind="stable")
    all_places = np.concatenate([places for _, places in parts])
    return Trace(workload, segments, times_s[sort], numbers[sort], all_places[sort], tuple(jobs))


def _walk(
    workload: Workload,
    partitions: tuple[int, ...],
    order: Order,
    segments: int,
    random: np.random.Generator,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], list[float]]:
    """Return times and places of one job's requests, and when each partition is read."""
    times, places, ends = [], [], []
    begin_s = 0.0
    for partition in partitions:
        seconds = PARTITION_BYTES / READER_BYTES_PER_S / workload.readers
        seconds *= float(np.exp(random.normal(0, order.drift)))
        if order.shuffles_segments:
            local = random.permutation(segments)
        else:
            windows = np.array_split(np.arange(SPLITS), order.windows)
            splits = np.concatenate([random.permutation(window) for window in windows])
            local = _interleaved(splits, segments // SPLITS, workload.readers)
        # Readers read at equal speed; a little noise decides between requests of one moment.
        step_s = seconds / segments
        moments = (np.arange(segments) + random.random(segments)) * step_s
        times.append(begin_s + moments)
        places.append(partition * segments + local)
        begin_s += seconds
        ends.append(begin_s)
    return np.concatenate(times), np.concatenate(places), ends


def _interleaved(
    splits: npt.NDArray[np.int64], split_segments: int, readers: int
) -> npt.NDArray[np.int64]:
    """Return the segments as `readers` readers request them: each has a split of its own."""
    found = []
    for first in range(0, len(splits), readers):
        taken = splits[first : first + readers]
        grid = taken[:, None] * split_segments + np.arange(split_segments)[None, :]
        found.append(grid.T.ravel())
    return np.concatenate(found)
