"""The port of the job registry: the place of all job records that a node can see.

It is implemented by leases in the Redis of the index (`redis_jobs`), and by a folder in the node's
shared memory (`jobs_folder`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from dieselfs.cache.jobs.job_record import JobRecord, decoded
from dieselfs.cache.jobs.published_order import PublishedOrder
from dieselfs.cache.jobs.record_reader import RecordReader


class JobRegistry(Protocol):
    """The records of all readers. One thread at a time uses it."""

    def publish(self, record: JobRecord, order: PublishedOrder) -> None:
        """Put or renew the lease of the record, and of the order that it names.

        Costs one round trip, and one more if the order is new here. Raises `RegistryUnavailable`
        within some seconds if the registry cannot be reached, or is full.
        """
        ...

    def withdraw(self, reader: str) -> None:
        """Remove the record that this process has published for a reader. Never raises."""
        ...

    def records(self) -> Sequence[JobRecord]:
        """Return all records under a lease; what is no record is skipped.

        Costs one round trip. Raises `RegistryUnavailable`.
        """
        ...

    def order(self, id: str) -> PublishedOrder | None:
        """Return an order; None if it is not there, or damaged. Raises `RegistryUnavailable`."""
        ...

    def close(self) -> None:
        """Withdraw nothing, and close connections and files."""
        ...


class JobRecordReader:
    """Decodes what a registry holds; says once that it holds something else."""

    def __init__(self, shown: str) -> None:
        """`shown` names the registry in the log."""
        self._reader = RecordReader(shown, "job records")

    def decoded(self, contents: Iterable[bytes]) -> list[JobRecord]:
        """Return the records among `contents`, the latest of each reader.

        A reader has two for a while if the answer to a renewal was lost.
        """
        found: dict[str, JobRecord] = {}
        for record in self._reader.decoded(contents, decoded):
            found[record.reader] = max(
                record, found.get(record.reader, record), key=lambda each: each.age_s
            )
        return list(found.values())
