"""The counters of node memory that one process shows."""

from __future__ import annotations

from dataclasses import dataclass

from dieselfs.cache.ports.master_port import MemoryStatistics


@dataclass(frozen=True, slots=True)
class NodeMemoryStatistics:
    """Counters of this process since it opened node memory or was forked, and those of the task."""

    hits: int
    """Reads answered from blocks that were mapped, or were found in the folder."""
    misses: int
    """Reads for which the master had to be asked, or was known to be full.

    A read that asks for several blocks counts once. Each read that is not empty is a hit or a miss.
    """
    fallbacks: int
    """Reads that bypassed node memory: no room, no master, or a damaged or missing block."""
    mapped_blocks: int
    """The current number."""
    mapped_bytes: int
    """The current number."""
    joins: int
    """The number of masters that this process has had."""
    node: MemoryStatistics | None
    """The counters of the master; None if there is no master now."""
