"""The mark on an index that is being rebuilt.

A killed process leaves it, so that no process takes the partial content for an index. Without the
mark, half the records of a late generation under an early `applied` would be compared with commits,
and the totals would stay wrong for ever.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from metadata import keys
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate

_STAMP: Final = struct.Struct(">QQ")


def mark(index: KeyValueStore, dataset_id: bytes, generation: int) -> None:
    """Mark the index as being rebuilt to this generation."""
    key = keys.state_of(dataset_id)
    body = _STAMP.pack(generation, 0)
    value = body + xxhash.xxh3_64_digest(key + keys.REBUILDING + body)
    index.put([[MapUpdate(key, [keys.REBUILDING], [value])]])


def is_marked(index: KeyValueStore, dataset_id: bytes) -> bool:
    """Return whether the index is being rebuilt, or a rebuild of it was interrupted. One get."""
    [[value]] = index.get_many([MapFields(keys.state_of(dataset_id), [keys.REBUILDING])])
    return value is not None


def unmark(index: KeyValueStore, dataset_id: bytes) -> None:
    """Remove the mark: the index is whole."""
    index.remove([MapFields(keys.state_of(dataset_id), [keys.REBUILDING])])
