"""The publications of the readers of jobs to a tier, until its policies learn of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from chunkstore.ssd.policies.job_specifications import JobSpecification

_JOBS: Final = 1024


class Publications:
    """The last specification of each reader, under its lease. Any thread publishes; one takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[JobSpecification, float]] = {}
        """(job, reader) -> its specification, and the time at which its lease ends."""
        self._new: dict[tuple[str, str], JobSpecification] = {}
        """The publications since the last `take`."""

    def publish(self, specification: JobSpecification) -> None:
        """Take note of what a reader will read."""
        reader = specification.job, specification.reader
        with self._lock:
            if reader in self._new or len(self._new) < _JOBS:
                self._new[reader] = specification

    def take(self, now: float) -> tuple[Sequence[JobSpecification], bool]:
        """Return what was published since the last call, and whether it is news.

        It is if a reader has begun or ended, or reads in another order than before.
        """
        with self._lock:
            new, self._new = self._new, {}
            is_news = any(self._is_news(reader, found) for reader, found in new.items())
            ends = {reader: (found, now + found.lease_s) for reader, found in new.items()}
            self._known.update(ends)
        return list(new.values()), is_news

    def again(self) -> None:
        """Return all again at the next `take`: another policy knows of none."""
        with self._lock:
            known = {reader: found for reader, (found, _) in self._known.items()}
            self._new = {**known, **self._new}

    def expire(self, now: float) -> None:
        """Forget readers whose leases have ended."""
        with self._lock:
            self._known = {of: found for of, found in self._known.items() if now < found[1]}

    def _is_news(self, reader: tuple[str, str], found: JobSpecification) -> bool:
        known, _ = self._known.get(reader, (None, 0.0))
        if known is None:
            return True
        plans = [None if each.plan is None else each.plan.id for each in (known, found)]
        return plans[0] != plans[1] or known.buckets != found.buckets
