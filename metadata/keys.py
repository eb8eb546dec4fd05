"""The keys of all maps of the index. The specification is docs/metadata-layout.md.

A directory's files and sub-directories lie in two maps with one hash tag. So in Redis Cluster a
listing is in one slot and a dataset spreads over all slots (`hash(dir)/f` and `hash(dir)/d` in
DIESEL §4.1.1). The hash covers the dataset's id: a dataset that is removed and created again shares
no key with the removed one.
"""

from __future__ import annotations

import xxhash

from chunkstore.chunk_id import print_id

DATASETS = b"{dieselfs}n"
"""The map dataset name -> its id."""

APPLIED = b"applied"
TOTALS = b"totals"
HELD = b"held"
"""The field with the generation of an index that was made for one point in time and stays there."""
REBUILDING = b"rebuilding"
"""The mark of an index that is being rebuilt in place, or whose rebuild was interrupted.

No commits may be applied to such an index.
"""
ROOT_FIELD = b""
"""The field of the root directory's own record, in the root's own map of sub-directories.

The root has no name in a parent.
"""


def _tag(value: bytes) -> bytes:
    return b"{" + print_id(value).encode() + b"}"


def directory_tag(dataset_id: bytes, directory: bytes) -> bytes:
    """Return the hash tag of a directory, which both of its maps share."""
    return _tag(xxhash.xxh3_128_digest(dataset_id + directory))


def files_of(dataset_id: bytes, directory: bytes) -> bytes:
    """Return the key of the map name -> entry record, for the files of `directory`."""
    return directory_tag(dataset_id, directory) + b"f"


def directories_of(dataset_id: bytes, directory: bytes) -> bytes:
    """Return the key of the map name -> entry record, for the sub-directories of `directory`."""
    return directory_tag(dataset_id, directory) + b"d"


def chunks_of(dataset_id: bytes) -> bytes:
    """Return the key of the map chunk id -> chunk record."""
    return _tag(dataset_id) + b"c"


def state_of(dataset_id: bytes) -> bytes:
    """Return the key of the map with the state records `APPLIED` and `TOTALS`."""
    return _tag(dataset_id) + b"s"


_ALLOCATION = b"dieselfs:{allocation}:"
"""All keys of the allocation directory are in one slot, so a script may see several of them."""
ALLOCATED_CACHES = _ALLOCATION + b"caches"
ALLOCATED_IO = _ALLOCATION + b"io"
ALLOCATION_JOBS = _ALLOCATION + b"jobs"
ALLOCATION_STATE = _ALLOCATION + b"state"
ALLOCATION_LEADER = _ALLOCATION + b"leader"
READER_LEASES = _ALLOCATION + b"leases"
"""The hash reader -> its lease."""
READER_ENDS = _ALLOCATION + b"ends"
"""The sorted set reader -> end of its lease (ms)."""


def reader_ends_of(job: str) -> bytes:
    """Return the key of the sorted set reader -> end of its lease (ms), of one job's readers."""
    return READER_ENDS + b":" + xxhash.xxh3_64_hexdigest(job.encode()).encode()
