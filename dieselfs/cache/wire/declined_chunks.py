"""The chunks of one connection that were asked for, might not be fetched, and were not sent.

A client whose budget is in debt asks for them again when it has paid (`cache.peers.paid_requests`).
For a cache policy that is no second request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.wire.cached_ranges import Read
from dieselfs.cache.wire.messages import ReadBlock, ReadRanges

_REMEMBERED: Final = 1024


class DeclinedChunks:
    """The chunks. Thread-safe: each method is one step of a dictionary."""

    def __init__(self) -> None:
        self._chunks: dict[ChunkId, None] = {}

    def note(self, read: Read) -> None:
        """Remember the chunks of a request that might not fetch."""
        if len(self._chunks) >= _REMEMBERED:
            self._chunks = {}
        self._chunks.update(dict.fromkeys(chunk.id for chunk in chunks_of(read)))

    def is_repeated(self, read: Read, chunk: ChunkId) -> bool:
        """Return whether a request that may fetch asks for a remembered chunk, and forget it."""
        return read.may_fetch and self._chunks.pop(chunk, self) is None


def chunks_of(read: Read) -> Sequence[ChunkRef]:
    """Return the chunks of a request, each once."""
    if isinstance(read, ReadRanges):
        return read.chunks
    return ((read.block if isinstance(read, ReadBlock) else read).chunk,)
