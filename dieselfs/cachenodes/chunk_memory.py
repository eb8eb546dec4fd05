"""What a cache node has read a moment ago: objects of chunks, and parts of such, within a budget; what was used longest ago leaves.

It lets a burst of reads of one chunk cost one read of the SSD. What is kept for long is the SSD's, and the page cache's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

DEFAULT_MEMORY_BYTES: Final = 256 << 20
MIN_MEMORY_BYTES: Final = 64 << 20
"""Requests wait in it for their answers: 8 MiB of parts each, or a chunk of 16 MiB."""

Part: TypeAlias = tuple[bytes, int, int]
"""A chunk's id; where the part begins in the chunk's object, and its length."""


@dataclass(frozen=True, slots=True)
class WholeChunk:
    head: memoryview
    payload: memoryview

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.payload)


class ChunkMemory:
    """Thread-safe. Views stay valid while they are referenced, and are not counted any more once they have left."""

    def __init__(self, budget_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, WholeChunk | memoryview] = OrderedDict()
        self._bytes = 0

    def whole(self, chunk: bytes) -> WholeChunk | None:
        """0.3 µs."""
        found = self._find(chunk)
        assert not isinstance(found, memoryview)
        return found

    def part(self, part: Part) -> memoryview | None:
        found = self._find(part)
        assert not isinstance(found, WholeChunk)
        return found

    def put_whole(self, chunk: bytes, content: WholeChunk) -> None:
        self._put(chunk, content)

    def put_part(self, part: Part, content: memoryview) -> None:
        """`content` keeps alive no more than itself."""
        self._put(part, content)

    def forget_part(self, part: Part) -> None:
        with self._lock:
            before = self._kept.pop(part, None)
            self._bytes -= 0 if before is None else _size(before)

    @property
    def held(self) -> tuple[int, int]:
        """(how many, bytes) now."""
        with self._lock:
            return len(self._kept), self._bytes

    def _find(self, key: Hashable) -> WholeChunk | memoryview | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _put(self, key: Hashable, content: WholeChunk | memoryview) -> None:
        with self._lock:
            before = self._kept.pop(key, None)
            self._bytes -= 0 if before is None else _size(before)
            self._kept[key] = content
            self._bytes += _size(content)
            # What has come last stays whatever its size: somebody waits for it.
            while self._bytes > self._budget_bytes and len(self._kept) > 1:
                self._bytes -= _size(self._kept.popitem(last=False)[1])


def _size(content: WholeChunk | memoryview) -> int:
    return content.size_bytes if isinstance(content, WholeChunk) else len(content)
