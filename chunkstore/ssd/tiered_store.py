"""A store in front of an `ObjectStore` that caches chunks on an SSD as chunk readers read them.

A reader that misses gets from the store exactly what it asked for; the whole chunk is loaded once,
in the background. A read of megabytes of a large object loads the segments that it touches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Literal, TypeAlias

from chunkstore.call_threads import CallThreads, NoThread
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import ChunkStoreError, Corrupt
from chunkstore.object_keys import chunk_key, chunk_of_key
from chunkstore.single_flight import SingleFlight
from chunkstore.ssd.insert_queue import CacheInsert
from chunkstore.ssd.reader_tags import ReaderTags
from chunkstore.ssd.tier import SsdTier
from chunkstore.stores.object_store import Buffer, KeepsCopies, ObjectStore
from chunkstore.stores.paused_time import working_time
from chunkstore.stores.read_turn import ReadTurn, current_turn, reading

log = logging.getLogger(__name__)

LARGE_READ_BYTES: Final = 2 << 20
"""The size from which a read needs no more of its chunk soon."""
MAX_WHOLE_BYTES: Final = 32 << 20
"""The largest object that is loaded whole: an ordinary chunk with its head.

For a larger object, the 4 MiB block around the read is loaded.
"""
_BLOCK_BYTES: Final = 4 << 20
_AT_ONCE: Final = 4
"""Chunks fetched in the background at once."""


Loaded: TypeAlias = Literal["cached", "loaded", "elsewhere", "no room", "out of service"]
"""The outcome of loading a block.

It was cached already; it was loaded; another process is loading it ("elsewhere"); the tier has no
room for the dataset; or the tier cannot be used.
"""


@dataclass(frozen=True, slots=True)
class ObjectBlock:
    """A part of a chunk's object that is loaded onto an SSD at once."""

    chunk: ChunkId
    start: int
    """Bytes from the beginning of the object, a multiple of 4 MiB."""
    length: int
    is_end: bool
    """True if the object ends with this block."""

    @property
    def name(self) -> bytes:
        """The name that a process claims while it loads the block."""
        return self.chunk.value + self.start.to_bytes(8, "big")


def blocks_of(chunk: ChunkId, size_bytes: int) -> list[ObjectBlock]:
    """Return the blocks of an object: one up to 32 MiB, else one for each 4 MiB."""
    if size_bytes <= MAX_WHOLE_BYTES:
        return [ObjectBlock(chunk, 0, size_bytes, True)]
    starts = range(0, size_bytes, _BLOCK_BYTES)
    return [
        ObjectBlock(chunk, at, min(_BLOCK_BYTES, size_bytes - at), at + _BLOCK_BYTES >= size_bytes)
        for at in starts
    ]


class TieredStore:
    """A chunk reader's view of a store and its SSD tier.

    Bytes from the SSD are not verified here. Chunk readers verify everything against the chunk's
    own checksums, drop a damaged chunk from the tier and read it from the store again. A second
    verification would cost a quarter of a hit.

    Implements `ObjectReader` and `KeepsCopies`. Thread-safe. The stores of several datasets may
    share a tier.
    """

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        tier: SsdTier,
        size_of: Callable[[ChunkId], int | None] | None = None,
        tags: ReaderTags | None = None,
    ) -> None:
        """`size_of` gives the known sizes of objects, about which the store is then not asked.

        `tags` tell a cache policy for which job this process reads, and in which buckets the chunks
        are. Without them the reader has no job, and the dataset is one bucket.
        """
        self.store = store
        self._size_of = size_of
        self._tags = tags
        self._dataset = dataset
        self._tier = tier
        tier.register(dataset)
        self._threads = CallThreads("ssd-warm", _AT_ONCE)
        self._warming: SingleFlight[None] = SingleFlight()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.store,
            self._dataset,
            self._tier,
            self._size_of,
            self._tags,
        )

    def get(self, key: str) -> Buffer:
        """Return a whole object, from the tier or the store."""
        chunk = self._chunk(key)
        if chunk is None:
            return self.store.get(key)
        found = self._read(chunk, 0, None)
        if found is not None:
            return found
        began = working_time()
        data = self.store.get(key)
        self._tier.store_took(working_time() - began, len(data))
        if len(data) <= MAX_WHOLE_BYTES and self._admits(chunk, 0):
            self._tier.insert(CacheInsert(self._dataset.id, chunk, 0, memoryview(data), True))
        return data

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return `length` bytes from `offset`, from the tier or the store; fewer at the end."""
        chunk = self._chunk(key)
        if chunk is None or not length:
            return self.store.get_range(key, offset, length)
        found = self._read(chunk, offset, length)
        if found is not None:
            return found
        segments = self._tier.segments
        if segments is not None and length >= LARGE_READ_BYTES:
            return self._get_large(key, chunk, offset, length, segments.segment_bytes)
        data = self._timed(key, offset, length)
        if segments is not None:
            self._warm(chunk, offset, length)
        return data

    def forget(self, key: str) -> bool:
        """Drop a chunk from the tier, and from the store if that keeps copies itself.

        Returns whether there was any copy.
        """
        chunk = chunk_of_key(self._dataset.name, key)
        was_cached = chunk is not None and self._tier.forget(chunk.value)
        was_copied = isinstance(self.store, KeepsCopies) and self.store.forget(key)
        return was_cached or was_copied

    def holds(self, block: ObjectBlock) -> bool | None:
        """Return whether a block is on the SSD now; None if this cannot be determined."""
        segments = self._tier.segments
        if segments is None:
            return None
        first = block.start // segments.segment_bytes
        return self._tier.call(
            lambda: segments.holds(block.chunk.value, first, block.length, block.is_end), 0
        )

    def load(self, block: ObjectBlock) -> Loaded:
        """Load a block onto the SSD unless it is there; it is written when the call returns.

        Raises what the store raises.
        """
        cached = self.holds(block)
        segments = self._tier.segments
        if cached is None or segments is None:
            return "out of service"
        if cached:
            return "cached"
        # Claims wait for no disk. Within a deadline, one that came late would be nobody's for ever.
        try:
            if not segments.claim(block.name):
                return "elsewhere"
        except OSError:
            return "out of service"
        try:
            if self.holds(block):  # another process has just loaded it
                return "cached"
            key = chunk_key(self._dataset.name, block.chunk)
            data = self.store.get_range(key, block.start, block.length)
            if len(data) < block.length:
                raise Corrupt(
                    f"chunk {block.chunk} is shorter than the length in its dataset's metadata"
                )
            first = block.start // segments.segment_bytes
            insert = CacheInsert(
                self._dataset.id, block.chunk.value, first, memoryview(data), block.is_end
            )
            kept = self._tier.keep(insert)
        finally:
            with suppress(OSError):
                segments.disclaim(block.name)
        if kept is None:
            return "out of service"
        return "loaded" if kept else "no room"

    def _chunk(self, key: str) -> bytes | None:
        """Return the id of the chunk that a key names; None while the tier is out of service."""
        chunk = chunk_of_key(self._dataset.name, key) if self._tier.is_in_service() else None
        return None if chunk is None else chunk.value

    def _read(self, chunk: bytes, offset: int, length: int | None) -> memoryview | None:
        return self._tier.read(
            chunk,
            offset,
            length,
            dataset=self._dataset.id,
            verified=False,
            tags=self._tags,
            size=self._size_for_policy(chunk),
        )

    def _admits(self, chunk: bytes, start: int) -> bool:
        size = self._size_for_policy(chunk)
        return self._tier.admits(self._dataset.id, chunk, start=start, tags=self._tags, size=size)

    def _size_for_policy(self, chunk: bytes) -> int | None:
        """Return the size of an object if a cache policy can use it, and it is known."""
        if self._tier.runner is None or self._size_of is None:
            return None
        return self._size_of(ChunkId(chunk))

    def _timed(self, key: str, offset: int, length: int) -> Buffer:
        began = working_time()
        data = self.store.get_range(key, offset, length)
        self._tier.store_took(working_time() - began, len(data))
        return data

    def _get_large(self, key: str, chunk: bytes, offset: int, length: int, size: int) -> Buffer:
        """Read and insert the whole segments that the range touches."""
        start, end = offset // size * size, -(-(offset + length) // size) * size
        data = self._timed(key, start, end - start)
        is_end = len(data) < end - start
        if self._admits(chunk, start):
            self._tier.insert(
                CacheInsert(self._dataset.id, chunk, start // size, memoryview(data), is_end)
            )
        return memoryview(data)[offset - start : offset - start + length]

    def _warm(self, chunk: bytes, offset: int, length: int) -> None:
        """Fetch the chunk of a missed range in the background.

        Nothing is fetched if the chunk is already being fetched, too many fetches are running, or
        such fetches are mostly wasted.
        """
        wanted = chunk, offset // _BLOCK_BYTES
        if self._warming.is_under_way(wanted):
            return
        if not self._tier.may_warm(length) or not self._admits(chunk, offset):
            return

        turn = ReadTurn(ahead=True, payer=current_turn().payer)

        def fetch() -> None:
            try:
                with reading(turn):
                    self._fetch(ChunkId(chunk), offset)
            except ChunkStoreError as error:
                log.info("cannot load chunk %s to the SSD: %s", chunk.hex(), error)

        try:
            # No caller waits for the end of the thread.
            self._warming.begin(
                wanted, fetch, lambda land: self._threads.start(land, SimpleQueue())
            )
        except NoThread:
            pass

    def _fetch(self, chunk: ChunkId, offset: int) -> None:
        size_bytes = None if self._size_of is None else self._size_of(chunk)
        if size_bytes is None:
            size_bytes = self.store.stat(chunk_key(self._dataset.name, chunk)).size_bytes
        blocks = blocks_of(chunk, size_bytes)
        block = (
            blocks[0] if len(blocks) == 1 else blocks[min(offset, size_bytes - 1) // _BLOCK_BYTES]
        )
        if self.load(block) in ("loaded", "no room"):
            self._tier.warmed(
                block.length, dataset=self._dataset.id, chunk=chunk.value, tags=self._tags
            )
