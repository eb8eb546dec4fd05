"""The memory of a rebuild: 250 MB as a rule.

Measured: 170 MB for 1.28 million files and 177 MB for three times as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The limits of what a rebuild keeps in memory at a time.

    Besides these it keeps the heads that are read ahead, what a sink puts at a time, a bit an entry
    for the holes of chunks, 100 bytes a chunk, and 500 bytes and twice its path a directory.
    """

    part_entries: int = 1 << 16
    """The entries that are sorted together, about 800 bytes each. Twice as many are tolerated."""
    waiting_bytes: int = 32 << 20
    """The entries (56 bytes and the name) that wait for distribution to parts.

    The distribution takes three times as much again. A smaller dataset is never written to a file.
    """


DEFAULT_LIMITS: Final = MemoryLimits()
