"""Jobs that make no sense are refused, and a state says what its cache spares."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dieselfs.allocation.jobs import Job, JobState, Resources
from dieselfs.errors import UsageError

GOOD: dict[str, Any] = {
    "name": "a",
    "dataset": "imagenet",
    "dataset_bytes": 143 * 10**9,
    "speed_bytes_per_s": 114e6,
}


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("name", " ", "without a name"),
        ("dataset", "", "without a dataset"),
        ("dataset_bytes", 0, "dataset_bytes of 0"),
        ("dataset_bytes", -1, "dataset_bytes of -1"),
        ("dataset_bytes", 10**21, "mistake of units"),
        ("speed_bytes_per_s", math.nan, "speed_bytes_per_s of nan"),
        ("speed_bytes_per_s", math.inf, "speed_bytes_per_s of inf"),
        ("speed_bytes_per_s", 1e14, "mistake of units"),
        ("gpus", 0, "gpus of 0"),
        ("passes", -0.5, "passes of -0.5"),
        ("submitted_s", math.nan, "submitted_s of nan"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(field: str, value: object, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Job(**(GOOD | {field: value}))


@pytest.mark.parametrize("field", ["gpus", "cache_bytes", "io_bytes_per_s"])
def test_totals_are_not_negative(field: str) -> None:
    amounts = {"gpus": 1, "cache_bytes": 1, "io_bytes_per_s": 1.0}
    Resources(**(amounts | {field: 0}))
    with pytest.raises(UsageError, match=field):
        Resources(**(amounts | {field: -1}))


def test_what_is_effective_now_spares_remote_io() -> None:
    job = Job(**GOOD, passes=2.5)
    assert job.total_bytes == 2.5 * 143e9
    assert JobState(job, 1e9).io_demand == 114e6
    half = JobState(job, 1e9, is_running=True, effective_bytes=71.5e9)
    assert (half.hit_share, half.io_demand) == (0.5, 57e6)
    more = JobState(job, 1e9, effective_bytes=200e9)
    assert (more.hit_share, more.io_demand) == (1.0, 0.0)
