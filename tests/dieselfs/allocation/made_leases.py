"""Leases and declared jobs with what a test does not care about filled in."""

import itertools
from typing import Any

from dieselfs.allocation.directory.decisions import JobEntry
from dieselfs.allocation.directory.reader_lease import ReaderLease

DATASET_BYTES = 1 << 30
_numbers = itertools.count(1)


def lease(job: str, **fields: Any) -> ReaderLease:
    return ReaderLease(
        **{
            "reader": f"{next(_numbers):016x}",
            "job": job,
            "host": "node",
            "pid": 1,
            "dataset": "imagenet",
            "dataset_id": "1" * 32,
            "dataset_bytes": DATASET_BYTES,
            "age_s": 60.0,
            **fields,
        }
    )


def entry(job: str, **fields: Any) -> JobEntry:
    return JobEntry(
        **{
            "job": job,
            "dataset": "imagenet",
            "dataset_id": "1" * 32,
            "dataset_bytes": DATASET_BYTES,
            "speed_bytes_per_s": 100e6,
            **fields,
        }
    )
