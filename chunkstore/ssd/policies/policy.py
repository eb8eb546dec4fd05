"""The interface of all cache policies of an SSD tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.segment_buckets import Bucket

REFRESH_S: Final = 10.0
"""Seconds between two refreshes (Tectonic-Shift §5.1, BucketRefreshTime)."""


class CachePolicy(Protocol):
    """A policy that decides what an SSD tier admits and reinserts. Not thread-safe.

    `key` is the segment's (`tags.key_of`), `length` its bytes. Only `publish` and `refresh` get the
    time, in seconds of any clock; each request counts to the time of the last refresh. A policy
    never raises from the calls that a read makes.
    """

    fetches_rejected: bool
    """True if the tier reads a missed segment from the slow store before it may be rejected."""

    def requested(self, job: str, bucket: Bucket, key: int, length: int) -> None:
        """Take note of a request of one segment, whether it hits or misses."""
        ...

    def admits(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether to cache a missed segment; asked after `requested`, before the fetch."""
        ...

    def reinserts(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether to write an evicted segment again."""
        ...

    def next_uses(self, keys: Sequence[int]) -> npt.NDArray[np.float64] | None:
        """Return the predicted time of the next use of each segment, in seconds of the clock.

        It is inf for a segment that no job is known to need. None: the policy predicts nothing,
        and the tier evicts in an order of its own (LRU or FIFO).
        """
        ...

    def evicts_next(self, next_use: float | None) -> None:
        """Take note of what an admission costs: the next use of what would be evicted for it.

        It is the rank of the region that is evicted next, on the scale of `next_uses`; None: the
        cache has room. The tier tells it after each refresh and each eviction. A tier without
        predictions does not tell it.
        """
        ...

    def written(self, length: int) -> None:
        """Take note of bytes that the SSD was given to write, admitted or reinserted."""
        ...

    def publish(self, specification: JobSpecification, now: float) -> None:
        """Take note of what a job will read, and of the parts that it has finished."""
        ...

    def refresh(self, now: float) -> None:
        """Decide again about all buckets; called every `REFRESH_S`."""
        ...
