"""The mark on an index that is being rebuilt: whoever is killed leaves it, and nobody takes what is there for an index.

Without it, half the records of a late generation under an early `applied` would be taken for what commits are to be compared
with, and the totals would be wrong for ever.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from metadata import keys
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate

_STAMP: Final = struct.Struct(">QQ")


def mark(index: KeyValueStore, dataset_id: bytes, generation: int) -> None:
    """From now on the index is being rebuilt, to this generation."""
    key = keys.state_of(dataset_id)
    body = _STAMP.pack(generation, 0)
    value = body + xxhash.xxh3_64_digest(key + keys.REBUILDING + body)
    index.put([[MapUpdate(key, [keys.REBUILDING], [value])]])


def is_marked(index: KeyValueStore, dataset_id: bytes) -> bool:
    """Whether the index is being rebuilt, or a rebuild of it was cut off. One get."""
    [[value]] = index.get_many([MapFields(keys.state_of(dataset_id), [keys.REBUILDING])])
    return value is not None


def unmark(index: KeyValueStore, dataset_id: bytes) -> None:
    """The index is whole."""
    index.remove([MapFields(keys.state_of(dataset_id), [keys.REBUILDING])])
