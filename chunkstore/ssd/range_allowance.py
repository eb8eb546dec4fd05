"""How much more of the store may be read for an SSD than is asked for.

A range that is not on the SSD costs its whole chunk, since others will want the rest. If the SSD is too small for what is read in random order, the chunk has
left it again before they do, and the store would be read many times over: without the SSD it were read once. So what was read in vain is
reckoned up, and may be as much as fills the SSD once; then ranges alone are read, but for about half of the bytes that are asked for: so
a dataset that comes later, and has room, still finds its way onto the SSD.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class RangeAllowance:
    """Thread-safe."""

    def __init__(self, allowed_bytes: int, excess: Callable[[], int]) -> None:
        """`excess`: what was read of the store until now, less what was asked for of it. What is answered from the SSD pays back."""
        self._allowed_bytes, self._excess = allowed_bytes, excess
        self._lock = threading.Lock()
        self._least = excess()
        self._forgiven = 0

    def grants(self, length: int, chunk_bytes: int) -> bool:
        """Whether a chunk may be read for a range of so many bytes."""
        excess = self._excess()
        with self._lock:
            excess -= self._forgiven
            self._least = min(self._least, excess)
            if excess - self._least + chunk_bytes - length <= self._allowed_bytes:
                return True
            self._forgiven += length
            return False
