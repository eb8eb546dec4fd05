"""A job's profile: its row of a job table, measured from what its mount says of itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dieselfs.allocation.estimator import IdealRate, ReadInterval, measured_ideal_rate
from dieselfs.allocation.jobs import Job
from dieselfs.errors import UsageError


@dataclass(frozen=True, slots=True)
class Observation:
    """The progress of a mount's readers at one time."""

    at_s: float
    """The time by the mount's clock."""
    read_bytes: int
    waited_s: float
    """Summed over threads."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of a measurement."""

    job: Job
    speed_is_lower_bound: bool
    """True if the job may be faster: reads waited all the time, or not all of them were seen."""
    sees_all: bool
    """False without a known order: what the page cache answers is not seen then."""
    waited_share: float
    """The share of the time in which reads waited."""
    elapsed_s: float


def observation(statistics: Mapping[str, Any]) -> Observation | None:
    """Return what a mount's `stats.json` says; None if it has not looked at its readers yet.

    Raises `UsageError` for a mount of a release that does not say it.
    """
    found = statistics.get("allocation")
    if not isinstance(found, Mapping) or "read_bytes" not in found:
        raise UsageError(
            "the mount does not say what its readers have read",
            "`dlcmd mount --upgrade` runs the installed version in it",
        )
    at = found["observed_at_s"]
    if at is None:
        return None
    return Observation(float(at), int(found["read_bytes"]), float(found["read_waited_s"]))


def profiled(
    statistics: Mapping[str, Any], dataset: str, observations: Iterable[Observation]
) -> Profile:
    """Return the profile by observations in the order of time, and the last `stats.json`.

    GPUs and passes are not known of a mount; they are 1. Raises `UsageError` if nothing was read.
    """
    seen = list(observations)
    intervals = [
        ReadInterval(
            b.read_bytes - a.read_bytes, b.at_s - a.at_s, max(0.0, b.waited_s - a.waited_s)
        )
        for a, b in itertools.pairwise(seen)
        if b.at_s > a.at_s
    ]
    rate = measured_ideal_rate(intervals)
    if rate is None:
        raise UsageError(
            "nothing was read meanwhile",
            "run it while the job reads; what the page cache answers is seen only with a known "
            "order, and a mount without a job's name is looked at every 30 s",
        )
    elapsed = math.fsum(each.elapsed_s for each in intervals)
    waited = math.fsum(min(each.waited_s, each.elapsed_s) for each in intervals)
    job = _job(statistics["allocation"], dataset, rate)
    sees_all = not job.repeats_items
    return Profile(
        job,
        rate.is_lower_bound or not sees_all,
        sees_all,
        waited / elapsed,
        elapsed,
    )


def _job(allocation: Mapping[str, Any], dataset: str, rate: IdealRate) -> Job:
    return Job(
        allocation["job"] or dataset,
        dataset,
        int(allocation["dataset_bytes"]),
        rate.bytes_per_s,
        repeats_items=allocation["epoch"] is None,
    )
