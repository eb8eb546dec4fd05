"""The chunks of one dataset as a cache node serves them: from memory, its SSD or the store.

Concurrent requests share one fetch. Chunks from the store are verified before they are kept. A part
of a chunk on the SSD costs a read of that part; several parts in a short time cost a read of the
chunk.

A chunk that is not on the SSD is fetched whole from the store: other clients will need the rest,
and a node that is asked for a chunk owns it. While the SSD is out of service nothing would be kept,
and clients that ask for parts are told to read them from the store themselves.

If the store is faster than the SSD writes, no epoch waits for the SSD: whole chunks are passed on,
and kept if there is a place in the SSD's queue. A request for a part is answered if its chunk has
such a place, else it is refused. So a warm-up, which asks for one part of each chunk, learns what
is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader, verify_blocks
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt
from chunkstore.object_keys import chunk_key
from chunkstore.single_flight import SingleFlight
from chunkstore.ssd.insert_queue import CacheInsert
from chunkstore.ssd.range_allowance import RangeAllowance
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tiered_store import Loaded, ObjectBlock
from chunkstore.stores.read import Read
from dieselfs.cache.cluster.chunk_memory import ChunkMemory, Part, WholeChunk
from dieselfs.cache.cluster.chunk_readers import ChunkReaders
from dieselfs.cache.cluster.store_reads import StoreReads
from dieselfs.cache.ports.block import CacheBlock, is_whole
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.request_tags import RequestTags
from dieselfs.errors import CacheFull

BURST_S: Final = 1.0
"""The time within which parts count as a burst."""
_BURST: Final = 4
"""The divisor of a chunk that gives a burst.

When a quarter of a chunk was requested by parts within `BURST_S`, the chunk is read.
"""
_REMEMBERED: Final = 4096
QUEUED_S: Final = 2.0
"""The time that data from the store waits for a place in the SSD's queue.

It is the time of 24 chunks of 4 MiB at 50 MB/s, the slowest SSD that the tier accepts when it
reads.
"""
_NOT_CACHED: Final = "the bytes are not cached, and the request may not fetch them"
_BLOCK_BYTES: Final = 4 << 20
"""The unit in which chunks above 16 MiB are fetched, counted from the start of their objects."""


@dataclass(slots=True, eq=False)
class NodeParts:
    """The parts of a node that its datasets share."""

    store: StoreReads
    tier: SsdTier
    memory: ChunkMemory
    allowance: RangeAllowance
    status: Callable[[], NodeStatus]
    chunks: SingleFlight[WholeChunk] = field(default_factory=SingleFlight)
    blocks: SingleFlight[memoryview] = field(default_factory=SingleFlight)
    """The fetches of blocks of chunks above 16 MiB."""
    missed_bytes: int = 0
    """Bytes that were asked of the SSD, and that it did not have."""
    missed: Callable[[DatasetChunks, bytes], None] = lambda chunks, chunk: None
    """A callback for each read that the SSD does not answer, with the id of the chunk."""
    from_ssd_bytes: int = 0
    """Bytes read from the SSD. All threads count them without a lock: see `NodeMemory`."""
    limited: Container[bytes] = frozenset()
    """The ids of the datasets that have an allocated quota."""


class DatasetChunks:
    """The `CachedRanges` of one dataset; implements `CountsRequests` and `LoadsCached` too.

    Thread-safe.
    """

    def __init__(self, dataset: DatasetRef, node: NodeParts) -> None:
        self.dataset = dataset
        self._node = node
        self._reader = ChunkReader(node.store, dataset)
        self._asked: dict[bytes, tuple[float, int]] = {}
        """For each chunk that was requested by parts, the start of the burst and its bytes."""
        self._clients = ChunkReaders(dataset, node.tier)

    # The methods below look only into memory.

    def requested(self, block: CacheBlock, length: int, tags: RequestTags) -> None:
        """See `CountsRequests`."""
        start = 0 if block.file is None else _part_of(block)[1]
        self._clients.requested(block.chunk, start, length, tags)

    def payload(self, chunk: ChunkId) -> memoryview | None:
        """See `CachedChunks`."""
        found = self._node.memory.whole(chunk.value)
        return None if found is None else found.payload

    def head(self, chunk: ChunkId) -> memoryview | None:
        """See `CachedChunks`."""
        found = self._node.memory.whole(chunk.value)
        return None if found is None else found.head

    def part(self, chunk: ChunkRef, start: int, length: int) -> memoryview | None:
        """See `CachedRanges`."""
        return self._node.memory.part((chunk.id.value, chunk.head_bytes + start, length))

    def block(self, block: CacheBlock) -> memoryview | None:
        """See `CachedChunks`."""
        if is_whole(block.chunk):
            whole = self.payload(block.chunk.id)
            if whole is not None or block.file is None:
                return whole
        return self._node.memory.part(_part_of(block))

    def unit(self, chunk: ChunkRef, start: int, length: int) -> CacheBlock:
        """See `CachedRanges`.

        It is the chunk if parts of it come in a burst, or if it is being read.
        """
        if self._is_burst(chunk, length) or self._node.chunks.is_under_way(chunk.id.value):
            return CacheBlock(chunk)
        return CacheBlock(chunk, FileExtent(chunk, start, length, 0))

    def is_loading(self, block: CacheBlock) -> bool:
        """See `CachedChunks`."""
        return self._node.chunks.is_under_way(block.chunk.id.value)

    def status(self) -> NodeStatus:
        """See `CachedChunks`."""
        return self._node.status()

    # The methods below read the SSD and the store.

    def load(self, block: CacheBlock) -> WholeChunk | memoryview:
        """See `CachedChunks`. Raises `CacheFull` if the client does better to ask the store."""
        chunk = block.chunk
        if is_whole(chunk) and block.file is None:
            return self._node.chunks.run(chunk.id.value, lambda: self._whole(chunk))
        part = _part_of(block)
        data = self._node.memory.part(part)
        if data is None:
            data = self._small_part(chunk, part) if is_whole(chunk) else self._large_part(block)
            self._put_part(part, data)
        return data

    def load_cached(self, block: CacheBlock) -> WholeChunk | memoryview:
        """See `LoadsCached`. A large file's hashes are read from the store if they are not known.

        A miss is none of the SSD's: the client asks again when it has paid for a fetch.
        """
        chunk = block.chunk
        if is_whole(chunk) and block.file is None:
            return self._cached_whole(chunk)
        part = _part_of(block)
        data = self._node.memory.part(part)
        if data is None:
            small = is_whole(chunk)
            data = self._cached_part(chunk, part) if small else self._large_part(block, cached=True)
            self._put_part(part, data)
        return data

    def dataset_cached_bytes(self) -> int:
        """See `LoadsCached`."""
        return self._node.tier.held_bytes(self.dataset.id)

    def _cached_whole(self, chunk: ChunkRef) -> WholeChunk:
        """Return a chunk from memory, the SSD, or a fetch that is under way."""
        node, id = self._node, chunk.id.value
        if node.chunks.is_under_way(id):
            return node.chunks.run(id, lambda: self._whole(chunk, may_fetch=False))
        return self._whole(chunk, may_fetch=False)

    def _cached_part(self, chunk: ChunkRef, part: Part) -> memoryview:
        _, begin, length = part
        data = self._read_ssd(chunk, begin, length, again=True)
        if data is not None:
            return data
        if not self._node.chunks.is_under_way(chunk.id.value):
            raise CacheFull(_NOT_CACHED)
        payload, start = self._cached_whole(chunk).payload, begin - chunk.head_bytes
        return memoryview(bytes(payload[start : start + length]))

    def warm(self, chunk: ChunkRef, block: ObjectBlock) -> Loaded:
        """Load a block onto the SSD, for no client. "elsewhere": a client's request loads it now.

        Raises what the store raises.
        """
        node, segments = self._node, self._node.tier.segments
        if segments is None:
            return "out of service"
        first, size, end = block.start // segments.segment_bytes, block.length, block.is_end
        cached = node.tier.call(lambda: segments.holds(chunk.id.value, first, size, end), 0)
        if cached is not False:
            return "out of service" if cached is None else "cached"
        outcomes: list[Loaded] = []
        wanted = 1
        try:
            if is_whole(chunk):
                node.chunks.run(chunk.id.value, lambda: self._warm_whole(chunk, outcomes))
            else:
                keys = list(_blocks(chunk, (chunk.id.value, block.start, block.length)))
                wanted = len(keys)
                for key in keys:
                    node.blocks.run(key, partial(self._warm_block, chunk, key, outcomes))
        except CacheFull:  # too many clients wait for the store
            return "elsewhere"
        if len(outcomes) < wanted:
            return "elsewhere"
        return next((outcome for outcome in outcomes if outcome != "loaded"), "loaded")

    def _warm_whole(self, chunk: ChunkRef, outcomes: list[Loaded]) -> WholeChunk:
        """Load a chunk, from memory if it is there; clients that ask meanwhile get it too."""
        found = self._node.memory.whole(chunk.id.value)
        if found is None:
            with self._node.store.read_in_turn(Read(self._key(chunk)), ahead=True) as read:
                data = memoryview(read)
                self._reader.verified(data, chunk)
            found = WholeChunk.of(data)
            self._node.memory.put_whole(
                chunk.id.value, found, self.dataset.id, stays=self._may_stay()
            )
        outcomes.append(self._kept(chunk, 0, found.data, is_end=True))
        return found

    def _warm_block(self, chunk: ChunkRef, key: Part, outcomes: list[Loaded]) -> memoryview:
        """Load a block of a chunk above 16 MiB; it is verified when it is read."""
        data, (_, begin, length) = self._node.memory.part(key), key
        if data is None:
            read_ahead = self._node.store.read_in_turn(
                Read(self._key(chunk), begin, length), ahead=True
            )
            with read_ahead as read:
                data = memoryview(read)
            if len(data) != length:
                raise Corrupt(f"chunk {chunk.id} is shorter than its dataset's metadata says")
            self._put_part(key, data)
        outcomes.append(self._kept(chunk, begin, data, is_end=begin + length == _size(chunk)))
        return data

    def _kept(self, chunk: ChunkRef, begin: int, data: memoryview, *, is_end: bool) -> Loaded:
        """Write the data to the SSD now."""
        segments = self._node.tier.segments
        if segments is None:
            return "out of service"
        first = begin // segments.segment_bytes
        insert = CacheInsert(self.dataset.id, chunk.id.value, first, data, is_end)
        kept = self._node.tier.keep(insert)
        if kept is None:
            return "out of service"
        if kept:
            self._filled(chunk, len(data))
        return "loaded" if kept else "no room"

    def _filled(self, chunk: ChunkRef, length: int) -> None:
        """Count bytes that were read from the store for the SSD alone."""
        tags = self._clients.of(chunk)
        self._node.tier.warmed(length, dataset=self.dataset.id, chunk=chunk.id.value, tags=tags)

    def _whole(
        self, chunk: ChunkRef, part_bytes: int | None = None, *, may_fetch: bool = True
    ) -> WholeChunk:
        """Return a chunk; for a part of it that the SSD has missed and admits, `part_bytes`."""
        found = self._node.memory.whole(chunk.id.value)
        if found is not None:  # another thread has read it
            return found
        again = part_bytes is not None or not may_fetch
        data = self._read_ssd(chunk, 0, None, again=again)
        is_copy = data is not None
        if data is None:
            if not may_fetch:
                raise CacheFull(_NOT_CACHED)
            data = self._fetch(chunk, part_bytes)
        found = WholeChunk.of(data)
        if (len(found.head), len(found.payload)) != (chunk.head_bytes, chunk.payload_bytes):
            raise Corrupt(f"the lengths of chunk {chunk.id} differ from those of the request")
        stays = is_copy or self._may_stay()
        self._node.memory.put_whole(chunk.id.value, found, self.dataset.id, stays=stays)
        return found

    def _put_part(self, part: Part, data: memoryview) -> None:
        self._node.memory.put_part(part, data, self.dataset.id, stays=self._may_stay())

    def _may_stay(self) -> bool:
        """Return whether memory may keep what was just fetched.

        With a quota a dataset has no bytes in memory but copies of those on the SSD, and those
        that wait to be written there.
        """
        return self.dataset.id not in self._node.limited

    def _small_part(self, chunk: ChunkRef, part: Part) -> memoryview:
        node, (id, begin, length) = self._node, part
        data = self._read_ssd(chunk, begin, length)
        if data is not None:
            return data
        if not node.chunks.is_under_way(id):
            if not self._admits(chunk):
                self._asked.pop(id, None)  # a repeated request is no second one
                raise CacheFull("the SSD tier does not admit the chunk")
            if not node.allowance.grants(length, _size(chunk)):
                raise CacheFull("wasted reads of the store have reached their limit")
        whole = node.chunks.run(id, lambda: self._whole(chunk, length))
        start = begin - chunk.head_bytes
        return memoryview(bytes(whole.payload[start : start + length]))

    def _fetch(self, chunk: ChunkRef, part_bytes: int | None) -> memoryview:
        """Return the whole chunk from the store, for a client or for a part that is admitted."""
        tier, id = self._node.tier, chunk.id.value
        with self._node.store.read_in_turn(Read(self._key(chunk))) as read:
            data = memoryview(read)
            self._reader.verified(data, chunk)
            if part_bytes is not None:
                self._keep(chunk, 0, data, is_end=True)
                self._filled(chunk, len(data) - part_bytes)
            elif self._admits(chunk):
                tier.insert(CacheInsert(self.dataset.id, id, 0, data, True))
        return data

    def _large_part(self, block: CacheBlock, *, cached: bool = False) -> memoryview:
        """Return a part of a file in a chunk above 16 MiB.

        It is verified by the hashes of its hash blocks, which are in the chunk's head. `cached`:
        nothing else is fetched of the store.
        """
        part, file = _part_of(block), block.file
        assert file is not None
        hashes = self._reader.block_hashes(file)

        def verified() -> memoryview:
            data = self._read_ssd(block.chunk, part[1], part[2], again=cached)
            if data is None:
                data = self._from_blocks(block.chunk, part, cached=cached)
            try:
                verify_blocks(data, file, block.start, hashes)
            except Corrupt:
                self._forget_large(block.chunk, part)
                raise
            return data

        try:
            return verified()
        except Corrupt:  # the store may have sent it so, and may be sound again
            return verified()

    def _forget_large(self, chunk: ChunkRef, part: Part) -> None:
        """Remove a corrupt part from memory and SSD."""
        self._node.tier.forget(chunk.id.value)
        for key in _blocks(chunk, part):
            self._node.memory.forget_part(key)

    def _from_blocks(self, chunk: ChunkRef, part: Part, *, cached: bool) -> memoryview:
        """Return a part of a large chunk's object.

        Each block is read from the store once, however many parts it belongs to.
        """
        _, start, length = part
        found = bytearray()
        for key in _blocks(chunk, part):
            if cached and not self._node.blocks.is_under_way(key):
                block = self._block(chunk, key, may_fetch=False)
            else:
                read = partial(self._block, chunk, key, may_fetch=not cached)
                block = self._node.blocks.run(key, read)
            found += block[max(0, start - key[1]) : start + length - key[1]]
        if len(found) != length:
            raise Corrupt(f"chunk {chunk.id} ends inside a file")
        return memoryview(found).toreadonly()

    def _block(self, chunk: ChunkRef, key: Part, *, may_fetch: bool) -> memoryview:
        found = self._node.memory.part(key)
        if found is not None:
            return found
        _, begin, length = key
        data = self._read_ssd(chunk, begin, length, again=True)
        is_copy = data is not None
        if data is None:
            if not may_fetch:
                raise CacheFull(_NOT_CACHED)
            with self._node.store.read_in_turn(Read(self._key(chunk), begin, length)) as read:
                data = memoryview(read)
                if len(data) != length:
                    raise Corrupt(f"chunk {chunk.id} is shorter than its dataset's metadata says")
                if self._admits(chunk, begin, waits=True):
                    self._keep(chunk, begin, data, is_end=begin + length == _size(chunk))
        self._node.memory.put_part(key, data, self.dataset.id, stays=is_copy or self._may_stay())
        return data

    def _admits(self, chunk: ChunkRef, start: int = 0, *, waits: bool = False) -> bool:
        """Return whether the SSD takes what the client that asked last has missed."""
        return self._node.tier.admits(
            self.dataset.id,
            chunk.id.value,
            waits=waits,
            start=start,
            tags=self._clients.of(chunk),
            size=_size(chunk),
        )

    def _read_ssd(
        self, chunk: ChunkRef, start: int, length: int | None, *, again: bool = False
    ) -> memoryview | None:
        """Read the SSD; `again`: a larger part of what it has just missed."""
        tags = self._clients.of(chunk)
        data = self._node.tier.read(
            chunk.id.value,
            start,
            length,
            dataset=self.dataset.id,
            tags=tags,
            size=_size(chunk),
            told=True,
            again=again,
        )
        if data is None:
            if not again:
                self._node.missed_bytes += _size(chunk) if length is None else length
            if tags.may_keep:
                self._node.missed(self, chunk.id.value)
            return None
        self._node.from_ssd_bytes += len(data)
        return data

    def _keep(self, chunk: ChunkRef, begin: int, data: memoryview, *, is_end: bool) -> None:
        """Queue the data for the SSD; do nothing while that is out of service.

        Raises `CacheFull` if the SSD writes too slowly for it.
        """
        segments = self._node.tier.segments
        if segments is None:
            return
        first = begin // segments.segment_bytes
        insert = CacheInsert(self.dataset.id, chunk.id.value, first, data, is_end)
        if not self._node.tier.insert(insert, QUEUED_S):
            raise CacheFull("the SSD writes more slowly than the store is read")

    def _key(self, chunk: ChunkRef) -> str:
        return chunk_key(self.dataset.name, chunk.id)

    def _is_burst(self, chunk: ChunkRef, length: int) -> bool:
        """Return whether several parts make up so much of a chunk that it is to be read."""
        now, asked = time.monotonic(), self._asked
        since, total = asked.get(chunk.id.value, (now, 0))
        if now - since > BURST_S:
            since, total = now, 0
        if len(asked) >= _REMEMBERED:
            self._asked = asked = {}
        is_burst = total > 0 and _BURST * (total + length) >= chunk.payload_bytes
        asked[chunk.id.value] = since, 0 if is_burst else total + length
        return is_burst


def _part_of(block: CacheBlock) -> Part:
    """Return the place of a cache block in its chunk's object."""
    assert block.file is not None
    begin = block.chunk.head_bytes + block.file.offset + block.start
    return block.chunk.id.value, begin, block.length


def _blocks(chunk: ChunkRef, part: Part) -> Iterator[Part]:
    """Yield the blocks of a large chunk's object that a part touches."""
    id, start, length = part
    for begin in range(start // _BLOCK_BYTES * _BLOCK_BYTES, start + length, _BLOCK_BYTES):
        yield id, begin, min(_BLOCK_BYTES, _size(chunk) - begin)


def _size(chunk: ChunkRef) -> int:
    """Return the bytes of the chunk's object."""
    return chunk.head_bytes + chunk.payload_bytes
