"""A listing of all chunk objects of a dataset, committed or not."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_prefix
from chunkstore.stores.object_store import ObjectStore


def chunk_sizes(store: ObjectStore, name: str) -> Mapping[ChunkId, int]:
    """Return the chunk objects below a dataset's name and their sizes in bytes.

    An object whose name is no printed id is no chunk. Costs one listing.
    """
    found = {}
    for info in store.list(chunk_prefix(name)):
        with suppress(ValueError):  # a folder on a disk may contain foreign files
            found[ChunkId.parse(info.key.rpartition("/")[2])] = info.size_bytes
    return found
