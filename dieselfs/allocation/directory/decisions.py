"""Decisions: what a dataset may keep in caches, and what a job may fetch of the store.

They are the two calls of SiloD's Table 3 as records. There are two layers: what an administrator
sets by hand goes before what an allocator publishes, until it is taken back. A decision names its
dataset's id too, so a dataset that was made again under its name has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from dieselfs.allocation.jobs import (
    MOST_BYTES_PER_S,
    MOST_DATASET_BYTES,
    MOST_GPUS,
    MOST_PASSES,
    Job,
    ReadingOrder,
)
from dieselfs.cache.jobs.job_name import MAX_JOB_BYTES
from dieselfs.cache.jobs.record_reader import RecordFormat

Origin = Literal["hand", "allocator"]
ORIGINS: Final[tuple[Origin, ...]] = ("hand", "allocator")
"""The origins of decisions; the first one goes before the other."""
MAX_RECORD_BYTES: Final = 1900
AHEAD_US: Final = 600_000_000
"""A decision is from the future if its stamp is this much ahead of the directory's clock."""
NO_ONES_ID: Final = "0" * 32
"""The dataset id of a job whose dataset is in no store yet."""

JobText = Annotated[str, Meta(max_length=MAX_JOB_BYTES)]
DatasetText = Annotated[str, Meta(min_length=1, max_length=255)]
DatasetId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Size = Annotated[int, Meta(ge=0, le=MOST_DATASET_BYTES)]
Rate = Annotated[float, Meta(ge=0, le=MOST_BYTES_PER_S)]
_Stamp = Annotated[int, Meta(ge=0, le=1 << 53)]


class CacheDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of cache that a dataset may use."""

    version: Literal[1] = msgspec.field(name="v", default=1)
    dataset: DatasetText
    dataset_id: DatasetId
    size_bytes: Size
    origin: Origin
    stamp: _Stamp = 0
    """When it was made: µs since 1970 by the directory's clock, greater than any before it.

    0 until the directory has stamped it.
    """

    @property
    def key(self) -> str:
        """The name of the decision in the directory."""
        return f"{self.origin}:{self.dataset_id}"


class IoDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes a second that a job's readers may together fetch of the store."""

    version: Literal[1] = msgspec.field(name="v", default=1)
    job: JobText
    """The job's name; empty for the readers without one, which are the irregular partition."""
    bytes_per_s: Rate
    """0 stands for a floor (`chunkstore.stores.byte_budget`)."""
    origin: Origin
    stamp: _Stamp = 0

    @property
    def key(self) -> str:
        """The name of the decision in the directory."""
        return f"{self.origin}:{self.job}"


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was declared: a row of JOBS.csv."""

    version: Literal[1] = msgspec.field(name="v", default=1)
    job: Annotated[str, Meta(min_length=1, max_length=MAX_JOB_BYTES)]
    dataset: DatasetText
    dataset_id: DatasetId = NO_ONES_ID
    dataset_bytes: Annotated[int, Meta(ge=1, le=MOST_DATASET_BYTES)]
    speed_bytes_per_s: Annotated[float, Meta(gt=0, le=MOST_BYTES_PER_S)]
    """The ideal rate f*."""
    gpus: Annotated[int, Meta(ge=1, le=MOST_GPUS)] = 1
    passes: Annotated[float, Meta(gt=0, le=MOST_PASSES)] = 1.0
    submitted_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    """Seconds since 1970."""
    regular: bool = True
    repeats_items: bool = False
    order: ReadingOrder = "random"
    source: Annotated[str, Meta(max_length=MAX_JOB_BYTES)] = ""
    """The program that declares and removes it, as `kubernetes:NAMESPACE`; empty: a person."""
    stamp: _Stamp = 0

    @property
    def key(self) -> str:
        """The name of the entry in the directory."""
        return self.job

    def as_job(self) -> Job:
        """Return what policies are told of the job. Raises `UsageError`."""
        return Job(
            self.job,
            self.dataset,
            self.dataset_bytes,
            self.speed_bytes_per_s,
            self.gpus,
            self.passes,
            self.submitted_s,
            self.regular,
            self.repeats_items or self.order == "draws",
            self.order,
        )


def is_same(entry: JobEntry, other: JobEntry) -> bool:
    """Return whether two declarations say the same, whenever they were made."""
    return msgspec.structs.replace(entry, stamp=0) == msgspec.structs.replace(other, stamp=0)


StampedRecord = CacheDecision | IoDecision | JobEntry
Stamped = TypeVar("Stamped", bound=StampedRecord)


@dataclass(frozen=True)
class Decisions:
    """All decisions of a directory."""

    caches: Sequence[CacheDecision] = ()
    ios: Sequence[IoDecision] = ()
    version: int = 0
    """A number that changes with each decision on a cache; 0: there was none yet."""
    life: int = 0
    """See `Renewal`, as for the next."""
    awake_s: float = field(default=math.inf, compare=False)

    @cached_property
    def caches_in_force(self) -> Mapping[str, CacheDecision]:
        """The decision of each dataset by its id, those by hand before those of an allocator."""
        return {each.dataset_id: each for each in sorted(self.caches, key=_precedence)}

    @cached_property
    def ios_in_force(self) -> Mapping[str, IoDecision]:
        """The decision of each job by its name, those by hand before those of an allocator."""
        return {each.job: each for each in sorted(self.ios, key=_precedence)}

    def cache_of(self, dataset_id: str) -> CacheDecision | None:
        """Return the decision that holds for a dataset; None if there is none."""
        return self.caches_in_force.get(dataset_id)

    def io_of(self, job: str) -> IoDecision | None:
        """Return the decision that holds for a job; None if there is none."""
        return self.ios_in_force.get(job)


def _precedence(decision: CacheDecision | IoDecision) -> int:
    """Return the place in a list of which the last ones count."""
    return -ORIGINS.index(decision.origin)


def keys_of(name: str) -> list[str]:
    """Return the keys of the decisions on a dataset's id or a job's name, one for each origin."""
    return [f"{origin}:{name}" for origin in ORIGINS]


_FORMATS: Final[Mapping[type, RecordFormat[Any]]] = {
    CacheDecision: RecordFormat(CacheDecision, MAX_RECORD_BYTES, "dataset"),
    IoDecision: RecordFormat(IoDecision, MAX_RECORD_BYTES, "job"),
    JobEntry: RecordFormat(JobEntry, MAX_RECORD_BYTES, "job", "dataset"),
}


def encoded(record: StampedRecord) -> bytes:
    """Return the record as JSON, its stamp last. Raises `ValueError` if it is out of bounds."""
    return _FORMATS[type(record)].encoded(record)


def decoded(kind: type[Stamped], content: bytes, now_us: int) -> Stamped:
    """Return the record. `now_us` is the time by the directory's clock.

    Raises `ValueError` if it is damaged, foreign, of a later version or from the future.
    """
    record: Stamped = _FORMATS[kind].decoded(content)
    if record.stamp > now_us + AHEAD_US:
        raise ValueError("its stamp is in the future")
    return record
