"""The memory of a cache node: chunks and parts of chunks that were just read, within a budget.

The least recently used is evicted. The memory lets a burst of reads of one chunk cost one read of
the SSD. The SSD and the page cache keep data for longer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from chunkstore.chunk_format import decode_preamble

DEFAULT_MEMORY_BYTES: Final = 256 << 20
MIN_MEMORY_BYTES: Final = 64 << 20
"""The least memory of a node.

Requests wait in it for their answers: each has 8 MiB of parts, or a chunk of 16 MiB.
"""

Part: TypeAlias = tuple[bytes, int, int]
"""A chunk's id, the offset of the part in the chunk's object, and the length of the part."""


@dataclass(frozen=True, slots=True)
class WholeChunk:
    """The object of a chunk, with views of its head and its payload."""

    data: memoryview
    """The object."""
    head: memoryview
    payload: memoryview

    @classmethod
    def of(cls, data: memoryview) -> WholeChunk:
        """Split an object. Raises `Corrupt` if it does not begin as a chunk does."""
        head_bytes = decode_preamble(data).head_bytes
        return cls(data, data[:head_bytes], data[head_bytes:])


class ChunkMemory:
    """The memory of one node. Thread-safe.

    Evicted data is not counted any more, but is found as long as it is referenced: by threads that
    answer requests for it, or by the queue of writes to the SSD.
    """

    def __init__(self, budget_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, WholeChunk | memoryview] = OrderedDict()
        self._datasets: dict[Hashable, bytes] = {}
        """The dataset of each item that is kept, by its id."""
        self._bytes = 0
        self._alive: WeakValueDictionary[Hashable, memoryview] = WeakValueDictionary()
        """All data that was put and is still referenced; chunks are kept as objects."""

    def whole(self, chunk: bytes) -> WholeChunk | None:
        """Return the chunk if it is in memory. 0.3 µs."""
        found = self._find(chunk)
        if isinstance(found, memoryview):
            found = WholeChunk.of(found)
        return found

    def part(self, part: Part) -> memoryview | None:
        """Return the part if it is in memory."""
        found = self._find(part)
        assert not isinstance(found, WholeChunk)
        return found

    def put_whole(
        self, chunk: bytes, content: WholeChunk, dataset: bytes = b"", *, stays: bool = True
    ) -> None:
        """Insert a chunk; unless it `stays`, it is found only while it is referenced."""
        self._put(chunk, content, content.data, dataset, stays)

    def put_part(
        self, part: Part, content: memoryview, dataset: bytes = b"", *, stays: bool = True
    ) -> None:
        """Insert a part. `content` must keep no more bytes alive than its own."""
        self._put(part, content, content, dataset, stays)

    def forget_part(self, part: Part) -> None:
        """Remove a part."""
        with self._lock:
            self._drop(part)
            self._alive.pop(part, None)

    def forget_dataset(self, dataset: bytes) -> None:
        """Remove all of a dataset; 20 ms if there are 64,000 items."""
        with self._lock:
            for key in [key for key, of in self._datasets.items() if of == dataset]:
                self._drop(key)

    @property
    def cached(self) -> tuple[int, int]:
        """The current (number of items, bytes)."""
        with self._lock:
            return len(self._kept), self._bytes

    def _find(self, key: Hashable) -> WholeChunk | memoryview | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return self._alive.get(key)
            self._kept.move_to_end(key)
            return found

    def _put(
        self,
        key: Hashable,
        content: WholeChunk | memoryview,
        data: memoryview,
        dataset: bytes,
        stays: bool,
    ) -> None:
        with self._lock:
            self._drop(key)
            self._alive[key] = data
            if not stays:
                return
            self._kept[key], self._datasets[key] = content, dataset
            self._bytes += len(data)
            # The newest item stays whatever its size: a request waits for it.
            while self._bytes > self._budget_bytes and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        """Keep an item no longer. The lock is held."""
        self._bytes -= _size(self._kept.pop(key, None))
        self._datasets.pop(key, None)


def _size(content: WholeChunk | memoryview | None) -> int:
    if content is None:
        return 0
    return len(content.data if isinstance(content, WholeChunk) else content)
