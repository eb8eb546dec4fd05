"""A bounded memory cache of chunks in one process, over a slower source (least recently used leaves first).

The unit is a whole chunk up to 16 MiB; larger chunks (one large file each) are cached in pieces of 4 MiB. Of N readers that miss the same
piece one fetches it and the others wait. What a reader holds stays valid after it has been evicted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent

PIECE_BYTES = 4 << 20
DEFAULT_BUDGET_BYTES = 1 << 30

_PieceKey = tuple[bytes, int, int]
"""chunk id, the file's offset in the payload, number of the piece (-1: the whole payload)."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Since the cache was made, unless said otherwise."""

    hits: int
    """Reads answered from memory."""
    misses: int
    """Reads that had to wait for the source, fetched by themselves or by another reader."""
    fetches: int
    """Pieces asked of the source."""
    fetched_bytes: int
    evictions: int
    cached_bytes: int
    """Held now."""
    budget_bytes: int


class CacheObserver(Protocol):
    """Someone who reads whole chunks where they lie in the cache. Called by the thread that changes the cache."""

    def hold(self, chunk: ChunkId, payload: memoryview) -> None:
        """The chunk is in the cache."""
        ...

    def release(self, chunk: ChunkId) -> None:
        """It has left; who still reads keeps the memoryview."""
        ...

    def was_used(self, chunk: ChunkId) -> bool:
        """Whether it was read behind the cache's back since this was last asked."""
        ...


class ChunkCache:
    """Implements `ChunkSource`. Thread-safe; a hit takes no lock and no system call."""

    def __init__(self, source: ChunkSource, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._source = source
        self._observer: CacheObserver | None = None
        self._budget = budget_bytes
        self._pieces: OrderedDict[_PieceKey, memoryview] = OrderedDict()
        self._in_flight: dict[_PieceKey, Future[memoryview]] = {}
        self._lock = threading.Lock()
        self._bytes = self._hits = self._misses = self._fetches = self._fetched_bytes = (
            self._evictions
        ) = 0

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        """The bytes if they are in memory, without waiting for anything; None otherwise."""
        if file.chunk.payload_bytes <= MAX_WHOLE_BYTES:
            whole = self._touch((file.chunk.id.value, 0, -1))
            if whole is None:
                return None
            self._hits += 1
            at = file.offset + start
            return whole[at : at + length]
        parts = []
        for number, part in _parts(start, length):
            piece = self._touch((file.chunk.id.value, file.offset, number))
            if piece is None:
                return None
            parts.append(piece[part])
        self._hits += 1
        return _joined(parts)

    def payload(self, chunk: ChunkRef) -> memoryview:
        return self._piece((chunk.id.value, 0, -1), lambda: self._source.payload(chunk))

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        found = self.peek(file, start, length)
        if found is not None:
            return found
        self._misses += 1
        if file.chunk.payload_bytes <= MAX_WHOLE_BYTES:
            at = file.offset + start
            return self.payload(file.chunk)[at : at + length]
        return _joined(
            [self._file_piece(file, number)[part] for number, part in _parts(start, length)]
        )

    def observe(self, observer: CacheObserver) -> None:
        """Tell `observer` of whole chunks that come and go from now on."""
        self._observer = observer

    def discard(self, chunk: ChunkId) -> None:
        """Forget a whole chunk; nothing happens if it is not there."""
        with self._lock:
            piece = self._pieces.pop((chunk.value, 0, -1), None)
            if piece is not None:
                self._bytes -= len(piece)
                self._tell_released(chunk.value)

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            self._hits,
            self._misses,
            self._fetches,
            self._fetched_bytes,
            self._evictions,
            self._bytes,
            self._budget,
        )

    def _file_piece(self, file: FileExtent, number: int) -> memoryview:
        begin = number * PIECE_BYTES
        length = min(PIECE_BYTES, file.length - begin)
        key = (file.chunk.id.value, file.offset, number)
        return self._piece(key, lambda: self._source.read(file, begin, length))

    def _touch(self, key: _PieceKey) -> memoryview | None:
        piece = self._pieces.get(key)
        if piece is not None:
            try:
                self._pieces.move_to_end(key)
            except KeyError:
                pass  # evicted between the two steps; its bytes are still good
        return piece

    def _piece(self, key: _PieceKey, fetch: Callable[[], memoryview]) -> memoryview:
        with self._lock:
            piece = self._touch(key)
            if piece is not None:
                return piece
            waiting = self._in_flight.get(key)
            if waiting is None:
                mine = self._in_flight[key] = Future()
        if waiting is not None:
            return waiting.result()
        return self._fetch(key, fetch, mine)

    def _fetch(
        self, key: _PieceKey, fetch: Callable[[], memoryview], waiters: Future[memoryview]
    ) -> memoryview:
        try:
            piece = fetch()
        except BaseException as error:
            with self._lock:
                del self._in_flight[key]
            waiters.set_exception(error)
            raise
        with self._lock:
            del self._in_flight[key]
            self._fetches += 1
            self._fetched_bytes += len(piece)
            self._pieces[key] = piece
            self._bytes += len(piece)
            if self._observer is not None and key[2] < 0:
                self._observer.hold(ChunkId(key[0]), piece)
            while self._bytes > self._budget and len(self._pieces) > 1:
                self._evict_one()
        waiters.set_result(piece)
        return piece

    def _evict_one(self) -> None:
        """The least recently used piece, as far as the observer's use is known: second chance."""
        for _ in range(len(self._pieces)):
            key, piece = self._pieces.popitem(last=False)
            if (
                self._observer is None
                or key[2] >= 0
                or not self._observer.was_used(ChunkId(key[0]))
            ):
                break
            self._pieces[key] = piece
        else:
            key, piece = self._pieces.popitem(last=False)
        self._bytes -= len(piece)
        self._evictions += 1
        if key[2] < 0:
            self._tell_released(key[0])

    def _tell_released(self, chunk: bytes) -> None:
        if self._observer is not None:
            self._observer.release(ChunkId(chunk))


def _parts(start: int, length: int) -> Iterator[tuple[int, slice]]:
    """The pieces of a large file that a range touches, and what of each."""
    end = start + length
    while start < end:
        number, at = divmod(start, PIECE_BYTES)
        size = min(PIECE_BYTES - at, end - start)
        yield number, slice(at, at + size)
        start += size


def _joined(parts: Sequence[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
