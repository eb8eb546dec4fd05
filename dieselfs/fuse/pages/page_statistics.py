"""Counters of a mount's page cache: fills ahead of readers, their outcome, and readers' progress.

Fields count since the mount began, unless their description says "now".
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field


@dataclass(frozen=True, slots=True)
class FillStatistics:
    """Files that were filled into the page cache before their readers came, or dropped from it."""

    fills: int = 0
    """Filled chunks."""
    incomplete_fills: int = 0
    """Filled chunks that lack a file: it failed, or the server was at its end."""
    filled_files: int = 0
    filled_bytes: int = 0
    unknown_files: int = 0
    """Files that the kernel had not looked up, so that a helper had to do so."""
    dropped_files: int = 0
    dropped_bytes: int = 0
    """Bytes of the dropped files, whether all of their pages were cached or not."""

    def __add__(self, other: FillStatistics) -> FillStatistics:
        return FillStatistics(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class PlannedPagesStatistics:
    """The page cache along a known order."""

    outside_bytes: int = 0
    """Bytes in the page cache now for the order, within the budget shared with node memory."""
    watched_files: int = 0
    """Files that are watched now, to learn how far readers are."""
    closed_files: int = 0
    """Watched files that a reader closed."""
    unwatched_files: int = 0
    """Files that could not be watched."""
    lost_chunks: int = 0
    """Chunks that were fetched again: the kernel had dropped their pages before they were read."""


@dataclass(frozen=True, slots=True)
class MissPrefillStatistics:
    """Chunks that are filled without a known order, when a READ misses."""

    budget_bytes: int = 0
    """The upper bound of `outstanding_bytes` now."""
    outstanding_bytes: int = 0
    """Bytes that are filled now, and not dropped or known to be read."""
    misses: int = 0
    """READs of chunks that were not filled."""
    fills: int = 0
    """Chunks that were filled for a miss."""
    useful: int = 0
    """Filled chunks whose watched files were read, at least half of them."""
    wasted: int = 0
    """Filled chunks that had to be dropped before half of their watched files were read."""
    fill_every: int = 1
    """One miss in this many fills its chunk now: more than 1 after wasted fills."""
    watched_files: int = 0
    """Files that are watched now."""


@dataclass(frozen=True, slots=True)
class PageCacheStatistics:
    """Everything that a mount does for the page cache; zeros where it does nothing."""

    filled: FillStatistics = field(default_factory=FillStatistics)
    planned: PlannedPagesStatistics = field(default_factory=PlannedPagesStatistics)
    prefill: MissPrefillStatistics = field(default_factory=MissPrefillStatistics)
