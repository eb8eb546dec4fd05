"""A bound on the bytes that the SSD tier reads from the store beyond what readers ask for.

A range that is not on the SSD costs its whole chunk, because other readers will want the rest. If
the SSD is too small for data that is read in random order, the chunk is evicted before they do, and
the store is read many times over; without the SSD it would be read once. So the wasted bytes are
counted, and may amount to one filling of the SSD. Beyond that bound only ranges are read, except
that chunks are still fetched for about half of the requested bytes. So a dataset that comes later,
and for which there is room, still gets onto the SSD.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class RangeAllowance:
    """A running account of the wasted bytes. Thread-safe."""

    def __init__(self, allowed_bytes: int, excess: Callable[[], int]) -> None:
        """`excess`: the bytes read from the store so far, less those that readers asked for.

        Bytes answered from the SSD reduce it.
        """
        self._allowed_bytes, self._excess = allowed_bytes, excess
        self._lock = threading.Lock()
        self._least = excess()
        self._forgiven = 0

    def grants(self, length: int, chunk_bytes: int) -> bool:
        """Return whether a whole chunk may be read for a range of `length` bytes."""
        excess = self._excess()
        with self._lock:
            excess -= self._forgiven
            self._least = min(self._least, excess)
            if excess - self._least + chunk_bytes - length <= self._allowed_bytes:
                return True
            self._forgiven += length
            return False
