"""The occupied bytes of a node's SSD, which pongs carry.

They are computed in the background: that takes up to 20 ms, more on a busy machine, and many
clients ping.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from chunkstore.ssd.tier import SsdTier

EVERY_S: Final = 1.0
"""The time between two computations."""
_IDLE_SHARE: Final = 100
"""The least time between two computations, in multiples of their duration: 2 s for 2 TiB."""
_TIMEOUT_S: Final = 30.0


class OccupiedBytes:
    """The computation, from its creation until `end`."""

    def __init__(self, tier: SsdTier) -> None:
        self._tier = tier
        self._ending = threading.Event()
        self.last_known = 0
        self._thread = threading.Thread(target=self._run, name="cluster-occupied", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        took_s = 0.0
        while not self._ending.wait(max(EVERY_S, _IDLE_SHARE * took_s)):
            began, segments = time.monotonic(), self._tier.segments
            if segments is not None:
                occupancy = self._tier.call(segments.occupancy, 0, _TIMEOUT_S)
                took_s = time.monotonic() - began
                if occupancy is not None:
                    self.last_known = sum(one.bytes for one in occupancy)
