"""Ranges that were fetched from a peer for one of their parts, and are kept for the next part.

A file of some size is read in parts (the kernel asks for 128 KiB), but only whole files, or blocks
of large ones, can be verified. So a range that was fetched and verified is kept for a moment, and
concurrent readers of its parts fetch it once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from dieselfs.cache.ports.runtime import Runtime

LIMIT_BYTES: Final = 16 << 20

Key: TypeAlias = tuple[bytes, int, int]
"""The key of a range: the chunk's id, the file's offset in it, and the range's start in the file.
"""


class RecentRanges:
    """The recently fetched ranges of one process. Thread-safe."""

    def __init__(self, runtime: Runtime, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = runtime.lock()
        self._changed = runtime.condition(self._lock)
        self._kept: OrderedDict[Key, memoryview] = OrderedDict()
        self._kept_bytes = 0
        self._coming: set[Key] = set()

    def obtain(self, key: Key, fetch: Callable[[], memoryview | None]) -> memoryview | None:
        """Return the range, loaded with `fetch` if it is not kept.

        Concurrent callers share one fetch. If it returns None, this does too, and each waiter
        retries.
        """
        with self._lock:
            while key in self._coming:
                self._changed.wait()
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
            self._coming.add(key)
        fetched = None
        try:
            fetched = fetch()
        finally:
            with self._lock:
                self._coming.discard(key)
                if fetched is not None:
                    self._keep(key, fetched)
                self._changed.notify_all()
        return fetched

    def _keep(self, key: Key, data: memoryview) -> None:
        self._kept[key] = data
        self._kept_bytes += len(data)
        while self._kept_bytes > self._limit_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)
