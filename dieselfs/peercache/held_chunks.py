"""The port through which a node's server reaches what the node's memory holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.node_memory.piece import CacheBlock


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a master tells its peers of itself with each pong. Bytes and counts since it began, unless said otherwise."""

    budget_bytes: int = 0
    cached_bytes: int = 0
    """As of now."""
    blocks: int = 0
    """As of now."""
    share_bytes: int = 0
    """Of the chunks that it owns in its view, in the snapshots that it knows; 0 if it knows none. As of now."""
    share_cached_bytes: int = 0
    """Of these, those that it holds. As of now."""
    from_store_bytes: int = 0
    """Brought into its memory from the store."""
    from_peers_bytes: int = 0
    """Brought into its memory from peers."""
    served_bytes: int = 0
    """Sent to peers."""
    served_requests: int = 0


class CachedChunks(Protocol):
    """Thread-safe. Views stay valid while they are referenced."""

    def payload(self, chunk: ChunkId) -> memoryview | None:
        """A whole chunk's payload, if it is held. Never blocks; about 0.2 µs if it was asked for before."""
        ...

    def head(self, chunk: ChunkId) -> memoryview | None:
        """The head of a chunk whose payload is held; None if it is not held, or its head was not kept."""
        ...

    def block(self, block: CacheBlock) -> memoryview | None:
        """As `payload`, for a piece of a large file too."""
        ...

    def is_loading(self, block: CacheBlock) -> bool:
        """Whether it is being read from the store just now: who waits for `load` costs the store nothing, and waits for no other node."""
        ...

    def load(self, block: CacheBlock) -> object:
        """Return when it is held, fetched once however many ask; it stays held for as long as what is returned is referenced, if that is not None. Blocks. Raises `CacheFull`, `MasterGone` or what `ChunkSource` does.

        `CacheFull` too if a reader of this node is getting it from another one: that one may be waiting for us. What comes is fetched as an owner does: from the second if that one holds it, or else from the store.
        """
        ...

    def status(self) -> NodeStatus: ...


@runtime_checkable
class CachedRanges(CachedChunks, Protocol):
    """One that also holds ranges of chunks of which it does not hold the rest."""

    def part(self, chunk: ChunkRef, start: int, length: int) -> memoryview | None:
        """A range of a chunk's payload, if it is held by itself. Never blocks."""
        ...

    def unit(self, chunk: ChunkRef, start: int, length: int) -> CacheBlock:
        """What is to be brought for a range: the whole chunk, or the range as if it were a file. Never blocks."""
        ...
