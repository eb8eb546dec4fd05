"""Tags of a request, and the map from a segment to its bucket (Tectonic-Shift §5.1, MapSegment).

A bucket is a collection of segments that jobs will likely read together: the files of a directory,
a whole dataset, or the chunks of a group. The map is a function of the request's tags alone.
Callers map the tags once a file or connection, not once a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NewType

import xxhash

from chunkstore.ssd.segments import Segment

Bucket = NewType("Bucket", str)
"""A bucket's name, unique over all datasets. A string hashes faster than a tuple."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The origin and target of a request, as its reader tells them; empty where it does not."""

    dataset: str
    job: str = ""
    directory: str = ""
    """The directory of the file, relative to the dataset's root, without slashes at its ends."""
    group: int | None = None
    """The chunk group of the job's plan."""


BucketMap = Callable[[Tags], Bucket]
"""A function from a request's tags to the bucket of the segments that it reads."""


def by_dataset(tags: Tags) -> Bucket:
    """Return one bucket for a whole dataset."""
    return Bucket(tags.dataset)


def by_directory(tags: Tags) -> Bucket:
    """Return one bucket for each directory: the paper's partitions."""
    return Bucket(f"{tags.dataset}:{tags.directory.strip('/')}")


def by_group(tags: Tags) -> Bucket:
    """Return one bucket for each chunk group, and the dataset's bucket if no group is told."""
    return by_dataset(tags) if tags.group is None else Bucket(f"{tags.dataset}#{tags.group}")


BUCKET_MAPS: Final[Mapping[str, BucketMap]] = {
    "dataset": by_dataset,
    "directory": by_directory,
    "group": by_group,
}


def bucket_map_named(name: str) -> BucketMap:
    """Return the map of that name; raise ValueError if there is none."""
    try:
        return BUCKET_MAPS[name]
    except KeyError:
        known = ", ".join(BUCKET_MAPS)
        raise ValueError(f"no bucket map '{name}'; there are {known}") from None


def key_of(segment: Segment) -> int:
    """Return 64 well mixed bits that identify a segment for a policy."""
    return segment_key(segment.chunk, segment.number)


def segment_key(chunk: bytes, number: int) -> int:
    """Return `key_of(Segment(chunk, number))`. Takes about 0.1 µs."""
    key: int = xxhash.xxh3_64_intdigest(chunk, number)
    return key
