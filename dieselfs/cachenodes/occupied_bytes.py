"""How much of a node's SSD is occupied, as pongs tell it: reckoned in the background, since that takes up to 20 ms, for each of many who ping, and more on a busy machine."""

from __future__ import annotations

import threading
import time
from typing import Final

from chunkstore.ssd.tier import SsdTier

EVERY_S: Final = 1.0
_IDLE_SHARE: Final = 100
"""So many times as long as it took is it not reckoned again: 2 s for 2 TiB."""
_TIMEOUT_S: Final = 30.0


class OccupiedBytes:
    """From when it is made until `end`."""

    def __init__(self, tier: SsdTier) -> None:
        self._tier = tier
        self._ending = threading.Event()
        self.last_known = 0
        self._thread = threading.Thread(target=self._run, name="cluster-occupied", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float) -> None:
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
