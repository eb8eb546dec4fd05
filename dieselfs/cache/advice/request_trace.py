"""A trace of the requests that an SSD tier was asked, and of what jobs published meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.segment_buckets import Bucket


@dataclass(frozen=True, slots=True)
class Publication:
    """What one reader of a job published at a time."""

    time_s: float
    specification: JobSpecification


@dataclass(frozen=True, slots=True, eq=False)
class RequestTrace:
    """Requests in the order of time, as columns of equal length."""

    times_s: npt.NDArray[np.float64]
    keys: npt.NDArray[np.uint64]
    """The segments' keys (`policies.tags.key_of`)."""
    lengths: npt.NDArray[np.int64]
    """The segments' bytes; a segment has the same in all its requests."""
    jobs: npt.NDArray[Any]
    """Numbers in `job_names`."""
    buckets: npt.NDArray[Any]
    """Numbers in `bucket_names`."""
    job_names: Sequence[str]
    bucket_names: Sequence[Bucket]
    publications: Sequence[Publication] = ()
    """In the order of time."""

    @property
    def begin_s(self) -> float:
        """The time of the first request or publication; 0 if there is none."""
        first = [float(self.times_s[0])] if len(self.times_s) else []
        return min(first + [each.time_s for each in self.publications[:1]], default=0.0)

    @property
    def end_s(self) -> float:
        """The time of the last request; 0 if there is none."""
        return float(self.times_s[-1]) if len(self.times_s) else 0.0

    @property
    def requested_bytes(self) -> int:
        """The bytes of all requests."""
        return int(self.lengths.sum())
