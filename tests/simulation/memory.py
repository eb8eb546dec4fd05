"""A node's memory, as `dieselfs/cache/node/master.py` behaves: single flight, a budget, owned
chunks displace copies and never the other way round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.errors import CacheFull, MasterGone
from tests.simulation.runtime import SimulatedRuntime


@dataclass(slots=True, eq=False)
class _Flight:
    """One fetch under way."""

    as_owner: bool
    ended: bool = False
    error: Exception | None = None


class SimulatedMemory:
    """Implements `CachedChunks`. Where `Master` has files and mappings it has a dictionary."""

    def __init__(
        self,
        runtime: SimulatedRuntime,
        source: PeerSource,
        budget_bytes: int,
        owns: Callable[[ChunkId], bool],
    ) -> None:
        self._source = source
        self._owns = owns
        self._budget_bytes = budget_bytes
        self._lock = runtime.lock()
        self._changed = runtime.condition(self._lock)
        self._cached: dict[ChunkId, tuple[memoryview, memoryview]] = {}
        """Head and payload, by the order of arrival."""
        self._reserved = 0
        self._flights: dict[ChunkId, _Flight] = {}
        self._closed = False

    # What the node's own readers ask.

    def fetch(self, chunk: ChunkRef, *, as_owner: bool = False) -> None:
        """Return when it is held. One fetch at a time a chunk; who finds one under way waits for
        it.

        But who was asked by a peer waits only for an owner's fetch, or the store's: two nodes whose
        views differ would wait for each other.
        """
        size = chunk.head_bytes + chunk.payload_bytes
        with self._lock:
            while True:
                if self._closed:
                    raise MasterGone("closed")
                if chunk.id in self._cached:
                    return
                flight = self._flights.get(chunk.id)
                if flight is None:
                    break
                while not flight.ended and not self._closed:
                    if as_owner and not (flight.as_owner or self._from_store(chunk.id)):
                        raise CacheFull("a reader of this node fetches it from a peer")
                    self._changed.wait()
                if flight.error is not None:
                    raise flight.error
            self._make_room(chunk.id, size, as_owner)
            self._reserved += size
            flight = _Flight(as_owner or self._owns(chunk.id))
            self._flights[chunk.id] = flight
        try:
            route = self._source.whole_as_owner if flight.as_owner else self._source.whole
            found = route(chunk)
        except Exception as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                self._reserved -= size
                del self._flights[chunk.id]
                if flight.error is None:
                    self._cached[chunk.id] = found
                flight.ended = True
                self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def cached(self) -> list[ChunkId]:
        return list(self._cached)

    def evict(self, chunk: ChunkId) -> None:
        self._cached.pop(chunk, None)

    # CachedChunks

    def payload(self, chunk: ChunkId) -> memoryview | None:
        cached = self._cached.get(chunk)
        return None if cached is None else cached[1]

    def head(self, chunk: ChunkId) -> memoryview | None:
        cached = self._cached.get(chunk)
        return None if cached is None else cached[0]

    def block(self, block: CacheBlock) -> memoryview | None:
        return self.payload(block.chunk.id) if block.file is None else None

    def is_loading(self, block: CacheBlock) -> bool:
        return block.chunk.id in self._flights and self._from_store(block.chunk.id)

    def load(self, block: CacheBlock) -> None:
        self.fetch(block.chunk, as_owner=True)

    def status(self) -> NodeStatus:
        return NodeStatus(
            budget_bytes=self._budget_bytes, cached_bytes=self._taken(), blocks=len(self._cached)
        )

    def _from_store(self, chunk: ChunkId) -> bool:
        return self._source.is_reading_store(chunk)

    def _taken(self) -> int:
        return self._reserved + sum(
            len(head) + len(payload) for head, payload in self._cached.values()
        )

    def _make_room(self, chunk: ChunkId, size: int, as_owner: bool) -> None:
        """Called with the lock held. Copies leave for owned chunks; nothing leaves for a copy."""
        taken = self._taken()
        if as_owner or self._owns(chunk):
            for other in list(self._cached):
                if taken + size <= self._budget_bytes:
                    break
                if not self._owns(other):
                    head, payload = self._cached.pop(other)
                    taken -= len(head) + len(payload)
        if taken + size > self._budget_bytes:
            raise CacheFull("full")
