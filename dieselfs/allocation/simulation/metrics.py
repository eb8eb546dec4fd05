"""The figures of a simulation: times of jobs, and what the cluster did in each beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dieselfs.allocation.jobs import Job, Resources
from dieselfs.allocation.simulation.events import Event, EventKind
from dieselfs.allocation.simulation.readers import Floats

Fairness = tuple[float, float, float]
"""The rate of a job over its rate with equal shares of everything (equation 8): the minimum, the
tenth percentile and the median over all jobs that have not ended."""


@dataclass(frozen=True, slots=True)
class SimulatedBeat:
    """The cluster from one decision to the next; rates are in bytes/s."""

    at_s: float
    length_s: float
    running: int
    waiting: int
    rate: float
    """The sum of what all jobs read."""
    ideal_rate: float
    """The sum of what the running jobs would read if nothing waited."""
    io_rate: float
    held_bytes: float
    """Bytes in the cache, of datasets with a job."""
    effective_bytes: float
    """Those that the running jobs hit, or most of them where they share a dataset."""
    fairness: Fairness | None
    """None if all jobs end in this beat."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulation from its beginning to its end."""

    jobs: Sequence[Job]
    events: Sequence[Event]
    beats: Sequence[SimulatedBeat]
    ends_s: Mapping[str, float]

    def completion_times_s(self) -> Floats:
        """Return the job completion times: from the submission to the end."""
        return np.array([self.ends_s[job.name] - job.submitted_s for job in self.jobs])

    def mean_jct_s(self) -> float:
        return float(self.completion_times_s().mean())

    def jct_percentiles_s(self, percents: Sequence[float] = (50, 90, 99)) -> list[float]:
        return [float(value) for value in np.percentile(self.completion_times_s(), percents)]

    def makespan_s(self) -> float:
        """Return the time from the first submission to the last end."""
        return max(self.ends_s.values()) - min(job.submitted_s for job in self.jobs)

    def first_epochs_s(self) -> dict[str, float]:
        """Return when each job first ended an epoch; jobs that end before are left out."""
        first: dict[str, float] = {}
        for event in self.events:
            if event.kind is EventKind.EPOCH:
                first.setdefault(self.jobs[event.job].name, event.at_s)
        return first

    def rate_over_ideal(self) -> float:
        """Return what was read over what the running jobs would have read if nothing waited."""
        return self._over_time("rate") / max(self._over_time("ideal_rate"), 1e-9)

    def effective_over_held(self) -> float:
        """Return the effective share of the cache, over time (Figure 8)."""
        return self._over_time("effective_bytes") / max(self._over_time("held_bytes"), 1e-9)

    def mean_io_rate(self) -> float:
        return self._over_time("io_rate") / sum(beat.length_s for beat in self.beats)

    def fairness(self) -> Fairness:
        """Return the fairness averaged over time."""
        found = [(beat.fairness, beat.length_s) for beat in self.beats if beat.fairness]
        if not found:
            return 1.0, 1.0, 1.0
        ratios, lengths = zip(*found, strict=True)
        least, tenth, median = np.average(np.array(ratios), axis=0, weights=np.array(lengths))
        return float(least), float(tenth), float(median)

    def course(self, name: str, points: int) -> tuple[list[float], list[float]]:
        """Return times in seconds, and the mean of a field of the beats from each to the next."""
        step = -(-len(self.beats) // points)
        starts = range(0, len(self.beats), step)
        parts = [self.beats[at : at + step] for at in starts]
        means = [sum(getattr(beat, name) for beat in part) / len(part) for part in parts]
        return [part[0].at_s for part in parts], means

    def _over_time(self, name: str) -> float:
        return float(sum(getattr(beat, name) * beat.length_s for beat in self.beats))


def equal_rates(
    speeds: Floats, gpus: Floats, sizes: Floats, total: Resources, share: float
) -> Floats:
    """Return equation 4 of each job with the same share of GPUs, cache and remote IO."""
    capped = speeds * np.minimum(1.0, total.gpus * share / gpus)
    misses = 1.0 - np.minimum(1.0, total.cache_bytes * share / sizes)
    with np.errstate(divide="ignore"):
        arriving = np.where(misses > 0, total.io_bytes_per_s * share / misses, np.inf)
    return np.minimum(capped, arriving)
