"""The job record: what one reader of a job publishes about itself, renewed every 2 s.

A reader is a mount, or the master of a task's clients. The record names the published order by the
order's id, and says how far the reader is in it. It is JSON, for people who look into a Redis, and
nothing that is read there is trusted.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.segment_buckets import Bucket
from dieselfs.cache.jobs.job_name import MAX_JOB_BYTES
from dieselfs.cache.jobs.published_order import MAX_KEYS, PublishedOrder
from dieselfs.cache.jobs.record_reader import RecordFormat

LEASE_S: Final = 30.0
"""The seconds after which a record that is not renewed is forgotten."""
MAX_RECORD_BYTES: Final = 1900
"""The limit of an encoded record: an entry of a lease set has 2 KiB."""
_ENDED_S: Final = 0.001

_Name = Annotated[str, Meta(max_length=255)]
_Count = Annotated[int, Meta(ge=0, le=1 << 62)]
_Rate = Annotated[float, Meta(ge=0, le=1e12)]


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one reader has published."""

    version: Literal[1] = msgspec.field(name="v", default=1)
    reader: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    """The reader's id: random, another one after a restart."""
    job: Annotated[str, Meta(max_length=MAX_JOB_BYTES)]
    """The job's name; empty if the reader was given none."""
    host: _Name
    pid: _Count
    dataset: Annotated[str, Meta(min_length=1, max_length=255)]
    dataset_id: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    epoch: _Count = 0
    order: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    """The id of the `PublishedOrder`."""
    length: Annotated[int, Meta(ge=0, le=MAX_KEYS)] = 0
    """The keys of the order; 0: the reader knows no order."""
    position: _Count = 0
    """The keys that it has read."""
    keys_per_s: _Rate = 0.0
    """The reader's rate; 0: not known."""
    finished: _Count = 0
    """The buckets of the order, from its first one on, that the reader has finished."""
    repeats: bool = True
    """Whether the reader will read all of it again afterwards; true unless it is known."""
    age_s: _Rate = 0.0
    """Seconds since the reader began to publish, by its own monotonic clock."""

    @property
    def name(self) -> str:
        """The job's name; a reader without one is a job of its own."""
        return self.job or self.reader

    def specification(self, order: PublishedOrder) -> JobSpecification:
        """Return what a cache policy is told of the reader. `order` is the one that it names."""
        finished = () if self.repeats else order.buckets[: self.finished]
        plan = None
        if len(order.keys):
            position = min(self.position, len(order.keys))
            plan = PlannedReads(self.order, order.keys, position, self.keys_per_s, self.repeats)
        return JobSpecification(
            self.name,
            self.dataset,
            tuple(map(Bucket, order.buckets)),
            frozenset(map(Bucket, finished)),
            LEASE_S,
            self.reader,
            plan,
            self.repeats,
            is_reading=True,
        )

    def ended(self) -> JobSpecification:
        """Return what a cache policy is told when the record is gone: the reader reads nothing."""
        return JobSpecification(self.name, self.dataset, (), lease_s=_ENDED_S, reader=self.reader)


_FORMAT: Final = RecordFormat(JobRecord, MAX_RECORD_BYTES, "job", "host", "dataset")
encoded, decoded = _FORMAT.encoded, _FORMAT.decoded
