"""The scrub of node memory: blocks are verified again while their master runs.

One on request is as fast as it can be. Another one goes on by itself, slowly, while nothing is
asked of the master.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from dieselfs.cache.node.adopted_blocks import AdoptedBlocks
from dieselfs.cache.node.block_cache import BlockCache
from dieselfs.cache.ports.master_port import MemoryScrub

BYTES_PER_S: Final = 16 << 20
"""The pace of the scrub that goes on by itself: 4 blocks of 4 MiB a second, 0.4 % of a core."""
PASS_PAUSE_S: Final = 600.0
"""The time between two passes."""
IDLE_S: Final = 1.0
"""The time without a request after which the master counts as idle."""


class Scrubber:
    """The scrubs of one master's blocks, and the thread that verifies them by itself."""

    def __init__(
        self, blocks: BlockCache, adopted: AdoptedBlocks, idle_s: Callable[[], float]
    ) -> None:
        """The thread verifies `adopted` first. `idle_s` returns how long nothing was asked."""
        self._blocks, self._adopted, self._idle_s = blocks, adopted, idle_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verify", daemon=True)
        self._thread.start()

    def scrub(self) -> MemoryScrub:
        """See `MasterPort`. Blocks that are stored meanwhile are left out."""
        damaged = len(self._blocks.damaged)
        blocks = size_bytes = 0
        for name in self._blocks.names():
            self._adopted.verify(name)
            length = self._verify(name)
            blocks += length > 0
            size_bytes += length
        return MemoryScrub(blocks, size_bytes, tuple(self._blocks.damaged[damaged:]))

    def close(self) -> None:
        """Return when the thread has verified the block that it reads now, and ended."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        self._adopted.verify_all()
        while not self._ended.wait(PASS_PAUSE_S):
            for name in self._blocks.names():
                while self._idle_s() < IDLE_S:
                    if self._ended.wait(IDLE_S):
                        return
                if self._ended.wait(self._verify(name) / BYTES_PER_S):
                    return

    def _verify(self, name: str) -> int:
        """Verify a cached block, evict it if it is damaged, and return its bytes."""
        length, is_sound = self._blocks.files.length(name), self._blocks.files.is_sound(name)
        if is_sound is False:
            self._blocks.note_verified(name, is_sound)
        return length
