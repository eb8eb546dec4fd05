"""The reader lease: what one process that reads for a job says of itself, once a second.

A reader is a mount, a client, the master of a task's clients, or a cache node. The job's other
readers divide its remote IO by what they find there, and the allocator learns how fast the job is
and what of its cache is effective. It is JSON, for people who look into a Redis.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from dieselfs.allocation.directory.decisions import DatasetId, DatasetText, JobText, Rate, Size
from dieselfs.allocation.jobs import MOST_BYTES_PER_S
from dieselfs.cache.jobs.record_reader import RecordFormat

LEASE_S: Final = 8.0
"""The seconds after which a reader that is not heard of is forgotten; it is renewed every second.
"""
MAX_LEASE_BYTES: Final = 1900
NO_LIMIT: Final = -1.0
"""The rate allowed to a reader that has no limit."""

_Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class ReaderLease(msgspec.Struct, frozen=True, kw_only=True):
    """The record that one reader has published."""

    version: Literal[1] = msgspec.field(name="v", default=1)
    reader: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    """The reader's id: random, another one after a restart."""
    job: JobText
    """The job's name; empty if the reader was given none."""
    host: Annotated[str, Meta(max_length=255)]
    pid: _Count
    dataset: DatasetText
    dataset_id: DatasetId
    dataset_bytes: Size
    """The quota that holds all of it: with a tier in whole regions, else its size."""
    epoch: _Count = 0
    epoch_read_bytes: _Count = 0
    """The bytes that it has read in that epoch; without a known order, since it began."""
    allowed_bytes_per_s: Annotated[float, Meta(ge=NO_LIMIT, le=MOST_BYTES_PER_S)] = NO_LIMIT
    """Its share of the job's remote IO."""
    used_bytes_per_s: Rate = 0.0
    """The rate at which it fetched of the store since its last beat."""
    bound: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The share of the time since its last beat in which somebody waited for the budget."""
    starved: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The share of the last seconds in which reads waited, though not for the budget."""
    held_bytes: Size = 0
    """Bytes of the dataset in the caches that it sees, in the same unit."""
    effective_bytes: Size = 0
    """Those of them that it hits in its present epoch."""
    region_bytes: Size = 0
    """The size of the regions in which its SSD keeps quotas; 0: it has none."""
    speed_bytes_per_s: Rate = 0.0
    """The rate at which its job read through it, from caches too; 0: not known."""
    speed_is_bound: bool = False
    """True if the speed is only a lower bound of the ideal rate f*, since reads waited."""
    cache_bytes: Size = 0
    """The size of a cache node's SSD. 0: it is no cache node, but a reader."""
    age_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    """Seconds since it began to publish, by its own monotonic clock."""


def sized(lease: ReaderLease, dataset_bytes: int) -> ReaderLease:
    """Return the lease with the size of its dataset, which the reader may not know."""
    return msgspec.structs.replace(lease, dataset_bytes=dataset_bytes)


_FORMAT: Final = RecordFormat(ReaderLease, MAX_LEASE_BYTES, "job", "host", "dataset")
encoded, decoded = _FORMAT.encoded, _FORMAT.decoded
