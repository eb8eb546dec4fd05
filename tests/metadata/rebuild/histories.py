"""What the tests of rebuilding share: a history to rebuild, its heads, and an index as
dictionaries."""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.chunk_format import ChunkHead
from chunkstore.chunk_source import ChunkRef
from metadata.kv.memory import MemoryStore
from metadata.rebuild import rebuild
from metadata.rebuild.map_sink import MapSink
from metadata.rebuild.memory_limits import DEFAULT_LIMITS, MemoryLimits
from metadata.records import DatasetState
from tests.metadata.commit_histories import DATASET, History


def head_reader(history: History) -> Callable[[ChunkRef], ChunkHead]:
    """What is retired is not read, whether it is there or not."""
    numbers = history.retired

    def read(ref: ChunkRef) -> ChunkHead:
        assert int.from_bytes(ref.id.value, "big") not in numbers
        return history.head(ref.id)

    return read


def rebuild_into(
    sink: MapSink, history: History, limits: MemoryLimits = DEFAULT_LIMITS
) -> DatasetState:
    return rebuild(DATASET, history.commits, head_reader(history), sink, limits=limits)


def followed(history: History) -> MemoryStore:
    """The index that heard of every commit."""
    index = MemoryStore()
    history.apply_to(index)
    return index


Maps = dict[bytes, dict[bytes, bytes]]


def maps_of(index: MemoryStore) -> Maps:
    return {key: dict(fields) for key, fields in index._maps.items()}


def store_of(maps: Maps) -> MemoryStore:
    index = MemoryStore()
    index._maps = {key: dict(fields) for key, fields in maps.items()}
    return index
