"""How much a rebuild holds at a time: 250 MB as a rule, measured 170 MB for 1.28 million files and 177 MB for three times as many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Besides these a rebuild holds the heads that are read ahead, what a sink puts at a time, a bit an entry for the holes of
    chunks, 100 bytes a chunk, and 500 bytes and twice its path a directory."""

    part_entries: int = 1 << 16
    """Entries that are sorted together, about 800 bytes each. Twice as many are borne."""
    waiting_bytes: int = 32 << 20
    """Entries (56 bytes and the name) that wait for being dealt, which takes as much again three times. A dataset of less is
    never written to a file."""


DEFAULT_LIMITS: Final = MemoryLimits()
