"""The policies that know nothing of jobs: CacheLib's, as Tectonic-Shift §6.1 compares with them.

CacheLib reads a missed object into memory first and then decides about the SSD. So what they reject
has been fetched (`fetches_rejected`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from chunkstore.ssd.admission import RejectFirst
from chunkstore.ssd.policies.elapsed import Elapsed
from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policies.write_budget import checked_budget


class AdmitEverything:
    """A policy that admits every segment, reinserts none, and ignores jobs and time."""

    fetches_rejected = True

    def requested(self, job: str, bucket: Bucket, key: int, length: int) -> None:
        """Do nothing."""

    def admits(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return True."""
        return True

    def reinserts(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return False."""
        return False

    def next_uses(self, keys: Sequence[int]) -> None:
        """Return None: nothing is known of the future."""

    def evicts_next(self, next_use: float | None) -> None:
        """Do nothing."""

    def written(self, length: int) -> None:
        """Do nothing."""

    def publish(self, specification: JobSpecification, now: float) -> None:
        """Do nothing."""

    def refresh(self, now: float) -> None:
        """Do nothing."""


class RejectFirstMiss(AdmitEverything):
    """A policy that admits a segment at its second miss."""

    def __init__(self) -> None:
        self._missed = RejectFirst()

    def admits(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return whether the segment was missed before."""
        return self._missed.admits(b"", key.to_bytes(8, "little"))


class RandomRejection(AdmitEverything):
    """A policy that admits at random, at a probability that keeps a write rate (*dynamic*).

    At each refresh the probability is multiplied by budget over written bytes, by a factor of 4 at
    most; the written bytes are compared over all the time so far, so that an excess is made up for.
    """

    def __init__(self, write_budget: float, seed: int = 0) -> None:
        self._bytes_per_s = checked_budget(write_budget)
        self._random = random.Random(seed)
        self._elapsed = Elapsed()
        self._refreshed_s = 0.0
        self._debt_bytes = 0.0
        self._interval_bytes = 0
        self.probability = 0.01

    def admits(self, bucket: Bucket, key: int, length: int) -> bool:
        """Return True at the present probability."""
        return self._random.random() < self.probability

    def written(self, length: int) -> None:
        """Count the bytes."""
        self._interval_bytes += length

    def refresh(self, now: float) -> None:
        """Move the probability towards the one that would have kept the budget."""
        elapsed_s = self._elapsed.at(now)
        seconds = elapsed_s - self._refreshed_s
        if seconds <= 0:
            return
        self._refreshed_s = elapsed_s
        budget = self._bytes_per_s * seconds
        self._debt_bytes = max(-10 * budget, self._debt_bytes + self._interval_bytes - budget)
        wanted = max(budget / 4, budget - self._debt_bytes / 10)
        factor = max(0.25, wanted / max(self._interval_bytes, wanted / 4))
        if self._debt_bytes > budget:  # an interval without a write does not repay the debt
            factor = min(1.0, factor)
        self.probability = min(1.0, max(1e-6, self.probability * factor))
        self._interval_bytes = 0
