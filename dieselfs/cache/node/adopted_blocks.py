"""The blocks that a master has found in its folder, until each is verified.

Somebody may have changed their files while the task had no master. A thread verifies one after the
other. A block that is needed earlier is verified by the thread that needs it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

from dieselfs.cache.node.block_cache import BlockCache


class AdoptedBlocks:
    """The unverified blocks of one master. Thread-safe."""

    def __init__(self, blocks: BlockCache) -> None:
        """All blocks of `blocks` are adopted ones."""
        self._blocks = blocks
        self._lock = threading.Lock()
        self._waiting = dict.fromkeys(blocks.names())
        self._under_way: dict[str, Future[None]] = {}

    def verify(self, name: str) -> None:
        """Return when the block is verified, if it was adopted: 1 ms for 4 MiB, 0.1 µs later."""
        if not self._waiting and not self._under_way:
            return
        with self._lock:
            result = self._under_way.get(name)
            if result is None:
                if name not in self._waiting:
                    return
                mine = self._under_way[name] = Future()
                del self._waiting[name]  # in this order: the first look takes no lock
        if result is not None:
            result.result()
            return
        try:
            is_sound = self._blocks.files.is_adopted_sound(name)
            if is_sound is not None:
                self._blocks.note_verified(name, is_sound)
        finally:
            with self._lock:
                del self._under_way[name]
            mine.set_result(None)

    def verify_all(self) -> None:
        """Verify the blocks one after the other, until the master is closed."""
        while not self._blocks.closed:
            with self._lock:
                name = next(iter(self._waiting), None)
            if name is None:
                return
            self.verify(name)

    @property
    def count(self) -> int:
        """The number of blocks that are not verified yet."""
        with self._lock:
            return len(self._waiting) + len(self._under_way)
