"""The scrub of node memory: chunks are verified again while their master runs.

One on request is as fast as it can be. Another one goes on by itself, slowly, while nothing is
asked of the master.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

BYTES_PER_S: Final = 16 << 20
"""The pace of the scrub that goes on by itself: 4 blocks of 4 MiB a second, 0.4 % of a core."""
PASS_PAUSE_S: Final = 600.0
"""The time between two passes."""
IDLE_S: Final = 1.0
"""The time without a request after which the master counts as idle."""


class SlowScrub:
    """The scrub that one thread goes on with until `end`."""

    def __init__(
        self,
        names: Callable[[], Sequence[str]],
        verify: Callable[[str], int],
        is_idle: Callable[[], bool],
    ) -> None:
        """`verify` verifies a block and returns the bytes that it has read."""
        self._names, self._verify, self._is_idle = names, verify, is_idle
        self._ended = threading.Event()

    def run(self, pause_s: float = PASS_PAUSE_S, bytes_per_s: float = BYTES_PER_S) -> None:
        """Verify all blocks again and again, with a pause before each pass."""
        while not self._ended.wait(pause_s):
            for name in self._names():
                while not self._is_idle():
                    if self._ended.wait(IDLE_S):
                        return
                if self._ended.wait(self._verify(name) / bytes_per_s):
                    return

    def end(self) -> None:
        """Have `run` return after the block that it verifies now."""
        self._ended.set()
