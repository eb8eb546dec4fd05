"""The port through which a node's server reads the chunks cached in the node's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.request_tags import RequestTags


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a master, sent to its peers with each pong.

    Bytes and counts are those since the master began, unless stated otherwise.
    """

    budget_bytes: int = 0
    cached_bytes: int = 0
    """Bytes cached now."""
    blocks: int = 0
    """Cache blocks cached now."""
    share_bytes: int = 0
    """Bytes of the chunks that the master owns now, in its view and the snapshots that it knows.

    0 if it knows no snapshot.
    """
    share_cached_bytes: int = 0
    """Those bytes of the share that are cached now."""
    from_store_bytes: int = 0
    """Bytes loaded into its memory from the store."""
    from_peers_bytes: int = 0
    """Bytes loaded into its memory from peers."""
    served_bytes: int = 0
    """Bytes sent to peers."""
    served_requests: int = 0


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """The cache policies of a node's SSD tier. Bytes are those since the node began.

    They are not a `PolicyCounts`: hits, misses and written bytes are counted without a policy too,
    and what the node absorbed is what it sent to clients less what it read.
    """

    policy: str = ""
    """The name of the acting policy; empty: none is known."""
    shadow: str = ""
    """The name of the shadow policy; empty: none."""
    hit_bytes: int = 0
    """Bytes that the SSD served."""
    miss_bytes: int = 0
    """Bytes that were asked of the SSD, and that it did not have."""
    admitted_bytes: int = 0
    refused_bytes: int = 0
    evicted_bytes: int = 0
    reinserted_bytes: int = 0
    written_bytes: int = 0
    absorbed_bytes: int = 0
    """Bytes that the node kept from the store: bytes sent to clients less bytes read; 0 at least.
    """
    shadow_hit_bytes: int = 0
    """Bytes that the SSD would have served under the shadow policy, of all that clients asked for.
    """
    shadow_miss_bytes: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The part of the bytes asked of the SSD that it served; None before the first."""
        return _part(self.hit_bytes, self.miss_bytes)

    @property
    def shadow_hit_rate(self) -> float | None:
        """The part of the bytes asked for that the SSD would have served."""
        return _part(self.shadow_hit_bytes, self.shadow_miss_bytes)


def _part(hit: int, missed: int) -> float | None:
    return hit / (hit + missed) if hit or missed else None


class CachedChunks(Protocol):
    """The chunks in a cache. Thread-safe. Views stay valid while they are referenced."""

    def payload(self, chunk: ChunkId) -> memoryview | None:
        """Return a whole chunk's payload if it is cached. Never blocks.

        Takes about 0.2 µs if the chunk was asked for before.
        """
        ...

    def head(self, chunk: ChunkId) -> memoryview | None:
        """Return the head of a chunk whose payload is cached.

        None if the payload is not cached, or if the head was not kept.
        """
        ...

    def block(self, block: CacheBlock) -> memoryview | None:
        """Return a cache block if it is cached, as `payload` does, also a block of a large file."""
        ...

    def is_loading(self, block: CacheBlock) -> bool:
        """Return whether the block is being read from the store just now.

        A caller that waits for `load` then causes no read of the store, and waits for no other
        node.
        """
        ...

    def load(self, block: CacheBlock) -> object:
        """Load a block, fetched once for all concurrent callers, and return when it is cached.

        The block stays cached while the returned object is referenced, if that is not None. Blocks.
        Raises `CacheFull`, `MasterGone` or what `ChunkSource` raises.

        Also raises `CacheFull` if a reader of this node is fetching the block from another node,
        since that node may be waiting for this one. The block is fetched in the way of an owner:
        from the second-ranked member if that has it cached, else from the store.
        """
        ...

    def status(self) -> NodeStatus:
        """Return this node's status."""
        ...


@runtime_checkable
class CachedRanges(CachedChunks, Protocol):
    """A cache that also keeps ranges of chunks of which it has not cached the rest."""

    def part(self, chunk: ChunkRef, start: int, length: int) -> memoryview | None:
        """Return a range of a chunk's payload if it is cached by itself. Never blocks."""
        ...

    def unit(self, chunk: ChunkRef, start: int, length: int) -> CacheBlock:
        """Return the block to load for a range. Never blocks.

        The block is the whole chunk, or the range as if it were a file.
        """
        ...


@runtime_checkable
class LoadsCached(CachedChunks, Protocol):
    """A cache of which a part is on an SSD, and is read when it is asked for."""

    def load_cached(self, block: CacheBlock) -> object:
        """Load a block as `load` does, but fetch nothing of the store for it.

        Waits for a fetch that is under way. Raises `CacheFull` if the block is not cached.
        """
        ...

    def dataset_cached_bytes(self) -> int:
        """Return the bytes of the dataset that are cached on the SSD, as of the last second."""
        ...


@runtime_checkable
class CountsRequests(CachedChunks, Protocol):
    """A cache that decides by its requests what it keeps."""

    def requested(self, block: CacheBlock, length: int, tags: RequestTags) -> None:
        """Take note of a request for `length` bytes of a block, before it is answered.

        The block of any range in a chunk of at most 16 MiB is the chunk. Never blocks or raises.
        """
        ...


@runtime_checkable
class ReportsPolicy(Protocol):
    """A cache whose policy clients may ask about."""

    def policy_status(self) -> PolicyStatus:
        """Return the status of the cache's policies. Never blocks."""
        ...
