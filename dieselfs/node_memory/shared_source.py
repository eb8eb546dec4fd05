"""The port through which a master fetches for its task's other nodes too (docs/decisions/0011-peer-cache.md)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from dieselfs.node_memory.piece import CacheBlock


class OwnNode(Protocol):
    """What a process's source tells its node's memory. Thread-safe."""

    def suspect(self, peer: str) -> None:
        """Another node, by its id, was asked in vain: the node's other processes shall know. Once a second each at most; returns when they will."""
        ...

    def take_over(self, chunk: ChunkRef) -> memoryview | None:
        """The payload of a chunk whose owner has failed, so that it is this node's now: fetched once for all. None if it can't be kept, or was this node's before."""
        ...


@runtime_checkable
class SharedSource(ChunkSource, Protocol):
    """A source that asks other nodes' memories first. Thread-safe.

    *As an owner* one asks another node only for what it holds, and then the store: so nobody waits for a node that waits for somebody.
    """

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """(head, payload) of a chunk of ordinary size, from its owner or from the store."""
        ...

    def whole_as_owner(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]: ...

    def read_as_owner(self, file: FileExtent, start: int, length: int) -> memoryview: ...

    def owner_is_elsewhere(self, chunk: ChunkId) -> bool:
        """Whether another node is asked to fetch it. About 1 µs."""
        ...

    def serve(self, node: OwnNode) -> None:
        """It reads for this node from now on; kept as a weak reference."""
        ...

    def is_reading_store(self, chunk: ChunkId, block: CacheBlock | None = None) -> bool:
        """Whether a call is reading a whole chunk, or a piece of a large file, from the store just now."""
        ...
