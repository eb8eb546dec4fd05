"""The port through which a master also fetches for its task's other nodes.

The design is in docs/decisions/0011-peer-cache.md.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from dieselfs.cache.ports.block import CacheBlock


class OwnNode(Protocol):
    """The node memory of a process as the process's source sees it. Thread-safe."""

    def suspect(self, peer: str) -> None:
        """Report that another node, given by its id, failed to answer.

        The node's other processes learn of it; this returns when they have. At most once a second
        for each node.
        """
        ...

    def take_over(self, chunk: ChunkRef) -> memoryview | None:
        """Return the payload of a chunk that is this node's now, since its owner has failed.

        It is fetched once for all processes. None: it cannot be kept, or was this node's before.
        """
        ...


@runtime_checkable
class SharedSource(ChunkSource, Protocol):
    """A source that asks other nodes' memories first. Thread-safe.

    A call *as an owner* asks another node only for chunks that it has cached, and then the store.
    So no node waits for a node that waits for a third one.
    """

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """Return (head, payload) of a chunk of at most 16 MiB, from its owner or from the store."""
        ...

    def whole_as_owner(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """Return the same as `whole`, but ask as an owner."""
        ...

    def read_as_owner(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Return the same as `read`, but ask as an owner."""
        ...

    def owner_is_elsewhere(self, chunk: ChunkId) -> bool:
        """Return whether another node is asked to fetch the chunk. About 1 µs."""
        ...

    def serve(self, node: OwnNode) -> None:
        """Read for this node from now on; keep a weak reference to it."""
        ...

    def is_reading_store(self, chunk: ChunkId, block: CacheBlock | None = None) -> bool:
        """Return whether a call is reading this chunk or block from the store now.

        `block` is a block of a large file; None means the whole chunk.
        """
        ...
