"""Who reads whole chunks where they lie in node memory."""

from __future__ import annotations

from typing import Protocol

from chunkstore.chunk_id import ChunkId


class ChunkObserver(Protocol):
    """Called by one thread of node memory."""

    def hold(self, chunk: ChunkId, payload: memoryview) -> None:
        """The chunk is there."""
        ...

    def release(self, chunk: ChunkId) -> None:
        """It is evicted; who still reads keeps the memoryview."""
        ...
