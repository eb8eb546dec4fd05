"""The tags that a reader gives its requests: its job, its epoch, and the bucket of each chunk.

Cache policies know a request by these (docs/decisions/0030). A process reads for one job, so it
makes the tags once, and gives them to its `TieredStore`. A cache node gets them with each request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.policies.segment_buckets import Bucket, Tags, by_dataset, segment_key
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES, Segment

WHOLE_BYTES: Final = 32 << 20
"""The beginning of an object that a policy decides about at once: all of an ordinary chunk."""
BLOCK_BYTES: Final = 4 << 20
"""The unit of a policy's decisions beyond `WHOLE_BYTES`."""
_BLOCK_SEGMENTS: Final = BLOCK_BYTES // DEFAULT_SEGMENT_BYTES


@dataclass(slots=True)
class ReaderTags:
    """The tags of one reader's requests. It pickles if `bucket_of` does."""

    bucket_of: Callable[[bytes], Bucket]
    """A function from a chunk's id to its bucket. Any thread calls it at any request.

    It must not block or raise, and should take less than a microsecond.
    """
    job: str = ""
    """The job's name; empty: the reader tells none."""
    epoch: int = 0
    """The epoch that is read now. The reader sets it; requests carry the current one."""
    may_keep: bool = True
    """False if what is read is not worth caching: no tier keeps it, and no policy counts it.

    It is the eligibility of Tectonic-Shift's clients (§5.3).
    """


class ChunkRead(NamedTuple):
    """A read of a chunk's object by one reader.

    Each read of a tier makes one: as a frozen dataclass it would take 0.4 µs more.
    """

    tags: ReaderTags
    dataset: bytes
    chunk: bytes
    start: int
    length: int
    """Bytes that were asked for."""
    size: int
    """Bytes of the object, or of its block, about which a policy decides at once."""


@dataclass(frozen=True, slots=True)
class OneBucket:
    """A bucket map that puts all chunks into one bucket."""

    bucket: Bucket

    def __call__(self, chunk: bytes) -> Bucket:
        """Return the bucket."""
        return self.bucket


def dataset_tags(dataset: DatasetRef, job: str = "") -> ReaderTags:
    """Return tags with one bucket for the whole dataset."""
    return ReaderTags(OneBucket(by_dataset(Tags(dataset.name))), job)


def decided_at_once(start: int) -> tuple[int, int]:
    """Return the first byte and the most bytes of the part of an object about which a policy
    decides at once, for the part that has byte `start`.

    It is the object's first 32 MiB, or a block of 4 MiB beyond them.
    """
    if start < WHOLE_BYTES:
        return 0, WHOLE_BYTES
    return start // BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES


def decided_segment(chunk: bytes, start: int) -> Segment:
    """Return the segment that stands for that part: its key is `key_of` of it."""
    return Segment(chunk, _decided_number(start))


def decided_key(chunk: bytes, start: int) -> int:
    """Return the key of that segment. 0.2 µs."""
    return segment_key(chunk, _decided_number(start))


def _decided_number(start: int) -> int:
    return 0 if start < WHOLE_BYTES else start // BLOCK_BYTES * _BLOCK_SEGMENTS


def decided_segments(chunk: bytes, size_bytes: int) -> list[Segment]:
    """Return the segments that stand for the parts of an object, in order: one up to 32 MiB."""
    beyond = range(WHOLE_BYTES, size_bytes, BLOCK_BYTES)
    return [Segment(chunk, 0), *(decided_segment(chunk, at) for at in beyond)]
