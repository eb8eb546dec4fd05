"""The records of an allocation directory, as one process reads them: what is strange is skipped."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dieselfs.allocation.directory import reader_lease
from dieselfs.allocation.directory.decisions import (
    CacheDecision,
    Decisions,
    IoDecision,
    JobEntry,
    decoded,
)
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.cache.jobs.record_reader import RecordReader


class DirectoryDecoder:
    """Decodes what one directory holds; says once of each kind that it holds something else.

    `now_us` is the time by the directory's clock.
    """

    def __init__(self, shown: str) -> None:
        """`shown` names the directory in the log."""
        self._caches = RecordReader(shown, "decisions on caches")
        self._ios = RecordReader(shown, "decisions on remote IO")
        self._of_job = RecordReader(shown, "decisions on a job")
        self._jobs = RecordReader(shown, "declared jobs")
        self._leases = RecordReader(shown, "reader leases")

    def decisions(
        self, caches: Iterable[bytes], ios: Iterable[bytes], version: int, now_us: int
    ) -> Decisions:
        """Return all decisions."""
        return Decisions(
            self._caches.decoded(caches, partial(decoded, CacheDecision, now_us=now_us)),
            self._ios.decoded(ios, partial(decoded, IoDecision, now_us=now_us)),
            version,
        )

    def io_of(self, job: str, found: Iterable[bytes], now_us: int) -> IoDecision | None:
        """Return the decision of `found` that holds for a job."""
        ios = self._of_job.decoded(found, partial(decoded, IoDecision, now_us=now_us))
        return Decisions(ios=ios).io_of(job)

    def jobs(self, found: Iterable[bytes], now_us: int) -> list[JobEntry]:
        """Return declared jobs, by name."""
        jobs = self._jobs.decoded(found, partial(decoded, JobEntry, now_us=now_us))
        return sorted(jobs, key=lambda each: each.job)

    def leases(self, found: Iterable[bytes]) -> list[ReaderLease]:
        """Return the leases of readers."""
        return self._leases.decoded(found, reader_lease.decoded)
