"""A store whose chunks are kept on an SSD as they are read: an `ObjectStore` over another one.

A reader who misses gets from the store what he asked for, and no more; the chunk as a whole comes in the background, once. Who
reads megabytes at a time, of a large object, brings their segments along.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import Final

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.call_threads import CallThreads, NoThread
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import ChunkStoreError
from chunkstore.object_keys import chunk_key
from chunkstore.ssd.tier import Offer, SsdTier
from chunkstore.stores.object_store import Buffer, ObjectInfo, ObjectStore

log = logging.getLogger(__name__)

LARGE_READ_BYTES: Final = 2 << 20
"""Who reads so much at once needs no more of the chunk soon."""
MAX_WHOLE_BYTES: Final = 32 << 20
"""Objects up to here are brought whole: an ordinary chunk with its head. Of larger ones, the 4 MiB around what was read."""
_PIECE_BYTES: Final = 4 << 20
_AT_ONCE: Final = 4
"""Chunks fetched in the background."""


class TieredStore:
    """Thread-safe. The tier may be shared by the stores of several datasets."""

    def __init__(self, store: ObjectStore, dataset: DatasetRef, tier: SsdTier) -> None:
        self.store = store
        self._dataset = dataset
        self._tier = tier
        self._prefix = chunk_key(dataset.name, ChunkId(bytes(16)))[: -len(str(ChunkId(bytes(16))))]
        renew_now_and_after_fork(self)

    def __reduce__(self) -> tuple[type[TieredStore], tuple[ObjectStore, DatasetRef, SsdTier]]:
        return type(self), (self.store, self._dataset, self._tier)

    def renew(self) -> None:
        self._threads = CallThreads("ssd-warm", _AT_ONCE)
        self._warming: set[tuple[bytes, int]] = set()
        self._lock = threading.Lock()

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        self.store.create(key, parts)

    def get(self, key: str) -> bytes:
        chunk = self._chunk(key)
        if chunk is None:
            return self.store.get(key)
        found = self._tier.read(chunk, 0, None)
        if found is not None:
            return found  # type: ignore[return-value]
        began = time.monotonic()
        data = self.store.get(key)
        self._tier.store_took(time.monotonic() - began, len(data))
        if len(data) <= MAX_WHOLE_BYTES and self._tier.admits(self._dataset.id, chunk):
            self._tier.offer(Offer(self._dataset.id, chunk, 0, memoryview(data), True))
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        chunk = self._chunk(key)
        if chunk is None or not length:
            return self.store.get_range(key, offset, length)
        found = self._tier.read(chunk, offset, length)
        if found is not None:
            return found  # type: ignore[return-value]
        segments = self._tier.segments
        if segments is not None and length >= LARGE_READ_BYTES:
            return self._get_large(key, chunk, offset, length, segments.segment_bytes)
        data = self._timed(key, offset, length)
        if segments is not None:
            self._warm(key, chunk, offset)
        return data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.store.list(prefix)

    def delete(self, key: str) -> None:
        self.store.delete(key)

    def stat(self, key: str) -> ObjectInfo:
        return self.store.stat(key)

    def bring(self, key: str) -> bool:
        """Have a chunk on the SSD, fetched now if it is not; whether it is (or is about to be written). Raises what the store does."""
        chunk, segments = self._chunk(key), self._tier.segments
        if chunk is None or segments is None:
            return False
        if self._tier.call(lambda: segments.read_whole(chunk) is not None, 4 << 20):
            return True
        data = self.store.get(key)
        self._tier.offer(Offer(self._dataset.id, chunk, 0, memoryview(data), True))
        return True

    def _chunk(self, key: str) -> bytes | None:
        """The id of the chunk that a key names."""
        if not key.startswith(self._prefix):
            return None
        try:
            return ChunkId.parse(key[len(self._prefix) :]).value
        except ValueError:
            return None

    def _timed(self, key: str, offset: int, length: int) -> bytes:
        began = time.monotonic()
        data = self.store.get_range(key, offset, length)
        self._tier.store_took(time.monotonic() - began, len(data))
        return data

    def _get_large(self, key: str, chunk: bytes, offset: int, length: int, size: int) -> bytes:
        """With the rest of the segments at both ends."""
        start, end = offset // size * size, -(-(offset + length) // size) * size
        data = self._timed(key, start, end - start)
        is_end = len(data) < end - start
        if self._tier.admits(self._dataset.id, chunk):
            self._tier.offer(
                Offer(self._dataset.id, chunk, start // size, memoryview(data), is_end)
            )
        return data[offset - start : offset - start + length]

    def _warm(self, key: str, chunk: bytes, offset: int) -> None:
        """Fetch the chunk in the background, unless that is being done, or too much is."""
        wanted = chunk, offset // _PIECE_BYTES
        with self._lock:
            if wanted in self._warming or len(self._warming) >= 2 * _AT_ONCE:
                return
            if not self._tier.admits(self._dataset.id, chunk):
                return
            self._warming.add(wanted)

        def fetch() -> None:
            try:
                self._fetch(key, chunk, offset)
            except ChunkStoreError as error:
                log.info("chunk %s is not brought to the SSD: %s", key, error)
            finally:
                with self._lock:
                    self._warming.discard(wanted)

        try:
            self._threads.start(fetch, SimpleQueue())  # nobody waits for it
        except NoThread:
            with self._lock:
                self._warming.discard(wanted)

    def _fetch(self, key: str, chunk: bytes, offset: int) -> None:
        if self.store.stat(key).size_bytes <= MAX_WHOLE_BYTES:
            whole = memoryview(self.store.get(key))
            self._tier.offer(Offer(self._dataset.id, chunk, 0, whole, True))
            return
        segments = self._tier.segments
        if segments is None:
            return
        start, size = offset // _PIECE_BYTES * _PIECE_BYTES, segments.segment_bytes
        piece = memoryview(self.store.get_range(key, start, _PIECE_BYTES))
        self._tier.offer(
            Offer(self._dataset.id, chunk, start // size, piece, len(piece) < _PIECE_BYTES)
        )
