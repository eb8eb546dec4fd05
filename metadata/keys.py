"""Where the index keeps what: every key of every map, in one place. The law is docs/metadata-layout.md.

A directory's files and sub-directories lie in two maps with one hash tag, so that in Redis Cluster a listing is one slot and a
dataset spreads over all (the paper's `hash(dir)/f` and `hash(dir)/d`). The hash covers the dataset's id: a removed and
recreated dataset shares no key with its former life.
"""

from __future__ import annotations

import xxhash

from chunkstore.chunk_id import print_id

DATASETS = b"{dieselfs}n"
"""dataset name -> its id."""

APPLIED = b"applied"
TOTALS = b"totals"
HELD = b"held"
"""Only in an index made for one point in time: the generation that it stays at."""
REBUILDING = b"rebuilding"
"""Only while an index is rebuilt in place, or after that was interrupted: no commits may be applied to it."""
ROOT_FIELD = b""
"""The root directory has no name in a parent: its own record is this field of its own map of sub-directories."""


def _tag(value: bytes) -> bytes:
    return b"{" + print_id(value).encode() + b"}"


def directory_tag(dataset_id: bytes, directory: bytes) -> bytes:
    return _tag(xxhash.xxh3_128_digest(dataset_id + directory))


def files_of(dataset_id: bytes, directory: bytes) -> bytes:
    """name -> entry record, for the files of `directory`."""
    return directory_tag(dataset_id, directory) + b"f"


def directories_of(dataset_id: bytes, directory: bytes) -> bytes:
    """name -> entry record, for the sub-directories of `directory`."""
    return directory_tag(dataset_id, directory) + b"d"


def chunks_of(dataset_id: bytes) -> bytes:
    """chunk id -> chunk record."""
    return _tag(dataset_id) + b"c"


def state_of(dataset_id: bytes) -> bytes:
    """`APPLIED` and `TOTALS` -> state records."""
    return _tag(dataset_id) + b"s"
