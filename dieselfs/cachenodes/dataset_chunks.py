"""The chunks of one dataset as a cache node serves them: from what it has just read, from its SSD, or from the store, each once.

What comes from the store is verified before it is kept. A part that is read of a chunk on the SSD costs that part; several soon after another, the
chunk. What is not on the SSD comes whole from the store: others will want the rest, and a node that is asked for a chunk owns it. While
the SSD is out of service nothing would be kept, and who wants parts is told to read them from the store itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from chunkstore.chunk_format import DatasetRef, decode_preamble
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader, verify_blocks
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt
from chunkstore.object_keys import chunk_key
from chunkstore.ssd.tier import Offer, SsdTier
from chunkstore.stores.object_store import ObjectStore
from dieselfs.cachenodes.chunk_memory import ChunkMemory, Part, WholeChunk
from dieselfs.cachenodes.range_allowance import RangeAllowance
from dieselfs.cachenodes.single_flight import SingleFlight
from dieselfs.cachenodes.store_reads import StoreReads
from dieselfs.errors import NoRoom
from dieselfs.node_memory.piece import Piece, is_whole
from dieselfs.peercache.held_chunks import NodeStatus

BURST_S: Final = 1.0
_BURST: Final = 4
"""When a quarter of a chunk was asked for by parts within `BURST_S`, the chunk is read."""
_REMEMBERED: Final = 4096
_BLOCK_BYTES: Final = 4 << 20
"""By which chunks above 16 MiB are fetched, counted from the beginning of their objects."""


@dataclass(slots=True, eq=False)
class NodeParts:
    """What the datasets of a node have in common."""

    store: ObjectStore
    reads: StoreReads
    """Of the same store."""
    tier: SsdTier
    memory: ChunkMemory
    allowance: RangeAllowance
    status: Callable[[], NodeStatus]
    flights: SingleFlight = field(default_factory=SingleFlight)
    from_ssd_bytes: int = 0
    """Counted by all threads without a lock: see `NodeMemory`."""


class DatasetChunks:
    """Implements `HeldRanges`. Thread-safe."""

    def __init__(self, dataset: DatasetRef, node: NodeParts) -> None:
        self._dataset, self._node = dataset, node
        self._reader = ChunkReader(node.store, dataset)
        self._asked: dict[bytes, tuple[float, int]] = {}
        """Of chunks that were asked for by parts: since when, and how many bytes."""

    # What is in memory.

    def payload(self, chunk: ChunkId) -> memoryview | None:
        found = self._node.memory.whole(chunk.value)
        return None if found is None else found.payload

    def head(self, chunk: ChunkId) -> memoryview | None:
        found = self._node.memory.whole(chunk.value)
        return None if found is None else found.head

    def part(self, chunk: ChunkRef, start: int, length: int) -> memoryview | None:
        return self._node.memory.part((chunk.id.value, chunk.head_bytes + start, length))

    def piece(self, piece: Piece) -> memoryview | None:
        if is_whole(piece.chunk):
            whole = self.payload(piece.chunk.id)
            if whole is not None or piece.file is None:
                return whole
        return self._node.memory.part(_part_of(piece))

    def unit(self, chunk: ChunkRef, start: int, length: int) -> Piece:
        if self._is_burst(chunk, length) or self._node.flights.is_under_way(chunk.id.value):
            return Piece(chunk)
        return Piece(chunk, FileExtent(chunk, start, length, 0))

    def is_coming(self, piece: Piece) -> bool:
        return self._node.flights.is_under_way(piece.chunk.id.value)

    def status(self) -> NodeStatus:
        return self._node.status()

    # What is not.

    def bring(self, piece: Piece) -> None:
        """Raises `NoRoom` if the client had better ask the store."""
        chunk = piece.chunk
        if self.piece(piece) is not None:
            return
        if not is_whole(chunk):
            self._bring_large(piece)
        elif piece.file is None:
            self._node.flights.run(chunk.id.value, lambda: self._bring_whole(chunk))
        else:
            self._bring_part(chunk, _part_of(piece))

    def _bring_whole(self, chunk: ChunkRef, *, is_admitted: bool = False) -> None:
        if self.payload(chunk.id) is not None:  # by who was before us
            return
        data = self._read_ssd(chunk.id.value, 0, None)
        if data is None:
            self._fetch(chunk, is_admitted)
            return
        head_bytes = decode_preamble(data).head_bytes
        if (head_bytes, len(data)) != (chunk.head_bytes, chunk.head_bytes + chunk.payload_bytes):
            raise Corrupt(f"chunk {chunk.id} has other lengths than were asked for")
        self._keep_whole(chunk, data)

    def _bring_part(self, chunk: ChunkRef, part: Part) -> None:
        node, id = self._node, chunk.id.value
        data = self._read_ssd(*part)
        if data is not None:
            node.memory.put_part(part, data)
            return
        if not node.flights.is_under_way(id):
            if not self._is_admitted(chunk):
                raise NoRoom("the chunk would not be kept")
            if not node.allowance.grants(part[2], chunk.head_bytes + chunk.payload_bytes):
                raise NoRoom("too much was read of the store in vain")
        node.flights.run(id, lambda: self._bring_whole(chunk, is_admitted=True))
        payload = self.payload(chunk.id)
        if payload is not None:
            start = part[1] - chunk.head_bytes
            copy = bytes(payload[start : start + part[2]])
            self._node.memory.put_part(part, memoryview(copy))

    def _fetch(self, chunk: ChunkRef, is_admitted: bool) -> None:
        """The whole chunk from the store."""
        data = self._read_store(chunk, 0, None)
        self._reader.verified(data, chunk)
        self._keep_whole(chunk, data)
        if is_admitted or self._is_admitted(chunk):
            self._offer(chunk, 0, data, is_end=True)

    def _keep_whole(self, chunk: ChunkRef, data: memoryview) -> None:
        whole = WholeChunk(data[: chunk.head_bytes], data[chunk.head_bytes :])
        self._node.memory.put_whole(chunk.id.value, whole)

    def _bring_large(self, piece: Piece) -> None:
        """A piece of a file in a chunk above 16 MiB, verified by its blocks' hashes, which are in the chunk's head."""
        part, file = _part_of(piece), piece.file
        assert file is not None
        hashes = self._reader.block_hashes(file)
        try:
            data = self._large_part(piece.chunk, part)
            verify_blocks(data, file, piece.start, hashes)
        except Corrupt:  # it may have come so from the store, which may be whole again
            self._forget_large(piece.chunk, part)
            data = self._large_part(piece.chunk, part)
            try:
                verify_blocks(data, file, piece.start, hashes)
            except Corrupt:
                self._forget_large(piece.chunk, part)
                raise
        self._node.memory.put_part(part, data)

    def _large_part(self, chunk: ChunkRef, part: Part) -> memoryview:
        data = self._read_ssd(*part)
        return self._from_blocks(chunk, part) if data is None else data

    def _forget_large(self, chunk: ChunkRef, part: Part) -> None:
        """What memory and SSD have of a part that is wrong."""
        self._node.tier.forget(chunk.id.value)
        for key in _blocks(chunk, part):
            self._node.memory.forget_part(key)

    def _from_blocks(self, chunk: ChunkRef, part: Part) -> memoryview:
        """Each block is read from the store once, however many pieces it is a part of."""
        _, start, length = part
        found = bytearray()
        for key in _blocks(chunk, part):
            begin = key[1]
            found += self._block(chunk, key)[max(0, start - begin) : start + length - begin]
        if len(found) != length:
            raise Corrupt(f"chunk {chunk.id} ends inside a file")
        return memoryview(found).toreadonly()

    def _block(self, chunk: ChunkRef, key: Part) -> memoryview:
        memory = self._node.memory
        for _ in range(3):  # it may have left again before we have looked
            block = memory.part(key)
            if block is not None:
                return block
            self._node.flights.run(key, lambda: self._fetch_block(chunk, key))
        raise NoRoom("the node has no memory for what it reads")

    def _fetch_block(self, chunk: ChunkRef, key: Part) -> None:
        if self._node.memory.part(key) is not None:
            return
        data = self._read_ssd(*key)
        if data is None:
            data = self._read_store(chunk, key[1], key[2])
            if len(data) != key[2]:
                raise Corrupt(f"chunk {chunk.id} is shorter than its dataset's metadata says")
            if self._is_admitted(chunk):
                is_end = key[1] + key[2] == chunk.head_bytes + chunk.payload_bytes
                self._offer(chunk, key[1], data, is_end=is_end)
        self._node.memory.put_part(key, data)

    def _read_ssd(self, chunk: bytes, start: int, length: int | None) -> memoryview | None:
        data = self._node.tier.read(chunk, start, length, dataset=self._dataset.id)
        self._node.from_ssd_bytes += 0 if data is None else len(data)
        return data

    def _is_admitted(self, chunk: ChunkRef) -> bool:
        return self._node.tier.admits(self._dataset.id, chunk.id.value)

    def _offer(self, chunk: ChunkRef, begin: int, data: memoryview, *, is_end: bool) -> None:
        segments = self._node.tier.segments
        if segments is not None:
            first = begin // segments.segment_bytes
            self._node.tier.offer(Offer(self._dataset.id, chunk.id.value, first, data, is_end))

    def _read_store(self, chunk: ChunkRef, begin: int, length: int | None) -> memoryview:
        key = chunk_key(self._dataset.name, chunk.id)
        return memoryview(self._node.reads.read(key, begin, length))

    def _is_burst(self, chunk: ChunkRef, length: int) -> bool:
        """Whether so much of a chunk is asked for by parts that it had better be read."""
        now, asked = time.monotonic(), self._asked
        since, total = asked.get(chunk.id.value, (now, 0))
        if now - since > BURST_S:
            since, total = now, 0
        if len(asked) >= _REMEMBERED:
            self._asked = asked = {}
        is_burst = _BURST * (total + length) >= chunk.payload_bytes
        asked[chunk.id.value] = since, 0 if is_burst else total + length
        return is_burst


def _part_of(piece: Piece) -> Part:
    """Where it lies in its chunk's object."""
    assert piece.file is not None
    begin = piece.chunk.head_bytes + piece.file.offset + piece.start
    return piece.chunk.id.value, begin, piece.length


def _blocks(chunk: ChunkRef, part: Part) -> Iterator[Part]:
    """Those of a large chunk's object that a part touches."""
    id, start, length = part
    object_bytes = chunk.head_bytes + chunk.payload_bytes
    for begin in range(start // _BLOCK_BYTES * _BLOCK_BYTES, start + length, _BLOCK_BYTES):
        yield id, begin, min(_BLOCK_BYTES, object_bytes - begin)
